"""Gangs of real processes: fate sharing, stopping, and that nothing outlives a gang or its driver."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_rigging.errors import CommandError
from marin_rigging.providers import local

Mailbox = tuple[Path, Callable[[int], list[list[str]]]]
WaitGone = Callable[[int], bool]


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def start(script: str, tmp_path: Path, *, ranks: int = 2, grace_s: float = 30.0) -> local.LocalGang:
    return local.start(sh(script), job="test-1", num_ranks=ranks, log_dir=tmp_path, grace_s=grace_s)


def test_four_ranks_succeed_with_a_log_each_in_the_order_of_writing(tmp_path: Path) -> None:
    script = "for i in 1 2 3; do echo out $RANK $i; echo err $RANK $i >&2; done"
    with start(script, tmp_path, ranks=4) as gang:
        ended = gang.wait()
    assert (ended.state, [e.returncode for e in ended.exits]) == ("succeeded", [0, 0, 0, 0])
    for rank, log in enumerate(gang.logs):
        expected = [f"{stream} {rank} {i}" for i in (1, 2, 3) for stream in ("out", "err")]
        assert log.read_text().splitlines() == expected


def test_ranks_know_their_place_and_share_a_coordinator(tmp_path: Path) -> None:
    script = (
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $MARIN_ATTEMPT $JAX_PROCESS_ID $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS"
    )
    with local.start(sh(script), job="a-1", num_ranks=3, log_dir=tmp_path, attempt=7) as gang:
        assert gang.wait().ok
    words = [log.read_text().split() for log in gang.logs]
    assert [w[:6] for w in words] == [[str(r), "3", str(r), "7", str(r), "3"] for r in range(3)]
    (address,) = {w[6] for w in words}
    host, port = address.split(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_a_rank_has_a_session_of_its_own_and_only_the_usual_descriptors(tmp_path: Path) -> None:
    code = "import os; print(os.getsid(0), os.getpgid(0), *sorted(os.listdir('/proc/self/fd'), key=int)[:-1])"
    with local.start([sys.executable, "-c", code], job="a-1", num_ranks=2, log_dir=tmp_path) as gang:
        assert gang.wait().ok
    words = [log.read_text().split() for log in gang.logs]
    sessions = {w[0] for w in words}
    assert len(sessions) == 2
    assert str(os.getsid(0)) not in sessions
    for session, group, *descriptors in words:
        assert session == group
        assert descriptors == ["0", "1", "2"]


def test_a_rank_starts_with_no_signal_blocked_or_ignored(tmp_path: Path) -> None:
    command = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]
    with local.start(command, job="a-1", num_ranks=1, log_dir=tmp_path) as gang:
        assert gang.wait().ok
    assert {line.split()[1] for line in gang.logs[0].read_text().splitlines()} == {"0" * 16}


@pytest.mark.parametrize("victim", [0, 2])
def test_one_rank_killed_ends_all(tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone, victim: int) -> None:
    path, read = mailbox
    with start(f"sleep 1000 & echo $RANK $$ $! > {path}; wait", tmp_path, ranks=4) as gang:
        pids = [int(pid) for words in read(4) for pid in words[1:]]
        os.kill(gang.pids[victim], signal.SIGKILL)
        ended = gang.wait()
    assert all(wait_gone(pid) for pid in pids)
    assert ended.state == "failed"
    assert ended.first_failure is not None
    assert (ended.first_failure.rank, ended.first_failure.returncode) == (victim, -signal.SIGKILL)
    assert {e.rank: e.cause for e in ended.exits} == {r: "own" if r == victim else "gang" for r in range(4)}


def test_a_status_other_than_zero_ends_all(tmp_path: Path) -> None:
    with start('if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 1000', tmp_path, ranks=3) as gang:
        ended = gang.wait()
    assert ended.describe().startswith("rank 1 exited with 7 after ")
    assert ended.describe().endswith("; ended with it: 0, 2")


def test_a_rank_that_is_done_waits_for_the_others(tmp_path: Path, mailbox: Mailbox) -> None:
    path, read = mailbox
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with start(f'[ "$RANK" = 0 ] || {{ echo waits > {path}; read line < {gate}; }}', tmp_path) as gang:
        read(1)
        assert gang.poll() is None
        gate.write_text("go\n")
        assert gang.wait().ok


def test_the_first_failure_is_the_first_even_if_the_driver_looks_late(
    tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone
) -> None:
    path, read = mailbox
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f'echo $RANK $PPID > {path}; [ "$RANK" = 1 ] && exit 3; read line < {gate}; exit 5'
    with start(script, tmp_path) as gang:
        keepers = [int(words[1]) for words in read(2)]
        assert wait_gone(keepers[1])
        gate.write_text("go\n")
        assert wait_gone(keepers[0])
        ended = gang.wait()  # the first look: both reports lie there, and rank 0's comes first in order
    assert [(e.returncode, e.cause) for e in ended.exits] == [(5, "own"), (3, "own")]
    assert ended.first_failure == ended.exits[1]


def test_a_stop_lets_ranks_finish_what_they_do(tmp_path: Path, mailbox: Mailbox) -> None:
    path, read = mailbox
    script = f"trap 'echo saved; exit 0' TERM; echo $RANK > {path}; while :; do sleep 1000 & wait; done"
    with start(script, tmp_path) as gang:
        read(2)
        ended = gang.stop()
    assert (ended.state, ended.first_failure) == ("stopped", None)
    assert [(e.returncode, e.cause) for e in ended.exits] == [(0, "gang"), (0, "gang")]
    assert [log.read_text() for log in gang.logs] == ["saved\n", "saved\n"]


def test_a_stop_straight_after_the_start_is_not_lost(tmp_path: Path) -> None:
    # With a grace of half a minute, a lost request to end would show as SIGKILL, and as a timeout.
    with start("exec sleep 1000", tmp_path, ranks=4) as gang:
        ended = gang.stop()
    assert {e.returncode for e in ended.exits} == {-signal.SIGTERM}


def test_a_rank_that_ignores_the_request_is_killed_by_its_keeper(
    tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SWEEP_S", 1e6)
    path, read = mailbox
    with start(f"trap '' TERM; echo $RANK $$ > {path}; exec sleep 1000", tmp_path, grace_s=0.1) as gang:
        pids = [int(words[1]) for words in read(2)]
        ended = gang.stop()
    assert [e.returncode for e in ended.exits] == [-signal.SIGKILL, -signal.SIGKILL]
    assert all(wait_gone(pid) for pid in pids)


def test_a_suspended_rank_and_a_suspended_keeper_are_killed(
    tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SWEEP_S", 0.1)
    path, read = mailbox
    with start(f"echo $RANK $$ $PPID > {path}; exec sleep 1000", tmp_path, grace_s=0.1) as gang:
        (_, rank, _), (_, other, keeper) = read(2)
        os.kill(int(rank), signal.SIGSTOP)
        os.kill(int(keeper), signal.SIGSTOP)
        assert gang.stop().state == "stopped"
    assert all(wait_gone(int(pid)) for pid in (rank, other))


def test_what_a_rank_leaves_behind_is_ended_with_it(tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone) -> None:
    path, read = mailbox
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # One stays in the group, one moves to a session of its own and ignores all it can.
    escape = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {path}; exec sleep 1000'"
    with start(f"sleep 1000 & echo $! > {path}; {escape} & read line < {gate}", tmp_path, ranks=1) as gang:
        pids = [int(words[0]) for words in read(2)]
        gate.write_text("go\n")
        assert gang.wait().ok
    assert all(wait_gone(pid) for pid in pids)


def test_an_error_in_the_driver_leaves_nothing_behind(tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone) -> None:
    path, read = mailbox
    pids: list[int] = []

    def drive() -> None:
        with start(f"echo $RANK $$ > {path}; exec sleep 1000", tmp_path):
            pids.extend(int(words[1]) for words in read(2))
            raise LookupError

    with pytest.raises(LookupError):
        drive()
    assert len(pids) == 2
    assert all(wait_gone(pid) for pid in pids)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "not yet waiting"])
def test_a_killed_driver_takes_its_ranks_along(
    tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone, waits: bool
) -> None:
    path, read = mailbox
    script = f"trap '' TERM HUP; setsid sleep 1000 & echo $RANK $$ $! > {path}; wait"
    # A driver that never looked at its gang dies with reports unread, which closes the lifeline in another way.
    code = (
        "import signal, sys; from pathlib import Path; from marin_rigging.providers import local\n"
        f"gang = local.start(['/bin/sh', '-c', sys.argv[1]], job='a-1', num_ranks=2, log_dir=Path({str(tmp_path)!r}))\n"
        f"gang.wait() if {waits} else signal.pause()"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, script])
    pids = [int(pid) for words in read(2) for pid in words[1:]]
    driver.kill()
    driver.wait()
    assert all(wait_gone(pid) for pid in pids)


def test_a_killed_keeper_is_a_lost_rank(tmp_path: Path, mailbox: Mailbox, wait_gone: WaitGone) -> None:
    path, read = mailbox
    with start(f"sleep 1000 & echo $RANK $$ $! $PPID > {path}; wait", tmp_path) as gang:
        words = read(2)
        os.kill(int(words[1][3]), signal.SIGKILL)
        ended = gang.wait()
    assert all(wait_gone(int(pid)) for w in words for pid in w[1:])
    assert ended.first_failure is not None
    assert (ended.first_failure.rank, ended.first_failure.returncode) == (1, -signal.SIGKILL)


def test_a_program_that_cannot_run_is_a_lost_rank_and_says_so_in_its_log(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    with local.start([str(program)], job="a-1", num_ranks=1, log_dir=tmp_path) as gang:
        ended = gang.wait()
    assert [e.returncode for e in ended.exits] == [127]
    assert gang.logs[0].read_text() == f"rig: {program} cannot be started: No such file or directory\n"


def test_a_command_runs_where_it_is_told_and_with_what_it_is_given(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tool = place / "tool"
    tool.write_text("#!/bin/sh\npwd -P; echo $GREETING $1\n")
    tool.chmod(0o755)
    env = {"GREETING": "hello", "PATH": f"{place}:{os.environ['PATH']}"}
    for program in ("tool", "./tool"):
        log_dir = tmp_path / program.strip("./")
        log_dir.mkdir(exist_ok=True)
        command = [program, "you there"]
        with local.start(command, job="a-1", num_ranks=1, log_dir=log_dir, env=env, cwd=place) as gang:
            assert gang.wait().ok
        assert gang.logs[0].read_text().splitlines()[-2:] == [str(place.resolve()), "hello you there"]


@pytest.mark.parametrize(
    ("command", "cwd", "ranks", "grace_s", "message"),
    [
        ([], None, 1, 1.0, "command is empty"),
        (["no-such-program"], None, 1, 1.0, "program 'no-such-program' is not there"),
        (["./no-such-program"], None, 1, 1.0, "program './no-such-program' is not there"),
        (["/"], None, 1, 1.0, "program '/' is not there or cannot be executed"),
        (["true"], "no-such-directory", 1, 1.0, "cwd='no-such-directory' is not a directory"),
        (["true"], None, 0, 1.0, "num_ranks=0 must be at least 1"),
        (["true"], None, 1, float("nan"), "grace_s=nan must be a finite number"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is(
    tmp_path: Path, command: list[str], cwd: str | None, ranks: int, grace_s: float, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        local.start(command, job="a-1", num_ranks=ranks, log_dir=tmp_path, cwd=cwd, grace_s=grace_s)
    assert list(tmp_path.iterdir()) == []
