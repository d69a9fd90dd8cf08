"""Work on much more data than memory: one task, one budget, and the peak of the whole process tree.

    python bench/flows/memory_flow.py sort CORPUS OUT --memory 512MiB [--megabytes 2000] [--workers 2]

CORPUS is made if it is not there: plain JSON lines in files of 100 MB, no two texts equal but for one in twenty.

- ``map``       a function of rows, parquet
- ``sort``      by text
- ``distinct``  by text
- ``group``     by page, with a sum and the list of its texts
- ``reduce``    a function of the rows of each page, the longest text
- ``join``      with itself by identifier, both sides with their texts

``memory_mb`` counts shared pages once; ``own_mb`` leaves out pages of files, which the kernel may drop at any time.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory import Sampler
from zephyr_flow import cpu_seconds, is_long, warm, with_words

from marin_zephyr import Dataset, Session, agg, col

FILE_MEGABYTES = 100
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "rs", "lt", "sh", "king", "ment", "")]


def make_corpus(where: Path, megabytes: int) -> None:
    """Files of documents, the same at every call."""
    where.mkdir(parents=True)
    for i in range(-(-megabytes // FILE_MEGABYTES)):
        rng = random.Random(i)
        size = n = 0
        with (where / f"{i:03d}.jsonl.part").open("w") as file:
            while size < min(FILE_MEGABYTES, megabytes - i * FILE_MEGABYTES) * 1_000_000:
                number = i * 1_000_000 + n if n % 20 else i * 1_000_000 + n // 2
                start = " ".join(rng.choices(WORDS, k=8)) if n % 20 else "again"
                text = f"{start} {number} " + " ".join(WORDS[number % 300 :][:60] * (1 + number % 7))
                row = {"id": i * 1_000_000 + n, "page": n % 20_000, "text": text, "score": number % 997 / 997}
                size += file.write(json.dumps(row) + "\n")
                n += 1
        (where / f"{i:03d}.jsonl.part").rename(where / f"{i:03d}.jsonl")


def longest(page: int, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    texts = [row["text"] for row in rows]
    return {"page": page, "n": len(texts), "text": max(texts, key=len)}


def dataset(task: str, corpus: Path, out: Path) -> Dataset:
    """The plan of a task."""
    documents = Dataset.from_files(str(corpus / "*.jsonl"))
    match task:
        case "map":
            made = documents.map(with_words).filter(is_long)
        case "sort":
            made = documents.sort("text")
        case "distinct":
            made = documents.distinct(on="text")
        case "group":
            made = documents.group_by("page").agg(n=agg.count(), score=agg.sum("score"), texts=agg.collect("text"))
        case "reduce":
            made = documents.group_by("page").reduce(longest, order_by="id")
        case "join":
            made = documents.join(documents.select(col("id"), col("text").alias("again")), on="id")
        case _:
            raise SystemExit(f"no task {task!r}")
    return made.write_parquet(out, compression="snappy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory")
    parser.add_argument("--megabytes", type=int, default=2000)
    options = parser.parse_args()
    if not options.corpus.exists():
        make_corpus(options.corpus, options.megabytes)
    limits = {} if options.memory is None else {"memory": options.memory}
    options.out.mkdir(parents=True)
    with (
        Sampler(os.getpid()) as sampler,
        Session(workers=options.workers, work_dir=options.out / "work", **limits) as session,
    ):
        warm(session, options.out / "warm")
        began, cpu = time.perf_counter(), cpu_seconds()
        report = session.run(dataset(options.task, options.corpus, options.out / "result"))
        seconds = [time.perf_counter() - began, cpu_seconds() - cpu]
    said = {"task": options.task, "memory": options.memory, "rows": report.counters["rows_out"], "seconds": seconds}
    said |= {
        "memory_mb": sampler.peak / 1e6,
        "own_mb": sampler.own_peak / 1e6,
        "retries": sum(stage.retried for stage in report.stages),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
