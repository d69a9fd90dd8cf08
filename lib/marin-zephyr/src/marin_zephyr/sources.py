"""Sources: what a module of the caller's depends on, told from its text, without running any of it.

A function may reach a module by attribute, or import it when it is called; and that module imports others. All of them
count, as far as they are the caller's own: each by its source. Installed packages count by version elsewhere. Only the
files are read, so a function that imports something heavy in a worker costs the driver nothing.

Invariant: a change of any source file that an import statement can lead to changes the digest.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path


def digest_sources(name: str, file: str | None, *, is_own: Callable[[str], bool]) -> str:
    """sha256 (hex) over a module's source and those of its imports.

    Args:
        name: the module, with dots.
        file: its file, where that is known; by default the one that an import would find.
        is_own: whether a file is the caller's, and not of an installed package.
    """
    digests: dict[str, bytes] = {}
    waiting = [(name, file or find_source(name))]
    while waiting:
        module, path = waiting.pop()
        if path is None or path in digests or not is_own(path) or not Path(path).is_file():
            continue
        package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
        stat = Path(path).stat()
        digests[path], imports = _known(path, package, stat.st_mtime_ns, stat.st_size)
        waiting += [(found, find_source(found)) for found in imports]
    return hashlib.sha256(b"".join(sorted(digests.values()))).hexdigest()


def find_source(name: str) -> str | None:
    """The file that an import of ``name`` would load, or None. Unlike `importlib.util.find_spec` it imports nothing."""
    path, spec = None, None
    parts = name.split(".")
    for i in range(len(parts)):
        try:
            spec = PathFinder.find_spec(".".join(parts[: i + 1]), path)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec.origin if spec else None


@functools.cache
def _known(path: str, package: str, _mtime_ns: int, _size: int) -> tuple[bytes, tuple[str, ...]]:
    """The digest of a source and the modules that it may import; parsed once while the file stays as it is."""
    source = Path(path).read_bytes()
    imports = _imports(source, package) if path.endswith(".py") else ()
    return hashlib.sha256(source).digest(), tuple(dict.fromkeys(imports))


def _imports(source: bytes, package: str) -> Iterator[str]:
    """The modules that import statements anywhere in a source name, or may name."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)  # a submodule, perhaps


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
