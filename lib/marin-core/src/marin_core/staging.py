"""Staging: this host's directories for what belongs under a remote prefix, named by the process that they end with.

A process that is killed removes nothing, so the next one of this host removes what the dead have left.
"""

import functools
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from marin_core.processes import Process, this_host

_NAME = re.compile(r"marin-(?:attempt|inputs)-([0-9a-f]{8})-(\d+)-(\d+)-.*")


def owned_name(what: str, tail: str = "") -> str:
    """The name of a directory that ends with this process.

    Args:
        what: ``attempt`` or ``inputs``.
        tail: what tells it from others of the process.
    """
    own = Process.of(os.getpid())
    return f"marin-{what}-{_host()}-{own.pid}-{own.started}-{tail}"


def owned_directory(what: str) -> Path:
    """A new directory that ends with this process."""
    return Path(tempfile.mkdtemp(prefix=owned_name(what)))


@functools.cache
def sweep() -> None:
    """Removes, once in a process, the directories of processes of this host that are dead."""
    for path in Path(tempfile.gettempdir()).glob(f"marin-*-{_host()}-*"):
        found = _NAME.fullmatch(path.name)
        if found is not None and not Process(pid=int(found[2]), started=int(found[3])).alive():
            shutil.rmtree(path, ignore_errors=True)


@functools.cache
def _host() -> str:
    """Where a pid means a process, whenever that was: after another boot all of them are dead."""
    name, _, namespace = this_host().split(":", 2)
    return hashlib.sha256(f"{name} {namespace}".encode()).hexdigest()[:8]
