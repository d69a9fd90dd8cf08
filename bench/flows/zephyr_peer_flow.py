"""The same work in the existing Marin's zephyr, on threads or on a process a shard, with two workers.

    MARIN_PREFIX=OUT $MARIN_BENCH_PEERS/m312/bin/python bench/flows/zephyr_peer_flow.py map CORPUS OUT [--subprocess]

``fuzzy`` is its normalisation, MinHash and clusters. One line of JSON: ``seconds`` is ``[wall, CPU]`` after imports.
"""

import argparse
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def with_words(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "num_words": len(row["text"].split())}


def domain_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"domain": row["url"].split("/", 3)[2], "n": 1}


def total(key: str, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"domain": key, "n": sum(row["n"] for row in rows)}


def partial_total(key: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield total(key, rows)


def text_key(row: dict[str, Any]) -> str:
    return hashlib.blake2b(row["text"].encode(), digest_size=16).hexdigest()


def keyed(task: str, corpus: Path, out: Path, *, subprocess: bool) -> float:
    from fray.types import ResourceConfig  # type: ignore[import-not-found]
    from zephyr.context import ZephyrContext  # type: ignore[import-not-found]
    from zephyr.dataset import Dataset  # type: ignore[import-not-found]
    from zephyr.runners import InlineRunner, SubprocessRunner  # type: ignore[import-not-found]

    documents = Dataset.from_files(f"{corpus}/*.jsonl.gz").load_jsonl()
    parts = f"{out}/part-{{shard:05d}}.parquet"
    if task == "map":
        plan = documents.map(with_words).filter(lambda row: row["num_words"] >= 50)
    elif task == "group":
        plan = documents.map(domain_of).group_by(
            lambda row: row["domain"], reducer=total, combiner=partial_total, num_output_shards=8
        )
    else:
        plan = documents.deduplicate(text_key, num_output_shards=8)
    context = ZephyrContext(
        max_workers=2, resources=ResourceConfig(cpu=1, ram="4g"), name="bench", max_execution_retries=0,
        stage_runner_factory=SubprocessRunner if subprocess else InlineRunner, chunk_storage_prefix=f"{out}-chunks",
    )  # fmt: skip
    began = time.perf_counter()
    context.execute(plan.write_parquet(parts))
    return began


def fuzzy(corpus: Path, out: Path) -> float:
    from fray.types import ResourceConfig  # type: ignore[import-not-found]
    from marin.datakit.normalize import normalize_to_parquet  # type: ignore[import-not-found]
    from marin.processing.classification.deduplication import (  # type: ignore[import-not-found]
        fuzzy_dups,
        fuzzy_minhash,
    )

    resources = ResourceConfig(cpu=1, ram="4g", disk="5g")
    began = time.perf_counter()
    normal = normalize_to_parquet(
        input_path=str(corpus), output_path=f"{out}/normal", target_partition_bytes=16 << 20, max_workers=2,
        worker_resources=resources,
    )  # fmt: skip
    hashes = fuzzy_minhash.compute_minhash_attrs(
        source=normal, output_path=f"{out}/minhash", max_workers=2, worker_resources=resources
    )
    fuzzy_dups.compute_fuzzy_dups_attrs(
        inputs=[hashes], output_path=f"{out}/fuzzy", max_parallelism=2, worker_resources=resources
    )
    return began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["map", "group", "distinct", "fuzzy"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--subprocess", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("MARIN_PREFIX", str(options.out))
    if options.task == "fuzzy":
        began = fuzzy(options.corpus, options.out)
    else:
        began = keyed(options.task, options.corpus, options.out, subprocess=options.subprocess)
    print(json.dumps({"seconds": [time.perf_counter() - began, sum(os.times()[:4])]}))


if __name__ == "__main__":
    main()
