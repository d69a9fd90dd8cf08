"""Certificates: whether a step came out the same a second time, file by file, and what explains it if it did not.

A comparison is between two records of one step. Where they differ, the explanation is looked for in the order of what
can cause it: an input that differs already, then recipe, code, environment and machine; when all of those are the
same, the step is not deterministic. The certificate names the first step in topological order that differs, because
what comes after it may only be its consequence.

Idea: reproducible-builds.org's definition, a bit-by-bit identical copy of all specified artifacts from the same source
and environment, told as a report of differences in the manner of its diffoscope.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_core import environments
from marin_core.quantities import format_bytes
from marin_core.reasons import recipe_changes
from marin_core.records import SCHEMA, EnvironmentRecord, Failure, FileEntry, StepRecord

_BLOCK = 1 << 20
_TEXT_BYTES = 1 << 22
"""Most bytes of a file in which the path of its prefix is looked for."""
_ATTEMPT = re.compile(rb"(?<=attempts/)\d+(?=/out)")
_MOST_SHOWN = 5
_HARDWARE = ("cpu", "num_cpus", "accelerators", "platform")


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A file that differs between two outputs; ``None`` for the side that has no such file."""

    path: str
    old: FileEntry | None
    new: FileEntry | None
    first_byte: int | None = None
    """Offset of the first byte that differs, when both files could be read."""
    holds_prefix: bool = False
    """Whether the files are the same but for the path of the prefix in them."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One step, as it was recorded and as it came out again."""

    address: str
    reproduced: bool | None
    """None: there is nothing to compare with, since its record is gone."""
    files: tuple[FileDifference, ...] = ()
    values: tuple[str, ...] = ()
    """Parts of the recorded value that differ, as ``field: old -> new``."""
    explanation: str = ""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What came of reproducing a step."""

    address: str
    reproduced: bool
    explanation: str
    """Empty when reproduced; else the first difference and its cause."""
    made_at: float
    seconds: float
    run_id: str
    """The run that had made the step."""
    commit: str
    patch: str
    """Digest of the patch that was applied; empty when none was."""
    lock: str
    command: tuple[str, ...]
    interpreter: str
    notes: tuple[str, ...]
    """What else bears on the result: parts of the patch that were never recorded, a lock file put in place."""
    steps: tuple[Comparison, ...]
    """The step's ancestors in topological order, and the step itself."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two makings of a step, with what is known of where it was made."""

    record: StepRecord
    prefix: str
    output: Path | None
    """The output's local directory."""
    environment: EnvironmentRecord | None
    machine: Mapping[str, Any]
    """The run's ``environment``; empty if it is gone."""


def compare(old: Side, new: Side, *, first: Mapping[str, str]) -> Comparison:
    """Compares two makings of a step.

    Args:
        old: as recorded.
        new: as it came out again.
        first: of each earlier step that differs, the first step that differs on the way to it.
    """
    files = tuple(_file_differences(old, new))
    values = tuple(value_differences(old.record.value, new.record.value))
    reproduced = old.record.output_digest == new.record.output_digest
    explanation = "" if reproduced else explain(old, new, first=first)
    held = [f.path for f in files if f.holds_prefix]
    before, after = (_unplaced(_as_bytes(s.record.value), s) for s in (old, new))
    held += ["its value"] if values and before == after else []
    if held and len(held) == len(files) + bool(values):
        explanation = f"only the path of the prefix differs, in {environments.listed(held)}"
    return Comparison(
        address=old.record.address, reproduced=reproduced, files=files, values=values, explanation=explanation
    )


def _unplaced(text: bytes, side: Side) -> bytes:
    """A text without what in it only says where the outputs lie."""
    return _ATTEMPT.sub(b"", text.replace(os.fsencode(side.prefix), b""))


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def failed(address: str, failure: Failure | None, reason: str) -> Comparison:
    """A step that did not come to an end this time."""
    why = f"{failure.type}: {failure.message}" if failure else reason
    return Comparison(address=address, reproduced=False, explanation=f"it did not succeed here: {why}")


def explain(old: Side, new: Side, *, first: Mapping[str, str]) -> str:
    """Why two makings of a step may have come out differently."""
    inputs = [a for a in new.record.upstream if a in first]
    if inputs:
        culprits = list(dict.fromkeys(first[a] for a in inputs))
        already = ", ".join(inputs)
        earlier = "" if culprits == inputs else f"; the first to differ is {', '.join(culprits)}"
        return f"its input {already} differs already{earlier}"
    same, other = [], []
    for what, changes in _causes(old, new):
        if changes is None:
            other.append(f"the {what} it was made with is not recorded")
        elif changes:
            other.append(f"{what} differs: {environments.listed(changes)}")
        else:
            same.append(what)
    if not other:
        return "same recipe, code, inputs, environment and machine: the step is not deterministic"
    return "; ".join([f"same {' and '.join([', '.join(same[:-1]), same[-1]] if same[1:] else same)}", *other])


