"""The commands of ``marin``, by subject: each is a function from parsed arguments to an `Answer`, and prints nothing.

- `scripts`: explain, graph                    what a script's steps are and would do
- `runs`: status, report, logs                 what ran
- `comparison`: diff                           how outputs differ
- `lineages`: lineage                          where they come from
- `outputs`: verify, gc, pin, unpin            what stands on disk, whole or damaged, kept or collected
- `repetition`: reproduce                      whether it comes out the same again
- `serving`: serve                             all of it in the browser

``cli`` parses, calls one of them, and prints the answer in one of its two forms: lines for people or one JSON document.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command has to say."""

    document: Any
    """The whole answer as plain JSON."""
    lines: Iterable[str]
    """The same for people; the last line says what was found. What is no list comes in time, line by line."""
    remarks: tuple[str, ...] = ()
    """What belongs on stderr, since it is about the question: which of several steps was meant."""
    exit_code: int = 0
