"""Stores behind URLs: fsspec's memory, an HTTP server and S3 (moto's server), with faults made to order."""

import hashlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marin_train.configs import Component, DataConfig
from marin_train.data import directories
from marin_train.data.blocks import BLOCK_BYTES, BlockCache, shared_cache
from marin_train.data.directories import RemoteDirectory
from marin_train.data.mixture import Mixture, digest_batch
from marin_train.data.store import TokenStore
from marin_train.errors import ConfigError, TokenStoreError

TOKENS = 5 * BLOCK_BYTES // 4
"""Of the first part: 2.5 blocks of uint16."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path]) -> Path:
    """Three parts, the middle one empty; the first is longer than two blocks, the last one masked oddly."""
    rng = np.random.default_rng(0)
    documents = [[rng.integers(0, 64, TOKENS)], [], [rng.integers(0, 64, 1001), rng.integers(0, 64, 7)]]
    masks = [rng.random(TOKENS) < 0.5, [], rng.random(1008) < 0.5]
    return write_store(tmp_path_factory.mktemp("remote") / "store", documents, masks=masks)


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(tmp_path / "cache")


@pytest.fixture
def memory(local: Path) -> Iterator[str]:
    """The store in fsspec's memory."""
    files = fsspec.filesystem("memory")
    files.put(str(local), "/bucket/store", recursive=True)
    yield "memory://bucket/store"
    files.rm("/bucket", recursive=True)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is asked for in blocks: file, start, stop."""
    asked: list[tuple[str, int, int]] = []
    fetch = RemoteDirectory.fetch

    def spy(self: RemoteDirectory, ranges: list[tuple[str, int, int]]) -> list[bytes]:
        asked.extend(ranges)
        return fetch(self, ranges)

    monkeypatch.setattr(RemoteDirectory, "fetch", spy)
    return asked


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_PAUSE_S", 0.0)


def _rows(store: TokenStore, seed: int = 0, num_rows: int = 40) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.integers(0, store.num_tokens - 100, num_rows), [0, BLOCK_BYTES // 2 - 50, TOKENS - 50]])


def _assert_equal(remote: TokenStore, local: Path) -> None:
    here = TokenStore.open(local)
    starts = _rows(here)
    assert (remote.digest, remote.num_tokens, remote.is_remote) == (here.digest, here.num_tokens, True)
    assert np.array_equal(remote.gather(starts, 100), here.gather(starts, 100))
    assert np.array_equal(remote.gather_mask(starts, 100), here.gather_mask(starts, 100))
    assert np.array_equal(remote.document_borders(), here.document_borders())
    assert remote.tokenizer_file.read_bytes() == here.tokenizer_file.read_bytes()
    remote.verify()


def test_a_store_in_memory_reads_like_the_directory(memory: str, local: Path, cache: BlockCache) -> None:
    _assert_equal(TokenStore.open(memory, cache=cache), local)


def test_a_store_on_s3_reads_like_the_directory(
    local: Path, cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        files = fsspec.filesystem("s3")
        files.mkdir("tokens")
        files.put(str(local), "tokens/store", recursive=True)
        _assert_equal(TokenStore.open("s3://tokens/store", cache=cache), local)
        files.rm("tokens/store/part-00002.mask")
        with pytest.raises(TokenStoreError, match=r"s3://tokens/store/part-00002\.mask: size is absent"):
            TokenStore.open("s3://tokens/store", cache=cache)
    finally:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        server.stop()


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Files with ranges, and without a listing of directories."""

    ranges = True

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content, wanted = path.read_bytes(), self.headers.get("Range")
        if wanted and self.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last) + 1]
        self.send_response(206 if wanted and self.ranges else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _WholeFiles(_Ranges):
    ranges = False


@pytest.fixture
def serve(local: Path) -> Iterator[Callable[[type[_Ranges]], str]]:
    servers = []

    def start(handler: type[_Ranges]) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(local.parent)))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/store"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_store_on_a_web_server_reads_like_the_directory(
    serve: Callable[[type[_Ranges]], str], local: Path, cache: BlockCache
) -> None:
    pytest.importorskip("aiohttp")
    _assert_equal(TokenStore.open(serve(_Ranges), cache=cache), local)


def test_a_server_that_ignores_ranges_is_named(serve: Callable[[type[_Ranges]], str], cache: BlockCache) -> None:
    pytest.importorskip("aiohttp")
    store = TokenStore.open(serve(_WholeFiles), cache=cache)
    with pytest.raises(TokenStoreError, match=r"part-00000\.bin: asked for bytes 0 to 1048576, the server sent"):
        store.read(0, 10)


