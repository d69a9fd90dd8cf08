"""What every trainer under measurement shares: the shape, the data, and how it is told to take steps.

A trainer is a process that lives through the whole measurement. It takes one step, says what starting took, and then
reads numbers of steps from its input, one a line, and answers each with a line of JSON. Rounds of several trainers can
so be interleaved although each compiles but once. This file needs NumPy alone and runs in every peer's environment.

Text to learn from is Python's standard library, its most frequent words and signs numbered: random ids teach nothing,
and at equal speed the better loss wins. All see the same sequences in the same order, and start from the same weights
where they can load them.
"""

import json
import re
import resource
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LEARNING_RATE, BETA2, WEIGHT_DECAY, CLIP, EPS = 1e-3, 0.95, 0.1, 1.0, 1e-5
STEPS = 1000
"""How many steps of data there are; later ones see them again."""


@dataclass(frozen=True)
class Shape:
    """A Llama of as many key heads as heads, its head untied, and the batches that it sees."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    mlp: int = 768
    vocab: int = 8192
    seq_len: int = 512
    batch: int = 8

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def write_tokens(shape: Shape, path: Path) -> None:
    """Sequences for `STEPS` steps, each with the token after it."""
    words: list[str] = []
    wanted = STEPS * shape.batch * (shape.seq_len + 1)
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in file.parts:
            words += re.findall(r"\w+|\s+|[^\w\s]", file.read_text(encoding="utf-8", errors="ignore"))
        if len(words) >= wanted:
            break
    ids = {word: i for i, (word, _) in enumerate(Counter(words).most_common(shape.vocab - 1), 1)}
    stream = np.array([ids.get(word, 0) for word in words], np.int32)
    np.save(path, np.resize(stream, (STEPS, shape.batch, shape.seq_len + 1)))


def read_shape() -> tuple[Shape, np.ndarray]:
    """The first two arguments of a trainer's process."""
    return Shape(**json.loads(sys.argv[1])), np.load(sys.argv[2], mmap_mode="r")


def serve(step: Callable[[np.ndarray], float], tokens: np.ndarray, **told: object) -> None:
    """Takes a first step, says so with what is `told` besides, and then steps as often as it is asked to."""
    done = 0

    def take() -> dict[str, float]:
        nonlocal done
        batch = np.array(tokens[done % len(tokens)])
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step(batch)
        done += 1
        return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "loss": loss}

    first = take()
    print(json.dumps({"first_step": first["seconds"], "loss": first["loss"], **told}), flush=True)
    for line in sys.stdin:
        rows = [take() for _ in range(int(line))]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"steps": rows, "memory_mb": memory}), flush=True)
