"""The keeper by itself, at the other end of a lifeline held by the test."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marin_rigging.providers.members import KEEPER

Mailbox = tuple[Path, Callable[[int], list[list[str]]]]
WaitGone = Callable[[int], bool]


@pytest.fixture
def lifelines() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def keep(theirs: socket.socket, script: str, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(KEEPER), str(theirs.fileno()), "/bin/sh", "-c", script]
    keeper = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True, preexec_fn=before)
    theirs.close()
    return keeper


def reports(ours: socket.socket) -> list[dict[str, float]]:
    with ours.makefile("rb") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.parametrize(("script", "returncode"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_the_end_of_the_command_is_reported(
    lifelines: tuple[socket.socket, socket.socket], script: str, returncode: int
) -> None:
    ours, theirs = lifelines
    keeper = keep(theirs, script)
    started, ended = reports(ours)
    assert started["pid"] > 0
    assert ended["returncode"] == returncode
    assert keeper.wait() == 0


def test_a_request_to_end_that_came_before_the_command_reaches_it(
    lifelines: tuple[socket.socket, socket.socket],
) -> None:
    def request() -> None:
        # Blocked, a signal stays pending over the execution of the keeper, whose interpreter takes a while to start.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getpid(), signal.SIGTERM)

    ours, theirs = lifelines
    keep(theirs, "exec sleep 1000", request).wait()
    assert reports(ours)[-1]["returncode"] == -signal.SIGTERM


def test_a_closed_lifeline_ends_the_command_whatever_it_ignores(
    lifelines: tuple[socket.socket, socket.socket], mailbox: Mailbox, wait_gone: WaitGone
) -> None:
    ours, theirs = lifelines
    path, read = mailbox
    keeper = keep(theirs, f"trap '' TERM HUP INT; setsid sleep 1000 & echo $$ $! > {path}; wait")
    (pids,) = read(1)
    ours.shutdown(socket.SHUT_WR)
    assert all(wait_gone(int(pid)) for pid in pids)
    assert keeper.wait() == 0


def test_a_killed_keeper_takes_the_command_along(
    lifelines: tuple[socket.socket, socket.socket], mailbox: Mailbox, wait_gone: WaitGone
) -> None:
    _, theirs = lifelines
    path, read = mailbox
    keeper = keep(theirs, f"echo $$ > {path}; exec sleep 1000")
    ((pid,),) = read(1)
    keeper.kill()
    keeper.wait()
    assert wait_gone(int(pid))
