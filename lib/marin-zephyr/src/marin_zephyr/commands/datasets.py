"""The commands on datasets and their files: ``run``, ``explain`` and ``doctor``."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from marin_zephyr.commands.console import Format, Inputs, print_json, shown_progress
from marin_zephyr.reporting.reports import REPORT, RunReport
from marin_zephyr.scripts import load
from marin_zephyr.session import Session

_ROW_COUNTERS = ("rows_in", "rows_out", "filtered", "rejected", "consumed", "produced")

Script = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT.py[:NAME]")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """Where a dataset runs.

    Args:
        backend: worker processes, this process, or the nodes of a Ray cluster (extra `ray`).
        workers: tasks at a time; by default one a CPU.
        memory: what all processes together may hold, such as 4GiB; by default most of what is free.
        ray_address: for ray: the cluster, as ray.init takes it.
        work_dir: where intermediate stages are kept for later runs.
    """

    backend: Literal["process", "inline", "ray"] = "process"
    workers: int | None = None
    memory: str | None = None
    ray_address: str | None = None
    work_dir: str | None = None


Placed = Annotated[Where, tyro.conf.arg(name="")]


def run(script: Script, /, *, where: Placed = Where(), json: bool = False) -> int:
    """Runs a dataset that ends in a write, and leaves a report of it beside the parts, in `_report.json`.

    Example: zephyr run clean.py:dataset --workers 2 --memory 4GiB

    Args:
        script: a Python file and a name in it (by default `dataset`): a Dataset, or a function that returns one.
        where: where it runs.
        json: print the report as JSON.
    """
    dataset, name = load(script)
    with _session(where) as session:
        report = session.run(dataset, name=name)
    if report.files:
        out = report.files[0].parent
        if report.executed or not (out / REPORT).exists():
            report.save(out)
    if json:
        print_json(report.to_json())
    else:
        _print_report(report)
    return 0


def explain(script: Script, /, *, where: Placed = Where(), json: bool = False) -> int:
    """Shows the fused plan of a dataset: what is read, done, exchanged and written, what is done already, and why the
    rest would run. Runs nothing: of where it would run, only the work directory matters.

    Example: zephyr explain clean.py

    Args:
        script: a Python file and a name in it (by default `dataset`).
        where: where it would run.
        json: print the plan as JSON.
    """
    dataset, _ = load(script)
    with _session(where) as session:
        explanation = session.explanation(dataset)
    if json:
        print_json(explanation.to_json())
    else:
        print(explanation)
    return 0


def doctor(files: Inputs, /, *, format: Format | None = None, json: bool = False) -> int:
    """Reads files to the end; says what is damaged and where. Exit code 1 if anything is.

    Example: zephyr doctor raw/*.jsonl.zst

    Args:
        files: files, directories or globs.
        format: what the files are; by default told from their names.
        json: print the diagnoses as JSON.
    """
    from marin_zephyr.diagnosis.doctor import examine, is_sound, tell

    diagnoses = examine(list(files), format=format)
    if json:
        print_json([dataclasses.asdict(d) for d in diagnoses])
    else:
        print(tell(diagnoses))
    return 0 if is_sound(diagnoses) else 1


def _session(where: Where) -> Session:
    return Session(
        backend=where.backend,
        workers=where.workers,
        memory=where.memory,
        work_dir=where.work_dir,
        ray_address=where.ray_address,
        progress=shown_progress(),
    )


def _print_report(report: RunReport) -> None:
    print(report)
    for name, n in report.counters.items():
        if name not in _ROW_COUNTERS:
            print(f"  {name}: {n:,}")
    if not report.executed:
        print("nothing to do: everything was committed by an earlier run")
    if report.rejects:
        print(f"the refused records: {report.rejects[0].parent}")
    print(report.files[0].parent if report.files else "no files")
