"""Runs on an S3 prefix, by real drivers and workers against a real server: once each, whole, and nothing again."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_core import StepRunner, leases, lower, run
from marin_core.cli import main as marin
from marin_core.errors import MissingOutputError, UsageError
from marin_core.fetching import fetch
from marin_core.handles import Input
from marin_core.reading.catalogue import Catalogue
from marin_core.store import objects, open_store

pytest.importorskip("obstore")

SCRIPT = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from marin_core import Input, Out, StepRunner, lower, main, step

    HERE = Path(__file__).parent

    def note(word):
        with (HERE / "runs.txt").open("a") as f:
            f.write(f"{word} {os.getpid()}\\n")

    @step
    def part(out: Out, *, number: int) -> int:
        note(f"part{number}")
        for i in range(20):
            (out / "deep" / f"{i}.txt").parent.mkdir(exist_ok=True)
            (out / "deep" / f"{i}.txt").write_text(str(number) * (i + 1))
        print("made part", number)
        return number

    @step
    def whole(out: Out, a: Input, b: Input) -> int:
        note("whole")
        while (HERE / "hold").exists():
            time.sleep(0.01)
        files = sorted(a.local().rglob("*.txt"))
        (out / "all.txt").write_text("".join(p.read_text() for p in files) + b.open("deep/0.txt").read())
        return len(files)

    def build():
        return whole(part(number=1), part(number=2))

    if __name__ == "__main__":
        if "--term" in sys.argv:
            report = StepRunner(os.environ["PREFIX"], lease_seconds=float(sys.argv[-1])).run(lower(build()))
            sys.exit(report.exit_code)
        main(build)
    """
)


