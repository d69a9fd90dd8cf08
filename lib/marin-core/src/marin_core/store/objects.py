"""S3 and GCS as stores, by conditional writes of one object.

A swap is a PUT with ``If-None-Match: *`` where nothing was, else with ``If-Match`` and the ETag that was read (on GCS
``If-Generation-Match``). What the server answers is not yet what happened: a write that was answered with an error may
have taken effect, or take effect later, and its repetition is then answered with "precondition failed". So `swap`
never takes an answer's word. It reads the object again: our own bytes are a success, another version is a conflict,
and the version that was expected means that the same write may be tried again, under the same condition. This rests on
every value being written at most once, since an ETag may be a hash of the content.

Retries of records live in `ObjectStore._tries` alone, with backoff and jitter (Brooker, "Exponential backoff and
jitter", 2015). Output files are large, immutable and written to keys of their own, so obstore may retry their parts as
well, for the second or two that its retries last.

See: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from marin_core.errors import ConflictError, PrefixError, UnsettledError
from marin_core.store import Guard, Status, Store, Versioned

_PATIENCE, _FIRST_PATIENCE = 30.0, 5.0
"""Seconds for which one operation is retried; the second, of a store that has never answered: a wrong endpoint, or no
credentials, look the same as a network that is down."""
_OUTPUT_PATIENCE = 120.0
"""The same of an output file: it may be the work of days, and its lease is renewed meanwhile."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_RECORDS = {"timeout": "10s", "connect_timeout": "5s"}
_OUTPUTS = {"timeout": "1h", "read_timeout": "30s", "connect_timeout": "5s"}
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL")


def connect(scheme: str, place: str, *, extra: str) -> tuple[Any, Any]:
    """The clients of a bucket: one for records, which never retries, and one for output files.

    Args:
        scheme: ``s3``, ``gs`` or ``gcs``.
        place: ``bucket/path``.
        extra: of this package, the one that brings obstore.

    Raises:
        PrefixError: obstore is not installed, or the environment describes no usable client.
    """
    bucket, _, prefix = place.strip("/").partition("/")
    if not bucket:
        raise PrefixError(f"prefix {scheme}://{place}: no bucket; give {scheme}://BUCKET/PATH")
    try:
        from obstore.exceptions import BaseError
        from obstore.store import GCSStore, S3Store
    except ImportError as e:
        raise PrefixError(f"prefix {scheme}://{place} needs obstore; pip install 'marin-core[{extra}]'") from e
    kind = S3Store if scheme == "s3" else GCSStore
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)

    def client(options: dict[str, Any], *, max_retries: int) -> Any:
        options = options | {"allow_http": plain}
        retries = {"max_retries": max_retries}
        return kind(bucket, prefix=prefix or None, client_options=options, retry_config=retries)

    try:
        return client(_RECORDS, max_retries=0), client(_OUTPUTS, max_retries=8)
    except (BaseError, ValueError) as e:
        raise PrefixError(f"prefix {scheme}://{place}: {_first_line(e)}") from e


