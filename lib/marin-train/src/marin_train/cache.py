"""Where this user keeps what can be had again: blocks of remote stores, what was measured on this machine."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$MARIN_CACHE``, else ``$XDG_CACHE_HOME/marin``, else ``~/.cache/marin``; it need not exist."""
    given = os.environ.get("MARIN_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "marin")
