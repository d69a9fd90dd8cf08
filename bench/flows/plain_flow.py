"""The floor: what one writes with the standard library, Arrow and two processes, and no framework at all.

    python bench/flows/plain_flow.py map|group|distinct CORPUS OUT [--workers 2]

``map`` counts words and keeps documents of 50 or more as parquet; ``group`` counts documents by domain; ``distinct``
keeps the first of equal texts. One line of JSON: ``seconds`` is ``[wall, CPU]``, imports excepted.
"""

import argparse
import gzip
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 4096


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rb") as file:
        yield from map(json.loads, file)


def write(found: Iterable[dict[str, Any]], path: Path) -> int:
    """Rows as one parquet file, a few thousand at a time."""
    writer, held, count = None, [], 0

    def flush() -> None:
        nonlocal writer
        table = pa.Table.from_pylist(held)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
        held.clear()

    for row in found:
        held.append(row)
        count += 1
        if len(held) == BATCH:
            flush()
    if held:
        flush()
    if writer is not None:
        writer.close()
    return count


def long_documents(path: Path) -> Iterator[dict[str, Any]]:
    for row in rows(path):
        num_words = len(row["text"].split())
        if num_words >= 50:
            yield {**row, "num_words": num_words}


def map_file(path: Path, *, out: Path) -> int:
    return write(long_documents(path), out / f"{path.name}.parquet")


def count_domains(path: Path) -> Counter[str]:
    return Counter(row["url"].split("/", 3)[2] for row in rows(path))


def hash_texts(path: Path) -> list[bytes]:
    return [hashlib.blake2b(row["text"].encode(), digest_size=16).digest() for row in rows(path)]


def keep_rows(job: tuple[Path, list[bool]], *, out: Path) -> int:
    path, kept = job
    return write((row for row, keep in zip(rows(path), kept, strict=True) if keep), out / f"{path.name}.parquet")


def run(task: str, files: list[Path], out: Path, pool: Any) -> int:
    """The rows of the result."""
    if task == "map":
        return sum(pool.map(partial(map_file, out=out), files, chunksize=1))
    if task == "group":
        counts = sum(pool.map(count_domains, files, chunksize=1), Counter())
        pq.write_table(pa.table({"domain": list(counts), "n": list(counts.values())}), out / "counts.parquet")
        return len(counts)
    seen: set[bytes] = set()
    jobs = []
    for path, hashes in zip(files, pool.map(hash_texts, files, chunksize=1), strict=True):
        kept = []
        for value in hashes:
            kept.append(value not in seen)
            seen.add(value)
        jobs.append((path, kept))
    return sum(pool.map(partial(keep_rows, out=out), jobs, chunksize=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["map", "group", "distinct"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    began = time.perf_counter()
    with Pool(options.workers) as pool:
        num_rows = run(options.task, sorted(options.corpus.glob("*.jsonl.gz")), options.out, pool)
        pool.close()
        pool.join()
    print(json.dumps({"seconds": [time.perf_counter() - began, sum(os.times()[:4])], "rows": num_rows}))


if __name__ == "__main__":
    main()
