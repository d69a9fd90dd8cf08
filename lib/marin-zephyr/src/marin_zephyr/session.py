"""The session: runs a dataset's plan stage by stage, skips what is committed, and reports every row.

A session owns a backend (its worker processes live as long as it does) and a work directory, where intermediate stages
are kept so that a later run finds them. It is the only place where the parts meet: plan, backend, stages, progress.

Invariant: what a run writes depends on the dataset and its inputs, not on the session. An unchanged rerun executes no
task; a run that was killed goes on with the tasks that have no record yet.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.backends import NAMES, Backend, make_backend
from marin_zephyr.backends.memory import DRIVER_LEAST, WORKER_LEAST, default_budget, num_workers_within, parse_memory
from marin_zephyr.counters import merge
from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import OutputError, UsageError
from marin_zephyr.formats.files import SINK_MANIFEST, is_rejects
from marin_zephyr.nodes import Sink
from marin_zephyr.progress import LogProgress, Progress, Work
from marin_zephyr.reporting.quantities import shown_memory
from marin_zephyr.reporting.refusals import Refused, check_limit, merge_refused
from marin_zephyr.reporting.reports import RunReport, StageReport, input_bytes, summarize

if TYPE_CHECKING:
    from marin_zephyr.planning import Plan
    from marin_zephyr.records import TaskRecord
    from marin_zephyr.reporting.explaining import Explanation
    from marin_zephyr.specs import Stage, TaskInput

_log = logging.getLogger(__name__)
_HOT_ROWS = 100_000  # below, a hot key is the work of a moment


class Session:
    """Runs datasets.

    Args:
        backend: ``process`` (worker processes, the default), ``inline`` (this process) or ``ray`` (the nodes of a Ray
            cluster; they and this process must share the file system on which ``work_dir`` and outputs lie).
        workers: tasks at a time; by default one a usable CPU, on Ray one a CPU of its nodes. Processes are fewer where
            ``memory`` does not hold so many: each needs 176 MiB, and 64 MiB are the driver's.
        memory: what a run may hold, all its processes together: bytes, or a text such as ``"4GiB"``; by default 80% of
            what this process may still get. Workers that hold more than their share are stopped, and what they were
            doing is tried again alone. It never changes a result, save that rows which alone exceed it are refused.
            On Ray a task's share is what is asked of Ray for it, and by default nothing is.
        work_dir: where intermediate stages are kept for later runs; by default a temporary directory that goes when the
            session is closed.
        ray_address: for ``ray``: the cluster, as ``ray.init`` takes it. By default ``RAY_ADDRESS``, else a cluster of
            this machine, else one that is started for this session.
        progress: is told how stages go; by default a line of the log every two seconds.
    """

    def __init__(
        self,
        *,
        backend: str = "process",
        workers: int | None = None,
        memory: int | str | None = None,
        work_dir: str | Path | None = None,
        ray_address: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        if backend not in NAMES:
            raise UsageError(f"backend={backend!r} is not one of {', '.join(NAMES)}")
        if workers is not None and workers < 1:
            raise UsageError(f"workers={workers} must be at least 1")
        if ray_address is not None and backend != "ray":
            raise UsageError(f'ray_address={ray_address!r} goes with backend="ray", not {backend!r}')
        self._backend_name = backend
        self._memory = None if memory is None else parse_memory(memory)
        self._workers = workers
        self._ray_address = ray_address
        if backend == "ray":  # there the cluster says what there is
            if self._memory and self._memory < (workers or 1) * WORKER_LEAST:
                least = shown_memory(WORKER_LEAST)
                raise UsageError(f"memory={memory!r} is too little for workers={workers or 1}: each needs {least}")
        else:
            self._memory = self._memory or default_budget()
            self._workers = workers or _usable_cpus()
        if backend == "process":
            self._workers = _affordable(self._workers or 1, self._memory or 0, asked=workers is not None)
        self._progress = progress or LogProgress()
        self._given_dir = None if work_dir is None else Path(work_dir).absolute()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._backend: Backend | None = None
        self._finalizer: Any = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and removes the temporary work directory. The session can be used again; they come back."""
        if self._finalizer is not None:
            self._finalizer()
        self._backend = self._finalizer = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def run(self, dataset: Dataset, *, name: str | None = None) -> RunReport:
        """Runs a dataset that ends in a sink.

        Args:
            dataset: ends in a write: ``write_parquet``, ``write_jsonl`` or ``write_arrow``.
            name: what progress calls it.

        Raises:
            ZephyrError: what went wrong; committed work is kept, and the same call goes on from there.
        """
        if not isinstance(getattr(dataset, "node", None), Sink):
            raise UsageError(
                "run: the dataset ends in no write; add .write_parquet(path), or use session.rows or .count"
            )
        began, when = time.monotonic(), datetime.now(UTC)
        plan = self._plan(dataset)
        reports = self._execute(plan, name)
        last = reports[-1]
        from marin_zephyr.fingerprints import library_versions
        from marin_zephyr.stages import directory

        out = directory(plan.stages[-1])
        files = [out / f["name"] for f in last.files if not is_rejects(f["name"])]
        refused = [out / f["name"] for r in reports for f in r.files if is_rejects(f["name"])]
        return RunReport(
            files=tuple(files),
            rejects=tuple(refused),
            counters=_totals(reports),
            stages=tuple(reports),
            executed=sum(r.executed for r in reports),
            seconds=time.monotonic() - began,
            began=when.isoformat(timespec="seconds"),
            libraries=library_versions(),
        )

    def rows(self, dataset: Dataset) -> Iterator[dict[str, Any]]:
        """The rows of a dataset that ends in no sink, in order, as dicts."""
        from marin_zephyr.outputs import Kept
        from marin_zephyr.shuffle.blocks import read_blocks

        plan = self._plan(dataset, output=Kept())
        self._execute(plan, None)
        for path in plan.stages[-1].rows_files:
            for frame in read_blocks(path):
                yield from frame.iter_rows(named=True)

    def count(self, dataset: Dataset) -> int:
        """How many rows a dataset that ends in no sink has."""
        from marin_zephyr.outputs import Counted

        return self._execute(self._plan(dataset, output=Counted()), None)[-1].rows_out

    def explain(self, dataset: Dataset) -> str:
        """The fused plan as text: what each stage reads, does, exchanges and writes, and what a run would do."""
        return str(self.explanation(dataset))

    def explanation(self, dataset: Dataset) -> Explanation:
        """The fused plan, of which `explain` is the text. Runs nothing.

        Args:
            dataset: with or without a sink.
        """
        from marin_zephyr.outputs import Kept
        from marin_zephyr.reporting.explaining import explain

        return explain(self._plan(dataset, output=None if isinstance(dataset.node, Sink) else Kept(), runs=False))

    def _plan(self, dataset: Dataset, *, output: Any = None, runs: bool = True) -> Plan:
        is_written = isinstance(dataset.node, Sink) and SINK_MANIFEST in _names_in(dataset.node.path)
        if runs and not is_written:
            self._running_backend()  # it starts now; what was written before may not need it
        from marin_zephyr.planning import plan

        if output is not None and isinstance(dataset.node, Sink):
            raise UsageError(f"the dataset writes to {dataset.node.path}; take the one from before the write")
        return plan(dataset, output=output, work_dir=self._work_dir())

    def _execute(self, plan: Plan, name: str | None) -> list[StageReport]:
        """Runs the stages that are not committed. A committed last stage makes all others superfluous."""
        from marin_zephyr.reporting.reasons import why
        from marin_zephyr.stages import committed, manifest_path

        known = committed(plan.stages[-1])
        if known is not None and len(known) == len(plan.stages):
            for stage, report in zip(plan.stages, known, strict=True):
                _check_limit(stage, report)
            return list(known)
        reports: list[StageReport] = []
        for number, stage in enumerate(plan.stages, 1):
            before = committed(stage) if stage is not plan.stages[-1] else None
            if before is not None:
                _check_limit(stage, before[0])
                reports.append(before[0])
                continue
            label = _label(name, stage.spec.name, number, len(plan.stages))
            if reasons := why(stage, sink=manifest_path(plan.stages[-1])):
                _log.info("%s: runs again: %s", label, "; ".join(reasons))
            reports.append(self._run_stage(stage, list(zip(plan.stages, reports, strict=False)), label))
        return reports

    def _run_stage(self, stage: Stage, earlier: list[tuple[Stage, StageReport]], name: str) -> StageReport:
        from marin_zephyr.schemas import settle
        from marin_zephyr.stages import check_columns, commit, opened

        began = time.monotonic()
        with opened(stage):
            records = _kept_records(stage)
            todo = [(i, task_input) for i, task_input in enumerate(stage.inputs) if i not in records]
            retried = self._run_tasks(stage, todo, records, name)
            ordered = settle(stage, [records[i] for i in range(len(stage.inputs))])
            check_columns(stage, ordered)
            ran, seconds = [i for i, _ in todo], time.monotonic() - began
            report = summarize(stage, ordered, ran=ran, seconds=seconds, retried=retried)
            _check_limit(stage, report)
            commit(stage, report, earlier=earlier)
        _warn_of_skew(report)
        return report

    def _run_tasks(
        self, stage: Stage, todo: list[tuple[int, TaskInput]], records: dict[int, TaskRecord], name: str
    ) -> int:
        """Runs the tasks and adds their records; how many had to be tried again."""
        sizes = list(map(input_bytes, stage.inputs))
        refused: Refused = {}
        for record in records.values():
            merge_refused(refused, record.refused)
        work = Work(
            name=name,
            steps="shards",
            items="rows",
            total=len(sizes),
            done=len(records),
            num_bytes=sum(sizes),
            done_bytes=sum(sizes[i] for i in records),
        )
        self._progress.start(work)
        retried = 0
        try:
            if not todo:
                return 0
            if self._backend_name != "inline":
                _check_shared(todo)
            backend = self._running_backend()
            outcomes, retries = backend.run(stage.spec, todo), backend.num_retries
            try:
                for record in outcomes:
                    records[record.index] = record
                    merge_refused(refused, record.refused)
                    news, retried = backend.num_retries - retries - retried, backend.num_retries - retries
                    self._progress.advance(
                        items=record.rows_in, rejected=record.rejects, num_bytes=sizes[record.index], retried=news
                    )
                    check_limit(refused, stage.max_bad, stage=stage.spec.name, rows_in=None)
            finally:
                outcomes.close()  # ends the tasks that still run, before anyone hears of a failure
        finally:
            self._progress.finish()
        return retried

    def _work_dir(self) -> Path:
        if self._given_dir is not None:
            return self._given_dir
        if self._temporary is None:
            try:
                self._temporary = tempfile.TemporaryDirectory(prefix="zephyr-", ignore_cleanup_errors=True)
            except OSError as e:
                raise OutputError(f"{tempfile.gettempdir()}: no temporary directory can be made; pass work_dir=") from e
        return Path(self._temporary.name)

    def _running_backend(self) -> Backend:
        if self._backend is None:
            self._backend = make_backend(
                self._backend_name, workers=self._workers, memory=self._memory, ray_address=self._ray_address
            )
            self._finalizer = weakref.finalize(self, self._backend.close)
        return self._backend


