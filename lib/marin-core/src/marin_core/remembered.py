"""Remembered: what one process has worked out and the next may use again, under ``$XDG_CACHE_HOME/marin``
(``~/.cache/marin``).

A memory, not a record: nothing depends on it but time. A file of it may vanish, or be of another version, at any
moment, and what cannot be written is not remembered; then the work is done again. What a key stands for must
therefore say everything that the value depends on.
"""

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any


def recall(kind: str, key: str) -> Any:
    """The JSON value remembered under a key, or None."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        return json.loads(_path(kind, key).read_bytes())
    return None


def remember(kind: str, key: str, value: Any) -> None:
    """Remembers a JSON value under a key, if that can be done."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(json.dumps(value, separators=(",", ":")), encoding="ascii")
        temporary.replace(path)


def _path(kind: str, key: str) -> Path:
    # RuntimeError, which callers take for "no memory": this user has no home directory.
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "marin" / kind / f"{hashlib.sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()}.json"
