"""Quality filtering: documents that break a rule go, and for each it is told which rules it broke and by how much.

A rule is a measure (`measures`) and the range in which its values must lie, as published:

- `GOPHER`   Rae et al., "Scaling Language Models: Methods, Analysis & Insights from Training Gopher" (2021), appendix
             A.1: words, symbols, lines and, by Table A1, repetition. For English prose: it rejects code and text that
             writes no spaces.
- `C4`       Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.2: its rules for whole
             documents. Those for lines change texts, and with them ids; they are not here.
- `FINEWEB`  Penedo et al., "The FineWeb Datasets" (2024), section 3.6: the three rules of lines they found to help.

They add up: ``rules=[*GOPHER, *FINEWEB]``. A function of the caller makes a rule of a classifier's score:
``Rule("educational", score, low=3.0)``.

Two passes: *judge*, on workers, measures every text and keeps the few that break a rule; *write*, on workers, leaves
them out. ``_rejected/rejected.parquet`` in the output has a row for each: its id, length and first broken rule, and all
broken rules with the values that broke them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.durability import new_file
from marin_zephyr.errors import UsageError
from marin_zephyr.progress import Progress
from marin_zephyr.text.corpus import Size, drop_ids, open_corpus, open_session, slices, written_size
from marin_zephyr.text.lookups import encode_ids, write_lookup
from marin_zephyr.text.measures import MEASURES, measure

_DECISION = pl.Schema(
    {
        "id": pl.String,
        "num_bytes": pl.Int64,
        "rule": pl.String,
        "broken": pl.List(pl.Struct({"rule": pl.String, "value": pl.Float64})),
    }
)


@dataclass(frozen=True)
class Rule:
    """What a document must be like.

    Attributes:
        name: what reports call it.
        measure: the name of a measure, or a function from a ``polars.Series`` of texts to as many numbers. Not a number
            breaks the rule.
        low: the smallest value that will do.
        high: the largest value that will do.
    """

    name: str
    measure: str | Callable[[pl.Series], Any]
    low: float = -np.inf
    high: float = np.inf


GOPHER = (
    Rule("words", "num_words", low=50, high=100_000),
    Rule("word length", "mean_word_length", low=3, high=10),
    Rule("hash marks", "hashes_per_word", high=0.1),
    Rule("ellipses", "ellipses_per_word", high=0.1),
    Rule("bullets", "bullet_lines", high=0.9),
    Rule("lines that trail off", "ellipsis_lines", high=0.3),
    Rule("words without letters", "alphabetic_words", low=0.8),
    Rule("stop words", "stop_words", low=2),
    Rule("repeated lines", "repeated_lines", high=0.3),
    Rule("repeated paragraphs", "repeated_paragraphs", high=0.3),
    Rule("characters in repeated lines", "repeated_line_chars", high=0.2),
    Rule("characters in repeated paragraphs", "repeated_paragraph_chars", high=0.2),
    *(Rule(f"top {n}-gram", f"top_{n}_gram", high=high) for n, high in ((2, 0.20), (3, 0.18), (4, 0.16))),
    *(Rule(f"repeated {n}-grams", f"repeated_{n}_grams", high=round(0.20 - 0.01 * n, 2)) for n in range(5, 11)),
)

C4 = (Rule("curly brackets", "curly_brackets", high=0), Rule("lorem ipsum", "lorem_ipsum", high=0))

FINEWEB = (
    Rule("lines without an end", "terminal_lines", low=0.12),
    Rule("characters in repeated lines (FineWeb)", "repeated_line_chars", high=0.1),
    Rule("short lines", "short_lines", high=0.67),
)


@dataclass(frozen=True)
class QualityReport:
    """What `quality_filter` kept and dropped.

    Attributes:
        out_dir: the corpus written.
        kept: documents and bytes of the corpus written.
        dropped: documents and bytes of those that broke a rule.
        broken: rule -> documents that broke it; one document may break several.
        dropped_by: rule -> documents that broke it and none before it; these add up to `dropped`.
    """

    out_dir: str
    kept: Size
    dropped: Size
    broken: dict[str, int]
    dropped_by: dict[str, int]


def quality_filter(
    in_dir: str | Path,
    out_dir: str | Path,
    *,
    rules: Sequence[Rule] = GOPHER,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> QualityReport:
    """Drops the documents that break a rule.

    Args:
        in_dir: a corpus directory.
        out_dir: the corpus directory to write.
        rules: what documents must be like, in the order in which reasons are told.
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: where judgements are kept, so that a later run goes on from there; by default a temporary directory.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: `in_dir` is no corpus.
        UsageError: there is no rule, two have one name, or one names no measure or an empty range.
    """
    _check(rules)
    corpus = open_corpus(in_dir)
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, work):
        texts = corpus.dataset("id", "text", "num_bytes")
        judged = texts.map_batches(partial(judge, rules=tuple(rules))).write_parquet(work / "judgements")
        session.run(judged, name="quality_filter: judge")
        parts = [pl.read_parquet(path) for path in sorted((work / "judgements").glob("*.parquet"))]
        rejected = pl.concat([pl.DataFrame(schema=_DECISION), *(part.cast(_DECISION) for part in parts if part.height)])
        stays = corpus.dataset()
        if rejected.height:
            dropped = write_lookup(encode_ids(rejected["id"]), directory=work)
            stays = stays.map_batches(partial(drop_ids, dropped=dropped))
        kept = written_size(session.run(stays.write_parquet(out_dir), name="quality_filter: write"))
    with new_file(Path(out_dir) / "_rejected" / "rejected.parquet") as path:
        pq.write_table(rejected.to_arrow(), path, compression="zstd")
    broken = Counter(rejected["broken"].explode(empty_as_null=False).struct.field("rule"))
    dropped_by = Counter(rejected["rule"])
    return QualityReport(
        str(out_dir),
        kept=kept,
        dropped=corpus.size() - kept,
        broken={rule.name: broken[rule.name] for rule in rules},
        dropped_by={rule.name: dropped_by[rule.name] for rule in rules},
    )


def judge(documents: pl.DataFrame, *, rules: tuple[Rule, ...]) -> pl.DataFrame:
    """The documents of a batch that break a rule.

    Args:
        documents: columns ``id``, ``text``, ``num_bytes``.
        rules: what documents must be like.

    Returns:
        Columns ``id``, ``num_bytes``, ``rule`` (the first broken), ``broken`` (all, with the values that broke them).
    """
    return pl.concat(
        [pl.DataFrame(schema=_DECISION)] + [_judge(pl.DataFrame(part), rules) for part in slices(documents.to_arrow())]
    )


def _judge(documents: pl.DataFrame, rules: tuple[Rule, ...]) -> pl.DataFrame:
    texts = documents["text"]
    measures = measure(texts, {rule.measure for rule in rules if isinstance(rule.measure, str)})
    values = [
        measures[rule.measure] if isinstance(rule.measure, str) else np.asarray(rule.measure(texts), dtype=np.float64)
        for rule in rules
    ]
    good = [(rule.low <= v) & (v <= rule.high) for rule, v in zip(rules, values, strict=True)]
    # Ordered by document, and within one by rule.
    documents_broken, rules_broken = np.nonzero(~np.column_stack(good))
    bad, begins = np.unique(documents_broken, return_index=True)
    names = pl.Series([rule.name for rule in rules], dtype=pl.String)
    entries = {"rule": names[rules_broken].to_arrow(), "value": np.column_stack(values)[documents_broken, rules_broken]}
    offsets = pa.array(np.append(begins, len(rules_broken)))
    broken = pa.LargeListArray.from_arrays(offsets, pa.table(entries).to_struct_array().combine_chunks())
    chosen = documents.select("id", "num_bytes")[bad]
    return chosen.with_columns(
        names[rules_broken[begins]].alias("rule"), pl.Series("broken", broken, dtype=_DECISION["broken"])
    ).cast(_DECISION)


def _check(rules: Sequence[Rule]) -> None:
    if not rules:
        raise UsageError("rules is empty: name at least one, such as quality.GOPHER")
    names = Counter(rule.name for rule in rules)
    for rule in rules:
        if names[rule.name] > 1:
            raise UsageError(f"rules: two are named {rule.name!r}; give each its own name")
        if isinstance(rule.measure, str) and rule.measure not in MEASURES:
            raise UsageError(f"rule {rule.name!r}: no measure {rule.measure!r}; there are {', '.join(MEASURES)}")
        if not rule.low <= rule.high:
            raise UsageError(f"rule {rule.name!r}: low = {rule.low} is above high = {rule.high}")