class Lab:
    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory, self.prefix = directory, prefix
        (directory / "job.py").write_text(SCRIPT)
        self.staging = directory / "staging"
        self.staging.mkdir()
        self.drivers: list[subprocess.Popen[str]] = []

    def start(self, *flags: str) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, str(self.directory / "job.py"), *flags],
            cwd=self.directory,
            env=os.environ | {"PREFIX": self.prefix, "TMPDIR": str(self.staging)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.drivers.append(driver)
        return driver

    def words(self) -> list[str]:
        notes = self.directory / "runs.txt"
        return sorted(line.split()[0] for line in notes.read_text().splitlines()) if notes.exists() else []


@pytest.fixture
def lab(tmp_path: Path, s3_prefix: str) -> Iterator[Lab]:
    made = Lab(tmp_path, s3_prefix)
    yield made
    for driver in made.drivers:
        with contextlib.suppress(ProcessLookupError):
            driver.kill()
        driver.wait()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_a_script_runs_on_s3_and_a_rerun_does_nothing(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lab.start("--prefix", lab.prefix)
    out, _ = first.communicate()
    assert first.returncode == 0, out
    assert "done: 3 of 3 steps executed" in out
    page = out.splitlines()[-1].removeprefix("report: ")
    assert page.startswith(f"{lab.prefix}/runs/")
    assert (open_store(lab.prefix).read(page.removeprefix(f"{lab.prefix}/")) or b"").startswith(b"<!doctype html>")
    again = lab.start("--prefix", lab.prefix)
    out, _ = again.communicate()
    assert (again.returncode, out.splitlines()[0]) == (0, "nothing to do: 3 steps up to date")
    assert lab.words() == ["part1", "part2", "whole"]

    store = open_store(lab.prefix)
    (key,) = [k for k in store.find("step.json") if k.startswith("whole")]
    record = json.loads(store.read(key) or b"")
    out_key = f"{record['address']}/attempts/1/out"
    assert (record["value"], record["fence"]) == (20, 0)
    assert store.tree(out_key) == {"all.txt": sum(range(1, 21)) + 1}
    (part, _) = [k.removesuffix("/step.json") for k in store.find("step.json") if k.startswith("part")]
    assert b"made part" in (store.read(f"{part}/attempts/1/log.txt") or b"")
    attempt = json.loads(store.read(f"{part}/attempts/1/attempt.json") or b"")
    assert (attempt["state"], attempt["log"]) == ("succeeded", f"{part}/attempts/1/log.txt")
    assert list(lab.staging.glob("marin-*")) == []

    assert marin(["verify", "--deep", "--prefix", lab.prefix]) == 0
    assert "3 steps checked, 0 damaged" in capsys.readouterr().out
    store.write(f"{out_key}/all.txt", b"x" * (sum(range(1, 21)) + 1))
    assert marin(["verify", "--deep", "--prefix", lab.prefix]) == 1
    with pytest.raises(MissingOutputError, match=r"all\.txt has another sha256 than recorded"):
        Input(f"{lab.prefix}/{out_key}", cache=str(tmp_path / "cache")).local()


def test_a_fetch_that_was_interrupted_is_never_taken_for_whole(lab: Lab, s3: object, tmp_path: Path) -> None:
    assert lab.start("--prefix", lab.prefix).wait() == 0
    store = open_store(lab.prefix)
    (key, _) = [k.removesuffix("/step.json") for k in store.find("step.json") if k.startswith("part")]
    url, cache = f"{lab.prefix}/{key}/attempts/1/out", str(tmp_path / "cache")
    whole = store.read(f"{key}/attempts/1/out/deep/7.txt") or b""
    store.delete(f"{key}/attempts/1/out/deep/7.txt")
    for _ in range(2):
        with pytest.raises(MissingOutputError, match=r"deep/7\.txt is missing"):
            fetch(url, cache=cache)
    store.write(f"{key}/attempts/1/out/deep/7.txt", whole)
    assert len(list(fetch(url, cache=cache).rglob("*.txt"))) == 20
    store.remove_tree(f"{key}/attempts")
    assert len(list(fetch(url, cache=cache).rglob("*.txt"))) == 20


def test_two_runners_on_one_s3_prefix_execute_each_body_once(lab: Lab) -> None:
    drivers = [lab.start("--prefix", lab.prefix), lab.start("--prefix", lab.prefix)]
    outs = [driver.communicate()[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outs
    assert lab.words() == ["part1", "part2", "whole"]


def test_another_runner_finishes_what_a_killed_one_had_begun(lab: Lab) -> None:
    (lab.directory / "hold").touch()
    first = lab.start("--term", "2")
    until(lambda: "whole" in lab.words())
    first.send_signal(signal.SIGKILL)
    first.wait()
    (lab.directory / "hold").unlink()
    second = lab.start("--term", "2")
    out, _ = second.communicate()
    assert second.returncode == 0, out
    assert lab.words() == ["part1", "part2", "whole", "whole"]
    store = open_store(lab.prefix)
    (key,) = [k for k in store.find("step.json") if k.startswith("whole")]
    record = json.loads(store.read(key) or b"")
    assert (record["attempt"], record["epoch"], record["value"]) == (2, 2, 20)


def test_a_commit_of_unknown_outcome_keeps_its_lease_so_that_it_is_fenced_off(
    module: Callable[[str], Any], s3: Any, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = module("""
        from marin_core import step

        @step
        def one() -> int:
            return 1
    """)
    monkeypatch.setattr(objects, "_PATIENCE", 0.3)
    s3.fail("PUT", "/step.json", n=1000)
    report = run(flow.one(), prefix=s3_prefix)
    failure = report.record.nodes[0].failure
    assert failure is not None
    assert (failure.type, report.exit_code) == ("UnsettledError", 2)
    store, address = open_store(s3_prefix), report.record.nodes[0].address
    lease = leases.read(store, address)
    assert lease is not None
    assert lease.held
    assert lease.body is None, "that process may run another step by the time the lease is overtaken"
    s3.faults.clear()
    now = [0.0]
    witness = leases.Witness(clock=lambda: now[0])
    assert leases.acquire(store, address, run_id="next", witness=witness) is None
    now[0] += leases.TERM + 1
    assert leases.acquire(store, address, run_id="next", witness=witness) is not None
    assert json.loads(store.read(f"{address}/step.json") or b"") == {
        "address": address,
        "attempt": None,
        "fence": 2,
        "schema": 1,
    }
    (planned,) = lower(flow.one()).plan(s3_prefix)
    assert planned.decision == "run"
    assert planned.reason.startswith("no committed output; attempt 1 failed: UnsettledError: ")
    assert marin(["verify", "--prefix", s3_prefix]) == 0


def test_an_output_is_uploaded_while_other_steps_go_on(
    module: Callable[[str], Any], s3_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = module("""
        import time
        from pathlib import Path
        from marin_core import Out, step

        @step
        def large(out: Out) -> None:
            (out / "a.txt").write_text("a")

        @step
        def other(*, gate: str) -> None:
            while not Path(gate).exists():
                time.sleep(0.01)
    """)
    real, gate = objects.ObjectStore.put_file, tmp_path / "gate"

    def put_file(store: objects.ObjectStore, source: Path, key: str) -> None:
        if key.endswith("out/a.txt"):
            gate.touch()
            until(lambda: [k for k in store.find("step.json") if k.startswith("other")])
        real(store, source, key)

    monkeypatch.setattr(objects.ObjectStore, "put_file", put_file)
    report = run(flow.large(), flow.other(gate=str(gate)), prefix=s3_prefix)
    assert len(report.executed) == 2


def test_an_output_that_cannot_be_uploaded_is_kept_and_named(
    module: Callable[[str], Any], s3: Any, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = module("""
        from marin_core import Out, step

        @step
        def large(out: Out) -> None:
            (out / "a.txt").write_text("the work of days")
    """)
    monkeypatch.setattr(objects, "_OUTPUT_PATIENCE", 0.0)
    s3.fail("PUT", "/out/a.txt", n=1000)
    try:
        failure = run(one := flow.large(), prefix=s3_prefix).node(one).failure
    finally:
        s3.faults.clear()
    assert failure is not None
    kept = Path(failure.message.rpartition("; the output is kept in ")[2])
    assert (kept / "a.txt").read_text() == "the work of days"
    shutil.rmtree(kept.parent)


def test_a_remote_work_is_refused_before_anything_runs(module: Callable[[str], Any], s3_prefix: str) -> None:
    flow = module("""
        from marin_core import Work, step

        @step
        def first() -> int:
            return 1

        @step
        def train(work: Work, x: int) -> int:
            return 1
    """)
    message = "step train: Work is a directory .* choose a prefix on a file system"
    with pytest.raises(UsageError, match=message):
        StepRunner(s3_prefix, launcher="inline").run(lower(flow.train(flow.first())))
    assert open_store(s3_prefix).tree("") == {}


def test_what_a_run_left_is_read_and_served_with_the_same_client(s3_prefix: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("starlette")
    (tmp_path / "job.py").write_text(SCRIPT)

    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert marin([*arguments, "--prefix", s3_prefix]) == 0
        return capsys.readouterr().out

    for flags in ([], ["--force", "whole"]):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "job.py"), "--prefix", s3_prefix, *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "3 committed steps, 2 runs" in said("status")
    assert "made part" in said("logs", "part")
    assert "3 are in both" in said("diff", "latest~1", "latest")
    assert said("report").strip() == f"report: {s3_prefix}/runs/{_newest(s3_prefix)}.html"
    page = open_store(s3_prefix).read(f"runs/{_newest(s3_prefix)}.html")
    assert page is not None
    assert b"all.txt" in page
    command = [sys.executable, "-m", "marin_core.cli", "serve", "--prefix", s3_prefix, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            whole = next(a for a in Catalogue.of(s3_prefix).addresses if a.startswith("whole/"))
            out = f"{whole}/attempts/2/out/all.txt"
            for target, shown in {
                "": _newest(s3_prefix), "steps": whole, f"runs/{_newest(s3_prefix)}": "all.txt",
                f"steps/{whole}": "all.txt", f"attempts/2/{whole}": "all.txt", f"files/{out}": "1111",
                f"download/{out}": "1111", "steps/nothing/1": "Not here",
            }.items():  # fmt: skip
                assert shown in _fetched(f"{url}{target}"), target
        finally:
            server.terminate()


def _newest(prefix: str) -> str:
    return Catalogue.of(prefix).run_ids[-1]


def _fetched(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.read().decode()
