"""One attempt at a step: its directory, the request its body gets, what came of it, and the commit.

    {address}/attempts/{n}/attempt.json   the record, from the moment the attempt begins
    {address}/attempts/{n}/out/           what the body writes; nobody reads it before the commit
    {address}/attempts/{n}/log.txt        the body's stdout and stderr
    {address}/step.json                   the commit: the pointer to attempt n, swapped in under the lease

A failed or killed attempt leaves its directory behind, which is never read as an output and never reused: the next
attempt has the next number.
"""

import contextlib
import functools
import getpass
import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin_core import faults, leases
from marin_core.code import Reach, loaded_otherwise
from marin_core.encoding import digest
from marin_core.errors import ConflictError, UsageError
from marin_core.graph import Node
from marin_core.handles import Input, Out, Work
from marin_core.launchers import Job, JobStatus, delivery
from marin_core.launchers.worker import SCRIPT_MODULE, Request
from marin_core.processes import this_host
from marin_core.records import (
    AttemptRecord,
    Digests,
    Failure,
    FileEntry,
    StepRecord,
    build,
    to_json,
)
from marin_core.steps import Step, find_steps, replace_steps
from marin_core.store import Store, manifest, sync_directory

_TAIL_LINES = 20
_FEW_FILES, _SMALL_BYTES = 4, 1 << 18
_SCRIPT_NAMES = (b"__main__", SCRIPT_MODULE.encode())


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that has begun. ``directory`` is local: the attempt's own, or a staging one on a remote prefix."""

    node: Node
    record: AttemptRecord
    lease: leases.Holding
    directory: Path
    inputs: dict[str, str]
    prefix: str
    """The store's path or URL."""
    script: str | None = None
    """The driver's script, if the body needs it."""

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def key(self) -> str:
        """The attempt's directory relative to the prefix."""
        return f"{self.address}/attempts/{self.record.attempt}"

    @property
    def log(self) -> Path:
        """Where the body's output goes."""
        return self.directory / "log.txt"

    @functools.cached_property
    def name(self) -> str:
        """The name of its job, the same whoever asks."""
        return job_name(self.prefix, self.address, self.record.attempt)

    @property
    def job(self) -> Job:
        """What a launcher is given."""
        return Job(
            name=self.name,
            prefix=self.prefix,
            key=self.key,
            request=str(self.directory / "request.pickle"),
            log=str(self.log),
            resources=self.node.step.resources,
            timeout_seconds=self.node.step.function.timeout_seconds,
            run_id=self.record.run_id,
            script=self.script,
            shareable=not self.node.code.changed_files(),
        )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a body left: either a failure, or a value and the manifest of its output."""

    failure: Failure | None = None
    value: Any = None
    files: tuple[FileEntry, ...] = ()
    uploaded: bool = False
    """The output is under its remote prefix already."""


def job_name(prefix: str, address: str, number: int) -> str:
    """What an attempt's job is called: the same for every driver, and another under another prefix."""
    return f"{address}/{number}@{hashlib.sha256(prefix.encode()).hexdigest()[:12]}"


def begin(
    store: Store,
    node: Node,
    lease: leases.Holding,
    *,
    run_id: str,
    reason: str,
    arguments: Mapping[str, Any],
    inputs: dict[str, str],
    launcher: str = "",
    fresh: bool = False,
) -> Attempt:
    """Makes the attempt's directory, record and request.

    Args:
        store: the prefix.
        node: the step.
        lease: the lease that this attempt commits under.
        run_id: the run that makes it.
        reason: why it is made.
        arguments: what the body gets, with `Input` and values in place of steps; `Out` and `Work` are added here.
        inputs: output digest by upstream address.
        launcher: the kind of launcher that gets the job.
        fresh: begin with an empty `Work`, for what was asked to be made anew; only the tries of one run go on from
            each other then.

    Raises:
        PrefixError: the prefix cannot be written.
        UsageError: an argument cannot be sent to another process.
    """
    record = _enter(store, node, lease, run_id=run_id, reason=reason, inputs=inputs, launcher=launcher)
    faults.reached("attempt-recorded")
    key = f"{node.address}/attempts/{record.attempt}"
    directory = store.local / key if store.local else Path(tempfile.mkdtemp(prefix="marin-attempt-"))
    attempt = Attempt(node=node, record=record, lease=lease, directory=directory, inputs=inputs, prefix=store.url)
    with _told(store):
        os.mkdir(f"{directory}/out")  # noqa: PTH102
        request = _request(store, attempt, arguments, fresh=fresh)
        with open(f"{directory}/request.pickle", "wb", buffering=0) as f:  # noqa: PTH123
            f.write(pickle.dumps(request))
    faults.reached("request-written")
    return replace(attempt, script=request["script"])


