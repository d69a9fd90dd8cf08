"""Inputs on an object store: a real S3 server on loopback, read through fsspec."""

import gzip
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from marin_zephyr import Dataset, Session, col
from marin_zephyr.errors import InputError, TruncatedFileError, UsageError

ROWS = [{"id": i, "text": f"row {i} ☃"} for i in range(50)]


def put(server: str, key: str, body: bytes) -> None:
    import boto3

    boto3.client("s3", endpoint_url=server).put_object(Bucket="lab", Key=key, Body=body)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server with the bucket ``lab``, and whichever client of it fsspec can use here."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("boto3")
    import fsspec

    if importlib.util.find_spec("s3fs") is None:
        pytest.importorskip("obstore.fsspec", reason="neither s3fs nor obstore is installed").register("s3")
    s3 = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    s3.start()
    address = "http://{}:{}".format(*s3.get_host_and_port())
    client = {
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "secret",
        "DEFAULT_REGION": "us-east-1",
        "ENDPOINT_URL": address,
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in client.items():
            environment.setenv(f"AWS_{name}", value)
        environment.setenv("AWS_REGION", "us-east-1")
        environment.setenv("AWS_ALLOW_HTTP", "true")
        import boto3

        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="lab")
        lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS]
        put(address, "raw/a.jsonl.gz", gzip.compress(b"".join(lines[:30])))
        put(address, "raw/b.jsonl.gz", gzip.compress(b"".join(lines[30:])))
        frame = io.BytesIO()
        pl.DataFrame(ROWS).write_parquet(frame, row_group_size=20)
        put(address, "tables/a.parquet", frame.getvalue())
        put(address, "cut/a.jsonl.gz", gzip.compress(b"".join(lines))[:-20])
        yield address
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    s3.stop()


@pytest.mark.parametrize(
    "inputs", ["s3://lab/raw/*.jsonl.gz", "s3://lab/raw", ["s3://lab/raw/b.jsonl.gz", "s3://lab/raw/a.jsonl.gz"]]
)
def test_compressed_lines_are_read_in_the_order_of_their_names(server: str, inputs: str | list[str]) -> None:
    with Session(backend="inline") as session:
        dataset = Dataset.from_files(inputs, with_source=True)
        rows = list(session.rows(dataset))
        assert [{"id": row["id"], "text": row["text"]} for row in rows] == ROWS
        assert (rows[0]["source_row"], rows[30]["source_row"]) == (1, 1)
        assert session.count(dataset.filter(col("id") >= 40)) == 10


def test_parquet_is_read_with_the_columns_that_are_asked_for(server: str) -> None:
    with Session(backend="inline") as session:
        dataset = Dataset.from_files("s3://lab/tables/a.parquet", columns=["id"])
        assert list(session.rows(dataset)) == [{"id": row["id"]} for row in ROWS]


def test_a_rerun_runs_nothing_until_the_object_has_changed(server: str, tmp_path: Path) -> None:
    put(server, "changing/a.jsonl", b'{"id": 1}\n')
    dataset = Dataset.from_files("s3://lab/changing/*").write_jsonl(tmp_path / "out")
    with Session(backend="inline") as session:
        assert [session.run(dataset).executed for _ in range(2)] == [1, 0]
        put(server, "changing/a.jsonl", b'{"id": 2}\n')
        assert session.run(dataset).executed == 1
    assert json.loads((tmp_path / "out" / "part-00000.jsonl").read_text()) == {"id": 2}


def test_a_truncated_object_is_noticed(server: str) -> None:
    with Session(backend="inline") as session, pytest.raises(TruncatedFileError, match=r"s3://lab/cut/a\.jsonl\.gz"):
        session.count(Dataset.from_files("s3://lab/cut/a.jsonl.gz"))


def test_what_is_not_there_is_named(server: str) -> None:
    with Session(backend="inline") as session, pytest.raises(InputError, match="s3://lab/none: no such file"):
        session.count(Dataset.from_files("s3://lab/none"))


