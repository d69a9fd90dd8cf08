"""Where outputs come from, and what became of them: ``marin lineage``."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin_core.commands import Answer
from marin_core.namesakes import Remembered, labels, titled
from marin_core.quantities import format_bytes, format_count, format_time
from marin_core.reading.ancestry import Ancestry, Kin, Line, tree
from marin_core.reading.catalogue import Catalogue

_DEEPEST = 24
"""Levels that a tree is indented by; a deeper line says its depth instead, so that a long chain stays linear."""


def lineage(parsed: argparse.Namespace) -> Answer:
    """What a step was made from, or what was made from it, as a tree."""
    catalogue = Catalogue.of(parsed.prefix)
    ancestry = Ancestry(catalogue)
    address, remark = _found(catalogue, ancestry, parsed.address)
    root = ancestry.of(address)
    lines = list(tree(root, ancestry.down if parsed.down else ancestry.up))
    steps = {line.kin.address: line.kin for line in lines}
    document = {
        "address": address,
        "direction": "down" if parsed.down else "up",
        "steps": [_kin_document(kin) for kin in steps.values()],
        "missing": [a for a, kin in steps.items() if kin.state == "missing"],
    }
    lost = f", {format_count(len(document['missing']), 'record')} missing" if document["missing"] else ""
    where = "downstream of" if parsed.down else "upstream of"
    last = f"{format_count(len(steps) - 1, 'step')} {where} {address}{lost}"
    records = sorted((k.record for k in steps.values() if k.record is not None), key=lambda r: r.committed_at)
    called = labels(map(Remembered.of, records))
    return Answer(document=document, lines=[*_tree_lines(lines, called), last], remarks=(remark,) if remark else ())


def _found(catalogue: Catalogue, ancestry: Ancestry, text: str) -> tuple[str, str | None]:
    """The step that a text names; adopted data, which lies nowhere here, is known from what was made of it."""
    if not catalogue.named(text) and (adopted := ancestry.adopted(text)):
        remark = f"{text}: the newest of {len(adopted)} is meant, {adopted[-1]}" if len(adopted) > 1 else None
        return adopted[-1], remark
    return catalogue.find_step(text)


def _tree_lines(lines: Sequence[Line], called: Mapping[str, str]) -> Iterator[str]:
    for line in lines:
        depth = f"({line.depth}) " if line.depth > _DEEPEST else ""
        title = titled(line.kin.address, called.get(line.kin.address, ""))
        text = f"{title}, see above" if line.again else _kin_text(line.kin, title)
        yield f"{'  ' * min(line.depth, _DEEPEST)}{depth}{text}"


def _kin_text(kin: Kin, title: str) -> str:
    r = kin.record
    if r is None:
        return f"{title}  {kin.note if kin.state == 'adopted' else f'{kin.state}: {kin.note}'}"
    by = f"run {kin.run_id}" if kin.run_id else "run unknown"
    at = f"commit {kin.commit}" if kin.commit else None
    parts = [format_time(r.committed_at), by, at, format_bytes(r.num_bytes), kin.note or None]
    return f"{title}  {', '.join(p for p in parts if p)}"


def _kin_document(kin: Kin) -> dict[str, Any]:
    r = kin.record
    known = {"version": r.version, "committed_at": r.committed_at, "num_bytes": r.num_bytes} if r else {}
    made = {"run_id": kin.run_id, "commit": kin.commit, "note": kin.note}
    return {"address": kin.address, "state": kin.state, "upstream": list(kin.upstream), **known, **made}
