"""Fingerprints: what a stage's result depends on, as sha256 over type-tagged canonical text.

A function's fingerprint covers its bytecode and constants, its defaults, the values it closes over, what it wraps
(``functools.cache``, ``wraps``) or dispatches to, and, recursively, the functions, classes and constants of the
caller's own modules that it names. A module that it uses by attribute, or imports when called, counts by its source and
those of all it imports (`sources`). An object counts by its class and its state, slots and contents included. Installed
packages and the standard library count by name and version. Comments, layout, line numbers and file paths do not count.

Invariant: equal fingerprints mean equal results; the reverse need not hold. A value that has no canonical form counts
by its pickle, which at worst makes a stage run once more than it must.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import gc
import hashlib
import importlib.metadata
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Generator, Iterable
from pathlib import Path, PurePath
from typing import Any

from marin_zephyr.sources import digest_sources, find_source

_INSTALLED = tuple(
    str(Path(p)) for key in ("stdlib", "platstdlib", "purelib", "platlib") if (p := sysconfig.get_paths().get(key))
)
_BEHIND = ("__wrapped__", "registry", "register")
"""Attributes under which `functools` keeps the functions behind a function."""
_BUILT_IN = (dict, list, tuple, set, frozenset, str, bytes, int, float)
_METHODS = (types.MethodType, types.BuiltinFunctionType)
_NAMING = frozenset(("__module__", "__qualname__", "__doc__", "__firstlineno__"))
_PYTHON_IN_EXPR = b"PLPY"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def fingerprint(value: Any) -> str:
    """sha256 (hex) of a value: plain data, dataclasses, expressions, functions with all they reach."""
    return _Walk().digest(value)


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of whatever can change bytes: Python and the packages that read, compute and write."""
    names = ("marin-zephyr", "polars", "pyarrow", "numpy", "xxhash", "zstandard")
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: _version(name) for name in names}}


class _Walk:
    """A traversal. A value within itself counts as its depth, so that recursion ends; one met twice is walked once."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._done: dict[int, str] = {}
        self._alive: list[Any] = []

    def digest(self, value: Any) -> str:
        if type(value) in _PLAIN:
            return _sha256((type(value).__name__, repr(value)))
        key = id(value)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            return _sha256(("recursion", str(self._open[key])))
        self._open[key] = len(self._open)
        self._alive.append(value)  # an id names an object only while it lives
        self._done[key] = _sha256(self._parts(value))
        del self._open[key]
        return self._done[key]

    def _parts(self, value: Any) -> Iterable[str]:
        kind = type(value)
        if kind in (list, tuple):
            return kind.__name__, *map(self.digest, value)
        if kind in (dict, types.MappingProxyType):
            return "dict", *(self.digest(k) + self.digest(v) for k, v in value.items())
        if kind in (set, frozenset):
            return kind.__name__, *sorted(map(self.digest, value))
        return self._object(value)

    def _object(self, value: Any) -> Iterable[str]:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.MethodType):
            return "method", self.digest(value.__func__), self.digest(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.digest(value.func), self.digest(value.args), self.digest(value.keywords)
        if isinstance(value, functools.singledispatchmethod):
            return "dispatcher", self.digest(value.dispatcher)
        if isinstance(value, functools._lru_cache_wrapper):  # not what it has cached so far
            return "cached", self.digest(value.__wrapped__), self.digest(value.cache_parameters())
        if isinstance(value, enum.Enum):
            return "enum", self.digest(type(value)), value.name
        if isinstance(value, PurePath):
            return "path", str(value)
        if isinstance(value, re.Pattern):
            return "pattern", self.digest(value.pattern), str(value.flags)
        if type(value).__module__.startswith("polars.") and hasattr(value, "meta"):
            return "expr", hashlib.sha256(_serialized(value)).hexdigest()
        if dataclasses.is_dataclass(value):
            counting = (f for f in dataclasses.fields(value) if f.metadata.get("counts", True))
            fields = [f.name + self.digest(getattr(value, f.name)) for f in counting]
            return "dataclass", self.digest(type(value)), *fields
        return self._other(value)

    def _function(self, fn: types.FunctionType) -> Iterable[str]:
        # Who wraps a function takes over the name of its module, and still is another's code.
        if _is_installed(fn) and _is_installed_module(fn.__globals__.get("__name__", "")):
            return "installed", *_identity(fn)
        cells = [_cell(cell) for cell in fn.__closure__ or ()]
        named = [name for name in _names(fn.__code__) if name in fn.__globals__]
        attributes = {k: v for k, v in vars(fn).items() if k not in _BEHIND and not isinstance(v, _METHODS)}
        return (
            "function",
            self.digest(fn.__code__),
            self.digest(fn.__defaults__),
            self.digest(fn.__kwdefaults__),
            *map(self.digest, cells),
            *(name + self.digest(value) for name, value in attributes.items()),
            *(name + _source_of(name) for name in _imported(fn.__code__)),
            *(name + self.digest(fn.__globals__[name]) for name in named),
            *(name + self.digest(vars(fn)[name]) for name in _BEHIND if name in vars(fn)),
        )

    def _code(self, code: types.CodeType) -> Iterable[str]:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return "code", code.co_code.hex(), str(code.co_flags), repr(names), *map(self.digest, code.co_consts)

    def _module(self, module: types.ModuleType) -> Iterable[str]:
        """A module used by attribute: the caller's own counts by its source, any other by its version."""
        if _is_installed(module) or not getattr(module, "__file__", None):
            return "module", *_identity(module)
        return "module", module.__name__, digest_sources(module.__name__, module.__file__, is_own=_is_own_file)

    def _class(self, cls: type) -> Iterable[str]:
        if _is_installed(cls):
            return "installed", *_identity(cls)
        body = {
            name: member
            for name, member in vars(cls).items()
            if not (name.startswith("__") and name.endswith("__"))
            or inspect.isfunction(member)
            or (type(member) in _PLAIN and name not in _NAMING)
        }
        members = [name + self.digest(_unwrapped(member)) for name, member in sorted(body.items())]
        return "class", cls.__qualname__, self.digest(type(cls)), *map(self.digest, cls.__bases__), *members

    def _other(self, value: Any) -> Iterable[str]:
        if isinstance(value, types.BuiltinFunctionType):
            return "builtin", *_identity(value), self.digest(value.__self__) if _bound(value) else ""
        if not _is_installed(type(value)):
            return "object", self.digest(type(value)), self.digest(_state(value)), self.digest(_contents(value))
        import cloudpickle

        try:
            return "pickle", hashlib.sha256(cloudpickle.dumps(value)).hexdigest()
        except Exception:  # a lock, a context variable: state of the process, no ingredient of a result
            within = (r for r in gc.get_referents(value) if isinstance(r, types.FunctionType))
            return "opaque", *_identity(type(value)), *map(self.digest, within)


