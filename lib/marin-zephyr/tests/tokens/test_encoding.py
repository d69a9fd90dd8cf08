"""Tokenizing: the same store for any number of workers and after any kill; bad input leaves no store."""

import base64
import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.durability import sole_writer
from marin_zephyr.errors import (
    BadRecordError,
    InputError,
    OutputBusyError,
    OutputError,
    TokenizerError,
    TokenStoreError,
    TooManyBadRecordsError,
    UsageError,
)
from marin_zephyr.tokens import Tokenizer, TokenStore, encoding, load_tokenizer, resumption, tokenize
from marin_zephyr.tokens.batches import Encoded, Engine, Rows
from marin_zephyr.tokens.texts import TextEncoder

_PART_TOKENS = 4000


@pytest.fixture(scope="module")
def source(tmp_path_factory, write_parquet, write_jsonl, corpus: list[str], prose) -> Path:
    """Forty documents, empty ones among them, and one that is long enough to be cut."""
    directory = tmp_path_factory.mktemp("source")
    write_parquet(directory / "a.parquet", ["", *corpus[:20], None])
    write_jsonl(directory / "b.jsonl", [prose(99, 30_000), "", *corpus[20:], ""])
    return directory


@pytest.fixture(scope="module")
def clean(tmp_path_factory, source: Path, trained: Tokenizer) -> Path:
    """The store of ``source``, made without a kill."""
    out = tmp_path_factory.mktemp("clean") / "out"
    tokenize(source, out, tokenizer=trained, part_tokens=_PART_TOKENS)
    return out


def run(source: Path, out: Path, tokenizer: Tokenizer, **options):
    return tokenize(source, out, tokenizer=tokenizer, part_tokens=_PART_TOKENS, **options)


# ----------------------------------------------------------------------------------------------------------- content


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_matter(
    source: Path, clean: Path, tmp_path: Path, trained: Tokenizer, digests, workers: int
):
    run(source, tmp_path / "out", trained, workers=workers)
    assert digests(tmp_path / "out") == digests(clean)


def test_a_long_document_has_the_ids_of_the_whole(clean: Path, trained: Tokenizer, prose):
    [ids] = trained.encode_batch([prose(99, 30_000)])
    assert TokenStore.open(clean).document(20).tolist() == [*ids.tolist(), trained.eos_id]


def test_the_report_counts_what_is_there(source: Path, tmp_path: Path, trained: Tokenizer):
    report = run(source, tmp_path / "out", trained)
    store = TokenStore.open(tmp_path / "out")
    assert (report.num_documents, report.num_tokens, report.num_bytes) == (41, store.num_tokens, store.num_bytes)
    assert report.num_empty == 4
    assert report.num_parts == len(store.parts) > 3
    assert report.bytes_per_token == store.num_bytes / store.num_tokens


def test_parts_end_with_the_document_that_fills_them(clean: Path):
    *full, _ = TokenStore.open(clean).parts
    for part in full:
        assert part.record.num_tokens >= _PART_TOKENS > part.record.num_tokens - int(part.lengths[-1])


def test_documents_know_their_file(clean: Path):
    store = TokenStore.open(clean)
    assert [store.source(index) for index in (0, 19, 20, 40)] == ["a.parquet", "a.parquet", "b.jsonl", "b.jsonl"]


def test_documents_of_a_corpus_know_their_raw_file(tmp_path: Path, trained: Tokenizer):
    sources = ["x/1.py", "x/1.py", "x/2.py", "y/3.py", "x/1.py", "x/1.py"]
    texts = ["def self", "value", "", "import " * 300, "return the", "of and"]
    pq.write_table(pa.table({"text": texts, "source": sources}), tmp_path / "part-00000.parquet")
    tokenize(tmp_path / "part-00000.parquet", tmp_path / "out", tokenizer=trained, part_tokens=300)
    store = TokenStore.open(tmp_path / "out")
    assert len(store.parts) == 2
    assert [store.source(index) for index in range(5)] == ["x/1.py", "x/1.py", "y/3.py", "x/1.py", "x/1.py"]
    assert [store.locate(token).source for token in (0, store.num_tokens - 1)] == ["x/1.py", "x/1.py"]
    assert (tmp_path / "out" / "part-00000.sources").read_text() == '["x/1.py", 2]\n["y/3.py", 1]\n'


