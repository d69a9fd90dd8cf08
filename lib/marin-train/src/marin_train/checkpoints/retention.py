"""Which checkpoints a directory holds, and which of them may go: all permanent ones stay, and the last two others.

One is removed only after a newer one was committed. A checkpoint whose certificate cannot be read is left alone: it may
be a permanent one behind a file system's bad moment.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from marin_train.certificates import read_certificate
from marin_train.errors import CheckpointError

TEMPORARY = ".saving-"
"""What the names begin with of directories that are no checkpoint yet, or none any more; a start removes them."""
_NAME = re.compile(r"step-(\d{8,})")
_KEEP_LAST = 2


def name_of(step: int) -> str:
    """The directory's name of the checkpoint of that step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The steps completed in the checkpoint of that name."""
    return int(path.name.removeprefix("step-"))


def checkpoints(directory: Path) -> list[Path]:
    """The committed checkpoints of a directory, newest first, damaged ones included."""
    found = [p for p in directory.iterdir() if _NAME.fullmatch(p.name)] if directory.is_dir() else []
    return sorted(found, key=step_of, reverse=True)


def retire(directory: Path) -> None:
    """Removes all temporary checkpoints but the last two; the newest checkpoint was committed just now."""
    for path in [p for p in checkpoints(directory) if _is_temporary(p)][_KEEP_LAST:]:
        with suppress(OSError):  # it is tried again after the next save
            # What a kill leaves of it must not look like a damaged checkpoint, which would lie there for good.
            shutil.rmtree(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))


def _is_temporary(path: Path) -> bool:
    try:
        return not read_certificate(path).permanent
    except CheckpointError:
        return False
