"""The same work in Ray Data on two CPUs.

    $MARIN_BENCH_PEERS/ray/bin/python bench/flows/ray_data_flow.py map CORPUS OUT

One line of JSON: ``seconds`` is ``[wall, null]`` after Ray has started, whose processes are not ours to time.
"""

import argparse
import hashlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def with_words(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "num_words": len(row["text"].split())}


def domains(batch: pa.Table) -> pa.Table:
    return pa.table({"domain": [url.split("/", 3)[2] for url in batch["url"].to_pylist()]})


def with_hashes(batch: pa.Table) -> pa.Table:
    texts = batch["text"].to_pylist()
    return batch.append_column("hash", pa.array([hashlib.blake2b(t.encode(), digest_size=16).digest() for t in texts]))


def first(group: dict[str, Any]) -> dict[str, Any]:
    return {name: values[:1] for name, values in group.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["map", "group", "distinct"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    began = time.perf_counter()
    documents = ray.data.read_json(
        str(options.corpus), file_extensions=["gz"], arrow_open_stream_args={"compression": "gzip"}
    )
    if options.task == "map":
        done = documents.map(with_words).filter(lambda row: row["num_words"] >= 50)
    elif options.task == "group":
        done = documents.map_batches(domains, batch_format="pyarrow").groupby("domain").count()
    else:
        hashed = documents.map_batches(with_hashes, batch_format="pyarrow")
        done = hashed.groupby("hash").map_groups(first, batch_format="numpy")  # pyrefly: ignore
    done.write_parquet(str(options.out))
    print(json.dumps({"seconds": [time.perf_counter() - began, None]}))


if __name__ == "__main__":
    main()
