"""Levanter's checkpoints of equal state. Usage: checkpoints_levanter.py COPIES; each line of input is where to save.

What it writes is flushed to the disk by `flush_all`, as the others' is.
"""

import os
import sys
from pathlib import Path

import jax
import numpy as np
from checkpoint_state import draw_state, flush_all
from children import answer
from levanter.checkpoint import save_checkpoint  # type: ignore[import-not-found]


def main() -> None:
    state = draw_state(int(sys.argv[1]))

    def save(directory: str) -> None:
        save_checkpoint(state, 0, directory)
        flush_all(Path(directory))

    with jax.set_mesh(jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))):
        answer(save)
    os._exit(0)


if __name__ == "__main__":
    main()
