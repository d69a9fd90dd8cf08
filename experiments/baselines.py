"""What a model of text must beat: three codes that need no training, in bits per UTF-8 byte of the same text.

- `byte_entropy`: the order-0 entropy of the bytes themselves, the least any memoryless byte code can reach **on this
  very text** (its frequencies are taken from the text that it codes, which flatters it).
- `unigram_bits`: tokens drawn independently with the frequencies of the *training* tokens, add-one smoothed
  (Laplace), so that it codes unseen text honestly.
- `zstd_bits`: ``zstd -19`` over all documents in one stream, which adapts to the text as it goes.

See: Shannon 1948, "A Mathematical Theory of Communication", for entropy as the limit of a code.
"""

import math
from collections.abc import Iterable

import numpy as np


def byte_entropy(texts: Iterable[bytes]) -> float:
    """Order-0 entropy of all bytes together, bits/byte."""
    counts = np.zeros(256, np.int64)
    for text in texts:
        counts += np.bincount(np.frombuffer(text, np.uint8), minlength=256)
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def unigram_bits(train_counts: np.ndarray, counts: np.ndarray, *, num_bytes: int) -> float:
    """Cost of tokens under the training frequencies, bits/byte.

    Args:
        train_counts: Int[vocab], how often each token id stands in the training tokens.
        counts: Int[vocab], how often in the text that is scored.
        num_bytes: UTF-8 bytes of that text.
    """
    bits = -np.log2((train_counts + 1) / (train_counts.sum() + len(train_counts)))
    return float((counts * bits).sum() / num_bytes)


def zstd_bits(texts: Iterable[bytes], *, level: int = 19) -> float:
    """Size of all texts in one zstd stream, bits/byte, with the level's own window."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=level).compressobj()
    read = written = 0
    for text in texts:
        read += len(text)
        written += len(compressor.compress(text))
    written += len(compressor.flush())
    return 8 * written / read if read else math.nan
