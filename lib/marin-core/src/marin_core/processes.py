"""Processes as records name them: a pid means something on one host, between two boots, until it is used again.

`this_host` therefore holds the boot and the pid namespace beside the host's name, and a `Process` the tick at which it
started.
"""

import functools
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

_DEATH = 10.0
"""Seconds to wait for a killed process to be gone."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process: pid, and the tick at which it started (0 where the system does not tell)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this pid now."""
        return cls(pid=pid, started=_own_tick(pid) if pid == os.getpid() else _start_tick(pid) or 0)

    def alive(self) -> bool:
        """True while this very process, not a later one of the same pid, exists on this host."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return not self.started or _start_tick(self.pid) == self.started


@functools.cache
def this_host() -> str:
    """This machine since its last boot, and this pid namespace of it: where a pid means the same process."""
    parts = [socket.gethostname()]
    for source in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        try:
            parts.append(source())
        except OSError:
            parts.append("")
    return ":".join(parts)


def kill_group(body: Process) -> None:
    """Kills a process group that another driver left running, and waits until its leader is gone. A pid alone may be
    another's by now, so without a start tick nothing is done."""
    deadline = time.monotonic() + _DEATH
    while body.started and body.alive() and time.monotonic() < deadline:
        try:
            os.killpg(body.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.005)


@functools.cache
def _own_tick(pid: int) -> int:
    """The tick at which this very process started, which it asks for at every lease."""
    return _start_tick(pid) or 0


def _start_tick(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; the command in field 2 may hold spaces and parentheses. None for a zombie as well."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as f:  # noqa: PTH123  at every start of a body
            fields = f.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])
