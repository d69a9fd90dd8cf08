"""Runners in lockstep, over a store that answers as badly as stores do, on a clock of its own.

Each runner is a thread that stops before every request it makes; the test lets one of them go on at a time and says
what becomes of the request. So every interleaving of requests can happen, and each one again from its seed.

- `Bucket`        objects whose ETag is a hash of the content, the worst that a server may choose; it checks what lands.
- `Client`        speaks to it as an obstore client does.
- `GuardedStore`  the memory store, one request a swap.
- `Runner`        the thread.
"""

import hashlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from marin_core.errors import PrefixError
from marin_core.records import Digests, StepRecord, committed, to_json
from marin_core.store import Guard, Versioned
from marin_core.store.filesystems import FilesystemStore

ADDRESS = "s/1"
POINTER = f"{ADDRESS}/step.json"
FAILURES = ("refused", "503", "409", "412", "lost answer", "late")
"""What may become of a write: not sent; answered with an error and not done; done, and answered with an error; answered
with an error, and done later."""


class Crashed(BaseException):
    """The process is gone, in the middle of what it was doing."""


class ViolationError(AssertionError):
    """A promise was broken."""


def output_key(nonce: str) -> str:
    return f"{ADDRESS}/attempts/{nonce}/out"


def pointer(epoch: int, nonce: str) -> bytes:
    """A commit, whose output lies under its nonce."""
    record = StepRecord(
        address=ADDRESS,
        name="s",
        version=None,
        attempt=epoch,
        digests=Digests(recipe="", code="", environment="", inputs=""),
        recipe={},
        code={},
        upstream=(),
        files=(),
        output_digest=nonce,
        value=None,
        committed_at=0.0,
        seconds=0.0,
        epoch=epoch,
    )
    return to_json(record).encode()


class Ledger:
    """What has been promised to whom, and what has landed."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, str]] = []
        self.begun = 0
        """The highest epoch whose holder was told that it holds the step."""
        self.rejected: set[str] = set()
        """Nonces whose holder was told that its commit is void."""

    def landed(self, data: bytes, read: Callable[[str], bytes | None]) -> None:
        """Checks the pointer that has just become visible."""
        record = committed(data, where=POINTER)
        if record is None:
            if self.commits:
                raise ViolationError("a fence took the place of a committed output")
            return
        commit = (record.epoch, record.output_digest)
        if self.commits and commit == self.commits[-1]:
            return
        if any(epoch >= record.epoch for epoch, _ in self.commits):
            raise ViolationError(f"epoch {record.epoch} committed after {self.commits}")
        if record.epoch < self.begun:
            raise ViolationError(f"epoch {record.epoch} committed after epoch {self.begun} had begun")
        if record.output_digest in self.rejected:
            raise ViolationError(f"epoch {record.epoch} committed after its holder was told that it could not")
        if read(output_key(record.output_digest)) != b"whole":
            raise ViolationError(f"epoch {record.epoch} committed a partial output")
        self.commits.append(commit)


class Bucket:
    """Objects by key. ``late`` are writes that were answered with an error and have yet to arrive."""

    def __init__(self, ledger: Ledger) -> None:
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes, Any]] = []
        self.ledger = ledger

    def put(self, key: str, data: bytes, mode: Any) -> bool:
        """Writes if the condition holds."""
        now = self.objects.get(key)
        wanted = now is None if mode == "create" else mode == "overwrite" or (now and etag(now) == mode["e_tag"])
        if wanted:
            self.objects[key] = data
            if key == POINTER:
                self.ledger.landed(data, self.objects.get)
        return bool(wanted)

    def land(self, index: int) -> None:
        self.put(*self.late.pop(index))


def etag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Got:
    def __init__(self, data: bytes) -> None:
        self.data, self.meta = data, {"e_tag": etag(data), "version": None}

    def bytes(self) -> bytes:
        return self.data


class Client:
    """The part of an obstore client that records need."""

    def __init__(self, bucket: Bucket, arrive: Callable[[str], str]) -> None:
        self.bucket, self.arrive = bucket, arrive

    def get(self, key: str) -> Got:
        from obstore.exceptions import GenericError

        if self.arrive(f"get {key}") != "ok":
            raise GenericError("503")
        if key not in self.bucket.objects:
            raise FileNotFoundError("NoSuchKey")
        return Got(self.bucket.objects[key])

    def put(self, key: str, data: bytes, mode: Any) -> dict[str, Any]:
        from obstore.exceptions import GenericError, PreconditionError

        outcome = self.arrive(f"put {key}")
        if outcome == "late":
            self.bucket.late.append((key, data, mode))
        elif outcome in ("ok", "lost answer") and not self.bucket.put(key, data, mode):
            raise PreconditionError("412")
        if outcome == "412":
            raise PreconditionError("412")
        if outcome != "ok":
            raise GenericError(outcome)
        return {"e_tag": etag(data), "version": None}

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        return {"common_prefixes": [], "objects": []}


class GuardedStore(FilesystemStore):
    """A memory store that stops before each request."""

    def __init__(self, url: str, ledger: Ledger, arrive: Callable[[str], str]) -> None:
        super().__init__(url)
        self.ledger, self.arrive, self._inside = ledger, arrive, False

    def read_versioned(self, key: str) -> Versioned | None:
        if not self._inside and self.arrive(f"get {key}") != "ok":
            raise PrefixError("503")
        return super().read_versioned(key)

    def swap(
        self, key: str, data: bytes, *, expected: str | None, guard: Guard | None = None, durable: bool = False
    ) -> str:
        outcome = self.arrive(f"put {key}")
        if outcome not in ("ok", "lost answer"):
            raise PrefixError(outcome)
        self._inside = True
        try:
            version = super().swap(key, data, expected=expected, guard=guard)
            if key == POINTER:
                self.ledger.landed(data, self.read)
        finally:
            self._inside = False
        if outcome != "ok":
            raise PrefixError(outcome)
        return version


class Runner:
    """A thread that does one thing at a time, and each request of it only when it is told to go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at: str | None = None
        """The request before which it stands; None when it has nothing to do."""
        self.result: Any = None
        self._tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stops: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def start(self, task: Callable[[], Any]) -> None:
        """Gives it something to do; returns when it stands before its first request."""
        self._tasks.put(task)
        self.at = self._stops.get()

    def go_on(self, outcome: str) -> None:
        """Lets it make the request; returns when it stands before the next, or has finished."""
        self._outcomes.put(outcome)
        self.at = self._stops.get()

    def arrive(self, request: str) -> str:
        """Called by its store, in its own thread."""
        self._stops.put(request)
        outcome = self._outcomes.get()
        if outcome == "crash":
            raise Crashed
        return outcome

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self.result = task()
            except BaseException as e:
                self.result = e
            self._stops.put(None)

    def close(self) -> None:
        if self.at is not None:
            self.go_on("crash")
        self._tasks.put(None)
        self._thread.join()
