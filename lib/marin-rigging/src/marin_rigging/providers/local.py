"""The local provider: a gang on this machine, one operating-system process a rank.

Each rank has its own session and process group, environment and log file, and a keeper (`providers.keeper`) that ends
what the rank leaves behind. The driver holds one end of every keeper's lifeline and waits on those alone, without
polling: a report comes when the rank ends, end-of-file when its last descendant is gone.

Invariant: fate is shared. Once a rank is lost (a status other than 0, a signal, or its keeper gone) all others get
SIGTERM, after ``grace_s`` SIGKILL, and `LocalGang.wait` returns when no process of the gang is left. If the driver
dies, all ranks die. Who failed first is decided by when the keepers saw it (CLOCK_MONOTONIC, one for the machine), not
by the order in which a busy driver reads their reports.
"""

import logging
import math
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from marin_rigging.errors import CommandError
from marin_rigging.gangs import GangExit, RankExit, rank_environment
from marin_rigging.providers.members import Member, spawn

logger = logging.getLogger(__name__)

GRACE_S = 5.0
SWEEP_S = 5.0
"""How long a keeper may take to end its descendants before its whole group is killed."""


class LocalGang:
    """A running gang; made by `start`. As a context manager it leaves no process behind, whatever is raised.

    Attributes:
        logs: each rank's log file, in order; stdout and stderr as they were written.
    """

    def __init__(self, members: Sequence[Member], *, logs: Sequence[Path], grace_s: float) -> None:
        self.logs = tuple(logs)
        self._members = tuple(members)
        self._grace_s = grace_s
        self._stopped = False
        self._ending: float | None = None  # when the ranks were told to end, and then what follows when
        self._sweep_at: float | None = None
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        for member in self._members:
            self._selector.register(member.lifeline, selectors.EVENT_READ, member)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process number of each rank's command, in order; waits until all have been started."""
        while not all(m.pid or m.gone for m in self._members):
            self._turn()
        return tuple(m.pid for m in self._members)

    def wait(self) -> GangExit:
        """Wait for the end of the gang; returns when no process of it is left."""
        while self._running:
            self._turn()
        return self._result()

    def poll(self, timeout: float = 0.0) -> GangExit | None:
        """Wait for at most ``timeout`` seconds; None if the gang still runs then."""
        until = time.monotonic() + timeout
        while self._running:
            self._turn(until)
            if time.monotonic() >= until:
                break
        return None if self._running else self._result()

    def stop(self) -> GangExit:
        """End the gang: SIGTERM, ``grace_s`` to finish, SIGKILL; returns when no process is left."""
        if self._running:
            self._stopped = True
            self._end("stopped")
        return self.wait()

    def kill(self) -> GangExit:
        """End the gang without grace; returns when no process is left."""
        if self._running:
            self._stopped = True
            self._ending = self._ending or time.monotonic()
            self._sweep_at, self._kill_at = self._ending, time.monotonic() + SWEEP_S
        return self.wait()

    def __enter__(self) -> "LocalGang":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._selector.close()

    @property
    def _running(self) -> bool:
        return not all(m.gone for m in self._members)

    def _turn(self, until: float | None = None) -> None:
        """Wait for the next report or deadline, and act on it."""
        due = [t for t in (until, self._sweep_at, self._kill_at) if t is not None]
        for key, _ in self._selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
            member: Member = key.data
            member.read()
            if member.gone:
                self._selector.unregister(key.fd)
        lost = [m for m in self._members if m.returncode]
        if lost and self._ending is None:
            first = min(lost, key=lambda m: m.ended)
            self._end(f"rank {first.rank} was lost with {first.returncode}")
        now = time.monotonic()
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = None
            for member in self._members:
                member.sweep()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for member in self._members:
                member.signal_group(signal.SIGKILL)

    def _end(self, reason: str) -> None:
        """Begin to end every rank, unless that has begun."""
        if self._ending is not None:
            return
        logger.info("%s; ending %d ranks", reason, sum(not m.gone for m in self._members))
        self._ending = time.monotonic()
        self._sweep_at = self._ending + self._grace_s
        self._kill_at = self._sweep_at + SWEEP_S
        for member in self._members:
            member.signal_group(signal.SIGTERM)

    def _result(self) -> GangExit:
        exits = [
            RankExit(
                rank=m.rank,
                returncode=m.returncode if m.returncode is not None else -signal.SIGKILL,
                cause="own" if self._ending is None or m.ended <= self._ending else "gang",
                seconds=max(0.0, m.ended - m.started),
            )
            for m in self._members
        ]
        failures = [
            (m.ended, e) for m, e in zip(self._members, exits, strict=True) if e.cause == "own" and e.returncode
        ]
        first = min(failures, key=lambda f: (f[0], f[1].rank))[1] if failures else None
        return GangExit(exits=tuple(exits), first_failure=first, stopped=self._stopped)


