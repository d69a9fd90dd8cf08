"""Steps: a function becomes a lazy, immutable node of a graph.

Calling a function decorated with `step` runs nothing. It binds the arguments against the signature, enters the
defaults, and returns a `Step`, which other calls take as an argument, anywhere inside lists, tuples, dicts and
dataclasses. What the body will receive follows from the annotation of the parameter:

- ``Out``, ``Work``            injected by the runner, never passed by a caller;
- mentions ``Input``           each upstream step arrives as its committed directory (a dataclass mentions what the
                              annotations of its fields do);
- anything else                each upstream step arrives as its recorded value.

Invariant: a handle never changes after the call that made it; containers among its arguments are copied
(`containers`). An argument in ``ignore`` enters no digest, so it can hold no step.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import numbers
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from marin_core.code.loading import note_loaded
from marin_core.containers import ATOMS, members, snapshot, with_members
from marin_core.errors import UsageError
from marin_core.handles import Input, Out, Work
from marin_core.names import WORD, checked_name
from marin_core.results import restore
from marin_core.retries import Retry, retry_of

if TYPE_CHECKING:
    from marin_core.adoption import Listing

OnCodeChange = Literal["rebuild", "report", "refuse"]
Role = Literal["out", "work", "input", "value"]

_FEW, _SHORT = 3, 32
"""Items of a list and characters of a value that a handle's repr shows."""
_RESERVED = ("name", "version", "resources", "retries")
_IGNORED = ("log_every",)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a step's body needs. It decides where and beside what the body runs, and never enters a digest.

    Args:
        cpus: cores; the runner lets steps run side by side while their sum fits into its workers.
        memory_bytes: main memory; counted like cores, against the machine's.
        accelerators: ``"h100:8"``, ``"tpu-v5p-8"``, ``"gpu:1"``; None for a body that needs none. No two bodies share
            one, and a body that needs some has a process of its own.
    """

    cpus: float = 1
    memory_bytes: int | None = None
    accelerators: str | None = None

    def __post_init__(self) -> None:
        for field, value in (("cpus", self.cpus), ("memory_bytes", self.memory_bytes)):
            if value is not None and not (isinstance(value, numbers.Real) and 0 < value < math.inf):
                raise UsageError(f"Resources: {field}={value!r} must be a number above 0")


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """A lazy call of a step function. Two handles are equal when they are the same object."""

    function: "StepFunction"
    arguments: Mapping[str, Any]
    """Every parameter but the injected ones, defaults entered, in the order of the signature."""
    name: str
    version: str | None
    resources: Resources
    retries: int | Retry
    external: str | None = None
    """Where adopted data lies; None for a step that runs."""
    listing: "Listing | None" = None
    """The files of adopted data as they were when they were read."""

    def __repr__(self) -> str:
        version = f", version={self.version!r}" if self.version else ""
        shown = (f"{name}={_briefly(value)}" for name, value in self.arguments.items())
        return f"<Step {self.name!r} = {self.function.__qualname__}({', '.join(shown)}){version}>"

    def path(self, prefix: str | Path | None = None) -> Path:
        """The directory of the committed output.

        Args:
            prefix: fsspec URL; default ``MARIN_PREFIX`` or ``./.marin``.

        Raises:
            MissingOutputError: the step has no committed output there.
        """
        from marin_core.runner import committed_path

        return committed_path(self, prefix=prefix)


class StepFunction:
    """A function made by `step`: call it to get a `Step`; ``.function`` is the undecorated one."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        version: str | None = None,
        resources: Resources = Resources(cpus=1),
        retries: int | Retry = 0,
        timeout_seconds: float | None = None,
        ignore: tuple[str, ...] = _IGNORED,
        on_code_change: OnCodeChange = "rebuild",
    ) -> None:
        if isinstance(ignore, str):
            raise UsageError(f"@step on {function.__qualname__}: ignore={ignore!r} must be a tuple, ({ignore!r},)")
        if "." in function.__qualname__ or function.__name__ == "<lambda>":
            raise UsageError(
                f"@step on {function.__module__}.{function.__qualname__}: a step must be a function at module level, "
                "so that another process can import it"
            )
        note_loaded(function)
        self.function = function
        self.version = version
        self.resources = resources
        self.retries = _checked_retries(retries, step_name=function.__qualname__)
        self.timeout_seconds = timeout_seconds
        self.ignore = frozenset(ignore)
        self.on_code_change: OnCodeChange = on_code_change
        self.signature = inspect.signature(function)
        self._roles: dict[str, Role] | None = None
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._check_signature()

    def __repr__(self) -> str:
        return f"<step {self.__module__}:{self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    def _check_signature(self) -> None:
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise UsageError(f"@step on {self.__qualname__}: timeout_seconds={self.timeout_seconds!r} must exceed 0")
        if unknown := self.ignore - self.signature.parameters.keys() - set(_IGNORED):
            has = ", ".join(self.signature.parameters) or "none"
            raise UsageError(
                f"@step on {self.__qualname__}: ignore={min(unknown)!r} is no parameter of it; it has {has}"
            )
        for name, parameter in self.signature.parameters.items():
            if name in _RESERVED:
                raise UsageError(
                    f"@step on {self.__qualname__}: the parameter {name!r} is reserved; give it another name"
                )
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise UsageError(f"@step on {self.__qualname__}: {parameter} has no fixed name; name every parameter")

    @property
    def roles(self) -> dict[str, Role]:
        """Parameter -> what it receives. Annotations are resolved on first use, so they may name later definitions."""
        if self._roles is None:
            self._roles = {name: _role(hint) for name, hint in _hints(self.function).items()}
        return self._roles

    def __call__(
        self,
        *args: Any,
        name: str | None = None,
        version: str | None = None,
        resources: Resources | None = None,
        retries: int | Retry | None = None,
        **kwargs: Any,
    ) -> Step:
        arguments = self._bind(args, kwargs)
        name = checked_name(self.__name__ if name is None else name, where=f"step {self.__name__}: name")
        version = self.version if version is None else version
        if version is not None:
            checked_name(version, where=f"step {name}: version", pattern=WORD)
        return Step(
            function=self,
            arguments=MappingProxyType(arguments),
            name=name,
            version=version,
            resources=self.resources if resources is None else resources,
            retries=self.retries if retries is None else _checked_retries(retries, step_name=name),
        )

    @functools.cached_property
    def _open_signature(self) -> inspect.Signature:
        """The signature without the injected parameters, which no caller passes."""
        injected = [n for n, role in self.roles.items() if role in ("out", "work")]
        return self.signature.replace(parameters=[p for n, p in self.signature.parameters.items() if n not in injected])

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, checked; the injected parameters are skipped also in the positional order."""
        signature = self._open_signature
        for name in kwargs:
            if name in signature.parameters:
                continue
            if name in self.signature.parameters:
                raise UsageError(f"step {self.__name__}: {name!r} is passed by the runner; leave it out")
            has = ", ".join(signature.parameters) or "none"
            raise UsageError(f"step {self.__name__}: no parameter named {name!r}; it has {has}")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise UsageError(f"step {self.__name__}: {e}") from None
        bound.apply_defaults()
        arguments = {n: snapshot(v, leaf=Step, where=f"step {self.__name__}: {n}") for n, v in bound.arguments.items()}
        for n, value in arguments.items():
            # What cannot be found in order is refused here, where the caller's line is.
            if (found := list(find_steps(value))) and n in self.ignore:
                raise UsageError(
                    f"step {self.__name__}: {n} is ignored, so it cannot hold {found[0]!r}, whose output may change "
                    "the result; take it out of ignore="
                )
            if self.roles[n] == "input" and isinstance(value, str | Path):
                raise UsageError(
                    f"step {self.__name__}: {n}={str(value)!r} is a path, but an Input is the output of a step; "
                    "wrap existing data as adopt(path)"
                )
        return arguments


def step(
    function: Callable[..., Any] | None = None,
    *,
    version: str | None = None,
    resources: Resources = Resources(cpus=1),
    retries: int | Retry = 0,
    timeout_seconds: float | None = None,
    ignore: tuple[str, ...] = _IGNORED,
    on_code_change: OnCodeChange = "rebuild",
) -> Any:
    """Makes a module-level function a step: calling it returns a lazy `Step`.

    Args:
        function: when used without parentheses.
        version: pins the address to ``{name}/{version}``; a changed recipe or code is then refused, never overwritten.
        resources: what the body needs; enters no digest.
        retries: how many more attempts a failed body gets, at once and whatever its failure; a `Retry` says after which
            failures, and how long to wait. A user's mistake is not tried again.
        timeout_seconds: how long an attempt may take; then its body is ended and has failed with ``Timeout``. Enters no
            digest.
        ignore: parameters that cannot change the result; they enter no digest.
        on_code_change: what happens at an unversioned step whose code changed: ``rebuild`` it, only ``report`` it, or
            ``refuse`` to go on.

    Raises:
        UsageError: the function is not at module level, or a parameter has no fixed name.

    Example:
        >>> @step
        ... def count(out: Out, docs: Input, *, min_length: int = 3) -> dict: ...
        >>> handle = count(docs, min_length=4, name="wiki/count")
    """
    options: dict[str, Any] = {
        "version": version,
        "resources": resources,
        "retries": retries,
        "timeout_seconds": timeout_seconds,
        "ignore": ignore,
        "on_code_change": on_code_change,
    }
    if function is not None:
        return StepFunction(function, **options)
    return lambda f: StepFunction(f, **options)


def _checked_retries(retries: int | Retry, *, step_name: str) -> int | Retry:
    try:
        retry_of(retries)
    except UsageError as e:
        raise UsageError(f"step {step_name}: {e}") from None
    return retries


def find_steps(value: Any) -> Iterator[Step]:
    """The steps inside a value, in order: `containers` are searched, each once.

    Raises:
        UsageError: a step is inside a set, whose order differs from process to process, or is a key of a mapping.
    """
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        if type(item) in ATOMS:
            continue
        if isinstance(item, Step):
            yield item
            continue
        unordered = item if isinstance(item, set | frozenset | Mapping) else ()
        if found := next((s for member in unordered for s in find_steps(member)), None):
            if isinstance(item, Mapping):
                raise UsageError(f"{found!r} is a key of a dict; pass it as a value")
            raise UsageError(f"{found!r} is inside a set, which has no order; pass a list")
        if (inner := members(item)) and id(item) not in seen:
            seen.add(id(item))
            stack.extend(reversed(inner))


def replace_steps(value: Any, replacement: Callable[[Step], Any]) -> Any:
    """The value with every step inside it replaced; parts without a step are returned as they are."""
    if isinstance(value, Step):
        return replacement(value)
    before = members(value)
    after = [v if type(v) in ATOMS else replace_steps(v, replacement) for v in before]
    changed = any(new is not old for new, old in zip(after, before, strict=True))
    return with_members(value, after) if changed else value


def _briefly(value: Any) -> str:
    """An argument in a handle's repr: a step by its name, what is long by its beginning."""
    if isinstance(value, Step):
        return f"<{value.name}>"
    if isinstance(value, list | tuple) and len(value) > _FEW:
        return f"[{_briefly(value[0])}, … {len(value)} items]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_briefly, value))}]"
    if isinstance(value, Mapping):
        return f"{{… {len(value)} items}}" if value else "{}"
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
    return repr(text) if isinstance(value, str) else text