def _affordable(workers: int, memory: int, *, asked: bool) -> int:
    """As many of the workers as the budget holds."""
    fitting = num_workers_within(memory)
    if not fitting:
        least = shown_memory(DRIVER_LEAST + WORKER_LEAST)
        raise UsageError(f"memory={shown_memory(memory)} is too little: a driver and one worker need {least}")
    if asked and fitting < workers:
        amount, least = shown_memory(memory), shown_memory(WORKER_LEAST)
        _log.warning("%d of workers=%d: memory=%s holds no more, each needs %s", fitting, workers, amount, least)
    return min(workers, fitting)


def _names_in(directory: str) -> list[str]:
    try:
        return [path.name for path in Path(directory).iterdir()]
    except OSError:  # there is none, or there can be none; whoever writes there will say so
        return []


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_limit(stage: Stage, report: StageReport) -> None:
    check_limit(report.refused, stage.max_bad, stage=stage.spec.name, rows_in=report.rows_in)


def _check_shared(todo: list[tuple[int, TaskInput]]) -> None:
    """Refuses inputs that workers would not find."""
    from marin_zephyr.formats.remote import is_private
    from marin_zephyr.inputs import FilesInput

    for file in (file for _, each in todo if isinstance(each, FilesInput) for file in each.files):
        if is_private(file.url):
            raise UsageError(
                f"{file.url}: is in the memory of this process, where no worker sees it; "
                'use backend="inline", or write it to a file'
            )


