"""Fuzzy de-duplication end to end: planted near-duplicates go, nothing else does, and no order matters."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import UsageError
from marin_zephyr.text import exact_dedup, fuzzy_dedup
from marin_zephyr.text.clusters import components, connect, decide
from marin_zephyr.text.fuzzy import waves
from marin_zephyr.text.minhash import band_keys, choose_banding, signatures
from marin_zephyr.text.ngrams import jaccard, ngram_sets


def prose(rng: random.Random, num_words: int) -> list[str]:
    return ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(num_words)]


def planted(seed: int, *, num_documents: int = 40) -> tuple[list[tuple[str, str]], set[str]]:
    """Documents of random words, and the sources of their near copies; as many have a copy that is too far off."""
    rng = random.Random(seed)
    documents, near = [], set()
    for i in range(num_documents):
        words = prose(rng, rng.randint(80, 400))
        documents.append((f"{i:03d}", " ".join(words)))
        if i % 3 == 0:  # one word in eighty is new: at most 5 n-grams of 80 differ, on either side
            copy = [word if j % 80 else "changed" for j, word in enumerate(words)][:-1]
            documents.append((f"{i:03d}-near", " ".join(copy)))
            near.add(f"{i:03d}-near")
        if i % 3 == 1:  # a third of the words are new
            copy = [word if j % 3 else f"new{j}" for j, word in enumerate(words)]
            documents.append((f"{i:03d}-far", " ".join(copy)))
    return documents, near


def duplicates_of(directory: Path) -> list[dict]:
    return pq.read_table(directory / "_duplicates" / "duplicates.parquet").to_pylist()


def by_source(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: row["source"])


def test_of_planted_near_copies_and_their_originals_the_longer_stay_and_nothing_else_goes(
    tmp_path: Path, write_corpus, read_rows
) -> None:
    documents, near = planted(seed=1)
    report = fuzzy_dedup(write_corpus("in", documents, per_shard=7), tmp_path / "out", workers=1)
    texts = dict(documents)
    pairs = [(copy.removesuffix("-near"), copy) for copy in near]
    shorter = {min(pair, key=lambda source: len(texts[source])) for pair in pairs}
    stayed = [row["source"] for row in read_rows(tmp_path / "out")]
    assert stayed == [source for source, _ in documents if source not in shorter]
    assert report.dropped.documents == report.num_clusters == report.num_similar == len(near)
    assert report.kept.bytes + report.dropped.bytes == sum(len(text.encode()) for _, text in documents)


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), min_size=1, max_size=12), st.integers(1, 3))
def test_agrees_with_comparing_all_pairs(texts: list[list[str]], ngram: int) -> None:
    """By chance a pair at the threshold escapes the bands once in 10**6."""
    threshold = 0.6
    sets = ngram_sets(pa.array([" ".join(words) for words in texts], pa.large_string()), ngram=ngram)
    kept: list[int] = []
    expected = []
    for row in range(len(texts)):
        best = max(kept, key=lambda other: jaccard(sets[row], sets[other]), default=None)
        if best is not None and jaccard(sets[row], sets[best]) >= threshold:
            expected.append((row, best))
        else:
            kept.append(row)

    banding = choose_banding(512, threshold, recall=1 - 1e-6)
    bands = band_keys(signatures(sets, num_permutations=512), banding=banding)
    grouped = components(connect(bands.T, num_documents=len(texts)), preferred=np.arange(len(texts)))
    decisions = [decide(c, sets=dict(enumerate(sets)), threshold=threshold) for c in grouped]
    assert sorted((d.dropped, d.kept) for decision in decisions for d in decision.duplicates) == expected


def test_every_duplicate_is_named_with_its_true_similarity_to_a_kept_document(
    tmp_path: Path, write_corpus, read_rows
) -> None:
    corpus = write_corpus("in", planted(seed=2)[0], per_shard=9)
    fuzzy_dedup(corpus, tmp_path / "out", workers=1)
    texts = {row["id"]: row["text"] for row in read_rows(corpus)}
    kept = {row["id"] for row in read_rows(tmp_path / "out")}
    duplicates = duplicates_of(tmp_path / "out")
    assert duplicates
    for row in duplicates:
        pair = ngram_sets(pa.array([texts[row["id"]], texts[row["kept_id"]]], pa.large_string()))
        assert row["kept_id"] in kept
        assert row["id"] not in kept
        assert row["similarity"] == jaccard(pair[0], pair[1]) >= 0.8
        assert row["containment"] >= row["similarity"]
        assert len(texts[row["id"]]) <= len(texts[row["kept_id"]])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.randoms(use_true_random=False))
def test_what_stays_does_not_depend_on_order_or_shards(
    tmp_path_factory: pytest.TempPathFactory, write_to, read_rows, seed: int, per_shard: int, shuffling: random.Random
) -> None:
    documents, _ = planted(seed, num_documents=16)
    shuffled = shuffling.sample(documents, len(documents))
    tmp_path = tmp_path_factory.mktemp("orders")
    fuzzy_dedup(write_to(tmp_path / "in", documents), tmp_path / "a", workers=1)
    fuzzy_dedup(write_to(tmp_path / "shuffled", shuffled, per_shard=per_shard), tmp_path / "b", workers=1)
    assert by_source(read_rows(tmp_path / "a")) == by_source(read_rows(tmp_path / "b"))
    assert duplicates_of(tmp_path / "a") == duplicates_of(tmp_path / "b")


def test_finds_the_near_duplicates_that_comparing_all_pairs_finds(tmp_path: Path, write_corpus, read_rows) -> None:
    """Recall and precision at the defaults, over pairs from far below the threshold of 0.8 to far above it."""
    rng = random.Random(11)
    documents = []
    for i in range(150):
        words = prose(rng, rng.randint(30, 300))
        documents.append((f"{i:03d}", " ".join(words)))
        changed = set(rng.sample(range(len(words)), k=rng.randint(1, max(1, len(words) // 25))))
        copy = [word if j not in changed else f"new{i}" for j, word in enumerate(words)]
        documents.append((f"{i:03d}-copy", " ".join(copy)))
    sets = ngram_sets(pa.array([text for _, text in documents], pa.large_string()))
    # By construction only a document and its copy are alike, so comparing these is comparing all pairs.
    similarities = [jaccard(sets[i], sets[i + 1]) for i in range(0, len(documents), 2)]
    assert max(jaccard(sets[i], sets[j]) for i in range(0, 300, 2) for j in range(i + 2, 300)) < 0.1
    report = fuzzy_dedup(write_corpus("in", documents), tmp_path / "out", workers=1)
    found = sorted(row["similarity"] for row in duplicates_of(tmp_path / "out"))
    similar = sorted(s for s in similarities if s >= 0.8)
    assert 40 < len(similar) < 110, "the corpus should hold pairs on both sides of the threshold"
    assert set(found) <= set(similar)  # precision 1: everything was verified
    assert len(found) >= 0.99 * len(similar)
    assert report.dropped.documents == len(found)


def test_bytes_do_not_depend_on_workers(tmp_path: Path, write_corpus, digests) -> None:
    corpus = write_corpus("in", planted(seed=5)[0], per_shard=10)
    for workers in (1, 2):
        fuzzy_dedup(corpus, tmp_path / str(workers), workers=workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_a_run_killed_between_its_passes_goes_on_from_the_sketches(tmp_path: Path, write_corpus, digests) -> None:
    corpus = write_corpus("in", planted(seed=6)[0], per_shard=10)
    killed = """
