"""Decontamination: what shares n-grams with an evaluation set goes, all of it is told, and nothing else goes."""

import json
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.session import Session
from marin_zephyr.text import contamination, decontaminate
from marin_zephyr.text.decontamination import match
from marin_zephyr.text.evaluations import read_evaluations

TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join), min_size=1, max_size=6)


def words(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("etaoinshrdlu", k=rng.randint(3, 9))) for _ in range(count)]


def write_items(path: Path, items: list[dict]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def told(directory: Path, name: str) -> list[dict]:
    return pl.read_parquet(directory / "_contamination" / f"{name}.parquet").to_dicts()


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    tokens = text.split()
    return {tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)}


@settings(max_examples=50)
@given(TEXTS, TEXTS, st.integers(1, 10))
def test_matches_are_those_of_sets_of_words(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], items: list[str], ngram: int
) -> None:
    directory = tmp_path_factory.mktemp("items")
    path = write_items(directory / "items.jsonl", [{"text": text} for text in items])
    with Session(backend="inline", work_dir=directory / "work") as session:
        evaluations = read_evaluations([path], fields=(), ngram=ngram, session=session, directory=directory)
    lengths = [min(len(text.split()), ngram) for text in items]
    lengths = [length if length >= min(8, ngram) else 0 for length in lengths]
    forbidden = {run for text, n in zip(items, lengths, strict=True) if n for run in runs(text, n)}
    expected = {}
    for number, text in enumerate(documents):
        found = {run for length in set(lengths) - {0} for run in runs(text, length)} & forbidden
        if found:
            expected[str(number)] = {" ".join(run) for run in found}
    ids = [str(number) for number in range(len(documents))]
    table = pa.table({"id": ids, "text": documents, "num_bytes": [len(text) for text in documents]})
    matches = match(table, forbidden=evaluations.forbidden).to_pylist()
    assert {row["id"]: set(evaluations.ngram_texts(pl.Series(row["ngrams"]).to_numpy())) for row in matches} == expected
    assert all(len(set(row["ngrams"])) == len(expected[row["id"]]) for row in matches)
    assert evaluations.items["num_ngrams"].to_list() == [
        len(runs(text, n)) if n else 0 for text, n in zip(items, lengths, strict=True)
    ]


def test_what_holds_an_item_goes_and_everything_is_told(tmp_path: Path, write_corpus, read_rows) -> None:
    rng = random.Random(1)
    question, answer, other, short = words(rng, 20), words(rng, 6), words(rng, 15), words(rng, 9)
    quiz = write_items(
        tmp_path / "quiz.jsonl",
        [{"question": " ".join(question), "choices": ["x", " ".join(answer)]}, {"question": " ".join(words(rng, 30))}],
    )
    trivia = write_items(
        tmp_path / "trivia.jsonl", [{"q": " ".join(short)}, {"q": "too short"}, {"q": " ".join(other)}]
    )
    clean = [(f"clean {i}", " ".join(words(rng, 60))) for i in range(20)]
    around = words(rng, 40)
    dirty = [
        ("reformatted", "Q: " + ",\n".join(question).upper() + "!"),
        ("quoted", " ".join([*around, *question[3:16], *around])),
        ("across fields", " ".join([*question[10:], "x", *answer])),
        ("short", " ".join([*around, *short, *around])),
    ]
    near = [("twelve words", " ".join([*around[::-1], *question[3:15], *around])), ("eight", " ".join(short[1:]))]
    corpus = write_corpus("in", [*clean[:9], *dirty, *near, *clean[9:]], per_shard=7)
    report = decontaminate(corpus, tmp_path / "out", against=[quiz, trivia], workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "out")] == [s for s, _ in [*clean[:9], *near, *clean[9:]]]
    assert (report.kept.documents, report.dropped.documents) == (22, 4)
    assert report.dropped.bytes == sum(len(text) for _, text in dirty)
    first, second = report.evaluations
    assert (first.name, first.num_items, first.num_short, first.num_contaminated) == (str(quiz), 2, 0, 1)
    assert (second.num_items, second.num_short, second.num_contaminated) == (3, 1, 1)
    assert (first.removed.documents, second.removed.documents) == (3, 1)

    ids = {row["id"]: row["source"] for row in read_rows(corpus)}
    documents = {ids[row["id"]]: row for row in told(tmp_path / "out", "documents")}
    assert set(documents) == {source for source, _ in dirty}
    assert documents["reformatted"]["shared"] == 8
    assert documents["quoted"]["shared"] == 1
    assert documents["short"] | {"id": None} == {
        "id": None,
        "evaluation": str(trivia),
        "num_items": 1,
        "file": "trivia.jsonl",
        "row": 1,
        "shared": 1,
        "share": 1.0,
        "num_bytes": len(dirty[3][1]),
        "num_copies": 1,
    }
    items = [(row["file"], row["row"], row["num_documents"]) for row in told(tmp_path / "out", "items")]
    assert items == [("quiz.jsonl", 1, 3), ("trivia.jsonl", 1, 1)]
    ngrams = {row["text"]: row["num_documents"] for row in told(tmp_path / "out", "ngrams")}
    assert ngrams[" ".join(question[3:16])] == 2
    assert ngrams["\n".join([" ".join(question[14:]), "x", " ".join(answer)])] == 1
    assert ngrams[" ".join(short)] == 1


