"""The code digest: what the source of a function amounts to, together with all the workspace code it reaches.

From a step's function, and from the classes of the objects that it is given, the reach follows every name that is read:
through imports (also inside bodies, by text, and by the file of a script), attributes of imported workspace modules,
star imports, and the lazy exports of a package. What is reached are units: module-level functions, classes and
constants, each with a digest over its syntax tree (`syntax`) and over where the names that it reads from outside the
workspace are imported from. Loading a module runs it, so what acts on others then belongs to every step that loads it:
calls at module level, changes to another module's objects, functions that a workspace decorator may register, classes
that their base class may. A call whose result is kept (``ok = register(f)``, also in a class body, a default or a
condition) does so if it calls a method of an object of the workspace, or workspace code that may change something it
has not made; one of a library, of a step, or of code that only makes a value belongs to the name that it is bound to.
The reach is conservative: a module that is passed about as an object, or searched with
``globals()``, counts whole, and an object's methods count with its class.

Static on purpose: nothing is imported and nothing runs, so a plan is cheap. Following names, rather than hashing files,
is what redun and Snakemake do, taken further down: whole-file triggers rebuild on a comment, and single-function
triggers miss a helper. What no reading of source can see, it does not see:

- names that are put together at run time (``import_module(a + b)``, ``getattr(obj, name)`` of an object whose class is
  reached in no other way), classes that come out of a pickle, and the list that ``__subclasses__()`` gives;
- monkeypatches and globals that ``build``, a test or a notebook sets in the driver's process alone;
- an object of the workspace that is changed through another name for it (``alias = CONFIG; alias["x"] = 1``), by a
  library that gets it while its result is kept (``ok = heapq.heappush(HEAP, x)``), or by a method called like one of
  text, paths, loggers or the reading ones of a dict (`scopes.HARMLESS`);
- directories that a body adds to ``sys.path``;
- what is no Python source: files beside a module, environment variables, extension modules, modules in a zip archive,
  programs that a body starts, other than scripts of the workspace. `adopt` files that matter; pass variables as
  arguments.

Installed packages, Python itself and marin_core are environment, not code.
"""

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin_core.code import loading, sources, syntax
from marin_core.code.imports import Chain, Import, Read
from marin_core.code.scopes import CHANGED, HARMLESS
from marin_core.code.syntax import Summary, summarise
from marin_core.errors import EncodingError

Unit = tuple[Path, str]
"""A source file, and a name that it defines at module level."""

_SCRIPTS = ("__main__", "__mp_main__")


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code that a function reaches.

    ``units`` maps ``module:name`` to the beginning of the unit's digest, and ``kinds`` to what it is. A unit that reads
    names from outside the workspace has ``+`` and the beginning of a digest of where they come from after it. ``files``
    maps each source file to its (mtime_ns, size) just before it was read.
    """

    digest: str
    units: dict[str, str]
    kinds: dict[str, str]
    files: dict[Path, tuple[int, int]]
    roots: tuple[Any, ...] = ()
    """The function, and the functions and classes that it is given."""
    values: tuple[tuple[str, str], ...] = ()
    """What the values that it is given are restored as, by parameter."""

    def changed_files(self) -> list[Path]:
        """Files edited since the digest was taken: what would run now is no longer what was digested."""
        return [path for path, seen in self.files.items() if not path.exists() or loading.stamp(path) != seen]


_SHOWN = 12
"""Hexadecimal digits of a unit's digest in a record: it says which one changed; the whole decides whether one has."""


def function_name(function: Callable[..., Any] | type) -> str:
    """``module:qualname`` with the module named after its file, so that a script and its import agree."""
    path = source_path(function)
    module = sources.module_name(path) if path and sources.is_workspace(path) else function.__module__
    return f"{module}:{function.__qualname__}"


