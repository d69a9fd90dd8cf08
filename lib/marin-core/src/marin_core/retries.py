"""Retries: which failures of a body are worth another try, and how long to wait for it.

A failure is known by the names of its exception's classes, from the exception's own up to ``Exception``, which the
process that raised it has written down; so ``on=(OSError,)`` catches a ``ConnectionResetError``, and the class need not
be importable where the decision is made. A user's mistake is never tried again: it would fail in the same way.

Waits grow twofold, with jitter against steps that fail together. The jitter is a function of the address and the try,
so a run that is repeated waits as long. (Exponential backoff and jitter: Brooker, AWS Architecture Blog, 2015.)
"""

import hashlib
from dataclasses import dataclass

from marin_core.errors import UsageError
from marin_core.records import Failure


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How a failed body is tried again: ``@step(retries=Retry(times=3, on=(OSError,)))``. Enters no digest.

    Args:
        times: how many more attempts it gets.
        on: exception classes, or their names, bare or dotted; a subclass counts too. ``"Timeout"`` is a body that ran
            past its ``timeout_seconds``, ``"Crash"`` one whose process was killed. Empty: any failure.
        backoff_seconds: wait before the first of them; each further one waits twice as long.
        max_backoff_seconds: no wait is longer.

    Raises:
        UsageError: a field has a value that cannot be meant.
    """

    times: int = 1
    on: tuple[str | type[BaseException], ...] = ()
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 0:
            raise UsageError(f"Retry(times={self.times!r}) must be a whole number, 0 or more")
        for kind in self.on if isinstance(self.on, tuple) else (None,):
            if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, BaseException))):
                raise UsageError(f"Retry(on={self.on!r}) must be a tuple of exception classes or their names")
        if not 0 <= self.backoff_seconds <= self.max_backoff_seconds:
            raise UsageError(
                f"Retry(backoff_seconds={self.backoff_seconds!r}, max_backoff_seconds={self.max_backoff_seconds!r}): "
                "the first must lie between 0 and the second"
            )

    def covers(self, failure: Failure, *, tries: int) -> bool:
        """Whether a body that failed in its try number ``tries`` of this run gets another."""
        if failure.exit_code is not None or tries > self.times:
            return False
        names = {failure.type, *failure.mro, *(name.rpartition(".")[2] for name in failure.mro)}
        wanted = {kind if isinstance(kind, str) else kind.__name__ for kind in self.on}
        return not wanted or not wanted.isdisjoint(names)

    def wait_seconds(self, address: str, *, tries: int) -> float:
        """Seconds to wait after try number ``tries`` (from 1) has failed: between half of the backoff and all of it."""
        backoff = min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** min(tries - 1, 64))
        seed = hashlib.sha256(f"{address} {tries}".encode()).digest()
        return backoff * (0.5 + int.from_bytes(seed[:6]) / 2**49)


def retry_of(retries: "int | Retry") -> Retry:
    """The rule behind ``retries=``: a number is that many tries after any failure, at once.

    Raises:
        UsageError: it is neither a number that can be meant nor a `Retry`.
    """
    if isinstance(retries, Retry):
        return retries
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries={retries!r} must be a whole number, 0 or more, or a Retry")
    return Retry(times=retries, backoff_seconds=0)
