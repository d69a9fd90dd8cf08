"""Object stores: what a server answers is not yet what happened."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marin_core.errors import ConflictError, PrefixError, UnsettledError
from marin_core.store import open_store

pytest.importorskip("obstore")


@pytest.mark.parametrize(
    "status", ["503 Slow Down", "500 Internal Server Error", "409 Conflict", "412 Precondition Failed"]
)
@pytest.mark.parametrize("applied", [True, False])
def test_a_write_that_is_answered_with_an_error_is_settled_by_reading(
    s3: Any, s3_prefix: str, status: str, applied: bool
) -> None:
    store = open_store(s3_prefix)
    first = store.swap("a/r", b"1", expected=None)
    s3.fail("PUT", "/a/r", status, applied=applied)
    second = store.swap("a/r", b"2", expected=first)
    assert store.read_versioned("a/r") == (b"2", second)
    s3.fail("PUT", "/a/new", status, applied=applied)
    assert store.read_versioned("a/new") is None
    store.swap("a/new", b"3", expected=None)
    assert store.read("a/new") == b"3"
    assert s3.faults == []


def test_a_write_that_lost_is_a_conflict_although_the_answer_was_an_error(s3: Any, s3_prefix: str) -> None:
    store, other = open_store(s3_prefix), open_store(s3_prefix)
    first = store.swap("a/r", b"1", expected=None)
    other.swap("a/r", b"other", expected=first)
    s3.fail("PUT", "/a/r")
    with pytest.raises(ConflictError):
        store.swap("a/r", b"2", expected=first)
    assert store.read("a/r") == b"other"


def test_reads_lists_and_plain_writes_are_tried_again(s3: Any, s3_prefix: str, tmp_path: Path) -> None:
    store = open_store(s3_prefix)
    for method, suffix in (("PUT", "/a/r"), ("GET", "/a/r"), ("GET", s3_prefix.split("/")[2]), ("POST", "")):
        s3.fail(method, suffix)
    store.write("a/r", b"1")
    assert store.read("a/r") == b"1"
    assert store.names("a") == ["r"]
    store.delete("a/r")
    assert store.read("a/r") is None
    assert s3.faults == []


def test_a_store_that_stays_away_ends_in_an_error_that_says_what_is_unknown(s3: Any, s3_prefix: str) -> None:
    store: Any = open_store(s3_prefix)
    version = store.swap("a/r", b"1", expected=None)
    now = [0.0]
    store._clock, store._sleep = lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds)
    s3.fail("PUT", "/a/r", n=100)
    with pytest.raises(UnsettledError, match=r"a/r could not be written: .*503"):
        store.swap("a/r", b"2", expected=version)
    assert 30 <= now[0] < 40
    s3.fail("GET", "/a/r", n=100)
    with pytest.raises(PrefixError, match="no answer from the store"):
        store.read("a/r")


def test_an_output_file_is_tried_for_longer_than_an_outage_lasts(s3: Any, s3_prefix: str, tmp_path: Path) -> None:
    store: Any = open_store(s3_prefix)
    (source := tmp_path / "file").write_text("the work of days")
    store.write("a/r", b"it answers")
    store._bulk, now = store._client, [0.0]  # without the client's own retries, which last a second
    store._clock, store._sleep = lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds)
    s3.fail("PUT", "/a/out/file", n=15)
    store.put_file(source, "a/out/file")
    assert store.read("a/out/file") == b"the work of days"
    assert 30 < now[0] < 120
    assert s3.faults == []


def test_a_bucket_that_is_not_there_is_named(s3: Any) -> None:
    store = open_store("s3://no-such-bucket/lab")
    for attempt in (lambda: store.write("a", b""), lambda: store.swap("a", b"", expected=None)):
        with pytest.raises(PrefixError, match="prefix s3://no-such-bucket/lab: no such bucket; create it"):
            attempt()
    with pytest.raises(PrefixError, match="no bucket; give s3://BUCKET/PATH"):
        open_store("s3://")


def test_without_obstore_the_install_line_is_told() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from marin_core.store import open_store\n"
        "for url in ('s3://b/x', 'gs://b/x'):\n"
        "    try: open_store(url)\n"
        "    except Exception as e: print(type(e).__name__, e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "PrefixError prefix s3://b/x needs obstore; pip install 'marin-core[s3]'",
        "PrefixError prefix gs://b/x needs obstore; pip install 'marin-core[gcs]'",
    ]
