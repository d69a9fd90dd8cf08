"""Steps made of the wheels: the one place where zephyr, train and core meet.

Each function here wraps one call of a wheel as a `step`: directories in, a directory out, a small record as the value.
Heavy imports stay inside the bodies, so that stating and planning an experiment costs none of them.
"""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from marin_core import Input, Out, Resources, Work, step
from marin_train import TrainConfig

# A running step shows the last line of its log: the wheels' own progress, and not that of the libraries below them.
for wheel in ("marin_zephyr", "marin_train"):
    logging.getLogger(wheel).setLevel(logging.INFO)

# Steps inherit it: large buffers on huge pages, which saves a sixth of a training step's time on Linux (XLA on the CPU
# asks for fresh memory at every step). It changes where memory lies, and no result.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

WORKERS = os.cpu_count() or 1
ALL_CORES = Resources(cpus=WORKERS)


@step(resources=ALL_CORES)
def normalize(
    out: Out,
    work: Work,
    raw: Input,
    *,
    files: tuple[str, ...] = (),
    documents: Literal["row", "file"] = "row",
    text_field: str = "text",
) -> dict[str, Any]:
    """Documents with stable ids and one schema; what cannot be one is kept in rejects/, with its reason."""
    from marin_zephyr import text

    root = raw.local()
    inputs = [root / name for name in files] or sorted(p for p in root.rglob("*") if p.is_file())
    return _counts(
        text.normalize(
            inputs, out.local(), root=root, documents=documents, text_field=text_field, workers=WORKERS,
            work_dir=work.local(),
        )
    )  # fmt: skip


@step(resources=ALL_CORES)
def exact_dedup(out: Out, work: Work, documents: Input) -> dict[str, Any]:
    """Of documents with equal text, the first."""
    from marin_zephyr import text

    return _counts(text.exact_dedup(documents.local(), out.local(), workers=WORKERS, work_dir=work.local()))


@step(resources=ALL_CORES)
def fuzzy_dedup(out: Out, work: Work, documents: Input, *, threshold: float = 0.8) -> dict[str, Any]:
    """Of documents that share most of their n-grams, one."""
    from marin_zephyr import text

    return _counts(
        text.fuzzy_dedup(documents.local(), out.local(), threshold=threshold, workers=WORKERS, work_dir=work.local())
    )


@step(resources=ALL_CORES)
def split(
    out: Out, work: Work, documents: Input, *, validation_fraction: float = 0.02, seed: int = 0
) -> dict[str, Any]:
    """Training and validation documents, told apart by the hash of their id."""
    from marin_zephyr import text

    return _counts(
        text.split(
            documents.local(), out.local(), validation_fraction=validation_fraction, seed=seed,
            workers=WORKERS, work_dir=work.local(),
        )
    )  # fmt: skip


@step(resources=ALL_CORES)
def train_tokenizer(out: Out, documents: Input, *, vocab_size: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer, trained on the training documents alone."""
    from marin_zephyr import tokens

    return _counts(
        tokens.train_tokenizer(documents.local() / "train", out.local() / "tokenizer.json", vocab_size=vocab_size)
    )


@step(resources=ALL_CORES)
def tokenize(out: Out, work: Work, documents: Input, tokenizer: Input, *, part: str) -> dict[str, Any]:
    """A token store of one side of the split."""
    from marin_zephyr import tokens

    file = tokenizer.local() / "tokenizer.json"
    return _counts(
        tokens.tokenize(documents.local() / part, out.local(), tokenizer=file, workers=WORKERS, work_dir=work.local())
    )


@step(resources=ALL_CORES)
def train(out: Out, work: Work, tokens: Input, *, config: TrainConfig) -> dict[str, Any]:
    """A language model, trained in JAX; a killed run goes on from its last checkpoint.

    Args:
        out: gets the last checkpoint, the metrics, the loads of experts where there are some, and the summary.
        work: where checkpoints lie while it trains.
        tokens: the token store.
        config: the run, whose one component has its path filled in here.
    """
    import marin_train

    (component,) = config.data.components
    component = dataclasses.replace(component, path=str(tokens.local()))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, components=(component,)))
    result = marin_train.train(config, out_dir=work.local())
    shutil.copytree(result.checkpoint, out.local() / "checkpoint")
    for name in ("metrics.jsonl", "routing.jsonl", "summary.json"):
        if (work.local() / name).is_file():
            shutil.copy(work.local() / name, out.local() / name)
    return json.loads((out.local() / "summary.json").read_text())


@step()
def evaluate(model: Input, tokens: Input) -> dict[str, Any]:
    """Loss and bits/byte on the validation store, each token scored once."""
    import marin_train

    return dataclasses.asdict(marin_train.evaluate(model.local() / "checkpoint", tokens.local()))


@step()
def baselines(documents: Input, train_tokens: Input, validation_tokens: Input) -> dict[str, float]:
    """Codes that need no training, on the same validation bytes: what a model has to beat."""
    import numpy as np

    from baselines import byte_entropy, unigram_bits, zstd_bits
    from marin_zephyr import TokenStore

    texts = list(_texts(documents.local() / "validation"))
    train, validation = TokenStore.open(train_tokens.local()), TokenStore.open(validation_tokens.local())
    counts = [
        np.bincount(store.tokens(0, store.num_tokens), minlength=train.manifest.vocab_size)
        for store in (train, validation)
    ]
    return {
        "zstd -19": zstd_bits(texts),
        "token unigram": unigram_bits(*counts, num_bytes=validation.num_bytes),
        "order-0 bytes": byte_entropy(texts),
    }


@step()
def compare(evaluation: dict[str, Any], baselines: dict[str, float]) -> dict[str, Any]:
    """The model beside the baselines, in bits per byte of the validation text."""
    return {"bits_per_byte": {"model": evaluation["bits_per_byte"], **baselines}}


@step()
def sample(
    out: Out,
    model: Input,
    *,
    prompts: tuple[str, ...],
    max_new_tokens: int = 96,
    temperature: float = 0.8,
    seed: int = 0,
) -> list[dict[str, str]]:
    """What the model says after each prompt."""
    import marin_train

    texts = marin_train.generate(
        model.local() / "checkpoint", list(prompts), max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    samples = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    (out.local() / "samples.json").write_text(json.dumps(samples, indent=2, ensure_ascii=False))
    return samples


@step()
def download(out: Out, *, dataset: str, revision: str | None, split: str, num_documents: int) -> int:
    """The first documents of a dataset on the Hugging Face hub, at a pinned revision, as jsonl."""
    from marin_zephyr.hub import fetch_rows

    return fetch_rows(dataset, out.local() / "documents.jsonl", revision=revision, split=split, num_rows=num_documents)


def _counts(report: Any) -> dict[str, Any]:
    """A report's numbers. Where the output lies and how fast it came are no part of a result that must repeat."""
    passing = ("out_dir", "file", "seconds", "tokens_per_s", "num_parts_reused")
    return {name: value for name, value in dataclasses.asdict(report).items() if name not in passing}


def _texts(directory: Path) -> Iterator[bytes]:
    """UTF-8 text of every document of a directory of parquet files, in order."""
    import pyarrow.parquet as pq

    for path in sorted(directory.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            yield from (text.encode() for text in batch.column("text").to_pylist())
