"""Who is contaminated: n-grams that documents hold, weighed against the items of evaluation sets they come from.

Hits are pairs of a document and an n-gram, and an n-gram may be in many items, so what a document shares with each item
is a product of two sparse matrices: documents by n-grams, and n-grams by items. It is taken a group of documents at a
time, so that memory holds `_MAX_PAIRS` pairs however popular an n-gram is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from marin_zephyr.text.evaluations import Evaluations

# Pairs of a document and an item that share an n-gram, weighed at a time.
_MAX_PAIRS = 1 << 24


@dataclass(frozen=True)
class Contamination:
    """What is contaminated, as the tables that stand under ``_contamination`` of the output.

    Attributes:
        documents: one row a contaminated document and evaluation set: ``id``, ``evaluation``, ``num_items`` (of which
            it holds enough n-grams), the ``file`` and ``row`` of the item of which it holds the largest share, the
            n-grams ``shared`` with that item, their ``share``, ``num_bytes``, ``num_copies``.
        items: one row an evaluation item for which a document is contaminated: ``evaluation``, ``file``, ``row``,
            ``num_ngrams``, ``num_documents``, and the largest ``share`` of its n-grams that one document holds.
        ngrams: one row an n-gram that is in any document, those of most documents first: ``evaluation``, ``file`` and
            ``row`` where it first is, its ``text``, ``num_documents``, and whether it was ``ignored`` as too common.
    """

    documents: pl.DataFrame
    items: pl.DataFrame
    ngrams: pl.DataFrame


def read_matches(directory: Path) -> pl.DataFrame:
    """The matches of all documents, by id: so their order depends on no file, and copies are one row.

    Args:
        directory: of parquet files with columns ``id``, ``num_bytes``, ``ngrams``.

    Returns:
        These columns, and ``num_copies``.
    """
    schema = pl.Schema({"id": pl.String, "num_bytes": pl.Int64, "ngrams": pl.List(pl.Int64)})
    parts = [pl.read_parquet(path) for path in sorted(directory.glob("*.parquet"))]
    matches = pl.concat([pl.DataFrame(schema=schema), *(part.cast(schema) for part in parts if part.height)])
    return matches.group_by("id").agg(pl.first("num_bytes", "ngrams"), num_copies=pl.len()).sort("id")


def weigh(
    matches: pl.DataFrame, evaluations: Evaluations, *, min_share: float, max_documents: int | None
) -> Contamination:
    """Decides which documents are contaminated.

    Args:
        matches: as `read_matches` gives them.
        evaluations: the items.
        min_share: the share of an item's n-grams that a document must hold, at least one n-gram in any case.
        max_documents: n-grams in more documents than this count for nothing; None: all count.
    """
    hits = matches.with_row_index("document").select("document", "num_copies", number="ngrams").explode("number")
    holders = np.bincount(hits["number"], weights=hits["num_copies"], minlength=evaluations.num_ngrams).astype(np.int64)
    common = holders > (np.iinfo(np.int64).max if max_documents is None else max_documents)
    counted = hits.filter(~common[hits["number"].to_numpy()])

    num_items = evaluations.items.height
    num_documents, most = np.zeros(num_items, dtype=np.int64), np.zeros(num_items, dtype=np.int64)
    documents = []
    for pairs in _shared(counted, evaluations):
        enough = pairs.filter(pl.col("shared") >= pl.col("num_ngrams") * min_share)
        documents.append(_documents(enough, matches, evaluations))
        item, copies = enough["item"].to_numpy(), matches["num_copies"].gather(enough["document"])
        num_documents += np.bincount(item, weights=copies, minlength=num_items).astype(np.int64)
        np.maximum.at(most, item, enough["shared"].to_numpy())
    return Contamination(
        documents=pl.concat(documents).sort("id", maintain_order=True),
        items=_items(num_documents, most, evaluations),
        ngrams=_ngrams(holders, common, evaluations),
    )


def _shared(hits: pl.DataFrame, evaluations: Evaluations) -> Iterator[pl.DataFrame]:
    """How many n-grams a document and an item share, where they share any; frames of whole documents, at least one."""
    from scipy.sparse import csr_array

    items = evaluations.items.select("set", "file", "row", "num_ngrams").with_columns(item=pl.int_range(pl.len()))
    ones = np.ones(len(evaluations.pairs), dtype=np.int64)
    shape = (evaluations.num_ngrams, items.height)
    items_of = csr_array((ones, (evaluations.pairs[:, 0], evaluations.pairs[:, 1])), shape=shape)
    document, number = hits["document"].to_numpy().astype(np.int64), hits["number"].to_numpy()
    for begin, end in _groups(document, np.diff(items_of.indptr)[number]):
        rows = document[begin:end] - (document[begin] if begin < end else 0)
        ones = np.ones(end - begin, dtype=np.int64)
        held = csr_array((ones, (rows, number[begin:end])), shape=(int(rows.max(initial=0)) + 1, shape[0]))
        product = (held @ items_of).tocoo()
        first = document[begin] if begin < end else 0
        yield items[product.col.astype(np.int64)].with_columns(
            document=pl.Series(product.row.astype(np.int64) + first), shared=pl.Series(product.data, dtype=pl.Int64)
        )


def _groups(document: NDArray[np.int64], weights: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Cuts the hits between documents, so that those of one group make few enough pairs; one group at least."""
    begin, held = 0, 0
    starts = np.flatnonzero(np.diff(document, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(document)]):
        weight = int(weights[start:end].sum())
        if held and held + weight > _MAX_PAIRS:
            yield begin, start
            begin, held = start, 0
        held += weight
    yield begin, len(document)


def _documents(enough: pl.DataFrame, matches: pl.DataFrame, evaluations: Evaluations) -> pl.DataFrame:
    best = (
        enough.with_columns(share=pl.col("shared") / pl.col("num_ngrams"))
        .sort("document", "set", -pl.col("share"), "item")
        .group_by("document", "set", maintain_order=True)
        .agg(pl.first("file", "row", "shared", "share"), num_items=pl.len())
    )
    of_document = matches[best["document"]]
    columns = ["id", "evaluation", "num_items", "file", "row", "shared", "share", "num_bytes", "num_copies"]
    return best.with_columns(
        of_document["id"], of_document["num_bytes"], of_document["num_copies"], _names(best["set"], evaluations)
    ).select(columns)


def _items(num_documents: NDArray[np.int64], most: NDArray[np.int64], evaluations: Evaluations) -> pl.DataFrame:
    found = np.flatnonzero(num_documents)
    items = evaluations.items[found]
    return items.select(_names(items["set"], evaluations), "file", "row", "num_ngrams").with_columns(
        pl.Series("num_documents", num_documents[found]), pl.Series("share", most[found] / items["num_ngrams"])
    )


def _ngrams(holders: NDArray[np.int64], common: NDArray[np.bool_], evaluations: Evaluations) -> pl.DataFrame:
    numbers = np.flatnonzero(holders)
    numbers = numbers[np.lexsort((numbers, -holders[numbers]))]
    items = evaluations.items[evaluations.places[numbers, 0]]
    return items.select(_names(items["set"], evaluations), "file", "row").with_columns(
        pl.Series("text", evaluations.ngram_texts(numbers), dtype=pl.String),
        pl.Series("num_documents", holders[numbers]),
        pl.Series("ignored", common[numbers]),
    )


def _names(sets: pl.Series, evaluations: Evaluations) -> pl.Series:
    return pl.Series("evaluation", evaluations.names, dtype=pl.String).gather(sets)