@functools.lru_cache(maxsize=4096)
def source_path(function: Callable[..., Any] | type) -> Path | None:
    """The file that defines a function or class, if it has one; a script by its real place, a module by the path it
    was imported from, because that is what its relative imports start from."""
    inner = function if isinstance(function, type) else inspect.unwrap(function)
    module = getattr(sys.modules.get(inner.__module__), "__file__", None)
    file = getattr(getattr(inner, "__code__", None), "co_filename", None) or module
    if file and module and not os.path.isabs(file) and os.path.basename(file) == os.path.basename(module):  # noqa: PTH117, PTH119
        file = module  # Python names a script as it was called, from a directory that may have been left since
    if not file or not Path(file).is_file():
        return None
    return Path(file).resolve() if inner.__module__ in _SCRIPTS else Path(os.path.abspath(file))  # noqa: PTH100


class Reach:
    """One look at the workspace: every file is read once, so that all steps of a graph see the same sources."""

    def __init__(self) -> None:
        loading.note_reloaded()
        self._summaries: dict[Path, Summary] = {}
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._uses: dict[Unit, tuple[tuple[Unit, ...], str]] = {}
        self._acting: dict[Unit, bool] = {}
        self._codes: dict[Any, Code] = {}
        self._named: dict[str, Path | None] = {}

    def code_of(
        self, function: Callable[..., Any] | type, *given: Callable[..., Any], values: Iterable[tuple[str, str]] = ()
    ) -> Code:
        """The code of a function or class and of everything in the workspace that it reaches.

        Args:
            function: what runs.
            given: the functions that it is given, and the classes of the objects.
            values: what recorded values are restored as before it gets them: parameter and `results.form`.

        Raises:
            EncodingError: the function has no source file, or is not bound to its name at module level there.
        """
        parts, values = tuple(dict.fromkeys((function, *given))), tuple(values)
        places = tuple((source_path(part), part.__qualname__) for part in parts)
        key = (places, values)
        if key not in self._codes:
            roots: list[Unit] = []
            for (path, name), part in zip(places, parts, strict=True):
                if path is None and part is function:
                    full = f"{function.__module__}.{function.__qualname__}"
                    raise EncodingError(
                        f"{full} has no source file, as in a heredoc or notebook cell: put steps into a module, and "
                        "import them from there"
                    )
                if path is not None and sources.is_workspace(path):
                    roots.extend(self._roots(path, name.split(".")[0]))
            name = function_name(function)
            own = "" if roots else name
            more = {f"{name}({parameter})": form for parameter, form in values}
            self._codes[key] = replace(self._closure(roots, own, more), roots=parts, values=values)
        return self._codes[key]

    def again(self, code: Code) -> Code:
        """The same code as this look sees it."""
        return self.code_of(*code.roots, values=code.values)

    def name_of(self, function: Callable[..., Any] | type) -> str:
        """`function_name`, which in one look at the workspace stands for one file alone.

        Raises:
            EncodingError: another file comes out as the same module.
        """
        name, path = function_name(function), source_path(function)
        known = self._named.setdefault(name.partition(":")[0], path)
        if known != path:
            raise EncodingError(
                f"{known} and {path} are both the module {name.partition(':')[0]!r}; put a pyproject.toml into the "
                "directory that they are imported from"
            )
        return name

    def _roots(self, path: Path, name: str) -> Iterator[Unit]:
        found = list(self._resolve(path, (name,)))
        if not found:
            raise EncodingError(f"{name!r} is not defined at module level of {path}")
        yield from found

    def _closure(self, roots: list[Unit], own: str, values: Mapping[str, str]) -> Code:
        reached: dict[Unit, None] = {}
        loaded: dict[Path, None] = {}
        queue = list(roots)
        while queue:
            unit = queue.pop()
            if unit in reached:
                continue
            reached[unit] = None
            path, name = unit
            queue.extend(self._used_by(unit)[0])
            loads = self._summary(path).units[name].loads
            for module in (path, *(m for i in loads for m in sources.loaded_modules(i, path))):
                queue.extend(self._load(module, loaded))
        digests: dict[str, tuple[str, str]] = {name: (_sha(form), "") for name, form in values.items()}
        kinds: dict[str, str] = dict.fromkeys(values, "type of")
        named = [(_full_name(u), self._summary(u[0]).units[u[1]], self._used_by(u)[1]) for u in reached]
        for name, unit, imports in sorted(named, key=lambda n: (n[0], n[1].digest)):
            # Two files without a project around them may come out as one module; neither may hide the other.
            known = digests.get(name)
            digests[name] = (unit.digest, imports) if known is None else (_sha(f"{known} {unit.digest}"), imports)
            kinds[name] = unit.kind
        return Code(
            digest=_sha("\n".join([own, *(f"{n} {d} {i}" for n, (d, i) in sorted(digests.items()))])),
            units={n: d[:_SHOWN] + (f"+{i[:8]}" if i else "") for n, (d, i) in sorted(digests.items())},
            kinds=kinds,
            files={p: self._stamps[p] for p in sorted({p for p, _ in reached} | set(loaded))},
        )

    def _load(self, module: Path, loaded: dict[Path, None]) -> Iterator[Unit]:
        """Units that act when a module is loaded: its own, and those of the modules that it loads in turn."""
        queue = [module]
        while queue:
            path = queue.pop()
            if path in loaded or path.suffix != ".py":
                continue
            loaded[path] = None
            summary = self._summary(path)
            yield from ((path, name) for name in summary.effects)
            yield from ((path, name) for name in summary.suspects if self._acts((path, name)))
            yield from ((path, name) for name in summary.registered if self._is_registered(path, name))
            queue.extend(sources.packages_around(path))
            for imported in summary.loads:
                queue.extend(sources.loaded_modules(imported, path))

    def _is_registered(self, path: Path, name: str, seen: tuple[Unit, ...] = ()) -> bool:
        """Whether workspace code sees the definition of a unit: as its decorator, or because its class inherits."""
        summary = self._summary(path)
        for chain in summary.registered.get(name, ()):
            for base, its in self._resolve(path, chain):
                unit = self._summary(base).units[its]
                if unit.kind == "class":
                    known = its in self._summary(base).registrars
                    if known or ((base, its) not in seen and self._is_registered(base, its, (*seen, (base, its)))):
                        return True
                elif unit.kind != "import":
                    return True
        return False

    def _acts(self, unit: Unit) -> bool:
        """Whether a statement's calls and assignments, when the module is loaded, may change what others read."""
        touched = (found for read in self._unit(unit).acts for found in self._touched(unit, read))
        return any(is_object or self._is_acting(called) for called, is_object in touched)

    def _touched(self, own: Unit, read: Read) -> Iterator[tuple[Unit, bool]]:
        """The units that something called or changed in a unit leads to, and whether it is an object, itself changed
        or with a method of its own called."""
        changed = read.chain[-1:] == (CHANGED,)
        is_name = len(read.chain) == (1 if read.local is None else 0)
        for unit in self._follow(own[0], read._replace(chain=read.chain[:-1]) if changed else read):
            kind = self._unit(unit).kind
            is_object = changed or (kind == "constant" and not is_name)
            harmless = is_object and read.chain[-1] in HARMLESS
            if unit != own and kind not in ("import", "statement") and not harmless:
                yield unit, is_object

    def _is_acting(self, callee: Unit) -> bool:
        """Whether a call of a unit may change an object of the workspace. A call of a step runs nothing."""
        seen: dict[Unit, None] = {}
        queue = [callee]
        while queue and callee not in self._acting:
            at = queue.pop()
            unit = self._unit(at)
            if at in seen or unit.is_step or self._acting.get(at) is False:
                continue
            seen[at] = None
            used = self._used_by(at)[0]
            touched = [found for read in unit.changes for found in self._touched(at, read)]
            acting = unit.touches or self._acting.get(at, False) or any(is_object for _, is_object in touched)
            if unit.kind not in ("helper", "class"):  # a constant that is called may be the method of another one
                acting = acting or any(self._unit(u).kind == "constant" for u in used)
            if acting:
                self._acting[callee] = True
            queue.extend(u for u, _ in touched)
            queue.extend(u for u in used if self._unit(u).kind in ("helper", "class"))
        if callee not in self._acting:
            self._acting.update(dict.fromkeys(seen, False))
        return self._acting.get(callee, False)

    def _unit(self, unit: Unit) -> syntax.Unit:
        return self._summary(unit[0]).units[unit[1]]

    def _summary(self, path: Path) -> Summary:
        if path not in self._summaries:
            self._stamps[path] = loading.stamp(path)  # first, so that `changed_files` sees an edit while it is read
            loading.note_seen(path, self._stamps[path])
            self._summaries[path] = summarise(path)
        return self._summaries[path]

    def _used_by(self, unit: Unit) -> tuple[tuple[Unit, ...], str]:
        """The units that one leads to, and a digest of where the names that it reads from outside the workspace come
        from; empty if it reads none. Units of their own, such names would be half of all that a record has to hold."""
        if unit not in self._uses:
            path, name = unit
            reads = self._summary(path).units[name].reads
            used: dict[Unit, None] = {}
            imports: set[str] = set()
            for u in dict.fromkeys(u for read in reads for u in self._follow(path, read)):
                found = self._summary(u[0]).units[u[1]]
                if found.kind == "import":
                    imports.add(f"{_full_name(u)} {found.digest}")
                else:
                    used[u] = None
            self._uses[unit] = tuple(used), _sha("\n".join(sorted(imports))) if imports else ""
        return self._uses[unit]

    def _follow(self, path: Path, read: Read) -> Iterator[Unit]:
        """The units that a read in the file ``path`` leads to."""
        if read.local is None:
            yield from self._resolve(path, read.chain)
        elif read.local.module.endswith("."):
            package = sources.target(read.local._replace(module=read.local.module.rstrip(".")), path)
            yield from self._all_of(sources.package_modules(package) if package else ())
        else:
            yield from self._behind(read.local, path, read.chain)

    def _all_of(self, modules: Iterable[Path]) -> Iterator[Unit]:
        return ((module, name) for module in modules for name in self._summary(module).units)

    def _behind(self, imported: Import, path: Path, rest: Chain) -> Iterator[Unit]:
        """Units behind a name that an import in the file ``path`` binds, followed by ``rest``."""
        module = sources.target(imported, path)
        if module is not None:
            yield from self._through(module, rest if imported.attribute is None else (imported.attribute, *rest))

    def _through(self, module: Path, chain: Chain) -> Iterator[Unit]:
        """Units behind ``module.chain``: its attribute or a submodule's; the whole module if nothing follows."""
        is_file = module.suffix == ".py"
        if not chain:
            yield from self._all_of([module] if is_file else ())
            return
        found = list(self._resolve(module, chain, outside=True)) if is_file else []
        below = sources.submodule(module, chain[0])
        if found:
            yield from found
        elif below is not None:
            yield from self._through(below, chain[1:])
        elif is_file and "__getattr__" in self._summary(module).units:
            # Made on demand, by code that may look anywhere in the package.
            yield from self._resolve(module, ("__getattr__",))
            yield from self._all_of(sources.package_modules(module) if module.name == "__init__.py" else [module])

    def _resolve(self, path: Path, chain: Chain, *, outside: bool = False) -> Iterator[Unit]:
        """Units that a dotted name stands for in a file: its own, or those behind its imports. For a reader outside
        the file, what it imports for type checkers alone says where its lazy exports come from."""
        summary, name = self._summary(path), chain[0]
        found = [(path, name)] if name in summary.units and summary.units[name].kind != "import" else []
        lazy = summary.typing.get(name, ()) if outside else ()
        for imported in (*summary.imports.get(name, ()), *lazy):
            if (sources.target(imported, path), imported.attribute) != (path, name):
                found.extend(self._behind(imported, path, chain[1:]))
        if name not in summary.units and name not in summary.imports:
            for star in summary.stars:
                found.extend(self._behind(star._replace(attribute=None), path, chain))
        # What lies outside the workspace counts by where it is taken from.
        yield from found or ([(path, name)] if name in summary.units else [])


def _full_name(unit: Unit) -> str:
    return f"{sources.module_name(unit[0])}:{unit[1]}"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
