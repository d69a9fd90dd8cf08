"""Levanter's batches a CPU second: random rows of a cache, and its loader over a mixture of two shuffled components.

Usage: levanter_loader.py TOKENS CACHE ROUNDS. Runs in an environment with Levanter and Haliax; TOKENS is a file of
uint16 ids, which are written to the cache as documents of 500 tokens unless it is there. The last line is JSON.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import haliax  # type: ignore[import-not-found]
import jax
import numpy as np
from levanter.data.loader import DataLoader  # type: ignore[import-not-found]
from levanter.data.mixture import MixtureDataset  # type: ignore[import-not-found]
from levanter.data.text.datasets import CausalLmDataset, NamedLmDataset, TokenSeqDataset  # type: ignore[import-not-found]
from levanter.store.cache import SerialCacheWriter, TreeCache  # type: ignore[import-not-found]

BATCH, SEQ, DOCUMENT = 64, 1024, 500
BATCHES = 16
"""A round's."""

EXEMPLAR = {"input_ids": np.zeros(0, np.int32)}


def open_cache(tokens: Path, where: Path) -> TreeCache:
    if not where.exists():
        ids = np.memmap(tokens, np.uint16, mode="r")
        documents = ids[: len(ids) // DOCUMENT * DOCUMENT].reshape(-1, DOCUMENT)
        with SerialCacheWriter(str(where), EXEMPLAR) as writer:
            for start in range(0, len(documents), 10_000):
                rows = documents[start : start + 10_000].astype(np.int32)
                writer.write_batch([{"input_ids": row} for row in rows])
    return TreeCache.load(str(where), EXEMPLAR)


def measure(make: Callable[[], object], rounds: int) -> list[float]:
    make()
    rates = []
    for _ in range(rounds):
        begin = time.process_time()
        for _ in range(BATCHES):
            make()
        rates.append(BATCHES / (time.process_time() - begin))
    return rates


def main() -> None:
    logging.disable(logging.ERROR)
    tokens, where, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    sequences = TokenSeqDataset(open_cache(tokens, where), SEQ)
    loop, rng = asyncio.new_event_loop(), np.random.default_rng(0)
    size = loop.run_until_complete(sequences.async_len())
    rates = {
        "random rows": measure(
            lambda: loop.run_until_complete(sequences.get_batch(rng.integers(0, size, BATCH).tolist())), rounds
        )
    }
    position, batch = haliax.Axis("position", SEQ), haliax.Axis("batch", BATCH)
    named = NamedLmDataset(CausalLmDataset(sequences, position, eos_id=0), position)
    keys = {name: jax.random.PRNGKey(i) for i, name in enumerate("ab")}
    mixture = MixtureDataset(
        {name: named.shuffle(key) for name, key in keys.items()}, {"a": 0.7, "b": 0.3}, block_size=2048, key=keys["a"]
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))
    with haliax.partitioning.set_mesh(mesh), haliax.axis_mapping({"batch": "data"}):
        loader = DataLoader(mixture, batch, mesh=mesh, axis_resources={"batch": "data"}, max_buffered_batches=0)
        batches = iter(loader)
        rates["loader, mixture of two"] = measure(lambda: jax.block_until_ready(next(batches).tokens.array), rounds)
    print(json.dumps(rates), flush=True)
    os._exit(0)  # its threads would keep the program


if __name__ == "__main__":
    main()