def _enter(
    store: Store,
    node: Node,
    lease: leases.Holding,
    *,
    run_id: str,
    reason: str,
    inputs: dict[str, str],
    launcher: str,
) -> AttemptRecord:
    """Writes the record of an attempt under the first number that nobody has: a runner that was overtaken, and does not
    know yet, may be choosing one at the same time."""
    record = AttemptRecord(
        address=node.address,
        attempt=0,
        epoch=lease.epoch,
        run_id=run_id,
        state="running",
        digests=Digests(
            recipe=node.recipe_digest,
            code=node.code.digest,
            environment=node.environment,
            inputs=digest([inputs[a] for a in node.upstream]),
        ),
        reason=reason,
        started_at=time.time(),
        ended_at=None,
        host=this_host().split(":")[0],
        user=user(),
        pid=os.getpid(),
        log="",
        launcher=launcher,
    )
    number = max((int(n) for n in store.names(f"{node.address}/attempts") if n.isdigit()), default=0)
    while True:
        number += 1
        key = f"{node.address}/attempts/{number}"
        numbered = replace(record, attempt=number, log=f"{key}/log.txt")
        try:
            store.swap(f"{key}/attempt.json", to_json(numbered).encode(), expected=None)
        except ConflictError:
            continue
        return numbered


def _request(store: Store, attempt: Attempt, arguments: Mapping[str, Any], *, fresh: bool) -> Request:
    node = attempt.node
    passed = dict(arguments)
    for name, role in node.step.function.roles.items():
        if role == "out":
            passed[name] = Out(store.child(f"{attempt.key}/out"), staging=str(attempt.directory / "out"))
        elif role == "work":
            if store.local is None:
                raise UsageError(f"step {node.name}: Work needs a local prefix, not {store.url}")
            work_key = node.work_key(attempt.record.digests.inputs)
            passed[name] = work = Work(store.child(work_key), epoch=attempt.lease.epoch)
            work.claim()
            if fresh:
                work.clear()
    function = node.step.function
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        packed = pickle.dumps(passed)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise UsageError(f"step {node.name}: its arguments cannot be sent to another process: {e}") from e
    # A class of the script among the arguments makes it necessary too; a mere text with that word does no harm.
    needs_script = any(name in packed or name.decode() == function.__module__ for name in _SCRIPT_NAMES)
    return {
        "module": function.__module__,
        "function": function.__qualname__,
        "script": os.path.abspath(main) if main and needs_script else None,  # noqa: PTH100
        "arguments": packed,
        "sys_path": tuple(p or str(Path.cwd()) for p in sys.path),
        "result": str(attempt.directory / "result.json"),
        "name": node.name,
    }


def arguments_for(step: Step, *, committed: Callable[[Step], Input], value: Callable[[Step], Any]) -> dict[str, Any]:
    """The arguments of a body: upstream steps replaced by `Input` or by their value, as the annotation says."""
    roles = step.function.roles
    return {
        name: replace_steps(argument, committed if roles.get(name) == "input" else value)
        for name, argument in step.arguments.items()
    }


