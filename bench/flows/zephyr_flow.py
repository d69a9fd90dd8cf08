"""Zephyr's own measurements: each task prints one line of JSON, measures in seconds as ``[wall, CPU]``.

    python bench/flows/zephyr_flow.py map CORPUS OUT [--workers 2] [--backend process] [--memory 512MiB]

- ``map``, ``group``             with functions of rows, as the peers have them
- ``map-expr``, ``group-expr``   with expressions
- ``distinct``    by text
- ``tiny``        1,000 files of ten rows, each a shard
- ``fuzzy``       normalise, then drop near-duplicates
- ``signatures``  from texts to signatures and bands on one core
- ``sort``        by text
- ``crash``       SIGKILL in the last of three stages, and the run after it

``seconds`` is the work once workers stand, ``started`` from the making of the session. Memory is the
peak of the whole process tree.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory import Sampler

from marin_zephyr import Dataset, Session, agg, col

NUM_TINY = 1000


def with_words(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "num_words": len(row["text"].split())}


def is_long(row: dict[str, Any]) -> bool:
    return row["num_words"] >= 50


def domain_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"domain": row["url"].split("/", 3)[2]}


def dataset(task: str, corpus: Path, out: Path) -> Dataset:
    """The plan of a task that is one dataset."""
    documents = Dataset.from_files(str(corpus / "*.jsonl.gz"))
    match task:
        case "map":
            documents = documents.map(with_words).filter(is_long)
        case "map-expr":
            documents = documents.with_columns(num_words=col("text").str.count_matches(r"\S+")).filter(
                col("num_words") >= 50
            )
        case "group":
            documents = documents.map(domain_of).group_by("domain").agg(n=agg.count())
        case "group-expr":
            domain = col("url").str.split("/").list.get(2)
            documents = documents.select(domain=domain).group_by("domain").agg(n=agg.count())
        case "distinct":
            documents = documents.distinct(on="text")
        case "sort":
            documents = documents.sort("text")
    return documents.write_parquet(out, compression="snappy")


def run_dataset(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    report = session.run(dataset(options.task, options.corpus, options.out / "result"))
    return {"rows": report.counters["rows_out"]}


def run_tiny(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    raw = options.out / "raw"
    raw.mkdir(parents=True)
    for i in range(NUM_TINY):
        (raw / f"{i:04d}.jsonl").write_text("".join(f'{{"n": {i}, "k": {j}}}\n' for j in range(10)))
    files = Dataset.from_files(str(raw / "*.jsonl"), shard_bytes=1)
    plan = files.map(lambda row: {**row, "sum": row["n"] + row["k"]}).write_parquet(options.out / "result")
    began = time.perf_counter(), cpu_seconds()
    report = session.run(plan)
    seconds = [time.perf_counter() - began[0], cpu_seconds() - began[1]]
    assert report.executed == NUM_TINY
    began = time.perf_counter(), cpu_seconds()
    assert session.run(plan).executed == 0
    return {"tiny": seconds, "rerun": [time.perf_counter() - began[0], cpu_seconds() - began[1]]}


def run_fuzzy(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    from marin_zephyr.text import fuzzy_dedup, normalize

    inputs = str(options.corpus / "*.jsonl.gz")
    normalize(inputs, options.out / "normal", workers=options.workers)
    report = fuzzy_dedup(options.out / "normal", options.out / "unique", workers=options.workers)
    return {"kept": report.kept.documents, "dropped": report.dropped.documents}


def run_crash(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    """The rerun after a SIGKILL in the last stage, beside a whole run and its last stage."""
    report = session.run(dataset("distinct", options.corpus, options.out / "whole"))
    last = report.stages[-1].seconds
    work, out = options.out / "work", options.out / "killed"
    command = [sys.executable, __file__, "distinct", str(options.corpus), str(options.out / "child")]
    command += ["--workers", str(options.workers), "--work-dir", str(work), "--result", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    enough = max(1, report.stages[-1].num_tasks // 4)
    while len(list(out.glob(".staging-*/task-*.json"))) < enough:
        if child.poll() is not None:
            raise SystemExit("the run ended before it could be killed")
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with Session(workers=options.workers, work_dir=work) as again:
        warm(again, options.out / "warm-again")
        began = time.perf_counter()
        rerun = again.run(dataset("distinct", options.corpus, out))
        seconds = time.perf_counter() - began
    return {"whole": report.seconds, "last_stage": last, "after_crash": seconds, "executed": rerun.executed}


def signatures(options: argparse.Namespace) -> dict[str, Any]:
    """Documents a second from text to signature and bands, on one core."""
    import pyarrow as pa

    from marin_zephyr.text.minhash import band_keys, choose_banding
    from marin_zephyr.text.minhash import signatures as signatures_of
    from marin_zephyr.text.ngrams import ngram_sets

    rows = Session(backend="inline").rows(
        Dataset.from_files(str(sorted(options.corpus.glob("*.jsonl.gz"))[0])).select("text")
    )
    texts = [row["text"] for row in rows]
    slices = [pa.array(texts[i : i + 2048], pa.large_string()) for i in range(0, len(texts), 2048)]
    banding = choose_banding(128, 0.8)
    began = time.process_time()
    for piece in slices:
        band_keys(signatures_of(ngram_sets(piece), num_permutations=128), banding=banding)
    return {"documents_per_second": len(texts) / (time.process_time() - began)}


def cpu_seconds() -> float:
    """Of this process and of the workers that it still has."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() or int(stat.parent.name) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[2:4])


def warm(session: Session, out: Path) -> None:
    """A run that makes workers stand, with as many tasks as there are workers."""
    session.run(Dataset.from_rows([{"n": i} for i in range(8)], num_shards=8).write_parquet(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="process")
    parser.add_argument("--memory")
    parser.add_argument("--work-dir")
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    if options.task == "signatures":
        print(json.dumps(signatures(options)))
        return
    if options.result is not None:
        with Session(workers=options.workers, work_dir=options.work_dir) as session:
            session.run(dataset(options.task, options.corpus, options.result))
        return
    special: dict[str, Callable[[Session, argparse.Namespace], dict[str, Any]]]
    special = {"tiny": run_tiny, "fuzzy": run_fuzzy, "crash": run_crash}
    limits = {} if options.memory is None else {"memory": options.memory}
    options.out.mkdir(parents=True)
    made = time.perf_counter()
    work_dir = options.work_dir or options.out / "work"
    with (
        Sampler(os.getpid()) as sampler,
        Session(backend=options.backend, workers=options.workers, work_dir=work_dir, **limits) as session,
    ):
        warm(session, options.out / "warm")
        began, cpu = time.perf_counter(), cpu_seconds()
        said = special.get(options.task, run_dataset)(session, options)
        now = time.perf_counter()
        said |= {"seconds": [now - began, cpu_seconds() - cpu], "started": [now - made, None]}
    print(json.dumps({**said, "memory_mb": sampler.peak / 1e6}))


if __name__ == "__main__":
    main()
