"""Exits: how a command line ends, for scripts and for the ``marin`` command alike.

A user's mistake is one line on stderr and an exit code; a bug keeps its traceback. A mistake is any exception with an
integer ``exit_code``, of whatever package, and any error of the operating system (a file that is not there, a full
disk), which says by itself what it is about.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper

from marin_core.errors import RunInterrupted

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120
_BROKEN_PIPE = 141
"""What a shell reports of a program that SIGPIPE ended."""


class ScriptError(Exception):
    """A bug in a script's ``build``, told as Python tells it but without this package's frames."""

    def __init__(self, error: Exception) -> None:
        told = traceback.TracebackException.from_exception(error)
        links: list[traceback.TracebackException] = [told]
        while links:
            link = links.pop()
            link.stack = traceback.StackSummary.from_list(f for f in link.stack if not f.filename.startswith(_PACKAGE))
            links.extend(other for other in (link.__cause__, link.__context__) if other is not None)
        super().__init__("".join(told.format()).rstrip())


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of a mistake; None for a bug."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    return 2 if isinstance(error, OSError) else None


def guarded(command: Callable[[], int]) -> int:
    """Runs a command to its end and returns the exit code: its own, or that of the mistake it has told of."""
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may hold bytes that are no text
    try:
        code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as e:
        kept = ": finished steps are kept, running ones were stopped" if isinstance(e, RunInterrupted) else ""
        with contextlib.suppress(OSError):  # the terminal may be what was closed
            print(f"interrupted{kept}", file=sys.stderr)  # noqa: T201
        return getattr(e, "exit_code", 130)
    except BrokenPipeError:
        # Whoever read stdout has left, as `head` does; Python would complain of the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except ScriptError as e:
        print(e, file=sys.stderr)  # noqa: T201
        return 1
    except Exception as e:
        code = exit_code_of(e)
        if code is None:
            raise
        print(f"error: {e}", file=sys.stderr)  # noqa: T201
        return code


def aside(as_json: bool) -> contextlib.AbstractContextManager[object]:
    """While a script speaks for itself: to stderr, if stdout is to hold one JSON document."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _open_closed_streams() -> None:
    """Stands the null device in for a standard stream that was closed (``>&-``): Python has None there, and the next
    file that is opened would get the stream's number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115  open to the end
