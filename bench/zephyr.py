"""Datasets: what zephyr costs beside a hand-written minimum, engines of expressions, and other frameworks.

    uv run bench/zephyr.py            400 MB in 32 files, three rounds: some minutes
    uv run bench/zephyr.py --quick    50 MB, one round
    MARIN_BENCH_PEERS=~/peers uv run bench/zephyr.py     beside the peers, whose environments are made by

    uv venv -p 3.12 ~/peers/m312 && uv pip install -p ~/peers/m312/bin/python --prerelease=allow marin-core \\
        marin-zephyr marin-rigging marin-levanter marin-haliax marin-fray marin-iris marin-dupekit duckdb
    uv venv -p 3.12 ~/peers/dt && uv pip install -p ~/peers/dt/bin/python 'datatrove[processing,io]' 'xxhash<4' orjson
    uv venv -p 3.12 ~/peers/ray && uv pip install -p ~/peers/ray/bin/python 'ray[data]'

The corpus is made by `flows/corpus.py` (``--corpus DIR`` keeps one for later runs). Everything runs on two workers or
two threads. How rows are measured: `flows/rounds.py`; a ratio says how many times longer another takes than we do.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from flows.rounds import Job, Peer, Results, Row, measure, show

FLOWS = Path(__file__).parent / "flows"
TASKS = ("map", "group", "distinct")
LARGE = ("map", "sort", "distinct", "group", "reduce", "join")
EXPRESSIONS = ("map-expr", "group-expr")
TITLES = {"map": "count words, filter, parquet", "group": "count by domain", "distinct": "exact duplicates, parquet"}


def command(python: str | Path, flow: str, *arguments: object) -> list[str]:
    return [str(python), str(FLOWS / f"{flow}.py"), *map(str, arguments)]


def our_jobs(corpus: Path, small: Path, scratch: Path, *, megabytes: int) -> dict[str, Job]:
    """What is measured of marin-zephyr."""

    def flow(task: str, source: Path, *options: str, name: str = "") -> Job:
        return lambda k: command(sys.executable, "zephyr_flow", task, source, scratch / f"{name or task}-{k}", *options)

    def large(task: str) -> Job:
        limit = ("--memory", "512MiB", "--megabytes", megabytes)
        return lambda k: command(
            sys.executable, "memory_flow", task, scratch / "large", scratch / f"large-{task}-{k}", *limit
        )

    jobs = {task: flow(task, corpus) for task in (*TASKS, *EXPRESSIONS)}
    return {
        **jobs,
        "map, one worker": flow("map", corpus, "--workers", "1", name="map-one"),
        "tiny": flow("tiny", small),
        "sort": flow("sort", corpus, "--memory", "1GiB"),
        "crash": flow("crash", corpus),
        "fuzzy": flow("fuzzy", corpus),
        "fuzzy, small": flow("fuzzy", small, name="fuzzy-small"),
        "signatures": flow("signatures", small),
        **{f"large {task}": large(task) for task in LARGE},
    }


def our_rows() -> dict[str, list[Row]]:
    """The table of marin-zephyr, by heading."""
    keyed = []
    for task in TASKS:
        keyed += [
            Row(TITLES[task] + ("" if task == "distinct" else ", functions"), task, "seconds"),
            Row("  with the start of the workers", task, "started"),
            Row("  peak memory", task, "memory_mb", "MB"),
        ]
        if f"{task}-expr" in EXPRESSIONS:
            keyed.append(Row("  the same, expressions", f"{task}-expr", "seconds"))
    beyond = [Row(task, f"large {task}", "memory_mb", "MB", budget=537 * 1.1) for task in LARGE]
    return {
        "zephyr": keyed,
        "peak memory within 512 MiB, 2 GB of input (200 MB if quick)": beyond,
        "zephyr alone": [
            Row("count words on one worker", "map, one worker", "seconds", against=Row("", "map", "seconds")),
            Row("1,000 tiny shards", "tiny", "tiny", "ms/shard", 1000, budget=3),
            Row("  the same, nothing to do", "tiny", "rerun", "ms/shard", 1000),
            Row("sort by text within 1 GiB", "sort", "seconds"),
            Row("  peak memory", "sort", "memory_mb", "MB", budget=1074 * 1.1),
            Row("near-duplicates of 50 MB", "fuzzy, small", "seconds"),
            Row("near-duplicates of all", "fuzzy", "seconds"),
            Row("  peak memory", "fuzzy", "memory_mb", "MB", budget=2000),
            Row("signatures on one core", "signatures", "documents_per_second", "docs/s"),
            Row("duplicates, killed in the last stage: the rerun", "crash", "after_crash"),
            Row("  the last stage of a whole run", "crash", "last_stage"),
        ],
    }


def floor(corpus: Path, scratch: Path) -> Peer:
    """Plain Python on two processes: what no framework can avoid."""
    jobs: dict[str, Job] = {
        f"plain {task}": lambda k, task=task: command(
            sys.executable, "plain_flow", task, corpus, scratch / f"plain-{task}-{k}"
        )
        for task in TASKS
    }
    rows = [Row(TITLES[t], f"plain {t}", "seconds", against=Row("", t, "started")) for t in TASKS]
    return Peer("plain Python, two processes", Path(sys.executable), jobs, rows)


def engine(name: str, python: Path, corpus: Path, scratch: Path) -> Peer:
    """An engine of expressions on two threads."""

    def flow(task: str) -> Job:
        out = scratch / f"{name}-{task}"
        return lambda k: ["env", "POLARS_MAX_THREADS=2", *command(python, "sql_flow", name, task, corpus, f"{out}-{k}")]

    ours = {"map": "map-expr", "group": "group-expr", "distinct": "distinct"}
    jobs = {f"{name} {task}": flow(task) for task in TASKS}
    rows = [Row(TITLES[t], f"{name} {t}", "seconds", against=Row("", ours[t], "seconds")) for t in TASKS]
    return Peer(name, python, jobs, rows)


def marin_peer(where: Path, corpus: Path, small: Path, scratch: Path, *, slow: bool) -> Peer:
    """The existing Marin's zephyr on threads; on a process a shard, and its MinHash, where there is time."""
    python = where / "m312/bin/python"

    def flow(task: str, source: Path, *options: str) -> Job:
        out = scratch / "-".join(("marin", task, *options))
        return lambda k: command(python, "zephyr_peer_flow", task, source, f"{out}-{k}", *options)

    jobs = {f"marin {task}": flow(task, corpus) for task in TASKS}
    rows = [Row(TITLES[t], f"marin {t}", "seconds", against=Row("", t, "started")) for t in TASKS]
    if slow:
        jobs |= {f"marin {task}, processes": flow(task, corpus, "--subprocess") for task in TASKS}
        jobs["marin fuzzy"] = flow("fuzzy", small)
        rows += [
            Row(f"{TITLES[t]}, a process a shard", f"marin {t}, processes", "seconds", against=Row("", t, "started"))
            for t in TASKS
        ]
        rows.append(
            Row("near-duplicates of 50 MB", "marin fuzzy", "seconds", against=Row("", "fuzzy, small", "seconds"))
        )
    return Peer("Marin's zephyr", python, jobs, rows)


