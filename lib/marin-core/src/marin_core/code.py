"""The code digest: what the source of a function amounts to, together with all the workspace code it reaches.

From a step's function the reach follows every name its body reads: through imports (also inside bodies), attributes
of imported workspace modules, and the names that a package's ``__init__`` declares for lazy export under ``if
TYPE_CHECKING:``. A string that spells a workspace module (``"pkg.models.x"``, or ``f"pkg.models.{name}"``, then every
module there) is taken for a dynamic import. What is reached are units, that is module-level functions, classes and
constants, each with a digest over its syntax tree. The reach is conservative: a module that is passed about as an
object counts whole, and an object's methods count with its class.

Static on purpose: nothing is imported and nothing runs, so a plan is cheap, and what a name was monkeypatched to at run
time does not count. Following names, rather than hashing files, is what redun and Snakemake do, taken further down:
whole-file triggers rebuild on a comment, and single-function triggers miss a helper.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_core import sources
from marin_core.errors import EncodingError
from marin_core.syntax import Chain, Import, Kind, Read, Summary, summarise

Unit = tuple[Path, str]
"""A source file, and a name that it defines at module level."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code that a function reaches.

    ``units`` maps ``module:name`` to the unit's digest and ``kinds`` to what it is; ``files`` maps each source file to
    its (mtime_ns, size) just before it was read.
    """

    digest: str
    units: dict[str, str]
    kinds: dict[str, Kind]
    files: dict[Path, tuple[int, int]]

    def changed_files(self) -> list[Path]:
        """Files edited since the digest was taken: what would run now is no longer what was digested."""
        return [path for path, seen in self.files.items() if not path.exists() or _stamp(path) != seen]


def function_name(function: Callable[..., Any] | type) -> str:
    """``module:qualname`` with the module named after its file, so that a script and its import agree."""
    path = source_path(function)
    module = sources.module_name(path) if path and sources.is_workspace(path) else function.__module__
    return f"{module}:{function.__qualname__}"


@functools.lru_cache(maxsize=4096)
def source_path(function: Callable[..., Any] | type) -> Path | None:
    """The file that defines a function or class, if it has one."""
    if isinstance(function, type):
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
    else:
        file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    return Path(file).resolve() if file and Path(file).is_file() else None


class Reach:
    """One look at the workspace: every file is read once, so that all steps of a graph see the same sources."""

    def __init__(self) -> None:
        self._summaries: dict[Path, Summary] = {}
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._uses: dict[Unit, tuple[Unit, ...]] = {}
        self._codes: dict[tuple[Path | None, str], Code] = {}

    def code_of(self, function: Callable[..., Any] | type) -> Code:
        """The code of a function or class and of everything in the workspace that it reaches.

        Raises:
            EncodingError: the function has no source file, or is not bound to its name at module level there.
        """
        path = source_path(function)
        key = (path, function.__qualname__)
        if key not in self._codes:
            if path is None:
                full = f"{function.__module__}.{function.__qualname__}"
                raise EncodingError(f"{full} has no source file; define it in a module or script")
            if sources.is_workspace(path):
                self._codes[key] = self._closure(path, function.__qualname__.split(".")[0])
            else:
                self._codes[key] = Code(digest=_sha(function_name(function)), units={}, kinds={}, files={})
        return self._codes[key]

    def _closure(self, path: Path, name: str) -> Code:
        reached: dict[Unit, None] = {}
        queue = list(self._resolve(path, (name,)))
        if not queue:
            raise EncodingError(f"{name!r} is not defined at module level of {path}")
        while queue:
            unit = queue.pop()
            if unit not in reached:
                reached[unit] = None
                queue.extend(self._used_by(unit))
        named = {f"{sources.module_name(p)}:{n}": self._summary(p).units[n] for p, n in reached}
        digests = {n: named[n].digest for n in sorted(named)}
        return Code(
            digest=_sha("\n".join(f"{n} {d}" for n, d in digests.items())),
            units=digests,
            kinds={n: unit.kind for n, unit in named.items()},
            files={p: self._stamps[p] for p in sorted({p for p, _ in reached})},
        )

    def _summary(self, path: Path) -> Summary:
        if path not in self._summaries:
            self._stamps[path] = _stamp(path)  # first, so that an edit while it is read is seen by `changed_files`
            self._summaries[path] = summarise(path)
        return self._summaries[path]

    def _used_by(self, unit: Unit) -> tuple[Unit, ...]:
        if unit not in self._uses:
            path, name = unit
            reads = self._summary(path).units[name].reads
            self._uses[unit] = tuple(dict.fromkeys(u for read in reads for u in self._follow(path, read)))
        return self._uses[unit]

    def _follow(self, path: Path, read: Read) -> Iterator[Unit]:
        """The units that a read in the file ``path`` leads to."""
        if read.local is None:
            yield from self._resolve(path, read.chain)
        elif read.local.module.endswith("."):
            package = sources.locate(read.local.module.rstrip("."))
            for module in sources.package_modules(package) if package else ():
                yield from self._through(module, ())
        else:
            yield from self._behind(read.local, path, read.chain)

    def _behind(self, imported: Import, path: Path, rest: Chain) -> Iterator[Unit]:
        """Units behind a name that an import in the file ``path`` binds, followed by ``rest``."""
        module = sources.target(imported, path)
        if module is not None:
            yield from self._through(module, rest if imported.attribute is None else (imported.attribute, *rest))

    def _through(self, module: Path, chain: Chain) -> Iterator[Unit]:
        """Units behind ``module.chain``: its attribute or a submodule's; the whole module if nothing follows."""
        is_file = module.suffix == ".py"
        if not chain:
            yield from ((module, name) for name in (self._summary(module).units if is_file else ()))
            return
        found = list(self._resolve(module, chain)) if is_file else []
        below = sources.submodule(module, chain[0])
        if found or below is None:
            yield from found or (self._resolve(module, ("__getattr__",)) if is_file else ())
        else:
            yield from self._through(below, chain[1:])

    def _resolve(self, path: Path, chain: Chain) -> Iterator[Unit]:
        """Units that a dotted name stands for in a file: its own, or those behind its imports."""
        summary, name = self._summary(path), chain[0]
        if name in summary.units:
            yield path, name
        for imported in summary.imports.get(name, ()):
            if (sources.target(imported, path), imported.attribute) != (path, name):
                yield from self._behind(imported, path, chain[1:])
        if name not in summary.units and name not in summary.imports:
            for star in summary.stars:
                yield from self._behind(star._replace(attribute=None), path, chain)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size
