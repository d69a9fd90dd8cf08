"""Files behind URLs, through fsspec: found, opened, and their failures told as ours.

Each protocol needs a client. Those of an extra are asked for by the extra's install line, others by fsspec's own hint.
Clients raise what they like, also what is no `OSError`; here all of it becomes an `InputError` that names the URL.

See: https://filesystem-spec.readthedocs.io/en/latest/api.html#other-known-implementations
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any, cast

from marin_zephyr.errors import InputError, MissingExtraError, ZephyrError

_EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hf"}
_WILDCARDS = frozenset("*?[")
_SHOWN = 300
# What file systems of fsspec call the thing that changes with a file; digests before times.
_VERSIONS = (
    *("ETag", "etag", "e_tag", "md5Hash", "blob_id"),
    *("mtime", "created", "LastModified", "last_modified", "modified"),
)


def find(pattern: str) -> list[tuple[str, int, str]]:
    """The files that a URL names: itself, all below it, or those that match it. Each with its size and version.

    Raises:
        MissingExtraError: the protocol's client is in an extra that is not installed.
        InputError: there is no such protocol or no client, or the store cannot be listed.
    """
    fs, path = file_system(pattern)
    found: dict[str, Any]
    with failures(pattern, "cannot be listed"):
        fs.invalidate_cache()  # of listings that this process has seen earlier
        if _WILDCARDS & set(path):
            found = fs.glob(path, detail=True)
        elif fs.isfile(path):
            found = {path: fs.info(path)}
        else:
            found = fs.find(path, detail=True)
    entries = [(name, info) for name, info in found.items() if info.get("type", "file") == "file"]
    return [(fs.unstrip_protocol(name), int(info["size"]), _version(info)) for name, info in entries]


def open_url(url: str) -> IO[bytes]:
    """A file behind a URL, as it is stored.

    Raises:
        MissingExtraError: as `find`.
        InputError: it cannot be opened.
    """
    fs, path = file_system(url)
    with failures(url, "cannot be read"):
        return cast(IO[bytes], fs.open(path, "rb"))


def is_private(url: str) -> bool:
    """Whether it names something that no other process sees."""
    return url.startswith("memory://")


@contextmanager
def failures(url: str, what: str) -> Generator[None]:
    """Turns whatever a client raises into an `InputError`."""
    try:
        yield
    except ZephyrError:
        raise
    except Exception as e:
        reason = " ".join(str(e).split())[:_SHOWN]
        raise InputError(f"{url}: {what}: {type(e).__name__}: {reason}") from e


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and what it calls the file.

    Raises:
        MissingExtraError: as `find`.
        InputError: there is no such protocol or no client.
    """
    import fsspec

    try:
        return fsspec.url_to_fs(url)
    except ImportError as e:
        extra = _EXTRAS.get(url.partition("://")[0])
        if extra is None:
            raise InputError(f"{url}: cannot be opened: {e}") from e
        raise MissingExtraError(
            f"{url}: cannot be opened without the extra `{extra}`: pip install 'marin-zephyr[{extra}]'"
            f" (in the workspace: uv run --extra {extra} ...)"
        ) from e
    except Exception as e:  # no such protocol, or a URL that its client cannot take apart
        raise InputError(f"{url}: cannot be opened: {e}") from e


def _version(info: dict[str, Any]) -> str:
    for key in _VERSIONS:
        if info.get(key) is not None:
            return str(info[key])
    return ""
