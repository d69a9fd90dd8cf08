"""Quality filtering: what breaks a rule goes, with all its reasons; what breaks none stays."""

from pathlib import Path

import polars as pl
import pytest

from marin_zephyr.errors import UsageError
from marin_zephyr.text import Rule, quality_filter
from marin_zephyr.text.quality import C4, FINEWEB, GOPHER

PROSE = (
    "The harbour was quiet when the last of the boats came in, and nobody on the quay looked up from their work. "
    "A clerk wrote down what each had caught, with a pencil that he kept behind his ear. By evening all of it would "
    "be on carts to the market, to be sold before the sun rose over the hills that close the bay in the east.\n"
    "My grandfather used to say that you have to watch the water, not the sky: a change in the wind shows there first. "
    "I never learned to see it. Others did, and some of them are still fishing from the same small piers today."
)


def rejected(directory: Path) -> dict[str, dict]:
    rows = pl.read_parquet(directory / "_rejected" / "rejected.parquet").to_dicts()
    return {row["id"]: row for row in rows}


def test_prose_stays_and_what_breaks_a_rule_goes_with_its_reasons(tmp_path: Path, write_corpus, read_rows) -> None:
    lines = PROSE.replace(". ", ".\n").split("\n")
    documents = [
        ("prose", PROSE),
        ("short", "Too short, of course."),
        ("numbers", " ".join(["the of and"] + [str(n) for n in range(1000, 1200)])),
        ("list", "\n".join(f"- {line}" for line in lines)),
        ("again", "\n".join(lines * 2)),
        ("prose, again", PROSE + " And so it went on."),
        ("nothing", ""),
    ]
    corpus = write_corpus("in", documents, per_shard=3)
    report = quality_filter(corpus, tmp_path / "out", workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "out")] == ["prose", "prose, again"]
    assert (report.kept.documents, report.dropped.documents) == (2, 5)
    ids = {row["source"]: row["id"] for row in read_rows(corpus)}
    reasons = rejected(tmp_path / "out")
    assert {source: reasons[ids[source]]["rule"] for source, _ in documents if ids[source] in reasons} == {
        "short": "words",
        "numbers": "words without letters",
        "list": "bullets",
        "again": "repeated lines",
        "nothing": "words",
    }
    again = {entry["rule"]: entry["value"] for entry in reasons[ids["again"]]["broken"]}
    assert again["repeated lines"] == 0.5
    assert "repeated 10-grams" in again
    assert sum(report.dropped_by.values()) == report.dropped.documents
    assert report.dropped_by["words"] == report.broken["words"] == 2
    assert report.broken["repeated 10-grams"] == 1
    assert report.dropped_by["repeated 10-grams"] == 0


def test_a_function_of_texts_makes_a_rule(tmp_path: Path, write_corpus, read_rows) -> None:
    def vowels(texts: pl.Series) -> list[float]:
        return [len(set(text) & set("aeiou")) or float("nan") for text in texts]

    corpus = write_corpus("in", [("a", "audio e"), ("b", "book"), ("c", "rhythm")])
    report = quality_filter(corpus, tmp_path / "out", rules=[Rule("vowels", vowels, low=3)], workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "out")] == ["a"]
    values = [row["broken"][0]["value"] for row in rejected(tmp_path / "out").values()]
    assert sorted(map(str, values)) == ["1.0", "nan"]
    assert report.broken == {"vowels": 2}


def test_bytes_do_not_depend_on_workers(tmp_path: Path, write_corpus, digests) -> None:
    documents = [(str(i), PROSE if i % 3 == 0 else PROSE[: i * 10]) for i in range(40)]
    corpus = write_corpus("in", documents, per_shard=9)
    for workers in (1, 2):
        quality_filter(corpus, tmp_path / str(workers), rules=[*GOPHER, *C4, *FINEWEB], workers=workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_thresholds_are_the_published_ones() -> None:
    """Table A1 of the Gopher paper."""
    limits = {rule.measure: rule.high for rule in GOPHER}
    assert [limits[f"top_{n}_gram"] for n in (2, 3, 4)] == [0.20, 0.18, 0.16]
    assert [limits[f"repeated_{n}_grams"] for n in range(5, 11)] == [0.15, 0.14, 0.13, 0.12, 0.11, 0.10]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "rules is empty"),
        ([Rule("a", "num_wrods")], "no measure 'num_wrods'"),
        ([Rule("a", "num_words"), Rule("a", "stop_words")], "two are named 'a'"),
        ([Rule("a", "num_words", low=3, high=2)], "low = 3"),
    ],
)
def test_wrong_rules_are_refused(tmp_path: Path, rules: list[Rule], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quality_filter(tmp_path, tmp_path / "out", rules=rules)