@pytest.mark.usefixtures("no_waiting")
def test_a_server_that_does_not_answer_is_named_after_the_timeout(
    cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(directories, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/store"
        with pytest.raises(TokenStoreError, match=rf"{url}/manifest\.json cannot be read \(no answer within 0\.2 s"):
            TokenStore.open(url, cache=cache)


def test_only_the_blocks_of_the_rows_are_fetched_and_only_once(
    memory: str, cache: BlockCache, requests: list[tuple[str, int, int]]
) -> None:
    store = TokenStore.open(memory, cache=cache)
    store.gather(np.array([5, 600_000]), 10)
    assert requests == [("part-00000.bin", 0, 2 * BLOCK_BYTES)]
    store.gather(np.array([7, TOKENS - 5]), 10)
    assert requests[1:] == [("part-00000.bin", 2 * BLOCK_BYTES, 2 * TOKENS), ("part-00002.bin", 0, 2016)]
    again = TokenStore.open(memory, cache=BlockCache(cache.directory))
    again.read(0, again.num_tokens)
    assert len(requests) == 3


def test_threads_that_want_the_same_block_fetch_it_once(
    memory: str, cache: BlockCache, requests: list[tuple[str, int, int]]
) -> None:
    store, found = TokenStore.open(memory, cache=cache), []
    barrier = threading.Barrier(8)

    def read() -> None:
        barrier.wait()
        found.append(store.read(0, 100).tolist())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(requests) == 1
    assert found == found[:1] * 8


def _flip(memory: str, name: str, position: int) -> None:
    content = bytearray(MemoryFileSystem.store[f"/bucket/store/{name}"].getvalue())
    content[position] ^= 4
    fsspec.filesystem("memory").pipe_file(f"/bucket/store/{name}", bytes(content))


def test_a_flipped_bit_on_the_way_names_file_and_block(
    memory: str, cache: BlockCache, requests: list[tuple[str, int, int]]
) -> None:
    _flip(memory, "part-00000.bin", BLOCK_BYTES + 77)
    store = TokenStore.open(memory, cache=cache)
    store.read(0, 100)
    with pytest.raises(TokenStoreError, match=r"memory://bucket/store/part-00000\.bin: block 1 \(bytes 1048576 to"):
        store.read(600_000, 600_100)
    assert requests[1:] == [("part-00000.bin", BLOCK_BYTES, 2 * BLOCK_BYTES)] * 2


def test_a_block_that_is_right_the_second_time_is_taken(
    memory: str, local: Path, cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, answers = RemoteDirectory.fetch, []

    def damaged_once(self: RemoteDirectory, ranges: list[tuple[str, int, int]]) -> list[bytes]:
        answers.append(fetch(self, ranges))
        return answers[-1] if len(answers) > 1 else [bytes(len(content)) for content in answers[0]]

    monkeypatch.setattr(RemoteDirectory, "fetch", damaged_once)
    store = TokenStore.open(memory, cache=cache)
    assert np.array_equal(store.read(0, 2000), TokenStore.open(local).read(0, 2000))
    assert len(answers) == 2


def test_a_small_file_that_is_right_the_second_time_is_taken(
    memory: str, local: Path, cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, asked = RemoteDirectory._request, []

    def damaged_once(self: RemoteDirectory, ranges: list[tuple[str, int, int]]) -> list[bytes]:
        answers = request(self, ranges)
        new = [file.endswith((".mask", ".idx")) and stop is None and file not in asked for file, _, stop in ranges]
        asked.extend(file for file, _, _ in ranges)
        return [bytes(len(answer)) if damage else answer for answer, damage in zip(answers, new, strict=True)]

    monkeypatch.setattr(RemoteDirectory, "_request", damaged_once)
    store, here = TokenStore.open(memory, cache=cache), TokenStore.open(local)
    asked.clear()
    assert np.array_equal(store.read_mask(0, store.num_tokens), here.read_mask(0, here.num_tokens))
    assert np.array_equal(store.document_borders(), here.document_borders())
    files = {f"part-0000{part}.{kind}" for part in range(3) for kind in ("idx", "mask")}
    assert set(asked) == files - {"part-00001.mask"}  # of a part without tokens
    assert all(asked.count(file) == 2 for file in asked)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-3], lambda raw: bytes(len(raw)), lambda raw: b""])
def test_a_damaged_cache_is_found_and_replaced(
    memory: str, local: Path, cache: BlockCache, damage: Callable[[bytes], bytes]
) -> None:
    first = TokenStore.open(memory, cache=cache)
    expected = [first.read(0, first.num_tokens), first.read_mask(0, first.num_tokens)]
    for file in cache.directory.glob("*/*"):
        file.write_bytes(damage(file.read_bytes()))
    again = TokenStore.open(memory, cache=cache)
    assert np.array_equal(again.read(0, again.num_tokens), expected[0])
    assert np.array_equal(again.read_mask(0, again.num_tokens), expected[1])


def test_a_damaged_sidecar_is_refused_by_name(memory: str, cache: BlockCache) -> None:
    _flip(memory, "part-00002.mask", 3)
    store = TokenStore.open(memory, cache=cache)
    with pytest.raises(TokenStoreError, match=r"part-00002\.mask: sha256 is"):
        store.read_mask(0, store.num_tokens)


def test_a_remote_store_without_checksums_is_refused(memory: str, cache: BlockCache) -> None:
    manifest = MemoryFileSystem.store["/bucket/store/manifest.json"].getvalue().decode()
    fsspec.filesystem("memory").pipe_file(
        "/bucket/store/manifest.json", manifest.replace("part-00000.crc", "part-00000.other").encode()
    )
    fsspec.filesystem("memory").mv("/bucket/store/part-00000.crc", "/bucket/store/part-00000.other")
    with pytest.raises(TokenStoreError, match=r"part-00000\.crc is not in the manifest"):
        TokenStore.open(memory, cache=cache)


@pytest.mark.usefixtures("no_waiting")
def test_what_cannot_be_opened_is_refused_by_name(cache: BlockCache) -> None:
    with pytest.raises(TokenStoreError, match=r"memory://nowhere is not a token store"):
        TokenStore.open("memory://nowhere", cache=cache)
    with pytest.raises(TokenStoreError, match=r"nosuch://x: fsspec cannot open nosuch://"):
        TokenStore.open("nosuch://x", cache=cache)


def test_the_cache_keeps_its_bound_and_what_was_used_last(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, max_bytes=1600)
    for i in range(40):
        cache.put(f"file/{i:08d}", bytes(100))
        os.utime(cache.path(f"file/{i:08d}"), ns=(i * 10**9,) * 2)  # a clock that ticks between writes
        os.utime(cache.path("file/00000000"), ns=(i * 10**9,) * 2)
    kept = sorted(int(path.name) for path in tmp_path.glob("*/*"))
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 1600
    assert kept == [0, *range(40 - len(kept) + 1, 40)]
    assert len(kept) >= 14


def test_a_cache_smaller_than_a_batch_still_serves_it(memory: str, local: Path, tmp_path: Path) -> None:
    store = TokenStore.open(memory, cache=BlockCache(tmp_path / "cache", max_bytes=1000))
    assert np.array_equal(store.read(0, store.num_tokens), TokenStore.open(local).read(0, store.num_tokens))


def test_a_cache_that_cannot_be_written_is_named(memory: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TokenStoreError, match=r"file/cache, cannot be written .*MARIN_CACHE"):
        TokenStore.open(memory, cache=BlockCache(tmp_path / "file" / "cache"))


def test_the_environment_places_and_bounds_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path))
    monkeypatch.setenv("MARIN_CACHE_GB", "1.5")
    assert (shared_cache().directory, shared_cache().max_bytes) == (tmp_path / "blocks", 1_500_000_000)
    assert shared_cache() is shared_cache()
    monkeypatch.delenv("MARIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert shared_cache().directory == tmp_path / "xdg" / "marin" / "blocks"
    monkeypatch.setenv("MARIN_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="MARIN_CACHE_GB='much'"):
        shared_cache()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_reads_on(memory: str, cache: BlockCache) -> None:
    store = TokenStore.open(memory, cache=cache)
    expected = store.read(0, 100).tolist()
    with store._tokens._pieces._lock:  # as if another thread were reading at the fork
        child = os.fork()
        if not child:
            os._exit(0 if store.read(0, 100).tolist() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_mixture_does_not_know_where_its_stores_lie(
    memory: str, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path))
    mixtures = [
        Mixture.open(
            DataConfig(components=(Component(name="a", path=path),), seq_len=32, seed=3), batch_size=8, vocab_size=64
        )
        for path in (str(local), memory)
    ]
    assert mixtures[0].digest == mixtures[1].digest
    for step in (0, 7, 10**6):
        assert digest_batch(mixtures[0].batch(step)) == digest_batch(mixtures[1].batch(step))
    assert list(tmp_path.glob("blocks/*/*"))


READER = """
import hashlib, sys
from marin_train.data.blocks import BlockCache
from marin_train.data.store import TokenStore
store = TokenStore.open(sys.argv[1], cache=BlockCache(sys.argv[2], max_bytes=int(sys.argv[3])))
print("open", flush=True)
for _ in range(2):
    print(hashlib.sha256(store.read(0, store.num_tokens)).hexdigest(), flush=True)
"""


def test_processes_share_a_cache_though_one_is_killed_and_there_is_no_room(
    serve: Callable[[type[_Ranges]], str], local: Path, cache: BlockCache
) -> None:
    pytest.importorskip("aiohttp")
    store = TokenStore.open(local)
    expected = hashlib.sha256(store.read(0, store.num_tokens)).hexdigest()
    command = [sys.executable, "-c", READER, serve(_Ranges), str(cache.directory)]
    with subprocess.Popen([*command, "100000000"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "open\n"
        killed.send_signal(signal.SIGKILL)
    # One of them removes what the other is about to read.
    readers = [
        subprocess.Popen([*command, room], stdout=subprocess.PIPE, text=True) for room in ("100000000", "1000000")
    ]
    for reader in readers:
        said, _ = reader.communicate(timeout=120)
        assert said.split() == ["open", *[expected] * 2]
