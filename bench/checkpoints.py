"""Checkpoints of a model of 47M parameters, against raw Orbax: what the step waits for, what a save and a restore take.

    uv run bench/checkpoints.py            parameters with both moments of Adam, 563 MB, and parameters alone, 188 MB
    uv run bench/checkpoints.py --rounds 9
    MARIN_BENCH_PEERS=~/peers uv run bench/checkpoints.py          beside Levanter (in m312/, see bench/train.py)

Saves are interleaved, each to an empty directory, all flushed to the disk file by file: *blocked* is what the training
thread waits, *save* the whole. Peers are Orbax's StandardCheckpointer as its documentation shows it, and Levanter's
`save_checkpoint`, which writes no digests. A restore runs in a process of its own, and its row is the peak of resident
memory above that of a process that has everything but the state, over the state's size.
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
from flows.checkpoint_state import draw_state, flush_all, place, state_shapes
from flows.children import Child, peers_directory

from marin_train.certificates import Leaf
from marin_train.checkpoints.arrays import check_leaves, load_leaves, save_leaves, shares
from marin_train.checkpoints.snapshots import Snapshots

CADENCE_S = 300.0


def save_part(path: Path, leaves: dict[str, jax.Array]) -> None:
    """Arrays and digests, at the same time."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        digests = beside.submit(shares, leaves)
        save_leaves(path, leaves)
        digests.result()


def measure_saves(state: dict[str, jax.Array], rounds: int, *, levanter: Child | None) -> dict[str, list[float]]:
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
            if levanter is not None:
                path = Path(scratch).resolve() / "checkpoint"
                seconds.setdefault("Levanter save", []).append(levanter.ask(path)["seconds"])
                shutil.rmtree(path)
    return seconds


def start_levanter(copies: int) -> Child | None:
    """Its writer, holding equal state; None where its environment is not there."""
    program = peers_directory() / "m312" / "bin" / "python"
    if not program.exists():
        return None
    child = Child.start([str(program), "checkpoints_levanter.py", str(copies)])
    child.listen()
    return child


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
        levanter = start_levanter(copies)
        seconds = measure_saves(state, arguments.rounds, levanter=levanter)
        if levanter is not None:
            levanter.close()
            levanter.wait()
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
