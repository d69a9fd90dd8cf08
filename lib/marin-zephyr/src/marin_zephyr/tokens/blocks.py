"""Blocks of remote files, kept on the local disk up to a bound.

A block is named by the sha256 of its whole file, which a store's manifest tells, and by its number there. So a name
never stands for two contents: nothing is ever stale, a store that was written anew is read anew, and equal files of
two stores are kept once. Files appear by renaming and are checked by whoever reads them, so that any number of
processes share a directory; which was not used for longest goes first.

The place is ``token-blocks`` below ``$MARIN_CACHE``, else ``$XDG_CACHE_HOME/marin``, else ``~/.cache/marin``; the bound
is ``$MARIN_CACHE_GB`` gigabytes, else 32.
"""

import contextlib
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from marin_zephyr.errors import OutputError, UsageError

_DEFAULT_GB = "32"
_SHARE_BETWEEN_TRIMS = 16  # a process looks at the whole directory when it has added this share of the bound


def default_directory() -> Path:
    """Where blocks are kept unless told otherwise."""
    if given := os.environ.get("MARIN_CACHE"):
        return Path(given) / "token-blocks"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marin" / "token-blocks"


def default_bytes() -> int:
    """How much is kept unless told otherwise.

    Raises:
        UsageError: ``$MARIN_CACHE_GB`` is no positive number.
    """
    text = os.environ.get("MARIN_CACHE_GB") or _DEFAULT_GB
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < float("inf"):
        raise UsageError(f"MARIN_CACHE_GB is {text!r}: it must be a positive number of gigabytes")
    return int(gigabytes * 1e9)


class BlockCache:
    """Files named by digest and block.

    Args:
        directory: where they lie; by default `default_directory`.
        max_bytes: by default `default_bytes`. When more than this lies there, what was not used for longest is removed.
            Between two looks, each process may add a sixteenth of it.
    """

    def __init__(self, directory: str | Path | None = None, *, max_bytes: int | None = None) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()
        self._max_bytes = default_bytes() if max_bytes is None else max_bytes
        self._added: int | None = None  # since the last look; None before the first

    def find(self, digest: str, block: str) -> Path | None:
        """The file of a block, which now counts as used, or None. It may vanish at any moment."""
        path = self._path(digest, block)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def drop(self, digest: str, block: str) -> None:
        """Forgets a block."""
        with contextlib.suppress(OSError):
            self._path(digest, block).unlink()

    @contextmanager
    def adding(self, digest: str, block: str) -> Generator[Path]:
        """Gives a path to write a block to; it is kept if the body of the ``with`` ends without an error.

        Raises:
            OutputError: the directory cannot be written, or the disk is full.
        """
        path = self._path(digest, block)
        hidden = path.with_name(f".{block}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield hidden
            size = hidden.stat().st_size
            hidden.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path}: cannot keep what was downloaded ({error.strerror or error}); make room, or set MARIN_CACHE "
                f"to another directory"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink()
        if self._added is not None:
            self._added += size
        if self._added is None or self._added >= self._max_bytes // _SHARE_BETWEEN_TRIMS:
            self._trim(keep=path)
            self._added = 0

    def _path(self, digest: str, block: str) -> Path:
        return self.directory / digest[:2] / digest / block

    def _trim(self, *, keep: Path) -> None:
        """Removes what was not used for longest until the rest is within the bound; never ``keep``, the newest."""
        found: list[tuple[float, int, Path]] = []
        for directory, _, names in os.walk(self.directory):
            for name in names:
                path = Path(directory, name)
                with contextlib.suppress(OSError):  # another process was here first
                    stat = path.stat()
                    found.append((stat.st_mtime, stat.st_size, path))
        excess = sum(size for _, size, _ in found) - self._max_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            if path != keep:
                with contextlib.suppress(OSError):
                    path.unlink()
                    excess -= size
