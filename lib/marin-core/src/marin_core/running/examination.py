"""Examination: what a body that has ended has left behind, hashed and, on a remote prefix, uploaded.

That takes as long as the output is large, so it is done beside the event loop, while the lease is still renewed.
"""

import itertools
import json
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from marin_core.errors import PrefixError, UsageError
from marin_core.launchers import JobStatus, delivery
from marin_core.records import Failure, FileEntry, build
from marin_core.running.attempts import Attempt, Ended, failure_of
from marin_core.steps import Step, find_steps
from marin_core.store import Store, manifest, strangeness, sync_directory

_TAIL_LINES = 20
_FEW_FILES, _SMALL_BYTES = 4, 1 << 18
_FEW_INPUTS, _MOST_LOOKED_AT = 64, 20_000
"""Files of all inputs, for a look in passing; and of one input, for any look (0.2 s on a local disk)."""


def examine(store: Store, attempt: Attempt, status: JobStatus) -> Ended:
    """What a body that has ended left behind. The event loop waits for the answer: whatever goes wrong here is a
    failure of the attempt and never an exception."""
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
        changed = _changed_input(attempt.node.step) or _changed_output(attempt)
        if changed is not None:
            return Ended(failure=changed)
        if delivered is not None and delivered.uploaded:
            return Ended(value=data["value"], files=delivered.files)
        return Ended(value=data["value"], files=_kept_files(store, attempt))
    except PrefixError as e:
        return Ended(failure=failure_of(e))
    except Exception as e:
        return Ended(failure=Failure(type=type(e).__name__, message=str(e), traceback=""))


def is_quick(store: Store, attempt: Attempt, status: JobStatus) -> bool:
    """Whether `examine` is a matter of moments: a handful of small files on this machine, few that were read, and no
    adopted data to look at again."""
    if store.local is None or status.uploaded or status.exit_code is None:
        return False
    if sum(map(len, attempt.given.values())) > _FEW_INPUTS:
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


def _changed_input(step: Step) -> Failure | None:
    """The failure of a body that read adopted data which is no longer what its identity says."""
    for other in find_steps(tuple(step.arguments.values())):
        name = other.listing.changed() if other.listing is not None else None
        if name is not None:
            message = f"adopt({other.external!r}): {name} changed while it was read; try again when it is at rest"
            return Failure(type="UsageError", message=message, traceback="", exit_code=UsageError.exit_code)
    return None


def _changed_output(attempt: Attempt) -> Failure | None:
    """The failure of a body whose inputs are not what was committed, because this body or another one wrote to them.
    Names and sizes are looked at, and no more where there are so many that this would take longer than a small body."""
    for key, files in attempt.given.items():
        what = strangeness(f"{attempt.prefix}/{key}", files) if len(files) <= _MOST_LOOKED_AT else None
        if what is not None:
            address = key.partition("/attempts/")[0]
            message = (
                f"input {address} is no longer what was committed: {what} in {attempt.prefix}/{key}; a body writes to "
                f"its Out alone; --force {address} makes that input again"
            )
            return Failure(type="UsageError", message=message, traceback="", exit_code=UsageError.exit_code)
    return None


def _kept_files(store: Store, attempt: Attempt) -> tuple[FileEntry, ...]:
    """The manifest of the output, all of which is on disk, or under the remote prefix, when this returns."""
    files = manifest(attempt.directory / "out", durable=store.local is not None)
    if store.local is None:
        try:
            store.upload(attempt.directory / "out", f"{attempt.key}/out")
        except PrefixError as e:
            raise PrefixError(f"{e}; the output is kept in {_set_aside(attempt)}") from e
        return files
    for directory in (attempt.directory, attempt.directory.parent) if files else ():
        sync_directory(directory)
    return files


def _set_aside(attempt: Attempt) -> Path:
    """Brings an output that could not be uploaded out of the directory that ends with its attempt."""
    kept = Path(tempfile.mkdtemp(prefix="marin-kept-", dir=attempt.directory.parent)) / "out"
    (attempt.directory / "out").rename(kept)
    return kept


def overtime(attempt: Attempt, ended: Ended) -> Failure:
    """The failure of a body that ran past its time, with the place where it was when it was asked to end."""
    limit = attempt.node.step.function.timeout_seconds
    lines = ended.failure.traceback.splitlines() if ended.failure is not None else []
    where = "\n".join(line for line in lines if not line.startswith("SystemExit: "))  # how a worker is asked to end
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