class ObjectStore(Store):
    """Objects under one prefix of a bucket.

    Args:
        url: the prefix.
        client: an obstore store of that prefix, without retries of its own.
        bulk: the same for output files.
        clock: seconds; together with ``sleep``, what patience is measured by.
        sleep: waits for a number of seconds.
    """

    guards: ClassVar[bool] = False

    def __init__(
        self,
        url: str,
        *,
        client: Any,
        bulk: Any,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, self._client, self._bulk, self._clock, self._sleep = url, client, bulk, clock, sleep
        self._answered = False

    def read_versioned(self, key: str) -> Versioned | None:
        """The bytes at a key, and their ETag (and generation, where there is one) as the version."""
        return self._retried(lambda: self._read(key))

    def _read(self, key: str) -> Versioned | None:
        try:
            got = self._client.get(key)
            return Versioned(bytes(got.bytes()), _version(got.meta))
        except FileNotFoundError:
            return None

    def status(self, key: str) -> Status | None:
        """Size and version, by a HEAD."""

        def head() -> Status | None:
            try:
                found = self._client.head(key)
            except FileNotFoundError:
                return None
            return Status(found["size"], _version(found))

        return self._retried(head)

    def read_range(self, key: str, *, start: int, stop: int) -> bytes:
        """A ranged GET."""
        return self._retried(lambda: bytes(self._client.get_range(key, start=start, end=stop)))

    def swap(
        self, key: str, data: bytes, *, expected: str | None, guard: Guard | None = None, durable: bool = False
    ) -> str:
        """A conditional PUT, repeated until it is known what came of it."""
        if guard is not None and not guard.holds(self.read(guard.key)):
            raise ConflictError(f"{self.child(guard.key)} forbids a change of {key}")
        mode = "create" if expected is None else _condition(expected)
        error: Exception | None = None
        for _ in self._tries():
            try:
                version = _version(self._client.put(key, data, mode=mode))
                self._answered = True
                return version
            except Exception as e:
                error = self._passing(e, conditional=True)
            try:
                found = self._read(key)
                self._answered = True
            except Exception as e:
                error = self._passing(e)
                continue
            if found is not None and found.data == data:
                return found.version
            if (found.version if found else None) != expected:
                raise ConflictError(f"{self.child(key)} is no longer what was read")
        raise UnsettledError(f"prefix {self.url}: {key} could not be written: {_first_line(error)}") from error

    def write(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """An unconditional PUT."""
        self._retried(lambda: self._client.put(key, data, mode="overwrite"))

    def delete(self, key: str) -> None:
        """Removes a key if it is there."""

        self._delete(key)

    def remove_tree(self, key: str) -> None:
        """Removes every file below a key, many with one request."""
        self._delete([f"{key}/{name}" for name in self.tree(key)])

    def _delete(self, keys: str | list[str]) -> None:
        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._client.delete(keys)

        self._retried(delete)

    def names(self, key: str) -> list[str]:
        """Names of the entries directly under a key, sorted; empty when there is none."""
        listed = self._retried(lambda: self._client.list_with_delimiter(key or None))
        paths = [*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])]
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def find(self, name: str) -> Iterator[str]:
        """Keys whose last component is ``name``, without those in attempts."""
        yield from (key for key in self.tree("") if key.endswith(f"/{name}") and "/attempts/" not in key)

    def tree(self, key: str) -> dict[str, int]:
        """Every file below a key: its path relative to the key -> its size in bytes, in order of path."""
        root = f"{key}/" if key else ""
        entries = self._retried(lambda: [e for chunk in self._client.list(key or None, chunk_size=1000) for e in chunk])
        return {e["path"].removeprefix(root): e["size"] for e in sorted(entries, key=lambda e: e["path"])}

    def put_file(self, source: Path, key: str) -> None:
        """Uploads a file, a large one in parts."""
        self._retried(lambda: self._bulk.put(key, source), patience=_OUTPUT_PATIENCE)

    def get_file(self, key: str, target: Path) -> None:
        """Downloads a file, block by block."""

        def get() -> None:
            with target.open("wb") as f:
                for block in self._bulk.get(key).stream():
                    f.write(block)

        self._retried(get)

    def _retried[T](self, operation: Callable[[], T], *, patience: float | None = None) -> T:
        """The result of an operation that may be repeated at will."""
        error: Exception | None = None
        for _ in self._tries(patience):
            try:
                result = operation()
                self._answered = True
                return result
            except Exception as e:
                error = self._passing(e)
        hint = "" if self._answered else "; check the endpoint and the credentials in the environment"
        raise PrefixError(f"prefix {self.url}: no answer from the store: {_first_line(error)}{hint}") from error

    def _tries(self, patience: float | None = None) -> Iterator[None]:
        """Yields once for each try, and waits in between, until patience ends."""
        if patience is None:
            patience = _PATIENCE if self._answered else _FIRST_PATIENCE
        end, pause = self._clock() + patience, _FIRST_PAUSE
        while True:
            yield
            left = end - self._clock()
            if left <= 0:
                return
            self._sleep(min(left, random.uniform(pause / 2, pause)))  # noqa: S311  jitter
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _passing(self, e: Exception, *, conditional: bool = False) -> Exception:
        """The error, if it may pass or speaks of a condition; raises what no repetition can mend."""
        from obstore import exceptions

        if isinstance(e, FileNotFoundError):
            if "NoSuchKey" in str(e) or ("NoSuchBucket" not in str(e) and not conditional):
                raise e
            raise PrefixError(f"prefix {self.url}: no such bucket; create it, or choose another --prefix") from e
        if "NoSuchBucket" in str(e):
            raise PrefixError(f"prefix {self.url}: no such bucket; create it, or choose another --prefix") from e
        if isinstance(e, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            raise PrefixError(f"prefix {self.url}: access denied; check the credentials in the environment") from e
        if isinstance(e, OSError) and e.filename is not None:  # of a local file that is copied, not of the store
            raise e
        if not isinstance(e, exceptions.BaseError | OSError):
            raise e
        return e


def _version(meta: Any) -> str:
    """ETag and generation in one string: what a later `swap` hands back as its condition."""
    return "\n".join(part for part in (meta["e_tag"], meta.get("version")) if part)


def _condition(version: str) -> dict[str, str]:
    e_tag, _, generation = version.partition("\n")
    return {"e_tag": e_tag} | ({"version": generation} if generation else {})


def _first_line(e: BaseException | None) -> str:
    return next(iter(str(e).splitlines()), "") if e is not None else ""
