"""A log as a terminal leaves it: no escape sequences, and of a line that rewrites itself its last state.

A body's log is raw: colours, cursor movements, progress bars drawn over and over with carriage returns. `clean_line`
is what each line comes to; it holds for a whole log, for its tail and for one that still grows, which is why a line
that has not ended yet can be shown too and replaced when more of it is there.
"""

import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean_line(text: str) -> str:
    """One line without escape sequences, as its last carriage return left it."""
    return _ESCAPE_SEQUENCE.sub("", text).rstrip("\r").rpartition("\r")[2]


def clean_log(data: bytes, *, max_lines: int) -> str:
    """The last lines of a log's bytes, cleaned; what is not UTF-8 shows as U+FFFD."""
    lines = data.decode("utf-8", errors="replace").rstrip("\n").split("\n")
    return "\n".join(clean_line(line) for line in lines[-max_lines:]).strip("\n")
