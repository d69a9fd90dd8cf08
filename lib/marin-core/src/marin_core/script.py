"""A script's command line: ``main(build)`` turns the keywords of ``build`` into flags and runs what it returns.

    python experiments/quickstart.py --steps 300 --plan

Flags of ``build`` come from its signature and docstring (tyro); the runner's flags are the same for every script. A
user's mistake, as `exits` tells it, is one line on stderr and an exit code; a body's failure shows the end
of its traceback and where its log lies.
"""

import dataclasses
import inspect
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

from marin_core.closing import Epilogue, closing_lines
from marin_core.errors import PrefixError, RunInterrupted, UsageError
from marin_core.exits import ScriptError, aside, exit_code_of, guarded
from marin_core.graph import lower
from marin_core.launchers.worker import SCRIPT_MODULE, speak_last
from marin_core.namesakes import titled
from marin_core.quantities import format_bytes, format_count
from marin_core.reasons import Options, Planned, restrict
from marin_core.records import Decision, to_json
from marin_core.runner import RunReport, StepRunner
from marin_core.running.ledger import labels_in
from marin_core.running.progress import Plain, make_display
from marin_core.running.slots import parse_slots
from marin_core.steps import OnCodeChange
from marin_core.store import default_prefix, open_store

Build = Callable[..., Any]
_SIGNAL = 128
"""Exit codes above this one say which signal ended a run."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The runner's flags. Globs match step names and addresses; a glob flag may be given several times."""

    plan: bool = False
    """Say what would run and why; run nothing."""
    only: tuple[str, ...] = ()
    """Execute nothing but these steps."""
    until: tuple[str, ...] = ()
    """Stop after these steps."""
    force: tuple[str, ...] = ()
    """Run these steps even if they are up to date, from an empty Work."""
    accept: tuple[str, ...] = ()
    """Serve the old output of these drifted versioned steps, in this run alone; the next one refuses again."""
    rebuild: tuple[str, ...] = ()
    """Make these drifted steps again, from an empty Work; the old attempt is kept."""
    on_code_change: OnCodeChange | None = None
    """Overrides what steps do when their code changed."""
    launcher: str = "process"
    """inline, process, ray or module:factory."""
    max_workers: int = dataclasses.field(default_factory=lambda: max(2, _cores()))
    """Cores to fill with steps; default all, and at least 2, so that what is independent runs side by side."""
    slots: tuple[str, ...] = ()
    """Accelerators to fill with steps, as gpu=2; default those that can be detected here."""
    prefix: str = dataclasses.field(default_factory=default_prefix)
    """Where outputs and records lie: a directory or URL; default MARIN_PREFIX or .marin."""
    unsafe_single_writer: bool = False
    """Take a prefix whose store has no conditional writes: nobody else may run there meanwhile."""
    keep_going: bool = False
    """After a failure, still run what does not depend on it."""
    fail_fast: bool = False
    """After a failure, start nothing more: the default."""
    json: bool = False
    """One JSON document on stdout, the run record or the plan, and nothing else there."""

    def options(self) -> Options:
        """The part that decisions depend on."""
        return Options(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Options)})


def main(build: Build, *, epilogue: Epilogue | None = None) -> None:
    """Runs a script: parses the command line, builds the steps, brings them up to date, and exits.

    Does nothing when the script is only being loaded, to run one body or to be read by the ``marin`` command: a script
    that calls it without ``if __name__ == "__main__"`` would otherwise start itself again for each of its steps.

    Args:
        build: returns handles, in any nesting; its keyword arguments become flags.
        epilogue: closing lines of the script, from the report of a run of the whole graph that succeeded.

    Raises:
        SystemExit: 0 done, 1 failed, 2 usage or bad input, 3 refused, 130 and 143 interrupted.

    Example:
        >>> if __name__ == "__main__":
        ...     main(build)
    """
    if sys._getframe(1).f_globals.get("__name__") != SCRIPT_MODULE:
        code = run_script(build, sys.argv[1:], epilogue=epilogue)
        if code > _SIGNAL and threading.active_count() > 1:
            sys.stdout.flush()
            os._exit(code)  # interrupted: what still hashes an output would be waited for
        sys.exit(code)


def run_script(build: Build, argv: Sequence[str], *, epilogue: Epilogue | None = None, prog: str | None = None) -> int:
    """`main` without the exit: returns the exit code."""

    def command() -> int:
        speak_last("%(levelname)s %(name)s: %(message)s")
        keywords, flags = parse(build, argv, prog=prog)
        if flags.keep_going and flags.fail_fast:
            raise UsageError("--keep-going and --fail-fast contradict each other")
        with aside(flags.json):
            handles = built(build, keywords)
        return _show_plan(handles, flags) if flags.plan else _run(handles, flags, epilogue)

    return guarded(command)


def built(build: Build, keywords: dict[str, Any]) -> Any:
    """What ``build`` returns; an error in it is told from the script's own frames on."""
    try:
        return build(**keywords)
    except Exception as e:
        if exit_code_of(e) is not None:
            raise
        raise ScriptError(e) from e


