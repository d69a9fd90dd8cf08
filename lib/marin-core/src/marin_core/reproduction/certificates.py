"""Certificates: whether a step came out the same a second time, file by file, and what explains it if it did not.

A comparison is between two records of one step. Where they differ, the explanation is looked for in the order of what
can cause it: an input that differs already, then recipe, code, environment and machine; when all of those are the
same, the step is not deterministic. The certificate names the first step in topological order that differs, because
what comes after it may only be its consequence.

Idea: reproducible-builds.org's definition, a bit-by-bit identical copy of all specified artifacts from the same source
and environment, told as a report of differences in the manner of its diffoscope.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin_core.provenance import environments
from marin_core.quantities import format_bytes
from marin_core.reasons import recipe_changes
from marin_core.records import SCHEMA, EnvironmentRecord, Failure, StepRecord
from marin_core.reproduction.differences import (
    FileDifference,
    Output,
    file_differences,
    same_but_for_prefix,
    value_differences,
)

_MOST_SHOWN = 5
_HARDWARE = ("cpu", "num_cpus", "accelerators", "platform")


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
    output: Output
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
    files = tuple(file_differences(old.output, new.output))
    was, is_ = old.record.value, new.record.value
    values = tuple(value_differences(was, is_))
    reproduced = old.record.output_digest == new.record.output_digest
    held = [f.path for f in files if f.holds_prefix]
    if values and same_but_for_prefix(was, is_, prefixes=(old.output.prefix, new.output.prefix)):
        held.append("its value")
    if reproduced:
        explanation = _despite(old, new)
    elif held and len(held) == len(files) + bool(values):
        explanation = f"only the path of the prefix differs, in {environments.listed(held)}"
    else:
        explanation = explain(old, new, first=first)
    return Comparison(
        address=old.record.address, reproduced=reproduced, files=files, values=values, explanation=explanation
    )


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
            other.append(_said(what, changes))
        else:
            same.append(what)
    if not other:
        return "same recipe, code, inputs, environment and machine: the step is not deterministic"
    return "; ".join([f"same {' and '.join([', '.join(same[:-1]), same[-1]] if same[1:] else same)}", *other])


def _said(what: str, changes: Sequence[str]) -> str:
    return f"{what.removesuffix('s')} differs: {environments.listed(changes)}"


def _despite(old: Side, new: Side) -> str:
    """What differs although the step came out the same; empty if nothing does."""
    found = [_said(what, changes) for what, changes in _causes(old, new) if changes]
    return f"the same although {'; '.join(found)}" if found else ""


def _causes(old: Side, new: Side) -> Iterator[tuple[str, list[str] | None]]:
    """Each thing that can make a difference, and in what it differs; None if that is unknown."""
    a, b = old.record, new.record
    yield "recipe", recipe_changes(a.recipe, b.recipe) if a.digests.recipe != b.digests.recipe else []
    names = [n for n in {**a.code, **b.code} if a.code.get(n) != b.code.get(n)]
    was, is_ = (r.origin.get("commit", "")[:12] for r in (a, b))
    reason = f"made at commit {was}, run at {is_}" if was != is_ else "the patch is incomplete"
    yield "code", [reason, *names] if a.digests.code != b.digests.code else []
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


def as_text(certificate: Certificate) -> str:
    """A certificate for people."""
    made = f"commit {certificate.commit[:12]}{', patched' if certificate.patch else ''}; {certificate.interpreter}"
    verdict = "reproduced" if certificate.reproduced else "not reproduced"
    if not certificate.reproduced and certificate.steps and certificate.steps[-1].reproduced:
        verdict = "reproduced, unlike what it was made from"
    lines = [f"{verdict}: {certificate.address} ({made})"]
    lines += [f"  note: {note}" for note in certificate.notes]
    for step in certificate.steps:
        state = {True: "same", False: "differs", None: "unknown"}[step.reproduced]
        lines.append(f"  {state:<8} {step.address}")
        parts = (*_cut([*map(_file_line, step.files)]), *_cut([f"value {v}" for v in step.values]))
        lines += [f"           {line}" for line in parts]
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
    size = format_bytes(file.old.size)
    if file.old.size != file.new.size:
        size += f" -> {format_bytes(file.new.size)}"
    said = [size, f"sha256 {file.old.sha256[:12]} -> {file.new.sha256[:12]}"]
    said += [f"from byte {file.first_byte}"] if file.first_byte is not None else []
    said += ["only the path of the prefix"] if file.holds_prefix else list(file.fields[:1])
    return f"{file.path}: {', '.join(said)}"
