"""Reports: what a run did, in numbers, as a table and as JSON.

A `StageReport` has two parts. What follows from the inputs alone (rows, bytes, what was refused and why, how evenly an
exchange spread) goes into the stage's manifest, so that a run that reuses the stage reports it again. What differs from
run to run (seconds, the slowest task) is this run's own, and is empty for a stage that was reused.

A *straggler* is a task that took more than three times the median of its stage and half a second more than that. The
*skew* of an exchange is its largest partition beside the mean one; a *hot key* is one with more than 5% of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.counters import RowCounts, merge
from marin_zephyr.formats.files import is_rejects
from marin_zephyr.reporting.quantities import cut, shown_bytes
from marin_zephyr.reporting.refusals import Refused, merge_refused, num_refused, told_refused
from marin_zephyr.specs import is_exchanged, is_kept

if TYPE_CHECKING:
    from marin_zephyr.records import TaskRecord
    from marin_zephyr.specs import Stage, TaskInput

REPORT = "_report.json"

_STRAGGLER_RATIO = 3.0
_STRAGGLER_SECONDS = 0.5
_SHOWN = 3
_NAME_WIDTH = 36
_MIN_SKEW = 2.0


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """What a stage did."""

    name: str
    fingerprint: str
    num_tasks: int
    operations: tuple[tuple[str, dict[str, int]], ...]
    """Name and `RowCounts` of each operation."""
    counters: dict[str, int]
    """What the caller's functions counted."""
    files: tuple[dict[str, Any], ...]
    """Name, size and rows of each file, relative to the stage's directory."""
    internal: bool = False
    """Whether its rows are not the caller's: keys and positions that an exchange sends about."""
    rows_read: int = 0
    """Rows that came from sources, and not from an earlier stage."""
    bytes_in: int = 0
    """Size of the files that were read; 0 where a stage reads what an earlier one has written."""
    refused: Refused = field(default_factory=dict)
    """What was refused, by the kind of reason."""
    skew: dict[str, Any] = field(default_factory=dict)
    """How evenly the exchange that it reads was spread: ``partitions``, ``largest`` and ``mean`` rows."""
    hot_keys: tuple[dict[str, Any], ...] = ()
    """Of an exchange that it feeds: ``key``, ``rows`` (at least) and ``share`` of each key with over 5% of the rows."""
    made_of: dict[str, Any] = field(default_factory=dict)
    """What the result depends on; see `reporting.reasons`."""
    executed: int = 0
    """Tasks that ran in this run; the others were committed before."""
    seconds: float = 0.0
    retried: int = 0
    """Tasks that had to be tried again."""
    timings: dict[str, Any] = field(default_factory=dict)
    """Of the tasks that ran: the ``median`` seconds, the ``slowest`` task, and the ``stragglers``."""

    @property
    def rows_in(self) -> int:
        """Rows read."""
        return self.operations[0][1]["rows_in"]

    @property
    def rows_out(self) -> int:
        """Rows written."""
        return self.operations[-1][1]["rows_out"]

    @property
    def bytes_out(self) -> int:
        """Size of the part files, or of the rows that are kept for a later stage."""
        names = ((f["name"], f["size"]) for f in self.files)
        return sum(size for name, size in names if not (is_exchanged(name) or is_rejects(name)))

    @property
    def bytes_exchanged(self) -> int:
        """Size of what was sent through an exchange."""
        return sum(f["size"] for f in self.files if is_exchanged(f["name"]))

    @property
    def rows_per_second(self) -> float:
        """Rows read a second of this run; 0 for a stage that was reused."""
        return self.rows_in / self.seconds if self.executed and self.seconds else 0.0

    def total(self, what: str) -> int:
        """Sum of ``filtered``, ``rejected``, ``consumed`` or ``produced`` over the operations."""
        return sum(counts[what] for _, counts in self.operations)

    def lasting(self) -> dict[str, Any]:
        """The part that follows from the inputs alone: equal inputs give equal manifests.

        Kept rows are left out: the size of their files tells how much memory a sort had.
        """
        own = ("executed", "seconds", "retried", "timings")
        data = {name: value for name, value in asdict(self).items() if name not in own}
        lists = {"files": [f for f in self.files if not is_kept(f["name"])], "hot_keys": list(self.hot_keys)}
        return {**data, **lists, "operations": [list(o) for o in self.operations]}

    @classmethod
    def from_lasting(cls, data: dict[str, Any]) -> StageReport:
        """The inverse of `lasting`."""
        operations = tuple((name, counts) for name, counts in data["operations"])
        tuples = {"operations": operations, "files": tuple(data["files"]), "hot_keys": tuple(data["hot_keys"])}
        fields: dict[str, Any] = {**data, **tuples}
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON: the fields, and what is computed from them. Which files there are, the manifest says."""
        computed = ("rows_in", "rows_out", "bytes_out", "bytes_exchanged", "rows_per_second")
        what = ("filtered", "rejected", "consumed", "produced")
        fields = {name: value for name, value in asdict(self).items() if name not in ("files", "made_of")}
        return {
            **fields,
            **{name: getattr(self, name) for name in computed},
            **{name: self.total(name) for name in what},
        }


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run did. ``str()`` of it is a table."""

    files: tuple[Path, ...]
    """The part files, in order."""
    rejects: tuple[Path, ...]
    """Files of refused records; empty unless ``on_error="quarantine"`` and something was refused."""
    counters: dict[str, int]
    """``rows_in``, ``rows_out``, ``filtered``, ``rejected``, ``consumed``, ``produced``, and the caller's own."""
    stages: tuple[StageReport, ...]
    """Every stage, with the counts of each operation."""
    executed: int
    """Tasks that ran; 0 if everything was committed before."""
    seconds: float
    began: str = ""
    """When, in ISO 8601."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of whatever can change bytes."""

    @property
    def refused(self) -> Refused:
        """What was refused in all stages, by the kind of reason, with an example of each."""
        totals: Refused = {}
        for stage in self.stages:
            merge_refused(totals, stage.refused)
        return totals

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            **asdict(self),
            "files": [str(p) for p in self.files],
            "rejects": [str(p) for p in self.rejects],
            "refused": self.refused,
            "stages": [s.to_json() for s in self.stages],
        }

    def save(self, directory: str | Path) -> Path:
        """Writes the report into a directory as ``_report.json``, which is no part of a dataset there.

        Args:
            directory: an output directory, or any other.

        Returns:
            The file.

        Raises:
            OutputError: it cannot be written.
        """
        from marin_zephyr.durability import replace_file

        path = Path(directory) / REPORT
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, default=str)
        replace_file(path, text.encode("utf-8", "backslashreplace"), durable=False)
        return path

    def __str__(self) -> str:
        lines = [*_table(self.stages), *(line for stage in self.stages for line in _remarks(stage))]
        if refused := self.refused:
            lines += [f"{num_refused(refused):,} records refused:", *told_refused(refused, most=_SHOWN)]
        return "\n".join(lines)


