"""Files as bytes: outputs and logs to save, whole or a range, and pictures to show.

A file is sent in blocks, each of which is opened anew inside the prefix, so that memory does not depend on its size
and a link that takes its place in the middle leads nowhere. All go out as an attachment of unknown type, which no
browser displays or runs; a picture has its type, and an SVG, which could hold a script, is saved when it is opened by
itself, and has a policy under which it would run none.

See: RFC 9110 section 14 (ranges), RFC 6266 (Content-Disposition).
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from marin_core.server.catalogue import Catalogue
from marin_core.server.entries import owner_of
from marin_core.web.files import PrefixFiles, UnreadableFileError
from marin_core.web.previews import IMAGES

if TYPE_CHECKING:
    from starlette.responses import Response

_BLOCK = 1 << 20
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


def download(catalogue: Catalogue, path: str, *, range_header: str | None) -> "Response":
    """An output or a log, to be saved.

    Raises:
        UnreadableFileError: it is missing, neither of the two, or leads outside the prefix.
    """
    name = PurePosixPath(path).name
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return _sent(catalogue, path, headers=headers, media_type="application/octet-stream", range_header=range_header)


def image(catalogue: Catalogue, path: str) -> "Response":
    """A picture among the outputs.

    Raises:
        UnreadableFileError: it is missing, no picture by its name, no output, or leads outside the prefix.
    """
    media_type = IMAGES.get(PurePosixPath(path).suffix.lower())
    if media_type is None:
        raise UnreadableFileError(f"{path}: not a picture")
    headers = {"Content-Security-Policy": _PICTURE_POLICY}
    if media_type == IMAGES[".svg"]:
        headers["Content-Disposition"] = "attachment"  # an img element shows it all the same
    return _sent(catalogue, path, headers=headers, media_type=media_type, range_header=None)


def _sent(
    catalogue: Catalogue, path: str, *, headers: dict[str, str], media_type: str, range_header: str | None
) -> "Response":
    from starlette.responses import Response, StreamingResponse

    owner_of(path)
    files = catalogue.files()
    status = files.status(path)
    if status is None:
        raise UnreadableFileError(f"there is no file {path}")
    wanted = parse_range(range_header, size=status.size)
    if wanted is None:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{status.size}"})
    start, stop = wanted
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
    is_part = (start, stop) != (0, status.size)
    if is_part:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{status.size}"
    blocks = _blocks(files, path, start, stop)
    return StreamingResponse(blocks, status_code=206 if is_part else 200, headers=headers, media_type=media_type)


def _blocks(files: PrefixFiles, path: str, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _BLOCK):
        yield files.range(path, start=at, stop=min(at + _BLOCK, stop))


def parse_range(header: str | None, *, size: int) -> tuple[int, int] | None:
    """Which bytes to send, as start and stop.

    Args:
        header: the value of ``Range``. One that is absent, of another unit or of several parts asks for everything,
            as the standard allows.
        size: of the file.

    Returns:
        None when the range lies outside the file.
    """
    unit, _, spec = (header or "").partition("=")
    first, dash, last = spec.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not all(part.isdecimal() and part.isascii() for part in (first + last,)):
        return 0, size
    if not first:
        length = min(int(last), size)
        return (size - length, size) if length else None
    start, stop = int(first), min(int(last) + 1, size) if last else size
    if start >= size:
        return None
    return (start, stop) if start < stop else (0, size)
