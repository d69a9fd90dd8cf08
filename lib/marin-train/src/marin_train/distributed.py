"""Processes that train together: each holds its devices' shares of one state, and reads its rows of every batch.

All run the same program on the same configuration. What one alone may do (deciding the policy, writing metrics and the
summary) process 0 does, and the others follow what it wrote; so the run's directory must be one that all of them see.
What a batch is depends on its step alone, never on how many processes read it.

A process that dies takes the others with it. Where they find its connection closed they say so and end; where it fell
silent, JAX's coordination service misses its heartbeat, after 100 seconds (`MARIN_HEARTBEAT_SECONDS`), and ends them.
Started again together, they go on from the last checkpoint.

See: https://docs.jax.dev/en/latest/multi_process.html
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from marin_train.errors import ConfigError, LostProcessError, MarinTrainError

_VARIABLES = ("MARIN_COORDINATOR", "MARIN_NUM_PROCESSES", "MARIN_PROCESS_ID")


def join(
    coordinator: str | None = None,
    *,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout_seconds: int = 300,
) -> None:
    """Meets the other processes; to be called before anything else of JAX. Alone, it does nothing.

    Args:
        coordinator: ``host:port`` of process 0, or ``auto``, where JAX can tell by itself (Slurm, Open MPI, Cloud TPU,
            Kubernetes); by default `MARIN_COORDINATOR`, and without that the process trains alone.
        num_processes: how many there are; by default `MARIN_NUM_PROCESSES`.
        process_id: this one's number, from 0; by default `MARIN_PROCESS_ID`.
        timeout_seconds: how long to wait for the others.

    Raises:
        ConfigError: a part of the address is missing or makes no sense.
        MarinTrainError: the others could not be met.
    """
    coordinator = coordinator or os.environ.get(_VARIABLES[0])
    if coordinator is None:
        if num_processes is not None or process_id is not None:
            raise ConfigError("--num-processes and --process-id need --coordinator HOST:PORT, the address of process 0")
        return
    import jax

    # It would swallow the signals by which a run is asked to stop; `marin_train.checkpoints.Cadence` agrees on them.
    jax.config.update("jax_enable_preemption_service", False)
    limits = {
        "initialization_timeout": timeout_seconds,
        "heartbeat_timeout_seconds": _number(None, "a heartbeat", "MARIN_HEARTBEAT_SECONDS", default="100"),
    }
    try:
        if coordinator == "auto":
            jax.distributed.initialize(**limits)
            return
        number = _number(num_processes, "--num-processes", _VARIABLES[1])
        own = _number(process_id, "--process-id", _VARIABLES[2])
        if not 0 <= own < number:
            raise ConfigError(f"--process-id {own} must be at least 0 and below --num-processes {number}")
        _check_address(coordinator)
        jax.distributed.initialize(coordinator, num_processes=number, process_id=own, **limits)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error).partition("\n")[0]
        raise MarinTrainError(f"the processes of this run did not meet at {coordinator}: {reason}") from error


def is_first() -> bool:
    """Whether this is process 0, or alone."""
    import jax

    return jax.process_index() == 0


def first_then_rest[T](fn: Callable[[], T]) -> T:
    """Calls ``fn`` in process 0, and once that is done in the others, which then find what it has written.

    Raises:
        MarinTrainError: in the others, where process 0 failed.
    """
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return fn()
    from jax.experimental.multihost_utils import process_allgather

    result, failure = None, None
    if is_first():
        try:
            result = fn()
        except Exception as error:  # told to the others before it goes on its way
            failure = error
    failed = process_allgather(np.array(failure is not None))
    if failure is not None:
        raise failure
    if failed[0]:
        raise MarinTrainError("process 0 could not begin the run; see what it said")
    return fn() if result is None else result


@contextmanager
def lost_processes() -> Generator[None]:
    """Says in words what JAX makes of a process that is gone.

    Raises:
        LostProcessError: within it, a collective found another process gone.
    """
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        reason = str(error).partition("\n")[0]
        raise LostProcessError(
            f"another process of this run is gone ({reason}); start all of them again, and they go on from the last "
            f"checkpoint"
        ) from error


def wait_for_all(what: str) -> None:
    """Returns once every process has come here."""
    import jax

    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices(what)


def _check_address(coordinator: str) -> None:
    """Refuses what JAX would end the process for."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--coordinator {coordinator!r} is no HOST:PORT; give process 0's address, such as 10.0.0.1:8476, or 'auto'"
        )


def _number(given: int | None, flag: str, variable: str, *, default: str = "") -> int:
    if given is not None:
        return given
    text = os.environ.get(variable, default)
    if not text.isdecimal():
        raise ConfigError(f"{flag} is missing ({variable}={text!r}); every process of a run needs it as a number")
    return int(text)
