"""A prefix as a run leaves it, beside a secret; and the real server on it, in a process of its own."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_core.leases import Lease
from marin_core.processes import Process, this_host
from marin_core.records import AttemptRecord, Digests, FileEntry, NodeRecord, RunRecord, StepRecord, to_json

START = 1_780_000_000.0
DIGESTS = Digests(recipe="a" * 64, code="b" * 64, environment="c" * 64, inputs="d" * 64)


@dataclass(frozen=True)
class Lab:
    """Writes what a runner would write."""

    prefix: Path

    def node(self, name: str, **fields: Any) -> NodeRecord:
        """A step that succeeded in two seconds, but for what `fields` says."""
        defaults: dict[str, Any] = {
            "address": f"{name}/0123456789ab", "version": None, "upstream": (), "arguments": {}, "decision": "run",
            "reason": "no committed output", "outcome": "succeeded", "attempt": 1, "started_at": START,
            "ended_at": START + 2, "seconds": 2.0, "digests": DIGESTS, "output_digest": "e" * 64,
        }  # fmt: skip
        return NodeRecord(name=name, **{**defaults, **fields})

    def run(self, run_id: str, *nodes: NodeRecord, **fields: Any) -> RunRecord:
        """A run's record and, for each of its steps that succeeded, what it committed."""
        defaults: dict[str, Any] = {
            "script": "quickstart.py", "argv": ("quickstart.py", "--steps", "300"), "status": "succeeded",
            "targets": tuple(n.address for n in nodes[-1:]), "started_at": START, "ended_at": START + 10,
        }  # fmt: skip
        record = RunRecord(run_id=run_id, nodes=nodes, **{**defaults, **fields})
        self.write(f"runs/{record.run_id}.json", to_json(record))
        for each in record.nodes:
            self.attempt(each, run_id=record.run_id)
            if each.outcome == "succeeded":
                self.commit(each)
        return record

    def attempt(self, step: NodeRecord, *, run_id: str = "r", state: Any = None, **fields: Any) -> None:
        state = state or ("succeeded" if step.outcome in ("succeeded", "reused") else step.outcome)
        record = AttemptRecord(
            address=step.address, attempt=step.attempt or 1, epoch=1, run_id=run_id, state=state, digests=DIGESTS,
            reason=step.reason, started_at=START, ended_at=None if state == "running" else START + 2, host="host",
            user="user", pid=1, log=f"{step.address}/attempts/1/log.txt", failure=step.failure, **fields,
        )  # fmt: skip
        self.write(f"{step.address}/attempts/{record.attempt}/attempt.json", to_json(record))
        held = state == "running"  # by this very process
        lease = Lease(epoch=1, nonce="n", host=this_host(), holder=Process.of(os.getpid()), run_id=run_id, held=held)
        self.write(f"{step.address}/lease.json", json.dumps(asdict(lease)))

    def commit(self, step: NodeRecord, **fields: Any) -> None:
        out = self.prefix / step.address / "attempts" / str(step.attempt) / "out"
        paths = sorted(p for p in out.rglob("*") if p.is_file() and not p.is_symlink())
        files = [FileEntry(path=p.relative_to(out).as_posix(), size=p.stat().st_size, sha256="f" * 64) for p in paths]
        record = StepRecord(
            address=step.address, name=step.name, version=step.version, attempt=step.attempt or 1, digests=DIGESTS,
            recipe={"function": "flow:f", "version": None, "arguments": {"lr": ["float", (0.5).hex()]}},
            upstream=step.upstream, output_digest="e" * 64, value=step.value, committed_at=START, seconds=2.0,
            files=tuple(files), **{"code": {"flow:f": "1" * 64}, **fields},
        )  # fmt: skip
        self.write(f"{step.address}/step.json", to_json(record))

    def output(self, step: NodeRecord, name: str, content: bytes | str) -> str:
        """A file of what the step committed; returns its path under the prefix."""
        return self.write(f"{step.address}/attempts/{step.attempt}/out/{name}", content)

    def write(self, key: str, content: bytes | str) -> str:
        path = self.prefix / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return key


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Server:
    """The server's process, and requests to it whose target goes over the wire exactly as it is written here."""

    process: subprocess.Popen[str]
    url: str
    first_line: str

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def get(self, target: str | bytes, *, method: str = "GET", **headers: str) -> Answer:
        raw = target if isinstance(target, bytes) else target.encode("utf-8")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.connect()
            named = {"Host": f"127.0.0.1:{self.port}", **{n.replace("_", "-"): v for n, v in headers.items()}}
            lines = [method.encode() + b" " + raw + b" HTTP/1.1", *(f"{n}: {v}".encode() for n, v in named.items())]
            connection.sock.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
            response = http.client.HTTPResponse(connection.sock, method=method)
            response.begin()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())


@pytest.fixture(scope="module")
def new_lab(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Lab]:
    """Makes empty prefixes, each beside a secret."""

    def made() -> Lab:
        place = tmp_path_factory.mktemp("lab")
        (place / "secret.txt").write_text("the secret")
        (place / "prefix").mkdir()
        return Lab(place / "prefix")

    return made


@pytest.fixture
def lab(new_lab: Callable[[], Lab]) -> Lab:
    """An empty prefix beside a secret."""
    return new_lab()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers, and ends them after the module's tests."""
    with contextlib.ExitStack() as stack:

        def started(prefix: Path, *flags: str) -> Server:
            command = [sys.executable, "-m", "marin_core.cli", "serve", "--prefix", str(prefix), "--port", "0", *flags]
            environment = os.environ | {"PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            url = json.loads(line)["url"] if line.startswith("{") else line.strip()
            return Server(process, url, line)

        yield started


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def server(lab: Lab, start: Callable[..., Server]) -> Server:
    """The server on `lab`."""
    return start(lab.prefix)
