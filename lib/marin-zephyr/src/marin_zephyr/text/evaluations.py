"""Evaluation sets as n-grams: what a corpus must not contain, and which item each forbidden n-gram comes from.

An *item* is one row of an evaluation file. Its text is all its strings, in order, those in lists and records included
(question, choices, answer), or those of the fields asked for. It is known by the word n-grams of this text (`ngrams`
says what a word is), and by every string of fewer words as a whole, as a short question may be anywhere without its
choices. Strings of fewer than `MIN_WORDS` words are passed over: such texts turn up by themselves (Brown et al., 2020,
appendix C, took n from 8 to 13).

N-grams are numbered from 0 through all lengths. Each length has its own `Lookup`, so a long text is compared with whole
short items as quickly as with n-grams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import InputError
from marin_zephyr.formats.provenance import SOURCE
from marin_zephyr.session import Session
from marin_zephyr.text.lookups import Lookup, write_lookup
from marin_zephyr.text.ngrams import hash_ngrams, hash_tokens, token_spans

MIN_WORDS = 8


@dataclass(frozen=True)
class Forbidden:
    """The forbidden n-grams, as workers need them: an n-gram's number is its position among those of its length.

    Attributes:
        lookups: for each length in words, ascending: it, the number of its first n-gram, and the hashes.
    """

    lookups: tuple[tuple[int, int, Lookup], ...]


@dataclass(frozen=True)
class Evaluations:
    """The items of all evaluation sets, and their n-grams. Make one with `read_evaluations`.

    Attributes:
        names: [sets], as they were given.
        items: one row an item: ``set`` (index in names), ``file``, ``row`` (from 1), ``num_ngrams`` (distinct ones; 0
            for an item too short to have any).
        texts: one row a text of an item: ``item``, ``text``.
        forbidden: the n-grams by hash.
        pairs: int64 [pairs, 2], sorted and distinct: an n-gram's number and an item that has it.
        places: int64 [n-grams, 2]: the text in which an n-gram is first found, and at which of its words.
    """

    names: tuple[str, ...]
    items: pl.DataFrame
    texts: pl.DataFrame
    forbidden: Forbidden
    pairs: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def num_ngrams(self) -> int:
        """Distinct n-grams of all items."""
        return len(self.places)

    def origins(self, numbers: NDArray[np.integer]) -> pl.DataFrame:
        """The items, as rows of `items`, in which n-grams are first found."""
        return self.items[self.texts["item"][self.places[numbers, 0]]]

    def ngram_texts(self, numbers: NDArray[np.integer]) -> list[str]:
        """N-grams as they are written where each is first found, in the order of their numbers as given."""
        lengths = np.zeros(self.num_ngrams, dtype=np.int64)
        for length, base, _ in self.forbidden.lookups:
            lengths[base:] = length
        texts = [""] * len(numbers)
        places = self.places[numbers]
        # Text by text, so that each is cut into words once.
        order = np.argsort(places[:, 0], kind="stable")
        for source, group in groupby(order.tolist(), key=lambda index: int(places[index, 0])):
            text = self.texts["text"][source].encode()
            first, last = token_spans(text)
            for index in group:
                word = places[index, 1]
                end = last[word + lengths[numbers[index]] - 1]
                texts[index] = text[first[word] : end].decode(errors="replace")
        return texts


def read_evaluations(
    against: Sequence[str | Path], *, fields: Sequence[str], ngram: int, session: Session, directory: Path
) -> Evaluations:
    """Reads evaluation sets and numbers their n-grams.

    Args:
        against: one set each: a file, a glob or a directory of any format that `Dataset.from_files` reads.
        fields: the columns that hold text; none means all.
        ngram: words in an n-gram.
        session: reads the files.
        directory: where lookups are written.

    Raises:
        InputError: a set is missing, empty or damaged, or has none of the fields.
    """
    frames = []
    for number, inputs in enumerate(against):
        rows = Dataset.from_files(inputs, with_source=True).map_batches(partial(item_texts, fields=tuple(fields)))
        found = [(number, row["file"], row["row"], row["texts"]) for row in session.rows(rows)]
        if not found:
            raise InputError(f"evaluation set {inputs}: no row in it; name a file of evaluation items")
        schema = {"set": pl.Int64, "file": pl.String, "row": pl.Int64, "texts": pl.List(pl.String)}
        frames.append(pl.DataFrame(found, schema=schema, orient="row"))
    return _number(tuple(map(str, against)), pl.concat(frames), ngram=ngram, directory=directory)


def item_texts(rows: pl.DataFrame, *, fields: tuple[str, ...]) -> pl.DataFrame:
    """The texts of each evaluation item, the whole first and then its strings, and where it comes from."""
    names = [name for name in fields or rows.columns if name in rows.columns and name not in SOURCE]
    if not names:
        where = rows["source"][0] if rows.height else "its files"
        raise InputError(f"{where}: no column {fields[0] if fields else ''!r}; it has {', '.join(rows.columns)}")
    strings = [list(_strings(list(row))) for row in rows.select(names).iter_rows()]
    texts = [["\n".join(parts), *parts] for parts in strings]
    columns = rows.select(file="source", row="source_row")
    return columns.with_columns(pl.Series("texts", texts, dtype=pl.List(pl.String)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _number(names: tuple[str, ...], items: pl.DataFrame, *, ngram: int, directory: Path) -> Evaluations:
    whole = items["texts"].list.len().cum_sum() - items["texts"].list.len()
    texts = items.select("texts", item=pl.int_range(pl.len())).explode("texts").rename({"texts": "text"})
    strings = texts["text"].to_arrow().cast(pa.large_string())
    num_words = np.diff(hash_tokens(strings).offsets)
    # The n-grams of a part are those of the whole, unless it is too short for one.
    lengths = np.where(num_words < ngram, num_words, 0)
    lengths[whole] = np.minimum(num_words[whole], ngram)
    lengths[lengths < min(MIN_WORDS, ngram)] = 0
    lookups, pairs, places, num_ngrams = [], [np.zeros((0, 2), np.int64)], [np.zeros((0, 2), np.int64)], 0
    for length in np.unique(lengths[lengths > 0]).tolist():
        members = np.flatnonzero(lengths == length)
        hashes, offsets = hash_ngrams(hash_tokens(strings.take(pa.array(members))), ngram=length)
        owner = np.repeat(np.arange(len(members)), np.diff(offsets))
        distinct, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        item = texts["item"].to_numpy()[members[owner]]
        lookups.append((length, num_ngrams, write_lookup(distinct, directory=directory)))
        pairs.append(np.unique(np.column_stack([numbers + num_ngrams, item]), axis=0))
        places.append(np.column_stack([members[owner[first]], first - offsets[owner[first]]]))
        num_ngrams += len(distinct)
    all_pairs = np.concatenate(pairs)
    return Evaluations(
        names=names,
        items=items.drop("texts").with_columns(num_ngrams=np.bincount(all_pairs[:, 1], minlength=len(items))),
        texts=texts,
        forbidden=Forbidden(tuple(lookups)),
        pairs=all_pairs,
        places=np.concatenate(places),
    )
