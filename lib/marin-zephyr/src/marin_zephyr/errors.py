"""The exception tree: every error names the thing, its value and the fix, and carries the command's exit code.

::

    ZephyrError                     exit 1
    ├── UsageError                  exit 2   a wrong argument or plan
    │   ├── MissingExtraError                an extra of the wheel is not installed: the install line
    │   ├── TokenizerError                   a tokenizer that cannot be read or lacks a special token
    │   └── ChatTemplateError                a chat template that is missing or malformed: on which line
    ├── TokenStoreError             exit 2   a token store that is absent, damaged or of other inputs
    ├── InputError                  exit 2   inputs that are missing, empty or of no known format
    │   ├── BadRecordError                   one record cannot be read: file, line, byte offset, reason
    │   ├── TooManyBadRecordsError           more records were refused than max_bad allows: how many, of which kinds
    │   ├── TruncatedFileError               a compressed file ends before its end
    │   └── TextTooLongError                 a text that its tokenizer can only encode whole: its size, and from where
    ├── SchemaError                 exit 2   one column holds two types, or no row has the column
    ├── OutputError                 exit 2   the output directory is not ours, not writable, or out of space
    │   └── OutputBusyError         exit 3   another run is writing it
    ├── EngineError                 exit 1   the fast engine gave other ids than the reference: on which document
    │   └── EngineRefusedError      exit 3   the fast engine that was asked for is not the tokenizer's equal
    ├── UserCodeError               exit 1   a function of the caller raised: which one, on which row
    ├── WorkerDiedError             exit 1   a worker process died twice on the same task
    ├── MemoryLimitError            exit 1   a task passed the memory ceiling: in which operation, on which row
    ├── AccountingError             exit 1   rows in and rows out of a stage disagree: a defect, never the user's doing
    └── CorruptBlockError           exit 1   an intermediate file fails its checksum
    RejectRow                                raised *by* the caller's function to refuse a row, with the reason

Errors cross process borders, so each is rebuilt from its message alone.
"""

from typing import ClassVar


class ZephyrError(Exception):
    """Base of all errors of this package; ``exit_code`` is what the command line returns for it."""

    exit_code: ClassVar[int] = 1


class UsageError(ZephyrError):
    """An argument or a plan that cannot work."""

    exit_code = 2


class MissingExtraError(UsageError):
    """An extra of the wheel is not installed. The message holds the exact install line."""


class TokenizerError(UsageError):
    """A tokenizer that does not exist, cannot be read, or lacks the special token that is asked of it."""


class ChatTemplateError(UsageError):
    """A chat template that does not exist or is no Jinja. The message holds its line."""


class TokenStoreError(ZephyrError):
    """A directory that is no token store, or whose files are not those that its manifest describes."""

    exit_code = 2


class InputError(ZephyrError):
    """Inputs that are missing, empty, or of no known format."""

    exit_code = 2


class BadRecordError(InputError):
    """One record cannot be read. The message holds file, line, byte offset and reason."""


class TooManyBadRecordsError(InputError):
    """More records of one stage were refused than ``max_bad`` allows. The message counts them by kind."""


class TruncatedFileError(InputError):
    """A compressed file ends before its own end mark: rows are missing."""


class TextTooLongError(InputError):
    """A text so long that it must be encoded in stretches, and whose tokenizer allows none. The message holds sizes."""


class SchemaError(ZephyrError):
    """A column holds values of types that do not unify, or a column that no row has."""

    exit_code = 2


class OutputError(ZephyrError):
    """The output directory cannot be written, or holds files that are not ours."""

    exit_code = 2


class OutputBusyError(OutputError):
    """Another run holds the output directory."""

    exit_code = 3


class EngineError(ZephyrError):
    """An engine of tokenization failed or gave other ids than the reference.

    Attributes:
        number: the number of the document among those it was given, where it is known.
    """

    def __init__(self, message: str, *, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class EngineRefusedError(EngineError):
    """The engine that was asked for does not give a tokenizer's own ids. The message has the first difference."""

    exit_code = 3


class UserCodeError(ZephyrError):
    """A function that the caller passed raised. The message names it, the row, and the exception."""


class WorkerDiedError(ZephyrError):
    """A worker process died twice on the same task: killed, out of memory, or crashed in native code."""


class MemoryLimitError(ZephyrError):
    """A task holds more memory than the run may use. The message names the operation, the row or batch, and the fix."""


class AccountingError(ZephyrError):
    """The rows of a stage do not add up. Nothing is committed; please report it with the plan."""


class CorruptBlockError(ZephyrError):
    """An intermediate file fails its checksum. Delete the work directory and run again."""


FAILURES = (Exception, SystemExit)
"""What a function of the caller may fail with: one that calls ``sys.exit`` ends its row, not the run's process."""


class RejectRow(Exception):  # noqa: N818  not an error: a verdict of the caller's function
    """Raise it inside ``map``, ``flat_map`` or ``filter`` to refuse a row.

    What becomes of the row is the dataset's ``on_error``: an error (``raise``), a count (``skip``), or a record under
    ``rejects/`` with the reason (``quarantine``).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
