"""Names: what a step may be called, so that its address is a directory of its own wherever the prefix lies.

A name is words joined by ``/``. A word is ASCII, begins with a letter, a digit or ``_`` (so ``..`` and hidden files
are none), and fits any file system. What the store itself puts below the prefix cannot begin a name, and what it puts
below an address cannot follow: a step ``a/v1/attempts`` would write its record among the attempts of another.
"""

import re

from marin_core.errors import UsageError

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")
_NAME = re.compile(rf"{WORD.pattern}(/{WORD.pattern})*")

_BELOW_ADDRESS = frozenset(
    {"attempts", "work", "reproductions", "step.json", "lease.json", "tombstone.json", "pin.json"}
)
_BELOW_PREFIX = frozenset({"runs", "objects", "environments", "certificates", "tombstones", "pins"})

_LONGEST_WORD = 200
"""Characters: a file system's 255 less what a temporary name adds."""
_LONGEST_NAME = 600
"""Characters: an object store's key of 1,024 less what lies below an address."""


def checked_name(name: object, *, where: str, pattern: re.Pattern[str] = _NAME) -> str:
    """The name, if a step or (with `WORD`) a version can be called so.

    Args:
        name: what the user gave.
        where: what it is, for the error: ``step train: name``.
        pattern: the form that it must have.

    Raises:
        UsageError: it cannot be.
    """
    if not isinstance(name, str) or not pattern.fullmatch(name):
        joined = "" if pattern is WORD else " joined by '/'"
        raise UsageError(
            f"{where}={name!r} must be words of [A-Za-z0-9_.+=-]{joined}, each beginning with [A-Za-z0-9_]"
        )
    words = name.split("/")
    # Case does not tell two files apart everywhere.
    first, *others = (w.lower() for w in words)
    below = [first] if pattern is WORD else others  # a version stands below a name
    taken = [w for w in below if w in _BELOW_ADDRESS] + [first] * (pattern is not WORD and first in _BELOW_PREFIX)
    if taken:
        raise UsageError(f"{where}={name!r}: {taken[0]!r} is a name of the store's own; choose another")
    longest = max(words, key=len)
    if len(longest) > _LONGEST_WORD or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"{where}={name[:40]!r}… has {len(name)} characters; at most {_LONGEST_WORD} between slashes and "
            f"{_LONGEST_NAME} in all fit every store"
        )
    return name


def is_free(word: str) -> bool:
    """Whether a word can stand anywhere in a name."""
    return word.lower() not in _BELOW_ADDRESS | _BELOW_PREFIX
