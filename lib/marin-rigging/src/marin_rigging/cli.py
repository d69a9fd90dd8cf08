"""The ``rig`` command: what machines there are, and gangs of ranks run on them.

Exit codes: 0 done, 1 the job failed, 2 usage or bad input; 128 plus the signal's number when one ended ``rig run``.
With ``--json`` stdout holds one document and nothing else. A user's mistake is one line on stderr.
"""

import contextlib
import dataclasses
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps
from types import FrameType
from typing import Annotated, Any, Protocol

import tyro
from tyro.conf import Positional, arg

from marin_rigging.accelerators import FAMILIES, GIB, Accelerator, catalog
from marin_rigging.drivers import run_job
from marin_rigging.errors import CommandError, MarinRiggingError, SpecError
from marin_rigging.fleet import Fleet, Job, Pool
from marin_rigging.jobs import JobRecord, JobStore
from marin_rigging.logs import Follower
from marin_rigging.providers.local import GRACE_S

WIDTH = 120
"""Columns of a table where stdout is no terminal."""


class Command(Protocol):
    """One subcommand: its fields are the flags, ``run`` gets what followed ``--``."""

    def run(self, command: Sequence[str]) -> int: ...


def default_prefix() -> str:
    """Where jobs are kept unless ``--prefix`` says otherwise: MARIN_PREFIX, else ``.marin`` here."""
    return os.environ.get("MARIN_PREFIX", ".marin")


@dataclass(frozen=True)
class CatalogCommand:
    """List accelerator types: all families, one family's types, or one type.

    Example: rig catalog v5p
    """

    type: Annotated[Positional[str | None], arg(metavar="TYPE")] = None
    """A family (v5p) or a type (v5p-64)."""
    json: bool = False
    """One JSON document on stdout: every type, also without TYPE."""

    def run(self, command: Sequence[str]) -> int:
        _refuse_command(command)
        found = catalog(self.type)
        if self.json:
            print(dumps([type_row(a) for a in found], indent=2))
        elif self.type is None:
            rows = [_family_cells(name, [a for a in found if a.family.name == name]) for name in FAMILIES]
            print_table(("family", "sizes", "count", "chips/VM", "TFLOP/s a chip", "memory", "from"), rows)
        else:
            rows = [(a.name, a.num_chips, a.num_vms, a.topology, _number(a.bf16_tflops), _memory(a)) for a in found]
            print_table(("type", "chips", "VMs", "topology", "TFLOP/s", "memory a chip"), rows)
        return 0


