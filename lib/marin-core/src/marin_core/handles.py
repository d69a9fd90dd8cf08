"""Out, Input and Work: the directories a step's body sees, whatever store lies under them.

- `Out`    exists only for this attempt, is empty when the body starts, and counts only if the attempt is committed.
- `Input`  is the committed output of an upstream step (or adopted data, which may be a single file). It is never
           written: ``open`` refuses to, committed files of a local prefix are read-only, and a body that has changed
           an input all the same fails.
- `Work`   is shared by the attempts of one step as long as recipe, code and inputs stay the same: a place for
           checkpoints. It is fenced: it remembers the highest epoch that opened it, and an attempt of an older epoch
           can only read.

Each has ``url``, ``local()`` and ``open(name, mode)``. On a local prefix they are plain directories. On any other, an
`Out` is staged on local disk and uploaded at commit, and an `Input` is fetched when ``local()`` is asked for.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from marin_core.errors import LeaseLostError, UsageError

_EPOCH_FILE = ".epoch"


@dataclass(frozen=True)
class _Directory:
    url: str
    """Absolute local path, or fsspec URL."""

    def __truediv__(self, name: str) -> Path:
        return self.local() / name

    def local(self) -> Path:
        """The directory as a `pathlib.Path`."""
        raise UsageError(f"{type(self).__name__} {self.url} has no local path")

    def open(self, name: str, mode: str = "r") -> IO[Any]:
        """Opens a file within the directory.

        Args:
            name: the file, relative to the directory; directories on the way to one that is written are made.
            mode: as of `open`; text is UTF-8.

        Raises:
            UsageError: the name leads out of the directory.
        """
        path = self / relative_name(name)
        if "r" not in mode:
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode, encoding=None if "b" in mode else "utf-8")


@dataclass(frozen=True)
class Out(_Directory):
    """A fresh directory for what this attempt produces.

    Annotate a step's parameter with it; the runner passes it, callers never do.
    """

    staging: str = field(default="", repr=False)
    """Local directory that stands for the output until it is uploaded; the output itself on a local prefix."""

    def local(self) -> Path:
        """The directory to write into."""
        return Path(self.staging or self.url)


@dataclass(frozen=True)
class Input(_Directory):
    """The committed output of an upstream step, to be read only."""

    cache: str = field(default="", repr=False)
    """Local directory that the steps of a run share for what they fetch from a remote prefix."""

    def __truediv__(self, name: str) -> Path:
        """A path within the directory. Data that is a single file is taken for a directory that holds it."""
        place = self.local()
        if "://" in self.url or not place.is_file():
            return place / name
        if Path(name) != Path(place.name):
            raise UsageError(f"{place} is a single file: its name is {place.name!r}, there is no {str(name)!r}")
        return place

    def local(self) -> Path:
        """The directory, or the adopted file; on a remote prefix fetched first, and verified. See `fetching`."""
        if "://" not in self.url:
            return Path(self.url)
        from marin_core.fetching import fetch

        return fetch(self.url, cache=self.cache)

    def open(self, name: str, mode: str = "r") -> IO[Any]:
        """Opens a file of the input for reading; on a remote prefix without fetching the rest.

        Args:
            name: the file, relative to the directory.
            mode: ``"r"`` (UTF-8) or ``"rb"``.

        Raises:
            UsageError: the mode writes, or the name leads out of the directory.
        """
        if set(mode) - set("rbt"):
            raise UsageError(f"Input.open({name!r}, {mode!r}): an input is read-only; write to the step's Out")
        if "://" not in self.url:
            return super().open(name, mode)
        from marin_core.fetching import fetch_file

        path = fetch_file(self.url, Path(relative_name(name)).as_posix(), cache=self.cache)
        return path.open(mode, encoding=None if "b" in mode else "utf-8")


@dataclass(frozen=True)
class Work(_Directory):
    """A directory that the attempts of one recipe and code on the same inputs share: for a body that can resume. An
    attempt that ``--force`` or ``--rebuild`` asked for begins with an empty one."""

    epoch: int = 0
    """The lease epoch of this attempt; a later one fences it out."""

    def claim(self) -> None:
        """Enters this attempt's epoch as the newest. The runner does it before the body starts."""
        path = Path(self.url)
        path.mkdir(parents=True, exist_ok=True)
        self.check()
        temporary = path / f"{_EPOCH_FILE}.{self.epoch}"
        temporary.write_text(f"{self.epoch}\n", encoding="ascii")
        temporary.replace(path / _EPOCH_FILE)  # whole at any time: an older attempt that found it empty would go on

    def clear(self) -> None:
        """Empties the directory, once it is claimed; the epoch stays, so older attempts stay fenced out. Each entry is
        moved away whole before any is deleted, so that a crash leaves no half of a checkpoint behind."""
        cleared = Path(f"{self.url}.cleared")
        shutil.rmtree(cleared, ignore_errors=True)
        cleared.mkdir(exist_ok=True)
        for path in Path(self.url).iterdir():
            if path.name != _EPOCH_FILE:
                path.rename(cleared / path.name)
        shutil.rmtree(cleared, ignore_errors=True)

    def check(self) -> None:
        """Raises `LeaseLostError` if a later attempt has taken the directory over."""
        try:
            newest = int((Path(self.url) / _EPOCH_FILE).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return
        if newest > self.epoch:
            raise LeaseLostError(
                f"{self.url}: attempt of epoch {self.epoch} was overtaken by epoch {newest}; it must stop"
            )

    def local(self) -> Path:
        """The directory, for reading and for writing.

        Raises:
            LeaseLostError: a later attempt has taken the directory over.
        """
        self.check()
        return Path(self.url)

    def open(self, name: str, mode: str = "r") -> IO[Any]:
        """Opens a file; reading is open to older attempts too, writing is not.

        Args:
            name: the file, relative to the directory.
            mode: as of `open`; text is UTF-8.

        Raises:
            LeaseLostError: it would write, and a later attempt has taken the directory over.
            UsageError: the name leads out of the directory.
        """
        if set(mode) - set("rbt"):
            return super().open(name, mode)
        path = Path(self.url) / relative_name(name)
        return path.open(mode, encoding=None if "b" in mode else "utf-8")


def relative_name(name: str) -> str:
    """The name, if it is a path that stays within the directory it is relative to."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(f"{name!r} leaves the directory; give a path relative to it")
    return name
