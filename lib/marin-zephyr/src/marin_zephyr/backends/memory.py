"""Memory: how much a run may use, and how much a process holds.

A run has one budget, for the driver and its workers together. What counts is memory of a process's own: pages of files
that it has mapped (libraries, inputs) can be dropped at any time and are nobody's burden. The kernel keeps the count,
so reading it from outside costs some microseconds and needs no help from a process that may be stuck in native code.

See: proc(5), ``/proc/PID/statm``; the kernel's "Control Group v2", ``memory.max``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from marin_zephyr.errors import UsageError

MIB = 1 << 20
WORKER_LEAST = 176 * MIB
"""What a worker needs for any work on ordinary rows: its libraries, a block of input, some copies of a batch, the row
group that a part holds back."""
DRIVER_LEAST = 64 * MIB
"""What the driver's own process needs beside them."""

_DEFAULT_PERCENT = 80
_MERGE_SHARE = 6
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_UNITS["TI"] = 1 << 40
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?")
_CGROUPS = Path("/sys/fs/cgroup")


def parse_memory(value: str | int) -> int:
    """Bytes from a number of bytes or a text with a unit: ``4GiB``, ``500 MB``, ``2G``.

    Raises:
        UsageError: neither, or not more than nothing.
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and (found := _AMOUNT.fullmatch(value.strip().upper())) and found[2] in _UNITS:
        number = int(float(found[1]) * _UNITS[found[2]])
    if number is None or number <= 0:
        raise UsageError(f'memory={value!r} is no amount of memory; write "4GiB", "500MB", or a number of bytes')
    return number


def default_budget() -> int:
    """Bytes that a run may use if nobody says: 80% of what this process may still get."""
    return max(DRIVER_LEAST + WORKER_LEAST, min([_machine_memory(), *_group_limits()]) * _DEFAULT_PERCENT // 100)


def num_workers_within(memory: int) -> int:
    """How many workers a budget holds, its driver beside them; 0 if it is too small for one."""
    return max(0, memory - DRIVER_LEAST) // WORKER_LEAST


def merge_memory(ceiling: int) -> int:
    """What a task under a ceiling may hold in external merges; the rest is for batches, copies and libraries."""
    return ceiling // _MERGE_SHARE


class Gauge:
    """The memory that a process holds as its own.

    Where the operating system has no ``/proc``, `read` is always 0.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    @property
    def works(self) -> bool:
        """Whether there is anything to read."""
        return self._descriptor >= 0

    def read(self) -> int:
        """Bytes now; 0 if the process is gone."""
        if self._descriptor < 0:
            return 0
        try:
            resident, shared = os.pread(self._descriptor, 100, 0).split()[1:3]
        except (OSError, ValueError):
            return 0
        return (int(resident) - int(shared)) * _PAGE

    def close(self) -> None:
        """Lets go of the process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _machine_memory() -> int:
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * _PAGE


def _group_limits() -> list[int]:
    """The limits of the control groups that this process is in, and of those around them."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        place = root / path.lstrip("/")
        # In a container the group's path is often the host's, and the limit stands at the root.
        for directory in (place, *place.parents):
            if directory.is_relative_to(root):
                limits += _limit(directory / name)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # no such group here, or "max"
        return []
