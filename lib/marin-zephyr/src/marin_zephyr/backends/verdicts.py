"""Verdicts: what is to be done about a task that has killed its worker twice, the second time alone and with care.

- The worker crashed or ended (SIGSEGV, ``os._exit``) in a row function: the row did it.
- It passed the memory ceiling in a row function, and most of what the task had taken came in that call: the row did it.
  Otherwise memory had been filling up all along, and the row at work was merely the last straw.
- It was killed by somebody else, as the kernel does when memory runs out: the row did it if it happens at that row
  twice.
- In every other case, ``map_batches`` among them, nobody can be left out: the error says what was at work.

A row that did it is *condemned*: under ``on_error="raise"`` that is the error, otherwise the task runs once more
without it, a hundred times at most. Nothing is ever cut smaller to make it fit: what a function is given, and with it
the result, depends on the input alone.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from marin_zephyr.errors import MemoryLimitError, WorkerDiedError, ZephyrError
from marin_zephyr.reporting.quantities import shown_memory

if TYPE_CHECKING:
    from marin_zephyr.backends.care import Note, Position
    from marin_zephyr.backends.pool import Death
    from marin_zephyr.nodes import OnError

_log = logging.getLogger(__name__)

_MAX_CONDEMNED = 100
_TRIES = 2


class Trial:
    """What is known about one task that has killed its worker.

    Args:
        task: what it is, for people.
        policy: what becomes of a condemned row.
    """

    def __init__(self, task: str, policy: OnError) -> None:
        self.condemned: dict[Position, str] = {}
        """The rows to leave out, each with the reason."""
        self._task = task
        self._policy = policy
        self._unexplained: list[Position | None] = []

    def first(self, death: Death) -> str:
        """What happened, when the task was not yet careful."""
        return f"{self._task}: its worker {_what(death)}"

    def judge(self, death: Death, note: Note | None) -> None:
        """A careful try has died: either a row is condemned, or that is the end.

        Raises:
            MemoryLimitError: the memory ceiling was passed, and no row can be left out for it.
            WorkerDiedError: the same, of another death.
        """
        position = None if note is None else note.position
        by_others = death.ceiling is None and death.returncode == -signal.SIGKILL
        if by_others and position not in self._unexplained:
            if len(self._unexplained) == _TRIES:
                raise self._error(death, note)
            self._unexplained.append(position)
            _log.warning("%s: its worker %s; trying again", self._task, death)
            return
        if note is None or position is None or not _is_to_blame(note, death):
            raise self._error(death, note)
        if self._policy == "raise" or len(self.condemned) == _MAX_CONDEMNED:
            raise self._error(death, note)
        self.condemned[position] = _reason(death)
        _log.warning("%s: %s on %s: %s; going on without it", self._task, note.operation, note.what, _reason(death))

    def _error(self, death: Death, note: Note | None) -> ZephyrError:
        kind = WorkerDiedError if death.ceiling is None else MemoryLimitError
        if note is None:
            return kind(f"{self._task}: its worker {_what(death)}, {_TRIES} times; {_fix(death)}")
        at = note.operation + (f" on {note.what}" if note.what else "")
        held = "" if death.ceiling is None else f" (it held {shown_memory(note.held)} before)"
        aside = ""
        if len(self.condemned) == _MAX_CONDEMNED:
            aside = f"; {_MAX_CONDEMNED} rows are left out already"
        elif note.position is not None and _is_to_blame(note, death):
            aside = ', or pass on_error="quarantine" to set such rows aside'
        return kind(f"{self._task}: its worker {_what(death)} in {at}{held}; {_fix(death)}{aside}")


def _is_to_blame(note: Note, death: Death) -> bool:
    """Whether what happened came from the row at work."""
    return death.ceiling is None or 2 * (death.held - note.held) >= death.held - note.idle


def _what(death: Death) -> str:
    return str(death) if death.ceiling is None else f"passed the memory ceiling of {shown_memory(death.ceiling)}"


def _reason(death: Death) -> str:
    """For the desk. No amounts: they differ from run to run, and rejects are compared like any output."""
    if death.ceiling is not None:
        return "exceeded the memory ceiling: alone, with all the memory of the run"
    if death.returncode < 0:
        return f"killed the worker: {signal.Signals(-death.returncode).name}"
    return f"killed the worker: exit code {death.returncode}"


def _fix(death: Death) -> str:
    if death.ceiling is None:
        return "look at what the function does there, or at its input"
    return "give the session more (memory=), or have the function make less of it"
