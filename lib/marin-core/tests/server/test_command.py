"""`marin serve` on the command line: its first line, its end, and its mistakes."""

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

Python = Callable[..., CompletedProcess[str]]


def test_the_first_line_is_the_url_and_it_answers(server: Any) -> None:
    assert server.first_line == f"http://127.0.0.1:{server.port}/\n"
    assert server.get("/").status == 200


def test_with_json_stdout_is_one_document(lab: Any, start: Any) -> None:
    server = start(lab.prefix, "--json")
    assert server.get("/").status == 200
    server.process.send_signal(signal.SIGINT)
    rest, _ = server.process.communicate(timeout=60)
    assert json.loads(server.first_line + rest) == {"url": server.url, "prefix": str(lab.prefix)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_even_while_a_log_is_followed(lab: Any, server: Any, number: signal.Signals) -> None:
    step = lab.node("train", outcome="running")
    lab.attempt(step)
    lab.write(f"{step.address}/attempts/1/log.txt", "a line\n")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stream:
        request = f"GET /logs/1/{step.address} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stream.sendall(request.encode())
        received = b""
        while b"a line" not in received:
            received += stream.recv(4096)
        server.process.send_signal(number)
        _, stderr = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert stderr == ""


def test_a_signal_cuts_a_download_off_without_a_word(lab: Any, server: Any) -> None:
    step = lab.node("train")
    key = f"{step.address}/attempts/1/out/large.bin"
    lab.attempt(step)
    lab.write(key, "x" * 50_000_000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stream:
        stream.sendall(f"GET /download/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200" in stream.recv(64)  # and then reads no further
        server.process.send_signal(signal.SIGTERM)
        _, stderr = server.process.communicate(timeout=60)
    assert (server.process.returncode, stderr) == (0, "")


def test_a_taken_port_is_one_line(lab: Any, python: Python) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = python("-m", "marin_core.cli", "serve", "--prefix", lab.prefix, "--port", str(port))
    assert done.returncode == 2
    assert done.stderr == (
        f"error: port {port} of 127.0.0.1 is taken; give another --port, or --port 0 for any free one\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--port", "70000"), "--port 70000: a port is a number from 0 to 65535"),
        (("--host", "256.1.1.1"), "--host 256.1.1.1: "),
        (("--host", "203.0.113.9", "--port", "0"), "203.0.113.9 is not this machine's"),
        (("--prefix", "nowhere"), "nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(lab: Any, python: Python, flags: tuple[str, ...], said: str) -> None:
    done = python("-m", "marin_core.cli", "serve", "--prefix", lab.prefix, *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(lab: Any, python: Python) -> None:
    script = (
        "import sys; sys.modules['uvicorn'] = None\n"
        f"from marin_core.cli import main; sys.exit(main(['serve', '--prefix', {str(lab.prefix)!r}]))"
    )
    done = python("-c", script)
    assert done.returncode == 2
    assert done.stderr == "error: marin serve needs uvicorn: pip install 'marin-core[serve]'\n"


def test_listening_for_others_is_warned_of(lab: Any, start: Any) -> None:
    server = start(lab.prefix, "--host", "0.0.0.0")
    assert server.get("/", Host=f"0.0.0.0:{server.port}").status == 200
    server.process.send_signal(signal.SIGINT)
    _, stderr = server.process.communicate(timeout=60)
    assert stderr.startswith("warning: whoever reaches")
    assert stderr.count("\n") == 1


def test_another_name_is_answered_when_it_is_allowed(lab: Any, start: Any) -> None:
    server = start(lab.prefix, "--allow-host", "lab.example")
    assert server.get("/", Host="lab.example:80").status == 200
    assert server.get("/", Host="other.example").status == 421


def test_importing_the_command_line_imports_no_server(python: Python, tmp_path: Path) -> None:
    script = "import sys, marin_core.cli; print([m for m in ('starlette', 'uvicorn', 'anyio') if m in sys.modules])"
    assert python("-c", script).stdout == "[]\n"
