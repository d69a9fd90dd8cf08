"""Documents as sets of hashed word n-grams, computed for a whole batch at once.

The similarity that de-duplication speaks of is the Jaccard index of two such sets, so this file decides what "nearly
the same" means:

- A *token* is a run of letters, digits, underscores and non-ASCII characters; ASCII case is folded. ASCII punctuation,
  white space and the typographic blocks U+0080-U+00BF and U+2000-U+2FFF separate tokens and are not tokens: reformatted
  text and re-quoted prose stay equal. Kana and Han (U+3000-U+9FFF), which write no spaces, are one token a character
  (letters that follow one without a space join it).
- An *n-gram* is n consecutive tokens of one document. A document of fewer tokens is one n-gram of all it has, and a
  document of none has an empty set, which is similar to nothing.

Nothing here loops over tokens. The bytes of a batch are one array; a token's hash is the difference of two prefix sums
of a polynomial over its bytes (Karp and Rabin, 1987, modulo 2**64), finished by the 64-bit mixer of MurmurHash3; an
n-gram's hash is a sum of its tokens' hashes, each under its own odd multiplier (Dietzfelbinger's multiply-shift), mixed
again. Invariant: the set of a document depends on that document alone, never on its neighbours in the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# A longer document is cut at every multiple of PIECE from its own start, so a token that straddles a cut counts as two,
# the same two wherever the document lies.
PIECE = 1 << 20

# Bytes hashed at a time, as long as they are whole pieces: the 64-bit arrays over them stay in the cache.
_BLOCK = 1 << 17

# Odd, and 3 modulo 4, so that swapping two neighbouring bytes changes all but the lowest bit of a hash's difference.
_BASE = 0x9E3779B97F4A7C17
_MASK = (1 << 64) - 1

_SEPARATOR, _WORD, _ALONE, _CONTINUATION = 0, 1, 2, 3


@dataclass(frozen=True)
class NgramSets:
    """The n-gram sets of a batch of documents.

    Attributes:
        hashes: uint64 [total]; document i owns `hashes[offsets[i]:offsets[i + 1]]`, sorted and without repeats.
        offsets: int64 [documents + 1].
    """

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[NDArray[np.uint64]]:
        return (self[document] for document in range(len(self)))

    def __getitem__(self, document: int) -> NDArray[np.uint64]:
        return self.hashes[self.offsets[document] : self.offsets[document + 1]]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch of documents, in order.

    Attributes:
        hashes: uint64 [total]; document i owns `hashes[offsets[i]:offsets[i + 1]]`.
        offsets: int64 [documents + 1].
    """

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]


def ngram_sets(texts: pa.Array, *, ngram: int = 5) -> NgramSets:
    """Hashes every document's n-grams.

    Args:
        texts: a `string` or `large_string` array without nulls, one document an element.
        ngram: tokens in an n-gram, at least 1.

    Returns:
        The sorted set of 64-bit n-gram hashes of each document, in the order given.
    """
    hashes, offsets = hash_ngrams(hash_tokens(texts), ngram=ngram)
    return _sorted_sets(hashes, offsets)


def hash_tokens(texts: pa.Array) -> Tokens:
    """Hashes every document's tokens.

    Args:
        texts: a `string` or `large_string` array without nulls, one document an element.
    """
    data, bounds = _text_buffers(texts)
    long = np.flatnonzero(np.diff(bounds) > PIECE)
    inner = [np.arange(bounds[i] + PIECE, bounds[i + 1], PIECE) for i in long]
    cuts = np.unique(np.concatenate([bounds, *inner]))  # also drops the repeated bounds of empty documents
    blocks: list[NDArray[np.uint64]] = []
    offsets = np.zeros(len(bounds), dtype=np.int64)
    begin = num_tokens = 0
    while begin < len(cuts) - 1:
        end = max(int(np.searchsorted(cuts, cuts[begin] + _BLOCK, side="right")) - 1, begin + 1)
        block = data[cuts[begin] : cuts[end]]
        first, last = _token_bounds(block, cuts[begin:end] - cuts[begin])
        blocks.append(_hash_spans(block, first, last))
        inside = slice(*np.searchsorted(bounds, [cuts[begin] + 1, cuts[end] + 1]))
        offsets[inside] = num_tokens + np.searchsorted(first, bounds[inside] - cuts[begin])
        num_tokens += len(first)
        begin = end
    return Tokens(np.concatenate([*blocks, np.zeros(0, dtype=np.uint64)]), offsets)


