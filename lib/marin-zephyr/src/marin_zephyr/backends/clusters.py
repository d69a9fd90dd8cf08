"""Joining a Ray cluster: which one, without waiting for one that is gone, and without its noise.

Ray tries for minutes to join a cluster that a crash has left on disk, prints what others log, and takes over SIGTERM.
A library must do none of this to the process that it is called in.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from marin_zephyr.errors import UsageError

_log = logging.getLogger(__name__)

_CONNECT = 10.0
"""Seconds to wait for a cluster to accept a connection."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run` Ray would otherwise pack the working directory and ship it to the nodes.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray prints what raylets report of lost workers to stdout, whatever log_to_driver says; it goes by this filter.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def join(address: str | None, *, cpus: int | None) -> bool:
    """Joins a cluster, unless this process is in one already.

    Args:
        address: as ``ray.init`` takes it. By default ``RAY_ADDRESS``, else a cluster of this machine, else one is
            started, which ends with the process or with ``ray.shutdown``.
        cpus: how many one that is started has; by default those of the machine.

    Returns:
        Whether this call has joined it.

    Raises:
        UsageError: the cluster cannot be reached.
    """
    with _quiet():
        import ray

        if ray.is_initialized():
            return False
        found = _find(address or os.environ.get("RAY_ADDRESS")) or "local"
        alone: dict[str, Any] = {}
        if found == "local":
            _log.info("no Ray cluster found: one is started for this session and ends with it")
            alone = {"include_dashboard": False, "num_cpus": cpus}
        try:
            ray.init(found, log_to_driver=False, logging_level=logging.CRITICAL, **alone)
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise UsageError(f"Ray cluster {found}: {e}; see ray_address and RAY_ADDRESS") from e
        return True


def check_room(task_bytes: int) -> None:
    """Refuses tasks that no node can hold: Ray would wait for ever for one that can."""
    import ray

    most = max((node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if task_bytes > most:
        raise UsageError(
            f"a task's share of memory is {task_bytes:,} bytes, and the largest node of the Ray cluster has {most:,};"
            " lower memory, or raise workers"
        )


def _find(given: str | None) -> str | None:
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
            f"no Ray cluster answers at {given} ({e}); see ray_address and RAY_ADDRESS, or start one: ray start --head"
        ) from e
    return given or "auto"  # not what it stands for, since Ray looks for a token only then


@contextmanager
def _quiet() -> Generator[None]:
    """Ray reads its environment when it is imported and joined; it also takes SIGTERM over, which is the caller's."""
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
