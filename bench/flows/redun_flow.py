"""The same wide graph in redun: n - 1 independent tasks that each write one file, and one that joins them.

    $MARIN_BENCH_PEERS/wf/bin/python bench/flows/redun_flow.py 1000 /tmp/somewhere

Thread executor, records in SQLite. One line of JSON, cold and again; measures are ``[wall seconds, CPU seconds]``.
"""

import json
import logging
import sys
import time
from pathlib import Path

from redun import Scheduler, task  # type: ignore[import-not-found]
from redun.config import Config  # type: ignore[import-not-found]

NUM_STEPS, DIRECTORY = int(sys.argv[1]), Path(sys.argv[2])


@task(namespace="bench")
def leaf(i: int) -> int:
    (DIRECTORY / "out" / f"{i}.txt").write_text(str(i))
    return i


@task(namespace="bench")
def join(values: list) -> int:
    return len(values)


@task(namespace="bench")
def wide(n: int) -> int:
    return join([leaf(i) for i in range(n - 1)])


def run() -> list[float]:
    """One run by a scheduler of its own, as a new process would have."""
    scheduler = Scheduler(
        config=Config(
            {
                "backend": {"db_uri": f"sqlite:///{DIRECTORY / 'redun.db'}"},
                "executors.default": {"type": "local", "max_workers": 2},
            }
        )
    )
    scheduler.load()
    wall, cpu = time.perf_counter(), time.process_time()
    assert scheduler.run(wide(NUM_STEPS)) == NUM_STEPS - 1
    return [time.perf_counter() - wall, time.process_time() - cpu]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    (DIRECTORY / "out").mkdir(parents=True)
    print(json.dumps({"cold": run(), "rerun": run()}))
