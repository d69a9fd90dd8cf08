"""Tokenization, ours and the bare encoder: each task prints one line of JSON, ``seconds`` as ``[wall, CPU]``.

    python bench/flows/tokens_flow.py tokenize CORPUS TOKENIZER OUT [--engine tokenizers|gigatoken]

- ``train``      a tokenizer of 16,384 ids from the corpus, written to the directory TOKENIZER as Hugging Face has it
- ``raw``        `encode_batch` of all documents, which are in memory, on two threads
- ``raw-fast``   the same with `encode_batch_fast`
- ``tokenize``   from files to a token store, on two threads: reading, encoding, writing and syncing

``imports`` are what a first call would have to load, ``memory_mb`` the peak of the process tree.
"""

import argparse
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

from memory import Sampler

BATCH = 256


def train(options: argparse.Namespace) -> dict[str, Any]:
    from marin_zephyr.tokens import train_tokenizer
    from marin_zephyr.tokens.tokenizer import END_OF_TEXT

    options.tokenizer.mkdir(parents=True, exist_ok=True)
    files = sorted(map(str, options.corpus.glob("*.jsonl.gz")))
    report = train_tokenizer(files[:2], options.tokenizer / "tokenizer.json", vocab_size=16_384)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    (options.tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    return {"ids": report.vocab_size}


def raw(options: argparse.Namespace) -> dict[str, Any]:
    """Ids of all documents, as lists: what whoever calls the encoder itself gets."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(options.workers)}
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    encode = backend.encode_batch_fast if options.task == "raw-fast" else backend.encode_batch
    texts = []
    for path in sorted(options.corpus.glob("*.jsonl.gz")):
        with gzip.open(path) as lines:
            texts += [json.loads(line)["text"] for line in lines]
    began, num_tokens = (time.perf_counter(), cpu_seconds()), 0
    for start in range(0, len(texts), BATCH):
        encodings = encode(texts[start : start + BATCH], add_special_tokens=False)
        num_tokens += sum(len(encoding.ids) for encoding in encodings)
    return figures(began, num_tokens)


def tokenize(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    import jinja2
    import polars
    import pyarrow.json
    import tokenizers

    from marin_zephyr import tokens

    loaded = [jinja2, polars, pyarrow.json, tokenizers]
    if options.engine == "gigatoken":
        import awkward
        import gigatoken

        loaded += [awkward, gigatoken]
    imports = time.perf_counter() - began
    assert loaded
    began_ = (time.perf_counter(), cpu_seconds())
    report = tokens.tokenize(
        str(options.corpus / "*.jsonl.gz"), options.out, tokenizer=options.tokenizer, workers=options.workers,
        engine=options.engine,
    )  # fmt: skip
    return {**figures(began_, report.num_tokens), "imports": imports, "documents": report.num_documents}


def figures(began: tuple[float, float], num_tokens: int) -> dict[str, Any]:
    """Of work that began at a wall and a CPU second."""
    wall, cpu = time.perf_counter() - began[0], cpu_seconds() - began[1]
    return {"seconds": [wall, cpu], "tokens": num_tokens, "mtokens_per_s": num_tokens / wall / 1e6}


def cpu_seconds() -> float:
    """Of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["train", "raw", "raw-fast", "tokenize"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--engine", default="tokenizers")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tasks = {"train": train, "raw": raw, "raw-fast": raw, "tokenize": tokenize}
    with Sampler(os.getpid()) as sampler:
        said = tasks[options.task](options)
    print(json.dumps({**said, "memory_mb": sampler.peak / 1e6}))


if __name__ == "__main__":
    main()
