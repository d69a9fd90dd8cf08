"""Web archives: what a record says, and what becomes of one that is damaged."""

import base64
import gzip
import json
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import BadRecordError, TruncatedFileError
from marin_zephyr.formats import warc


def record(
    block: bytes, *, url: str = "http://e.org/", kind: str = "response", mime: str = "", length: int | None = None
):
    head = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2024-05-01T00:00:00Z\r\n"
        f"Content-Type: {mime or 'application/http; msgtype=response'}\r\n"
        f"Content-Length: {len(block) if length is None else length}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def response(body: bytes, *headers: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/html", *headers, "", ""]).encode() + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def rows_of(path: Path, **options) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(Dataset.from_files(path, **options)))


def read(path: Path, data: bytes) -> tuple[list[dict], list[dict]]:
    """The rows, and the rejects; every record is accounted for."""
    path.write_bytes(data)
    dataset = Dataset.from_files(path, on_error="quarantine", with_source=True)
    with Session(backend="inline") as session:
        report = session.run(dataset.write_parquet(path.parent / "out"))
        rows = list(session.rows(Dataset.from_files(path.parent / "out")))
    refused = [json.loads(line) for file in report.rejects for line in file.open()]
    assert report.counters["rows_in"] == len(rows) + len(refused)
    return rows, refused


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.warc"


@pytest.mark.parametrize("gz", [False, True])
def test_a_record_is_a_row(tmp_path, gz):
    records = [
        record(response(b"<p>\xff</p>", "Set-Cookie: a", "Set-Cookie: b")),
        record(b"GET / HTTP/1.1\r\nHost: e.org\r\n\r\n", kind="request", mime="application/http; msgtype=request"),
        record(b"\r\n\r\nany", kind="resource", mime="text/dns", url="<dns:e.org>"),
    ]
    path = tmp_path / ("a.warc.gz" if gz else "a.warc")
    path.write_bytes(b"".join(map(gzip.compress, records) if gz else records))
    rows = rows_of(path, with_source=True)
    headers = [json.loads(row.pop("headers")) for row in rows]
    assert headers[0]["http"] == {"Content-Type": "text/html", "Set-Cookie": "a, b"}
    assert headers[1]["warc"]["WARC-Type"] == "request"
    offsets = [0, len(records[0]), len(records[0]) + len(records[1])]
    date, source = "2024-05-01T00:00:00Z", path.name
    assert [tuple(row.values()) for row in rows] == [
        ("http://e.org/", date, "response", "text/html", 200, b"<p>\xff</p>", source, 1, offsets[0]),
        ("http://e.org/", date, "request", None, None, b"", source, 2, offsets[1]),
        ("dns:e.org", date, "resource", "text/dns", None, b"\r\n\r\nany", source, 3, offsets[2]),
    ]


BODY = b"<html>" + b"a body that is long enough " * 40
ENCODED = {
    "as it is": (BODY, []),
    "chunked": (chunked(BODY, 100), ["Transfer-Encoding: chunked"]),
    "gzip": (gzip.compress(BODY), ["Content-Encoding: gzip"]),
    "gzip in chunks": (chunked(gzip.compress(BODY), 9), ["Content-Encoding: GZIP", "Transfer-Encoding: chunked"]),
    "gzip of two members": (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), ["Content-Encoding: x-gzip"]),
    "deflate": (zlib.compress(BODY), ["Content-Encoding: deflate"]),
    "raw deflate": (zlib.compress(BODY)[2:-4], ["Content-Encoding: deflate"]),
    "zstd": (zstandard.compress(BODY), ["Content-Encoding: zstd"]),
    "twice": (zlib.compress(gzip.compress(BODY)), ["Content-Encoding: gzip, deflate"]),
    "decoded by the crawler": (BODY, ["Content-Encoding: gzip", "Transfer-Encoding: chunked"]),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_the_payload_is_the_body_without_its_encodings(path, kind):
    body, headers = ENCODED[kind]
    path.write_bytes(record(response(body, *headers)))
    assert [row["payload"] for row in rows_of(path)] == [BODY]


