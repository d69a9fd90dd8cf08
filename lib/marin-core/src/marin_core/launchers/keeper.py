"""The keeper: a Ray actor on the node that runs one body, and lives as long as the body.

It starts the body from its constructor, which Ray calls once, so a body starts exactly once however often drivers
come and go. The body runs as under the process launcher, in a session of its own with a lifeline: when the keeper
dies, with its raylet or by ``ray.kill``, the whole process group dies. When the body ends, the keeper lays down what
it left (`delivery`), answers whoever asks, and goes; without a driver it goes by itself.

A driver that takes a step over becomes the keeper's owner, and from then on the earlier driver, which may only have
been asleep, cannot cancel the body any more.
"""

import asyncio
import shutil
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from marin_core.errors import UsageError
from marin_core.exits import exit_code_of
from marin_core.launchers import Job
from marin_core.launchers.delivery import deliver
from marin_core.launchers.process import ProcessLauncher
from marin_core.records import Failure

_LINGER = 30.0
"""Seconds for which a keeper whose body has ended waits for a driver to take note."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a job ended: the body's exit code, or why it could not be started or its output not delivered."""

    exit_code: int | None = None
    failure: Failure | None = None
    uploaded: bool = False


class Keeper:
    """Runs the body of one job. Its methods are coroutines, so that any number of drivers can wait for the end.

    Args:
        job: the job; its paths are the driver's.
        request: the bytes of the request file.
        owner: the launcher that may cancel it.
    """

    def __init__(self, job: Job, request: bytes, owner: str) -> None:
        import ray

        self._itself = ray.get_runtime_context().current_actor
        self._name, self._owner, self._cancelled = job.name, owner, False
        self._end: Future[End] = Future()
        self._launcher = ProcessLauncher()
        self._job = replace(job, python=job.python if Path(job.python).exists() else sys.executable, shareable=False)
        self._staged = False
        try:
            self._staged = _place(self._job, request)
            self._launcher.launch(self._job, notify=self._note_end)
        except Exception as e:
            self._settle(End(failure=_failure(e)))

    async def own(self, owner: str) -> None:
        """Makes a launcher the only one that may cancel the body."""
        self._owner = owner

    async def ended(self) -> End:
        """How the body ended, once it has."""
        return await asyncio.shield(asyncio.wrap_future(self._end))

    async def cancel(self, owner: str, grace: float) -> bool:
        """Ends the body and what it started; False, and nothing done, if another launcher owns it by now."""
        if owner != self._owner:
            return False
        self._cancelled = True
        await asyncio.to_thread(self._launcher.cancel, self._name, grace=grace)
        return True

    def _note_end(self, name: str) -> None:
        """Called by the process launcher. A body that was cancelled leaves nothing to go on with."""
        status = self._launcher.poll(name)
        code = status.exit_code if status is not None else None
        if self._cancelled or code is None:
            self._settle(End(exit_code=code))
            return
        try:
            delivery = deliver(self._job, exit_code=code)
            self._settle(End(exit_code=code, uploaded=delivery.uploaded))
        except Exception as e:
            self._settle(End(failure=_failure(e)))

    def _settle(self, end: End) -> None:
        import ray

        if self._staged and end.failure is None:  # what counts is under the prefix by now
            shutil.rmtree(Path(self._job.request).parent, ignore_errors=True)
        self._end.set_result(end)
        leave = threading.Timer(_LINGER, ray.kill, args=(self._itself,))
        leave.daemon = True
        leave.start()


def _place(job: Job, request: bytes) -> bool:
    """Makes sure that the attempt's directory is here: on a shared file system it is; for a remote prefix it only
    stages files, and is made again at the same path, which the request names. Returns whether it was made here."""
    path = Path(job.request)
    if path.exists() and path.read_bytes() == request:
        return False
    if "://" not in job.prefix:
        import socket

        raise UsageError(
            f"prefix {job.prefix} is a directory that Ray's node {socket.gethostname()} does not share with the "
            "driver; give a prefix on a shared file system or in an object store"
        )
    (path.parent / "out").mkdir(parents=True, exist_ok=True)
    path.write_bytes(request)
    return True


def _failure(e: Exception) -> Failure:
    return Failure(type=type(e).__name__, message=str(e), traceback="", exit_code=exit_code_of(e))
