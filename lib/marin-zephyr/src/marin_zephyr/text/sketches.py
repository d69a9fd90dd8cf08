"""Sketches: what must be known of each document to find its near-duplicates, and nothing of its text.

A sketch is the document's id and length, the size of its n-gram set (`ngrams`) and the band keys of its MinHash
signature (`minhash`), one column a band: 0.2 kB a document at the defaults. The one process that decides reads a band
at a time and then the sketches of *candidates*, the documents that share a key with another. The n-gram sets by which
candidates are compared are not kept: they are larger than the texts, and few are wanted, so they are made from the
texts in a second pass.

A document without n-grams (no words) has a sketch, but is similar to nothing and no candidate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marin_zephyr.text.clusters import connect
from marin_zephyr.text.corpus import slices
from marin_zephyr.text.lookups import Lookup, encode_ids
from marin_zephyr.text.minhash import Banding, band_keys, signatures
from marin_zephyr.text.ngrams import ngram_sets


def sketch(documents: pa.Table, *, ngram: int, num_permutations: int, banding: Banding) -> pa.Table:
    """The sketches of a batch of documents, in order.

    Args:
        documents: columns ``id``, ``text``, ``num_bytes``.
        ngram: words in an n-gram.
        num_permutations: places in a signature.
        banding: how signatures are cut.

    Returns:
        Columns ``id``, ``num_bytes``, ``num_ngrams``, and ``band_00`` and so on (uint64).
    """
    tables = []
    for part in slices(documents):
        sets = ngram_sets(part["text"].cast(pa.large_string()).combine_chunks(), ngram=ngram)
        keys = band_keys(signatures(sets, num_permutations=num_permutations), banding=banding)
        columns = {"id": part["id"], "num_bytes": part["num_bytes"], "num_ngrams": np.diff(sets.offsets)}
        tables.append(pa.table(columns | dict(zip(_names(banding), keys.T, strict=True))))
    return pa.concat_tables(tables)


def candidate_sets(documents: pa.Table, *, candidates: Lookup, ngram: int) -> pa.Table:
    """The n-gram sets of those documents of a batch that are candidates.

    Args:
        documents: columns ``id``, ``text``, ``num_bytes``.
        candidates: their ids.
        ngram: words in an n-gram.

    Returns:
        Columns ``place`` (of the id among the candidates' ids) and ``ngrams`` (sorted list of uint64).
    """
    places = candidates.positions(encode_ids(documents["id"].to_pylist()))
    documents = documents.append_column("place", pa.array(places)).filter(pa.array(places >= 0))
    tables = []
    for part in slices(documents):
        sets = ngram_sets(part["text"].cast(pa.large_string()).combine_chunks(), ngram=ngram)
        lists = pa.LargeListArray.from_arrays(sets.offsets, sets.hashes)
        tables.append(pa.table({"place": part["place"], "ngrams": lists}))
    return pa.concat_tables(tables)


@dataclass(frozen=True)
class Candidates:
    """The documents that may have a near-duplicate, one of each id, in the order of their ids.

    Invariant: a function of the set of documents, as nothing here counts rows or files.

    Attributes:
        ids: [candidates], ascending.
        num_bytes: int64 [candidates], the lengths of the texts.
        num_ngrams: int64 [candidates], the sizes of the n-gram sets, none empty.
        bands: uint64 [candidates, num_bands].
        labels: int32 [candidates]; documents that a chain of shared band keys connects have one label.
        num_copies: documents of the whole corpus whose id an earlier one has.
    """

    ids: pl.Series
    num_bytes: NDArray[np.int64]
    num_ngrams: NDArray[np.int64]
    bands: NDArray[np.uint64]
    labels: NDArray[np.int32]
    num_copies: int

    def preferred(self) -> NDArray[np.int64]:
        """The candidates from the longest text to the shortest, equals by id."""
        return np.argsort(-self.num_bytes, kind="stable")


def find_candidates(directory: Path, *, banding: Banding) -> Candidates:
    """Reads a directory of sketches and picks those of documents that share a band key with another."""
    files = tuple(sorted(directory.glob("*.parquet")))
    num_documents = sum(pq.read_metadata(path).num_rows for path in files)
    labels = connect((_column(files, name) for name in _names(banding)), num_documents=num_documents)
    sizes = np.bincount(labels, minlength=1)
    chosen, first = [], 0
    for path in files:
        part = pl.read_parquet(path)
        of_part = labels[first : first + part.height]
        first += part.height
        chosen.append(part.with_columns(label=of_part).filter(sizes[of_part] > 1))
    # Copies have equal band keys, so they are all here.
    found = pl.concat(chosen)
    distinct = found.unique("id", keep="first").filter(pl.col("num_ngrams") > 0)
    grouped = distinct.filter(pl.len().over("label") > 1).sort("id")
    return Candidates(
        ids=grouped["id"],
        num_bytes=grouped["num_bytes"].to_numpy(),
        num_ngrams=grouped["num_ngrams"].to_numpy(),
        bands=grouped.select(_names(banding)).to_numpy(),
        labels=grouped["label"].to_numpy(),
        num_copies=found.height - found["id"].n_unique(),
    )


def load_sets(directory: Path, places: NDArray[np.integer]) -> dict[int, NDArray[np.uint64]]:
    """The n-gram sets of some candidates, read a few hundred at a time.

    Args:
        directory: of parquet files of `candidate_sets`.
        places: which candidates.

    Returns:
        Place -> sorted n-gram hashes.
    """
    sets: dict[int, NDArray[np.uint64]] = {}
    wanted = set(places.tolist())
    for path in sorted(directory.glob("*.parquet")):
        for batch in _batches(path):
            for row, place in enumerate(batch.column("place").to_pylist()):
                if place in wanted:
                    # A copy: a view would keep the whole batch in memory for the sake of one set.
                    sets[place] = batch.column("ngrams")[row].values.to_numpy().copy()
    return sets


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as parquet:
        yield from parquet.iter_batches(batch_size=256) if parquet.metadata.num_rows else ()


def _column(files: tuple[Path, ...], name: str) -> NDArray[np.uint64]:
    return np.concatenate([pl.read_parquet(path, columns=[name])[name].to_numpy() for path in files])


def _names(banding: Banding) -> list[str]:
    return [f"band_{band:02d}" for band in range(banding.num_bands)]