def examine(attempt: Attempt, status: JobStatus) -> Ended:
    """What a body that has ended left behind; hashes its output. Slow for large outputs, so not for the event loop,
    which waits for the answer: whatever goes wrong here is a failure of the attempt and never an exception."""
    try:
        if status.failure is not None:
            return Ended(failure=status.failure)
        delivered = None
        if status.uploaded or status.exit_code is None:  # it ended out of the launcher's sight
            delivered = delivery.fetch(attempt.prefix, attempt.key, into=attempt.directory)
            status = status if delivered is None else replace(status, exit_code=delivered.exit_code)
        try:
            with open(f"{attempt.directory}/result.json", "rb", buffering=0) as f:  # noqa: PTH123
                data = json.loads(f.read())
        except (OSError, ValueError):
            return Ended(failure=_crash(attempt, status))
        if not data["ok"]:
            return Ended(failure=replace(build(Failure, data["failure"]), process_exit_code=status.exit_code))
        if status.exit_code != 0:
            return Ended(failure=_crash(attempt, status))
        uploaded = delivered is not None and delivered.uploaded
        files = delivered.files if delivered is not None and uploaded else _kept_files(attempt)
        changed = _changed_input(attempt.node.step)
        if changed is not None:
            return Ended(failure=changed)
        return Ended(value=data["value"], files=files, uploaded=uploaded)
    except Exception as e:
        return Ended(failure=Failure(type=type(e).__name__, message=str(e), traceback=""))


def is_quick(attempt: Attempt, status: JobStatus) -> bool:
    """Whether `examine` is a matter of moments: a handful of small files, and no adopted data to look at again."""
    if status.uploaded or status.exit_code is None:
        return False
    if any(other.listing is not None for other in find_steps(tuple(attempt.node.step.arguments.values()))):
        return False
    try:
        with os.scandir(attempt.directory / "out") as entries:
            files = list(itertools.islice(entries, _FEW_FILES + 1))
        sizes = [f.stat(follow_symlinks=False).st_size for f in files if f.is_file(follow_symlinks=False)]
    except OSError:
        return False
    return len(sizes) == len(files) <= _FEW_FILES and sum(sizes) <= _SMALL_BYTES


def changed_source(node: Node, *, in_process: bool) -> Failure | None:
    """The failure of an attempt whose body would not run the code that its digest names.

    Args:
        node: the step.
        in_process: the body runs in this process, with the modules that it has loaded.
    """
    if in_process and (path := loaded_otherwise(node.code)) is not None:
        message = f"{path} was edited after this process loaded it; start it again, or use the process launcher"
        return Failure(type="SourceChanged", message=message, traceback="", exit_code=1)
    edited = node.code.changed_files()
    if not edited or Reach().code_of(*node.code.roots).digest == node.code.digest:
        return None
    message = f"{edited[0]} was edited after the plan was made; run the command again"
    return Failure(type="SourceChanged", message=message, traceback="", exit_code=1)


def _changed_input(step: Step) -> Failure | None:
    """The failure of a body that read adopted data which is no longer what its identity says."""
    for other in find_steps(tuple(step.arguments.values())):
        name = other.listing.changed() if other.listing is not None else None
        if name is not None:
            message = f"adopt({other.external!r}): {name} changed while it was read; try again when it is at rest"
            return Failure(type="UsageError", message=message, traceback="", exit_code=UsageError.exit_code)
    return None


def _kept_files(attempt: Attempt) -> tuple[FileEntry, ...]:
    """The manifest of the output, all of which is on disk when this returns."""
    files = manifest(attempt.directory / "out")
    for directory in (attempt.directory, attempt.directory.parent) if files else ():
        sync_directory(directory)
    return files


def overtime(attempt: Attempt, ended: Ended) -> Failure:
    """The failure of a body that ran past its time, with the place where it was when it was asked to end."""
    limit = attempt.node.step.function.timeout_seconds
    where = ended.failure.traceback if ended.failure is not None else ""
    return Failure(type="Timeout", message=f"the body ran past its {limit:g} s", traceback=where)


