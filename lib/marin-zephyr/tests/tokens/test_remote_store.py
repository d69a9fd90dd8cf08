"""A token store behind a URL: real servers, real ranges, and a cache that processes share."""

import hashlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.cli import main
from marin_zephyr.errors import InputError, OutputError, TokenStoreError, UsageError
from marin_zephyr.tokens import TokenStore, byte_tokenizer, tokenize
from marin_zephyr.tokens.blocks import BlockCache, default_bytes, default_directory

BLOCK = 1 << 20


class RangeServer(ThreadingHTTPServer):
    """Serves the files of a directory, in ranges; keeps what was asked for, and can spoil answers."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[tuple[str, str | None]] = []
        self.to_spoil = 0
        super().__init__(("127.0.0.1", 0), _Ranges)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self, suffix: str = ".bin") -> list[str | None]:
        return [span for name, span in self.asked if name.endswith(suffix)]


class _Ranges(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.directory / self.path.strip("/")
        content = path.read_bytes() if path.is_file() else None
        span = self.headers.get("Range")
        if with_body:
            self.server.asked.append((path.name, span))
        size = len(content or b"")
        if content is not None and (found := re.fullmatch(r"bytes=(\d+)-(\d+)", span or "")):
            content = content[int(found[1]) : int(found[2]) + 1]
            if path.suffix == ".bin" and self.server.to_spoil:
                self.server.to_spoil -= 1
                content = bytes([content[0] ^ 1]) + content[1:]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {found[1]}-{found[2]}/{size}")
        else:
            self.send_response(404 if content is None else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if with_body:
            self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def store(tmp_path_factory, write_jsonl) -> Path:
    """A part of three blocks of ids, and a small one."""
    directory = tmp_path_factory.mktemp("store")
    texts = [f"{n:05d} lorem ipsum ☃\n" * (2_600 + n) for n in range(28)]
    tokenize(
        write_jsonl(directory / "in.jsonl", texts), directory / "out", tokenizer=byte_tokenizer(), part_tokens=1_400_000
    )
    assert len(TokenStore.open(directory / "out").parts) == 2
    return directory / "out"


@pytest.fixture
def server(store: Path, tmp_path: Path) -> Iterator[RangeServer]:
    """A server of a copy of the store."""
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP through it")
    with RangeServer(Path(shutil.copytree(store, tmp_path / "served"))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def in_memory(store: Path) -> Iterator[str]:
    """The store in fsspec's memory."""
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.put(f"{store}/", "/lab/store/", recursive=True)
    yield "memory://lab/store"
    fs.rm("/lab", recursive=True)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@settings(max_examples=40)
@given(data=st.data())
def test_a_remote_store_reads_as_the_local_one(in_memory: str, shared_cache: Path, store: Path, data: st.DataObject):
    local, remote = TokenStore.open(store), TokenStore.open(in_memory, cache_dir=shared_cache)
    stop = data.draw(st.integers(0, local.num_tokens))
    start = data.draw(st.integers(max(0, stop - 700_000), stop))
    np.testing.assert_array_equal(remote.tokens(start, stop), local.tokens(start, stop))
    document = data.draw(st.integers(0, local.num_documents - 1))
    np.testing.assert_array_equal(remote.document(document), local.document(document))
    assert remote.source(document) == local.source(document)
    if start < stop:
        assert remote.locate(start) == local.locate(start)


def test_texts_come_from_the_tokenizer_behind_the_url(in_memory: str, shared_cache: Path, store: Path):
    assert TokenStore.open(in_memory, cache_dir=shared_cache).text(27) == TokenStore.open(store).text(27)


