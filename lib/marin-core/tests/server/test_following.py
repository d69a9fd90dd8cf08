"""A log that follows: every line once, in order, whatever the writing and the reading were cut into."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.server.following import look

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


class Stream:
    """Server-sent events as a browser reads them."""

    def __init__(self, server: Any, target: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self._connection.request("GET", target, headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.getheader("content-type", "").startswith("text/event-stream")
        self.lines, self.partial, self.last_id, self.has_ended = "", "", "", False
        self._events = self._read()

    def _read(self) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        for raw in self._response:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if not name and event:
                yield event
                event = {}
            elif name:
                event[name] = value

    def until(self, condition: Any) -> None:
        """Reads on until the condition holds; the connection's timeout ends what never comes true."""
        while not condition(self):
            event = next(self._events)
            self.last_id = event.get("id", self.last_id)
            if event["event"] == "lines":
                self.lines, self.partial = self.lines + json.loads(event["data"]), ""
            elif event["event"] == "partial":
                self.partial = json.loads(event["data"])
            else:
                self.has_ended = True

    def close(self) -> None:
        self._connection.close()


def test_a_growing_log_is_followed_to_its_end(lab: Any, server: Any) -> None:
    step = lab.node("train", outcome="running")
    lab.attempt(step)
    log = lab.prefix / step.address / "attempts/1/log.txt"
    stream = Stream(server, f"/logs/1/{step.address}")
    with log.open("w") as f:
        for i in range(3):
            f.write(f"\x1b[32mstep {i}\x1b[0m\n")
            f.flush()
            stream.until(lambda s, i=i: f"step {i}\n" in s.lines)
        f.write("10%\r50")
        f.flush()
        stream.until(lambda s: s.partial == "50")
        f.write("%\r100%\n")
        f.flush()
        stream.until(lambda s: "100%\n" in s.lines)
        f.write("no newline at the end")
    lab.attempt(step, state="succeeded")
    stream.until(lambda s: s.has_ended)
    assert stream.lines == "step 0\nstep 1\nstep 2\n100%\n"
    assert stream.partial == "no newline at the end"


def test_a_broken_connection_goes_on_where_it_was(lab: Any, server: Any) -> None:
    step = lab.node("train", outcome="running")
    lab.attempt(step)
    key = f"{step.address}/attempts/1/log.txt"
    lab.write(key, "one\ntwo\nthr")
    first = Stream(server, f"/logs/1/{step.address}")
    first.until(lambda s: s.partial == "thr")
    first.close()
    lab.write(key, "one\ntwo\nthree\nfour\n")
    second = Stream(server, f"/logs/1/{step.address}?offset=0", **{"Last-Event-ID": first.last_id})
    second.until(lambda s: "four\n" in s.lines)
    assert first.lines + second.lines == "one\ntwo\nthree\nfour\n"


def test_a_log_larger_than_a_block_arrives_whole(lab: Any, server: Any) -> None:
    step = lab.node("train")
    lab.run("r", step)
    text = "".join(f"line {i} {'x' * (i % 200)}\n" for i in range(5000)) + "y" * 150_000 + "\nend\n"
    lab.write(f"{step.address}/attempts/1/log.txt", text)
    stream = Stream(server, f"/logs/1/{step.address}")
    stream.until(lambda s: s.has_ended)
    assert stream.lines.replace("\n", "") == text.replace("\n", "")


def test_an_attempt_without_a_log_ends_at_once(lab: Any, server: Any) -> None:
    lab.run("r", lab.node("train"))
    stream = Stream(server, "/logs/1/train/0123456789ab")
    stream.until(lambda s: s.has_ended)
    assert stream.lines == ""


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\n", "é\n".encode()]), max_size=12))
def test_whole_lines_come_once_and_in_order_however_the_log_grows(pieces: list[bytes]) -> None:
    written, offset, shown = b"", 0, b""
    lines, partial = "", ""
    for piece in [*pieces, b""]:
        written += piece
        found = look(written[offset:], offset=offset, shown=shown)
        offset, shown = found.offset, found.partial
        for event in found.events.split("\n\n")[:-1]:
            told = dict(line.split(": ", 1) for line in event.split("\n"))
            if told["event"] == "lines":
                lines, partial = lines + json.loads(told["data"]), ""
            else:
                partial = json.loads(told["data"])
    whole = look(written, offset=0, shown=b"")
    assert offset == written.rfind(b"\n") + 1
    assert written[offset:] == shown
    expected = [e.split("data: ", 1)[1] for e in whole.events.split("\n\n")[:-1] if e.startswith("event: lines")]
    assert lines == "".join(map(json.loads, expected))
    assert bool(partial) <= bool(shown)
