"""What marin-core takes for one job on a graph of trivial steps; a fresh process a job, one line of JSON.

    python bench/flows/core_flow.py lower  layers 10000
    python bench/flows/core_flow.py cold   wide 1000 --prefix /tmp/x --launcher process
    python bench/flows/core_flow.py rerun  layers 10000 --prefix /tmp/x       of what `cold` has made there
    python bench/flows/core_flow.py far    layers 10000 --prefix /tmp/x       the same, every operation 50 ms away
    python bench/flows/core_flow.py s3     wide 1000 --prefix /tmp/x          the same in moto's S3, 50 ms away
    python bench/flows/core_flow.py serve  layers 10000 --prefix /tmp/x       the newest run's page, from a new server
    python bench/flows/core_flow.py page   layers 10000 --prefix /tmp/x --html /tmp/page.html
    python bench/flows/core_flow.py read   diamonds 30                        lower, plan, graph and explain

Each measure is ``[wall seconds, CPU seconds of this process]``; ``memory_mb`` is the peak of resident memory.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import graphs  # type: ignore[import-not-found]  it lies beside this script

from marin_core import Graph, StepRunner, lower
from marin_core.reasons import Options, flatten, plan
from marin_core.records import RunRecord, from_json
from marin_core.store import open_store

Measures = dict[str, Any]
_PAGE = 1000
"""Keys that an object store lists in one answer."""


class FarStore:
    """A store whose every operation takes 50 ms more, as one across a network does. It shows no local path, so nothing
    gets around it; a lister waits once for each thousand names, an upload once a file."""

    local: Path | None = None

    def __init__(self, store: Any, *, latency_s: float = 0.05) -> None:
        self._store, self._latency_s = store, latency_s
        self._lock = threading.Lock()
        self.num_operations = 0

    def __getattr__(self, name: str) -> Any:
        """The operation of the store behind, after a wait; what is no operation as it is."""
        found = getattr(self._store, name)
        if not callable(found) or name in ("child", "error"):
            return found

        def far(*args: Any, **keywords: Any) -> Any:
            self._wait(len(list(Path(args[0]).rglob("*"))) if name == "upload" else 1)
            result = found(*args, **keywords)
            if name in ("names", "tree", "find") and not isinstance(result, Iterator):
                self._wait(len(result) // _PAGE)
            return result

        return far

    def find(self, name: str) -> Iterator[str]:
        """Keys as they come, a page at a time."""
        for page in itertools.batched(self._store.find(name), _PAGE):
            self._wait(1)
            yield from page

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Generator[None]:
        """The lock, after a wait."""
        self._wait(1)
        with self._store.exclusive(key):
            yield

    def _wait(self, operations: int) -> None:
        with self._lock:
            self.num_operations += operations
        time.sleep(operations * self._latency_s)


def timed[T](call: Callable[[], T]) -> tuple[T, list[float]]:
    """A result, and the wall and CPU seconds that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, [time.perf_counter() - wall, time.process_time() - cpu]


def lowered(shape: graphs.Shape, n: int) -> tuple[Graph, Measures]:
    """The graph, and what calling the steps and lowering them took."""
    handles, called = timed(lambda: graphs.build(shape=shape, n=n))
    graph, took = timed(lambda: lower(handles))
    return graph, {"lower": [a + b for a, b in zip(called, took, strict=True)], "steps": len(graph)}


def cold(graph: Graph, options: argparse.Namespace) -> Measures:
    """A run of everything."""
    runner = StepRunner(options.prefix, launcher=options.launcher, max_workers=options.workers)
    report, took = timed(lambda: runner.run(graph))
    assert len(report.executed) == len(graph), report.record.status
    return {"cold": took}


def rerun(graph: Graph, options: argparse.Namespace) -> Measures:
    """A plan and a run where nothing is to be done."""
    planned, plan_took = timed(lambda: plan(graph, open_store(options.prefix), options=Options()))
    assert all(p.decision == "reuse" for p in planned)
    runner = StepRunner(options.prefix, launcher="inline")
    report, took = timed(lambda: runner.run(graph))
    assert {n.outcome for n in report.record.nodes} == {"reused"}
    return {"plan": plan_took, "rerun": took}


def far(graph: Graph, options: argparse.Namespace) -> Measures:
    """`rerun` with the store 50 ms away."""
    store: Any = FarStore(open_store(options.prefix))
    planned, plan_took = timed(lambda: plan(graph, store, options=Options()))
    assert all(p.decision == "reuse" for p in planned)
    again: Any = FarStore(open_store(options.prefix))
    runner = StepRunner(options.prefix, launcher="inline")
    runner.store = again
    report, took = timed(lambda: runner.run(graph))
    assert {n.outcome for n in report.record.nodes} == {"reused"}
    return {"plan": plan_took, "rerun": took, "operations": [store.num_operations, again.num_operations]}


def s3(graph: Graph, options: argparse.Namespace) -> Measures:
    """`rerun` on an S3 server whose answers are 50 ms late."""
    command = [sys.executable, str(Path(__file__).with_name("object_store.py")), options.prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        os.environ["AWS_REGION"] = "us-east-1"
        try:
            return rerun(graph, argparse.Namespace(prefix="s3://bench"))
        finally:
            server.stdin.close()


def serve(_graph: Graph, options: argparse.Namespace) -> Measures:
    """The first page that a new server is asked for: that of the newest run."""
    newest = max(Path(options.prefix, "runs").glob("*.json")).stem
    command = [sys.executable, "-m", "marin_core.cli", "serve", "--prefix", options.prefix, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said, started = timed(server.stdout.readline)
            url = f"{json.loads(said)['url']}runs/{newest}"
            text, took = timed(lambda: urllib.request.urlopen(url, timeout=60).read())
        finally:
            server.terminate()
    return {"started": [started[0], None], "served": [took[0], None], "served_mb": len(text) / 1e6}


def page(_graph: Graph, options: argparse.Namespace) -> Measures:
    """The page of the newest run, from its record to a file."""
    from marin_core.report import write_report

    newest = max(Path(options.prefix, "runs").glob("*.json"))
    record, read = timed(lambda: from_json(RunRecord, newest.read_bytes(), where=str(newest)))
    _path, took = timed(lambda: write_report(record, options.prefix, options.html))
    return {"read": read, "page": took, "html_mb": Path(options.html).stat().st_size / 1e6}


def read(graph: Graph, options: argparse.Namespace) -> Measures:
    """What ``document_packing``, ``graph`` and ``explain`` show of a graph that was never run."""

    def everything() -> int:
        planned = plan(graph, open_store(options.prefix), options=Options())
        return len(planned) + len(graph.edges) + sum(len(flatten(n.recipe)) for n in graph.nodes.values())

    _, took = timed(everything)
    return {"read": took}


def memory_mb() -> float:
    """Peak resident memory of this program (``ru_maxrss`` would count what its parent had at the fork)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = {
        "lower": None,
        "cold": cold,
        "rerun": rerun,
        "far": far,
        "s3": s3,
        "serve": serve,
        "page": page,
        "read": read,
    }
    parser.add_argument("job", choices=jobs)
    parser.add_argument("shape", choices=["wide", "layers", "chain", "diamonds"])
    parser.add_argument("n", type=int)
    parser.add_argument("--prefix", default="/nonexistent")
    parser.add_argument("--launcher", default="inline")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--html")
    options = parser.parse_args()
    job = jobs[options.job]
    graph, measures = lowered(options.shape, options.n)
    measures |= job(graph, options) if job is not None else {}
    print(json.dumps(measures | {"memory_mb": memory_mb()}))


if __name__ == "__main__":
    main()
