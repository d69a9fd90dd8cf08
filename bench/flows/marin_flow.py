"""The same graphs in the existing Marin's executor, whose steps run as threads of the driver.

    $MARIN_BENCH_PEERS/m312/bin/python bench/flows/marin_flow.py wide 1000 --prefix /tmp/somewhere --slots 256

One line of JSON: lowering, a cold run and a second one; measures are ``[wall seconds, CPU seconds]``.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("shape", choices=["wide", "layers", "chain"])
parser.add_argument("n", type=int)
parser.add_argument("--prefix", required=True)
parser.add_argument("--slots", type=int, default=8, help="8 is its default")
parser.add_argument("--lower-only", action="store_true")
options = parser.parse_args()
os.environ["MARIN_PREFIX"] = options.prefix

from marin.execution.artifact import Artifact  # type: ignore[import-not-found]  # noqa: E402
from marin.execution.lazy import ArtifactStep, lower, run  # type: ignore[import-not-found]  # noqa: E402


def body(config: dict[str, Any]) -> None:
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "value.txt").write_text(str(config["i"]))


def step(i: int, sources: Sequence[Any] = ()) -> Any:
    """One step that depends on others."""

    def configure(context: Any) -> dict[str, Any]:
        return {"i": i, "out": context.output_path, "sources": [context.artifact_path(s) for s in sources]}

    return ArtifactStep(
        name=f"bench/step{i:06d}",
        version="2026.01.01",
        artifact_type=Artifact,
        run=body,
        deps=tuple(sources),
        build_config=configure,
    )


def build(shape: str, n: int) -> Any:
    """The graphs of `graphs.py`."""
    if shape == "wide":
        return step(n - 1, [step(i) for i in range(n - 1)])
    if shape == "chain":
        last = step(0)
        for i in range(1, n):
            last = step(i, [last])
        return last
    width = (n - 1) // 10
    row = [step(i) for i in range(width)]
    for depth in range(1, 10):
        row = [step(depth * width + j, [row[j], row[(j + 1) % width]]) for j in range(width)]
    return step(10 * width, row)


def timed(call: Callable[[], Any]) -> list[float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return [time.perf_counter() - wall, time.process_time() - cpu]


def again() -> None:
    run(build(options.shape, options.n), max_concurrent=options.slots)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    Path(options.prefix).mkdir(parents=True, exist_ok=True)
    measures = {"lower": timed(lambda: lower(build(options.shape, options.n)))}
    if not options.lower_only:
        measures |= {"cold": timed(again), "rerun": timed(again)}
    print(json.dumps(measures))
