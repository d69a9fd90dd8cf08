"""Corpora for the tests of text preparation, and what to look at in the directories they leave."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

type Documents = Sequence[tuple[str, str]]  # (source, text)


@pytest.fixture(scope="session")
def write_to() -> Callable[..., Path]:
    """Writes documents as a corpus directory, so many a shard, and returns the directory."""

    def write(directory: Path, documents: Documents, *, per_shard: int = 100) -> Path:
        directory.mkdir()
        for shard, begin in enumerate(range(0, max(len(documents), 1), per_shard)):
            part = documents[begin : begin + per_shard]
            columns = {
                "id": pa.array([xxhash.xxh3_128_hexdigest(text.encode()) for _, text in part], pa.string()),
                "text": pa.array([text for _, text in part], pa.string()),
                "source": pa.array([source for source, _ in part], pa.string()),
                "num_bytes": pa.array([len(text.encode()) for _, text in part], pa.int64()),
            }
            pq.write_table(pa.table(columns), directory / f"part-{shard:05d}.parquet")
        return directory

    return write


@pytest.fixture
def write_corpus(tmp_path: Path, write_to: Callable[..., Path]) -> Callable[..., Path]:
    """`write_to` a directory of this name under the test's own."""
    return lambda name, documents, **options: write_to(tmp_path / name, documents, **options)


@pytest.fixture(scope="session")
def read_rows() -> Callable[[Path], list[dict]]:
    """All rows of a directory of parquet shards, in order."""

    def read(directory: Path) -> list[dict]:
        return [row for path in sorted(directory.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]

    return read


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """The sha256 of every parquet file under a directory, by relative name."""
    return lambda directory: {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*.parquet"))
    }
