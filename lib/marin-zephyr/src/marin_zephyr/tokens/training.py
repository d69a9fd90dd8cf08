"""Training a byte-level BPE tokenizer on a corpus.

All 256 bytes are in the alphabet, so that any text has ids and there is no unknown token. The pre-tokenizer is the one
of GPT-4 and Llama 3: words with the one character before them, up to three digits, punctuation, white space up to a
line's end. The result depends on the inputs and the arguments alone, not on threads or the order of hash tables.

From a corpus larger than ``max_bytes`` a sample is taken: documents in the order of a seeded hash of their text until
the sample is full. It does not depend on the order of the files. The corpus is read once; of it the sample is held.

See: Sennrich et al. 2016 (arXiv 1508.07909); the pattern, Dubey et al. 2024 (arXiv 2407.21783) and OpenAI's tiktoken.
"""

import heapq
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin_zephyr.durability import replace_file
from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.tokens.documents import input_files, read_documents
from marin_zephyr.tokens.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer

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
        inputs: files, directories, globs, or a list of these (see `input_files`).
        out_file: the file to write; an old one is replaced when the new one is whole.
        vocab_size: ids in all, with the 256 bytes and the special tokens. A corpus too small for it gives fewer, which
            is logged and reported.
        text_field: the column or field that holds the text.
        max_bytes: train on at most this many bytes of text. Time grows with it: about 7 MB/s on two cores.
        special_tokens: they get the first ids. No text reaches them.
        seed: chooses the sample.

    Raises:
        UsageError: ``vocab_size`` leaves no room for the bytes, ``max_bytes`` is not positive, or a special token is
            a single character, which would be a byte, or named twice.
        InputError: there is no document with text.
    """
    for token in special_tokens:
        if len(token) < 2 or list(special_tokens).count(token) > 1:
            raise UsageError(
                f"special_tokens holds {token!r}: each must have two characters or more, and be named once"
            )
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise UsageError(f"vocab_size is {vocab_size}: 256 bytes and {len(special_tokens)} special tokens need {least}")
    if not Path(out_file).name:
        raise UsageError(f"out_file is {str(out_file)!r}: name the tokenizer.json to write")
    if max_bytes < 1:
        raise UsageError(f"max_bytes is {max_bytes}: it must be at least 1")
    began = time.monotonic()
    files = input_files(inputs)
    sample = Sample(max_bytes=max_bytes, seed=seed)
    for document in read_documents(files, text_field=text_field):
        sample.add(document.text, document.num_bytes)
    if not sample.num_bytes:
        raise InputError(f"no document with text in {', '.join(file.url for file in files[:3])}")
    logger.info("train-tokenizer: %s of %s bytes", f"{sample.num_bytes_used:,}", f"{sample.num_bytes:,}")
    content = _train(sample.texts(), vocab_size, special_tokens)
    replace_file(Path(out_file), content)
    tokenizer = load_tokenizer(out_file, eos_token=next(iter(special_tokens), None))
    if tokenizer.vocab_size < vocab_size:
        logger.warning(
            "train-tokenizer: the corpus has regularities for %d ids, not for the %d asked",
            tokenizer.vocab_size,
            vocab_size,
        )
    return _report(tokenizer, Path(out_file), sample, time.monotonic() - began)


class Sample:
    """Of the documents that are added, those of the lowest seeded hashes: as many bytes as are wanted, in all.

    Args:
        max_bytes: UTF-8 bytes wanted; the last document that gets in is shortened to them.
        seed: of the hash.
    """

    def __init__(self, *, max_bytes: int, seed: int) -> None:
        self.num_documents = 0
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._seed = seed
        self._held_bytes = 0
        self._held: list[tuple[int, int, str, int]] = []  # a heap: the highest hash first, of equal ones the last

    @property
    def num_bytes_used(self) -> int:
        """Bytes of the sample."""
        return min(self._held_bytes, self._max_bytes)

    def add(self, text: str, num_bytes: int) -> None:
        """Adds a document; ``num_bytes`` is the length of ``text`` in UTF-8."""
        from xxhash import xxh3_64_intdigest

        self.num_documents += 1
        if not num_bytes:
            return
        rank = -xxh3_64_intdigest(text.encode(), self._seed)
        heapq.heappush(self._held, (rank, -self.num_documents, text, num_bytes))
        self.num_bytes += num_bytes
        self._held_bytes += num_bytes
        while self._held_bytes - self._held[0][3] >= self._max_bytes:
            self._held_bytes -= heapq.heappop(self._held)[3]

    def texts(self) -> Iterator[str]:
        """The sample, in the order in which it was added; its characters are whole."""
        over = max(0, self._held_bytes - self._max_bytes)
        highest = self._held[0][1] if self._held else None
        for _, number, text, num_bytes in sorted(self._held, key=lambda held: -held[1]):
            if number == highest and over:
                yield text.encode()[: num_bytes - over].decode(errors="ignore")
            else:
                yield text


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


def _report(tokenizer: Tokenizer, out_file: Path, sample: Sample, seconds: float) -> TrainingReport:
    return TrainingReport(
        file=str(out_file),
        digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        num_documents=sample.num_documents,
        num_bytes=sample.num_bytes,
        num_bytes_used=sample.num_bytes_used,
        seconds=seconds,
    )
