"""Exact de-duplication: copies go, the first stays, and nothing else changes."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_zephyr.text import exact_dedup


def test_the_first_of_equal_texts_stays(tmp_path: Path, write_corpus, read_rows) -> None:
    corpus = write_corpus("in", [("a", "x"), ("b", "yy"), ("c", "x"), ("d", "yy"), ("e", "z")], per_shard=2)
    report = exact_dedup(corpus, tmp_path / "out", workers=1)
    rows = read_rows(tmp_path / "out")
    assert [(row["source"], row["text"]) for row in rows] == [("a", "x"), ("b", "yy"), ("e", "z")]
    assert (report.kept.documents, report.kept.bytes) == (3, 4)
    assert (report.dropped.documents, report.dropped.bytes) == (2, 3)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(st.sampled_from(["", "a", "A", "a ", "é", "b", "c"]), min_size=1), per_shard=st.integers(1, 9))
def test_agrees_with_a_dictionary(texts: list[str], per_shard: int, tmp_path_factory, write_corpus, read_rows) -> None:
    out = tmp_path_factory.mktemp("exact")
    corpus = write_corpus(out.name, [(f"{i:03d}", text) for i, text in enumerate(texts)], per_shard=per_shard)
    exact_dedup(corpus, out / "out", workers=1)
    first = {text: f"{i:03d}" for i, text in reversed(list(enumerate(texts)))}
    assert [(row["source"], row["text"]) for row in read_rows(out / "out")] == sorted((s, t) for t, s in first.items())


def test_bytes_do_not_depend_on_workers(tmp_path: Path, write_corpus, digests) -> None:
    corpus = write_corpus("in", [(f"{i:03d}", f"text {i % 7}") for i in range(50)], per_shard=8)
    for workers in (1, 2):
        exact_dedup(corpus, tmp_path / str(workers), workers=workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
