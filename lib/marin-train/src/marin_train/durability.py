"""Files that are whole or absent, and on the disk where that is promised.

A file is written under a hidden name beside its own, flushed and renamed: whoever finds it finds all of it, after
a kill or a loss of power too.

See: Pillai et al. 2014, "All File Systems Are Not Created Equal" (OSDI), for why both the file and its
directory are flushed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(values: Mapping[str, Any]) -> str:
    """The values as a file that people can read."""
    return json.dumps(values, indent=1) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Writes a file, in place of one that may be there, whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(text)
    flush(hidden)
    hidden.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Has a file's content, or a directory's entries, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
