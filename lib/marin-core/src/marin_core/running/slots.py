"""Slots: what this machine has for bodies, and which of the ready steps may start on what is free.

Cores, main memory and accelerators are counted apart. A step takes what its `Resources` say: of cores and memory at
most all there is (it then runs alone), of accelerators exactly what it names. A device is never shared: a body that
asks for GPUs sees its own through ``CUDA_VISIBLE_DEVICES`` and no other.

Order: longest path first. When the first step in line does not fit, a later one may start beside it, but only if the
first would still fit next to it once all that ran before has ended (EASY backfilling, Lifka 1995, without run times).
So a step that waits for much waits for the bodies it found running, and never for one that came after.
"""

import heapq
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from marin_core.errors import UsageError
from marin_core.graph import Node
from marin_core.steps import Resources

CPUS, MEMORY = "cpus", "memory_bytes"
_MILLI = 1000
"""Cores are counted in thousandths, so that ten tenths are one."""
_ACCELERATORS = re.compile(r"(?P<kind>[A-Za-z][\w.-]*?)(?:[:-](?P<count>\d+))?")
_TPU = re.compile(r"tpu.*|v\d+\w*")

Demand = tuple[tuple[str, int], ...]
"""What a step takes: pairs of kind and count, sorted."""
Priority = tuple[int, int]


def accelerators_of(resources: Resources) -> tuple[str, int] | None:
    """Kind and count of the accelerators a step asks for: ``h100:8`` is eight of ``h100``, ``tpu-v5p-8`` eight of
    ``tpu-v5p``, ``gpu`` one of ``gpu``.

    Raises:
        UsageError: the text is of no such form.
    """
    if resources.accelerators is None:
        return None
    match = _ACCELERATORS.fullmatch(resources.accelerators)
    if match is None or match["count"] == "0":
        raise UsageError(f"accelerators={resources.accelerators!r}: write kind:count, as 'h100:8' or 'tpu-v5p-8'")
    return match["kind"].lower(), int(match["count"] or 1)


def parse_slots(texts: Iterable[str]) -> dict[str, int]:
    """``gpu=2`` as on a command line.

    Raises:
        UsageError: a text is of another form.
    """
    slots: dict[str, int] = {}
    for text in texts:
        kind, _, count = text.partition("=")
        if not kind or not count.isdecimal():
            raise UsageError(f"--slots {text}: write kind=count, as gpu=2")
        slots[kind.lower()] = int(count)
    return slots


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is of each kind. ``devices`` are the ids that ``CUDA_VISIBLE_DEVICES`` knows a kind's slots by."""

    counts: Mapping[str, int]
    devices: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    aliases: Mapping[str, str] = MappingProxyType({})
    """Another name of a kind: a machine's GPUs are ``gpu`` and, where the driver tells the model, ``h100`` too."""
    bounded: bool = True
    """False where the launcher places bodies itself: then cores alone are counted."""

    def demand(self, resources: Resources) -> Demand:
        """What a step takes here.

        Raises:
            UsageError: it asks for accelerators that are not here.
        """
        taken = {CPUS: min(round(resources.cpus * _MILLI), self.counts[CPUS])}
        if self.bounded and resources.memory_bytes is not None:
            taken[MEMORY] = min(resources.memory_bytes, self.counts[MEMORY])
        asked = accelerators_of(resources)
        if self.bounded and asked is not None:
            kind, count = self.aliases.get(asked[0], asked[0]), asked[1]
            if count > self.counts.get(kind, 0):
                raise UsageError(
                    f"it asks for accelerators={resources.accelerators!r}, and {self._there_is(kind)}; give --slots "
                    f"{asked[0]}={count} if there are, or a launcher that places bodies on other machines"
                )
            taken[kind] = count
        return tuple(sorted(taken.items()))

    def _there_is(self, kind: str) -> str:
        count = self.counts.get(kind, 0)
        return f"this runner has {count} of {kind}" if count else f"this runner has no {kind}"


def capacity(max_workers: int, *, slots: Mapping[str, int] | None = None, bounded: bool = True) -> Capacity:
    """What this machine has.

    Args:
        max_workers: cores to fill.
        slots: accelerators by kind, in the order of their devices, in place of what can be detected; ``memory_bytes``
            in place of the machine's.
        bounded: see `Capacity`.

    Raises:
        UsageError: a count is negative, or cores are among the slots.
    """
    for kind, count in (slots or {}).items():
        if kind == CPUS:
            raise UsageError(f"slots: cpus={count} is what max_workers says; leave it out")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"slots: {kind}={count!r} must be a whole number, 0 or more")
    given = {kind.lower(): count for kind, count in (slots or {}).items()}
    memory = given.pop(MEMORY, None) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    counts = {CPUS: max_workers * _MILLI, MEMORY: memory}
    visible = _visible_gpus()
    if given:
        ids = iter((*visible, *map(str, range(len(visible), sum(given.values())))))
        devices = {kind: tuple(next(ids) for _ in range(n)) for kind, n in given.items() if not _TPU.fullmatch(kind)}
        return Capacity(counts=counts | given, devices=devices, bounded=bounded)
    aliases = dict.fromkeys(_gpu_models(), "gpu")
    return Capacity(counts=counts | {"gpu": len(visible)}, devices={"gpu": visible}, aliases=aliases, bounded=bounded)


