"""Inputs on an object store: a real S3 server on loopback, read through fsspec."""

import gzip
import importlib.util
import io
import json
import subprocess
import sys
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


@pytest.mark.parametrize("url", ["nosuch://bucket/a.jsonl", "s3://bucket/a.jsonl"])
def test_a_protocol_without_a_client_is_a_mistake_told_in_one_line(url: str) -> None:
    script = (
        "import sys\n"
        "sys.modules['s3fs'] = None\n"
        "from marin_zephyr import Dataset, Session\n"
        "from marin_zephyr.errors import InputError\n"
        "try:\n"
        f"    Session(backend='inline').count(Dataset.from_files({url!r}))\n"
        "except InputError as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said = {"nosuch": "Protocol not known: nosuch", "s3": "Install s3fs to access S3"}[url.partition(":")[0]]
    assert done.stdout == f"{url}: cannot be opened: {said}\n"
