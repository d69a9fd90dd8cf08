"""Train and validation by a hash of the document's id: a document's side is its own affair.

A document goes to validation if the hash of its id, a uniform number in [0, 1), lies below `validation_fraction`. So a
corpus can grow, shrink or be re-sharded and no document changes sides, and equal texts always share one; another seed
draws another split. One exception keeps small corpora usable: if the fraction would leave a side empty, the document
of smallest (or largest) hash fills it, as if the fraction were just large (or small) enough. The report's threshold
then differs from the fraction, and that one document may change sides when the corpus grows.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import xxhash
from numpy.typing import NDArray

from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.progress import Progress
from marin_zephyr.text.corpus import Size, open_corpus, open_session, written_size

_RANGE = 1 << 64


@dataclass(frozen=True)
class SplitReport:
    """How `split` divided a corpus.

    Attributes:
        out_dir: holds the corpora ``train`` and ``validation``.
        train: documents and bytes to train on.
        validation: documents and bytes to validate on.
        threshold: hashes below it went to validation: `validation_fraction`, unless a side would have been empty.
    """

    out_dir: str
    train: Size
    validation: Size
    threshold: float


def split(
    in_dir: str | Path,
    out_dir: str | Path,
    *,
    validation_fraction: float = 0.02,
    seed: int = 0,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> SplitReport:
    """Divides a corpus into ``out_dir/train`` and ``out_dir/validation``, each a corpus in the order of the whole.

    Args:
        in_dir: a corpus directory.
        out_dir: the directory to write.
        validation_fraction: the share of documents to hold out, in (0, 1).
        seed: draws another split, in [0, 2**64).
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: kept between runs, so that a later one goes on from there; by default a temporary directory.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: `in_dir` is no corpus, or all its documents have one id, so that one side would be empty.
        UsageError: the fraction or the seed is out of range.
    """
    if not 0.0 < validation_fraction < 1.0:
        raise UsageError(f"validation_fraction = {validation_fraction}: must be above 0 and below 1")
    if not 0 <= seed < _RANGE:
        raise UsageError(f"seed = {seed}: must be in [0, 2**64)")
    corpus = open_corpus(in_dir)
    hashes = hash_ids(corpus.index("id")["id"].to_list(), seed=seed)
    smallest, largest = int(hashes.min()), int(hashes.max())
    if smallest == largest:
        raise InputError(
            f"corpus {corpus.directory} of {len(hashes)} document(s) cannot be split: train and validation each need a "
            "text that the other has not; add documents"
        )
    threshold = min(max(round(validation_fraction * _RANGE), smallest + 1), largest)
    sizes = {}
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, _):
        for side in ("train", "validation"):
            rows = corpus.dataset().map_batches(partial(select_side, side=side, threshold=threshold, seed=seed))
            report = session.run(rows.write_parquet(Path(out_dir) / side), name=f"split: {side}")
            sizes[side] = written_size(report)
    return SplitReport(str(out_dir), **sizes, threshold=threshold / _RANGE)


def hash_ids(ids: list[str], *, seed: int) -> NDArray[np.uint64]:
    """The xxh3_64 hash of each id: uint64 [documents]."""
    return np.fromiter((xxhash.xxh3_64_intdigest(i.encode(), seed) for i in ids), dtype=np.uint64, count=len(ids))


def select_side(documents: pl.DataFrame, *, side: str, threshold: int, seed: int) -> pl.DataFrame:
    """The documents of one side, in order."""
    held_out = hash_ids(documents["id"].to_list(), seed=seed) < np.uint64(threshold)
    return documents.filter(pl.Series(held_out if side == "validation" else ~held_out))
