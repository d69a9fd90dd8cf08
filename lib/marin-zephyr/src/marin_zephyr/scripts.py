"""Scripts: Python files that name a dataset, as the commands ``run`` and ``explain`` take them.

A script is run under the name ``__zephyr__``, so that what it guards by ``__main__`` is left alone.
"""

from __future__ import annotations

import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import UsageError, UserCodeError, ZephyrError


def load(script: str) -> tuple[Dataset, str]:
    """The dataset that ``file.py:name`` names, and a short name for it.

    Args:
        script: a Python file and, after a colon, a name in it: a `Dataset`, or a function that returns one. By default
            ``dataset``.

    Raises:
        UsageError: there is no such file, it is no Python, or the name is no dataset.
        UserCodeError: the file, or the function, raised.
    """
    file, _, name = script.partition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"{file}: no such file; give a Python file, such as clean.py or clean.py:dataset")
    _check_python(path)
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        names = runpy.run_path(str(path), run_name="__zephyr__")
        value = names.get(name or "dataset")
        if callable(value):
            value = value()
    except ZephyrError:
        raise
    except Exception as e:
        lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == str(path)]
        place = f", line {lines[-1]}" if lines else ""
        raise UserCodeError(f"{file}{place}: {type(e).__name__}: {e}") from e
    if not isinstance(value, Dataset):
        raise UsageError(f"{file}: {_missing(name or 'dataset', names)}")
    return value, path.stem


def _missing(name: str, names: dict[str, Any]) -> str:
    others = [other for other, value in names.items() if isinstance(value, Dataset)]
    have = f"; it has {', '.join(others)}: say which after a colon" if others else ""
    if name not in names:
        return f"has no {name!r}, a Dataset or a function that returns one{have}"
    return f"{name!r} is {type(names[name]).__name__}, no Dataset and no function that returns one{have}"


def _check_python(path: Path) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # running it will warn
            compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as e:
        place = "" if e.lineno is None else f", line {e.lineno}"
        raise UsageError(f"{path}{place}: not Python: {e.msg}") from e
    except (ValueError, RecursionError, MemoryError) as e:
        raise UsageError(f"{path}: not Python: {e or type(e).__name__}") from e
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
