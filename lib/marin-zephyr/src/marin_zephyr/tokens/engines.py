"""Which engine encodes, and how the fast one is held to the reference: it is never taken on trust.

The reference is Hugging Face's ``tokenizers`` (`texts.HuggingFaceEngine`). The fast engine (`fast`, extra ``fast``)
mostly refuses a tokenizer that it does not know, but not always, so that what it says about one counts for nothing
here. What counts:

- **Before**: it encodes a sample of the very corpus and a list of texts that tokenizers trip over (`edge_cases`) like
  the reference, document by document; else the reference does the work, and the store's lineage says why.
- **During**: documents chosen by a hash of their ids and lengths, one in about three thousand, are encoded by the
  reference as well, and a difference ends the run. The choice depends on the documents alone, not on threads or on
  where a batch ends.
"""

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal

from marin_zephyr.errors import EngineError, EngineRefusedError, MissingExtraError, UsageError
from marin_zephyr.tokens.batches import Engine
from marin_zephyr.tokens.edge_cases import EDGE_CASES
from marin_zephyr.tokens.fast import FastEngine, plain_json
from marin_zephyr.tokens.texts import byte_lengths
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

type EngineName = Literal["auto", "tokenizers", "gigatoken"]
ENGINES: tuple[EngineName, ...] = ("auto", "tokenizers", "gigatoken")

CHECK_ONE_IN = 3000
MOST_BYTES = 1 << 20
"""A longer document is the reference's alone, which may refuse it (`cutting`), and bounds the memory that it takes."""
_MULTIPLIER = 0xBF58476D1CE4E5B9  # of splitmix64: odd, its bits mix well


