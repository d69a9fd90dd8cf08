"""GCS: the same swaps, as conditions on an object's generation."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marin_core import leases
from marin_core.errors import ConflictError, LeaseLostError, PrefixError
from marin_core.store import open_store

pytest.importorskip("obstore")


class Bucket:
    """The part of the XML API that records need: PUT with ``x-goog-if-generation-match``, and GET.

    See: https://cloud.google.com/storage/docs/request-preconditions
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.generation = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "GET" and path in ("/lab", "/lab/"):
            start("200 OK", [("Content-Type", "application/xml")])
            return [b"<ListBucketResult><Name>lab</Name></ListBucketResult>"]
        generation, data = self.objects.get(path, (0, b""))
        if environ["REQUEST_METHOD"] == "PUT":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            wanted = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
            if wanted is not None and int(wanted) != generation:
                start("412 Precondition Failed", [("Content-Length", "0")])
                return [b""]
            self.generation += 1
            self.objects[path] = (self.generation, body)
            start("200 OK", self._headers(self.generation, b""))
            return [b""]
        if not generation:
            start("404 Not Found", [("Content-Length", "0")])
            return [b""]
        start("200 OK", self._headers(generation, data))
        return [data]

    def _headers(self, generation: int, data: bytes) -> list[tuple[str, str]]:
        return [
            ("ETag", f'"{generation}"'),
            ("x-goog-generation", str(generation)),
            ("Content-Length", str(len(data))),
            ("Last-Modified", "Mon, 30 Nov 2026 12:00:00 GMT"),
        ]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    app = Bucket()
    server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    yield app
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_swap_is_conditional_on_the_generation(bucket: Bucket) -> None:
    store = open_store("gs://lab/runs")
    assert store.read("a/r") is None
    first = store.swap("a/r", b"1", expected=None)
    second = store.swap("a/r", b"2", expected=first)
    assert (store.read_versioned("a/r"), first != second) == ((b"2", second), True)
    for expected in (None, first):
        with pytest.raises(ConflictError):
            store.swap("a/r", b"3", expected=expected)
    assert bucket.objects["/lab/runs/a/r"] == (2, b"2")


def test_leases_are_fenced_on_gcs(bucket: Bucket) -> None:
    store, now = open_store("gs://lab/runs"), [0.0]
    witness = leases.Witness(clock=lambda: now[0])
    old = leases.acquire(store, "a/1", run_id="old", witness=witness)
    assert old is not None
    assert leases.acquire(store, "a/1", run_id="new", witness=witness) is None
    now[0] += leases.TERM + 1
    new = leases.acquire(store, "a/1", run_id="new", witness=witness)
    assert new is not None
    with pytest.raises(LeaseLostError):
        leases.commit(store, "a/1", old, b"{}")
    leases.commit(store, "a/1", new, b'{"attempt": 1}')
    assert store.read("a/1/step.json") == b'{"attempt": 1}'


def test_credentials_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere/account.json")
    with pytest.raises(PrefixError, match=r"prefix gs://lab/runs: .*account\.json"):
        open_store("gs://lab/runs")
