"""Stores to test against: local, memory, and a real S3 server on loopback (moto's), whose faults a test can order."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from marin_core.store import Store, open_store

_numbers = itertools.count()


@dataclass
class Fault:
    """What befalls the next request of a method on a key that ends so."""

    method: str
    suffix: str
    status: str = "503 Slow Down"
    applied: bool = False
    """Whether the server does what it was asked before it answers with the status."""


@dataclass
class S3Server:
    """Requests are served one at a time, so that a conditional write is as atomic as S3's own."""

    app: Any
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    endpoint: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self, method: str, suffix: str, status: str = "503 Slow Down", *, applied: bool = False, n: int = 1
    ) -> None:
        """Orders faults for the next ``n`` requests of a method on a key that ends so."""
        self.faults += [Fault(method, suffix, status, applied) for _ in range(n)]

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self.lock:
            self.requests.append((method, path))
            fault = next((f for f in self.faults if f.method == method and path.endswith(f.suffix)), None)
            if fault is not None:
                self.faults.remove(fault)
                if fault.applied:
                    b"".join(self.app(environ, lambda *_: None))
                else:
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start(fault.status, [("Content-Length", "0")])
                return [b""]
            answer: list[Any] = []
            body = b"".join(self.app(environ, lambda *given: answer.append(given)))
        start(*answer[0])
        return [body]


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server")
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    app = S3Server(server.DomainDispatcherApplication(server.create_backend_app))
    http = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    app.endpoint = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield app
    http.shutdown()
    thread.join()


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server; clients of this process and its children find it by the environment."""
    _s3_server.faults.clear()
    _s3_server.requests.clear()
    for name, value in {
        "AWS_ENDPOINT_URL": _s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return _s3_server


@pytest.fixture
def s3_prefix(s3: S3Server) -> str:
    """A prefix in a bucket of its own."""
    import boto3

    bucket = f"bucket-{next(_numbers)}"
    boto3.client("s3", endpoint_url=s3.endpoint).create_bucket(Bucket=bucket)
    return f"s3://{bucket}/lab"


@pytest.fixture(params=["local", "memory", "filesystem", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind, empty."""
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_prefix"))
    if request.param == "filesystem":
        return open_store(f"local://{tmp_path}/p", unsafe_single_writer=True)
    return open_store(str(tmp_path / "p") if request.param == "local" else f"memory://{tmp_path.name}")