def token_spans(text: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the tokens of one document begin and end, in bytes of its UTF-8: int64 [tokens] each."""
    cuts = np.arange(0, len(text), PIECE)
    first, last = _token_bounds(np.frombuffer(text, dtype=np.uint8), cuts)
    return first.astype(np.int64), last.astype(np.int64)


def hash_ngrams(tokens: Tokens, *, ngram: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes every run of n tokens of one document, in order and with repeats.

    Args:
        tokens: of a batch of documents.
        ngram: tokens in an n-gram, at least 1. A document of fewer tokens is one n-gram of all it has.

    Returns:
        uint64 [n-grams] hashes, and int64 [documents + 1] offsets.
    """
    if ngram < 1:
        raise ValueError(f"ngram = {ngram}: an n-gram has at least one token")
    multipliers = np.array([_odd(position) for position in range(ngram)], dtype=np.uint64)
    starts, counts = tokens.offsets[:-1], np.diff(tokens.offsets)
    # Every token begins a window, which its successors fill; those that reach into the next document are dropped.
    windows = _sums_of_windows(tokens.hashes, multipliers)
    stays = np.ones(len(windows), dtype=bool)
    reaching = tokens.offsets[1:][counts > 0][:, None] - np.arange(1, ngram)
    stays[reaching[reaching >= 0]] = False
    short = np.flatnonzero((counts > 0) & (counts < ngram))
    inside = np.arange(ngram) < counts[short, None]
    places = np.where(inside, starts[short, None] + np.arange(ngram), 0)
    windows[starts[short]] = (tokens.hashes[places] * multipliers * inside).sum(axis=1, dtype=np.uint64)
    stays[starts[short]] = True
    num_ngrams = np.where(counts >= ngram, counts - ngram + 1, np.minimum(counts, 1))
    return mix(windows[stays]), np.concatenate([[0], np.cumsum(num_ngrams)])


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The Jaccard index of two sorted hash sets: shared over all, in [0, 1]; two empty sets have 0."""
    shared = num_shared(a, b)
    union = len(a) + len(b) - shared
    return shared / union if union else 0.0


def num_shared(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """The number of hashes that two sorted sets have in common."""
    if len(a) > len(b):
        a, b = b, a
    if len(a) == 0:
        return 0
    positions = np.searchsorted(b, a)
    return int(np.count_nonzero(b[np.minimum(positions, len(b) - 1)] == a))


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes 64-bit values in place, bijectively: every input bit moves every output bit.

    See: Appleby, MurmurHash3, `fmix64`.
    """
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values ^= values >> np.uint64(33)
        values *= np.uint64(multiplier)
    values ^= values >> np.uint64(33)
    return values


def _odd(index: int) -> int:
    """The index-th odd multiplier: a mixed counter, so that no library's random generator enters a stored hash."""
    return int(mix(np.array([(index + 1) * _BASE & _MASK], dtype=np.uint64))[0]) | 1


@cache
def _byte_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """For each byte value: its class, and the 64-bit value that stands for it (equal for the two cases of a letter)."""
    classes = np.full(256, _SEPARATOR, dtype=np.uint8)
    classes[[byte for byte in range(128) if chr(byte).isalnum() or byte == ord("_")]] = _WORD
    classes[0x80:0xC0] = _CONTINUATION
    classes[0xC3:] = _WORD  # 0xC2 leads U+0080-U+00BF and stays a separator, as does 0xE2 below
    classes[0xE2] = _SEPARATOR
    classes[0xE3:0xEA] = _ALONE
    folded = np.arange(256, dtype=np.uint64)
    folded[ord("A") : ord("Z") + 1] += np.uint64(32)
    return classes, mix((folded + np.uint64(1)) * np.uint64(_BASE))


@cache
def _powers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The powers of the base and of its inverse modulo 2**64, from 0 to PIECE."""
    both = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = np.full(PIECE + 1, base, dtype=np.uint64)
        powers[0] = 1
        both.append(np.multiply.accumulate(powers))
    return both[0], both[1]


def _text_buffers(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of an Arrow string array and the documents' bounds in them, without copying the bytes."""
    if texts.null_count:
        raise ValueError("texts hold nulls: a document's text is a string, if an empty one")
    _, offsets, data = texts.buffers()
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if offsets is None or data is None:  # what Arrow gives for an array of no characters
        return np.zeros(0, dtype=np.uint8), np.zeros(len(texts) + 1, dtype=np.int64)
    bounds = np.frombuffer(offsets, dtype=width)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return np.frombuffer(data, dtype=np.uint8), bounds


def _sums_of_windows(tokens: NDArray[np.uint64], multipliers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For each token the sum of it and its successors, each under the multiplier of its position; none after the last.

    In blocks, so that the passes over them find them in the cache.
    """
    sums = np.zeros_like(tokens)
    for begin in range(0, len(tokens), _BLOCK):
        block = sums[begin : begin + _BLOCK]
        for position, multiplier in enumerate(multipliers):
            part = tokens[begin + position : begin + position + len(block)]
            block[: len(part)] += part * multiplier
    return sums


def _token_bounds(data: NDArray[np.uint8], cuts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The starts and ends of the tokens of some bytes; a token starts anew at every cut."""
    classes = _byte_tables()[0][data]
    inside = classes != _SEPARATOR
    for lead, length in ((0xC2, 2), (0xE2, 3)):  # a separator of several bytes: its continuation separates as well
        positions = np.flatnonzero(data == lead)
        for k in range(1, length):
            inside[positions[positions + k < len(data)] + k] = False
    starts = inside & (classes != _CONTINUATION)
    starts[1:] &= ~inside[:-1] | (classes[1:] == _ALONE)
    starts[cuts] = inside[cuts]
    ends = inside.copy()
    ends[:-1] &= ~inside[1:] | starts[1:]
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1


def _hash_spans(data: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Hashes `data[start:end]` for every span: a difference of prefix sums, shifted to the origin and mixed."""
    powers, inverses = _powers()
    terms = _byte_tables()[1][data]
    terms *= powers[: len(terms)]
    sums = np.zeros(len(terms) + 1, dtype=np.uint64)
    np.cumsum(terms, out=sums[1:])
    return mix((sums[ends] - sums[starts]) * inverses[starts])


def _sorted_sets(hashes: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NgramSets:
    """Sorts each document's hashes and drops repeats."""
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        hashes[begin:end].sort()
    fresh = np.ones(len(hashes), dtype=bool)
    fresh[1:] = hashes[1:] != hashes[:-1]
    fresh[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    kept_before = np.concatenate([[0], np.cumsum(fresh)])
    return NgramSets(hashes[fresh], kept_before[offsets])
