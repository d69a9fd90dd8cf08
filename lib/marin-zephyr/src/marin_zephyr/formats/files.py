"""Which files an input names, in which order, and how they are cut into shards of work.

Invariant: the list and the shards are functions of the files alone (names and sizes), never of the machine, the worker
count or the order in which a directory answers. Nothing is passed over: a directory that cannot be listed is an error.
Names are sorted; consecutive small files share a shard, so that a thousand tiny files are not a thousand tasks; a large
file is cut into spans (see `splits`) where its format allows it, and is a shard of its own where not. A zip archive is
its members.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from marin_zephyr.errors import InputError
from marin_zephyr.formats import infer, is_known, remote
from marin_zephyr.formats.archives import MEMBER_OF, is_archive, members, split_member
from marin_zephyr.formats.splits import Span, spans

if TYPE_CHECKING:
    from marin_zephyr.nodes import FileSource, ReadOptions

# What the output directory of a sink holds: parts, the manifest that is written last, staged work until then, and what
# was refused.
PART = re.compile(r"part-\d{5,}\.(parquet|arrow|jsonl|jsonl\.gz|jsonl\.zst)")
SINK_MANIFEST = "_manifest.json"
_BY_MANIFEST = "manifest:"
STAGING = ".staging-"
REJECTS = "rejects"
UNKNOWN = "unknown"
"""The format of a file whose name tells none."""

_log = logging.getLogger(__name__)
_WILDCARDS = frozenset("*?[")
_MIN_SHARD_BYTES = 8 << 20
_MIN_SPAN_BYTES = 1 << 20
_DEFAULT_SPAN_BYTES = 32 << 20
_MAX_SHARDS = 512
# To number a line of a span, all that lies before it is read once more: in the mean half the file, so that the lines of
# n spans cost n / 2 reads of it. Parquet tells its numbers of rows.
_MAX_SPANS = 64
_MAX_NUMBERED_SPANS = {None: 8, "gz": 4, "zst": 4}
# Text shrinks to about a quarter; only the cut into shards rests on it.
_EXPANSION = {None: 1, "gz": 4, "zst": 4, "xz": 5, "bz2": 5}
_PARQUET_EXPANSION = 3


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file to read: where it lies, what it is called in the output, what it is, and what tells it has changed.

    ``name`` is text whatever the bytes of the file's name (see `encodable`); ``url`` is what opens the file.
    ``version`` is the time of its last change or the store's etag; for a part of a dataset that zephyr wrote, the
    digest of the dataset's manifest, which stays the same when the dataset is written again elsewhere.
    """

    url: str
    name: str
    format: str
    compression: str | None
    size: int
    version: str
    span: Span | None = None
    """The part of the file to read; None for all of it."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What a fingerprint knows the file by: a part of a dataset by its name there, any other by where it lies."""
        where = None if self.version.startswith(_BY_MANIFEST) else self.url
        span = () if self.span is None else (astuple(self.span),)
        return where, self.name, self.format, self.compression, self.size, self.version, *span

    @property
    def weight(self) -> int:
        """Estimated bytes once decompressed."""
        if self.span is not None:
            return self.span.num_bytes
        factor = _PARQUET_EXPANSION if self.format == "parquet" else _EXPANSION[self.compression]
        return self.size * factor


def list_files(source: FileSource, *, lenient: bool = False) -> tuple[InputFile, ...]:
    """The files that a source names, sorted, each once; of a zip archive its members, or those that match a pattern.

    Args:
        source: names them.
        lenient: whether empty files alone will do, and a file of no known format is one of the format `UNKNOWN`.

    Raises:
        InputError: an input matches nothing, is of no known format, or all files together are empty.
    """
    found: dict[str, tuple[int, str, str]] = {}
    for given in source.inputs:
        pattern, wanted = split_member(given)
        with listing(pattern):
            root = source.root or _root(pattern)
            matches = remote.find(pattern) if "://" in pattern else _local(pattern)
        if not matches:
            what = "URL" if "://" in pattern else f"path (working directory {Path.cwd()})"
            raise InputError(f"{pattern}: no such file, or nothing matches; check the {what}")
        for url, size, version in matches:
            name = encodable(_relative(url, root, alone=len(source.inputs) == 1))
            if not is_archive(url):
                found.setdefault(url, (size, version, name))
                continue
            for member, member_size, crc in _members(url, wanted, format=source.format):
                entry = (member_size, f"{version}:{crc:08x}", f"{name}/{encodable(member)}")
                found.setdefault(f"{url}{MEMBER_OF}{member}", entry)
    check_whole(Path(url) for url in found if "://" not in url)
    files = []
    for url in sorted(found):
        size, version, name = found[url]
        known = not lenient or source.format is not None or is_known(url)
        format, compression = infer(url, format=source.format) if known else (UNKNOWN, None)
        files.append(InputFile(url=url, name=name, format=format, compression=compression, size=size, version=version))
    if not lenient and not any(f.size for f in files):
        raise InputError(f"{', '.join(source.inputs)}: {len(files)} file(s), all empty; there is nothing to read")
    return tuple(_named_apart(files, source))


