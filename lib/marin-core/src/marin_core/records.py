"""Records: what is written down about a step, an attempt at it, and a run.

The JSON files under a prefix, each a frozen dataclass here and each with a ``schema`` number (a record of a
later schema is refused, never guessed at):

- ``{address}/step.json``                  `StepRecord`: which attempt is committed, its manifest and its value. One
                                           that names no attempt is a fence (see `leases`) and stands for nothing.
- ``{address}/attempts/{n}/attempt.json``  `AttemptRecord`: one try, whatever came of it.
- ``{address}/attempts/{n}/step.json``     `StepRecord` of an attempt that another one has superseded (see `earlier`).
- ``{address}/tombstone.json``             `Tombstone`: what was committed there before it was collected.
- ``runs/{run_id}.json``                   `RunRecord`: the graph that was asked for, and for every node the
                                           decision with its reason, the times and the outcome.
- ``environments/{digest}.json``           `EnvironmentRecord`: what an environment digest stands for.

An `Origin` inside step and run records says how to come by the same code again.

Invariant: every reference in a record (address, log, file) is relative to the prefix or to the output directory, so
a prefix that is moved or copied elsewhere still reads. Paths of the host (adopted data, the repository) are facts
about the past and no references. Times are seconds since the epoch, UTC; durations are seconds.
"""

import dataclasses
import functools
import json
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_core.errors import CorruptRecordError, NewerRecordError

SCHEMA = 1

Decision = Literal["run", "reuse", "accept", "refuse", "blocked", "unselected"]
Outcome = Literal[
    "succeeded", "reused", "failed", "blocked", "refused", "cancelled", "unselected", "pending", "running"
]


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a committed output: path relative to ``out/`` with forward slashes, size in bytes, sha256 hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Digests:
    """The four digests (sha256 hex): what was asked, by which code, in which environment, on which inputs."""

    recipe: str
    code: str
    environment: str
    inputs: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a body failed: exception class, its message, and the tail of the traceback."""

    type: str
    message: str
    traceback: str
    exit_code: int | None = None
    """Set when the exception marks a user's mistake: it is told in one line, and the process exits with this code."""
    mro: tuple[str, ...] = ()
    """Dotted names of the exception's classes, its own first, up to ``Exception``; what a retry goes by."""
    process_exit_code: int | None = None
    """What the body's own process ended with; negative for a signal, None if the launcher lost it."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run came from: all that it takes to run it again, even when the run's own record is gone.

    Digests name texts in ``objects/``. The script runs from ``directory``, relative to the repository; one outside of
    it, and the repository itself, are absolute paths of the host.
    """

    repository: str = ""
    """Where the checkout was; empty outside a repository."""
    commit: str = ""
    branch: str = ""
    dirty: bool = False
    """Whether tracked files differed from the commit."""
    patch: str | None = ""
    """Digest of what has to be applied to the commit, untracked files included; empty when nothing has to, None when
    it could not be recorded."""
    omitted: tuple[str, ...] = ()
    """What the patch lacks, and why."""
    script: str = ""
    """Relative to the repository; empty for a session without a script."""
    launched: Literal["script", "module", "marin"] = "script"
    """As ``python SCRIPT``, ``python -m MODULE`` or ``marin run SCRIPT``."""
    entry: str = ""
    """The module's name, or the name of the build function if ``marin run`` was given one."""
    flags: tuple[str, ...] = ()
    directory: str = ""
    lock: str = ""
    """Digest of the lock file nearest to the script; empty when there is none."""
    lock_path: str = ""
    """Relative to the repository."""
    machine: str = ""
    """Digest of the run's ``environment``, as JSON."""

    @property
    def objects(self) -> tuple[str, ...]:
        """The digests of all objects that it refers to."""
        return tuple(d for d in (self.patch, self.lock, self.machine) if d)


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The pointer to the committed attempt. A step exists exactly when this file does and names one."""

    address: str
    name: str
    version: str | None
    attempt: int
    digests: Digests
    recipe: dict[str, Any]
    code: dict[str, str]
    """Every function, class or constant that the step's code reaches -> the beginning of its digest (see `Code`)."""
    upstream: tuple[str, ...]
    files: tuple[FileEntry, ...]
    output_digest: str
    """sha256 over the manifest and the value: equal outputs have equal digests, which is what cuts rebuilds off."""
    value: Any
    committed_at: float
    seconds: float
    inputs: dict[str, str] = field(default_factory=dict)
    """Upstream address -> the output digest that this attempt read."""
    epoch: int = 0
    """Epoch of the lease under which it was committed."""
    fence: int = 0
    """Epoch of the last lease that fenced it off from earlier ones; see `leases`."""
    run_id: str = ""
    """The run whose attempt it is."""
    origin: dict[str, Any] = field(default_factory=dict)
    """An `Origin` as JSON, for `origin_of`: who only plans reads thousands of records and has no use for it."""
    adopted: dict[str, str] = field(default_factory=dict)
    """Address of each upstream step that is adopted data -> where the data lay."""
    schema: int = SCHEMA

    @property
    def num_bytes(self) -> int:
        return sum(f.size for f in self.files)


