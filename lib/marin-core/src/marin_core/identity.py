"""Identity: canonical, type-tagged encoding of values, and the recipe and inputs digests made with it.

The encoding is JSON in which every value carries its type, so that values which differ to a program differ here: 1,
1.0 and True; "1" and 1 as keys; two dataclasses with equal fields; a tuple and a list. Floats are written in
hexadecimal and round-trip. Sets and mappings are ordered by the encoding of their members, never by hash. A value
that has no such form (a lambda, a closure, an open file) is refused with the path to it, because a step that holds it
would have no identity.

The recipe of a step is its function's name, its version and its arguments, with each upstream step standing as the
digest of its own recipe. Host, prefix, working directory, resources, ignored arguments and hash seed enter nothing
here.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from marin_core.code import Reach, function_name, source_path
from marin_core.errors import EncodingError
from marin_core.steps import Step, StepFunction

Encoded = Any
"""JSON: a list whose first element is the type tag."""


def digest(encoded: Encoded) -> str:
    """sha256 (hex) of the canonical text of an encoded value, or of any JSON value."""
    # A lone surrogate (a file name that is not UTF-8 has one) becomes its own JSON escape, so nothing collides.
    return hashlib.sha256(_text(encoded).encode("utf-8", "backslashreplace")).hexdigest()


def _text(encoded: Encoded) -> str:
    return json.dumps(encoded, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def encode(
    value: Any, *, where: str, of_step: Callable[[Step], str] | None = None, reach: Reach | None = None
) -> Encoded:
    """The canonical encoding of a value.

    Args:
        value: None, bool, int, float, str, bytes, path, enum, tuple, list, set, dict, dataclass instance, module-level
            function or class, ``functools.partial`` of one, or any nesting of these.
        where: the path to the value, for the error: ``train(config.lr``.
        of_step: the recipe digest of a `Step` inside the value.
        reach: the look at the workspace that functions are digested with.

    Raises:
        EncodingError: the value or a part of it has no canonical form.
    """
    return _Encoder(of_step, reach or Reach()).encode(value, where)


class _Encoder:
    def __init__(self, of_step: Callable[[Step], str] | None, reach: Reach) -> None:
        self._of_step, self._reach = of_step, reach

    def encode(self, value: Any, where: str) -> Encoded:
        """Frequent kinds here, the others in `_rare`."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return [_TAGS[kind], value]
        if kind is int:
            return ["int", str(value)]
        if kind is float:
            return ["float", value.hex() if math.isfinite(value) else repr(value)]
        if kind is list or kind is tuple:
            return [kind.__name__, [self.encode(v, f"{where}[{i}]") for i, v in enumerate(value)]]
        if isinstance(value, Step):
            if self._of_step is None:
                raise EncodingError(f"{_closed(where)} is a step, which has no encoding of its own")
            return ["step", self._of_step(value)]
        return self._rare(value, where)

    def _rare(self, value: Any, where: str) -> Encoded:
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, PurePath):
            return ["path", value.as_posix()]
        if isinstance(value, enum.Enum):
            return ["enum", function_name(type(value)), value.name]
        if isinstance(value, set | frozenset):
            return ["set", sorted((self.encode(v, f"{where}{{…}}") for v in value), key=_text)]
        if type(value) is range:
            return ["range", [str(value.start), str(value.stop), str(value.step)]]
        if isinstance(value, Mapping):
            pairs = [
                [self.encode(k, f"{where} key {k!r}"), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()
            ]
            return ["dict", sorted(pairs, key=lambda pair: _text(pair[0]))]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            members = [self.encode(getattr(value, f), f"{where}.{f}") for f in value._fields]
            return ["namedtuple", function_name(type(value)), members]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in dataclasses.fields(value)]
            fields = {n: self.encode(getattr(value, n), f"{where}.{n}") for n in names}
            return ["dataclass", function_name(type(value)), fields]
        if isinstance(value, functools.partial):
            parts = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
            return ["partial", *(self.encode(part, f"{where}.{name}") for name, part in parts)]
        if isinstance(value, StepFunction):
            value = value.function
        if callable(value):
            return self._callable(value, where)
        raise _no_encoding(value, where)

    def _callable(self, value: Any, where: str) -> Encoded:
        """A module-level function or class: its name, and the digest of its code."""
        name = getattr(value, "__qualname__", None)
        if name is None or not hasattr(value, "__name__"):
            raise _no_encoding(value, where)
        if "<lambda>" in name or "<locals>" in name:
            what = "a lambda" if "<lambda>" in name else f"{name}, a function or class made inside another"
            raise EncodingError(
                f"{_closed(where)} is {what}; define it at module level, so that it has a name and a digest"
            )
        if _found_by_name(value, name) is not value:
            raise _no_encoding(value, where)
        if isinstance(value, type) or hasattr(value, "__code__") or hasattr(value, "__wrapped__"):
            code = self._reach.code_of(value).digest if source_path(value) else ""
            return ["class" if isinstance(value, type) else "function", function_name(value), code]
        return ["builtin", f"{value.__module__}:{name}"]


def _found_by_name(value: Any, name: str) -> Any:
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found.function if isinstance(found, StepFunction) else found


_TAGS = {type(None): "none", bool: "bool", str: "str"}


def _no_encoding(value: Any, where: str) -> EncodingError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return EncodingError(
        f"{_closed(where)} is a {kind}, which has no canonical encoding; pass plain values (numbers, strings, paths, "
        "enums, lists, dicts, sets, dataclasses, module-level functions) or a step that makes it"
    )


def _closed(where: str) -> str:
    return f"{where})" if where.count("(") > where.count(")") else where


def recipe_of(step: Step, of_step: Callable[[Step], str], *, reach: Reach) -> dict[str, Encoded]:
    """The recipe as JSON: ``function``, ``version`` and the encoded ``arguments``, ignored ones left out.

    Args:
        step: the handle.
        of_step: the recipe digest of an upstream step.
        reach: the look at the workspace that functions are digested with.
    """
    encoder = _Encoder(of_step, reach)
    arguments = {
        name: encoder.encode(value, f"{step.name}({name}")
        for name, value in step.arguments.items()
        if name not in step.function.ignore
    }
    return {"function": function_name(step.function.function), "version": step.version, "arguments": arguments}
