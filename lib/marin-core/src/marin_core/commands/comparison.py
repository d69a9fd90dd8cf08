"""How outputs differ: ``marin diff`` of two runs or two steps."""

import argparse
from collections.abc import Iterable
from typing import Any

from marin_core.commands import Answer
from marin_core.errors import MarinCoreError, UsageError
from marin_core.quantities import format_count, format_number, format_quantity, is_number
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.changes import SECTIONS, Change, Pair
from marin_core.reading.comparisons import compare_runs, compare_steps, matter
from marin_core.reading.tables import align
from marin_core.records import RunRecord, StepRecord

_MOST_SHOWN = 40
"""Changes of one section that are shown to people; JSON has all."""
_LONG = 60
"""Characters of a text above which before and after stand on lines of their own."""


def diff(parsed: argparse.Namespace) -> Answer:
    """What differs between two runs, or between two steps."""
    catalogue = Catalogue.of(parsed.prefix)
    runs = [_run_of(catalogue, text) for text in (parsed.a, parsed.b)]
    if all(runs):
        answer = _diff_runs(catalogue, *(catalogue.run(r) for r in runs if r))
    elif any(runs):
        known, other = (parsed.a, parsed.b) if runs[0] else (parsed.b, parsed.a)
        raise UsageError(f"{known} is a run, and {other} is none; compare two runs or two steps")
    else:
        answer = _diff_steps(catalogue, parsed.a, parsed.b)
    differ = parsed.exit_code and not answer.document["same"]
    return Answer(document=answer.document, lines=answer.lines, remarks=answer.remarks, exit_code=1 if differ else 0)


def _run_of(catalogue: Catalogue, text: str) -> str | None:
    """The run that a text names, if it names one; a step of that name or address has precedence over what a run's id
    only begins with."""
    begun = any(i.startswith(text) for i in catalogue.run_ids) and text not in catalogue.run_ids
    if begun and catalogue.named(text):
        return None
    return catalogue.find_run(text) if begun or text in catalogue.run_ids or text.startswith("latest") else None


# Two steps


def _diff_steps(catalogue: Catalogue, a: str, b: str) -> Answer:
    found = [catalogue.find_step(text) for text in (a, b)]
    records = [_record(catalogue, address) for address, _ in found]
    old, new = records
    changes = compare_steps(catalogue, old, new)
    same = not any(c.section != "timings" for c in changes)
    document = {"kind": "steps", "a": old.address, "b": new.address, "same": same, "changes": _sections(changes)}
    kinds = ", ".join(dict.fromkeys(c.section for c in _ordered(changes)))
    last = (
        f"{old.address} and {new.address} are the same"
        if same
        else f"{old.address} and {new.address} differ in {kinds}"
    )
    return Answer(document=document, lines=[*_lines(changes), last], remarks=tuple(r for _, r in found if r))


def _record(catalogue: Catalogue, address: str) -> StepRecord:
    record = catalogue.remembered(address)
    if record is None:
        found = catalogue.record(address)
        raise found if isinstance(found, MarinCoreError) else UsageError(f"{address}: nothing was ever committed there")
    return record


# Two runs


def _diff_runs(catalogue: Catalogue, old: RunRecord, new: RunRecord) -> Answer:
    found = compare_runs(catalogue, old, new)
    whole, pairs, changed = found.whole, found.pairs, found.differing
    document = {
        "kind": "runs", "a": old.run_id, "b": new.run_id, "same": not changed and not matter(whole),
        "changes": _sections(whole),
        "steps": [_pair_document(p) for p in pairs],
    }  # fmt: skip
    lines = _lines(whole)
    for p in changed[:_MOST_SHOWN]:
        lines.extend([_title(p), *(f"  {line}" for line in _lines(p.changes))])
    if len(changed) > _MOST_SHOWN:
        lines.append(f"and {format_count(len(changed) - _MOST_SHOWN, 'more step')} that differ; --json has all")
    both = sum(p.old is not None and p.new is not None for p in pairs)
    last = f"{len(changed)} of {format_count(len(pairs), 'step')} differ ({both} are in both runs)"
    return Answer(document=document, lines=[*lines, f"{old.run_id} and {new.run_id}: {last}"])


def _pair_document(pair: Pair) -> dict[str, Any]:
    sides = {side: n and n.address for side, n in (("a", pair.old), ("b", pair.new))}
    return {"name": pair.name, **sides, "changes": _sections(pair.changes)}


def _title(pair: Pair) -> str:
    if pair.old is None or pair.new is None:
        only = pair.old or pair.new
        return f"{only.address if only else pair.name}: only in {'b' if pair.old is None else 'a'}"
    same = pair.old.address == pair.new.address
    return pair.new.address if same else f"{pair.old.address} -> {pair.new.address}"


# Changes as text and JSON


def _ordered(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda c: SECTIONS.index(c.section))


def _sections(changes: Iterable[Change]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for change in _ordered(changes):
        found.setdefault(change.section, []).append(change.document())
    return found


def _lines(changes: Iterable[Change]) -> list[str]:
    by_section: dict[str, list[Change]] = {}
    for change in _ordered(changes):
        by_section.setdefault(change.section, []).append(change)
    lines = []
    for section, members in by_section.items():
        told = [(c.name, _told(c)) for c in members[:_MOST_SHOWN]]
        lines.append(section)
        lines.extend(align([("", name, *text) for name, text in told if len(text) == 1]))
        lines.extend(
            line for name, text in told if len(text) > 1 for line in (f"  {name}", *(f"    {t}" for t in text))
        )
        if len(members) > _MOST_SHOWN:
            lines.append(f"  and {len(members) - _MOST_SHOWN} more; --json has all")
    return lines


def _told(change: Change) -> list[str]:
    """What became of it: on one line, or, if it is long, on one each for before and after."""
    if change.section == "code":
        return ["new" if change.old is None else "gone" if change.new is None else "changed"]
    before, after = (_word(change.name, value) for value in (change.old, change.new))
    if before == after and change.section != "timings":
        before, after = repr(change.old), repr(change.new)  # a difference beyond four digits, or of type
    if change.section == "inputs":
        before, after = before[:12], after[:12]
    if max(len(before), len(after)) > _LONG:
        return [f"- {before}", f"+ {after}"]
    text = f"{before} -> {after}"
    if change.delta is None:
        return [text]
    ratio = f", x{format_number(change.ratio)}" if change.ratio is not None else ""
    sign = "+" if change.delta > 0 else "-" if change.delta < 0 else ""
    return [f"{text}  ({sign}{format_quantity(change.name, abs(change.delta))}{ratio})"]


def _word(name: str, value: Any) -> str:
    if value is None:
        return "absent"
    return format_quantity(name, value) if is_number(value) else str(value)