@dataclass(frozen=True)
class CheckedEngine:
    """An engine whose ids are compared with the reference's, one document in about `CHECK_ONE_IN`.

    Attributes:
        fast: gives the ids.
        reference: knows the right ones.
        own: a replica of the reference for this thread, which encodes what is longer than `MOST_BYTES`.
        turn: who holds it may ask ``reference``, which replicas share: it is asked rarely and costs time to build.
    """

    fast: Engine
    reference: Engine
    own: Engine
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def name(self) -> str:
        """That of the fast one."""
        return self.fast.name

    def replica(self) -> "CheckedEngine":
        """An equal engine for another thread."""
        return CheckedEngine(self.fast.replica(), self.reference, self.reference.replica(), self.turn)

    def encode(self, texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """The ids of all texts and how many each has, as `Engine` says.

        Raises:
            EngineError: a document's ids are not the reference's; it has the number of the document in ``texts``.
            TextTooLongError: as the reference.
        """
        ids, lengths = self._encode(texts)
        chosen = spot_checks(texts, ids, lengths)
        if len(chosen):
            with self.turn:
                different = _difference(self.reference, texts, ids, lengths, chosen)
            if different is not None:
                number, why = different
                raise EngineError(
                    f"{why}. The store is not written; tokenize with engine 'tokenizers', which encodes again what "
                    f"{self.name} has encoded",
                    number=number,
                )
        return ids, lengths

    def _encode(self, texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        import numpy as np

        (long,) = np.nonzero(byte_lengths(texts) > MOST_BYTES)
        if not len(long):
            return self.fast.encode(texts)
        found, start = [], 0
        for number in [*long.tolist(), len(texts)]:
            found.append(self.fast.encode(texts.slice(start, number - start)))
            if number < len(texts):
                found.append(self.own.encode(texts.slice(number, 1)))
            start = number + 1
        return np.concatenate([ids for ids, _ in found]), np.concatenate([lengths for _, lengths in found])


def choose_engine(
    tokenizer: Tokenizer, reference: Engine, sample: "Iterable[pa.LargeStringArray]", *, wanted: EngineName = "auto"
) -> tuple[Engine, dict[str, Any]]:
    """The engine to encode with, and what a store's lineage says of it.

    Args:
        tokenizer: what both engines encode with.
        reference: the engine whose ids are right by definition.
        sample: documents of the corpus; drawn only if the fast engine is installed and not ruled out.
        wanted: ``auto`` takes the fast engine if it is installed and gives the ids of the reference (a tokenizer that
            merges nothing does without), ``gigatoken`` insists on it, ``tokenizers`` is the reference.

    Returns:
        The engine, and its ``name`` and ``version``; of the fast one also what it was compared on (``parity``:
        ``num_documents``, ``num_bytes``), of the reference the reason where the fast one was ``refused``.

    Raises:
        UsageError: there is no such engine.
        MissingExtraError: ``gigatoken`` was asked for and is not installed.
        EngineRefusedError: ``gigatoken`` was asked for, and its ids are not those of the reference.
    """
    check_name(wanted)
    plain = {"name": reference.name, "version": version("tokenizers")}
    if wanted == "tokenizers" or (wanted == "auto" and _is_trivial(tokenizer)):
        return reference, plain
    try:
        import gigatoken  # noqa: F401  asked for here, so that what follows fails for other reasons only
    except ImportError as error:
        if wanted == "auto":
            return reference, plain
        raise MissingExtraError(
            "engine 'gigatoken' needs the extra `fast`: pip install 'marin-zephyr[fast]'"
            f" (in the workspace: uv run --extra fast ...); {error}"
        ) from None
    try:
        fast = FastEngine(plain_json(tokenizer))
        parity = _check(fast, reference, tokenizer, sample)
    except EngineError as error:
        if wanted == "gigatoken":
            raise EngineRefusedError(f"{error}; encode with engine 'tokenizers', or 'auto'") from None
        logger.warning("encoding with tokenizers, which is slower: %s", error)
        return reference, {**plain, "refused": f"gigatoken {version('gigatoken')}: {error}"}
    record = {"name": fast.name, "version": version("gigatoken"), "parity": parity}
    return CheckedEngine(fast, reference, reference.replica()), record


def check_name(engine: str) -> None:
    """Raises `UsageError` unless ``engine`` is the name of one."""
    if engine not in ENGINES:
        raise UsageError(f"engine is {engine!r}: it must be one of {', '.join(ENGINES)}")


def _is_trivial(tokenizer: Tokenizer) -> bool:
    """Whether it merges nothing, as the byte tokenizer: there is little to gain, and nothing to warn of."""
    return json.loads(tokenizer.content)["model"].get("merges") == []


def _check(
    fast: Engine, reference: Engine, tokenizer: Tokenizer, sample: "Iterable[pa.LargeStringArray]"
) -> Mapping[str, int]:
    """Compares the engines on the edge_cases and the sample; raises `EngineRefusedError` at the first difference."""
    import polars as pl

    counts = {"num_documents": 0, "num_bytes": 0}
    # By way of Polars: Arrow's own way from Python to arrays loads pandas wherever that is installed.
    strings = pl.Series([*EDGE_CASES, *_around_tokens(tokenizer)], dtype=pl.String)
    edge_cases = strings.to_arrow(compat_level=pl.CompatLevel.oldest())
    for texts, is_of_corpus in chain([(edge_cases, False)], zip(sample, repeat(True))):
        texts = texts.filter(pl.Series(byte_lengths(texts) <= MOST_BYTES).to_arrow())
        ids, lengths = fast.encode(texts)
        different = _difference(reference, texts, ids, lengths, range(len(texts)))
        if different is not None:
            where = "a document of the corpus" if is_of_corpus else "a text of the fixed list"
            raise EngineRefusedError(f"{different[1]}, in {where}")
        if is_of_corpus:
            counts["num_documents"] += len(texts)
            counts["num_bytes"] += int(byte_lengths(texts).sum())
    return counts


def _around_tokens(tokenizer: Tokenizer) -> list[str]:
    """Every added token among text: those that are parsed and those that must not be."""
    added = [token["content"] for token in json.loads(tokenizer.content).get("added_tokens") or ()]
    frames = ("{0}", "a{0}b", "a {0} b", "{0}{0}", "end. {0}\n {0}")
    few = added if len(added) <= 64 else [*added[:32], *added[-32:]]  # hundreds of reserved ones are all alike
    return [frame.format(token) for token in few for frame in frames] + [" ".join(added)]


def _difference(
    reference: Engine,
    texts: "pa.LargeStringArray",
    ids: "NDArray[np.int32]",
    lengths: "NDArray[np.int64]",
    which: "Iterable[int]",
) -> tuple[int, str] | None:
    """The number of the first of ``which`` texts whose ids are not the reference's, and how they differ."""
    import numpy as np
    import polars as pl

    numbers = np.asarray(which, np.int64)
    right, counts = reference.encode(texts.take(pl.Series(numbers).to_arrow()))
    ends, right_ends = np.cumsum(lengths), np.cumsum(counts)
    for place, number in enumerate(numbers.tolist()):
        said = ids[ends[number] - lengths[number] : ends[number]]
        true = right[right_ends[place] - counts[place] : right_ends[place]]
        if not np.array_equal(said, true):
            return number, _story(texts[number].as_py() or "", said.tolist(), true.tolist())
    return None


def _story(text: str, said: list[int], true: list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(said, true, strict=False)) if a != b), min(len(said), len(true)))
    shown = f"{text[:60]!r}{'...' if len(text) > 60 else ''}"
    return (
        f"gigatoken and tokenizers differ from id {at} on, {said[at : at + 4]} against {true[at : at + 4]}, "
        f"in the document that begins with {shown}"
    )


def spot_checks(
    texts: "pa.LargeStringArray", ids: "NDArray[np.int32]", lengths: "NDArray[np.int64]"
) -> "NDArray[np.int64]":
    """Which documents the reference encodes as well: a hash of some ids and of both lengths is 0 modulo `CHECK_ONE_IN`.

    Args:
        texts: the documents.
        ids: Int32[tokens], what the fast engine made of them, one after the other.
        lengths: Int64[documents], ids of each.

    Returns:
        Int64[chosen], numbers of documents, ascending; none that is empty or longer than `MOST_BYTES`.
    """
    import numpy as np

    (filled,) = np.nonzero(lengths)
    if not len(filled):
        return filled
    counts, sizes = lengths[filled], byte_lengths(texts)[filled]
    starts = np.cumsum(counts) - counts
    mixed = sizes.astype(np.uint64)
    for part in (counts, ids[starts], ids[starts + counts // 2], ids[starts + counts - 1]):
        mixed = (mixed ^ part.astype(np.uint64)) * np.uint64(_MULTIPLIER)
        mixed ^= mixed >> np.uint64(29)
    return filled[(mixed % np.uint64(CHECK_ONE_IN) == 0) & (sizes <= MOST_BYTES)]