def test_only_the_blocks_that_are_asked_for_are_fetched_and_only_once(server: RangeServer, tmp_path: Path):
    for _ in range(2):  # as two processes would, one after the other
        opened = TokenStore.open(server.url, cache_dir=tmp_path / "cache")
        opened.tokens(BLOCK // 2 + 5, BLOCK // 2 + 10)
    assert server.ranges() == [f"bytes={BLOCK}-{2 * BLOCK - 1}"]
    assert server.ranges(".crc") == ["bytes=0-11"]
    assert server.ranges(".bytes") == []


def test_neighbouring_blocks_are_one_request(server: RangeServer, tmp_path: Path, store: Path):
    opened = TokenStore.open(server.url, cache_dir=tmp_path / "cache")
    opened.tokens(0, 1_300_000)
    size = (store / "part-00000.bin").stat().st_size
    assert server.ranges() == [f"bytes=0-{size - 1}"]


def test_a_block_that_arrives_damaged_is_fetched_again(server: RangeServer, tmp_path: Path, store: Path, caplog):
    server.to_spoil = 1
    opened = TokenStore.open(server.url, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(opened.tokens(0, 1_300_000), TokenStore.open(store).tokens(0, 1_300_000))
    assert "part-00000.bin: block 0 arrived damaged; it is fetched again" in caplog.text
    assert server.ranges()[1:] == [f"bytes=0-{BLOCK - 1}"]


def test_a_block_that_arrives_damaged_twice_is_named(server: RangeServer, tmp_path: Path):
    server.to_spoil = 2
    opened = TokenStore.open(server.url, cache_dir=tmp_path / "cache")
    with pytest.raises(TokenStoreError, match=rf"{server.url}/part-00000\.bin: block 2 .* arrived damaged twice"):
        opened.tokens(BLOCK + 5, BLOCK + 10)


@pytest.mark.parametrize("suffix", ["idx", "crc", "sources"])
def test_a_small_file_that_is_damaged_there_is_named(server: RangeServer, tmp_path: Path, suffix: str):
    path = server.directory / f"part-00000.{suffix}"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    opened = TokenStore.open(server.url, cache_dir=tmp_path / "cache")
    with pytest.raises(TokenStoreError, match=rf"part-00000\.{suffix} arrived damaged twice"):
        opened.locate(0) if suffix != "crc" else opened.tokens(0, 1)


def test_what_was_damaged_in_the_cache_is_fetched_again(server: RangeServer, tmp_path: Path, store: Path):
    expected = TokenStore.open(store)
    cache = tmp_path / "cache"
    TokenStore.open(server.url, cache_dir=cache).text(0)
    for path in filter(Path.is_file, cache.rglob("*")):
        path.write_bytes(path.read_bytes()[:-1])
    assert TokenStore.open(server.url, cache_dir=cache).text(0) == expected.text(0)


def test_a_store_that_was_written_anew_is_read_anew(server: RangeServer, tmp_path: Path, write_jsonl):
    cache = tmp_path / "cache"
    TokenStore.open(server.url, cache_dir=cache).text(0)
    other = write_jsonl(tmp_path / "other.jsonl", ["another text"])
    shutil.rmtree(server.directory)
    tokenize(other, server.directory, tokenizer=byte_tokenizer())
    assert TokenStore.open(server.url, cache_dir=cache).text(0) == "another text"


def test_verify_reads_what_lies_there_and_not_the_cache(server: RangeServer, tmp_path: Path):
    cache = tmp_path / "cache"
    opened = TokenStore.open(server.url, cache_dir=cache)
    opened.tokens(0, opened.num_tokens)
    assert opened.verify() == ()
    path = server.directory / "part-00000.bin"
    content = bytearray(path.read_bytes())
    content[BLOCK] ^= 1
    path.write_bytes(content)
    assert [(d.file, d.block) for d in opened.verify()] == [("part-00000.bin", 1)]


def test_the_cache_is_bounded_and_forgets_what_was_not_used_for_longest(tmp_path: Path):
    cache = BlockCache(tmp_path, max_bytes=5 * 1000)
    for n in range(12):
        with cache.adding("d" * 64, str(n)) as hidden:
            hidden.write_bytes(bytes(1000))
        assert cache.find("d" * 64, "0") is not None  # and so it is used
        assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 5 * 1000
    assert cache.find("d" * 64, "11") is not None
    assert cache.find("d" * 64, "1") is None


def test_a_file_larger_than_the_bound_is_read_all_the_same(in_memory: str, tmp_path: Path, store: Path):
    opened = TokenStore.open(in_memory, cache_dir=tmp_path, cache_bytes=100)
    assert opened.text(3) == TokenStore.open(store).text(3)
    assert opened.locate(5) == TokenStore.open(store).locate(5)


READER = """
import hashlib, sys
from marin_zephyr.tokens import TokenStore
opened = TokenStore.open(sys.argv[1], cache_dir=sys.argv[2], cache_bytes=2 << 20)
print(hashlib.sha256(b"".join(opened.document(d).tobytes() for d in range(opened.num_documents))).hexdigest())
"""


def test_processes_share_a_cache_that_is_too_small_for_them(server: RangeServer, tmp_path: Path, store: Path):
    command = [sys.executable, "-c", READER, server.url, str(tmp_path / "cache")]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {reader.communicate()[0].strip() for reader in readers}
    whole = b"".join(path.read_bytes() for path in sorted(store.glob("*.bin")))
    assert found == {hashlib.sha256(whole).hexdigest()}


def test_a_cache_that_cannot_be_written_is_told(in_memory: str, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot keep what was downloaded .*set MARIN_CACHE"):
        TokenStore.open(in_memory, cache_dir=tmp_path / "file").text(0)


def test_the_environment_says_where_the_cache_is_and_how_large(monkeypatch, tmp_path: Path):
    monkeypatch.delenv("MARIN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "marin" / "token-blocks"
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "ours"))
    assert default_directory() == tmp_path / "ours" / "token-blocks"
    monkeypatch.setenv("MARIN_CACHE_GB", "0.5")
    assert default_bytes() == 500_000_000
    monkeypatch.setenv("MARIN_CACHE_GB", "-1")
    with pytest.raises(UsageError, match="MARIN_CACHE_GB is '-1'"):
        default_bytes()


# ------------------------------------------------------------------------------------------------------- the refusals


def test_a_server_that_knows_no_ranges_is_refused(store: Path, tmp_path: Path):
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP through it")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(store))) as plain:
        threading.Thread(target=plain.serve_forever, args=(0.02,)).start()
        opened = TokenStore.open(f"http://127.0.0.1:{plain.server_port}/", cache_dir=tmp_path / "cache")
        try:
            with pytest.raises(TokenStoreError, match="The server knows no ranges"):
                opened.tokens(BLOCK, BLOCK + 1)
        finally:
            plain.shutdown()


@pytest.mark.parametrize("suffix", ["bin", "idx", "bytes", "crc", "sources"])
@pytest.mark.parametrize("is_listed", [True, False], ids=["memory", "http"])
def test_a_short_or_missing_file_is_refused_by_name(request, store: Path, tmp_path: Path, suffix: str, is_listed: bool):
    import fsspec

    server = None if is_listed else request.getfixturevalue("server")
    for content, told in ((b"short", "has 5 bytes"), (None, "is missing")):
        if server is not None:
            url, path = server.url, server.directory / f"part-00001.{suffix}"
            path.unlink() if content is None else path.write_bytes(content)
        else:
            url, fs = "memory://damaged", fsspec.filesystem("memory")
            fs.put(f"{store}/", "/damaged/", recursive=True)
            fs.rm(f"/damaged/part-00001.{suffix}")
            if content is not None:
                fs.pipe_file(f"/damaged/part-00001.{suffix}", content)
        with pytest.raises(TokenStoreError, match=rf"{url}/part-00001\.{suffix} {told}"):
            TokenStore.open(url, cache_dir=tmp_path)


def test_a_server_that_is_not_there_is_one_line_and_exit_code_2(capsys, server: RangeServer):
    address = server.url
    assert main(["inspect", f"{address}/none"]) == 2
    assert f"{address}/none is no token store: it has no manifest.json" in capsys.readouterr().err
    with pytest.raises(InputError, match="cannot be read: "):
        TokenStore.open("http://127.0.0.1:1/store")
