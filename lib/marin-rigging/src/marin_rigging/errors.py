"""The exception tree of marin-rigging; every message names the field, the value and the fix.

MarinRiggingError
├── AcceleratorError   an accelerator type that does not exist, with the nearest that does (exit 2)
├── SpecError          a fleet specification that cannot be read, by file, line and field (exit 2)
├── CommandError       a command or a working directory that is not there (exit 2)
└── JobError           a job or a rank of it that is not on record, or a record that cannot be read (exit 2)
"""


class MarinRiggingError(Exception):
    """Base of every error that marin-rigging raises on purpose."""

    exit_code = 1


class AcceleratorError(MarinRiggingError, ValueError):
    """An accelerator type that does not exist."""

    exit_code = 2


class SpecError(MarinRiggingError, ValueError):
    """A fleet specification that cannot be read or does not make sense.

    Attributes:
        field: the name of the field at fault, for a reader that knows on which line it stands.
    """

    exit_code = 2

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class CommandError(MarinRiggingError, ValueError):
    """A command that cannot be started as it stands."""

    exit_code = 2


class JobError(MarinRiggingError):
    """A job, or a rank of one, that is not on record."""

    exit_code = 2
