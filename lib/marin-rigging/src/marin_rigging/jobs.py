"""Jobs on record: what was run, as what, and how it ended, so that logs can be found when the terminal is closed.

Under a prefix, one directory a job::

    rig/jobs/hello-1/job.json                    `JobRecord`
    rig/jobs/hello-1/attempts/1/rank-0.log       stdout and stderr of a rank

Invariant: a job's directory is claimed by creating it, so two drivers never share one; a record is replaced by
renaming, so a reader never sees half of it. A record holds names of environment variables and never their values,
which may be secrets. A record says ``running`` until its driver rewrites it; if the driver is gone, readers are told
``lost``.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marin_rigging.errors import JobError
from marin_rigging.fleet import Job, Pool
from marin_rigging.gangs import RankExit

SCHEMA = 1

State = Literal["running", "succeeded", "failed", "stopped", "lost"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One job. Times are seconds since the epoch, UTC.

    Attributes:
        id: name and number, the directory's name.
        name: the job's name.
        pool, provider, type: where it ran.
        command: program and arguments.
        env_names: variables that the job sets.
        num_ranks: processes.
        attempt: the last one.
        state: how it stands; ``lost`` is never written, only read.
        host, driver_pid, driver_started: the process that answers for it; the kernel's start time of the process
            tells it from a later one with its number.
        started_at, ended_at: ``ended_at`` is None while it runs.
        summary: one line for a person.
        exits: how each rank ended.
    """

    id: str
    name: str
    pool: str
    provider: str
    type: str
    command: tuple[str, ...]
    env_names: tuple[str, ...]
    num_ranks: int
    attempt: int
    state: State
    host: str
    driver_pid: int
    driver_started: str
    started_at: float
    ended_at: float | None = None
    summary: str = ""
    exits: tuple[RankExit, ...] = ()
    schema: int = SCHEMA


class JobStore:
    """The jobs under a prefix.

    Args:
        prefix: a local directory; made when the first job is.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.root = Path(prefix) / "rig" / "jobs"

    def create(self, job: Job, pool: Pool) -> JobRecord:
        """Claim a directory and write the first record, in the name of this process.

        Raises:
            JobError: the prefix cannot be written.
        """
        with self._writing():
            self.root.mkdir(parents=True, exist_ok=True)
            number = next(n for n in itertools.count(1) if self._claim(f"{job.name}-{n}"))
        record = JobRecord(
            id=f"{job.name}-{number}",
            name=job.name,
            pool=pool.name,
            provider=pool.provider,
            type=pool.type,
            command=job.command,
            env_names=tuple(sorted(job.env)),
            num_ranks=pool.num_ranks,
            attempt=1,
            state="running",
            host=socket.gethostname(),
            driver_pid=os.getpid(),
            driver_started=_start_time(os.getpid()),
            started_at=time.time(),
        )
        with self._writing():
            self.log_dir(record).mkdir(parents=True)
        self.write(record)
        return record

    def finish(self, record: JobRecord, *, state: State, summary: str, exits: tuple[RankExit, ...] = ()) -> JobRecord:
        """Write down how a job ended; returns the new record."""
        done = dataclasses.replace(record, state=state, ended_at=time.time(), summary=summary, exits=exits)
        self.write(done)
        return done

    def write(self, record: JobRecord) -> None:
        """Replace a record as a whole.

        Raises:
            JobError: the prefix cannot be written.
        """
        path = self.root / record.id / "job.json"
        fresh = path.with_suffix(".new")
        with self._writing():
            fresh.write_text(json.dumps(dataclasses.asdict(record), indent=2) + "\n", encoding="utf-8")
            fresh.replace(path)

    def read(self, job_id: str) -> JobRecord:
        """The record of a job.

        Raises:
            JobError: there is none, or it cannot be read.
        """
        path = self.root / job_id / "job.json"
        if not re.fullmatch(r"[-a-z0-9]+", job_id) or not path.exists():
            known = ", ".join(r.id for r in self.list()[-5:]) or "none"
            raise JobError(f"job {job_id!r} is not on record under {str(self.root)!r}; the last ones are: {known}")
        try:
            return _decode(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise JobError(f"{path} cannot be read: {error}") from error

    def list(self) -> tuple[JobRecord, ...]:
        """All jobs with a readable record, the oldest first; of the others the log says why."""
        records = []
        for path in self.root.glob("*/job.json"):
            try:
                records.append(self.read(path.parent.name))
            except JobError as error:
                logger.warning("%s", error)
        return tuple(sorted(records, key=lambda r: (r.started_at, r.id)))

    def log_dir(self, record: JobRecord) -> Path:
        """Where the logs of the record's attempt lie."""
        return self.root / record.id / "attempts" / str(record.attempt)

    def log(self, record: JobRecord, rank: int) -> Path:
        """The log of one rank.

        Raises:
            JobError: the job has no such rank.
        """
        if not 0 <= rank < record.num_ranks:
            raise JobError(f"rank={rank} is not in job {record.id!r}; its ranks are 0 to {record.num_ranks - 1}")
        return self.log_dir(record) / f"rank-{rank}.log"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JobError(f"prefix {str(self.root.parent.parent)!r} cannot be written: {error.strerror}") from error

    def _claim(self, job_id: str) -> bool:
        try:
            (self.root / job_id).mkdir()
        except FileExistsError:
            return False
        return True


def _decode(data: Any) -> JobRecord:
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"its schema is {schema!r}, not {SCHEMA}")
    data["exits"] = tuple(RankExit(**e) for e in data["exits"])
    data["command"], data["env_names"] = tuple(data["command"]), tuple(data["env_names"])
    record = JobRecord(**data)
    here = record.host == socket.gethostname()
    if record.state == "running" and here and _start_time(record.driver_pid) != record.driver_started:
        return dataclasses.replace(
            record, state="lost", summary="its driver died before it could say how the job ended"
        )
    return record


def _start_time(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it is gone. Without /proc: whether it is there."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        # Fields after the command's name in parentheses, which may hold anything; the process's is number 22 of all.
        return stat.read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "there"