def _warn_of_skew(report: StageReport) -> None:
    hot = [f"{entry['key']} ({entry['share']:.0%})" for entry in report.hot_keys if entry["rows"] >= _HOT_ROWS]
    if hot:
        _log.warning(
            "%s: %d key(s) hold more than 5%% of the rows each, and each is the work of one task: %s. If such a key "
            "means nothing (empty, unknown), filter it out before; if aggregates are enough, .agg splits it among all "
            "tasks.",
            report.name,
            len(hot),
            ", ".join(hot[:3]),
        )


def _label(name: str | None, stage: str, number: int, num_stages: int) -> str:
    """What progress calls a stage: ``clean 2/3 distinct-pick``."""
    kind = stage.partition("-")[2]
    if num_stages == 1:
        return name or kind
    return f"{name or ''} {number}/{num_stages} {kind}".lstrip()


def _kept_records(stage: Stage) -> dict[int, TaskRecord]:
    """The records of an earlier, unfinished run whose files are as it left them."""
    from marin_zephyr.records import TaskRecord
    from marin_zephyr.stages import directory

    places = (stage.spec.home, directory(stage))
    found = ((i, TaskRecord.load(stage.spec.home, i)) for i in range(len(stage.inputs)))
    return {i: r for i, r in found if r is not None and all(any(f.is_in(p) for p in places) for f in r.files)}


def _totals(reports: list[StageReport]) -> dict[str, int]:
    visible = [r for r in reports if not r.internal]
    totals = {"rows_in": sum(r.rows_read for r in reports), "rows_out": reports[-1].rows_out}
    for what in ("filtered", "rejected", "consumed", "produced"):
        totals[what] = sum(r.total(what) for r in visible)
    for report in visible:
        merge(totals, report.counters)
    return totals
