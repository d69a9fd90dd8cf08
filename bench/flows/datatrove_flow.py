"""What datatrove can express of the same work, with two workers.

    $MARIN_BENCH_PEERS/dt/bin/python bench/flows/datatrove_flow.py map|fuzzy CORPUS OUT

One line of JSON: ``seconds`` is ``[wall, CPU]``, imports excepted.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def count_words(documents: Iterator[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
    for document in documents:
        document.metadata["num_words"] = len(document.text.split())
        yield document


def is_long(document: Any) -> bool:
    return document.metadata["num_words"] >= 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["map", "fuzzy"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline import dedup  # type: ignore[import-not-found]
    from datatrove.pipeline.filters import LambdaFilter  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.writers import ParquetWriter  # type: ignore[import-not-found]

    out, num_files = str(options.out), len(list(options.corpus.glob("*.jsonl.gz")))
    reader = JsonlReader(str(options.corpus), glob_pattern="*.jsonl.gz")
    writer = ParquetWriter(f"{out}/parts", compression="snappy", output_filename="${rank}.parquet")

    def execute(name: str, pipeline: list[Any], tasks: int) -> None:
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=2, logging_dir=f"{out}/logs-{name}").run()

    began = time.perf_counter()
    if options.task == "map":
        execute("map", [reader, count_words, LambdaFilter(is_long), writer], num_files)
    else:
        config = dedup.minhash.MinhashConfig(n_grams=5, num_buckets=26, hashes_per_bucket=11)
        signatures = dedup.MinhashDedupSignature(output_folder=f"{out}/signatures", config=config)
        buckets = dedup.MinhashDedupBuckets(
            input_folder=f"{out}/signatures", output_folder=f"{out}/buckets", config=config
        )
        clusters = dedup.MinhashDedupCluster(input_folder=f"{out}/buckets", output_folder=f"{out}/drop", config=config)
        execute("signatures", [reader, signatures], num_files)
        execute("buckets", [buckets], 26)
        execute("clusters", [clusters], 1)
        execute("filter", [reader, dedup.MinhashDedupFilter(input_folder=f"{out}/drop"), writer], num_files)
    print(json.dumps({"seconds": [time.perf_counter() - began, sum(os.times()[:4])]}))


if __name__ == "__main__":
    main()
