"""Gangs: the ranks of one attempt at a job, which live and die together.

A rank is one process (with whatever it starts) of a command that N of them run at once. Since a collective operation
with one member missing waits for ever, the loss of any rank ends the attempt. This module holds what is the same on
every provider: the environment by which a rank knows its place, and the account of how a gang ended.

Invariant: a rank's environment speaks of this attempt alone. Coordinates left over from another gang or another
attempt (``MEGASCALE_*`` from a slice that is gone, say) are removed, since a recovered job that finds them hangs.

See: https://docs.jax.dev/en/latest/multi_process.html; the names RANK, WORLD_SIZE and LOCAL_RANK are torchrun's.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_STALE_PREFIXES = ("MEGASCALE_", "JAX_COORDINATOR_")


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How one rank ended.

    Attributes:
        rank: its number.
        returncode: exit status, or minus the signal that killed it.
        cause: ``own`` if it ended by itself, ``gang`` if it was ended since another rank was lost or by a stop.
        seconds: how long it ran.
    """

    rank: int
    returncode: int
    cause: Literal["own", "gang"]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.returncode == 0 and self.cause == "own"

    def describe(self) -> str:
        """``exited with 3`` or ``was killed by SIGKILL``, and when."""
        if self.returncode >= 0:
            how = f"exited with {self.returncode}"
        else:
            how = f"was killed by {_signal_name(-self.returncode)}"
        return f"rank {self.rank} {how} after {self.seconds:.1f} s"


@dataclass(frozen=True, kw_only=True)
class GangExit:
    """How a gang ended.

    Attributes:
        exits: one for each rank, in order.
        first_failure: the rank whose loss ended the gang; None if there was none before the end or the stop.
        stopped: whether it was stopped from outside.
    """

    exits: tuple[RankExit, ...]
    first_failure: RankExit | None
    stopped: bool

    @property
    def ok(self) -> bool:
        """Whether every rank ended by itself with status 0."""
        return all(e.ok for e in self.exits)

    @property
    def state(self) -> Literal["succeeded", "failed", "stopped"]:
        """One word for it; a failure before a stop counts as the failure."""
        if self.first_failure is not None:
            return "failed"
        return "succeeded" if self.ok else "stopped"

    def describe(self) -> str:
        """One line for a person: what happened, and to whom first."""
        if self.first_failure is None:
            longest = max(e.seconds for e in self.exits)
            return f"{_count(len(self.exits))} {self.state} after {longest:.1f} s"
        also = [e.describe() for e in self.exits if e.cause == "own" and e.returncode and e is not self.first_failure]
        ended = [str(e.rank) for e in self.exits if e.cause == "gang"]
        parts = [self.first_failure.describe(), *also, *([f"ended with it: {', '.join(ended)}"] if ended else [])]
        return "; ".join(parts)


def rank_environment(
    base: Mapping[str, str],
    *,
    job: str,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    attempt: int,
    coordinator: str,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of one rank.

    Args:
        base: what it inherits; coordinates of another gang in it are dropped.
        job: identifier of the job.
        rank: 0 to ``world_size - 1``.
        world_size: ranks in the gang.
        local_rank: number among the ranks of its host.
        local_world_size: ranks on its host.
        attempt: 1 for the first.
        coordinator: ``host:port`` at which rank 0 will listen for `jax.distributed`.
        extra: the job's own variables; they cannot overrule the coordinates.

    Returns:
        A complete environment. JAX reads the address by itself; process count and number are passed to
        ``jax.distributed.initialize`` from ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(_STALE_PREFIXES)}
    place = {
        "MARIN_JOB": job,
        "MARIN_ATTEMPT": attempt,
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_PORT": coordinator.rpartition(":")[2],
        "JAX_NUM_PROCESSES": world_size,
        "JAX_PROCESS_ID": rank,
    }
    # A log that is followed should not wait in a buffer; who wants one can say so.
    unbuffered = {"PYTHONUNBUFFERED": "1"}
    return unbuffered | kept | dict(extra or {}) | {name: str(value) for name, value in place.items()}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
