"""Batches from token stores: whole mixtures against the least that numpy can do, and against Levanter's loader.

    uv run bench/loader.py            stores of 100 million tokens, seven rounds: about a minute
    uv run bench/loader.py --quick    10 million, three rounds
    MARIN_BENCH_PEERS=~/peers uv run bench/loader.py     beside Levanter (`bench/zephyr.py --help` makes ~/peers/m312)

The stores hold random ids and are in the page cache: what is measured is arithmetic, copying and page faults. Rounds
are interleaved, and each maps its files anew and asks for rows that none before it asked for, as an epoch does; the
rows called warm are of files whose every page has been touched. Rates are of CPU time, which other programs disturb
least: median, least and greatest of the rounds; the ratio is to numpy's minimum, ``rows[sorted numbers].astype(int32)``
on a memory map of uint16, likewise mapped anew or warm. Beside it stands what is usually written instead, a list of
slices that are stacked.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from marin_train.configs import Component, DataConfig, PackingConfig
from marin_train.data.mixture import Mixture
from marin_train.data.packing import pack
from marin_train.data.store import TokenStore

BATCH, SEQ = 64, 1024
VOCAB = 16_384
LEVANTER = Path(__file__).parent / "flows" / "levanter_loader.py"


def write_store(path: Path, num_tokens: int, *, seed: int, num_parts: int = 1, document: int = 500) -> Path:
    """A store of random ids, its documents about as long as those of the web."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_text("{}")
    parts = [_write_part(path, f"part-{i:05d}", num_tokens // num_parts, rng, document) for i in range(num_parts)]
    manifest = {
        "schema_version": 1,
        "tokenizer": {"file": "tokenizer.json", "digest": hashlib.sha256(b"{}").hexdigest()},
        "vocab_size": VOCAB,
        "dtype": "uint16",
        "special_ids": {"bos": None, "eos": 0},
        **{field: sum(part[field] for part in parts) for field in ("num_documents", "num_tokens", "num_bytes")},
        "parts": parts,
        "lineage": {},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def _write_part(path: Path, name: str, num_tokens: int, rng: np.random.Generator, document: int) -> dict:
    lengths = rng.integers(1, 2 * document, 2 * num_tokens // document + 2)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1]
    lengths[-1] -= lengths.sum() - num_tokens
    starts = 2 * np.concatenate([[0], np.cumsum(lengths)[:-1]])
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    counts = len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    borders = np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    contents = {
        f"{name}.bin": rng.integers(1, VOCAB, num_tokens, dtype=np.uint16).tobytes(),
        f"{name}.idx": header + counts + lengths.astype("<i4").tobytes() + starts.astype("<i8").tobytes() + borders,
    }
    for file, content in contents.items():
        (path / file).write_bytes(content)
    files = {f: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for f, c in contents.items()}
    counts = {"num_documents": len(lengths), "num_tokens": num_tokens, "num_bytes": 4 * num_tokens}
    return {"name": name, **counts, "files": files}


Case = tuple[Callable[[int], object], int]
"""What makes the n-th batch, n counted through all rounds, and how many a round makes."""

PLAIN = "numpy, memory map row by row, warm"
FLOOR, WARM_FLOOR = "numpy, memory map to int32", "numpy, memory map to int32, warm"


def cases(home: Path, num_tokens: int, *, warm: bool) -> dict[str, Case]:
    """What is measured, by name, over files that are mapped here."""
    one, two, thousand = (TokenStore.open(home / name) for name in ("one", "two", "thousand"))
    rows = np.memmap(home / "one" / "part-00000.bin", np.uint16, mode="r")[: num_tokens // SEQ * SEQ].reshape(-1, SEQ)
    numbers = np.random.default_rng(0).integers(0, num_tokens // SEQ - 1, (20_000, BATCH))
    mixture = Mixture({"a": one, "b": two}, config({"a": 0.7, "b": 0.3}, SEQ), batch_size=BATCH)
    steps = np.random.default_rng(1).integers(0, 1_000_000, 20_000).tolist()

    def gather(store: TokenStore) -> Callable[[int], object]:
        return lambda n: store.gather(numbers[n % len(numbers)] * SEQ, SEQ + 1)

    found: dict[str, Case] = {
        FLOOR: (lambda n: rows[np.sort(numbers[n % len(numbers)])].astype(np.int32), 200),
        "store.gather": (gather(one), 200),
        "mixture of two, steps in order": (lambda n: mixture.batch(n), 200),
    }
    if warm:
        rows.sum()
        one.read(0, one.num_tokens), two.read(0, two.num_tokens)
        tokens = np.memmap(home / "one" / "part-00000.bin", np.uint16, mode="r")

        def row_by_row(n: int) -> np.ndarray:
            starts = numbers[n % len(numbers)] * SEQ
            return np.stack([tokens[start : start + SEQ + 1].astype(np.int32) for start in starts])

        return {f"{name}, warm": case for name, case in found.items()} | {PLAIN: (row_by_row, 100)}
    some = {f"c{i}": (one, two)[i % 2] for i in range(50)}
    fifty = Mixture(some, config({name: 1 / (1 + i) for i, name in enumerate(some)}, 2048), batch_size=BATCH)
    return found | {
        "store.gather, 1,000 parts": (gather(thousand), 100),
        "mixture of two, any steps": (lambda n: mixture.batch(steps[n % len(steps)]), 50),
        "mixture of 50 from step 10^6, 64 x 2,048": (lambda n: fifty.batch(1_000_000 + n), 20),
        "mixture of 50, any steps": (lambda n: fifty.batch(steps[n % len(steps)]), 20),
    }


def config(weights: dict[str, float], seq_len: int, packing: PackingConfig | None = None) -> DataConfig:
    components = tuple(Component(name=name, path=name, weight=weight) for name, weight in weights.items())
    return DataConfig(components=components, seq_len=seq_len, packing=packing or PackingConfig())


def measure(home: Path, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Batches a CPU second, by name and round."""
    warm, rates, done = cases(home, num_tokens, warm=True), dict[str, list[float]](), dict[str, int]()
    for _ in range(rounds):
        for name, (make, count) in (cases(home, num_tokens, warm=False) | warm).items():
            first = done.get(name, 0)
            begin = time.process_time()
            for n in range(first, first + count):
                make(n)
            rates.setdefault(name, []).append(count / (time.process_time() - begin))
            done[name] = first + count
    return rates


def measure_packing(home: Path, rounds: int) -> list[float]:
    """CPU milliseconds in which 100,000 documents are packed."""
    store, took = TokenStore.open(home / "documents"), []
    for _ in range(rounds):
        begin = time.process_time()
        pack(store, config({"a": 1.0}, SEQ, PackingConfig(kind="documents")))
        took.append(1e3 * (time.process_time() - begin))
    return took


def measure_levanter(home: Path, rounds: int) -> dict[str, list[float]]:
    """Levanter's rates, over a cache of the same tokens; nothing if its environment is not there."""
    python = Path(os.environ.get("MARIN_BENCH_PEERS") or "/nonexistent").expanduser() / "m312/bin/python"
    if not python.exists():
        return {}
    tokens = home / "one" / "part-00000.bin"
    done = subprocess.run(
        [str(python), str(LEVANTER), str(tokens), str(home / "levanter"), str(rounds)],
        check=False, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    if done.returncode:
        print(f"Levanter failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}", file=sys.stderr)
        return {}
    return {f"Levanter: {name}": rates for name, rates in json.loads(done.stdout.splitlines()[-1]).items()}


def show(rates: dict[str, list[float]]) -> None:
    """A line a case."""
    floors = {warm: statistics.median(rates[WARM_FLOOR if warm else FLOOR]) for warm in (False, True)}
    print(f"{'batches a CPU second, 64 x 1,024':<46}{'median':>9}{'min':>9}{'max':>9}{'ms':>8}{'x numpy':>9}")
    for name, found in rates.items():
        middle = statistics.median(found)
        numbers = f"{middle:>9,.0f}{min(found):>9,.0f}{max(found):>9,.0f}{1e3 / middle:>8.3g}"
        print(f"  {name:<44}{numbers}{middle / floors[name.endswith('warm')]:>9.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 million tokens, three rounds")
    options = parser.parse_args()
    num_tokens, rounds = (10_000_000, 3) if options.quick else (100_000_000, 7)
    with tempfile.TemporaryDirectory(prefix="marin-bench-") as directory:
        home = Path(directory)
        write_store(home / "one", num_tokens, seed=1)
        write_store(home / "two", num_tokens // 2, seed=2)
        write_store(home / "thousand", num_tokens, seed=3, num_parts=1_000)
        write_store(home / "documents", 50_000_000, seed=4)
        show(measure(home, num_tokens, rounds) | measure_levanter(home, rounds))
        took = measure_packing(home, rounds)
        print(
            f"  {'packing 100,000 documents, ms':<44}{statistics.median(took):>9.3g}{min(took):>9.3g}{max(took):>9.3g}"
        )


if __name__ == "__main__":
    main()
