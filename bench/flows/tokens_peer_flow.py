"""The same tokenization by a peer, with two workers: files of JSON lines to the peer's own store of tokens.

    $MARIN_BENCH_PEERS/m312/bin/python bench/flows/tokens_peer_flow.py marin|levanter CORPUS TOKENIZER OUT
    $MARIN_BENCH_PEERS/dt/bin/python bench/flows/tokens_peer_flow.py datatrove CORPUS TOKENIZER OUT

One line of JSON: ``seconds`` is ``[wall, CPU]`` after the imports, which ``imports`` are; ``memory_mb`` is the peak of
the process tree. TOKENIZER is a directory as Hugging Face has it.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from memory import Sampler

type Work = Callable[[], int]
"""Tokenizes, and says how many ids that gave."""


def marin(corpus: Path, tokenizer: Path, out: Path) -> Work:
    from fray.types import ResourceConfig  # type: ignore[import-not-found]
    from marin.processing.tokenize.cache_stats import (  # type: ignore[import-not-found]
        read_tokenized_cache_stats,
    )
    from marin.processing.tokenize.tokenize import TokenizeConfig, tokenize  # type: ignore[import-not-found]

    def work() -> int:
        files = sorted(map(str, corpus.glob("*.jsonl.gz")))
        resources = ResourceConfig(cpu=1, ram="4g")
        tokenize(
            TokenizeConfig(
                train_paths=files, validation_paths=[], cache_path=str(out), tokenizer=str(tokenizer), max_workers=2,
                worker_resources=resources,
            )
        )  # fmt: skip
        return read_tokenized_cache_stats(str(out), "train").total_tokens

    return work


def levanter(corpus: Path, tokenizer: Path, out: Path) -> Work:
    from levanter.data.text.cache import build_lm_dataset_cache  # type: ignore[import-not-found]
    from levanter.data.text.datasets import UrlDatasetSourceConfig  # type: ignore[import-not-found]
    from levanter.data.text.formats import TextLmDatasetFormat  # type: ignore[import-not-found]
    from levanter.tokenizers import load_tokenizer  # type: ignore[import-not-found]

    def work() -> int:
        files = sorted(map(str, corpus.glob("*.jsonl.gz")))
        source = UrlDatasetSourceConfig(train_urls=files).get_shard_source("train")
        cache = build_lm_dataset_cache(f"{out}/train", source, TextLmDatasetFormat(), load_tokenizer(str(tokenizer)))
        return cache.ledger.field_counts["input_ids"]

    return work


def datatrove(corpus: Path, tokenizer: Path, out: Path) -> Work:
    from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.tokens import DocumentTokenizer  # type: ignore[import-not-found]

    eos = json.loads((tokenizer / "tokenizer_config.json").read_text())["eos_token"]

    def work() -> int:
        pipeline = [
            JsonlReader(str(corpus), glob_pattern="*.jsonl.gz"),
            DocumentTokenizer(
                output_folder=f"{out}/tokens", tokenizer_name_or_path=str(tokenizer / "tokenizer.json"), eos_token=eos,
                shuffle_documents=False,
            ),
        ]  # fmt: skip
        tasks = len(list(corpus.glob("*.jsonl.gz")))
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=2, logging_dir=f"{out}/logs").run()
        return sum(path.stat().st_size for path in Path(out, "tokens").glob("*.ds")) // 2

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["marin", "levanter", "datatrove"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("MARIN_PREFIX", str(options.out))
    with Sampler(os.getpid()) as sampler:
        began = time.perf_counter()
        prepare = {"marin": marin, "levanter": levanter, "datatrove": datatrove}[options.peer]
        work = prepare(options.corpus, options.tokenizer, options.out)
        imported = time.perf_counter()
        num_tokens = work()
        wall, cpu = time.perf_counter() - imported, sum(os.times()[:4])
    said = {"seconds": [wall, cpu], "imports": imported - began, "tokens": num_tokens}
    print(json.dumps({**said, "mtokens_per_s": num_tokens / wall / 1e6, "memory_mb": sampler.peak / 1e6}))


if __name__ == "__main__":
    main()