@pytest.mark.parametrize("write", ["write_parquet", "write_jsonl", "write_arrow"])
def test_a_remote_sink_is_refused_before_anything_runs(write: str) -> None:
    with pytest.raises(UsageError, match=r"write to s3://lab/out: only local directories"):
        getattr(Dataset.from_rows([{"n": 1}]), write)("s3://lab/out")


INSTALL = (
    "cannot be opened without the extra `{0}`: pip install 'marin-zephyr[{0}]' "
    "(in the workspace: uv run --extra {0} ...)"
)


@pytest.mark.parametrize(
    ("url", "client", "error", "said"),
    [
        ("nosuch://bucket/a.jsonl", "s3fs", "InputError", "cannot be opened: Protocol not known: nosuch"),
        ("s3://bucket/a.jsonl", "s3fs", "MissingExtraError", INSTALL.format("s3")),
        ("s3://bucket/a.zip::b.jsonl", "s3fs", "MissingExtraError", INSTALL.format("s3")),
        ("hf://datasets/a/b/c.jsonl", "huggingface_hub", "MissingExtraError", INSTALL.format("hf")),
        (
            "gs://bucket/*.jsonl",
            "gcsfs",
            "InputError",
            "cannot be opened: Please install gcsfs to access Google Storage",
        ),
    ],
)
def test_a_protocol_without_a_client_is_a_mistake_told_in_one_line(
    url: str, client: str, error: str, said: str
) -> None:
    script = (
        "import sys\n"
        f"sys.modules[{client!r}] = None\n"
        "from marin_zephyr import Dataset, Session\n"
        "from marin_zephyr.errors import ZephyrError\n"
        "try:\n"
        f"    Session(backend='inline').count(Dataset.from_files({url!r}))\n"
        "except ZephyrError as e:\n"
        "    print(type(e).__name__, e)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{error} {url.partition('::')[0]}: {said}\n"


@pytest.fixture
def memory() -> Iterator[str]:
    import fsspec

    fs = fsspec.filesystem("memory")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("in/c.txt", "four\nfive\n")
        opened.writestr("notes.rst", "six\nseven")
    files = {"a.txt": b"one\ntwo\n", "b.txt.gz": gzip.compress(b"three\n"), "z.zip": archive.getvalue()}
    fs.pipe({f"/lab/{name}": data for name, data in files.items()})
    yield "memory://lab"
    fs.rm("/lab", recursive=True)


def texts(inputs: str, **options) -> list[str]:
    with Session(backend="inline") as session:
        return [row["text"] for row in session.rows(Dataset.from_files(inputs, **options))]


def test_text_is_read_from_urls_and_from_members_of_archives_there(memory: str, tmp_path: Path) -> None:
    assert texts(f"{memory}/*.txt*") == ["one", "two", "three"]
    assert texts(memory) == ["one", "two", "three", "four", "five"]
    assert texts(f"{memory}/z.zip::in/c.txt") == ["four", "five"]
    assert texts(f"{memory}/z.zip::*.rst", format="text", unit="file") == ["six\nseven"]
    (tmp_path / "a.txt").write_text("here\n")
    assert texts(f"file://{tmp_path}/a.txt") == ["here"]


def test_what_is_in_the_memory_of_this_process_is_refused_to_workers(memory: str) -> None:
    dataset = Dataset.from_files(f"{memory}/z.zip::in/c.txt")
    with Session(workers=1) as session, pytest.raises(UsageError, match=r"no worker sees it; use backend=\"inline\""):
        session.count(dataset)


@pytest.mark.parametrize("operation", ["isfile", "open"])
def test_whatever_a_client_raises_names_the_url(memory: str, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("the line\nis dead")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem." + operation, fail)
    with pytest.raises(InputError, match=r"memory://+lab/a\.txt: cannot be .*the line is dead"):
        texts(f"{memory}/a.txt")
