"""The split: a partition by the document's own hash, stable as the corpus grows, with neither side empty."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.text import split


def sides_of(directory: Path, read_rows) -> dict[str, str]:
    return {row["source"]: side for side in ("train", "validation") for row in read_rows(directory / side)}


def numbered(count: int) -> list[tuple[str, str]]:
    return [(f"{i:05d}", f"document {i}") for i in range(count)]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(count=st.integers(2, 60), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 2**64 - 1))
def test_every_document_has_one_side_and_no_side_is_empty(
    count: int, fraction: float, seed: int, tmp_path_factory, write_corpus, read_rows
) -> None:
    out = tmp_path_factory.mktemp("split")
    corpus = write_corpus(out.name, numbered(count), per_shard=17)
    report = split(corpus, out, validation_fraction=fraction, seed=seed, workers=1)
    train, validation = read_rows(out / "train"), read_rows(out / "validation")
    assert train
    assert validation
    assert sorted(train + validation, key=lambda row: row["source"]) == read_rows(corpus)
    assert [row["source"] for row in train] == sorted(row["source"] for row in train)
    assert (report.train.documents, report.validation.documents) == (len(train), len(validation))
    assert report.train.bytes + report.validation.bytes == sum(row["num_bytes"] for row in train + validation)


def test_growing_the_corpus_moves_no_document(tmp_path: Path, write_corpus, read_rows) -> None:
    for count in (300, 600):
        corpus = write_corpus(f"in{count}", numbered(count), per_shard=count // 3)
        report = split(corpus, tmp_path / f"out{count}", validation_fraction=0.1, workers=1)
        assert report.threshold == pytest.approx(0.1)  # neither side was empty, so the fraction itself decided
    small, large = (sides_of(tmp_path / f"out{count}", read_rows) for count in (300, 600))
    assert small.items() <= large.items()
    assert sum(side == "validation" for side in large.values()) in range(30, 91)  # 60 expected, within 4 deviations


def test_another_seed_draws_another_split(tmp_path: Path, write_corpus, read_rows) -> None:
    corpus = write_corpus("in", numbered(200))
    for seed in (0, 1):
        split(corpus, tmp_path / str(seed), validation_fraction=0.5, seed=seed, workers=1)
    assert sides_of(tmp_path / "0", read_rows) != sides_of(tmp_path / "1", read_rows)


def test_bytes_do_not_depend_on_workers(tmp_path: Path, write_corpus, digests) -> None:
    corpus = write_corpus("in", numbered(40), per_shard=6)
    for workers in (1, 2):
        split(corpus, tmp_path / str(workers), validation_fraction=0.3, workers=workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


@pytest.mark.parametrize("documents", [[("a", "only")], [("a", "same"), ("b", "same")]])
def test_a_corpus_of_one_text_cannot_be_split(tmp_path: Path, write_corpus, documents: list) -> None:
    with pytest.raises(InputError, match=r"cannot be split.*add documents") as raised:
        split(write_corpus("in", documents), tmp_path / "out", workers=1)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [{"validation_fraction": 0.0}, {"validation_fraction": 1.0}, {"seed": -1}])
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, arguments: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        split(tmp_path, tmp_path / "out", **arguments)
