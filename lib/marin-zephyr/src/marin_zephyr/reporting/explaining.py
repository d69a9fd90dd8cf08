"""Plans as text for people, and as JSON.

A plan is explained as it would run now, so whoever asks sees before a long run what is pushed down into the readers,
what is exchanged, what is done already, and why the rest is not. Nothing runs.

An output may say more of itself than its type: ``exchanged(weight)``, the bytes that it sends through an exchange for
so many bytes of input, and ``strategy``, a sentence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from marin_zephyr.inputs import FilesInput
from marin_zephyr.outputs import Parts
from marin_zephyr.reporting.quantities import shown_bytes
from marin_zephyr.shuffle.keys import PARTITION_FUNCTION

if TYPE_CHECKING:
    from marin_zephyr.planning import Plan
    from marin_zephyr.reporting.reports import StageReport
    from marin_zephyr.specs import Stage

_WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class StageExplanation:
    """One stage of a plan."""

    name: str
    tasks: int
    reads: dict[str, Any]
    """What is read; for files their number, size and formats, and what is pushed down into their readers."""
    operations: tuple[str, ...]
    output: dict[str, Any]
    """Where the rows go; for an exchange its partitions and bytes, estimated or (of a committed stage) measured."""
    state: str
    """``done``: a run would reuse it; ``needed``: it would execute tasks; ``not needed``: a later stage is done."""
    tasks_done: int
    """Tasks that an earlier, unfinished run has done."""
    reasons: tuple[str, ...]
    """Why it would run although an earlier run committed a stage of this name."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A plan for people (``str()``) and for programs (``to_json()``)."""

    stages: tuple[StageExplanation, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(line for stage in self.stages for line in _lines(stage))


def explain(plan: Plan) -> Explanation:
    """A plan as it would run now: each stage with what it reads, does and writes, and whether it is done already."""
    from marin_zephyr.records import record_path
    from marin_zephyr.reporting.reasons import why
    from marin_zephyr.stages import committed, manifest_path

    sink = plan.stages[-1]
    known = committed(sink)
    whole = known is not None and len(known) == len(plan.stages)
    explained = []
    for i, stage in enumerate(plan.stages):
        before = committed(stage) if not whole else (known[i],) if known else None
        done = before is not None and (whole or stage is not sink)
        is_done = stage is sink or not whole
        explained.append(
            StageExplanation(
                name=stage.spec.name,
                tasks=len(stage.inputs),
                reads=_reads(stage),
                operations=stage.spec.labels,
                output=_output(stage, before[0] if done and before else None),
                state=("done" if is_done else "not needed") if done else "needed",
                tasks_done=0
                if done
                else sum(record_path(stage.spec.home, i).exists() for i in range(len(stage.inputs))),
                reasons=() if done else tuple(why(stage, sink=manifest_path(sink))),
            )
        )
    return Explanation(stages=tuple(explained))


def _reads(stage: Stage) -> dict[str, Any]:
    if not stage.inputs:
        return {"kind": "nothing"}
    first = stage.inputs[0]
    weight = sum(i.weight for i in stage.inputs)
    if isinstance(first, FilesInput):
        files = {f.url: f for i in stage.inputs if isinstance(i, FilesInput) for f in i.files}
        options = first.options
        return {
            "kind": "files",
            "files": len(files),
            "first": next(iter(files)),
            "bytes": sum(f.size for f in files.values()),
            "estimated_bytes": weight,
            "formats": sorted({".".join(filter(None, (f.format, f.compression))) for f in files.values()}),
            "columns": None if options.columns is None else list(options.columns),
            "predicate": None if options.predicate is None else str(options.predicate),
            "raw_lines": options.raw,
            "on_error": stage.spec.on_error,
            "max_bad": stage.max_bad,
        }
    kind = type(first).__name__.removesuffix("Input").lower()
    return {"kind": kind, "first": first.name, "estimated_bytes": weight}


def _output(stage: Stage, report: StageReport | None) -> dict[str, Any]:
    output = stage.spec.output
    if isinstance(output, Parts):
        told = {"kind": "parts", "path": output.path, "format": output.format, "compression": output.compression}
        return told if report is None else {**told, "bytes": report.bytes_out, "rows": report.rows_out}
    told = {"kind": type(output).__name__}
    if (partitions := getattr(output, "num_partitions", None)) is not None:
        weight = sum(i.weight for i in stage.inputs)
        estimate = getattr(output, "exchanged", lambda weight: weight)(weight) or None
        told |= {"partitions": partitions, "partition_function": PARTITION_FUNCTION}
        told |= {"estimated_bytes": estimate} if report is None else {"bytes": report.bytes_exchanged}
    if strategy := getattr(output, "strategy", None):
        told["strategy"] = strategy
    return told


def _lines(stage: StageExplanation) -> list[str]:
    entries = [("read", _read_line(stage.reads))]
    if stage.reads.get("columns") is not None:
        entries.append(("", f"columns {', '.join(stage.reads['columns'])}"))
    if stage.reads.get("predicate") is not None:
        entries.append(("", f"rows where {stage.reads['predicate']}"))
    if stage.reads.get("raw_lines"):
        entries.append(("", "lines are passed on as they stand"))
    entries += [("do" if i == 0 else "", operation) for i, operation in enumerate(stage.operations)]
    entries.append(("write", _write_line(stage.output)))
    if strategy := stage.output.get("strategy"):
        entries.append(("", strategy))
    entries += [("state", _state_line(stage)), *(("", f"because {reason}") for reason in stage.reasons)]
    lines = [f"{stage.name}: {stage.tasks:,} task{'s' if stage.tasks != 1 else ''}"]
    for name, text in entries:
        lines += wrap(
            text,
            _WIDTH,
            initial_indent=f"    {name:<7}",
            subsequent_indent=" " * 13,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _read_line(reads: dict[str, Any]) -> str:
    if reads["kind"] != "files":
        return f"{reads['first']}, and so on" if "first" in reads else reads["kind"]
    size, estimate = shown_bytes(reads["bytes"]), shown_bytes(reads["estimated_bytes"])
    more = "" if reads["files"] == 1 else f" and {reads['files'] - 1:,} more"
    grown = "" if size == estimate else f" (about {estimate} uncompressed)"
    most = reads["max_bad"]
    bad = "" if most is None else f", at most {most:g} bad records" if most >= 1 else f", at most {most:.4g} of all bad"
    return f"{reads['first']}{more}: {', '.join(reads['formats'])}, {size}{grown}, on_error={reads['on_error']}{bad}"


def _write_line(output: dict[str, Any]) -> str:
    if output["kind"] == "parts":
        compression = f" ({output['compression']})" if output["compression"] else ""
        size = f": {output['rows']:,} rows, {shown_bytes(output['bytes'])}" if "bytes" in output else ""
        return f"{output['format']} parts{compression} in {output['path']}{size}"
    if "partitions" in output:
        size = f", {shown_bytes(output['bytes'])}" if "bytes" in output else ""
        if estimate := output.get("estimated_bytes"):
            size = f", about {shown_bytes(estimate)}"
        plural = "s" if output["partitions"] != 1 else ""
        return f"exchange ({output['kind']}): {output['partitions']:,} partition{plural}{size}"
    return output["kind"].lower()


def _state_line(stage: StageExplanation) -> str:
    if stage.state == "done":
        return "done, will be reused"
    if stage.state == "not needed":
        return "done before; not needed, since what follows is done"
    if stage.tasks_done:
        return f"will run the {stage.tasks - stage.tasks_done:,} tasks that are left; {stage.tasks_done:,} are done"
    return "will run"