import os, signal, sys
from marin_zephyr.text import fuzzy
fuzzy.components = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
fuzzy.fuzzy_dedup(sys.argv[1], sys.argv[2], workers=1, work_dir=sys.argv[3])
"""
    out, work = tmp_path / "out", tmp_path / "work"
    process = subprocess.run([sys.executable, "-c", killed, str(corpus), str(out), str(work)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert not list(out.glob("*.parquet"))
    sketches = {path: path.stat().st_mtime_ns for path in (work / "sketches").glob("*.parquet")}
    assert sketches
    fuzzy_dedup(corpus, out, workers=1, work_dir=work)
    fuzzy_dedup(corpus, tmp_path / "clean", workers=1)
    assert {path: path.stat().st_mtime_ns for path in (work / "sketches").glob("*.parquet")} == sketches
    assert digests(out) == digests(tmp_path / "clean")


def test_documents_without_words_stay(tmp_path: Path, write_corpus, read_rows) -> None:
    corpus = write_corpus("in", [("a", "..."), ("b", "...."), ("c", "  "), ("d", "a word"), ("e", "A WORD!")])
    report = fuzzy_dedup(corpus, tmp_path / "out", workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "out")] == ["a", "b", "c", "e"]
    assert report.dropped.documents == 1


def test_one_document_and_no_words_at_all(tmp_path: Path, write_corpus) -> None:
    report = fuzzy_dedup(write_corpus("in", [("a", "?")]), tmp_path / "out", workers=1)
    assert (report.kept.documents, report.dropped.documents, report.num_candidates) == (1, 0, 0)
    assert duplicates_of(tmp_path / "out") == []


def test_of_copies_the_first_stays_whether_or_not_they_went_before(tmp_path: Path, write_corpus, read_rows) -> None:
    documents, _ = planted(seed=7)
    copies = [(f"copy of {source}", text) for source, text in documents[::3]]
    corpus = write_corpus("in", [*documents, *copies, ("dots", "..."), ("more dots", "...")], per_shard=9)
    report = fuzzy_dedup(corpus, tmp_path / "at once", workers=1)
    exact_dedup(corpus, tmp_path / "exact", workers=1)
    after = fuzzy_dedup(tmp_path / "exact", tmp_path / "after", workers=1)
    assert read_rows(tmp_path / "at once") == read_rows(tmp_path / "after")
    assert duplicates_of(tmp_path / "at once") == duplicates_of(tmp_path / "after")
    assert report.dropped.documents == after.dropped.documents + len(copies) + 1
    assert report.num_candidates == after.num_candidates


@pytest.mark.parametrize(
    "arguments", [{"ngram": 0}, {"num_permutations": 0}, {"threshold": 0.0}, {"recall": 1.0}, {"num_permutations": 2}]
)
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, arguments: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        fuzzy_dedup(tmp_path, tmp_path / "out", **arguments)


def test_waves_keep_order_and_the_limit() -> None:
    components = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5]), np.array([6, 7])]
    sizes = np.array([1, 1, 1, 2, 9, 9, 1, 1])
    gathered = [[c.tolist() for c in wave] for wave in waves(components, sizes, limit=5)]
    assert gathered == [[[0, 1], [2, 3]], [[4, 5]], [[6, 7]]]