def other_peers(where: Path, corpus: Path, scratch: Path) -> list[Peer]:
    """Ray Data, and what datatrove can express."""
    ray, datatrove = where / "ray/bin/python", where / "dt/bin/python"
    ray_jobs: dict[str, Job] = {
        f"ray {task}": lambda k, task=task: command(ray, "ray_data_flow", task, corpus, scratch / f"ray-{task}-{k}")
        for task in TASKS
    }
    ray_rows = [Row(TITLES[t], f"ray {t}", "seconds", against=Row("", t, "started")) for t in TASKS]
    trove_jobs: dict[str, Job] = {
        "datatrove map": lambda k: command(datatrove, "datatrove_flow", "map", corpus, scratch / f"trove-{k}")
    }
    trove_rows = [Row(TITLES["map"], "datatrove map", "seconds", against=Row("", "map", "started"))]
    return [Peer("Ray Data", ray, ray_jobs, ray_rows), Peer("datatrove", datatrove, trove_jobs, trove_rows)]


ONCE = frozenset(
    {
        *(f"large {task}" for task in LARGE),
        "crash",
        "fuzzy",
        "marin fuzzy",
        *(f"marin {task}, processes" for task in TASKS),
    }
)
"""Jobs of the first round alone: they take long."""


def make_corpus(where: Path, megabytes: int, shards: int) -> Path:
    """A corpus in ``where``, made unless it lies there."""
    if not list(where.glob("*.jsonl.gz")):
        subprocess.run(
            command(sys.executable, "corpus", where, "--megabytes", megabytes, "--shards", shards),
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 MB, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 if quick")
    parser.add_argument("--corpus", type=Path, help="where the corpora are, or are made and kept")
    parser.add_argument("--only", help="jobs whose name holds this")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 3)
    where = Path(os.environ.get("MARIN_BENCH_PEERS") or "/nonexistent").expanduser()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="marin-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        home = options.corpus or scratch
        small = make_corpus(home / "small", 50, 4)
        corpus = small if options.quick else make_corpus(home / "large", 400, 32)
        duckdb = where / "m312/bin/python"
        peers = [
            floor(corpus, scratch),
            engine("polars", Path(sys.executable), corpus, scratch),
            engine("duckdb", duckdb, corpus, scratch),
            marin_peer(where, corpus, small, scratch, slow=not options.quick),
            *other_peers(where, corpus, scratch),
        ]
        there = [peer for peer in peers if peer.program.exists()]
        jobs = our_jobs(corpus, small, scratch, megabytes=200 if options.quick else 2000)
        for peer in there:
            jobs |= peer.jobs
        if options.only:
            jobs = {name: job for name, job in jobs.items() if options.only in name}
        measure(results, jobs, rounds=rounds, once=ONCE)
    show(results, our_rows() | {peer.name: peer.rows for peer in there})
    if absent := [peer.name for peer in peers if peer not in there]:
        print(f"without {', '.join(absent)}: `bench/zephyr.py --help` says how to make their environments")


if __name__ == "__main__":
    main()
