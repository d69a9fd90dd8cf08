"""The commands that write a corpus: ``normalize``, ``dedup``, ``quality`` and ``decontaminate``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tyro

from marin_zephyr.commands.console import Format, Inputs, print_report, shown_progress

Directory = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


def normalize(
    inputs: Inputs,
    /,
    *,
    out: str,
    documents: Literal["row", "file"] = "row",
    text_field: str = "text",
    format: Format | None = None,
    workers: int = 2,
    json: bool = False,
) -> int:
    """Writes raw files as a corpus: stable ids, one schema, rejects kept with their reasons.

    Example: zephyr normalize raw/ --out corpus/

    Args:
        inputs: files, directories or globs.
        out: the corpus directory to write.
        documents: one document a row, or one a file.
        text_field: the column that holds the text.
        format: what the files are; by default told from their names.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import normalize

    report = normalize(
        list(inputs),
        out,
        documents=documents,
        text_field=text_field,
        format=format,
        workers=workers,
        progress=shown_progress(),
    )
    return print_report(report, out, json=json)


def dedup(
    corpus: Directory, /, *, out: str, fuzzy: bool = False, threshold: float = 0.8, workers: int = 2, json: bool = False
) -> int:
    """Drops all but one of equal texts; with --fuzzy, also of nearly equal ones (verified n-gram Jaccard).

    Example: zephyr dedup corpus/ --out unique/ --fuzzy

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        out: the corpus directory to write.
        fuzzy: also drop near duplicates.
        threshold: with --fuzzy, from which Jaccard index on two texts are near duplicates.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import exact_dedup, fuzzy_dedup

    if fuzzy:
        report: Any = fuzzy_dedup(corpus, out, threshold=threshold, workers=workers, progress=shown_progress())
    else:
        report = exact_dedup(corpus, out, workers=workers, progress=shown_progress())
    return print_report(report, out, json=json)


def quality(
    corpus: Directory,
    /,
    *,
    out: str,
    rules: tuple[Literal["gopher", "c4", "fineweb"], ...] = ("gopher",),
    workers: int = 2,
    work_dir: str | None = None,
    json: bool = False,
) -> int:
    """Drops documents that break a rule of quality; `_rejected/` in the output tells which rules, and by how much.

    Example: zephyr quality corpus/ --out good/ --rules gopher fineweb

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        out: the corpus directory to write.
        rules: published sets of rules, of which a document must break none.
        workers: worker processes.
        work_dir: where judgements are kept for later runs.
        json: print the report as JSON.
    """
    from marin_zephyr.text import quality, quality_filter

    sets = {"gopher": quality.GOPHER, "c4": quality.C4, "fineweb": quality.FINEWEB}
    chosen = [rule for name in dict.fromkeys(rules) for rule in sets[name]]
    report = quality_filter(corpus, out, rules=chosen, workers=workers, work_dir=work_dir, progress=shown_progress())
    return print_report(report, out, json=json)


def decontaminate(
    corpus: Directory,
    /,
    *,
    against: tuple[str, ...],
    out: str,
    fields: tuple[str, ...] = (),
    ngram: int = 13,
    min_share: float = 0.0,
    max_documents: int | None = None,
    workers: int = 2,
    json: bool = False,
) -> int:
    """Drops documents that share word n-grams with evaluation sets; `_contamination/` in the output tells all of them.

    Example: zephyr decontaminate corpus/ --against evals/gsm8k.jsonl evals/mmlu.jsonl --out clean/

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        against: evaluation sets: files, directories or globs, one row an item.
        out: the corpus directory to write.
        fields: the columns of an item that hold text; by default every string in it.
        ngram: words in an n-gram.
        min_share: the share of an item's n-grams that a document must hold; at 0 a single one is enough.
        max_documents: ignore n-grams that are in more documents than this; by default none.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import decontaminate

    report = decontaminate(
        corpus,
        out,
        against=against,
        fields=fields,
        ngram=ngram,
        min_share=min_share,
        max_documents=max_documents,
        workers=workers,
        progress=shown_progress(),
    )
    return print_report(report, out, json=json)
