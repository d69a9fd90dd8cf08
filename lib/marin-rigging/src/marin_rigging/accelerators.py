"""Accelerators: which machine types exist, how many hosts each one is, and what a chip of it can do.

A type's name is a family and a number, and the number means something else in each family: TensorCores (two a chip) for
v4, v5p and tpu7x, chips for v5litepod and v6e, devices for GPUs. Here the number is parsed once, and everything after
it speaks of chips and VMs. One VM runs one rank.

Invariant: a name that `parse` accepts is a type that can be asked for; anything else is refused with the nearest types
that can. Speeds are dense bf16 peaks a chip as the vendors print them, memory likewise.

See: https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e, /tpu7x; NVIDIA and AMD data sheets.
"""

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from marin_rigging.errors import AcceleratorError

GIB, GB = 2**30, 10**9

_CUBE = 4
"""Chips along one edge of the block from which large 3-D slices are built."""
_TORUS_EDGE_MAX = 256
"""Chips along the longest edge of a 3-D slice: published v5p types stop there (4x4x244 is one, 4x4x268 is not)."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the types of one generation share.

    Attributes:
        name: prefix of every type's name.
        kind: what it is.
        unit: what the number in a type's name counts.
        sizes: numbers that exist; for GPUs those of one VM.
        chips_per_vm: chips of a VM in a slice of several VMs.
        single_vm_max: most chips that one VM holds by itself.
        bf16_tflops: dense bf16 peak of a chip, TFLOP/s; None where it is the machine's own.
        memory_bytes: memory of a chip; None where it is the machine's own.
        torus: dimensions of the interconnect, or None.
        service: the interface that provides it: the Cloud TPU API, GKE alone, any VM provider, or this machine.
        runtime_image: runtime version that the Cloud TPU API wants for it.
    """

    name: str
    kind: Literal["tpu", "gpu", "cpu"]
    unit: Literal["cores", "chips", "devices", "hosts"]
    sizes: tuple[int, ...]
    chips_per_vm: int
    single_vm_max: int
    bf16_tflops: float | None
    memory_bytes: int | None
    torus: Literal[2, 3] | None = None
    service: Literal["cloud-tpu", "gke", "vm", "local"] = "vm"
    runtime_image: str | None = None

    @property
    def cores_per_chip(self) -> int:
        """TensorCores a chip where names count cores, else one name unit a chip."""
        return 2 if self.unit == "cores" else 1


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One type that can be asked for, such as ``v5p-64``.

    Attributes:
        name: canonical name.
        family: what it shares with its generation.
        num_chips: chips (GPUs: devices) in all.
        num_vms: virtual machines, hence ranks.
        topology: chips along each dimension of the interconnect, such as ``2x4x4``; None where there is none.
    """

    name: str
    family: Family
    num_chips: int
    num_vms: int
    topology: str | None

    @property
    def chips_per_vm(self) -> int:
        """Chips that one rank drives."""
        return self.num_chips // self.num_vms

    @property
    def bf16_tflops(self) -> float | None:
        """Dense bf16 peak of the whole type, TFLOP/s."""
        peak = self.family.bf16_tflops
        return None if peak is None else peak * self.num_chips

    @property
    def memory_bytes(self) -> int | None:
        """Accelerator memory of the whole type."""
        memory = self.family.memory_bytes
        return None if memory is None else memory * self.num_chips


def _box(cubes: int) -> tuple[int, int, int] | None:
    """Edges, in cubes, of the most compact box of ``cubes`` cubes, or None if every box is too long."""
    boxes = (
        (a, b, cubes // (a * b))
        for a in range(1, math.isqrt(cubes) + 1)
        if cubes % a == 0
        for b in range(a, math.isqrt(cubes // a) + 1)
        if cubes % (a * b) == 0
    )
    box = min(boxes, key=sum)
    return box if box[2] * _CUBE <= _TORUS_EDGE_MAX else None


def _torus_cores(cubes_max: int) -> tuple[int, ...]:
    """Sizes, in cores, of 3-D slices: parts of a cube in powers of two, then whole cubes."""
    cube_cores = 2 * _CUBE**3
    return (8, 16, 32, 64, *(n * cube_cores for n in range(1, cubes_max + 1) if _box(n)))


def _tpu(
    name: str, tflops: float, gib: int, *, sizes: tuple[int, ...], image: str | None, torus: Literal[2, 3]
) -> Family:
    return Family(
        name=name,
        kind="tpu",
        unit="cores" if torus == 3 else "chips",
        sizes=sizes,
        chips_per_vm=4,
        single_vm_max=4 if torus == 3 else 8,
        bf16_tflops=tflops,
        memory_bytes=gib * GIB,
        torus=torus,
        service="cloud-tpu" if image else "gke",
        runtime_image=image,
    )


def _gpu(name: str, tflops: float, gb: int, *, per_vm: int = 8) -> Family:
    sizes = tuple(n for n in (1, 2, 4, 8) if n <= per_vm)
    return Family(
        name=name,
        kind="gpu",
        unit="devices",
        sizes=sizes,
        chips_per_vm=per_vm,
        single_vm_max=per_vm,
        bf16_tflops=tflops,
        memory_bytes=gb * GB,
    )


_V4_SIZES = (8, 16, 32, 64, 128, 256, 384, 512, 1024, 1536, 2048, 4096)
_FLAT_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _tpu("v4", 275, 32, sizes=_V4_SIZES, image="tpu-ubuntu2204-base", torus=3),
        _tpu("v5litepod", 197, 16, sizes=_FLAT_SIZES, image="v2-alpha-tpuv5-lite", torus=2),
        _tpu("v5p", 459, 95, sizes=_torus_cores(96), image="v2-alpha-tpuv5", torus=3),
        _tpu("v6e", 918, 32, sizes=_FLAT_SIZES, image="v2-alpha-tpuv6e", torus=2),
        # A pod is 9,216 chips; slices are taken to be built from cubes as v5p's are. The Cloud TPU API lacks it.
        _tpu("tpu7x", 2307, 192, sizes=_torus_cores(9216 // _CUBE**3), image=None, torus=3),
        _gpu("a100-40gb", 312, 40),
        _gpu("a100-80gb", 312, 80),
        _gpu("l4", 121, 24),
        _gpu("l40s", 362, 48),
        _gpu("h100", 989.5, 80),
        _gpu("h200", 989.5, 141),
        _gpu("b200", 2250, 180),
        _gpu("gb200", 2500, 186, per_vm=4),
        _gpu("mi300x", 1307, 192),
        Family(
            name="cpu",
            kind="cpu",
            unit="hosts",
            sizes=(1,),
            chips_per_vm=1,
            single_vm_max=1,
            bf16_tflops=None,
            memory_bytes=None,
            service="local",
        ),
    )
}

_ALIASES = {"v5e": "v5litepod", "ironwood": "tpu7x"}


def parse(name: str) -> Accelerator:
    """The type of that name.

    Args:
        name: ``v5p-64``, ``v6e-8``, ``h100-16`` (two VMs of eight), ``cpu``; case does not matter, ``v5e`` is
            ``v5litepod``.

    Returns:
        The type.

    Raises:
        AcceleratorError: no such family, or no such size in it; the message names the nearest.
    """
    text = name.strip().lower()
    if text == "cpu":
        return _make(FAMILIES["cpu"], 1)
    match = re.fullmatch(r"(?P<family>.+)-(?P<size>\d+)", text)
    family = FAMILIES.get(_canonical(match["family"] if match else text))
    if family is None or family.kind == "cpu":
        raise AcceleratorError(f"accelerator type {name!r} is unknown{_suggest(match['family'] if match else text)}")
    if match is None:
        raise AcceleratorError(
            f"accelerator type {name!r} lacks a size: write {family.name}-N, N counting {family.unit}, "
            f"such as {family.name}-{family.sizes[-1] if family.kind == 'gpu' else 8}"
        )
    size = int(match["size"])
    if not _exists(family, size):
        raise AcceleratorError(f"accelerator type {name!r} does not exist; {_nearest(family, size)}")
    return _make(family, size)


def catalog(type: str | None = None) -> tuple[Accelerator, ...]:
    """Types that can be asked for.

    Args:
        type: a family (``v5p``: all its sizes; for GPUs those of one VM), a full name (``v5p-64``: that one), or
            None for everything.

    Returns:
        The types, families in the order of `FAMILIES`, sizes ascending.

    Raises:
        AcceleratorError: there is no such type.
    """
    if type is None:
        families = list(FAMILIES.values())
    elif family := FAMILIES.get(_canonical(type.strip().lower())):
        families = [family]
    else:
        return (parse(type),)
    return tuple(_make(family, size) for family in families for size in family.sizes)


def _make(family: Family, size: int) -> Accelerator:
    num_chips = size // family.cores_per_chip
    return Accelerator(
        name="cpu" if family.kind == "cpu" else f"{family.name}-{size}",
        family=family,
        num_chips=num_chips,
        num_vms=1 if num_chips <= family.single_vm_max else num_chips // family.chips_per_vm,
        topology=_topology(family, num_chips),
    )


def _topology(family: Family, num_chips: int) -> str | None:
    if family.torus is None:
        return None
    if family.torus == 2:
        short = 2 ** (int(math.log2(num_chips)) // 2)
        return f"{short}x{num_chips // short}"
    parts = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)}
    edges = parts.get(num_chips) or tuple(_CUBE * edge for edge in _box(num_chips // _CUBE**3) or ())
    return "x".join(map(str, edges))


def _exists(family: Family, size: int) -> bool:
    whole_vms = family.kind == "gpu" and size > 0 and size % family.chips_per_vm == 0
    return size in family.sizes or whole_vms


def _nearest(family: Family, size: int) -> str:
    """The types just below and above an impossible size, as a phrase."""

    def candidates() -> Iterator[int]:
        yield from family.sizes
        if family.kind == "gpu":
            vms = max(1, size // family.chips_per_vm)
            yield from (vms * family.chips_per_vm, (vms + 1) * family.chips_per_vm)

    sizes = sorted(set(candidates()))
    below = [n for n in sizes if n < size][-1:]
    above = [n for n in sizes if n > size][:1]
    names = [f"{family.name}-{n}" for n in below + above]
    return f"the nearest {'is' if len(names) == 1 else 'are'} {' and '.join(names)}"


def _canonical(family: str) -> str:
    return _ALIASES.get(family, family)


def _suggest(family: str) -> str:
    close = difflib.get_close_matches(family, [*FAMILIES, *_ALIASES], n=1)
    return f"; did you mean {_canonical(close[0])!r}?" if close else f"; families are {', '.join(FAMILIES)}"
