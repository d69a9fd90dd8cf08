"""Zip archives: their members are files like any other, called ``a.zip::dir/member.jsonl``.

A member is read from front to back and never cut; what needs random access in it (parquet, Arrow) reads it whole. A
member that is encrypted or damaged is refused when it is read, as any damaged file is; only an archive whose directory
cannot be read has no members, and so is an error when it is listed.

See: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (the zip format).
"""

from __future__ import annotations

import fnmatch
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from marin_zephyr.errors import InputError
from marin_zephyr.formats.remote import open_url

MEMBER_OF = "::"
_SUFFIX = ".zip"
_ENCRYPTED = 0x1


def is_archive(url: str) -> bool:
    """Whether a file's name is that of a zip archive."""
    return url.lower().endswith(_SUFFIX)


def is_member(url: str) -> bool:
    """Whether this names a member of an archive."""
    return split_member(url)[1] is not None


def split_member(url: str) -> tuple[str, str | None]:
    """``a.zip::b`` as archive and member (or pattern of members); anything else as itself and None."""
    end = url.lower().find(_SUFFIX + MEMBER_OF)
    if end < 0:
        return url, None
    end += len(_SUFFIX)
    return url[:end], url[end + len(MEMBER_OF) :]


def members(url: str, pattern: str | None = None) -> list[tuple[str, int, int]]:
    """Name, uncompressed size and CRC-32 of each file in an archive, sorted by name.

    Args:
        url: the archive.
        pattern: only members whose whole name it matches; ``*`` matches ``/`` too.

    Raises:
        InputError: it is no zip archive, or its directory is damaged.
    """
    try:
        with _open(url) as raw, zipfile.ZipFile(raw) as archive:
            entries = [i for i in archive.infolist() if not i.is_dir()]
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, EOFError, OSError) as e:
        raise InputError(
            f"{url}: not a readable zip archive ({e}); fetch it again, or name the inputs without it"
        ) from e
    found = {i.filename: (i.filename, i.file_size, i.CRC) for i in entries}
    return [found[name] for name in sorted(found) if pattern is None or fnmatch.fnmatchcase(name, pattern)]


def open_member(url: str) -> IO[bytes]:
    """A member as a file. Closing it closes the archive.

    Raises:
        InputError: there is no such member, or it cannot be read: encrypted, or damaged.
    """
    path, name = split_member(url)
    assert name is not None
    raw = _open(path)
    try:
        archive = zipfile.ZipFile(raw)
        if archive.getinfo(name).flag_bits & _ENCRYPTED:
            raise InputError(f"{url}: is encrypted; unpack the archive, and read the files")
        return _Member(raw, archive.open(name), url)  # pyrefly: ignore
    except (zipfile.BadZipFile, NotImplementedError, KeyError, EOFError) as e:
        raw.close()
        raise InputError(f"{url}: cannot be read from the archive ({e})") from e
    except BaseException:
        raw.close()
        raise


class _Member:
    """A member that takes its archive with it when it is closed, and tells damage as ours."""

    def __init__(self, raw: IO[bytes], member: IO[bytes], url: str) -> None:
        self._raw = raw
        self._member = member
        self._url = url

    def read(self, size: int = -1) -> bytes:
        """As of any file."""
        try:
            return self._member.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError) as e:
            raise InputError(f"{self._url}: the archive is damaged within this member ({e or type(e).__name__})") from e

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the member and the archive."""
        self._member.close()
        self._raw.close()


def _open(url: str) -> IO[bytes]:
    return open_url(url) if "://" in url else Path(url).open("rb")