def test_a_share_of_an_item_may_be_asked_for(tmp_path: Path, write_corpus, read_rows) -> None:
    item = words(random.Random(2), 22)  # ten n-grams
    items = write_items(tmp_path / "items.jsonl", [{"text": " ".join(item)}])
    documents = [(str(shared), " ".join(item[: 12 + shared])) for shared in range(11)]
    corpus = write_corpus("in", documents)
    for min_share, stay in ((0.0, 1), (0.5, 5), (1.0, 10)):
        out = tmp_path / str(min_share)
        decontaminate(corpus, out, against=items, min_share=min_share, workers=1)
        assert [row["source"] for row in read_rows(out)] == [str(shared) for shared in range(stay)]


def test_common_ngrams_are_spared_if_asked_and_told_either_way(tmp_path: Path, write_corpus) -> None:
    rng = random.Random(3)
    phrase, item = words(rng, 13), words(rng, 13)
    items = write_items(tmp_path / "items.jsonl", [{"text": " ".join([*phrase, *item])}])
    documents = [(str(i), " ".join([*phrase, *words(rng, 5)])) for i in range(4)]
    corpus = write_corpus("in", [*documents, ("item", " ".join(item)), ("copy", " ".join(item))])
    strict = decontaminate(corpus, tmp_path / "strict", against=items, workers=1)
    assert (strict.dropped.documents, strict.evaluations[0].removed.documents, strict.num_common_ngrams) == (6, 6, 0)
    assert strict.evaluations[0].removed == strict.dropped
    lenient = decontaminate(corpus, tmp_path / "lenient", against=items, max_documents=3, workers=1)
    assert (lenient.dropped.documents, lenient.num_common_ngrams) == (2, 1)
    (common, *rest) = told(tmp_path / "lenient", "ngrams")
    assert (common["text"], common["num_documents"], common["ignored"]) == (" ".join(phrase), 4, True)
    assert [row["ignored"] for row in rest] == [False]
    assert told(tmp_path / "lenient", "items")[0]["num_documents"] == 2


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([0.0, 0.4, 1.0]), st.randoms(use_true_random=False))
def test_what_goes_agrees_with_comparing_all_pairs_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    write_to,
    read_rows,
    seed: int,
    per_shard: int,
    min_share: float,
    shuffling: random.Random,
) -> None:
    rng = random.Random(seed)
    items = [words(rng, rng.randint(6, 40)) for _ in range(6)]
    items.append([*items[0], *words(rng, 5)])
    documents = [(f"{i:02d}", " ".join([*words(rng, 9), *rng.choice(items)[: rng.randint(5, 45)]])) for i in range(12)]
    shares = {source: share_of_items(text, items) for source, text in documents}
    expected = {s for s, share in shares.items() if max(share) >= max(min_share, 1e-9)}

    tmp_path = tmp_path_factory.mktemp("orders")
    path = write_items(tmp_path / "items.jsonl", [{"text": " ".join(item)} for item in items])
    shuffled = shuffling.sample(documents, len(documents))
    decontaminate(write_to(tmp_path / "in", documents), tmp_path / "a", against=path, min_share=min_share, workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contamination, "_MAX_PAIRS", 3)
        corpus = write_to(tmp_path / "b in", shuffled, per_shard=per_shard)
        decontaminate(corpus, tmp_path / "b", against=path, min_share=min_share, workers=1)
    for side in "ab":
        assert {source for source, _ in documents} - {row["source"] for row in read_rows(tmp_path / side)} == expected
    assert sorted(row["share"] for row in told(tmp_path / "a", "documents")) == sorted(max(shares[s]) for s in expected)
    for name in ("documents", "items", "ngrams"):
        assert told(tmp_path / "a", name) == told(tmp_path / "b", name)


