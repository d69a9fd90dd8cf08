"""Sketches: what must be known of each document to find its near-duplicates, and nothing of its text.

A sketch is the document's id and length, the band keys of its MinHash signature (`minhash`) and the sorted set of its
n-gram hashes (`ngrams`). Workers write them as parquet; the one process that decides reads the short columns of all
documents (8 bytes a band: 168 MB a million documents at the defaults) and the n-gram sets of a few.

A document without n-grams (no words) has a sketch, but is similar to nothing and no candidate.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marin_zephyr.text.corpus import slices
from marin_zephyr.text.minhash import Banding, band_keys, signatures
from marin_zephyr.text.ngrams import ngram_sets

# Bytes of text sketched at a time; the arrays over its tokens take about ten times as much.
_SLICE_BYTES = 4 << 20


def sketch(documents: pa.Table, *, ngram: int, num_permutations: int, banding: Banding) -> pa.Table:
    """The sketches of a batch of documents, in order.

    Args:
        documents: columns ``id``, ``text``, ``num_bytes``.
        ngram: words in an n-gram.
        num_permutations: places in a signature.
        banding: how signatures are cut.

    Returns:
        Columns ``id``, ``num_bytes``, ``num_ngrams``, ``bands`` (list of uint64), ``ngrams`` (sorted list of uint64).
    """
    tables = []
    for part in slices(documents, max_bytes=_SLICE_BYTES):
        sets = ngram_sets(part["text"].cast(pa.large_string()).combine_chunks(), ngram=ngram)
        keys = band_keys(signatures(sets, num_permutations=num_permutations), banding=banding)
        columns = {
            "id": part["id"],
            "num_bytes": part["num_bytes"],
            "num_ngrams": np.diff(sets.offsets),
            "bands": pa.LargeListArray.from_arrays(np.arange(len(keys) + 1) * banding.num_bands, keys.ravel()),
            "ngrams": pa.LargeListArray.from_arrays(sets.offsets, sets.hashes),
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


@dataclass(frozen=True)
class Sketches:
    """The sketches of a corpus. Make one with `open_sketches`; a *row* counts documents through all files in order.

    Attributes:
        files: parquet files, in order.
        ids: [documents].
        num_bytes: int64 [documents], the lengths of the texts.
        num_ngrams: int64 [documents], the sizes of the n-gram sets.
        bands: uint64 [documents, num_bands].
        preferred: int64 [candidates], the rows of documents that have n-grams, from the longest text to the shortest,
            equals by id; of copies, which have one id, only the first.
        num_copies: documents whose id an earlier row has.
    """

    files: tuple[Path, ...]
    ids: pl.Series
    num_bytes: NDArray[np.int64]
    num_ngrams: NDArray[np.int64]
    bands: NDArray[np.uint64]
    preferred: NDArray[np.int64]
    num_copies: int

    def load_sets(self, rows: NDArray[np.integer]) -> dict[int, NDArray[np.uint64]]:
        """The n-gram sets of some rows, read a few hundred documents at a time."""
        wanted = np.zeros(len(self.ids), dtype=bool)
        wanted[rows] = True
        sets: dict[int, NDArray[np.uint64]] = {}
        first = 0
        for path in self.files:
            with pq.ParquetFile(path) as parquet:
                for batch in parquet.iter_batches(batch_size=256, columns=["ngrams"]):
                    for row in np.flatnonzero(wanted[first : first + len(batch)]).tolist():
                        # A copy: a view would keep the whole batch in memory for the sake of one set.
                        sets[first + row] = batch.column("ngrams")[row].values.to_numpy().copy()
                    first += len(batch)
        return sets


def open_sketches(directory: Path) -> Sketches:
    """Reads the short columns of all sketches."""
    files = tuple(sorted(directory.glob("*.parquet")))
    index = pl.concat([pl.read_parquet(path, columns=["id", "num_bytes", "num_ngrams", "bands"]) for path in files])
    is_first = pl.col("id").is_first_distinct()
    bands = index["bands"].explode(empty_as_null=False).to_numpy()
    candidates = index.with_row_index("row").filter(is_first & (pl.col("num_ngrams") > 0))
    preferred = candidates.sort(-pl.col("num_bytes"), "id")["row"]
    return Sketches(
        files=files,
        ids=index["id"],
        num_bytes=index["num_bytes"].to_numpy(),
        num_ngrams=index["num_ngrams"].to_numpy(),
        bands=bands.reshape(len(index), -1 if len(index) else 1),
        preferred=preferred.to_numpy().astype(np.int64),
        num_copies=len(index) - index["id"].n_unique(),
    )