def test_literal_special_text_is_never_an_end(tmp_path: Path, write_jsonl, trained: Tokenizer):
    text = "before<|endoftext|>after <|endoftext|>"
    run(write_jsonl(tmp_path / "in.jsonl", [text, "next"]), tmp_path / "out", trained)
    store = TokenStore.open(tmp_path / "out")
    assert store.text(0) == text
    for index in (0, 1):
        assert [i == trained.eos_id for i in store.document(index)].index(True) == len(store.document(index)) - 1


@pytest.mark.parametrize("append_eos", [True, False])
@pytest.mark.parametrize("prepend_bos", [True, False])
def test_special_ids_are_written_as_asked(
    tmp_path: Path, write_jsonl, trained: Tokenizer, append_eos: bool, prepend_bos: bool
):
    tokenizer = Tokenizer(content=trained.content, eos_id=trained.eos_id, bos_id=7)
    source = write_jsonl(tmp_path / "in.jsonl", ["value self"])
    run(source, tmp_path / "out", tokenizer, append_eos=append_eos, prepend_bos=prepend_bos)
    store = TokenStore.open(tmp_path / "out")
    [ids] = tokenizer.encode_batch(["value self"])
    assert store.document(0).tolist() == [7] * prepend_bos + ids.tolist() + [tokenizer.eos_id] * append_eos
    assert store.text(0) == "value self"
    assert store.manifest.eos_id == (tokenizer.eos_id if append_eos else None)
    assert store.manifest.bos_id == (7 if prepend_bos else None)


# ------------------------------------------------------------------------------------------------------------- kills

# Runs `tokenize` and kills its own process, with SIGKILL, at the n-th call of a function: before it or after it.
_KILLED = """
import os, signal, sys
from marin_zephyr.tokens import load_tokenizer, resumption, tokenize

source, out, work, tokenizer, function, count, when = sys.argv[1:]
original = getattr(resumption, function)
calls = 0

def killing(*arguments, **options):
    global calls
    calls += 1
    if calls == int(count) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments, **options)
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(resumption, function, killing)
policy = "quarantine" if source.endswith("dirty") else "raise"
tokenizer = load_tokenizer(tokenizer)
tokenize(source, out, tokenizer=tokenizer, part_tokens=4000, on_error=policy, work_dir=work or None)
"""


def run_killed(source: Path, out: Path, tokenizer: Path, point: tuple[str, int, str], work: Path | None = None) -> None:
    arguments = [source, out, work or "", tokenizer, *map(str, point)]
    ended = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "reused"),
    [
        (("take_up", 1, "after"), 0),
        (("commit_part", 1, "before"), 0),
        (("commit_part", 3, "before"), 2),
        (("commit_part", 3, "after"), 3),
        (("publish", 1, "before"), -1),
        (("_place", 6, "after"), -1),
    ],
)
def test_a_killed_run_shows_no_store_and_is_taken_up(
    source: Path, clean: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests, point, reused: int
):
    out = tmp_path / "out"
    run_killed(source, out, tokenizer_file, point)
    with pytest.raises(TokenStoreError, match=r"no manifest\.json"):
        TokenStore.open(out)
    report = run(source, out, trained)
    assert report.num_parts_reused == (report.num_parts if reused < 0 else reused)
    assert digests(out) == digests(clean)


def test_files_that_a_kill_caught_before_their_renaming_are_swept(
    source: Path, clean: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests
):
    out = tmp_path / "out"
    run_killed(source, out, tokenizer_file, ("commit_part", 2, "after"))
    for name in (
        ".tokenizer.json.7.tmp",
        ".manifest.json.7.tmp",
        ".work/.plan.json.7.tmp",
        ".work/.part-00002.idx.7.tmp",
    ):
        (out / name).write_bytes(b"half")
    assert run(source, out, trained).num_parts_reused == 2
    assert digests(out) == digests(clean)