def _visible_gpus() -> tuple[str, ...]:
    """The GPUs that a process started here would see: what ``CUDA_VISIBLE_DEVICES`` leaves, or every device file."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is not None:
        return tuple(part.strip() for part in said.split(",") if part.strip() not in ("", "-1", "NoDevFiles"))
    try:
        count = sum(re.fullmatch(r"nvidia\d+", p.name) is not None for p in Path("/dev").iterdir())
    except OSError:
        return ()
    return tuple(map(str, range(count)))


def _gpu_models() -> set[str]:
    """``h100`` where the driver says ``NVIDIA H100 80GB HBM3``; nothing on a machine of two models."""
    models: set[str] = set()
    for information in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        try:
            model = re.search(r"Model:\s*(?:NVIDIA |Tesla )*([\w-]+)", information.read_text(encoding="utf-8"))
        except OSError:
            continue
        models.add(model[1].lower().partition("-")[0] if model else "")
    return models if len(models) == 1 and "" not in models else set()


class Slots:
    """Ready steps in order of priority, and what is free for them."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._free = dict(capacity.counts)
        self._devices = {kind: list(ids) for kind, ids in capacity.devices.items()}
        self._demands: dict[str, Demand] = {}
        self._ready: dict[Demand, list[tuple[Priority, str]]] = {}
        self._held: dict[str, dict[str, list[str]]] = {}
        self._first: str | None = None
        """The first in line, while it does not fit."""
        self._behind: dict[str, Demand] = {}
        """What started beside the first in line since it came to be that."""

    def __bool__(self) -> bool:
        return bool(self._ready)

    def enter(self, node: Node) -> None:
        """Works out what a step takes.

        Raises:
            UsageError: it asks for accelerators that are not here; names the step.
        """
        try:
            self._demands[node.address] = self.capacity.demand(node.step.resources)
        except UsageError as e:
            raise UsageError(f"step {node.name}: {e}") from None

    def push(self, address: str, *, priority: Priority) -> None:
        """Puts a step that has been entered in line; the least priority is the first."""
        heapq.heappush(self._ready.setdefault(self._demands[address], []), (priority, address))

    def pop(self) -> str | None:
        """The next step that may start, out of the line; None while nothing may. It takes nothing yet."""
        line = sorted((heap[0], demand) for demand, heap in self._ready.items())
        if not line:
            return None
        (_, first), demand = line[0]
        if self._is_free(demand):
            self._first, self._behind = None, {}
            return self._out_of_line(demand)
        if first != self._first:
            self._first, self._behind = first, {}
        for _, later in line[1:]:
            if self._is_free(later) and self._leaves_room(demand, later):
                return self._out_of_line(later)
        return None

    def _out_of_line(self, demand: Demand) -> str:
        heap = self._ready[demand]
        address = heapq.heappop(heap)[1]
        if not heap:
            del self._ready[demand]
        return address

    def _leaves_room(self, first: Demand, later: Demand) -> bool:
        needed: dict[str, int] = {}
        for demand in (first, later, *self._behind.values()):
            for kind, count in demand:
                needed[kind] = needed.get(kind, 0) + count
        return all(needed[kind] <= self.capacity.counts[kind] for kind, _ in later)

    def fits(self, address: str) -> bool:
        """Whether what a step takes is free."""
        return self._is_free(self._demands[address])

    def _is_free(self, demand: Demand) -> bool:
        return all(count <= self._free[kind] for kind, count in demand)

    def take(self, address: str) -> dict[str, str]:
        """Takes a step's slots; returns the environment variables that show its body the devices it got."""
        demand = self._demands[address]
        held: dict[str, list[str]] = {}
        for kind, count in demand:
            self._free[kind] -= count
            if kind in self._devices:
                held[kind], self._devices[kind] = self._devices[kind][:count], self._devices[kind][count:]
        self._held[address] = held
        if self._first is not None:
            self._behind[address] = demand
        shown = [device for devices in held.values() for device in devices]
        return {"CUDA_VISIBLE_DEVICES": ",".join(shown)} if held else {}

    def give_back(self, address: str) -> None:
        """A step's body has ended."""
        held = self._held.pop(address)
        self._behind.pop(address, None)
        for kind, count in self._demands[address]:
            self._free[kind] += count
        for kind, devices in held.items():
            self._devices[kind] = sorted(self._devices[kind] + devices, key=self.capacity.devices[kind].index)