def _crash(attempt: Attempt, status: JobStatus) -> Failure:
    code = status.exit_code
    if code is None:
        message = "the launcher lost the body"
    elif code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        message = "the body was killed by SIGKILL; if nobody did, the machine ran out of memory"
    elif code < 0:
        message = f"the body was killed by {signal.strsignal(-code) or f'signal {-code}'}"
    else:
        message = f"the body's process ended with exit code {code} and left no result"
    return Failure(type="Crash", message=message, traceback=tail(attempt.log, _TAIL_LINES), process_exit_code=code)


def tail(log: Path, lines: int) -> str:
    """The last lines of a log; of a line that rewrites itself with carriage returns, its last state."""
    try:
        with log.open("rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - 256 * lines - 256))
            text = f.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    shown = [part for part in (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")) if part.strip()]
    return "\n".join(shown[-lines:])


def commit(store: Store, attempt: Attempt, ended: Ended, *, provenance: Mapping[str, Any]) -> StepRecord:
    """Swaps the pointer to this attempt in, if the lease is still ours.

    Args:
        store: the prefix.
        attempt: the attempt.
        ended: what its body left.
        provenance: the fields ``origin`` and ``adopted`` of the record.

    Raises:
        LeaseLostError: another runner has taken the step over; nothing is committed.
        PrefixError: the prefix cannot be written.
    """
    node, now = attempt.node, time.time()
    if store.local is None and not ended.uploaded:
        store.upload(attempt.directory / "out", f"{attempt.key}/out")
    record = StepRecord(
        address=node.address,
        name=node.name,
        version=node.step.version,
        attempt=attempt.record.attempt,
        digests=attempt.record.digests,
        recipe=node.recipe,
        code=node.code.units,
        upstream=tuple(node.upstream),
        files=ended.files,
        output_digest=digest([[f.path, f.size, f.sha256] for f in ended.files] + [ended.value]),
        value=ended.value,
        committed_at=now,
        seconds=now - attempt.record.started_at,
        inputs=attempt.inputs,
        epoch=attempt.lease.epoch,
        run_id=attempt.record.run_id,
        **provenance,
    )
    faults.reached("before-commit")
    leases.commit(store, node.address, attempt.lease, to_json(record).encode())
    faults.reached("after-commit")
    return record


def close(store: Store, attempt: Attempt, *, state: Any, failure: Failure | None = None, settled: bool = True) -> None:
    """Enters the end of an attempt in its record, keeps its log, and gives the lease back. An attempt that a later run
    goes on with is that run's to close.

    Args:
        store: the prefix.
        attempt: the attempt.
        state: how it ended.
        failure: why it failed.
        settled: False if its commit may yet take effect: then the lease is left to run out, so that whoever comes next
            fences that commit off.
    """
    if state == "succeeded" or not _went_on(store, attempt):
        _enter_end(store, attempt, state=state, failure=failure, settled=settled)
    if store.local is None:
        shutil.rmtree(attempt.directory, ignore_errors=True)


def _enter_end(store: Store, attempt: Attempt, *, state: Any, failure: Failure | None, settled: bool) -> None:
    record = replace(attempt.record, state=state, ended_at=time.time(), failure=failure)
    try:
        if store.local is None and attempt.log.exists():
            store.put_file(attempt.log, attempt.record.log)
        store.write(f"{attempt.key}/attempt.json", to_json(record).encode(), durable=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{attempt.directory}/request.pickle")  # noqa: PTH108
        faults.reached("attempt-closed")
    finally:
        if settled:
            leases.release(store, attempt.address, attempt.lease)


def _went_on(store: Store, attempt: Attempt) -> bool:
    """Whether another run has taken this very attempt over, with its body."""
    try:
        record = json.loads(store.read(f"{attempt.key}/attempt.json") or b"{}")
        return record.get("run_id", attempt.record.run_id) != attempt.record.run_id
    except (ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _told(store: Store) -> Generator[None]:
    try:
        yield
    except OSError as e:
        raise store.error(e) from e


@functools.cache
def user() -> str:
    """The user's name, or number where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
