"""Token stores copied below a URL: whole or not there, taken up after a kill, never over something else."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from marin_zephyr.cli import main
from marin_zephyr.errors import MissingExtraError, OutputError, TokenStoreError
from marin_zephyr.tokens import TokenStore, byte_tokenizer, tokenize
from marin_zephyr.tokens.publishing import publish_store

TEXTS = [f"document {n} ☃ " * (n + 1) for n in range(60)]


@pytest.fixture(scope="module")
def source(tmp_path_factory, write_jsonl) -> Path:
    path = write_jsonl(tmp_path_factory.mktemp("source") / "in.jsonl", TEXTS)
    with path.open("ab") as file:
        file.write(b"no JSON\n")
    return path


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    """Several parts and a refused record."""
    directory = source.parent / "store"
    options = {"tokenizer": byte_tokenizer(), "part_tokens": 5_000, "on_error": "quarantine"}
    tokenize(source, directory, **options)
    assert len(TokenStore.open(directory).parts) > 3
    return directory


@pytest.fixture
def memory() -> Iterator[str]:
    import fsspec

    fs = fsspec.filesystem("memory")
    yield "memory://published/store"
    if fs.exists("/published"):
        fs.rm("/published", recursive=True)


def content(url: str) -> dict[str, bytes]:
    import fsspec

    fs, root = fsspec.url_to_fs(url)
    fs.invalidate_cache()
    return {name.partition("/store/")[2]: fs.cat_file(name) for name in fs.find(root)}


def local_content(store: Path) -> dict[str, bytes]:
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_a_published_store_is_the_same_files_and_reads_the_same(store: Path, memory: str, tmp_path: Path):
    done = publish_store(store, memory)
    assert content(memory) == local_content(store)
    assert done.num_sent == done.num_files == len(local_content(store))
    opened = TokenStore.open(memory, cache_dir=tmp_path / "cache")
    assert [opened.text(n) for n in range(60)] == TEXTS
    assert opened.verify() == ()


def test_publishing_again_sends_nothing(store: Path, memory: str):
    publish_store(store, memory)
    assert publish_store(store, memory).num_sent == 0


def test_an_unfinished_copy_goes_on_where_it_stopped(store: Path, memory: str):
    import fsspec

    fs = fsspec.filesystem("memory")
    sha = hashlib.sha256((store / "manifest.json").read_bytes()).hexdigest()
    fs.pipe_file("/published/store/publishing", sha.encode())
    for name in ("part-00000.bin", "part-00000.idx"):
        fs.pipe_file(f"/published/store/{name}", (store / name).read_bytes())
    fs.pipe_file("/published/store/part-00001.bin", b"cut")
    done = publish_store(store, memory)
    assert done.num_sent == done.num_files - 2
    assert content(memory) == local_content(store)


def test_files_of_another_unfinished_copy_are_sent_again(store: Path, memory: str):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe_file("/published/store/publishing", b"another store")
    fs.pipe_file("/published/store/part-00000.bin", bytes((store / "part-00000.bin").stat().st_size))
    publish_store(store, memory)
    assert content(memory) == local_content(store)


@pytest.mark.parametrize(
    ("name", "told"), [("manifest.json", "holds another token store"), ("notes.txt", "it holds notes.txt")]
)
def test_nothing_else_is_written_over(store: Path, memory: str, name: str, told: str):
    import fsspec

    fsspec.filesystem("memory").pipe_file(f"/published/store/{name}", b"{}")
    with pytest.raises(OutputError, match=told):
        publish_store(store, memory)
    assert content(memory) == {name: b"{}"}


def test_what_is_not_whole_is_not_published(store: Path, memory: str, tmp_path: Path):
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    [refused] = (copy / "rejects").iterdir()
    refused.write_bytes(refused.read_bytes()[:-1])
    name = f"rejects/{refused.name}"
    assert [(damage.file, damage.problem[:14]) for damage in TokenStore.open(copy).verify()] == [
        (name, "sha256 differs")
    ]
    refused.unlink()
    assert [str(damage) for damage in TokenStore.open(copy).verify()] == [f"{name}: is missing"]
    with pytest.raises(TokenStoreError, match=rf"{name} is missing"):
        publish_store(copy, memory)
    assert content(memory) == {}


def test_a_url_that_cannot_be_written_is_one_line(store: Path):
    pytest.importorskip("aiohttp", reason="fsspec knows HTTP by it")
    with pytest.raises(OutputError, match=r"http://127\.0\.0\.1:1/store: cannot be written"):
        publish_store(store, "http://127.0.0.1:1/store")


def test_tokenize_takes_a_url(source: Path, store: Path, memory: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    options = {"tokenizer": byte_tokenizer(), "part_tokens": 5_000, "on_error": "quarantine"}
    report = tokenize(source, memory, **options)
    assert (report.out_dir, report.num_documents, report.num_rejected) == (memory, 60, 1)
    assert content(memory) == local_content(store)
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    again = tokenize(source, memory, work_dir=tmp_path / "work", **options)
    assert again.num_tokens == report.num_tokens
    assert local_content(tmp_path / "work") == local_content(store)
    with pytest.raises(OutputError, match="holds another token store"):
        tokenize(source, memory, **options | {"append_eos": False})


def test_the_command_takes_a_url(tmp_path: Path, memory: str, write_jsonl, monkeypatch, capsys):
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    texts = write_jsonl(tmp_path / "plain.jsonl", TEXTS)
    assert main(["tokenize", str(texts), "--tokenizer", "bytes", "--out", memory]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == memory
    assert main(["inspect", memory, "--verify"]) == 0
    assert "damage      none" in capsys.readouterr().out


def test_a_missing_extra_is_told_before_the_work(source: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    loaded = sys.modules["fsspec.registry"]._registry  # of clients that another test has used
    for protocol in ("s3", "s3a"):
        monkeypatch.delitem(loaded, protocol, raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-zephyr\[s3\]'"):
        tokenize(source, "s3://lab-without-client/store", tokenizer="no such file")


def test_a_killed_upload_shows_no_store_and_is_taken_up(store: Path, tmp_path: Path, monkeypatch):
    """On a real S3 server, by a real process."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    if importlib.util.find_spec("s3fs") is None:
        pytest.skip("s3fs is not installed")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        client = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "ENDPOINT_URL": address}
        for name, value in {**client, "DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        s3 = boto3.client("s3", endpoint_url=address)
        s3.create_bucket(Bucket="lab")
        code = "import sys; from marin_zephyr.tokens.publishing import publish_store; publish_store(*sys.argv[1:])"
        upload = subprocess.Popen([sys.executable, "-c", code, str(store), "s3://lab/store"], env=dict(os.environ))
        deadline = time.monotonic() + 60
        while s3.list_objects_v2(Bucket="lab", Prefix="store/")["KeyCount"] < 3 and upload.poll() is None:
            assert time.monotonic() < deadline
        upload.kill()
        upload.wait()
        if upload.returncode:  # the machine was too fast otherwise
            with pytest.raises(TokenStoreError, match="has no manifest"):
                TokenStore.open("s3://lab/store", cache_dir=tmp_path / "cache")
        done = publish_store(store, "s3://lab/store")
        assert done.num_sent < done.num_files
        opened = TokenStore.open("s3://lab/store", cache_dir=tmp_path / "cache")
        assert [opened.text(n) for n in range(60)] == TEXTS
        assert opened.verify() == ()
    finally:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        server.stop()
