"""The last words on a run: what went wrong with its log, what the script itself has to say, what was accepted, in what
the machine differs from what made the reused steps, the counts, and where the page lies.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marin_core.namesakes import labels
from marin_core.quantities import format_count, format_seconds
from marin_core.records import NodeRecord, RunRecord
from marin_core.runner import RunReport

Epilogue = Callable[[RunReport], Any]
_TRACEBACK_LINES = 10
_MOST_TROUBLES = 20
_ACCEPTED = "; old output accepted by --accept"
_ENVIRONMENT = "up to date; environment changed since"
_WORDS = {
    "succeeded": "done",
    "reused": "up to date",
    "failed": "failed",
    "refused": "refused",
    "blocked": "blocked",
    "cancelled": "cancelled",
    "pending": "not started",
    "unselected": "not selected",
}
"""Outcome -> how it is counted."""


def closing_lines(report: RunReport, epilogue: Epilogue | None) -> list[str]:
    """The last lines of a run; see above."""
    record = report.record
    called = labels(record.nodes)
    troubles = [said for node in record.nodes if (said := _trouble(node, called[node.address], report.prefix))]
    lines = [line for trouble in troubles[:_MOST_TROUBLES] for line in trouble]
    if len(troubles) > _MOST_TROUBLES:
        lines.append(f"and {format_count(len(troubles) - _MOST_TROUBLES, 'more step')} that failed or were refused")
    if report.ok and epilogue is not None:
        lines.append(str(epilogue(report)))
    lines.extend(_accepted(record.nodes))
    lines.extend(_environment(record.nodes))
    lines.append(_counts(record))
    if report.html is not None:
        lines.append(f"report: {shown_path(report.html)}")
    return lines


def _counts(record: RunRecord) -> str:
    """``done: 1 of 2 steps executed in 3.1 s``, or how many steps came to what."""
    found = Counter[str](node.outcome for node in record.nodes)
    if record.status != "succeeded":
        return ", ".join(f"{found[o]:,} {word}" for o, word in _WORDS.items() if found[o]) or "nothing ran"
    steps = format_count(len(record.nodes), "step")
    if not found["succeeded"]:
        return f"nothing to do: {steps} up to date"
    seconds = (record.ended_at or record.started_at) - record.started_at
    others = ", the others up to date" if found["succeeded"] < len(record.nodes) else ""
    return f"done: {found['succeeded']:,} of {steps} executed in {format_seconds(seconds)}{others}"


def _trouble(node: NodeRecord, label: str, prefix: str) -> list[str]:
    """Lines on a step that failed or was refused: one for a user's mistake, else the end of the traceback."""
    if node.outcome == "refused":
        return [f"refused: step {node.address}: {node.reason}"]
    if node.outcome != "failed" or node.failure is None:
        return []
    where = [f"  log: {shown_path(f'{prefix}/{node.log}')}"] if node.log else []
    if node.failure.exit_code is not None:
        return [f"step {label}: {node.failure.message}", *where]
    text = node.failure.traceback.splitlines()[-_TRACEBACK_LINES:]
    said = f"step {label} failed: {node.failure.type}: {node.failure.message}"
    return [said, *(f"  {line}" for line in text), *where]


def _accepted(nodes: Sequence[NodeRecord]) -> Iterator[str]:
    """What was served although it is not what was asked for."""
    for node in nodes:
        if node.decision == "accept":
            then = "refuses again" if node.version is not None else "makes it again"
            yield f"accepted {node.address}: {node.reason.removesuffix(_ACCEPTED)}; the next plain run {then}"


def _environment(nodes: Sequence[NodeRecord]) -> Iterator[str]:
    """One line for each way in which the environment differs from the one that reused steps were made in."""
    said = (n.reason.removeprefix(_ENVIRONMENT) for n in nodes if n.reason.startswith(_ENVIRONMENT))
    for changes, count in Counter(said).items():
        was = "was" if len(nodes) == 1 else "were"
        yield f"environment changed since {count:,} of {format_count(len(nodes), 'step')} {was} made{changes}"


def shown_path(path: str) -> str:
    """Relative to the working directory where that is shorter."""
    if "://" in path:
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
