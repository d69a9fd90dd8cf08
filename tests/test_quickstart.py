"""The main job end to end, on a small corpus: what it says, what it repeats, what a crash leaves, what it refuses."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from quickstart_runs import (
    SMALL,
    committed,
    executed,
    finish,
    kill_when,
    lines_of,
    losses,
    output,
    run_records,
    write_corpus,
)

DATA_STEPS = {
    "normalize",
    "exact_dedup",
    "fuzzy_dedup",
    "split",
    "train_tokenizer",
    "tokenize_train",
    "tokenize_validation",
    "baselines",
}
MODEL_STEPS = {"train", "evaluate", "compare", "sample"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def policy() -> str:
    """Pinned by name: runs that are compared bit for bit must compute alike, whatever each would have measured."""
    return "float32-blocked-keep-unroll"


@pytest.fixture(scope="module")
def flags(corpus, policy) -> tuple[str, ...]:
    return (*SMALL, "--corpus", str(corpus), "--policy", policy)


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory) -> tuple[Path, str]:
    """A prefix on which the small job ran to its end undisturbed, and what it said."""
    prefix = tmp_path_factory.mktemp("finished")
    code, said = finish(*flags, prefix=prefix)
    assert code == 0, said
    return prefix, said


def test_the_last_lines_say_bits_per_byte_time_and_report(finished):
    _, said = finished
    lines = said.strip().splitlines()[-4:]
    assert any(re.search(r"bits/byte \d\.\d+", line) for line in lines)
    assert any(re.search(r"executed in \d+\.\d s", line) for line in lines)
    report = re.fullmatch(r"report: (.+\.html)", lines[-1])
    assert report
    assert Path(report[1]).is_file()


def test_every_step_is_recorded_with_its_reason(finished):
    (record,) = run_records(finished[0])
    assert executed(record) == DATA_STEPS | MODEL_STEPS
    assert all(node["reason"] for node in record["nodes"])
    assert record["status"] == "succeeded"


def test_duplicates_are_gone_before_training(finished):
    values = {node["name"]: node["value"] for node in run_records(finished[0])[0]["nodes"]}
    assert values["exact_dedup"]["dropped"]["documents"] == 20


def test_the_score_stands_beside_every_baseline(finished):
    values = {node["name"]: node["value"] for node in run_records(finished[0])[0]["nodes"]}
    scores = values["compare"]["bits_per_byte"]
    assert set(scores) == {"model", "zstd -19", "token unigram", "order-0 bytes"}
    assert scores["model"] < scores["order-0 bytes"]


def test_the_score_falls_with_steps(finished, flags, tmp_path):
    prefix = tmp_path / "copy"
    shutil.copytree(finished[0], prefix)
    code, said = finish(*flags, "--steps", "8", prefix=prefix)
    assert code == 0, said
    after_8, after_30 = (
        next(n["value"]["bits_per_byte"]["model"] for n in record["nodes"] if n["name"] == "compare")
        for record in (run_records(prefix)[-1], run_records(finished[0])[0])
    )
    assert after_30 < after_8


def test_a_rerun_with_nothing_changed_executes_nothing_and_says_so(finished, flags):
    prefix, _ = finished
    code, said = finish(*flags, prefix=prefix)
    assert code == 0
    assert "nothing to do" in said
    assert executed(run_records(prefix)[-1]) == set()


def test_a_new_learning_rate_reruns_training_and_what_follows_only(finished, flags, tmp_path):
    prefix = tmp_path / "copy"
    shutil.copytree(finished[0], prefix)
    code, said = finish(*flags, "--learning-rate", "0.002", prefix=prefix)
    assert code == 0, said
    assert executed(run_records(prefix)[-1]) == MODEL_STEPS


def test_a_moved_prefix_is_still_up_to_date(finished, flags, tmp_path):
    prefix = tmp_path / "moved"
    shutil.copytree(finished[0], prefix)
    code, said = finish(*flags, prefix=prefix)
    assert (code, "nothing to do" in said) == (0, True), said


def test_killed_in_data_processing_and_in_training_it_ends_with_the_same_losses(finished, flags, tmp_path):
    kill_when(lambda: any(tmp_path.glob("fuzzy_dedup/*/work/*/*")), *flags, prefix=tmp_path)
    assert committed(tmp_path).isdisjoint(MODEL_STEPS)
    kill_when(lambda: lines_of(tmp_path, "train/*/work/*/metrics.jsonl") >= 15, *flags, prefix=tmp_path)
    survived = committed(tmp_path)
    assert survived.isdisjoint(MODEL_STEPS)
    assert {"normalize", "exact_dedup", "fuzzy_dedup", "split", "train_tokenizer", "tokenize_train"} <= survived
    code, said = finish(*flags, prefix=tmp_path)
    assert code == 0, said
    assert executed(run_records(tmp_path)[-1]) == (DATA_STEPS | MODEL_STEPS) - survived
    assert losses(tmp_path) == losses(finished[0])
    assert_same_outputs(tmp_path, finished[0])


def assert_same_outputs(one: Path, other: Path) -> None:
    """Committed data is byte-identical, whatever happened on the way."""
    for name in DATA_STEPS:
        pairs = [json.loads(next(p.glob(f"{name}/*/step.json")).read_text()) for p in (one, other)]
        assert pairs[0]["output_digest"] == pairs[1]["output_digest"], name


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "missing.jsonl"),
        (b"", "documents.jsonl"),
        (b'{"text": "only one"}\n', "1 document"),
        (b'{"text": "\xff\xfe"}\n', "documents.jsonl"),
    ],
    ids=["missing", "empty", "one document", "undecodable"],
)
def test_a_bad_corpus_is_one_clear_line(content, said, tmp_path):
    path = tmp_path / ("missing.jsonl" if content is None else "documents.jsonl")
    if content is not None:
        path.write_bytes(content)
    prefix = tmp_path / "prefix"
    code, output_text = finish(*SMALL, "--corpus", str(path), prefix=prefix)
    assert code == 2, output_text
    assert said in output_text
    assert "Traceback" not in output_text
    assert not list(prefix.glob("train/*/step.json"))


def test_a_wrong_corpus_name_says_what_there_is(tmp_path):
    code, said = finish("--corpus", "tinystory", prefix=tmp_path)
    assert code == 2
    assert "tinystories" in said
    assert "Traceback" not in said


def test_an_unwritable_prefix_is_named(tmp_path, corpus):
    (tmp_path / "file").write_text("in the way")
    code, said = finish("--corpus", str(corpus), prefix=tmp_path / "file")
    assert code == 2
    assert str(tmp_path / "file") in said
    assert "Traceback" not in said


def test_no_space_left_is_named_and_nothing_half_written_counts(tmp_path, flags):
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(small)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small file system needs privileges that are not there")
    try:
        code, said = finish(*flags, prefix=small / "prefix")
        assert code != 0
        assert "no space left" in said.lower()
        assert "Traceback" not in said
        for pointer in small.glob("prefix/*/*/step.json"):
            record = json.loads(pointer.read_text())
            out = pointer.parent / "attempts" / str(record["attempt"]) / "out"
            assert all((out / f["path"]).stat().st_size == f["size"] for f in record["files"])
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_report_opens_in_a_browser(finished, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    (page,) = sorted((finished[0] / "runs").glob("*.html"))[:1]
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    dom = subprocess.run(
        [browser, *options.split(), f"--user-data-dir={tmp_path}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    assert "<svg" in dom
    for name in DATA_STEPS | MODEL_STEPS:
        assert name in dom
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", dom)
    assert json.loads((output(finished[0], "sample") / "samples.json").read_text())[0]["prompt"].strip() in dom
