"""The keeper: a small process that stands between a driver and one rank, so that nothing outlives either.

Started by `marin_rigging.providers.local` as a script (standard library only: it must start fast and need nothing),
in a session and process group of its own, with one end of a socket pair, the lifeline. It starts the rank's command in
the same group, reports how it ended, and then ends everything the command left behind.

Invariant: when the keeper has ended, so has every process the command ever started:

- The driver dies, even by SIGKILL: the lifeline reads as closed, and the keeper kills all its descendants.
- The command ends: descendants it left behind, also those that moved to a session of their own, are killed.
- The keeper itself is killed: the kernel kills the command (parent-death signal), and the driver the group. Here
  alone a process can be missed: one that had moved to a session of its own.

The keeper finds escaped descendants because it is their subreaper: orphans become its children (Linux; elsewhere those
that stay in the group are found by the group). SIGTERM to the group is for the command alone; the keeper ignores it.

See: prctl(2) for PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG; the idea of a lifeline is s6's and runit's supervision.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FOR_THE_COMMAND = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Requests to end that go to the whole group: the command answers them, the keeper stays to see it end."""


def main(lifeline: int, command: list[str]) -> int:
    """Run ``command`` to its end or to the lifeline's; returns the keeper's exit status."""
    os.set_inheritable(lifeline, False)
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    pid = _start(command)
    _report(lifeline, {"pid": pid})
    returncode = _wait(pid, lifeline, wakeup)
    if returncode is not None:
        _report(lifeline, {"returncode": returncode, "ended": time.monotonic()})
    _sweep()
    return 0


def _start(command: list[str]) -> int:
    """Fork and execute. The child dies with the keeper, and no request to end, whenever it comes, is lost on it."""
    keeper = os.getpid()
    # Held back over the fork: until then the keeper has no one to pass a request to, after it the child has its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_COMMAND)
    pid = os.fork()
    if pid == 0:
        _execute(command, keeper)
    for number in signal.sigpending() & FOR_THE_COMMAND:
        os.kill(pid, number)
    for number in FOR_THE_COMMAND:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_COMMAND)
    return pid


def _execute(command: list[str], keeper: int) -> NoReturn:
    """Become the command, with a process's usual signals."""
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above could bind the two
            os._exit(1)
        for number in (*FOR_THE_COMMAND, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_COMMAND)
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(2, f"rig: {command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(127)


def _wait(pid: int, lifeline: int, wakeup: int) -> int | None:
    """The command's return code, or None if the driver went first. Orphans that end meanwhile are reaped."""
    while True:
        ready, _, _ = select.select([lifeline, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            while (done := _reap()) is not None:
                if done[0] == pid:
                    return os.waitstatus_to_exitcode(done[1])
        if lifeline in ready and _closed(lifeline):
            return None


def _closed(lifeline: int) -> bool:
    try:
        return not os.read(lifeline, 1)
    except ConnectionResetError:  # the driver died before it read all that was reported
        return True


def _reap() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _sweep() -> None:
    """Kill every descendant, generation by generation: orphans of the killed become children and are next."""
    if sys.platform != "linux":
        os.killpg(0, signal.SIGKILL)
    while True:
        for pid in _children():
            with contextlib.suppress(PermissionError):  # a set-user-id program; the wait below is for its own end
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    me = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # After the command's name in parentheses, which may hold anything: state, then parent.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                found.append(int(entry.name))
    return found


def _report(lifeline: int, message: dict[str, float]) -> None:
    try:
        os.write(lifeline, json.dumps(message).encode() + b"\n")
    except OSError:  # the driver is gone; the closed lifeline says so, too
        return


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
