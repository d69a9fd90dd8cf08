"""What stands on disk, whole or damaged, kept or collected: ``marin verify``, ``gc``, ``pin`` and ``unpin``."""

import argparse
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from marin_core.collection import Policy, Survey, pins, survey
from marin_core.collection.garbage import Garbage
from marin_core.collection.removal import Collection, Removed
from marin_core.commands import Answer
from marin_core.errors import UsageError
from marin_core.quantities import format_bytes, format_count
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.tables import MOST_ROWS, align, hidden_line
from marin_core.reading.verification import verify_runs, verify_steps


def verify(parsed: argparse.Namespace) -> Answer:
    """Compares committed outputs with their manifests, and records with what they point at."""
    catalogue = Catalogue.of(parsed.prefix)
    wanted = [a for text in parsed.addresses for a in catalogue.addresses_of(text)]
    steps = list(verify_steps(catalogue, wanted or catalogue.addresses, deep=parsed.deep))
    findings = [*steps, *(() if wanted else verify_runs(catalogue))]
    damaged = {f.key: list(f.damage) for f in findings if f.damage}
    files, size = sum(f.num_files for f in steps), sum(f.num_bytes for f in steps)
    checked = sum(f.committed for f in steps)
    document = {"checked": checked, "num_files": files, "num_bytes": size, "deep": parsed.deep, "damaged": damaged}
    compared = f"{format_count(files, 'file')}, {format_bytes(size)} {'read' if parsed.deep else 'by size'}"
    last = f"{format_count(checked, 'step')} checked, {len(damaged)} damaged ({compared})"
    lines = [f"{key}: {what}" for key, damage in damaged.items() for what in damage]
    return Answer(document=document, lines=[*lines, last], exit_code=1 if damaged else 0)


def gc(parsed: argparse.Namespace) -> Answer:
    """Says what nothing needs any more; ``--apply`` removes it."""
    if not parsed.keep_days >= 0 or parsed.keep_runs < 0:  # nan is not
        raise UsageError("--keep-days and --keep-runs count what is kept: give 0 or more")
    catalogue = Catalogue.of(parsed.prefix)
    policy = Policy(keep_days=parsed.keep_days, keep_runs=parsed.keep_runs, keep_run=tuple(parsed.keep_run))
    if not parsed.apply:
        found = survey(catalogue, policy)
        return _collected(parsed, found, [Removed(garbage=g) for g in found.garbage])
    with Collection.begun(catalogue.store) as collection:
        found = survey(catalogue, policy)
        done = list(collection.collect(found.garbage))
    return _collected(parsed, found, done)


def _collected(parsed: argparse.Namespace, found: Survey, done: list[Removed]) -> Answer:
    gone = [r.garbage for r in done if not r.left]
    left = [r for r in done if r.left]
    size = sum(g.num_bytes for g in gone)
    document = {
        "applied": parsed.apply,
        "garbage": [_document(g) for g in gone],
        "num_files": sum(g.num_files for g in gone),
        "num_bytes": size,
        "left": [{**_document(r.garbage), "left": r.left} for r in left],
        "kept": found.kept,
        "unreadable": list(found.unreadable),
    }
    rows = _rows(gone, all_of_them=parsed.all)
    lines = [
        *align(rows, width=parsed.width, right=frozenset({1})),
        *([hidden_line("marin gc", len(gone), "item", len(rows))] if len(rows) < len(gone) else []),
        *(f"left alone: {r.garbage.what}: {r.left}" for r in left),
        *(f"left alone: {text}" for text in found.unreadable),
        _kept(found.kept.values()),
        _closing(gone, size, applied=parsed.apply),
    ]
    return Answer(document=document, lines=lines)


def _rows(garbage: list[Garbage], *, all_of_them: bool) -> list[tuple[str, ...]]:
    """A row for each; of more than a screen bears, a row for all of one kind, name and reason."""
    if all_of_them or len(garbage) <= MOST_ROWS:
        return [(g.kind, format_bytes(g.num_bytes), g.what, g.why) for g in garbage]
    groups: dict[tuple[str, str, str], list[Garbage]] = {}
    for g in garbage:
        groups.setdefault((g.kind, g.address.rpartition("/")[0] or g.address, g.why), []).append(g)
    return [
        (kind, format_bytes(sum(g.num_bytes for g in group)), f"{len(group):,} of {name}", why)
        for (kind, name, why), group in groups.items()
    ]


def _document(garbage: Garbage) -> dict[str, Any]:
    return {k: v for k, v in asdict(garbage).items() if k != "attempt"}


def _kept(roots: Iterable[str]) -> str:
    kinds = Counter(_kind(why) for why in roots)
    said = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
    return f"kept: {format_count(kinds.total(), 'step')}{f' ({said})' if said else ''}"


def _kind(why: str) -> str:
    words = ("pinned", "versioned", "being made", "used by", "upstream of")
    return {"used by": "used by kept runs", "upstream of": "upstream of those"}.get(
        word := next((w for w in words if why.startswith(w)), why), word
    )


def _closing(gone: list[Garbage], size: int, *, applied: bool) -> str:
    if not gone:
        return "nothing to collect"
    nouns = {"work": "workspace", "temporary": "temporary file"}
    kinds = Counter(nouns.get(g.kind, g.kind) for g in gone)
    pieces = ", ".join(format_count(n, noun) for noun, n in kinds.items())
    if applied:
        return f"freed {format_bytes(size)}: {pieces}"
    return f"would free {format_bytes(size)}: {pieces}; marin gc --apply removes them"


def pin(parsed: argparse.Namespace) -> Answer:
    """Pins a step, or lists the pins."""
    catalogue = Catalogue.of(parsed.prefix)
    if parsed.address is None:
        found = [
            p for p in catalogue.each(lambda a: pins.read_pin(catalogue.store, a), catalogue.addresses).values() if p
        ]
        rows = [(p.address, time.strftime("%Y-%m-%d", time.localtime(p.pinned_at)), p.user, p.why) for p in found]
        lines = [*align(rows, width=parsed.width), format_count(len(found), "pin")]
        return Answer(document=[asdict(p) for p in found], lines=lines)
    address, remark = catalogue.find_step(parsed.address)
    made = pins.pin(catalogue.store, address, why=parsed.why)
    line = f"pinned {address}: gc keeps it and what it was made from"
    return Answer(document=asdict(made), lines=[line], remarks=(remark,) if remark else ())


def unpin(parsed: argparse.Namespace) -> Answer:
    """Takes a pin away."""
    catalogue = Catalogue.of(parsed.prefix)
    named = catalogue.addresses_of(parsed.address)
    pinned = [a for a in named if pins.read_pin(catalogue.store, a)]
    if len(pinned) > 1:
        raise UsageError(f"{parsed.address}: {len(pinned)} of them are pinned, name one: {', '.join(pinned)}")
    for address in pinned:
        pins.unpin(catalogue.store, address)
    line = f"unpinned {pinned[0]}" if pinned else f"{parsed.address} was not pinned"
    return Answer(document={"address": (pinned or named)[0], "was_pinned": bool(pinned)}, lines=[line])
