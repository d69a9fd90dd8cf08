"""Decontamination: a document that shares word n-grams with an evaluation set is removed, and everything is told.

Three passes:

1. *Match*, on workers: the n-grams of every text are looked up among those of the evaluation items (`evaluations`),
   which every worker maps from one file. What comes back is, of the few documents with hits, which n-grams they hold.
2. *Decide*, here (`contamination`): a document is contaminated if it holds at least the share `min_share` of the
   n-grams of some item, and at least one. An n-gram in more than `max_documents` documents counts for nothing, if that
   limit is set.
3. *Write*, on workers: the corpus without the contaminated documents, in its order.

``_contamination/`` in the output holds ``documents.parquet`` (what was removed, for which evaluation set, how many
n-grams and which item it shares most with), ``items.parquet`` (every evaluation item that was found, so that an
evaluation can be restricted to those that were not) and ``ngrams.parquet`` (every shared n-gram as it is written, and
in how many documents it is: what is boilerplate shows here first).

A hit is a hit of 64-bit hashes: E evaluation n-grams and T words of text give E T / 2**64 false ones, 0.3 for five
million n-grams and a trillion words. N-grams of 13 words and whole documents follow Brown et al. (2020, appendix C) and
the Pile's and lm-eval's rule, except that nothing common is spared unless asked for: a test set copied into many
documents is still a test set.

Invariant: what is removed is a function of the set of documents and the evaluation items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.durability import new_file
from marin_zephyr.errors import UsageError
from marin_zephyr.progress import Progress
from marin_zephyr.text.contamination import Contamination, read_matches, weigh
from marin_zephyr.text.corpus import Size, drop_ids, open_corpus, open_session, slices, written_size
from marin_zephyr.text.evaluations import Evaluations, Forbidden, read_evaluations
from marin_zephyr.text.lookups import encode_ids, write_lookup
from marin_zephyr.text.ngrams import hash_ngrams, hash_tokens


@dataclass(frozen=True)
class EvaluationReport:
    """What was found of one evaluation set.

    Attributes:
        name: as it was given.
        num_items: items in it.
        num_short: of these, items of too few words to be looked for.
        num_contaminated: of these, items for which a document was removed.
        removed: documents and bytes that were removed for it; one may be removed for several sets.
    """

    name: str
    num_items: int
    num_short: int
    num_contaminated: int
    removed: Size


@dataclass(frozen=True)
class DecontaminationReport:
    """What `decontaminate` kept and removed.

    Attributes:
        out_dir: the corpus written.
        kept: documents and bytes of the corpus written.
        dropped: documents and bytes of the contaminated documents.
        num_common_ngrams: shared n-grams that were ignored because they are in more than `max_documents` documents.
        evaluations: what was found of each evaluation set, in the order given.
    """

    out_dir: str
    kept: Size
    dropped: Size
    num_common_ngrams: int
    evaluations: tuple[EvaluationReport, ...]


def decontaminate(
    in_dir: str | Path,
    out_dir: str | Path,
    *,
    against: str | Path | Sequence[str | Path],
    fields: Sequence[str] = (),
    ngram: int = 13,
    min_share: float = 0.0,
    max_documents: int | None = None,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> DecontaminationReport:
    """Removes the documents that share word n-grams with evaluation sets.

    Args:
        in_dir: a corpus directory.
        out_dir: the corpus directory to write.
        against: evaluation sets, each a file, a glob or a directory of any format that `Dataset.from_files` reads; one
            row an item.
        fields: the columns of an item that hold text; by default every string in it, nested ones included.
        ngram: words in an n-gram. Items of fewer words count as a whole, but for those of fewer than 8.
        min_share: the share of an item's n-grams, in [0, 1], that a document must hold; at 0 a single one is enough.
        max_documents: ignore n-grams that are in more documents than this (GPT-3 took 10); by default none.
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: where matches are kept, so that a later run goes on from there; by default a temporary directory.
        progress: is told how it goes; by default lines of the log.

    Returns:
        What was kept and removed, for each evaluation set. The details are under ``out_dir/_contamination``.

    Raises:
        InputError: `in_dir` is no corpus, or an evaluation set is missing, empty or has none of the fields.
        UsageError: an argument is out of range.

    See: Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C.
    """
    sets = [against] if isinstance(against, (str, Path)) else list(against)
    _check(sets, ngram=ngram, min_share=min_share, max_documents=max_documents)
    corpus = open_corpus(in_dir)
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, work):
        evaluations = read_evaluations(sets, fields=fields, ngram=ngram, session=session, directory=work)
        texts = corpus.dataset("id", "text", "num_bytes")
        matched = texts.map_batches(partial(match, forbidden=evaluations.forbidden), batch_format="arrow")
        session.run(matched.write_parquet(work / "matches"), name="decontaminate: match")
        matches = read_matches(work / "matches")
        found = weigh(matches, evaluations, min_share=min_share, max_documents=max_documents)
        stays = corpus.dataset()
        if found.documents.height:
            dropped = write_lookup(encode_ids(found.documents["id"]), directory=work)
            stays = stays.map_batches(partial(drop_ids, dropped=dropped))
        kept = written_size(session.run(stays.write_parquet(out_dir), name="decontaminate: write"))
    for name, table in (("documents", found.documents), ("items", found.items), ("ngrams", found.ngrams)):
        with new_file(Path(out_dir) / "_contamination" / f"{name}.parquet") as path:
            pq.write_table(table.to_arrow(), path, compression="zstd")
    return DecontaminationReport(
        str(out_dir),
        kept=kept,
        dropped=corpus.size() - kept,
        num_common_ngrams=int(found.ngrams["ignored"].sum()),
        evaluations=tuple(_report(number, evaluations, found) for number in range(len(sets))),
    )


def match(documents: pa.Table, *, forbidden: Forbidden) -> pa.Table:
    """The documents of a batch that hold forbidden n-grams.

    Args:
        documents: columns ``id``, ``text``, ``num_bytes``.
        forbidden: the n-grams.

    Returns:
        Columns ``id``, ``num_bytes``, ``ngrams`` (sorted list of the numbers of distinct n-grams, none empty).
    """
    tables = []
    for part in slices(documents):
        tokens = hash_tokens(part["text"].cast(pa.large_string()).combine_chunks())
        hits = [np.zeros((0, 2), dtype=np.int64)]
        for length, base, lookup in forbidden.lookups:
            hashes, offsets = hash_ngrams(tokens, ngram=length)
            where, positions = lookup.find(hashes)
            hits.append(np.column_stack([np.searchsorted(offsets, where, side="right") - 1, positions + base]))
        pairs = np.unique(np.concatenate(hits), axis=0)
        rows, begins = np.unique(pairs[:, 0], return_index=True)
        lists = pa.LargeListArray.from_arrays(np.append(begins, len(pairs)), pa.array(pairs[:, 1]))
        tables.append(part.select(["id", "num_bytes"]).take(pa.array(rows)).append_column("ngrams", lists))
    return pa.concat_tables(tables)


def _check(sets: Sequence[str | Path], *, ngram: int, min_share: float, max_documents: int | None) -> None:
    if not sets:
        raise UsageError("against is empty: name at least one evaluation file")
    if len({str(name) for name in sets}) < len(sets):
        raise UsageError(f"against = {', '.join(map(str, sets))}: names a set twice; name each once")
    if ngram < 1:
        raise UsageError(f"ngram = {ngram}: an n-gram has at least one word; 13 is customary")
    if not 0.0 <= min_share <= 1.0:
        raise UsageError(f"min_share = {min_share}: must be in [0, 1]")
    if max_documents is not None and max_documents < 1:
        raise UsageError(f"max_documents = {max_documents}: must be at least 1, or None to ignore no n-gram")


def _report(number: int, evaluations: Evaluations, found: Contamination) -> EvaluationReport:
    name = evaluations.names[number]
    items = evaluations.items.filter(pl.col("set") == number)
    removed = found.documents.filter(pl.col("evaluation") == name)
    return EvaluationReport(
        name,
        num_items=items.height,
        num_short=items.filter(pl.col("num_ngrams") == 0).height,
        num_contaminated=found.items.filter(pl.col("evaluation") == name).height,
        removed=Size(int(removed["num_copies"].sum()), int((removed["num_copies"] * removed["num_bytes"]).sum())),
    )