def test_a_run_killed_after_the_manifest_is_a_whole_store(
    source: Path, clean: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests
):
    out = tmp_path / "out"
    run_killed(source, out, tokenizer_file, ("clear", 1, "before"))
    assert TokenStore.open(out).verify() == ()
    run(source, out, trained)
    assert digests(out) == digests(clean)


def test_a_work_directory_outlives_the_output(
    source: Path, clean: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests
):
    work = tmp_path / "work"
    run_killed(source, tmp_path / "attempt-1", tokenizer_file, ("commit_part", 2, "after"), work)
    report = run(source, tmp_path / "attempt-2", trained, work_dir=work)
    assert report.num_parts_reused == 2
    assert digests(tmp_path / "attempt-2") == digests(clean)
    assert list(work.iterdir()) == []


def test_parts_of_other_settings_are_thrown_away(
    source: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests
):
    run_killed(source, tmp_path / "out", tokenizer_file, ("commit_part", 3, "after"))
    report = run(source, tmp_path / "out", trained, append_eos=False)
    assert report.num_parts_reused == 0
    run(source, tmp_path / "fresh", trained, append_eos=False)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_finished_part_that_was_damaged_is_made_again(
    source: Path, clean: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests
):
    run_killed(source, tmp_path / "out", tokenizer_file, ("commit_part", 3, "after"))
    part = tmp_path / "out" / ".work" / "part-00001.bin"
    part.write_bytes(part.read_bytes()[:-2] + b"\xff\xff")
    assert run(source, tmp_path / "out", trained).num_parts_reused == 1
    assert digests(tmp_path / "out") == digests(clean)


def test_repeating_a_finished_call_touches_nothing(source: Path, tmp_path: Path, trained: Tokenizer):
    first = run(source, tmp_path / "out", trained)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = run(source, tmp_path / "out", trained)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
    assert again.num_parts_reused == again.num_parts == first.num_parts
    assert (again.num_documents, again.num_tokens, again.num_empty) == (
        first.num_documents,
        first.num_tokens,
        first.num_empty,
    )


def test_a_store_below_its_inputs_is_none_of_them(tmp_path: Path, write_jsonl, corpus: list[str], trained: Tokenizer):
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus[:5])
    out, work = tmp_path / "in" / "tokens", tmp_path / "in" / "work"
    tokenize(tmp_path / "in", out, tokenizer=trained, work_dir=work, part_tokens=100)
    again = tokenize(tmp_path / "in", out, tokenizer=trained, work_dir=work, part_tokens=100)
    assert again.num_parts_reused == again.num_parts > 1
    with pytest.raises(InputError, match="all inputs lie in"):
        tokenize(tmp_path / "in" / "a.jsonl", tmp_path / "in", tokenizer=trained)


# ----------------------------------------------------------------------------------------------------------- rejects