def _state(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots included."""
    members = (m for cls in type(value).__mro__ for m in vars(cls).values())
    slots = [m.__name__ for m in members if isinstance(m, types.MemberDescriptorType)]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _contents(value: Any) -> Any:
    """What an object is by the built-in type that it extends."""
    kind = next((kind for kind in _BUILT_IN if isinstance(value, kind)), None)
    return None if kind is None else kind(value)


def _sha256(parts: Iterable[str]) -> str:
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _bound(value: Any) -> bool:
    return getattr(value, "__self__", None) is not None and not isinstance(value.__self__, types.ModuleType)


def _unwrapped(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, functools.cached_property):
        return member.func
    if isinstance(member, property):
        return (member.fget, member.fset, member.fdel)
    if isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        return member.__name__
    return member


def _serialized(expr: Any) -> bytes:
    """An expression; functions in it by value, since its own form knows those of modules by name alone."""
    data = expr.meta.serialize()
    if _PYTHON_IN_EXPR not in data:
        return data
    with _by_value():
        return expr.meta.serialize()


@contextlib.contextmanager
def _by_value() -> Generator[None]:
    """While the block runs, functions of the caller's own modules are pickled with their code."""
    import cloudpickle

    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name == "__main__" or not isinstance(module, types.ModuleType) or module.__name__ != name:
                continue
            if getattr(module, "__file__", None) and not _is_installed(module):
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _names(code: types.CodeType) -> list[str]:
    """Global names that a code object and those within it mention, in order."""
    names = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(dict.fromkeys(_names(const)))
    return list(names)


def _imported(code: types.CodeType) -> list[str]:
    """The modules that a code object and those within it import when they run."""
    imports = dis.opmap["IMPORT_NAME"] in code.co_code[::2]  # few do, and disassembling is slow
    found = dict.fromkeys(i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME") if imports else {}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found.update(dict.fromkeys(_imported(const)))
    return [name for name in found if name]


def _source_of(name: str) -> str:
    file = find_source(name)
    own = file is not None and name.partition(".")[0] not in sys.stdlib_module_names and _is_own_file(file)
    return digest_sources(name, file, is_own=_is_own_file) if own else _version(name.partition(".")[0])


def _is_own_file(file: str) -> bool:
    return "site-packages" not in Path(file).parts and not file.startswith(_INSTALLED)


def _is_installed(value: Any) -> bool:
    """Whether it comes from the standard library or an installed package; this package counts as the caller's own."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return _is_installed_module(name)


def _is_installed_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or top == __name__.partition(".")[0]:
        return False
    return not _is_own_file(file)


def _identity(value: Any) -> tuple[str, str]:
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return f"{module}:{getattr(value, '__qualname__', '')}", _version(module.partition(".")[0])


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # an empty name is none
        return str(getattr(sys.modules.get(name), "__version__", ""))