def share_of_items(text: str, items: list[list[str]]) -> list[float]:
    shares = [0.0]
    for item in items:
        length = min(13, len(item))
        ngrams = runs(" ".join(item), length)
        shares.append(len(ngrams & runs(text, length)) / len(ngrams) if length >= 8 else 0.0)
    return shares


def test_bytes_do_not_depend_on_workers(tmp_path: Path, write_corpus, digests) -> None:
    rng = random.Random(5)
    item = words(rng, 20)
    path = write_items(tmp_path / "items.jsonl", [{"text": " ".join(item)}])
    texts = [(str(i), " ".join([*words(rng, 30), *(item if i % 5 == 0 else ())])) for i in range(30)]
    corpus = write_corpus("in", texts, per_shard=8)
    for workers in (1, 2):
        report = decontaminate(corpus, tmp_path / str(workers), against=path, workers=workers)
        assert report.dropped.documents == 6
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_a_clean_corpus_is_copied_and_the_tables_are_empty(tmp_path: Path, write_corpus, read_rows) -> None:
    corpus = write_corpus("in", [("a", "some words"), ("b", "")])
    items = write_items(tmp_path / "items.jsonl", [{"text": " ".join(map(str, range(20)))}])
    report = decontaminate(corpus, tmp_path / "out", against=items, workers=1)
    assert read_rows(tmp_path / "out") == read_rows(corpus)
    assert report.dropped.documents == report.evaluations[0].num_contaminated == 0
    assert [told(tmp_path / "out", name) for name in ("documents", "items", "ngrams")] == [[], [], []]


def test_only_the_fields_asked_for_count(tmp_path: Path, write_corpus) -> None:
    text = " ".join(words(random.Random(6), 20))
    items = write_items(tmp_path / "items.jsonl", [{"passage": text, "question": "why"}])
    corpus = write_corpus("in", [("a", text), ("b", "clean")])
    assert decontaminate(corpus, tmp_path / "a", against=items, fields=["question"], workers=1).dropped.documents == 0
    assert decontaminate(corpus, tmp_path / "b", against=items, fields=["passage"], workers=1).dropped.documents == 1
    with pytest.raises(InputError, match="no column 'pasage'; it has passage, question"):
        decontaminate(corpus, tmp_path / "c", against=items, fields=["pasage"], workers=1)


@pytest.mark.parametrize(
    "arguments", [{"ngram": 0}, {"min_share": 1.5}, {"max_documents": 0}, {"against": []}, {"against": ["a", "a"]}]
)
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, arguments: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        decontaminate(tmp_path, tmp_path / "out", **{"against": "items.jsonl"} | arguments)


def test_a_missing_evaluation_set_is_named(tmp_path: Path, write_corpus) -> None:
    with pytest.raises(InputError, match=r"absent\.jsonl"):
        decontaminate(write_corpus("in", [("a", "b")]), tmp_path / "out", against=tmp_path / "absent.jsonl", workers=1)
