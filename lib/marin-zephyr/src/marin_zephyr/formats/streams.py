"""Bytes of a file, decompressed, with one promise: a file that ends before its end mark is an error, not a short read.

gzip, bzip2 and xz of the standard library notice a missing end mark themselves (and read several members in a row);
zstandard's stream reader does not, so its frames are followed one by one here.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from marin_zephyr.errors import InputError, TruncatedFileError
from marin_zephyr.formats.archives import is_member, open_member

_CHUNK = 1 << 18
# Of a piece in which damage is found nothing comes out, so the pieces fed to the decompressor are small.
_ZSTD_PIECE = 1 << 14


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
            if at:
                raw.seek(at)
            for piece in _decompressed(raw, compression, url):
                offset += len(piece)
                yield piece
    except EOFError as e:
        message = (
            f"{url}: {compression} file is truncated: it ends after {offset:,} uncompressed bytes without an end mark"
        )
        raise TruncatedFileError(f"{message}; fetch it again") from e
    except (zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError) as e:
        raise InputError(
            f"{url}: {compression} data is damaged: it shows after {offset:,} uncompressed bytes ({e})"
        ) from e
    except OSError as e:
        raise InputError(f"{url}: cannot be read: the error came after {offset:,} bytes ({e})") from e


def open_file(url: str) -> IO[bytes]:
    """A file as it is stored: local, behind any fsspec URL, or a member of a zip archive."""
    if is_member(url):
        return open_member(url)
    if "://" not in url:
        return Path(url).open("rb")
    import fsspec

    return cast(IO[bytes], fsspec.url_to_fs(url)[0].open(url, "rb"))


def open_random(url: str) -> Any:
    """A file as Arrow reads it, here and there; a member of an archive is in memory as a whole."""
    import pyarrow as pa

    if is_member(url):
        with open_member(url) as member:
            return pa.BufferReader(member.read())
    return open_file(url) if "://" in url else pa.OSFile(os.fsencode(url), "rb")


def _decompressed(raw: IO[bytes], compression: str | None, url: str) -> Iterator[bytes]:
    if compression == "zst":
        yield from _zstd(raw)
        return
    stream: Any = raw
    if compression == "gz":
        stream = gzip.GzipFile(fileobj=raw, mode="rb")
    elif compression == "xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115  closed with `raw`
    elif compression == "bz2":
        stream = bz2.BZ2File(raw)
    elif compression is not None:
        raise InputError(f"{url}: unknown compression {compression!r}")
    # One piece as it comes: `read` would throw away what it has gathered when the file breaks off.
    read = stream.read if compression is None else stream.read1
    while piece := read(_CHUNK):
        yield piece


def _zstd(raw: IO[bytes]) -> Iterator[bytes]:
    """Frame after frame. ``EOFError`` if the last one does not end."""
    frame = None
    while piece := raw.read(_ZSTD_PIECE):
        while piece:
            if frame is None:
                frame = zstandard.ZstdDecompressor().decompressobj()
            if out := frame.decompress(piece):
                yield out
            piece = b""
            if frame.eof:
                piece, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError
