"""Sweeps and adopted data: many steps from one function, and steps for data that no step made.

`sweep` is a product of values in a fixed order, nothing more: a list of handles, each with its own address, that any
other step takes as one argument. `adopt` names data that exists already by what is in it (relative paths, sizes,
sha256), so the same files elsewhere are the same input, and a changed byte is a new one. Adopted data is read-only by
construction: its step has no body, and the runner never writes outside the prefix.
"""

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marin_core.errors import UsageError
from marin_core.records import FileEntry
from marin_core.steps import Resources, Step, StepFunction


def sweep(function: StepFunction, *, over: Mapping[str, Iterable[Any]], **fixed: Any) -> list[Step]:
    """One handle for each combination of values.

    Args:
        function: a step function.
        over: parameter -> its values. The last parameter varies fastest.
        fixed: arguments (and ``name``, ``version``…) that all handles share.

    Returns:
        The handles, in the order of `itertools.product`.

    Example:
        >>> grid = sweep(train, over={"lr": [1e-3, 3e-3], "seed": range(2)}, data=tokens)
    """
    for name in over:
        if name in fixed:
            raise UsageError(f"sweep of {function.__name__}: {name!r} is both swept over and fixed")
    combinations = itertools.product(*(list(values) for values in over.values()))
    return [function(**fixed, **dict(zip(over, values, strict=True))) for values in combinations]


def adopt(path: str | os.PathLike[str], *, name: str | None = None, files: Iterable[str] | None = None) -> Step:
    """A step whose output is a file or directory that exists already. It is read, hashed and never written.

    Args:
        path: a local file or directory.
        name: the step's name; default the path's last component.
        files: the files under ``path`` that matter, relative to it; default all. What else lies there has no part
            in the identity, so a body must not read it.

    Raises:
        UsageError: there is nothing at the path, or a named file is not there.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise UsageError(f"adopt({str(path)!r}): there is no such file or directory")
    listing = _listing(root, files)
    content = hashlib.sha256("".join(f"{e.path}\0{e.size}\0{e.sha256}\n" for e in listing).encode()).hexdigest()
    size = sum(e.size for e in listing)
    handle = _adopted(content=content, num_files=len(listing), num_bytes=size, name=name or _word(root.name))
    return Step(
        function=_adopted,
        arguments=MappingProxyType(dict(handle.arguments)),
        name=handle.name,
        version=None,
        resources=Resources(),
        retries=0,
        external=str(root),
    )


def _existing_data(*, content: str, num_files: int, num_bytes: int) -> None:
    """Data that was there before; the digest of its listing is its identity."""


_adopted = StepFunction(_existing_data)


def _listing(root: Path, files: Iterable[str] | None) -> list[FileEntry]:
    if files is not None:
        paths = sorted(root / name for name in files)
        if absent := next((p for p in paths if not p.is_file()), None):
            raise UsageError(f"adopt({str(root)!r}): there is no file {str(absent)!r}")
    else:
        paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda p: _entry(p, root, p.stat().st_mtime_ns, p.stat().st_size), paths))


@functools.lru_cache(maxsize=65536)
def _entry(path: Path, root: Path, _mtime: int, size: int) -> FileEntry:
    with path.open("rb") as f:
        sha256 = hashlib.file_digest(f, "sha256").hexdigest()
    relative = path.name if path == root else path.relative_to(root).as_posix()
    return FileEntry(path=relative, size=size, sha256=sha256)


def _word(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text).lstrip(".-") or "data"
