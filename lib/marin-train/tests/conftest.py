"""Token stores and tiny runs for the tests; the store writer follows the format's page and nothing else."""

import hashlib
import json
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from marin_train.configs import Component, DataConfig, ModelConfig, TrainConfig

# How long an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

# Started in the background of a shell, this process ignores interrupts, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs are compiled once for all tests and the processes they start: compiling takes far longer than tiny steps do.
# Set before jax is imported; whoever runs several sessions may name a directory that they share.
_compiled = tempfile.TemporaryDirectory(prefix="marin-compiled-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _compiled.name)
os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

# What is measured on this machine is measured once for all of them too, and the user's own cache left alone.
_cached = tempfile.TemporaryDirectory(prefix="marin-cached-")
os.environ["MARIN_CACHE"] = _cached.name

VOCAB_SIZE = 64
EOS = 0


def tiny_tokenizer() -> str:
    """A byte-level tokenizer.json of 64 tokens: ``<eos>`` and 63 printable characters."""
    letters = [chr(c) for c in range(ord("!"), ord("!") + VOCAB_SIZE - 1)]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": EOS,
                    "content": "<eos>",
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {"<eos>": EOS, **{letter: i for i, letter in enumerate(letters, 1)}},
                "merges": [],
            },
        }
    )


def _write_store(
    path: Path,
    parts: Sequence[Sequence[Sequence[int]]],
    *,
    dtype: str = "uint16",
    vocab_size: int = VOCAB_SIZE,
    tokenizer: str | None = None,
    masks: Sequence[Sequence[bool]] | None = None,
    sources: Sequence[Sequence[tuple[str, int]]] | None = None,
) -> Path:
    """Writes parts of documents of token ids; each token but EOS stands for one byte of text."""
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_text(tokenizer or tiny_tokenizer())
    entries = []
    for number, documents in enumerate(parts):
        name = f"part-{number:05d}"
        files = _part_files(documents, dtype)
        if masks is not None:
            files["mask"] = np.packbits(np.array(masks[number], bool), bitorder="little").tobytes()
        if sources is not None:
            files["sources"] = "".join(json.dumps(run) + "\n" for run in sources[number]).encode()
        for suffix, content in files.items():
            (path / f"{name}.{suffix}").write_bytes(content)
        entries.append(
            {
                "name": name,
                "num_documents": len(documents),
                "num_tokens": sum(map(len, documents)),
                "num_bytes": sum(int(np.count_nonzero(d)) for d in documents),
                "files": {
                    f"{name}.{suffix}": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                    for suffix, content in files.items()
                },
            }
        )
    manifest = {
        "schema_version": 1,
        "tokenizer": {
            "file": "tokenizer.json",
            "digest": hashlib.sha256((path / "tokenizer.json").read_bytes()).hexdigest(),
        },
        "vocab_size": vocab_size,
        "dtype": dtype,
        "special_ids": {"bos": None, "eos": EOS},
        **{field: sum(entry[field] for entry in entries) for field in ("num_documents", "num_tokens", "num_bytes")},
        "parts": entries,
        "lineage": {},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def _part_files(documents: Sequence[Sequence[int]], dtype: str) -> dict[str, bytes]:
    kind, code = {"uint16": ("<u2", 8), "int32": ("<i4", 4)}[dtype]
    lengths = np.array([len(d) for d in documents], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])[: len(documents)] * np.dtype(kind).itemsize
    index = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([code])
    index += len(documents).to_bytes(8, "little") + (len(documents) + 1).to_bytes(8, "little")
    index += lengths.astype("<i4").tobytes() + starts.astype("<i8").tobytes()
    index += np.arange(len(documents) + 1, dtype="<i8").tobytes()
    tokens = np.concatenate([np.zeros(0, kind), *(np.array(d, kind) for d in documents)]).astype(kind).tobytes()
    return {
        "bin": tokens,
        "idx": index,
        "bytes": np.array([np.count_nonzero(d) for d in documents], "<i8").tobytes(),
        "crc": np.array([zlib.crc32(tokens[i : i + 2**20]) for i in range(0, len(tokens), 2**20)], "<u4").tobytes(),
    }


@pytest.fixture(scope="session")
def write_store() -> Callable[..., Path]:
    """Writes a token store: ``write_store(path, parts)``, parts of documents of token ids."""
    return _write_store


def random_documents(seed: int, num_documents: int, *, length: int = 50) -> list[list[int]]:
    """Documents with structure to learn: each is an arithmetic progression of ids, then EOS."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        start, stride = rng.integers(1, VOCAB_SIZE), rng.integers(1, 4)
        size = int(rng.integers(1, 2 * length))
        documents.append([int(t) for t in 1 + (start + stride * np.arange(size)) % (VOCAB_SIZE - 1)] + [EOS])
    return documents


TINY = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=32,
    max_seq_len=32,
)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two parts, about 5,000 tokens; not to be changed."""
    path = tmp_path_factory.mktemp("data") / "store"
    return _write_store(path, [random_documents(0, 60), random_documents(1, 40)])


@pytest.fixture(scope="session")
def tiny_config(store: Path) -> Callable[..., TrainConfig]:
    """A run of a few seconds over that store; any field of `TrainConfig`, or ``path`` of the store, may be given."""

    def make(*, path: Path = store, **changes: Any) -> TrainConfig:
        data = DataConfig(components=(Component(name="all", path=str(path)),), seq_len=16, seed=1)
        fields = {"model": TINY, "data": data, "steps": 12, "batch_size": 4, "policy": "float32-reference-keep-scan"}
        return TrainConfig(**fields | {"checkpoint_steps": 4} | changes)

    return make


@pytest.fixture(scope="session")
def draw_model() -> Callable[..., Any]:
    """``draw_model(config, seed=0)``: random leaves, gains away from 1, and nothing compiled for it."""
    import jax.numpy as jnp

    from marin_train import models
    from marin_train.parameters import build

    def draw(config: ModelConfig, seed: int = 0) -> Any:
        rng, family = np.random.default_rng(seed), models.family(config)
        leaves = {
            p.path: (p.role == "gain") + p.shape[-1] ** -0.5 * rng.normal(size=p.shape)
            for p in family.parameter_table(config)
        }
        return build(family.Model, {path: jnp.asarray(leaf, jnp.float32) for path, leaf in leaves.items()})

    return draw


@pytest.fixture(scope="session")
def finished_run(tiny_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished, uninterrupted run of ``tiny_config()``; not to be changed."""
    from marin_train.loop import train

    return train(tiny_config(), tmp_path_factory.mktemp("runs") / "finished").out_dir


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of that directory, to do with as one likes."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))
