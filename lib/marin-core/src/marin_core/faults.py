"""Fault points: the places in a step's life at which a crash is tested, each named once.

    MARIN_FAULT_POINT=before-commit:2 python count.py     # SIGKILL itself at the second step's commit

A test that kills a driver from outside hits wherever the driver happens to be; here it dies exactly between two
effects, by the one signal that no handler softens. Without the variable a point costs one look at a cached None.
"""

import functools
import os
import signal
from collections import Counter

from marin_core.errors import UsageError

POINTS = (
    "run-recorded",
    "lease-acquired",
    "attempt-recorded",
    "request-written",
    "body-launched",
    "body-ended",
    "output-hashed",
    "before-commit",
    "after-commit",
    "attempt-closed",
    "lease-released",
)
"""In the order in which a run comes by them; the first comes again at its end."""

VARIABLE = "MARIN_FAULT_POINT"
_passed: Counter[str] = Counter()


def reached(point: str) -> None:
    """Kills this very process if it was told to die here."""
    armed = _armed()
    if armed is None:
        return
    _passed[point] += 1
    if armed == (point, _passed[point]):
        os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _armed() -> tuple[str, int] | None:
    """The point at which to die, and at which time of passing it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    point, _, number = text.partition(":")
    if point not in POINTS or not (number or "1").isdigit():
        raise UsageError(f"{VARIABLE}={text}: give one of {', '.join(POINTS)}, and :N for the N-th time")
    return point, int(number or 1)
