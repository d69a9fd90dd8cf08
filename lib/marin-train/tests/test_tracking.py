import json
import resource
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.errors import CheckpointError, MarinTrainError
from marin_train.tracking import JsonlTracker, read_metrics

ROWS = [{"step": step, "loss": 1 / 3**step} for step in range(1, 8)]


def _write(path: Path, rows: list[dict[str, float]], *, step: int) -> None:
    with closing(JsonlTracker(path)) as tracker:
        tracker.start({}, step=step)
        for row in rows:
            tracker.log(row)


@given(killed_at=st.integers(0, 400), resumed_from=st.integers(0, 7))
def test_a_file_cut_anywhere_and_resumed_is_that_of_one_run(
    tmp_path_factory: pytest.TempPathFactory, killed_at: int, resumed_from: int
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    _write(path, ROWS, step=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:killed_at])
    # A checkpoint's step has its row on file; only what follows can be cut.
    step = min(resumed_from, len(read_metrics(path)))
    _write(path, ROWS[step:], step=step)
    assert path.read_bytes() == whole


@given(killed_at=st.integers(0, 200), resumed_from=st.integers(0, 7))
def test_a_file_without_a_row_of_every_step_is_cut_back_by_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, killed_at: int, resumed_from: int
) -> None:
    path, some = tmp_path_factory.mktemp("metrics") / "some.jsonl", [row for row in ROWS if row["step"] % 3 != 2]

    def write(rows: list[dict[str, float]], *, step: int) -> None:
        with closing(JsonlTracker(path, every_step=False)) as tracker:
            tracker.start({}, step=step)
            for row in rows:
                tracker.log(row)

    write(some, step=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:killed_at])
    step = min(resumed_from, max((int(row["step"]) for row in read_metrics(path)), default=0))
    write([row for row in some if row["step"] > step], step=step)
    assert path.read_bytes() == whole


def test_each_row_is_on_file_before_the_next(tmp_path: Path) -> None:
    with closing(JsonlTracker(tmp_path / "m.jsonl")) as tracker:
        tracker.start({}, step=0)
        for count, row in enumerate(ROWS, 1):
            tracker.log(row)
            assert read_metrics(tmp_path / "m.jsonl") == ROWS[:count]


def test_floats_come_back_bitwise(tmp_path: Path) -> None:
    _write(tmp_path / "m.jsonl", ROWS, step=0)
    assert [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()] == ROWS


def test_rows_that_are_missing_are_refused_and_not_skipped(tmp_path: Path) -> None:
    _write(tmp_path / "m.jsonl", ROWS[:3], step=0)
    with pytest.raises(CheckpointError, match=r"m\.jsonl has the rows of 3 of 5 steps"):
        JsonlTracker(tmp_path / "m.jsonl").start({}, step=5)
    assert read_metrics(tmp_path / "m.jsonl") == ROWS[:3]


def test_a_disk_that_takes_no_more_is_said_by_the_name_of_the_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with closing(JsonlTracker(tmp_path / "m.jsonl")) as tracker:
            tracker.start({}, step=0)
            tracker.log(ROWS[0])
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
            with pytest.raises(MarinTrainError, match=r"m\.jsonl cannot be written"):
                tracker.log(ROWS[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_metrics(tmp_path / "m.jsonl") == ROWS[:1]


def test_a_row_before_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="before start"):
        JsonlTracker(tmp_path / "m.jsonl").log(ROWS[0])
