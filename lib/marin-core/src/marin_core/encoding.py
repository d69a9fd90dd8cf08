"""Encoding: canonical, type-tagged JSON for values; what differs to a program differs here, and nothing else does.

Every value carries its type, so 1, 1.0 and True differ; "1" and 1 as keys; two dataclasses with equal fields; a tuple
and a list; a dict and an OrderedDict, of which only the latter has an order. Floats are written in hexadecimal and
round-trip. Sets and dicts are ordered by the encoding of their members, never by hash. A class counts by its name, and
must be found by it: two classes that a function made have one name.

A value that has no such form (a lambda, a function made inside another, an open file, an object of any class that is
no dataclass) is refused with the path to it, because a step that holds it would have no identity. Subclasses of
containers and numbers are refused too, because what they add would be left out. NumPy's scalars, dtypes and arrays are
known by name, so nothing is imported for them; an array counts by dtype, shape and bytes.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

from marin_core.code import Reach, source_path
from marin_core.containers import MOST_LEVELS, is_record
from marin_core.errors import EncodingError
from marin_core.steps import Step, StepFunction

Encoded = Any
"""JSON: a list whose first element is the type tag."""

_LONG = 1024
"""Items above which a list stands in a recipe as its length and digest."""
_SCRIPTS = ("__main__", "__mp_main__")


def digest(encoded: Encoded) -> str:
    """sha256 (hex) of the canonical text of an encoded value, or of any JSON value."""
    # A lone surrogate (a file name that is not UTF-8 has one) becomes its own JSON escape, so nothing collides.
    return hashlib.sha256(_text(encoded).encode("utf-8", "backslashreplace")).hexdigest()


def _text(encoded: Encoded) -> str:
    return json.dumps(encoded, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def encode(
    value: Any, *, where: str, of_step: Callable[[Step], Encoded] | None = None, reach: Reach | None = None
) -> Encoded:
    """The canonical encoding of a value.

    Args:
        value: None, bool, int, float, complex, str, bytes, path, range, enum, date and time, decimal, fraction, UUID,
            pattern, NumPy scalar, dtype or array, tuple, list, set, dict, dataclass instance, named tuple,
            module-level function or class, ``functools.partial`` of one, or any nesting of these.
        where: the path to the value, for the error: ``train(config.lr``.
        of_step: the encoding of a `Step` inside the value.
        reach: the look at the workspace that functions are digested with.

    Raises:
        EncodingError: the value or a part of it has no canonical form.
    """
    return Encoder(of_step, reach or Reach()).encode(value, where)


class Encoder:
    """Encodes values; ``reached`` are the functions and the classes of the instances it met: a body may run them."""

    def __init__(self, of_step: Callable[[Step], Encoded] | None, reach: Reach) -> None:
        self._of_step, self._reach = of_step, reach
        self._level = 0
        self.reached: dict[Callable[..., Any], None] = {}

    def encode(self, value: Any, where: str) -> Encoded:
        """Frequent kinds here, the others in `_rare`."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return [_TAGS[kind], value]
        if kind is int:
            return ["int", _decimal(value)]
        if kind is float:
            return ["float", _float(value)]
        if isinstance(value, Step):
            return self._step(value, where)
        if self._level > MOST_LEVELS:
            raise EncodingError(f"{_closed(where)} is nested more than {MOST_LEVELS} levels deep, or contains itself")
        self._level += 1
        try:
            return self._items(value, where) if kind is list or kind is tuple else self._rare(value, where)
        finally:
            self._level -= 1

    def _step(self, value: Step, where: str) -> Encoded:
        if self._of_step is None:
            raise EncodingError(f"{_closed(where)} is a step, which has no encoding of its own")
        return ["step", self._of_step(value)]

    def _items(self, value: list[Any] | tuple[Any, ...], where: str) -> Encoded:
        items = [self.encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
        tag = type(value).__name__
        return [tag, items] if len(items) <= _LONG else [f"long {tag}", f"{len(items)} items", digest(items)]

    def _rare(self, value: Any, where: str) -> Encoded:
        kind = type(value)
        plain = _PLAIN.get(f"{kind.__module__}.{kind.__qualname__}")
        if plain is not None and (written := plain(value)) is not None:
            return [kind.__name__, *written]
        if kind in _PATHS:
            return [_PATHS[kind], value.as_posix()]
        if isinstance(value, enum.Enum):
            member = value.name if not isinstance(value, enum.Flag) else str(value.value)
            return ["enum", self._class(kind, where), member]
        if kind is set or kind is frozenset:
            return [kind.__name__, sorted((self.encode(v, f"{where}{{…}}") for v in value), key=_text)]
        if kind in (dict, OrderedDict, defaultdict):
            return self._mapping(value, where)
        if isinstance(value, tuple) and hasattr(value, "_fields") and not getattr(value, "__dict__", None):
            items = [self.encode(getattr(value, f), f"{where}.{f}") for f in value._fields]
            return ["namedtuple", self._class(kind, where), items]
        if is_record(value) and not isinstance(value, _WITH_CONTENT):
            return self._record(value, where)
        if kind is functools.partial:
            parts = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
            return ["partial", *(self.encode(part, f"{where}.{name}") for name, part in parts)]
        if (array := _of_numpy(value)) is not None:
            return array
        if isinstance(value, StepFunction):
            value = value.function
        if callable(value):
            return self._callable(value, where)
        raise _no_encoding(value, where)

    def _mapping(self, value: Any, where: str) -> Encoded:
        pairs = [[self.encode(k, f"{where} key {k!r}"), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
        if type(value) is not OrderedDict:
            pairs.sort(key=lambda pair: _text(pair[0]))
        if type(value) is defaultdict:
            return ["defaultdict", pairs, self.encode(value.default_factory, f"{where}.default_factory")]
        return [type(value).__name__, pairs]

    def _record(self, value: Any, where: str) -> Encoded:
        """A dataclass: its fields, and whatever else was set on the instance, other than a property's cache."""
        kind = type(value)
        names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        more = [
            n
            for n in getattr(value, "__dict__", ())
            if n not in names and not isinstance(getattr(kind, n, None), functools.cached_property)
        ]
        fields = {n: self.encode(getattr(value, n), f"{where}.{n}") for n in (*names, *more)}
        return ["dataclass", self._class(kind, where), fields]

    def _class(self, kind: type, where: str) -> str:
        """The name of an instance's class."""
        if kind not in self.reached:
            _check_named(kind, where, "an instance of ")
            self.reached[kind] = None
        return self._reach.name_of(kind)

    def _callable(self, value: Any, where: str) -> Encoded:
        """A module-level function or class: its name, and the digest of its code."""
        if getattr(value, "__qualname__", None) is None or not hasattr(value, "__name__"):
            raise _no_encoding(value, where)
        _check_named(value, where)
        if isinstance(value, type) or hasattr(value, "__code__") or hasattr(value, "__wrapped__"):
            if source_path(value) is None and value.__module__ in _SCRIPTS:
                raise EncodingError(
                    f"{_closed(where)} is {value.__qualname__}, which has no source file; define it in a module"
                )
            code = self._reach.code_of(value).digest if source_path(value) else ""
            self.reached[value] = None
            return ["class" if isinstance(value, type) else "function", self._reach.name_of(value), code]
        return ["builtin", f"{value.__module__}:{value.__qualname__}"]


_TAGS = {type(None): "none", bool: "bool", str: "str"}
_PATHS = {PosixPath: "path", WindowsPath: "path", PurePosixPath: "posix path", PureWindowsPath: "windows path"}
_WITH_CONTENT = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


def _decimal(value: int) -> str:
    return str(value) if -_SHORT < value < _SHORT else hex(value)  # Python refuses to write huge ones in decimal


_SHORT = 10**4000


def _float(value: float) -> str:
    return value.hex() if math.isfinite(value) else repr(value)


def _moment(value: Any) -> list[str] | None:
    """A time of day or a datetime, if its zone has a name."""
    zone = value.tzinfo
    kind = f"{type(zone).__module__}.{type(zone).__qualname__}"
    if zone is not None and not (kind == "datetime.timezone" or (kind == "zoneinfo.ZoneInfo" and zone.key)):
        return None
    return [value.isoformat(), str(value.fold), f"{kind} {zone}"]


def _pattern(value: Any) -> list[str]:
    text = value.pattern
    return ["str", text, str(value.flags)] if isinstance(text, str) else ["bytes", text.hex(), str(value.flags)]


_PLAIN: dict[str, Callable[[Any], list[str] | None]] = {
    "builtins.bytes": lambda v: [v.hex()],
    "builtins.complex": lambda v: [_float(v.real), _float(v.imag)],
    "builtins.range": lambda v: [str(v.start), str(v.stop), str(v.step)],
    "datetime.date": lambda v: [v.isoformat()],
    "datetime.datetime": _moment,
    "datetime.time": _moment,
    "datetime.timedelta": lambda v: [str(v.days), str(v.seconds), str(v.microseconds)],
    "decimal.Decimal": lambda v: [str(v)],
    "fractions.Fraction": lambda v: [str(v)],
    "re.Pattern": _pattern,
    "uuid.UUID": lambda v: [str(v)],
}
"""Values of the standard library that a short text says whole, by the name of their class; None where it does not."""


def _of_numpy(value: Any) -> Encoded | None:
    """A NumPy scalar, dtype or array without objects in it; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (isinstance(value, numpy.dtype | numpy.generic) or type(value) is numpy.ndarray):
        return None
    dtype = value if isinstance(value, numpy.dtype) else value.dtype
    if dtype.hasobject:
        return None
    name = f"{dtype.str} {dtype!r}"  # the short name alone does not tell bfloat16 from two raw bytes
    if isinstance(value, numpy.dtype):
        return ["dtype", name]
    if isinstance(value, numpy.generic):
        return ["scalar", name, value.tobytes().hex()]
    shape = [str(n) for n in value.shape]
    return ["array", name, shape, hashlib.sha256(value.tobytes()).hexdigest()]


def _check_named(value: Any, where: str, what: str = "") -> None:
    """Refuses a function or class that another process would not find by its name."""
    name = value.__qualname__
    if "<lambda>" in name or "<locals>" in name:
        told = "a lambda" if "<lambda>" in name else f"{what}{name}, a function or class made inside another"
        raise EncodingError(
            f"{_closed(where)} is {told}; define it at module level, so that it has a name and a digest "
            "(functools.partial binds values to such a function)"
        )
    if found_by_name(value) is not value:
        if isinstance(value, type):
            raise EncodingError(f"{_closed(where)} is {what}{value!r}, but {value.__module__}.{name} is something else")
        raise _no_encoding(value, where)


def found_by_name(value: Any) -> Any:
    """What the module and the qualified name of a function or class lead to; of a step, the function it was made of."""
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found.function if isinstance(found, StepFunction) else found


def _no_encoding(value: Any, where: str) -> EncodingError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return EncodingError(
        f"{_closed(where)} is a {kind}, which has no canonical encoding; pass plain values (numbers, strings, paths, "
        "enums, lists, dicts, sets, dataclasses, module-level functions) or a step that makes it"
    )


def _closed(where: str) -> str:
    return f"{where})" if where.count("(") > where.count(")") else where
