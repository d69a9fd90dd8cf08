"""Names of columns: which a caller's column may bear.

Arrow's C interface ends a name at its first NUL, and Polars panics over one; parquet and JSON want UTF-8. And the
engine adds columns of its own to rows on their way, whose names no caller's column may take.
"""

from __future__ import annotations

from typing import Any

from marin_zephyr.errors import SchemaError

OWN = "\1"
"""With this begin the names of the engine's own columns."""


def check_name(name: Any) -> None:
    """Refuses what cannot be the name of a caller's column.

    Raises:
        SchemaError: it is no string, holds a NUL or a lone surrogate, or begins as the engine's own columns do.
    """
    if not isinstance(name, str):
        raise SchemaError(f"column {name!r}: a column's name is a string, not {type(name).__name__}; rename it")
    if "\0" in name or name.startswith(OWN):
        raise SchemaError(f"column {name!r}: a NUL can be in no column's name, nor {OWN!r} at its start; rename it")
    if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
        raise SchemaError(f"column {name!r}: a lone surrogate can be in no column's name; rename it")
