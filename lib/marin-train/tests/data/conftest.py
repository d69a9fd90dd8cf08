"""Mixtures of small stores, whose tokens say where they lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_train.configs import Component, DataConfig
from marin_train.data.mixture import Mixture


@pytest.fixture
def mixture(tmp_path: Path, write_store: Callable[..., Path]) -> Callable[..., Mixture]:
    """Opens a mixture of three stores of 20, 7 and 13 sequences whose tokens number their place in their store."""
    for i, (name, size) in enumerate({"a": 20, "b": 7, "c": 13}.items()):
        tokens = (1000 * i + np.arange(size * 4 + 1)).tolist()
        write_store(tmp_path / name, [[tokens[:30], tokens[30:]]], vocab_size=5000)

    def make(
        names: str = "abc", *, batch_size: int = 5, steps: int = 0, of: dict[str, dict[str, Any]] | None = None,
        a: float = 1.0, b: float = 1.0, c: float = 1.0, **changes: Any,
    ) -> Mixture:  # fmt: skip
        weights = {"a": a, "b": b, "c": c}
        components = tuple(
            Component(name=n, path=str(tmp_path / n), weight=weights[n], **(of or {}).get(n, {})) for n in names
        )
        config = DataConfig(components=components, **{"seq_len": 4} | changes)
        return Mixture.open(config, batch_size=batch_size, vocab_size=5000, steps=steps)

    return make
