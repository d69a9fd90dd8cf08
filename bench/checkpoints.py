"""Checkpoints of a model of 47M parameters, against raw Orbax: what the step waits for, what a save and a restore take.

    uv run bench/checkpoints.py            parameters with both moments of Adam, 563 MB, and parameters alone, 188 MB
    uv run bench/checkpoints.py --rounds 9

Saves are interleaved, each to an empty directory, both flushed to the disk file by file: *blocked* is what the training
thread waits, *save* the whole. The peer is Orbax's StandardCheckpointer as its documentation shows it. A restore runs
in a process of its own, and its row is the peak of resident memory above that of a process that has everything but the
state, over the state's size.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from marin_train.certificates import Leaf
from marin_train.checkpoints.arrays import check_leaves, load_leaves, save_leaves, shares
from marin_train.checkpoints.snapshots import Snapshots
from marin_train.durability import flush

WIDTH, LAYERS, VOCAB, INNER = 512, 12, 16384, 1408
SHAPES = {
    "embed": (VOCAB, WIDTH),
    "qkv": (LAYERS, WIDTH, 3 * WIDTH),
    "out": (LAYERS, WIDTH, WIDTH),
    "gate": (LAYERS, WIDTH, INNER),
    "up": (LAYERS, WIDTH, INNER),
    "down": (LAYERS, INNER, WIDTH),
    "norm": (LAYERS, WIDTH),
}
CADENCE_S = 300.0


def place() -> jax.sharding.NamedSharding:
    """Whole on the first device, as on a mesh of one."""
    return jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec())


def state_shapes(copies: int) -> dict[str, jax.ShapeDtypeStruct]:
    """One copy of the parameters, or three: with Adam's moments."""
    where = place()
    return {
        f"model.{copy}.{name}": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
        for copy in range(copies)
        for name, shape in SHAPES.items()
    }


def draw_state(copies: int) -> dict[str, jax.Array]:
    """Random leaves, which do not compress."""
    shapes = state_shapes(copies)
    return {name: jax.random.normal(jax.random.key(i), leaf.shape) for i, (name, leaf) in enumerate(shapes.items())}


def flush_all(directory: Path) -> None:
    """Every file and directory on the disk."""
    for path in (*directory.rglob("*"), directory):
        flush(path)


def save_part(path: Path, leaves: dict[str, jax.Array]) -> None:
    """Arrays and digests, at the same time."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        digests = beside.submit(shares, leaves)
        save_leaves(path, leaves)
        digests.result()


def measure_saves(state: dict[str, jax.Array], rounds: int) -> dict[str, list[float]]:
    """Seconds by row, all rows in every round."""
    snapshots = Snapshots()
    seconds: dict[str, list[float]] = {}
    snapshots.prepare(state)

    def timed[T](row: str, job: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = job()
        seconds.setdefault(row, []).append(time.perf_counter() - start)
        return result

    def orbax(path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, state)
            checkpointer.wait_until_finished()
        flush_all(path)

    def ours(path: Path) -> None:
        snapshot = timed("marin-train blocked", lambda: jax.block_until_ready(snapshots.take(state)))
        save_part(path, snapshot)
        flush_all(path)

    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(rounds):
            for row, job in (("orbax save", orbax), ("marin-train save", ours)):
                path = Path(scratch).resolve() / "checkpoint"
                timed(row, lambda job=job, path=path: job(path))
                shutil.rmtree(path)
    return seconds


def resident(field: str) -> float:
    """MB of this process, by the kernel's account."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def restore(path: Path, copies: int) -> None:
    """The child's part: reads and checks the state, prints its seconds and peak."""
    wanted = state_shapes(copies)
    jax.block_until_ready(jnp.zeros(4) + 1)
    small = path.with_name("small")
    load_leaves(small, {"model.small": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=place())})
    before, start = resident("VmRSS"), time.perf_counter()
    leaves = jax.block_until_ready(load_leaves(path, wanted))
    recorded = json.loads(path.with_name("digests.json").read_text())
    claims = {name: Leaf(dtype="float32", shape=leaf.shape, digest=recorded[name]) for name, leaf in wanted.items()}
    check_leaves(leaves, claims, part="state")
    seconds, size = time.perf_counter() - start, sum(leaf.nbytes for leaf in leaves.values()) / 1e6
    print(json.dumps({"seconds": seconds, "peak": (resident("VmHWM") - before) / size}))


def measure_restore(state: dict[str, jax.Array], copies: int) -> dict[str, float]:
    """Seconds and peak of a restore in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch).resolve() / "checkpoint"
        save_leaves(path, state)
        save_leaves(path.with_name("small"), {"model.small": jnp.zeros(4)})
        path.with_name("digests.json").write_text(json.dumps({n: f"{s:016x}" for n, s in shares(state).items()}))
        command = [sys.executable, __file__, "--restore", str(path), "--copies", str(copies)]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restore", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--copies", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.restore:
        restore(arguments.restore, arguments.copies)
        return
    for title, copies in (("parameters and moments", 3), ("parameters alone", 1)):
        state = draw_state(copies)
        print(f"{title}: {sum(leaf.nbytes for leaf in state.values()) / 1e6:.0f} MB")
        seconds = measure_saves(state, arguments.rounds)
        base = statistics.median(seconds["orbax save"])
        for row, values in seconds.items():
            median = statistics.median(values)
            print(f"  {row:22} {median:7.3f} s  ({min(values):.3f} to {max(values):.3f})  {median / base:5.2f}x")
        blocked = statistics.median(seconds["marin-train blocked"])
        print(f"  of a step's time, saving every {CADENCE_S:.0f} s: {100 * blocked / CADENCE_S:.3f} % blocked")
        found = measure_restore(state, copies)
        print(f"  restore and check      {found['seconds']:7.3f} s  peak {found['peak']:.2f}x the state")


if __name__ == "__main__":
    main()