def _members(url: str, wanted: str | None, *, format: str | None) -> list[tuple[str, int, int]]:
    """Name, size and checksum of an archive's files: those that match, or all that are data of a known format."""
    found = members(url, wanted)
    if wanted is None:
        found = [m for m in found if not _hidden(tuple(m[0].split("/")))]
        taken = [m for m in found if format is not None or is_known(m[0])]
        if len(taken) < len(found):
            others = len(found) - len(taken)
            _log.warning("%s: %d of %d members are of no known format and not read", url, others, len(found))
        found = taken
    if not found:
        shown = "member of a known format" if wanted is None else f"member that matches {wanted!r}"
        raise InputError(f"{url}: no {shown}; name others as {url}{MEMBER_OF}PATTERN, with format= if need be")
    return found


def shards(
    files: tuple[InputFile, ...], options: ReadOptions, *, shard_bytes: int | None = None
) -> tuple[tuple[InputFile, ...], ...]:
    """Consecutive files, gathered until a shard is full; larger ones in spans.

    Args:
        files: in order.
        options: what will be asked of their reader.
        shard_bytes: uncompressed bytes that make a shard; by default enough for some hundred shards in all.
    """
    total = sum(f.weight for f in files)
    full = shard_bytes or max(_MIN_SHARD_BYTES, total // _MAX_SHARDS)
    cut: list[tuple[InputFile, ...]] = []
    gathered: list[InputFile] = []
    weight = 0
    for piece in (piece for file in files for piece in _pieces(file, options, shard_bytes, full)):
        if gathered and weight + piece.weight > full:
            cut.append(tuple(gathered))
            gathered, weight = [], 0
        gathered.append(piece)
        weight += piece.weight
    if gathered:
        cut.append(tuple(gathered))
    return tuple(cut)


def _pieces(file: InputFile, options: ReadOptions, shard_bytes: int | None, full: int) -> Iterator[InputFile]:
    """The file as it is, or cut into spans."""
    span_bytes = max(full, _MIN_SPAN_BYTES if shard_bytes else _DEFAULT_SPAN_BYTES)
    if file.weight <= span_bytes or options.unit == "file":
        yield file
        return
    if file.format != "parquet":
        numbered = _MAX_NUMBERED_SPANS.get(file.compression, 1)
        most = numbered if options.with_source else None if shard_bytes else _MAX_SPANS
        span_bytes = max(span_bytes, -(-file.weight // most)) if most else span_bytes
    cut = spans(file.url, file.format, file.compression, size=file.size, span_bytes=span_bytes)
    yield from (replace(file, span=span) for span in cut) if cut else (file,)


def check_whole(paths: Iterable[Path]) -> None:
    """Refuses parts of a dataset that a run was killed publishing: some of them would be read for all.

    Raises:
        InputError: a directory holds parts and staged work, and no manifest.
    """
    for directory in sorted({path.parent for path in paths if PART.fullmatch(path.name)}):
        if not (directory / SINK_MANIFEST).exists() and any(directory.glob(f"{STAGING}*")):
            raise InputError(f"{directory}: the run that wrote it did not finish; run it again, it goes on from there")


def is_rejects(name: str) -> bool:
    """Whether a file of a stage, named relative to its directory, holds what was refused."""
    return name.startswith(f"{REJECTS}/")


def check_unchanged(file: InputFile) -> None:
    """Refuses a local file that is no longer the one that was listed: the run would answer for neither.

    Raises:
        InputError: its size or the time of its last change is another, or it is gone.
    """
    if "://" in file.url:
        return
    archive, member = split_member(file.url)
    try:
        stat = Path(archive).stat()
    except OSError as e:
        raise InputError(
            f"{archive}: cannot be read any more ({e.strerror or e}); it was there when the run began"
        ) from e
    size = stat.st_size if member is None else file.size
    version = file.version.rpartition(":")[0] if member is not None else file.version
    if size != file.size or (version.isdecimal() and version != str(stat.st_mtime_ns)):
        raise InputError(f"{archive}: was changed while the run was at work; run again when nobody writes to it")


def encodable(name: str) -> str:
    """A file's name as text that is UTF-8: each byte that is not stands as ``\\xff``, so it can be found."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def matching(pattern: str) -> list[str]:
    """The files that a glob matches, in no order.

    Raises:
        OSError: a directory that the pattern leads to cannot be listed; `glob` would pass it over.
    """
    parts = pattern.split("/")
    for i, part in enumerate(parts):
        if _WILDCARDS & set(part):
            above = "/".join(parts[: i + 1 if part == "**" else i])
            for directory in glob.glob(f"{above}/" if i else "./", recursive=True):  # noqa: PTH207  may be absolute
                os.scandir(directory).close()
    found = [p for p in glob.glob(pattern, recursive=True) if Path(p).is_file()]  # noqa: PTH207
    if "**" not in parts:
        return found
    looping = {directory for directory in {Path(p).parent for p in found} if _is_loop(directory)}
    return [p for p in found if Path(p).parent not in looping]


def _is_loop(directory: Path) -> bool:
    """Whether a link on the way leads back up: all that lies there would be found again, and again."""
    return any(
        p.is_symlink() and p.parent.resolve().is_relative_to(p.resolve()) for p in (directory, *directory.parents)
    )


@contextmanager
def listing(inputs: str) -> Generator[None]:
    """Turns the failure to list a directory, or to look at what lies there, into an `InputError` that names it."""
    try:
        yield
    except OSError as e:
        raise InputError(
            f"{e.filename or inputs}: cannot be listed or read ({e.strerror or e}), and what lies there may be data; "
            "make it readable, or name the inputs without it"
        ) from e


def _local(pattern: str) -> list[tuple[str, int, str]]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        names = list(_walk(path))
    elif path.is_file():
        names = [str(path)]
    else:
        names = matching(str(path)) if _WILDCARDS & set(pattern) else []
    return _known(names)


def _walk(root: Path) -> Iterator[str]:
    """Files under a directory that are data; links to directories are not followed."""
    for directory, below, names in os.walk(root, onerror=_raise):
        relative = Path(directory).relative_to(root).parts
        below[:] = [name for name in below if not _hidden((*relative, name, ""))]
        for name in names:
            if not _hidden((*relative, name)) and Path(directory, name).is_file():
                yield str(Path(directory, name))


def _raise(error: OSError) -> NoReturn:
    raise error


def _known(names: list[str]) -> list[tuple[str, int, str]]:
    """Each file with its size and version."""
    manifests = {directory: _manifest(directory) for directory in {Path(name).parent for name in names}}
    found = []
    for file in map(Path, names):
        stat, (written, digest) = file.stat(), manifests[file.parent]
        # The manifest is written last: a part that is newer was changed since, by someone else.
        vouched = PART.fullmatch(file.name) and stat.st_mtime_ns <= written
        found.append((file.absolute().as_posix(), stat.st_size, digest if vouched else str(stat.st_mtime_ns)))
    return found


def _manifest(directory: Path) -> tuple[int, str]:
    """When the manifest of a dataset was written, and its digest; before all time where there is none."""
    path = directory / SINK_MANIFEST
    if not path.is_file():
        return -1, ""
    return path.stat().st_mtime_ns, f"{_BY_MANIFEST}{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _hidden(parts: tuple[str, ...]) -> bool:
    """Hidden files, manifests, and the rejects of an earlier run are not data."""
    return any(part.startswith((".", "_")) for part in parts) or REJECTS in parts[:-1]


def _root(pattern: str) -> str:
    """The fixed part of a glob, the directory itself, or a file's own directory."""
    head: list[str] = []
    for part in pattern.split("/"):
        if _WILDCARDS & set(part):
            break
        head.append(part)
    fixed = "/".join(head) or ("/" if pattern.startswith("/") else ".")
    if fixed == pattern and "://" not in pattern and not Path(pattern).expanduser().is_dir():
        return str(Path(pattern).expanduser().parent)
    return fixed


def _relative(url: str, root: str, *, alone: bool) -> str:
    base = root if "://" in root else Path(root).expanduser().absolute().as_posix()
    prefix = base.rstrip("/") + "/"
    return url[len(prefix) :] if url.startswith(prefix) else url.rsplit("/", 1)[-1] if alone else url


def _named_apart(files: list[InputFile], source: FileSource) -> list[InputFile]:
    """Two inputs may hold files of the same relative name; then every name is the whole path."""
    if len({f.name for f in files}) == len(files) or source.root is not None:
        return files
    return [replace(f, name=encodable(f.url)) for f in files]