def parse(build: Build, argv: Sequence[str], *, prog: str | None = None) -> tuple[dict[str, Any], Flags]:
    """Splits a command line into the arguments of ``build`` and the runner's flags; exits 2 on a bad one."""
    runner = "runner_flags"
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(build, eval_str=True).parameters.values()]
    for p in parameters:
        if p.name in {f.name for f in dataclasses.fields(Flags)}:
            raise UsageError(f"build has a parameter {p.name!r}, which is a flag of the runner; give it another name")
    if not argv and all(p.default is not p.empty for p in parameters):
        return {p.name: p.default for p in parameters}, Flags()  # nothing to parse, which takes longer than a rerun
    import tyro

    kind = _helpful_flags()
    flags = Annotated[kind, tyro.conf.arg(name=""), tyro.conf.UseAppendAction]
    extra = inspect.Parameter(runner, inspect.Parameter.KEYWORD_ONLY, annotation=flags, default=kind())

    def command(**keywords: Any) -> dict[str, Any]:
        return keywords

    command.__signature__ = inspect.Signature([*parameters, extra])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*parameters, extra]}
    command.__doc__ = build.__doc__ or ""
    keywords = tyro.cli(command, args=list(argv), prog=prog, config=(tyro.conf.FlagCreatePairsOff,))
    given = keywords.pop(runner)
    return keywords, Flags(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Flags)})


def _helpful_flags() -> Any:
    """`Flags` without the remark of a default where a flag's help says what holds without it."""
    import tyro

    def said(name: str, kind: Any, text: str, metavar: str | None = None) -> tuple[str, Any, Any]:
        hint = tyro.conf.arg(help=text, help_behavior_hint="", metavar=metavar)
        return name, Annotated[kind, hint], dataclasses.field(default=getattr(Flags, name))

    told = (
        said("keep_going", bool, "After a failure, still run what does not depend on it."),
        said("fail_fast", bool, "After a failure, start nothing more: the default."),
        said(
            "on_code_change",
            OnCodeChange | None,
            "Overrides what steps do when their code changed.",
            "{rebuild,report,refuse}",
        ),
    )
    return dataclasses.make_dataclass("Flags", told, bases=(Flags,), frozen=True, kw_only=True)


def _run(handles: Any, flags: Flags, epilogue: Epilogue | None) -> int:
    graph = lower(handles)
    display = Plain(None) if flags.json else make_display()
    runner = StepRunner(
        flags.prefix,
        launcher=flags.launcher,
        max_workers=flags.max_workers,
        slots=parse_slots(flags.slots),
        keep_going=flags.keep_going,
        options=flags.options(),
        observer=display,
        unsafe_single_writer=flags.unsafe_single_writer,
    )
    try:
        with display:
            report = runner.run(graph)
    except RunInterrupted as e:
        if e.report is not None:
            _tell(replace(e.report, html=_write_page(e.report)), flags, None)
        raise
    return _tell(replace(report, html=_write_page(report)), flags, epilogue)


def _tell(report: RunReport, flags: Flags, epilogue: Epilogue | None) -> int:
    """The last words on a run, and its exit code."""
    if flags.json:
        print(to_json(report.record), end="")  # noqa: T201
        return report.exit_code
    # A part of the graph is no run of the script: its closing lines may speak of steps that are not there.
    partial = flags.only or flags.until
    _say(closing_lines(report, None if partial else epilogue))
    return report.exit_code


def _write_page(report: RunReport) -> str | None:
    """The run's page beside its record. A page that cannot be written fails no run."""
    if report.prefix.startswith("memory://"):
        return None  # gone with this process
    from marin_core.report import write_report

    try:
        return write_report(report.record, report.prefix, f"{report.prefix}/runs/{report.record.run_id}.html")
    except (OSError, PrefixError) as e:
        logging.getLogger(__name__).warning("the run's page was not written: %s", e)
        return None


def _show_plan(handles: Any, flags: Flags) -> int:
    from marin_core import reasons

    graph = restrict(lower(handles), flags.options())
    store = open_store(flags.prefix, unsafe_single_writer=flags.unsafe_single_writer)
    planned = reasons.plan(graph, store, options=replace(flags.options(), until=()))
    if flags.json:
        print(json.dumps([plan_entry(p) for p in planned], indent=2, allow_nan=False))  # noqa: T201
    else:
        _say(plan_lines(planned, called=labels_in(graph), keep_going=flags.keep_going))
    return 3 if any(p.decision == "refuse" for p in planned) else 0


def plan_entry(planned: Planned) -> dict[str, Any]:
    """One decision as JSON."""
    return {"address": planned.address, "name": planned.name, "decision": planned.decision, "reason": planned.reason}


def plan_lines(
    planned: Sequence[Planned], *, called: Mapping[str, str] = MappingProxyType({}), keep_going: bool = False
) -> list[str]:
    """A plan as lines for people: one a step, with its address where others of its name are there too, then the count.

    Args:
        planned: the decisions.
        called: label by address.
        keep_going: a refusal stops nothing that does not depend on it.
    """
    titles = {p.address: titled(p.address, called.get(p.address, "")) for p in planned}
    width = max(map(len, titles.values()))
    lines = [f"{p.decision:<10} {titles[p.address]:<{width}}  {p.reason}{_size(p)}" for p in planned]
    found = Counter(p.decision for p in planned)
    kept: dict[Decision, str] = {"refuse": "refused", "blocked": "blocked", "unselected": "not selected"}
    others = [f"{found[decision]} {said}" for decision, said in kept.items() if found[decision]]
    if not found["run"] and not others:
        return [*lines, f"nothing to do: {format_count(len(planned), 'step')} up to date"]
    would = f"{found['run']:,} of {format_count(len(planned), 'step')} would run"
    if found["run"] and found["refuse"] and not keep_going:
        return [*lines, f"nothing would run: {', '.join(others)}; with --keep-going {would}"]
    return [*lines, ", ".join([would, *others])]


def _size(planned: Planned) -> str:
    size = planned.record.num_bytes if planned.record and planned.decision == "reuse" else 0
    return f" ({format_bytes(size)})" if size else ""


def _say(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)  # noqa: T201


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