def typed_value(step: Step, value: Any) -> Any:
    """A recorded value as the step function's return annotation says; see `results`."""
    return restore(return_hint(step.function), value, where=f"the value of step {step.name}")


def return_hint(function: StepFunction) -> Any:
    """The return annotation of a step's function; None if there is none."""
    return _hints(function.function, "return").get("return")


def _hints(function: Callable[..., Any], only: str | None = None) -> dict[str, Any]:
    """Annotations by parameter. One that cannot be evaluated (a name only type checkers see) stays a string."""
    names = inspect.signature(function).parameters if only is None else [only]
    hints: dict[str, Any] = dict.fromkeys(names) if only is None else {}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    for name in names:
        hint = function.__annotations__.get(name)
        if isinstance(hint, str):
            with contextlib.suppress(NameError, AttributeError, TypeError, SyntaxError):
                hint = eval(hint, scope)  # noqa: S307  the author's own annotation
        hints[name] = hint
    return hints


def _role(hint: Any) -> Role:
    if hint is Out or hint is Work:
        return "out" if hint is Out else "work"
    if isinstance(hint, str):
        names = set(re.findall(r"\w+", hint))
        return "out" if "Out" in names else "work" if "Work" in names else "input" if "Input" in names else "value"
    inner = typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        inner = tuple(f.type for f in dataclasses.fields(hint))
    return "input" if hint is Input or any(_role(part) == "input" for part in inner) else "value"