@pytest.fixture(scope="module")
def dirty(tmp_path_factory, corpus: list[str]) -> Path:
    """Compressed files with records that cannot be taken at their beginnings, within them and at their ends."""
    directory = tmp_path_factory.mktemp("inputs") / "dirty"
    directory.mkdir()
    bad = [b'{"text": 1}', b"{", b'{"text": "\\ud800"}', b'{"text": "\xff"}']
    for name, texts in (("a", corpus[:14]), ("b", corpus[14:27]), ("c", corpus[27:])):
        lines = [bad[0], *(json.dumps({"text": text}).encode() for text in ["", *texts]), bad[1]]
        lines[4:4] = bad
        (directory / f"{name}.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines), mtime=0))
    (directory / "d.jsonl").write_bytes(b"\n".join(bad))
    return directory


@pytest.fixture(scope="module")
def quarantined(tmp_path_factory, dirty: Path, trained: Tokenizer) -> Path:
    """The store of ``dirty``, made without a kill."""
    out = tmp_path_factory.mktemp("quarantined") / "out"
    run(dirty, out, trained, on_error="quarantine", workers=2)
    return out


def test_refused_records_are_counted_and_kept_with_their_place(quarantined: Path, dirty: Path, trained: Tokenizer):
    report = run(dirty, quarantined, trained, on_error="quarantine")
    assert (report.num_documents, report.num_empty, report.num_rejected) == (40, 3, 22)
    assert report.rejected == {
        "'text' is int, not a string": 7,
        "not JSON": 7,
        "lone surrogate, which is no text in UTF-8": 4,
        "not UTF-8": 4,
    }
    files = {path.name: path.read_text().splitlines() for path in sorted((quarantined / "rejects").iterdir())}
    assert {name: len(lines) for name, lines in files.items()} == {
        **{f"input-{number:05d}.jsonl": 6 for number in range(3)},
        "input-00003.jsonl": 4,
    }
    first = json.loads(files["input-00001.jsonl"][1])
    line = gzip.decompress((dirty / "b.jsonl.gz").read_bytes()).splitlines(keepends=True)[:5]
    assert (first["file"], first["line"], first["offset"]) == ("b.jsonl.gz", 5, sum(map(len, line[:4])))
    assert base64.b64decode(first["raw"]) == line[4].rstrip()
    lineage = TokenStore.open(quarantined).manifest.lineage["rejects"]
    assert (lineage["on_error"], lineage["num_rows"]) == ("quarantine", 65)
    assert sorted(lineage["files"]) == [f"rejects/{name}" for name in files]


@pytest.mark.parametrize(
    "point",
    [("commit_part", 4, "before"), ("commit_part", 6, "after"), ("_place", 9, "after")],
)
def test_a_killed_run_keeps_its_rejects(
    dirty: Path, quarantined: Path, tmp_path: Path, tokenizer_file: Path, trained: Tokenizer, digests, point
):
    out = tmp_path / "out"
    run_killed(dirty, out, tokenizer_file, point)
    report = run(dirty, out, trained, on_error="quarantine")
    assert report.num_parts_reused >= point[1] - 1 or point[0] == "_place"
    assert digests(out) == digests(quarantined)


@settings(max_examples=5, deadline=None)
@given(stop=st.integers(0, 12), part_tokens=st.sampled_from([6000, 20_000]), workers=st.integers(1, 3))
def test_a_run_that_fails_anywhere_is_taken_up_with_its_rejects(
    tmp_path_factory, dirty: Path, trained: Tokenizer, digests, stop: int, part_tokens: int, workers: int
):
    directory = tmp_path_factory.mktemp("failing")
    options = {"tokenizer": trained, "part_tokens": part_tokens, "on_error": "quarantine", "workers": workers}
    tokenize(dirty, directory / "clean", **options)
    commit, left = resumption.commit_part, [stop]

    def failing(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise InputError("the power went")
        commit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumption, "commit_part", failing)
        with contextlib.suppress(InputError):
            tokenize(dirty, directory / "out", **options)
    report = tokenize(dirty, directory / "out", **options)
    assert report.num_parts_reused == min(stop, report.num_parts)
    assert digests(directory / "out") == digests(directory / "clean")


def test_skipped_records_are_counted_alone(dirty: Path, quarantined: Path, tmp_path: Path, trained: Tokenizer, digests):
    report = run(dirty, tmp_path / "out", trained, on_error="skip")
    assert report.num_rejected == 22
    assert not (tmp_path / "out" / "rejects").exists()
    kept = {name: digest for name, digest in digests(quarantined).items() if name.startswith("part-")}
    assert {name: digest for name, digest in digests(tmp_path / "out").items() if name.startswith("part-")} == kept


@pytest.mark.parametrize(("max_bad", "told"), [(21, "22 (of 65 )?records"), (3, "were refused"), (0.3, "22 of 65")])
def test_too_many_refused_records_leave_no_store(
    dirty: Path, tmp_path: Path, trained: Tokenizer, max_bad: float, told: str
):
    with pytest.raises(TooManyBadRecordsError, match=told):
        run(dirty, tmp_path / "out", trained, on_error="skip", max_bad=max_bad)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run(dirty, tmp_path / "out", trained, on_error="skip", max_bad=22).num_rejected == 22
    with pytest.raises(TooManyBadRecordsError, match=told):
        run(dirty, tmp_path / "out", trained, on_error="skip", max_bad=max_bad)


def test_parts_without_refusals_outlive_a_change_of_policy(
    tmp_path: Path, write_jsonl, corpus: list[str], trained: Tokenizer, digests
):
    source = tmp_path / "in"
    write_jsonl(source / "a.jsonl", corpus)
    (source / "b.jsonl").write_text("{broken\n")
    with pytest.raises(BadRecordError, match=r"b\.jsonl, line 1"):
        run(source, tmp_path / "out", trained)
    report = run(source, tmp_path / "out", trained, on_error="skip")
    assert report.num_parts_reused >= report.num_parts - 1 > 2
    run(source, tmp_path / "fresh", trained, on_error="skip")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")
    with pytest.raises(OutputError, match="another token store: on_error='skip', not 'raise'"):
        run(source, tmp_path / "out", trained)


class _Refusing(TextEncoder):
    """Refuses texts of an odd length, and masks every third id."""

    def using(self, engine: Engine) -> "_Refusing":
        return _Refusing(engine, self._specials, text_field=self._text_field)

    def encode(self, rows: Rows) -> Encoded:
        kept = [text if text and len(text) % 2 == 0 else None for text in rows.frame["text"]]
        encoded = super().encode(replace(rows, frame=pl.DataFrame({"text": pl.Series(kept, dtype=pl.String)})))
        refused = {row: f"odd: {len(text)}" for row, text in enumerate(rows.frame["text"]) if text and len(text) % 2}
        return replace(encoded, refused=refused, mask=encoded.ids % 3 == 0)


def test_rows_that_the_encoder_refuses_go_to_the_same_desk(
    dirty: Path, tmp_path: Path, trained: Tokenizer, digests, monkeypatch, corpus: list[str], write_jsonl
):
    monkeypatch.setattr(encoding, "TextEncoder", _Refusing)
    report = run(dirty, tmp_path / "clean", trained, on_error="quarantine")
    num_odd = sum(len(text) % 2 for text in corpus)
    assert (report.num_documents, report.num_empty) == (40 - num_odd, 3)
    assert (report.num_rejected, report.rejected["odd"]) == (22 + num_odd, num_odd)
    entries = [
        json.loads(line)
        for path in sorted((tmp_path / "clean" / "rejects").glob("rows-*"))
        for line in path.read_text().splitlines()
    ]
    assert [entry["row"]["text"] for entry in entries] == [text for text in corpus if len(text) % 2]
    commit = resumption.commit_part
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise InputError("the power went")
        commit(*arguments)

    monkeypatch.setattr(resumption, "commit_part", failing)
    with pytest.raises(InputError, match="power"):
        run(dirty, tmp_path / "out", trained, on_error="quarantine")
    assert run(dirty, tmp_path / "out", trained, on_error="quarantine").num_parts_reused == 2
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")
    with pytest.raises(BadRecordError, match=r"in\.jsonl, row 2: odd"):
        run(write_jsonl(tmp_path / "in.jsonl", ["even", "odd"]), tmp_path / "raise", trained)


def test_masks_of_a_part_are_bits_in_the_order_of_its_ids(tmp_path: Path, dirty: Path, trained: Tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "TextEncoder", _Refusing)
    run(dirty, tmp_path / "out", trained, on_error="skip")
    store = TokenStore.open(tmp_path / "out")
    assert store.verify() == ()
    for part in store.parts:
        data = np.fromfile(tmp_path / "out" / f"{part.record.name}.mask", np.uint8)
        ids = np.fromfile(tmp_path / "out" / f"{part.record.name}.bin", "<u2")
        assert len(data) == -(-len(ids) // 8)
        assert [bool(data[n // 8] >> (n % 8) & 1) for n in range(len(ids))] == (ids % 3 == 0).tolist()


# --------------------------------------------------------------------------------------------------------- bad input


def test_another_store_is_not_overwritten_and_the_difference_is_told(
    source: Path, tmp_path: Path, trained: Tokenizer, digests
):
    run(source, tmp_path / "out", trained)
    before = digests(tmp_path / "out")
    with pytest.raises(OutputError, match="another token store: append_eos=True, not False"):
        run(source, tmp_path / "out", trained, append_eos=False)
    with pytest.raises(OutputError, match="another token store: of other special tokens"):
        run(source, tmp_path / "out", replace(trained, bos_id=1))
    with pytest.raises(OutputError, match="another token store: of another tokenizer"):
        run(source, tmp_path / "out", load_tokenizer("bytes"))
    more = source / "zz.jsonl"
    more.write_text('{"text": "one more"}\n')
    with pytest.raises(OutputError, match=r"another token store: of other inputs, without this .*zz\.jsonl"):
        run(source, tmp_path / "out", trained)
    assert digests(tmp_path / "out") == before


def test_a_directory_with_other_files_is_not_touched(source: Path, tmp_path: Path, trained: Tokenizer):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        run(source, tmp_path, trained)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_second_writer_is_refused(source: Path, tmp_path: Path, trained: Tokenizer):
    with sole_writer(tmp_path / "out"), pytest.raises(OutputBusyError, match="another run") as caught:
        run(source, tmp_path / "out", trained)
    assert caught.value.exit_code == 3


def test_an_output_that_cannot_be_is_named(source: Path, tmp_path: Path, trained: Tokenizer):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/out"):
        run(source, tmp_path / "file" / "out", trained)


def test_no_text_leaves_no_store(tmp_path: Path, write_jsonl, trained: Tokenizer):
    source = write_jsonl(tmp_path / "in.jsonl", ["", None])
    with pytest.raises(InputError, match=r"no document with text in .*in\.jsonl"):
        run(source, tmp_path / "out", trained)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_bad_line_after_good_parts_leaves_no_store(tmp_path: Path, write_jsonl, corpus, trained: Tokenizer):
    source = write_jsonl(tmp_path / "in.jsonl", corpus)
    with source.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(InputError, match="line 41"):
        run(source, tmp_path / "out", trained)
    with pytest.raises(TokenStoreError):
        TokenStore.open(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "told"),
    [({"append_eos": True}, "no eos token"), ({"append_eos": False, "prepend_bos": True}, "no bos token")],
)
def test_a_special_id_that_is_not_known_is_refused(source: Path, tmp_path: Path, trained: Tokenizer, options, told):
    bare = Tokenizer(content=trained.content, eos_id=None, bos_id=None)
    with pytest.raises(TokenizerError, match=told):
        run(source, tmp_path / "out", bare, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"workers": 0}, {"part_tokens": 0}, {"work_dir": "same"}])
def test_arguments_that_cannot_work_are_named(source: Path, tmp_path: Path, trained: Tokenizer, options: dict):
    name = next(iter(options))
    if name == "work_dir":
        options = {"work_dir": tmp_path / "out"}
    with pytest.raises(UsageError, match=name):
        tokenize(source, tmp_path / "out", tokenizer=trained, **options)


def test_the_callers_environment_is_left_as_it_was(tmp_path: Path, write_jsonl, trained: Tokenizer, monkeypatch):
    source = write_jsonl(tmp_path / "in.jsonl", ["a"])
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    run(source, tmp_path / "1", trained)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    run(source, tmp_path / "2", trained)
    assert "TOKENIZERS_PARALLELISM" not in os.environ