BROKEN = {
    "a cut gzip body": (gzip.compress(BODY)[:-9], ["Content-Encoding: gzip"], "payload truncated"),
    "a damaged gzip body": (
        gzip.compress(BODY)[:10] + b"\xff" * 30,
        ["Content-Encoding: gzip"],
        "payload damaged: gzip",
    ),
    "a body without its last chunk": (
        chunked(BODY, 99)[:-5],
        ["Transfer-Encoding: chunked"],
        "payload damaged: its chunks",
    ),
    "a cut chunk": (b"ff\r\nabc", ["Transfer-Encoding: chunked"], "payload damaged: its chunks"),
    "a cut zstd body": (zstandard.compress(BODY)[:-4], ["Content-Encoding: zstd"], "payload truncated"),
    "an encoding we lack": (b"xx", ["Content-Encoding: br"], "payload encoded with br"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_payload_that_cannot_be_decoded_costs_its_record(path, kind):
    body, headers, reason = BROKEN[kind]
    good = record(response(b"x"))
    bad = record(response(body, *headers))
    rows, refused = read(path, good + bad + good)
    assert [row["source_row"] for row in rows] == [1, 3]
    assert [(entry["offset"], base64.b64decode(entry["raw"])) for entry in refused] == [(len(good), bad[:-4])]
    assert reason in refused[0]["reason"]
    with pytest.raises(BadRecordError, match=f"byte offset {len(good)}: payload"):
        rows_of(path)


DAMAGED = {
    "garbage": (b"garbage\nmore\n\n", "does not begin with WARC/"),
    "no length": (record(b"x").replace(b"Content-Length", b"Content-Lengxh"), "gives no length"),
    "too short a length": (record(b"x" * 50, length=20), "no record begins after them"),
    "too long a length": (record(b"x" * 50, length=90), "no record begins after them"),
    "a length beyond the file": (record(b"x", length=10_000), "truncated: the record says 10,000 bytes"),
    "an absurd length": (record(b"x", length=10**15), "more than 1 GiB"),
    "a header without end": (b"WARC/1.1\r\nWARC-Type: response\r\n", "the header does not end"),
    "a header that is no text": (record(b"x", url="\xff").replace(b"\xc3\xbf", b"\xff"), "not UTF-8: byte 0xff"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_is_refused_with_its_place_and_the_others_are_kept(path, kind):
    bad, reason = DAMAGED[kind]
    good = record(response(b"x"))
    rows, refused = read(path, good + bad + good + good)
    assert [row["source_offset"] for row in rows] == [0, len(good + bad), len(good + bad + good)]
    assert [entry["offset"] for entry in refused] == [len(good)]
    assert reason in refused[0]["reason"]


@settings(max_examples=40)
@given(cut=st.integers(1, 600), gz=st.booleans())
def test_a_cut_file_gives_its_whole_records_and_tells_of_the_cut(tmp_path_factory, cut, gz):
    path = tmp_path_factory.mktemp("cut") / ("a.warc.gz" if gz else "a.warc")
    records = [record(response(b"%d" % i * 30)) for i in range(4)]
    data = b"".join(map(gzip.compress, records) if gz else records)
    rows, refused = read(path, data[: len(data) - min(cut, len(data) - 1)])
    assert [row["payload"] for row in rows] == [b"%d" % i * 30 for i in range(len(rows))]
    ends = [sum(map(len, records[: i + 1])) for i in range(4)]
    whole = not gz and any(end - 4 <= len(data) - cut <= end for end in ends)  # cut between two records, or after all
    assert len(refused) == (0 if whole or (gz and path.stat().st_size in _member_ends(records)) else 1)
    if refused:
        assert "truncated" in refused[0]["reason"] or "header does not" in refused[0]["reason"]
        if gz:
            with pytest.raises(TruncatedFileError):
                rows_of(path)


def _member_ends(records: list[bytes]) -> list[int]:
    sizes = [len(gzip.compress(r)) for r in records]
    return [sum(sizes[: i + 1]) for i in range(len(sizes))]


def test_many_records_that_say_too_much_are_each_looked_at_once(path, monkeypatch):
    looked = []
    head = warc._Window.next_head

    def noting(self):
        looked.append(head(self))
        return looked[-1]

    monkeypatch.setattr(warc._Window, "next_head", noting)
    data = record(b"x" * 200, length=10**9 - 10**6) * 3000
    path.write_bytes(data)
    assert rows_of(path, on_error="skip") == []
    assert len(looked) == 3000
    assert sum(looked) == len(data)


def test_columns_can_be_chosen_and_strings_asked_for(path):
    path.write_bytes(record(response(b"x")))
    assert rows_of(path, columns=["status", "gone"]) == [{"status": 200, "gone": None}]
    assert len(rows_of(path, string_columns=["url"])) == 1
    with pytest.raises(BadRecordError, match="'payload' is bytes, not a string"):
        rows_of(path, string_columns=["payload"])
