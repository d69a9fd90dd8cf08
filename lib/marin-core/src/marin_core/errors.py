"""Errors of marin_core: each names the thing, the value it has and what to do about it.

    MarinCoreError               exit code 1: something failed
    ├── UsageError               exit code 2: the call, the flag or the path is wrong
    │   ├── EncodingError        a value has no canonical encoding, so a step that holds it has no identity
    │   ├── AddressCollisionError  two recipes claim one address
    │   └── PrefixError          the prefix cannot be used: unwritable, full, unsupported
    │       └── UnsettledError   a conditional write that may yet take effect
    ├── RefusedError             exit code 3: going on would break a promise
    │   ├── DriftError           a versioned step no longer is what its version says
    │   ├── NewerRecordError     a later marin-core wrote the record; this one must not replace it
    │   └── LeaseLostError       another runner has taken the step over
    ├── ConflictError            what a conditional write was to replace has changed
    ├── CorruptRecordError       a record on disk is not readable
    ├── StepFailedError          a step's body failed
    └── MissingOutputError       a step was never run here
    RunInterrupted               a KeyboardInterrupt: exit code 128 + the signal's number (130 after SIGINT)

``exit_code`` is what a command line returns for the error; see `exits`.
"""

from typing import Any


class MarinCoreError(Exception):
    """Base class of everything this package raises on purpose."""

    exit_code: int = 1


class UsageError(MarinCoreError):
    """A call, a flag or a path that cannot be right."""

    exit_code = 2


class EncodingError(UsageError):
    """A value without a canonical encoding; the message has the path to it, as ``train(config.optimizer.fn)``."""


class AddressCollisionError(UsageError):
    """Two steps with different recipes claim the same address."""


class PrefixError(UsageError):
    """The prefix cannot be used: not readable, not writable, full, or of a kind that is not supported."""


class UnsettledError(PrefixError):
    """A conditional write was answered with errors until patience ended. It may have taken effect, or do so later."""


class ConflictError(MarinCoreError):
    """A conditional write found another version than it was to replace, and wrote nothing."""


class RefusedError(MarinCoreError):
    """The command would break a promise that a version or a lease makes."""

    exit_code = 3


class DriftError(RefusedError):
    """A versioned step whose recipe, code or inputs are not those of its committed output."""


class LeaseLostError(RefusedError):
    """The epoch this writer holds is no longer the current one; what it writes is rejected."""


class NewerRecordError(RefusedError):
    """A JSON record of a later schema: it may well be whole, so it is neither read by guess nor replaced."""


class CorruptRecordError(MarinCoreError):
    """A JSON record that is truncated or lacks a field."""


class StepFailedError(MarinCoreError):
    """A step failed, was blocked or was cancelled, so it has no value."""


class MissingOutputError(MarinCoreError):
    """The step has no committed output under this prefix."""


class RunInterrupted(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP came: the bodies are stopped, and the run is recorded as cancelled."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.report: Any = None
        """The `RunReport` of the run as it was stopped."""
        self.exit_code = 128 + number
