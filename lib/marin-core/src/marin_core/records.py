"""Records: what is written down about a step, an attempt at it, and a run.

The JSON files under a prefix, each a frozen dataclass here and each with a ``schema`` number (a record of a
later schema is refused, never guessed at):

- ``{address}/step.json``                  `StepRecord`: which attempt is committed, its manifest and its value.
- ``{address}/attempts/{n}/attempt.json``  `AttemptRecord`: one try, whatever came of it.
- ``{address}/tombstone.json``             `Tombstone`: what was committed there before it was collected.
- ``runs/{run_id}.json``                   `RunRecord`: the graph that was asked for, and for every node the
                                           decision with its reason, the times and the outcome.

Invariant: every reference in a record (address, log, file) is relative to the prefix or to the output directory, so
a prefix that is moved or copied elsewhere still reads. Times are seconds since the epoch, UTC; durations are seconds.
"""

import dataclasses
import functools
import json
import math
import typing
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


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The pointer to the committed attempt. A step exists exactly when this file does."""

    address: str
    name: str
    version: str | None
    attempt: int
    digests: Digests
    recipe: dict[str, Any]
    code: dict[str, str]
    """Every function, class or constant that the step's code reaches -> its digest; names say which one changed."""
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
    """python, platform, host, user, cpu, num_cpus, memory_bytes, lock_digest, packages (name -> version)."""
    git: dict[str, Any] = field(default_factory=dict)
    """commit, branch, dirty (bool); empty outside a repository."""
    driver: dict[str, Any] = field(default_factory=dict)
    """host, pid and start tick of the process that drives the run: one that is dead will not end it any more."""
    schema: int = SCHEMA


def to_json(record: Any) -> str:
    """Canonical text of a record: sorted keys, two-space indent, a final newline. It can always be written as UTF-8,
    and it is strict JSON, which has no NaN: `finite` is what becomes of one."""
    data = dataclasses.asdict(record)
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates become JSON escapes


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
    try:
        # What an earlier version wrote may hold a bare NaN; its name is what is recorded today.
        data = json.loads(text, parse_constant=str)
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, found {type(data).__name__}")
        check_schema(data, where=where)
        return build(kind, data)
    except (ValueError, TypeError, KeyError) as e:
        raise CorruptRecordError(f"{where}: not a readable {kind.__name__} ({e})") from e


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


def build(kind: Any, data: Any) -> Any:
    """Dataclasses, tuples and optionals from plain JSON, following the annotations."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise TypeError(f"{kind} wants an object, found {type(data).__name__}")
        hints = _hints(kind)
        return kind(**{f.name: build(hints[f.name], data[f.name]) for f in dataclasses.fields(kind) if f.name in data})
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(build(args[0], item) for item in data)
    nested = [a for a in args if dataclasses.is_dataclass(a)]
    if data is not None and nested and type(None) in args:
        return build(nested[0], data)
    if isinstance(data, str) and data in _NOT_FINITE and float in (kind, *args) and str not in args:
        return float(data)
    return data