def _causes(old: Side, new: Side) -> Iterator[tuple[str, list[str] | None]]:
    """Each thing that can make a difference, and in what it differs; None if that is unknown."""
    a, b = old.record, new.record
    yield "recipe", recipe_changes(a.recipe, b.recipe) if a.digests.recipe != b.digests.recipe else []
    names = [n for n in {**a.code, **b.code} if a.code.get(n) != b.code.get(n)]
    was, is_ = (r.origin.commit[:12] if r.origin else "" for r in (a, b))
    elsewhere = f"(made at commit {was}, run at {is_})" if was != is_ else "(the patch is incomplete)"
    yield "code", [*names, elsewhere] if a.digests.code != b.digests.code else []
    yield "inputs", [u for u in b.upstream if a.inputs.get(u) != b.inputs.get(u)]
    yield "environment", environment_changes(old, new)
    if old.machine and new.machine:
        facts = [(k, old.machine.get(k), new.machine.get(k)) for k in _HARDWARE]
        yield "machine", [f"{k} {before} -> {after}" for k, before, after in facts if before != after]
    else:
        yield "machine", None


def environment_changes(old: Side, new: Side) -> list[str] | None:
    """Packages that differ between two makings: by their lock files, else by what was really installed."""
    found: list[str] = []
    if old.record.digests.environment != new.record.digests.environment:
        if old.environment is None or new.environment is None:
            return None
        found = environments.changes(old.environment, new.environment)
    installed = [side.machine.get("packages", {}) for side in (old, new)]
    return found or (list(environments.package_changes(*installed)) if all(installed) else [])


def _file_differences(old: Side, new: Side) -> Iterator[FileDifference]:
    before, after = ({f.path: f for f in side.record.files} for side in (old, new))
    for path in sorted({*before, *after}):
        a, b = before.get(path), after.get(path)
        if a == b:
            continue
        offset, held = None, False
        if a and b and old.output is not None and new.output is not None:
            was, is_ = old.output / path, new.output / path
            offset = first_difference(was, is_)
            if offset is not None and max(a.size, b.size) <= _TEXT_BYTES:
                held = _unplaced(was.read_bytes(), old) == _unplaced(is_.read_bytes(), new)
        yield FileDifference(path=path, old=a, new=b, first_byte=offset, holds_prefix=held)


def first_difference(a: Path, b: Path) -> int | None:
    """Offset of the first byte in which two files differ, the end of the shorter one included; None if none does, or
    if one cannot be read."""
    at = 0
    try:
        with a.open("rb") as f, b.open("rb") as g:
            while True:
                x, y = f.read(_BLOCK), g.read(_BLOCK)
                if x != y:
                    pairs = enumerate(zip(x, y, strict=False))
                    return at + next((i for i, (p, q) in pairs if p != q), min(len(x), len(y)))
                if not x:
                    return None
                at += len(x)
    except OSError:
        return None


def value_differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """The leaves in which two JSON values differ."""
    if type(old) is type(new) and isinstance(old, dict):
        for k in dict.fromkeys((*old, *new)):
            yield from value_differences(old.get(k, _ABSENT), new.get(k, _ABSENT), f"{at}.{k}" if at else k)
    elif type(old) is type(new) and isinstance(old, list):
        for i, (a, b) in enumerate(itertools.zip_longest(old, new, fillvalue=_ABSENT)):
            yield from value_differences(a, b, f"{at}[{i}]")
    elif repr(old) != repr(new):
        yield f"{at or 'value'}: {_shown(old)} -> {_shown(new)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_text(certificate: Certificate) -> str:
    """A certificate for people."""
    made = f"commit {certificate.commit[:12]}{', patched' if certificate.patch else ''}; {certificate.interpreter}"
    verdict = "reproduced" if certificate.reproduced else "not reproduced"
    lines = [f"{verdict}: {certificate.address} ({made})"]
    lines += [f"  note: {note}" for note in certificate.notes]
    for step in certificate.steps:
        state = {True: "same", False: "differs", None: "unknown"}[step.reproduced]
        lines.append(f"  {state:<8} {step.address}")
        lines += [f"           {line}" for line in (*_cut([*map(_file_line, step.files)]), *_cut(step.values))]
        lines += [f"           {step.explanation}"] if step.explanation else []
    if certificate.explanation:
        lines.append(certificate.explanation)
    return "\n".join(lines)


def _cut(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return [*lines[:_MOST_SHOWN], *more]


def _file_line(file: FileDifference) -> str:
    if file.old is None or file.new is None:
        return f"{file.path}: {'only here' if file.old is None else 'missing here'}"
    sizes = format_bytes(file.old.size)
    if file.old.size != file.new.size:
        sizes += f" -> {format_bytes(file.new.size)}"
    where = f", from byte {file.first_byte}" if file.first_byte is not None else ""
    where += " (only the path of the prefix)" if file.holds_prefix else ""
    return f"{file.path}: {sizes}, sha256 {file.old.sha256[:12]} -> {file.new.sha256[:12]}{where}"
