"""Kills for real: of the driver in a shuffle and after it, of a worker in the middle of a file."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from marin_zephyr import Dataset, Session

SCRIPT = textwrap.dedent("""
    import os, signal, sys
    from marin_zephyr import Dataset, Session

    raw, out, work, backend, fatal_stage, fatal_task = sys.argv[1:]

    class Fatal:
        # Kills its process when so many tasks of a stage are done.
        def start(self, work):
            self.name, self.done = work.name, work.done

        def advance(self, **_):
            self.done += 1
            if self.name == fatal_stage and self.done == int(fatal_task):
                os.kill(os.getpid(), signal.SIGKILL)

        def finish(self):
            pass

    rows = Dataset.from_files(raw, on_error="quarantine", shard_bytes=1)
    unique = rows.map(lambda row: {**row, "key": row["id"] % 40}).distinct(on="key")
    with Session(backend=backend, workers=2, work_dir=work, progress=Fatal()) as session:
        report = session.run(unique.map(lambda row: {**row, "x": row["id"] / 7}).write_parquet(out))
    print(report.executed)
""")


def tree(path: Path) -> dict[str, str]:
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def unfinished(path: Path) -> list[str]:
    """Files that are no result: hidden, temporary, or in a staging directory."""
    return [name for name in tree(path) if any(part.startswith(".") for part in Path(name).parts)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The input, and what an unharmed run in one process makes of it."""
    base = tmp_path_factory.mktemp("clean")
    raw = base / "raw"
    raw.mkdir()
    for i in range(4):
        rows = [{"id": i * 30 + j, "text": "w" * (j % 9)} for j in range(30)]
        (raw / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + "bad\n")
    (base / "script.py").write_text(SCRIPT)
    assert run(base, base / "out", base / "work", "inline", "none", 0) == 4 + 1 + 4
    return base, tree(base / "out")


def run(base: Path, out: Path, work: Path, backend: str, stage: str, task: int) -> int:
    """Runs the script; the number of tasks it ran, or -9 if it was killed."""
    arguments = [str(base / "raw"), str(out), str(work), backend, stage, str(task)]
    done = subprocess.run([sys.executable, str(base / "script.py"), *arguments], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout) if done.returncode == 0 else done.returncode


@pytest.mark.parametrize(("stage", "task", "left"), [("2/3 distinct-pick", 1, 4), ("3/3 write", 3, 1)])
def test_a_driver_killed_in_or_after_a_shuffle_goes_on_where_it_was(clean, tmp_path, stage, task, left):
    base, expected = clean
    out, work = tmp_path / "out", tmp_path / "work"
    assert run(base, out, work, "process", stage, task) == -signal.SIGKILL
    assert not list(out.glob("part-*"))
    for home in [*work.glob(f"*-{stage.partition(' ')[2]}-*"), *out.glob(".staging-*")]:
        (home / ".task-00003.json.77.tmp").touch()  # as a kill in the middle of a rename leaves it
    # What was under way when the driver died may have been done in time or not.
    assert 0 <= left - run(base, out, work, "process", "none", 0) <= 2
    assert tree(out) == expected
    assert not unfinished(out)
    assert not unfinished(work)


def test_a_worker_killed_in_the_middle_of_a_file_leaves_nothing_of_it(tmp_path):
    out, marker = tmp_path / "out", tmp_path / "killed"

    def kill_once(row):
        if row["n"] == 66_000 and not marker.exists():
            (part,) = out.glob(".staging-*/part-*")
            marker.write_text(str(part.stat().st_size))
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    (tmp_path / "raw.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(70_000)))
    dataset = Dataset.from_files(tmp_path / "raw.jsonl").map(kill_once)
    with Session(backend="process", workers=2) as session:
        assert session.run(dataset.write_jsonl(out)).counters["rows_out"] == 70_000
    assert int(marker.read_text()) > 100_000
    with Session(backend="inline") as inline:
        inline.run(dataset.write_jsonl(tmp_path / "clean"))
    assert tree(out) == tree(tmp_path / "clean")
    assert not unfinished(out)