def summarize(
    stage: Stage, records: Sequence[TaskRecord], *, ran: Sequence[int], seconds: float, retried: int = 0
) -> StageReport:
    """The records of all tasks as one report.

    Args:
        stage: the stage.
        records: one a task, in order.
        ran: the tasks that ran in this run.
        seconds: how long the stage took.
        retried: how many tasks were tried again.
    """
    from marin_zephyr.inputs import SOURCES
    from marin_zephyr.reporting.reasons import made_of
    from marin_zephyr.reporting.skew import hot_keys

    operations = [(name, RowCounts()) for name, _ in records[0].operations]
    counters: dict[str, int] = {}
    refused: Refused = {}
    files: list[dict[str, Any]] = []
    for record in records:
        merge(counters, record.counters)
        merge_refused(refused, record.refused)
        for (_, total), (_, counts) in zip(operations, record.operations, strict=True):
            total.add(RowCounts.from_json(counts))
        files += [{"name": f.name, "size": f.size, "rows": f.rows} for f in record.files]
    return StageReport(
        name=stage.spec.name,
        fingerprint=stage.fingerprint,
        num_tasks=len(records),
        operations=tuple((name, counts.to_json()) for name, counts in operations),
        counters=dict(sorted(counters.items())),
        files=tuple(files),
        internal=stage.internal,
        rows_read=sum(r.rows_in for r, i in zip(records, stage.inputs, strict=True) if isinstance(i, SOURCES)),
        bytes_in=sum(map(input_bytes, stage.inputs)),
        refused=refused,
        skew=_skew(stage, records),
        hot_keys=hot_keys((record.frequent for record in records), rows=max(1, operations[-1][1].rows_out)),
        made_of=made_of(stage),
        executed=len(ran),
        seconds=seconds,
        retried=retried,
        timings=_timings(stage, [records[i] for i in ran]),
    )


