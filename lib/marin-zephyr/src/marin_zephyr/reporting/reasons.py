"""Reasons: why a stage runs though an earlier run committed one of that name, ingredient by ingredient.

A fingerprint says that something changed and not what. So a manifest also keeps what its stages were made of, in words:
library versions, a short digest a file, the operations with their labels, the fields of the output. Two such records
are compared here. The earlier one is found in the sink's own manifest, which holds those of all its stages, or else in
the work directory, under the same name and another fingerprint, if it seems to be of the same dataset: a work directory
may serve many.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.fingerprints import library_versions
from marin_zephyr.inputs import SOURCES
from marin_zephyr.specs import HOME_MANIFEST

if TYPE_CHECKING:
    from marin_zephyr.specs import Stage

_MAX_FILES = 10_000
_SHOWN = 3
_SHORT = 12
_SOURCES = {source.__name__ for source in SOURCES}


def made_of(stage: Stage) -> dict[str, Any]:
    """What a stage's result depends on, as plain JSON small enough for a manifest."""
    files: dict[str, str] = {}
    for file in (f for i in stage.inputs for f in getattr(i, "files", ())):
        if name := getattr(file, "name", None) if hasattr(file, "identity") else None:
            files[name] = hashlib.sha256((files.get(name, "") + repr(file.identity)).encode()).hexdigest()[:_SHORT]
    options = getattr(stage.inputs[0], "options", None) if stage.inputs else None
    operations = [(name, digest) for name, digest in stage.ingredients.items() if name.partition(":")[0].isdigit()]
    return {
        "ingredients": {n: d[:_SHORT] for n, d in stage.ingredients.items() if not n.partition(":")[0].isdigit()},
        "libraries": library_versions(),
        "source": type(stage.inputs[0]).__name__ if stage.inputs else "",
        "files": files if len(files) <= _MAX_FILES else {f"{len(files):,} files": ""},
        "tasks": len(stage.inputs),
        "reading": _fields(_asked(options)),
        "operations": [[name.partition(":")[2], digest[:_SHORT]] for name, digest in operations],
        "output": {n: v for n, v in _fields(stage.spec.output).items() if n != "path"},
        "on_error": stage.spec.on_error,
    }


def why(stage: Stage, *, sink: Path | None) -> list[str]:
    """Why a stage that is not committed runs although one of its name was; empty if none was, as far as is known.

    Args:
        stage: the stage.
        sink: the manifest of the output directory in which the plan ends.
    """
    found = _earlier(stage, sink)
    if found is None:
        return []
    place, before = found
    if before["fingerprint"] == stage.fingerprint:
        is_here = place in (stage.spec.home, sink and stage.spec.home.parent)
        return [_lost(place, before) if is_here else "what it had committed was not kept: pass work_dir"]
    return _differences(before.get("made_of") or {}, made_of(stage))


def _earlier(stage: Stage, sink: Path | None) -> tuple[Path, dict[str, Any]] | None:
    """The record of an earlier stage of this name and the directory of its files."""
    own = stage.spec.home / HOME_MANIFEST
    # The sink's manifest is this very dataset's; what else lies in the work directory may be another's.
    paths = ([own] if own.exists() else []) + ([sink] if sink is not None else [])
    for path in paths:
        for entry in _entries(path):
            if entry.get("name") == stage.spec.name:
                return path.parent, entry
    now = made_of(stage)
    siblings = stage.spec.home.parent.glob(f"{stage.spec.name}-*/{HOME_MANIFEST}")
    for path in sorted(siblings, key=lambda p: (-p.stat().st_mtime_ns, p)):
        for entry in _entries(path):
            if _is_akin(entry.get("made_of") or {}, now):
                return path.parent, entry
    return None


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(path.read_text())["stages"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_akin(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two stages seem to be of one dataset: one input the same, or the names of both inputs and operations."""
    if before.get("ingredients", {}).get("inputs") == now["ingredients"]["inputs"]:
        return True
    old, new = before.get("files", {}), now["files"]
    operations = [{digest for _, digest in side.get("operations", ())} for side in (before, now)]
    return bool(old.items() & new.items()) or bool(old.keys() & new.keys() and operations[0] & operations[1])


def _lost(place: Path, before: Mapping[str, Any]) -> str:
    for file in before["files"]:
        path = place / file["name"]
        if not path.exists():
            return f"{file['name']} is gone from {place}"
        if path.stat().st_size != file["size"]:
            return f"{file['name']} in {place} has another size than was written"
    return "what it had committed cannot be read"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if not before:
        return ["an earlier version of marin-zephyr wrote it"]
    old, new = before["ingredients"], now["ingredients"]
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    reasons: list[str] = []
    if "engine" in changed:
        told = _changes(before["libraries"], now["libraries"], "{0} {1} -> {2}")
        reasons += told or ["the engine of marin-zephyr changed"]
    if "inputs" in changed:
        reasons += _inputs(before, now)
    reasons += _operations(before["operations"], now["operations"])
    if "output" in changed:
        told = _changes(before["output"], now["output"], "{0}: {1} -> {2}")
        reasons += told or ["the output changed"]
    if before["on_error"] != now["on_error"]:
        reasons.append(f"on_error: {before['on_error']} -> {now['on_error']}")
    return reasons or ["an ingredient changed"]


def _inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if now["source"] not in _SOURCES:
        return ["the stage that it reads from changed"]
    old, new = before["files"], now["files"]
    sides = (
        ("new", [n for n in new if n not in old]),
        ("gone", [n for n in old if n not in new]),
        ("changed", [n for n in new if n in old and old[n] != new[n]]),
    )
    told = [f"{what}: {_listed(names)}" for what, names in sides if names]
    told += _changes(before["reading"], now["reading"], "{0}: {1} -> {2}")
    if not told and before["tasks"] != now["tasks"]:
        told.append(f"cut into {now['tasks']:,} tasks, not {before['tasks']:,}")
    if not told:
        told.append("an input lies elsewhere" if new else "the rows given by value changed")
    return told


def _operations(before: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> list[str]:
    told = []
    matcher = SequenceMatcher(a=[d for _, d in before], b=[d for _, d in now], autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what == "equal":
            continue
        old, new = [name for name, _ in before[i:j]], [name for name, _ in now[k:m]]
        for a, b in zip(old, new, strict=False):
            told.append(f"{b} is another function now, or reaches other code" if a == b else f"{a} -> {b}")
        told += [f"{name} is gone" for name in old[len(new) :]] + [f"{name} is new" for name in new[len(old) :]]
    return told


def _changes(before: Mapping[str, str], now: Mapping[str, str], form: str) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [form.format(name, before.get(name, "none"), now.get(name, "none")) for name in names]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more


def _asked(options: Any) -> Any:
    """What the caller asked readers for: what the plan lets them leave out follows from the operations."""
    if options is None:
        return None
    columns = None if options.pushed else options.columns
    return replace(options, columns=columns, predicate=None, raw=False, pushed=False)


def _fields(value: Any) -> dict[str, str]:
    if not is_dataclass(value):
        return {}
    return {field.name: str(getattr(value, field.name))[:200] for field in fields(value)}
