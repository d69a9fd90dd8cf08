"""The ``rig`` command: output, exit codes, signals, and one line for a user's mistake."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_rigging.cli import main

CODE = "import sys; from marin_rigging.cli import main; sys.exit(main())"
Mailbox = tuple[Path, Callable[[int], list[list[str]]]]
WaitGone = Callable[[int], bool]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Rig = Callable[..., Done]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    """The command, run in this process and in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIN_PREFIX", raising=False)

    def run(*args: str) -> Done:
        try:
            code = main(args)
        except SystemExit as leaving:
            code = leaving.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run


FLEET = """\
name: laptop
pools:
  - {name: two, ranks: 2}
  - {name: three, ranks: 3}
jobs:
  - {name: hello, pool: two, command: [sh, -c, "echo hello $RANK of $WORLD_SIZE"]}
"""


def test_catalog_lists_families_types_and_one_type(rig: Rig) -> None:
    families = rig("catalog")
    assert (families.returncode, families.stderr) == (0, "")
    assert "v5p        8 ... 12288 (94 types)         cores" in families.stdout
    types = rig("catalog", "v6e").stdout.splitlines()
    assert [line.split()[0] for line in types[1:]] == [f"v6e-{n}" for n in (1, 4, 8, 16, 32, 64, 128, 256)]
    (row,) = json.loads(rig("catalog", "v5p-64", "--json").stdout)
    assert (row["num_chips"], row["num_vms"], row["topology"]) == (32, 8, "2x4x4")


def test_a_run_shows_its_ranks_and_leaves_logs_and_a_record(rig: Rig) -> None:
    done = rig("run", "local:2", "--", "sh", "-c", "echo hello $RANK; echo oops >&2")
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert sorted(lines) == ["[0] hello 0", "[0] oops", "[1] hello 1", "[1] oops"]
    assert last.startswith("sh-1: 2 ranks succeeded after ")
    assert last.endswith("; logs in .marin/rig/jobs/sh-1/attempts/1")
    assert rig("logs", "sh-1", "--rank", "1").stdout == "hello 1\noops\n"
    assert rig("logs", "sh-1").stdout == "[0] hello 0\n[0] oops\n[1] hello 1\n[1] oops\n"
    (record,) = json.loads(rig("jobs", "--json").stdout)
    assert (record["id"], record["state"]) == ("sh-1", "succeeded")
    assert rig("jobs").stdout.splitlines()[1].split()[:3] == ["sh-1", "succeeded", "2"]


def test_a_lost_rank_is_exit_1_and_says_which_and_how(rig: Rig) -> None:
    done = rig("run", "local:3", "--", "sh", "-c", '[ "$RANK" != 2 ] || kill -9 $$; exec sleep 1000')
    assert done.returncode == 1
    assert done.stdout.startswith("sh-1: rank 2 was killed by SIGKILL after ")


def test_a_declared_job_runs_on_its_pool_or_another(tmp_path: Path, rig: Rig) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    own = rig("run", "fleet.yaml", "--json")
    assert own.returncode == 0
    assert json.loads(own.stdout)["num_ranks"] == 2
    other = rig("run", "fleet.yaml", "--job", "hello", "--pool", "three", "--name", "again")
    *lines, last = other.stdout.splitlines()
    assert sorted(lines) == [f"[{r}] hello {r} of 3" for r in range(3)]
    assert last.startswith("again-1: 3 ranks succeeded")


def test_a_command_on_a_pool_of_a_fleet(tmp_path: Path, rig: Rig) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    done = rig("run", "fleet.yaml", "--pool", "three", "--quiet", "--prefix", "there", "--", "true")
    assert done.returncode == 0
    assert done.stdout.startswith("true-1: 3 ranks succeeded")
    assert (tmp_path / "there" / "rig" / "jobs" / "true-1" / "job.json").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda v: str(v)
)
def test_a_signal_stops_the_ranks(
    tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone, number: signal.Signals, code: int
) -> None:
    path, read = mailbox
    script = f"trap 'echo saved; exit 0' TERM; echo $RANK $$ > {path}; while :; do sleep 1000 & wait; done"
    command = [sys.executable, "-c", CODE, "run", "local:2", "--prefix", str(tmp_path), "--", "sh", "-c", script]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = [int(words[1]) for words in read(2)]
    driver.send_signal(number)
    output, errors = driver.communicate()
    assert (driver.returncode, errors) == (code, "")
    assert output.splitlines()[-1].startswith("sh-1: 2 ranks stopped after ")
    assert all(wait_gone(pid) for pid in pids)
    assert [(tmp_path / f"rig/jobs/sh-1/attempts/1/rank-{r}.log").read_text() for r in (0, 1)] == ["saved\n"] * 2


def test_a_killed_rig_leaves_no_rank_and_a_lost_job(
    tmp_path: Path, rig: Rig, mailbox: Mailbox, wait_gone: WaitGone
) -> None:
    path, read = mailbox
    script = f"trap '' TERM; echo $RANK $$ > {path}; sleep 1000"
    command = [sys.executable, "-c", CODE, "run", "local:4", "--prefix", str(tmp_path / ".marin"), "--"]
    driver = subprocess.Popen([*command, "sh", "-c", script])
    pids = [int(words[1]) for words in read(4)]
    driver.kill()
    driver.wait()
    assert all(wait_gone(pid) for pid in pids)
    (record,) = json.loads(rig("jobs", "--json").stdout)
    assert record["state"] == "lost"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("catalog", "v5p-48"), "accelerator type 'v5p-48' does not exist; the nearest are v5p-32 and v5p-64"),
        (("catalog", "--", "true"), "a command after -- is for rig run alone: 'true'"),
        (("run", "local:0", "--", "true"), "SPEC='local:0' must be local:N with N from 1 to 9999"),
        (("run", "absent.yaml", "--", "true"), "absent.yaml: cannot be read: No such file or directory"),
        (("run", "local"), "no command is given; name a program after --"),
        (("run", "local", "--", "no-such-program"), "program 'no-such-program' is not there"),
        (("run", "fleet.yaml", "--", "true"), "the fleet has 2 pools (two, three); say which with --pool"),
        (("run", "fleet.yaml", "--job", "absent"), "job 'absent' is not in the fleet; it has hello"),
        (("run", "fleet.yaml", "--job", "hello", "--", "true"), "--job hello and a command after -- are both given"),
        (("run", "local", "--name", "Not a Name", "--", "true"), "name='Not a Name' must be"),
        (("run", "local", "--prefix", "s3://bucket", "--", "true"), "prefix='s3://bucket' is not a directory"),
        (("run", "local", "--prefix", "fleet.yaml", "--", "true"), "prefix 'fleet.yaml' cannot be written"),
        (("logs", "absent-1"), "job 'absent-1' is not on record"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(tmp_path: Path, rig: Rig, args: tuple[str, ...], message: str) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    done = rig(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rig: {message}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("args", [(), ("run",), ("run", "local", "--ranks", "4"), ("dance",)])
def test_wrong_usage_is_exit_2_without_a_traceback(rig: Rig, args: tuple[str, ...]) -> None:
    done = rig(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["catalog", "run", "logs", "jobs"])
def test_help_shows_an_example(rig: Rig, command: str) -> None:
    done = rig(command, "--help")
    assert done.returncode == 0
    assert f"Example: rig {command}" in done.stdout


def test_a_full_disk_is_one_line_and_exit_1() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", CODE, "catalog"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "rig: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "catalog", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