@dataclass(frozen=True, kw_only=True)
class Tombstone:
    """What stood at an address whose output was collected, so that lineage and differences still answer. It says
    nothing about the present: a step made again since then has its pointer again, and that is what counts."""

    step: StepRecord
    collected_at: float
    reason: str
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One try at a step. ``ended_at`` is None while it runs, and for ever if its machine died."""

    address: str
    attempt: int
    epoch: int
    run_id: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    digests: Digests
    reason: str
    started_at: float
    ended_at: float | None
    host: str
    user: str
    pid: int
    log: str
    """The captured stdout and stderr of the body, relative to the prefix."""
    launcher: str = ""
    """The kind of launcher that was given the body, for a later run that finds it unfinished."""
    failure: Failure | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """One step of one run: what was decided, why, and what came of it."""

    address: str
    name: str
    version: str | None
    upstream: tuple[str, ...]
    arguments: dict[str, Any]
    """The literal arguments, as JSON; an upstream step shows as ``{"step": address}``."""
    decision: Decision
    reason: str
    outcome: Outcome
    attempt: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float | None = None
    """Duration of the attempt that produced the output, also when this run reused it."""
    num_files: int = 0
    num_bytes: int = 0
    digests: Digests | None = None
    output_digest: str | None = None
    value: Any = None
    log: str | None = None
    failure: Failure | None = None
    doc: str = ""
    """First line of the step function's docstring."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One invocation: the whole graph with decisions, and where and with what it ran."""

    run_id: str
    script: str
    argv: tuple[str, ...]
    targets: tuple[str, ...]
    """Addresses of the steps that were asked for, in the order of the script."""
    status: Literal["running", "succeeded", "failed", "refused", "cancelled"]
    started_at: float
    ended_at: float | None
    nodes: tuple[NodeRecord, ...]
    """In topological order: an upstream step comes before its dependants."""
    environment: dict[str, Any] = field(default_factory=dict)
    """python, platform, host, user, cpu, num_cpus, memory_bytes, accelerators, marin_core (its version), lock_digest,
    packages (name -> version)."""
    git: dict[str, Any] = field(default_factory=dict)
    """commit, branch, dirty (bool): the part of ``origin`` that people ask for; empty outside a repository."""
    origin: Origin | None = None
    """Gathered beside the first steps, so a run that was killed at once has none."""
    driver: dict[str, Any] = field(default_factory=dict)
    """host, pid and start tick of the process that drives the run: one that is dead will not end it any more."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """What an environment digest stands for."""

    python: str
    lock: str
    """sha256 of the lock file; empty when there was none, and the installed packages were digested."""
    packages: dict[str, str]
    """Name -> version: those of the lock file, else the installed ones."""
    schema: int = SCHEMA


def origin_of(record: StepRecord) -> Origin | None:
    """Where the run came from that made a step; None if that was not recorded."""
    return build(Origin, record.origin) if record.origin else None


def to_json(record: Any) -> str:
    """Canonical text of a record: sorted keys, one field a line and below it one entry of a mapping or of a sequence of
    records a line, so that a run of 10,000 steps is written in a moment and still reads, greps and diffs by the line.
    It can always be written as UTF-8, and it is strict JSON, which has no NaN: `finite` is what becomes of one."""
    fields = sorted(vars(record).items())
    text = "{\n" + ",\n".join(f'  "{name}": {_lines(value)}' for name, value in fields) + "\n}\n"
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates become JSON escapes


def _lines(value: Any) -> str:
    if value and isinstance(value, dict):
        return "{\n    " + ",\n    ".join(_entry(k, v) for k, v in sorted(value.items())) + "\n  }"
    if value and isinstance(value, tuple) and dataclasses.is_dataclass(value[0]):
        return "[\n    " + ",\n    ".join(map(_line, value)) + "\n  ]"
    return _line(value)


def _entry(key: Any, value: Any) -> str:
    if type(key) is str:
        return f"{_encoded(key)}: {_line(value)}"
    return _encoded({key: value})[1:-1]  # the encoder's own rule for keys, in a mapping of somebody else's


def _fields(record: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return vars(record)
    raise TypeError(f"a {type(record).__qualname__} has no place in a record")


# An indented document would be encoded in Python, twenty times slower than what C encodes by the line.
_encoded = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, default=_fields).encode


def _line(value: Any) -> str:
    """Most fields of a record are numbers, absent or empty, which need no encoder to be set up."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is int or (kind is float and math.isfinite(value)):
        return repr(value)
    if kind is tuple and not value:
        return "[]"
    return "{}" if kind is dict and not value else _encoded(value)


