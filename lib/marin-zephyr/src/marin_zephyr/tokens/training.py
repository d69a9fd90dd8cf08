"""Training a byte-level BPE tokenizer on a corpus.

All 256 bytes are in the alphabet, so that any text has ids and there is no unknown token. The pre-tokenizer is the one
of GPT-4 and Llama 3: words with the one character before them, up to three digits, punctuation, white space up to a
line's end. The result depends on the inputs and the arguments alone, not on threads or the order of hash tables.

From a corpus larger than ``max_bytes`` a sample is taken: documents in the order of a seeded hash of their text until
the sample is full. It does not depend on the order of the files.

See: Sennrich et al. 2016 (arXiv 1508.07909); the pattern, Dubey et al. 2024 (arXiv 2407.21783) and OpenAI's tiktoken.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.durability import replace_file
from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.tokens.documents import input_files, read_documents
from marin_zephyr.tokens.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
_MIN_PAIR_COUNT = 2  # a pair that occurs once is no regularity


@dataclass(frozen=True)
class TrainingReport:
    """What `train_tokenizer` made.

    Attributes:
        file: the ``tokenizer.json``.
        digest: its sha256.
        vocab_size: how many ids it has: less than was asked where the corpus has no more pairs that occur twice.
        num_documents: documents of the corpus.
        num_bytes: UTF-8 bytes of the corpus.
        num_bytes_used: of these, how many it was trained on.
        seconds: how long it took.
    """

    file: str
    digest: str
    vocab_size: int
    num_documents: int
    num_bytes: int
    num_bytes_used: int
    seconds: float


def train_tokenizer(
    inputs: str | Path | Sequence[str | Path],
    out_file: str | Path,
    *,
    vocab_size: int = 8192,
    text_field: str = "text",
    max_bytes: int = 64 << 20,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    seed: int = 0,
) -> TrainingReport:
    """Trains byte-level BPE and writes a ``tokenizer.json``.

    Args:
        inputs: Parquet or JSON Lines: files, directories, globs, or a list of these (see `input_files`).
        out_file: the file to write; an old one is replaced when the new one is whole.
        vocab_size: ids in all, with the 256 bytes and the special tokens. A corpus too small for it gives fewer, which
            is logged and reported.
        text_field: the column or field that holds the text.
        max_bytes: train on at most this many bytes of text. Time grows with it: about 7 MB/s on two cores.
        special_tokens: they get the first ids; the first of the usual names for an end of sequence becomes ``eos``.
        seed: chooses the sample.

    Raises:
        UsageError: ``vocab_size`` leaves no room for the bytes, or ``max_bytes`` is not positive.
        InputError: there is no document with text.
    """
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise UsageError(f"vocab_size is {vocab_size}: 256 bytes and {len(special_tokens)} special tokens need {least}")
    if max_bytes < 1:
        raise UsageError(f"max_bytes is {max_bytes}: it must be at least 1")
    began = time.monotonic()
    files = input_files(inputs)
    sizes, hashes = _survey(files, text_field, seed)
    if not sizes.sum():
        raise InputError(f"no document with text in {', '.join(file.url for file in files[:3])}")
    allowances = sample_allowances(sizes, hashes, max_bytes=max_bytes)
    logger.info("train-tokenizer: %s of %s bytes", f"{allowances.sum():,}", f"{sizes.sum():,}")
    content = _train(_sample(files, text_field, allowances), vocab_size, special_tokens)
    replace_file(Path(out_file), content)
    tokenizer = load_tokenizer(out_file, eos_token=next(iter(special_tokens), None))
    if tokenizer.vocab_size < vocab_size:
        logger.warning(
            "train-tokenizer: the corpus has regularities for %d ids, not for the %d asked",
            tokenizer.vocab_size,
            vocab_size,
        )
    return _report(tokenizer, Path(out_file), sizes, allowances, time.monotonic() - began)


def sample_allowances(
    sizes: "NDArray[np.int64]", hashes: "NDArray[np.uint64]", *, max_bytes: int
) -> "NDArray[np.int64]":
    """How many bytes of each document are in the sample.

    Args:
        sizes: bytes of each document, shape ``[documents]``.
        hashes: they order the documents; equal ones keep their order.
        max_bytes: what the sample may hold.

    Returns:
        For each document all of its bytes or none, and for at most one a part: their sum is
        ``min(max_bytes, sizes.sum())``.
    """
    import numpy as np

    order = np.argsort(hashes, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    allowances = np.empty_like(sizes)
    allowances[order] = np.clip(max_bytes - before, 0, sizes[order])
    return allowances


def _survey(files: Sequence[InputFile], text_field: str, seed: int) -> "tuple[NDArray[np.int64], NDArray[np.uint64]]":
    """The size and the seeded hash of each document."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    sizes, hashes = [], []
    for document in read_documents(files, text_field=text_field):
        sizes.append(document.num_bytes)
        hashes.append(xxh3_64_intdigest(document.text.encode(), seed))
    return np.array(sizes, np.int64), np.array(hashes, np.uint64)


def _sample(files: Sequence[InputFile], text_field: str, allowances: "NDArray[np.int64]") -> Iterator[str]:
    documents = read_documents(files, text_field=text_field)
    for document, allowed in zip(documents, allowances.tolist(), strict=True):
        if allowed == document.num_bytes:
            yield document.text
        elif allowed:
            yield document.text.encode()[:allowed].decode(errors="ignore")


def _train(texts: Iterator[str], vocab_size: int, special_tokens: Sequence[str]) -> bytes:
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_PAIR_COUNT,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend.to_str(pretty=True).encode()


def _report(
    tokenizer: Tokenizer, out_file: Path, sizes: "NDArray[np.int64]", allowances: "NDArray[np.int64]", seconds: float
) -> TrainingReport:
    return TrainingReport(
        file=str(out_file),
        digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        num_documents=len(sizes),
        num_bytes=int(sizes.sum()),
        num_bytes_used=int(allowances.sum()),
        seconds=seconds,
    )
