"""Descendants: the processes that a process has started, and those that they have, whatever session they are in.

A step's output is what it was when the step ended, so nobody may go on writing to it. A process group is not enough to
tell who might: ``start_new_session=True`` leaves it. Linux only: elsewhere only the group is ended.
"""

import contextlib
import os
import signal
import sys


def kill_own(pid: int) -> None:
    """Kills what this process has started, until nothing is left, and reaps it. It must adopt orphans (see `residue`).

    Args:
        pid: of the process that is meant; one that it has forked does nothing here.
    """
    if os.getpid() != pid:
        return
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises without children
            killed = kill_descendants(pid)
            if not killed:
                return
            for child in killed:
                with contextlib.suppress(ChildProcessError):  # a grandchild, until its parent is gone
                    os.waitpid(child, 0)


def kill_descendants(pid: int) -> list[int]:
    """Kills what a process has started; one that is stopped cannot start more meanwhile.

    Returns:
        Those that got the signal.
    """
    if not sys.platform.startswith("linux"):
        return []
    killed: list[int] = []
    while new := [child for child in _below(pid) if child not in killed and _kill(child)]:
        killed += new
    return killed


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _below(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb", buffering=0) as f:  # noqa: PTH123
                parents[int(name)] = int(f.read().rpartition(b")")[2].split()[1])
    found: set[int] = set()
    newest = {pid}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest} - found
        found |= newest
    return found
