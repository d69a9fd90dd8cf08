"""No byte from outside the prefix, nothing that blocks, nothing without bound."""

import os
import urllib.request
from pathlib import Path

import fsspec
import pytest

from marin_core.store import open_store
from marin_core.web.files import PrefixFiles, UnreadableFileError


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix with one output, beside a secret."""
    (tmp_path / "secret.txt").write_text("secret")
    out = tmp_path / "prefix" / "step" / "out"
    (out / "deep").mkdir(parents=True)
    (out / "a.txt").write_text("0123456789")
    (out / "deep" / "b.txt").write_text("b")
    return tmp_path / "prefix"


def test_files_below_a_directory_are_found_in_order(prefix: Path) -> None:
    found = PrefixFiles(str(prefix)).find("step/out", max_files=10)
    assert [(f.path, f.size) for f in found] == [("a.txt", 10), ("deep/b.txt", 1)]


def test_the_search_ends_at_the_limit_at_the_same_file_always(prefix: Path) -> None:
    for name in "zyx":
        (prefix / "step" / "out" / name).mkdir()
        (prefix / "step" / "out" / name / "f").touch()
    found = PrefixFiles(str(prefix)).find("step/out", max_files=3)
    assert [f.path for f in found] == ["a.txt", "deep/b.txt", "x/f"]


@pytest.mark.parametrize("path", ["../secret.txt", "step/../../secret.txt", "/etc/hostname", "", "step\\..\\x", "a\0b"])
def test_a_path_that_is_not_inside_is_refused(prefix: Path, path: str) -> None:
    files = PrefixFiles(str(prefix))
    with pytest.raises(UnreadableFileError, match="refused"):
        files.read(path, max_bytes=100)
    with pytest.raises(UnreadableFileError, match="refused"):
        files.find(path, max_files=10)


def test_a_link_that_leads_out_is_refused(prefix: Path) -> None:
    (prefix / "step" / "out" / "link.txt").symlink_to(prefix.parent / "secret.txt")
    with pytest.raises(UnreadableFileError, match="outside the prefix"):
        PrefixFiles(str(prefix)).read("step/out/link.txt", max_bytes=100)


def test_a_linked_directory_that_leads_out_is_neither_walked_nor_read(prefix: Path) -> None:
    (prefix / "step" / "out" / "away").symlink_to(prefix.parent)
    (prefix / "other").symlink_to(prefix.parent)
    files = PrefixFiles(str(prefix))
    assert not any("secret" in f.path for f in files.find("step/out", max_files=100))
    with pytest.raises(UnreadableFileError, match="outside the prefix"):
        files.read("step/out/away/secret.txt", max_bytes=100)
    with pytest.raises(UnreadableFileError, match="outside the prefix"):
        files.find("other", max_files=100)


def test_a_link_within_the_prefix_is_read(prefix: Path) -> None:
    (prefix / "latest.txt").symlink_to("step/out/a.txt")
    assert PrefixFiles(str(prefix)).read("latest.txt", max_bytes=100) == b"0123456789"


def test_a_loop_of_links_is_unreadable(prefix: Path) -> None:
    (prefix / "loop").symlink_to("loop")
    with pytest.raises(UnreadableFileError):
        PrefixFiles(str(prefix)).read("loop", max_bytes=100)


def test_a_prefix_that_is_itself_a_link_is_read(prefix: Path) -> None:
    linked = prefix.parent / "linked"
    linked.symlink_to(prefix)
    assert PrefixFiles(str(linked)).read("step/out/a.txt", max_bytes=100) == b"0123456789"


def test_a_pipe_is_refused_and_does_not_block(prefix: Path) -> None:
    os.mkfifo(prefix / "pipe")
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        PrefixFiles(str(prefix)).read("pipe", max_bytes=100)


def test_a_file_above_the_limit_is_refused_with_its_size(prefix: Path) -> None:
    with pytest.raises(UnreadableFileError, match="10 bytes, and at most 9"):
        PrefixFiles(str(prefix)).read("step/out/a.txt", max_bytes=9)


def test_the_tail_is_the_end_of_the_file(prefix: Path) -> None:
    files = PrefixFiles(str(prefix))
    assert files.tail("step/out/a.txt", max_bytes=4) == b"6789"
    assert files.tail("step/out/a.txt", max_bytes=400) == b"0123456789"


def test_what_is_put_on_the_page_is_charged_to_one_allowance(prefix: Path) -> None:
    files = PrefixFiles(str(prefix), allowance_bytes=15)
    assert files.embed("step/out/a.txt", max_bytes=100) == b"0123456789"
    with pytest.raises(UnreadableFileError):
        files.embed("step/out/a.txt", max_bytes=100)
    with pytest.raises(UnreadableFileError, match="large enough"):
        files.tail("step/out/a.txt", max_bytes=100)
    assert files.tail("step/out/deep/b.txt", max_bytes=100) == b"b"


def test_a_missing_file_or_directory_says_so(prefix: Path) -> None:
    files = PrefixFiles(str(prefix))
    with pytest.raises(UnreadableFileError, match="nothing: not found"):
        files.read("nothing", max_bytes=10)
    with pytest.raises(UnreadableFileError, match="nothing: not found"):
        files.find("nothing", max_files=10)


def test_a_store_that_is_not_a_disk_reads_the_same() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/lab/step/out/a.txt", b"0123456789")
    files = PrefixFiles("memory://lab")
    assert [(f.path, f.size) for f in files.find("step/out", max_files=10)] == [("a.txt", 10)]
    assert files.read("step/out/a.txt", max_bytes=10) == b"0123456789"
    assert files.tail("step/out/a.txt", max_bytes=3) == b"789"
    with pytest.raises(UnreadableFileError, match="at most 5"):
        files.read("step/out/a.txt", max_bytes=5)
    with pytest.raises(UnreadableFileError, match="not found"):
        files.read("step/out/b.txt", max_bytes=5)


# What the server asks besides


def test_names_and_status_of_what_is_there_and_what_is_not(prefix: Path) -> None:
    files = PrefixFiles(str(prefix))
    assert files.names("step/out") == ["a.txt", "deep"]
    assert files.names("step/nowhere") == []
    assert files.names("step/out/a.txt") == []
    before = files.status("step/out/a.txt")
    assert before is not None
    assert before.size == 10
    (prefix / "step/out/a.txt").write_text("another text")
    after = files.status("step/out/a.txt")
    assert after is not None
    assert (after.size, after.version != before.version) == (12, True)
    assert files.status("step/out/nothing") is None
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        files.status("step/out")


def test_names_and_status_of_links_out_are_refused(prefix: Path) -> None:
    (prefix / "away").symlink_to(prefix.parent)
    files = PrefixFiles(str(prefix))
    for ask in (files.names, files.status):
        with pytest.raises(UnreadableFileError, match="outside the prefix"):
            ask("away")


@pytest.mark.parametrize(("start", "stop", "found"), [(0, 4, b"0123"), (8, 99, b"89"), (10, 20, b""), (99, 100, b"")])
def test_a_range_ends_where_the_file_does(prefix: Path, start: int, stop: int, found: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("/ranged/a.txt", b"0123456789")
    for files, path in ((PrefixFiles(str(prefix)), "step/out/a.txt"), (PrefixFiles("memory://ranged"), "a.txt")):
        assert files.range(path, start=start, stop=stop) == found


def test_an_object_store_is_read_through_the_client_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/lab", method="PUT"), timeout=60).close()
        store = open_store("s3://lab/p")
        for key, data in {"runs/r.json": b"{}", "step/out/a.txt": b"0123456789"}.items():
            store.write(key, data)
        files = PrefixFiles("s3://lab/p")
        assert files.names("runs") == ["r.json"]
        assert files.names("nowhere") == []
        assert [(f.path, f.size) for f in files.find("step/out", max_files=9)] == [("a.txt", 10)]
        status = files.status("step/out/a.txt")
        assert status is not None
        assert status.size == 10
        assert files.status("step/out/b.txt") is None
        assert files.range("step/out/a.txt", start=2, stop=5) == b"234"
        assert files.tail("step/out/a.txt", max_bytes=3) == b"789"
        with pytest.raises(UnreadableFileError, match="not a path inside"):
            files.read("../q/secret", max_bytes=9)
    finally:
        server.stop()