def check(
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Refuse what could not be started, before anything is.

    Args:
        command: program and arguments.
        cwd: working directory.
        env: variables beside the inherited ones; PATH decides where a bare program name is found.
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises:
        CommandError: the program or the working directory is not there, or the grace is no span of time.
    """
    if not 0 <= grace_s < math.inf:
        raise CommandError(f"grace_s={grace_s} must be a finite number of seconds, 0 or more")
    if not command:
        raise CommandError("command is empty; name a program after --, such as: -- python train.py")
    base = Path(cwd) if cwd is not None else Path.cwd()
    if not base.is_dir():
        raise CommandError(f"cwd={str(cwd)!r} is not a directory")
    program = command[0]
    path = (env or {}).get("PATH", os.environ.get("PATH"))
    found = (base / program) if os.sep in program else shutil.which(program, path=path)
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        raise CommandError(f"program {program!r} is not there or cannot be executed")


def start(
    command: Sequence[str],
    *,
    job: str,
    num_ranks: int,
    log_dir: Path,
    attempt: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    grace_s: float = GRACE_S,
) -> LocalGang:
    """Start a command as ``num_ranks`` processes of this machine.

    Args:
        command: program and arguments; no shell reads them.
        job: identifier, which ranks find as MARIN_JOB.
        num_ranks: at least 1.
        log_dir: existing directory for ``rank-N.log``.
        attempt: 1 for the first, which ranks find as MARIN_ATTEMPT.
        env: variables beside the inherited ones and those of `gangs.rank_environment`.
        cwd: working directory of the ranks.
        grace_s: seconds between SIGTERM and SIGKILL.

    Returns:
        The gang.

    Raises:
        CommandError: the program or the working directory is not there, or a number is out of range.
    """
    if num_ranks < 1:
        raise CommandError(f"num_ranks={num_ranks} must be at least 1")
    check(command, cwd=cwd, env=env, grace_s=grace_s)
    coordinator = f"127.0.0.1:{_free_port()}"
    environments = [
        rank_environment(
            os.environ,
            job=job,
            rank=rank,
            world_size=num_ranks,
            local_rank=rank,
            local_world_size=num_ranks,
            attempt=attempt,
            coordinator=coordinator,
            extra=env,
        )
        for rank in range(num_ranks)
    ]
    logs = [log_dir / f"rank-{rank}.log" for rank in range(num_ranks)]
    members: list[Member] = []
    try:
        for rank, (log, environment) in enumerate(zip(logs, environments, strict=True)):
            members.append(spawn(command, rank=rank, log=log, environment=environment, cwd=cwd))
        return LocalGang(members, logs=logs, grace_s=grace_s)
    except BaseException:
        for member in members:
            member.signal_group(signal.SIGKILL)
            member.lifeline.close()
        for member in members:
            member.keeper.wait()
        raise


def _free_port() -> int:
    """A port that was free a moment ago. Another program can take it first; JAX then fails loudly, and so the gang."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