def from_json[T](kind: type[T], text: str | bytes, *, where: str) -> T:
    """Reads a record of the dataclass ``kind``.

    Args:
        kind: one of the record classes of this module.
        text: the JSON document.
        where: the file's path, for the error message.

    Raises:
        CorruptRecordError: the text is not JSON or lacks a field.
        NewerRecordError: it is of a later schema.
    """
    return _from_json(kind, text, where=where)


def _from_json(kind: Any, text: str | bytes, *, where: str, fence: bool = False) -> Any:
    try:
        # What an earlier version wrote may hold a bare NaN; its name is what is recorded today.
        data = json.loads(text, parse_constant=str)
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, found {type(data).__name__}")
        if fence and data.get("attempt", 0) is None:
            return None
        check_schema(data, where=where)
        return build(kind, data)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise CorruptRecordError(f"{where}: not a readable {kind.__name__} ({e})") from e


def committed(text: str | bytes | None, *, where: str) -> StepRecord | None:
    """Reads what ``step.json`` holds; None if there is none, or a fence that names no attempt.

    Raises:
        CorruptRecordError: the text is not JSON or lacks a field.
        NewerRecordError: it is of a later schema.
    """
    return None if text is None else _from_json(StepRecord, text, where=where, fence=True)


def fenced(text: bytes | None, *, address: str, epoch: int) -> bytes:
    """What ``step.json`` becomes when an epoch fences it: it says the same of a committed attempt, in other bytes."""
    try:
        data = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return (text or b"") + f"\n{epoch}".encode()  # not readable before, nor after
    data = data or {"address": address, "attempt": None, "schema": SCHEMA}
    return (json.dumps(data | {"fence": epoch}, indent=2, sort_keys=True) + "\n").encode()


def check_schema(data: dict[str, Any], *, where: str) -> None:
    """Raises `NewerRecordError` for a record of a later schema than this package knows."""
    schema = data.get("schema", SCHEMA)
    if not isinstance(schema, int):
        raise TypeError(f"schema {schema!r} is not a number")
    if schema > SCHEMA:
        raise NewerRecordError(f"{where}: schema {schema} is newer than {SCHEMA}; upgrade marin-core")


def finite(value: float) -> float | str:
    """A float as strict JSON has it: one that is not finite becomes ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_hints = functools.cache(typing.get_type_hints)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def _is_plain(kind: Any) -> bool:
    args = typing.get_args(kind)
    built = any(dataclasses.is_dataclass(k) for k in (kind, *args)) or typing.get_origin(kind) is tuple
    return not built and float not in (kind, *args)


def build(kind: Any, data: Any) -> Any:
    """Dataclasses, tuples and optionals from plain JSON, following the annotations."""
    return _reader(kind)(data)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of an annotation's kind from JSON; worked out once, because a plan reads thousands of them."""
    args = typing.get_args(kind)
    nested = [a for a in args if dataclasses.is_dataclass(a)]
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    if typing.get_origin(kind) is tuple:
        if _is_plain(args[0]):
            return tuple
        read = _reader(args[0])
        return lambda data: tuple([read(item) for item in data])
    if nested and type(None) in args:
        read = _reader(nested[0])
        return lambda data: None if data is None else read(data)
    if kind is float or (float in args and str not in args):
        return lambda data: float(data) if isinstance(data, str) and data in _NOT_FINITE else data
    return lambda data: data


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    hints = _hints(kind)
    # None where plain JSON is the value already.
    readers = [(f.name, None if _is_plain(hints[f.name]) else _reader(hints[f.name])) for f in dataclasses.fields(kind)]

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise TypeError(f"{kind} wants an object, found {type(data).__name__}")
        return kind(**{name: data[name] if of is None else of(data[name]) for name, of in readers if name in data})

    return read
