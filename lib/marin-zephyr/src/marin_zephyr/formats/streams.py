"""Bytes of a file, decompressed, with one promise: a file that ends before its end mark is an error, not a short read.

bzip2 and xz of the standard library notice a missing end mark themselves (and read several streams in a row). Members
of gzip and frames of zstd are followed one by one here: zstandard's own stream reader takes a cut frame for a whole
one, and ISA-L's gzip reader, three times as fast as zlib, forgets what it had gathered when the file breaks off.

See: RFC 1952 (gzip: members, and what follows the last), RFC 8878 (zstd frames).
"""

from __future__ import annotations

import bz2
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import zstandard
from isal import isal_zlib

from marin_zephyr.errors import InputError, TruncatedFileError, ZephyrError
from marin_zephyr.formats.archives import is_member, open_member
from marin_zephyr.formats.remote import open_url

_CHUNK = 1 << 18
_GZIP_PIECE = 1 << 16  # what a short member leaves of one is copied, so it is not larger
# Of a piece in which damage is found nothing comes out, so the pieces fed to a decompressor there are small.
_PIECE = 1 << 14
_LIMIT = 4 << 20  # bytes that come out at once, however well they were compressed
_GZIP_WINDOW = 31  # the largest window, and a gzip header and checksum
_GZIP_MAGIC = b"\x1f\x8b"


def blocks(url: str, compression: str | None, *, at: int = 0, offset: int = 0) -> Iterator[bytes]:
    """The uncompressed bytes of a file, in pieces: all that can be had, also of a file that is cut or damaged.

    Args:
        url: the file.
        compression: as `infer` tells it.
        at: where in the stored file to begin: 0, or where a frame or member of it does.
        offset: how many uncompressed bytes lie before; for messages.

    Raises:
        TruncatedFileError: the compressed data ends before its end mark. Everything before was yielded.
        InputError: the compressed data is damaged, or the file cannot be read.
    """
    try:
        with open_file(url) as raw:
            for piece in _to_the_end(raw, compression, url, at=at):
                offset += len(piece)
                yield piece
    except EOFError as e:
        message = (
            f"{url}: {compression} file is truncated: it ends after {offset:,} uncompressed bytes without an end mark"
        )
        raise TruncatedFileError(f"{message}; fetch it again") from e
    except (isal_zlib.IsalError, lzma.LZMAError, zstandard.ZstdError) as e:  # pyrefly: ignore
        raise InputError(
            f"{url}: {compression} data is damaged: it shows after {offset:,} uncompressed bytes ({e})"
        ) from e
    except Exception as e:
        if isinstance(e, ZephyrError) or ("://" not in url and not isinstance(e, OSError)):
            raise
        raise InputError(f"{url}: cannot be read: the error came after {offset:,} bytes ({e})") from e


def open_file(url: str) -> IO[bytes]:
    """A file as it is stored: local, behind any fsspec URL, or a member of a zip archive."""
    if is_member(url):
        return open_member(url)
    if "://" not in url:
        return Path(url).open("rb")
    return open_url(url)


def open_random(url: str) -> Any:
    """A file as Arrow reads it, here and there; a member of an archive is in memory as a whole."""
    import pyarrow as pa

    if is_member(url):
        with open_member(url) as member:
            return pa.BufferReader(member.read())
    return open_file(url) if "://" in url else pa.OSFile(os.fsencode(url), "rb")


def _to_the_end(raw: IO[bytes], compression: str | None, url: str, *, at: int) -> Iterator[bytes]:
    """What can be had; gzip at first in large pieces and, where one is damaged, once more in small ones."""
    if at:
        raw.seek(at)
    given = 0
    try:
        for piece in _decompressed(raw, compression, url):
            given += len(piece)
            yield piece
    except isal_zlib.IsalError:  # pyrefly: ignore
        raw.seek(at)
        for piece in _gzip(raw, _PIECE):
            if len(piece) > given:
                yield piece[given:]
            given = max(0, given - len(piece))


def _decompressed(raw: IO[bytes], compression: str | None, url: str) -> Iterator[bytes]:
    if compression == "gz":
        return _gzip(raw, _GZIP_PIECE)
    if compression == "zst":
        return _members(raw, lambda _: zstandard.ZstdDecompressor().decompressobj(), size=_PIECE, padding=b"")
    if compression in ("xz", "bz2"):
        if not raw.read(1):  # to the standard library a file of no stream at all is whole
            raise EOFError
        raw.seek(0)
        return _pieces(lzma.LZMAFile(raw).read1 if compression == "xz" else bz2.BZ2File(raw).read1)
    if compression is not None:
        raise InputError(f"{url}: unknown compression {compression!r}")
    return _pieces(raw.read)


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """As they come: `read` of a decompressor would throw away what it has gathered when the file breaks off."""
    while piece := read(_CHUNK):
        yield piece


def _gzip(raw: IO[bytes], size: int) -> Iterator[bytes]:
    return _members(raw, _gzip_member, size=size, padding=b"\0", limit=_LIMIT)


def _gzip_member(head: bytes) -> Any:
    """ISA-L takes less than a header's length of anything for the beginning of one."""
    if not head.startswith(_GZIP_MAGIC[: len(head)]):
        raise isal_zlib.IsalError("no gzip header")  # pyrefly: ignore
    return isal_zlib.decompressobj(_GZIP_WINDOW)


def _members(
    raw: IO[bytes], decompressor: Callable[[bytes], Any], *, size: int, padding: bytes, limit: int | None = None
) -> Iterator[bytes]:
    """Member after member, with padding between and after. ``EOFError`` if the last one does not end, or none is.

    Args:
        raw: the file.
        decompressor: makes one for a member that begins with these bytes.
        size: how much of the file is read at once.
        padding: what may follow a member.
        limit: how much the decompressor gives at once, if it can be told.
    """
    member, ended = None, False
    while piece := raw.read(size):
        more = False
        while piece or more:
            if member is None:
                if ended and not (piece := piece.lstrip(padding)):
                    break
                member = decompressor(piece)
            out = member.decompress(piece) if limit is None else member.decompress(piece, limit)
            if out:
                yield out
            if member.eof:
                piece, member, ended, more = member.unused_data, None, True, False
            else:
                piece, more = member.unconsumed_tail, len(out) == limit
    if member is not None or not ended:
        raise EOFError
