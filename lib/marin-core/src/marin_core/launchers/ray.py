"""The ray launcher: each body on some node of a Ray cluster, where it outlives the driver that started it.

A job is a detached actor, the `keeper`, whose name is the job's. Ray registers a name before it starts the actor and
gives it to one only, so a driver that was killed at any moment finds by the name whether its body was started, and
adopts it. That holds as long as the cluster outlives the driver. Where there is none, one is started for this run
alone and ends with it.

Bodies see the environment variables of the node's Ray, not the driver's. Nothing of the working directory is shipped:
a node needs the same code and packages, as in one image or on one file system.
"""

import importlib.util
import logging
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marin_core.errors import UsageError
from marin_core.launchers import Job, JobStatus, placement
from marin_core.launchers.keeper import End, Keeper
from marin_core.records import Failure

log = logging.getLogger(__name__)

_NAMESPACE = "marin"
_CONNECT = 10.0
"""Seconds to wait for a cluster to accept a connection."""
_REACH = 2.0
"""Seconds to wait for an answer of a keeper that is about to be cancelled; it may not have been placed yet."""
_ASK_AGAIN = 1.0
"""Seconds until a keeper that could not be reached is asked again; Ray decides meanwhile whether it is dead."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run` Ray would otherwise pack the working directory and ship it to the nodes.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray prints what raylets report of lost workers to stdout, whatever log_to_driver says; it goes by this filter.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(kw_only=True)
class _Followed:
    keeper: Any
    notify: Callable[[str], None]
    owned: Any = None
    """Answered once the keeper runs and knows that this launcher owns it."""
    status: JobStatus = field(default_factory=lambda: JobStatus(running=True))
    over: threading.Event = field(default_factory=threading.Event)


class RayLauncher:
    """Runs each job as a detached actor of a Ray cluster.

    Args:
        address: the cluster, as ``ray.init`` takes it. Default: ``RAY_ADDRESS``, else a cluster of this machine, else
            one that is started for this run.

    Raises:
        UsageError: the extra ``ray`` is not installed.
    """

    kind, notifies, places = "ray", True, True

    def __init__(self, address: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("launcher ray needs the package ray: pip install 'marin-core[ray]'")
        self.address = address
        self._owner = secrets.token_hex(8)
        self._jobs: dict[str, _Followed] = {}
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._receiver: threading.Thread | None = None
        self._joined = False

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        """Registers the keeper, which starts the body as soon as a node has room for it.

        A request that no node could ever satisfy ends at once as failed.

        Raises:
            UsageError: the cluster cannot be reached.
        """
        ray = self._connected(start=True)
        try:
            wanted = placement.request(job.resources)
            placement.check(wanted, ray.nodes())
        except UsageError as e:
            failure = Failure(type="UsageError", message=str(e), traceback="", exit_code=e.exit_code)
            followed = self._jobs[job.name] = _Followed(keeper=None, notify=notify)
            self._settle(job.name, followed, End(failure=failure))
            return
        if (stale := self._find(job.name)) is not None:  # of a prefix that was deleted while its driver was dead
            self._kill(stale, name=job.name)
        actor = ray.remote(Keeper).options(
            name=job.name,
            namespace=_NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            **placement.options(wanted),
        )
        keeper = actor.remote(job, Path(job.request).read_bytes(), self._owner)
        self._follow(job.name, keeper, notify=notify)

    def poll(self, name: str) -> JobStatus | None:
        """The state of a job that this driver has launched or adopted."""
        followed = self._jobs.get(name)
        return None if followed is None else followed.status

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        """SIGTERM to the body, then SIGKILL to its process group, then an end to its keeper. A body that another
        driver has adopted is left alone."""
        followed = self._jobs.get(name)
        if followed is None or followed.over.is_set():
            return
        import ray
        from ray.exceptions import RayError

        with suppress(RayError):
            reached, _ = ray.wait([followed.owned], timeout=_REACH)
            if reached and not ray.get(followed.keeper.cancel.remote(self._owner, grace), timeout=grace + _REACH):
                return
        self._kill(followed.keeper, name=name)
        followed.over.wait(_REACH)

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        """Takes over a job of an earlier driver that still runs, or is still waiting for a node."""
        if self._connected(start=False) is None or (keeper := self._find(name)) is None:
            return False
        self._follow(name, keeper, notify=notify)
        return True

    def close(self) -> None:
        """Leaves the cluster, if this launcher joined it; one that was started for the run ends."""
        if self._joined:
            import ray

            self._joined = False
            ray.shutdown()

    # Following

    def _follow(self, name: str, keeper: Any, *, notify: Callable[[str], None]) -> None:
        followed = self._jobs[name] = _Followed(keeper=keeper, notify=notify)
        followed.owned = keeper.own.remote(self._owner)
        if self._receiver is None:
            self._receiver = threading.Thread(target=self._receive, daemon=True, name="marin-ray")
            self._receiver.start()
        self._ask(name, followed)

    def _ask(self, name: str, followed: _Followed) -> None:
        """Asks the keeper how the body ends; the answer, which comes when it has, wakes the receiver."""
        answer = followed.keeper.ended.remote().future()
        answer.add_done_callback(lambda future: self._answers.put((name, future)))

    def _receive(self) -> None:
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        while True:
            name, answer = self._answers.get()
            followed, error = self._jobs[name], answer.exception()
            if isinstance(error, ActorUnavailableError):
                again = threading.Timer(_ASK_AGAIN, self._ask, args=(name, followed))
                again.daemon = True
                again.start()
                continue
            with suppress(RayError):
                ray.kill(followed.keeper)
            self._settle(name, followed, answer.result() if error is None else End())

    def _settle(self, name: str, followed: _Followed, end: End) -> None:
        """A keeper that died unasked has no answer (`End()`); what it delivered before is under the prefix then."""
        followed.status = JobStatus(running=False, exit_code=end.exit_code, failure=end.failure, uploaded=end.uploaded)
        followed.over.set()
        followed.notify(name)

    # The cluster

    def _find(self, name: str) -> Any:
        import ray

        try:
            return ray.get_actor(name, namespace=_NAMESPACE)
        except ValueError:
            return None

    def _kill(self, keeper: Any, *, name: str) -> None:
        """Kills an actor and waits until Ray has given its name free."""
        import ray
        from ray.exceptions import RayError

        with suppress(RayError):
            ray.kill(keeper)
        deadline = time.monotonic() + _REACH
        while self._find(name) is not None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _connected(self, *, start: bool) -> Any:
        """The module ``ray``, joined to a cluster; None if there is none and none is to be started."""
        with _quiet():
            import ray

            if ray.is_initialized():
                return ray
            address = _cluster(self.address or os.environ.get("RAY_ADDRESS"))
            if address is None and not start:
                return None
            if address is None:
                log.info("no Ray cluster found: one is started for this run, and its bodies end with it")
            alone: dict[str, Any] = {"include_dashboard": False} if address in (None, "local") else {}
            try:
                ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **alone)
            except (ConnectionError, RuntimeError, ValueError) as e:
                hint = "; one with tokens wants RAY_AUTH_MODE=token" if address else ""
                raise UsageError(f"Ray cluster {address or 'of this run'}: {e}{hint}") from e
            self._joined = True
            return ray


def _cluster(given: str | None) -> str | None:
    """The address to join: the given one, or ``auto`` for a cluster of this machine; None if there is none.

    Ray itself tries for minutes to join a cluster that is gone, as one whose address a crash has left on disk. What
    ``auto`` stands for only a private function tells; a Ray without it is asked to join on trust.

    Raises:
        UsageError: nothing answers at the given address.
    """
    if given == "local":
        return given
    try:
        from ray._private.services import get_ray_address_from_environment
    except ImportError:
        return given
    try:
        address = get_ray_address_from_environment(given or "auto", None) or ""
        place = urlsplit(address if "://" in address else f"//{address}")
        socket.create_connection((str(place.hostname), place.port), timeout=_CONNECT).close()
    except (OSError, ValueError) as e:
        if given in (None, "auto"):
            return None
        raise UsageError(
            f"no Ray cluster answers at {given} ({e}); see RAY_ADDRESS, or start one: ray start --head"
        ) from e
    return given or "auto"  # not what it stands for, since Ray looks for a token only then


@contextmanager
def _quiet() -> Generator[None]:
    """Ray reads its environment when it is imported and joined; it also takes SIGTERM over, which is the runner's."""
    before = {name: os.environ.get(name) for name in _QUIET}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGTERM, handler)