@dataclass(frozen=True)
class RunCommand:
    """Run a command as every rank of a pool, and wait; if one rank is lost, all are ended.

    Example: rig run local:4 -- python train.py

    Example: rig run fleet.yaml --job hello
    """

    spec: Annotated[Positional[str], arg(metavar="SPEC")]
    """A YAML fleet, or local:N for N ranks here."""
    pool: str | None = None
    """Which pool, if the fleet has several."""
    job: str | None = None
    """A job of the fleet, in place of a command after --."""
    name: str | None = None
    """Name of the job on record; by default the program's."""
    grace: float = GRACE_S
    """Seconds between SIGTERM and SIGKILL when ranks are ended."""
    prefix: str = dataclasses.field(default_factory=default_prefix)
    """Directory under which logs and records are kept."""
    quiet: bool = False
    """Do not show what the ranks write."""
    json: bool = False
    """The job's record as one JSON document on stdout, and nothing else there."""

    def run(self, command: Sequence[str]) -> int:
        fleet = read_fleet(self.spec)
        job = self._job(fleet, command)
        store = JobStore(_local(self.prefix))
        show = None if self.quiet or self.json else _show
        with interrupted_by(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            record = run_job(job, fleet.pool(job.pool), store=store, output=show, grace_s=self.grace)
        if self.json:
            print(dumps(dataclasses.asdict(record), indent=2))
        else:
            print(f"{record.id}: {record.summary}; logs in {store.log_dir(record)}")
        if record.state == "stopped" and received:
            return 128 + received[0]
        return 0 if record.state == "succeeded" else 1

    def _job(self, fleet: Fleet, command: Sequence[str]) -> Job:
        if self.job is not None or (not command and fleet.jobs):
            if command:
                raise CommandError(f"--job {self.job} and a command after -- are both given; drop one")
            job = fleet.job(self.job)
            if self.pool is not None:
                job = dataclasses.replace(job, pool=fleet.pool(self.pool).name)
            return dataclasses.replace(job, name=self.name) if self.name else job
        if not command:
            raise CommandError("no command is given; name a program after --, such as: -- python train.py")
        return Job(name=self.name or job_name(command[0]), pool=fleet.pool(self.pool).name, command=tuple(command))


@dataclass(frozen=True)
class LogsCommand:
    """Print what a job's ranks wrote; lines bear the rank's number unless one rank is asked for.

    Example: rig logs python-1 --rank 0
    """

    job: Annotated[Positional[str], arg(metavar="JOB")]
    """Identifier, as rig run and rig jobs print it."""
    rank: int | None = None
    """One rank; by default all, one after another."""
    prefix: str = dataclasses.field(default_factory=default_prefix)
    """Directory under which logs and records are kept."""

    def run(self, command: Sequence[str]) -> int:
        _refuse_command(command)
        store = JobStore(_local(self.prefix))
        record = store.read(self.job)
        if self.rank is not None:
            for _, line in Follower([store.log(record, self.rank)]).lines(last=True):
                print(line)
        else:
            for rank, line in Follower([store.log(record, r) for r in range(record.num_ranks)]).lines(last=True):
                print(f"[{rank}] {line}")
        return 0


@dataclass(frozen=True)
class JobsCommand:
    """List the jobs on record, the oldest first.

    Example: rig jobs
    """

    prefix: str = dataclasses.field(default_factory=default_prefix)
    """Directory under which logs and records are kept."""
    json: bool = False
    """One JSON document on stdout."""

    def run(self, command: Sequence[str]) -> int:
        _refuse_command(command)
        records = JobStore(_local(self.prefix)).list()
        if self.json:
            print(dumps([dataclasses.asdict(r) for r in records], indent=2))
        elif not records:
            print(f"no jobs on record under {self.prefix}")
        else:
            print_table(("job", "state", "ranks", "started (UTC)", "how"), map(_job_cells, records))
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; the process's own by default. What follows the first ``--`` is the
            command of ``rig run`` and is not looked at.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, command = arguments[:at], arguments[at + 1 :]
    commands: dict[str, Callable[..., Command]] = {
        "catalog": CatalogCommand,
        "run": RunCommand,
        "logs": LogsCommand,
        "jobs": JobsCommand,
    }
    chosen: Command | None = None
    try:
        chosen = tyro.extras.subcommand_cli_from_dict(
            commands, prog="rig", args=arguments, description="Machines, and gangs of ranks on them."
        )
        code = chosen.run(command)
        sys.stdout.flush()
    except MarinRiggingError as error:
        print(f"rig: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader, say `head`, has had enough. Point stdout away, or the interpreter's last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(chosen, RunCommand) else 0
    except OSError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    return code


@contextlib.contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[list[int]]:
    """Within the block these signals interrupt the main thread; the list receives the numbers that came."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_fleet(spec: str) -> Fleet:
    """The fleet that SPEC names: ``local:N``, ``local``, or a file."""
    if match := re.fullmatch(r"local(?::(?P<ranks>.*))?", spec):
        ranks = match["ranks"] or "1"
        if not re.fullmatch(r"[1-9][0-9]{0,3}", ranks):
            raise SpecError(f"SPEC={spec!r} must be local:N with N from 1 to 9999, such as local:4")
        return Fleet(name="local", pools=(Pool(name="local", ranks=int(ranks)),))
    return Fleet.read(spec)


def job_name(program: str) -> str:
    """A job's name made from its program: ``/usr/bin/python3.12`` gives ``python3-12``."""
    text = re.sub(r"[^a-z0-9]+", "-", os.path.basename(program).lower()).strip("-")  # noqa: PTH119 - no path is meant
    return text[:40].strip("-") or "job"


def type_row(accelerator: Accelerator) -> dict[str, Any]:
    """A type as one flat row of JSON-able values; memory in bytes, speed in TFLOP/s, both of the whole type."""
    a = accelerator
    return {
        "type": a.name,
        "family": a.family.name,
        "kind": a.family.kind,
        "num_chips": a.num_chips,
        "num_vms": a.num_vms,
        "chips_per_vm": a.chips_per_vm,
        "topology": a.topology,
        "bf16_tflops": a.bf16_tflops,
        "memory_bytes": a.memory_bytes,
        "service": a.family.service,
        "runtime_image": a.family.runtime_image,
    }


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under a header, in the terminal's width; None shows as a dash."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    # Captured and printed, since rich answers a closed pipe by exiting with 1.
    with console.capture() as shown:
        console.print(table)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _family_cells(name: str, types: Sequence[Accelerator]) -> tuple[Any, ...]:
    family = types[0].family
    sizes = family.sizes
    span = ", ".join(map(str, sizes)) if len(sizes) <= 8 else f"{sizes[0]} ... {sizes[-1]} ({len(sizes)} types)"
    alone = f" ({family.single_vm_max} alone)" if family.single_vm_max != family.chips_per_vm else ""
    per_vm = f"{family.chips_per_vm}{alone}"
    return (name, span, family.unit, per_vm, _number(family.bf16_tflops), _memory(types[0]), family.service)


def _job_cells(record: JobRecord) -> tuple[Any, ...]:
    started = datetime.fromtimestamp(record.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (record.id, record.state, record.num_ranks, started, record.summary or " ".join(record.command))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,g}" if value < 1e5 else f"{value:,.0f}"


def _memory(accelerator: Accelerator) -> str | None:
    """Memory of one chip in the unit in which its vendor states it."""
    memory = accelerator.family.memory_bytes
    if memory is None:
        return None
    return f"{memory // GIB} GiB" if memory % GIB == 0 else f"{memory // 10**9} GB"


def _show(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", flush=True)


def _local(prefix: str) -> str:
    if "://" in prefix:
        raise SpecError(f"prefix={prefix!r} is not a directory of this machine; say one with --prefix")
    return prefix


def _refuse_command(command: Sequence[str]) -> None:
    if command:
        raise CommandError(f"a command after -- is for rig run alone: {' '.join(command)!r}")
