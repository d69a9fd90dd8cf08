"""Peak memory of a process and all its descendants, sampled from a thread: the sum of their proportional set sizes."""

import threading
from pathlib import Path
from types import TracebackType

SECONDS = 0.05


class Sampler:
    """Samples while it is entered; ``peak`` is in bytes, 0 where the system does not tell.

    ``own_peak`` leaves out pages of files, which the kernel may drop at any time.
    """

    def __init__(self, pid: int) -> None:
        self.peak = self.own_peak = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SECONDS):
            held = [proportional_bytes(pid) for pid in family(self._pid)]
            self.peak = max(self.peak, sum(all_of_it for all_of_it, _ in held))
            self.own_peak = max(self.own_peak, sum(own for _, own in held))


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found


def proportional_bytes(pid: int) -> tuple[int, int]:
    """What a process holds, shared pages divided among those who share them; and how much of it is no file's."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return sizes["Pss:"], sizes.get("Pss_Anon:", sizes["Pss:"])