def input_bytes(task_input: TaskInput) -> int:
    """Bytes of the files that a task reads; 0 if it reads what an earlier stage has written."""
    from marin_zephyr.inputs import FilesInput

    return sum(file.size for file in task_input.files) if isinstance(task_input, FilesInput) else 0


def _skew(stage: Stage, records: Sequence[TaskRecord]) -> dict[str, Any]:
    """How evenly the exchange that a stage reads was spread."""
    if len(records) < 2 or not hasattr(stage.inputs[0], "partition"):
        return {}
    rows = [record.rows_in for record in records]
    return {"partitions": len(rows), "largest": max(rows), "mean": round(sum(rows) / len(rows), 1)}


def _timings(stage: Stage, ran: Sequence[TaskRecord]) -> dict[str, Any]:
    if not ran:
        return {}
    slow = sorted(ran, key=lambda record: (-record.seconds, record.index))
    median = slow[len(slow) // 2].seconds
    limit = max(_STRAGGLER_RATIO * median, median + _STRAGGLER_SECONDS)
    told = [{"task": r.index, "input": stage.inputs[r.index].name, "seconds": r.seconds} for r in slow]
    return {
        "median": round(median, 4),
        "slowest": told[0],
        "stragglers": [entry for entry in told if entry["seconds"] > limit],
    }


def _table(stages: Sequence[StageReport]) -> list[str]:
    """The stages under each other; numbers to the right. A stage's tasks are those that ran and those there are."""
    head = ("stage", "ran", "rows in", "rows out", "filtered", "rejected", "seconds", "rows/s")
    rows: list[tuple[str, ...]] = [head]
    for s in stages:
        numbers = [f"{n:,}" for n in (s.rows_in, s.rows_out, s.total("filtered"), s.total("rejected"))]
        times = (f"{s.seconds:.1f}", f"{s.rows_per_second:,.0f}") if s.executed else ("reused", "")
        rows.append((s.name, f"{s.executed}/{s.num_tasks}", *numbers, *times))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]


def _remarks(stage: StageReport) -> list[str]:
    """What else there is to say of a stage: bytes, the slowest task, skew, tasks tried again."""
    named = (("read", stage.bytes_in), ("written", stage.bytes_out), ("exchanged", stage.bytes_exchanged))
    lines = [", ".join(f"{shown_bytes(size)} {what}" for what, size in named if size)]
    if stage.retried:
        lines.append(f"{stage.retried:,} tasks were tried again: their workers died")
    for slow in stage.timings.get("stragglers", ())[:_SHOWN]:
        ratio = slow["seconds"] / max(stage.timings["median"], 1e-3)
        lines.append(f"slow: {slow['seconds']:.1f} s, {ratio:.0f} x the median: {cut(slow['input'], _NAME_WIDTH)}")
    if stage.executed > 1 and stage.timings["slowest"]["seconds"] >= 1 and not stage.timings["stragglers"]:
        slow = stage.timings["slowest"]
        lines.append(f"slowest task {slow['seconds']:.1f} s: {cut(slow['input'], _NAME_WIDTH)}")
    skew = stage.skew
    if skew.get("largest", 0) > _MIN_SKEW * skew.get("mean", 0):
        ratio = skew["largest"] / skew["mean"]
        lines.append(f"largest of {skew['partitions']} partitions: {skew['largest']:,} rows, {ratio:.1f} x the mean")
    hot = stage.hot_keys[:_SHOWN]
    lines += [f"hot key {cut(h['key'], _NAME_WIDTH)}: {h['share']:.0%} of the rows exchanged" for h in hot]
    return [f"  {stage.name}: {line}" for line in lines if line]
