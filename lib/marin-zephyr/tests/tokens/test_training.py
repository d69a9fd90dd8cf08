"""Training a tokenizer: the same inputs give the same file, whatever the threads, the hash seed or the files' order."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.tokens import load_tokenizer, train_tokenizer
from marin_zephyr.tokens.training import Sample

_TRAIN = """
import sys
from marin_zephyr.tokens import train_tokenizer
train_tokenizer(sys.argv[1], sys.argv[2], vocab_size=600, max_bytes=100_000)
"""


@pytest.fixture
def source(tmp_path: Path, write_parquet, corpus: list[str]) -> Path:
    write_parquet(tmp_path / "in" / "a.parquet", corpus[:25])
    write_parquet(tmp_path / "in" / "b.parquet", corpus[25:])
    return tmp_path / "in"


def test_processes_with_other_threads_and_hash_seeds_agree(tmp_path: Path, source: Path):
    files = []
    for threads in ("1", "3"):
        files.append(tmp_path / f"{threads}.json")
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        subprocess.run([sys.executable, "-c", _TRAIN, source, files[-1]], env=environment, check=True)
    assert len({file.read_bytes() for file in files}) == 1


def test_order_of_the_files_does_not_matter(tmp_path: Path, write_parquet, corpus: list[str], source: Path):
    other = write_parquet(tmp_path / "other" / "c.parquet", corpus[::-1])
    one = train_tokenizer(source, tmp_path / "1.json", vocab_size=500, max_bytes=50_000)
    two = train_tokenizer(other, tmp_path / "2.json", vocab_size=500, max_bytes=50_000)
    assert one.num_bytes_used == two.num_bytes_used == 50_000
    assert one.digest == two.digest


def test_the_seed_chooses_the_sample(tmp_path: Path, source: Path):
    digests = {
        train_tokenizer(source, tmp_path / "t.json", vocab_size=350, max_bytes=5_000, seed=seed).digest
        for seed in range(3)
    }
    assert len(digests) > 1


def test_the_asked_size_is_met_and_special_tokens_come_first(tmp_path: Path, source: Path):
    special = ("<|endoftext|>", "<|pad|>")
    report = train_tokenizer(source, tmp_path / "t.json", vocab_size=350, special_tokens=special)
    loaded = load_tokenizer(tmp_path / "t.json")
    assert report.vocab_size == loaded.vocab_size == 350
    assert [loaded.backend.id_to_token(i) for i in (0, 1)] == list(special)
    assert loaded.eos_id == 0


def test_a_small_corpus_gives_a_smaller_vocabulary_and_says_so(tmp_path: Path, write_parquet, caplog):
    source = write_parquet(tmp_path / "in.parquet", ["abc abc abc"])
    with caplog.at_level(logging.WARNING):
        report = train_tokenizer(source, tmp_path / "t.json", vocab_size=8192)
    assert 257 < report.vocab_size < 270
    assert "8192" in caplog.text


def test_a_vocabulary_of_bytes_alone_encodes_anything(tmp_path: Path, source: Path):
    train_tokenizer(source, tmp_path / "t.json", vocab_size=257)
    loaded = load_tokenizer(tmp_path / "t.json")
    text = "".join(map(chr, range(0x300)))
    [ids] = loaded.encode_batch([text])
    assert len(ids) == len(text.encode())
    assert loaded.decode(ids) == text


def test_too_small_a_vocabulary_is_refused_with_the_least(tmp_path: Path, source: Path):
    with pytest.raises(UsageError, match=r"vocab_size is 256.*257"):
        train_tokenizer(source, tmp_path / "t.json", vocab_size=256)


def test_a_corpus_without_text_leaves_the_old_file(tmp_path: Path, write_parquet):
    source = write_parquet(tmp_path / "in.parquet", ["", None])
    (tmp_path / "t.json").write_text("old")
    with pytest.raises(InputError, match=r"in\.parquet"):
        train_tokenizer(source, tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "old"


_documents = st.lists(st.text("aé東", max_size=40), max_size=30)


def sample_of(documents: list[str], max_bytes: int) -> tuple[Sample, list[str]]:
    sample = Sample(max_bytes=max_bytes, seed=7)
    for text in documents:
        sample.add(text, len(text.encode()))
    return sample, list(sample.texts())


@given(documents=_documents, max_bytes=st.integers(1, 2000), order=st.randoms(use_true_random=False))
def test_the_sample_is_full_and_does_not_depend_on_the_order(documents: list[str], max_bytes: int, order):
    sample, texts = sample_of(documents, max_bytes)
    size = sum(len(text.encode()) for text in documents)
    assert sample.num_bytes_used == min(max_bytes, size)
    assert sample.num_bytes_used - sum(len(text.encode()) for text in texts) in (0, 1, 2)  # of a character cut apart
    assert sum(text not in documents for text in texts) <= 1
    shuffled, others = sample_of(order.sample(documents, len(documents)), max_bytes)
    assert sorted(others) == sorted(texts)
    assert (shuffled.num_bytes, shuffled.num_documents) == (size, len(documents))


def test_what_is_not_sampled_is_not_held():
    sample = Sample(max_bytes=1000, seed=0)
    for number in range(5000):
        sample.add(f"{number:0100}", 100)
    assert len(list(sample.texts())) == 10
    assert len(sample._held) == 10


@pytest.mark.parametrize("special", [("a",), ("",), ("<x>", "<x>")])
def test_a_special_token_that_a_text_would_reach_is_refused(tmp_path: Path, source: Path, special: tuple[str, ...]):
    with pytest.raises(UsageError, match="special_tokens holds"):
        train_tokenizer(source, tmp_path / "t.json", special_tokens=special)


def test_a_special_token_that_is_a_word_of_the_corpus_stays_out_of_reach(tmp_path: Path, write_parquet):
    source = write_parquet(tmp_path / "in.parquet", ["endoftext\nendoftext\n" * 50])
    train_tokenizer(source, tmp_path / "t.json", vocab_size=300, special_tokens=("endoftext",))
    loaded = load_tokenizer(tmp_path / "t.json")
    [ids] = loaded.encode_batch(["endoftext"])
    assert loaded.eos_id not in ids
    assert loaded.decode(ids) == "endoftext"
    assert loaded.eos_id in loaded.backend.encode("endoftext").ids  # which the bare backend does not promise
