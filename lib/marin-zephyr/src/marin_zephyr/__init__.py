"""marin_zephyr: lazy datasets for text. Clean, de-duplicate and tokenize on all cores, without losing a row quietly.

- `Dataset`     a lazy plan: files or rows, row functions and Polars expressions, a sink. Nothing runs.
- `Session`     runs a plan in this process or on a pool of workers, resumes what was committed, reports every row.
- `col`, `lit`  Polars's own expressions; `agg` are aggregates that combine across shards.
- `TokenStore`  reads a token store: the files between tokenization and training.

Importing this package loads neither Polars, Arrow, NumPy nor SciPy: each loads on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marin_zephyr.dataset import Dataset
from marin_zephyr.session import Session

if TYPE_CHECKING:
    from polars import col, lit

    from marin_zephyr import columns as agg
    from marin_zephyr.tokens.store import TokenStore

__all__ = ["Dataset", "Session", "TokenStore", "agg", "col", "lit"]

_LAZY = {"col": "polars", "lit": "polars", "TokenStore": "marin_zephyr.tokens.store"}


def __getattr__(name: str) -> Any:
    if name == "agg":
        return import_module("marin_zephyr.columns")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'marin_zephyr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
