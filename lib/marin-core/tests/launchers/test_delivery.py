"""What a body leaves on another machine, laid down under the prefix and found there by a driver that never knew it."""

import uuid
from pathlib import Path

import pytest

from marin_core.errors import UsageError
from marin_core.launchers import Job
from marin_core.launchers.delivery import deliver, fetch, find
from marin_core.store import open_store

KEY = "count/abc/attempts/3"


def left(directory: Path, prefix: str) -> Job:
    """A job whose body has ended in a directory of this machine."""
    (directory / "out/deep").mkdir(parents=True)
    (directory / "out/a.txt").write_text("whole")
    (directory / "out/deep/b.bin").write_bytes(b"\x00\xff")
    (directory / "log.txt").write_text("said\n")
    (directory / "result.json").write_text('{"ok": true, "value": 1}')
    request, log = directory / "request.pickle", directory / "log.txt"
    return Job(name="count/abc/3", request=str(request), log=str(log), prefix=prefix, key=KEY)


def test_a_remote_prefix_gets_output_log_and_result_and_gives_the_small_ones_back(tmp_path: Path) -> None:
    prefix = f"memory://{uuid.uuid4().hex}"
    delivered = deliver(left(tmp_path / "node", prefix), exit_code=0)
    (tmp_path / "driver").mkdir()
    found = fetch(prefix, KEY, into=tmp_path / "driver")
    assert found == delivered
    assert found is not None
    assert [(f.path, f.size) for f in found.files] == [("a.txt", 5), ("deep/b.bin", 2)]
    assert sorted(p.name for p in (tmp_path / "driver").iterdir()) == ["log.txt", "result.json"]
    assert (tmp_path / "driver/log.txt").read_text() == "said\n"
    assert open_store(prefix).tree(f"{KEY}/out") == {"a.txt": 5, "deep/b.bin": 2}


def test_a_local_prefix_gets_the_exit_code_alone_for_the_rest_is_there(tmp_path: Path) -> None:
    prefix = str(tmp_path / "prefix")
    before = deliver(left(tmp_path / "prefix" / KEY, prefix), exit_code=7)
    assert (before.exit_code, before.uploaded) == (7, False)
    assert fetch(prefix, KEY, into=tmp_path) == before
    assert not (tmp_path / "log.txt").exists()


def test_a_body_that_died_without_a_word_is_delivered_as_such(tmp_path: Path) -> None:
    prefix = f"memory://{uuid.uuid4().hex}"
    job = left(tmp_path / "node", prefix)
    for name in ("result.json", "log.txt"):
        (tmp_path / "node" / name).unlink()
    deliver(job, exit_code=-9)
    found = fetch(prefix, KEY, into=tmp_path)
    assert found is not None
    assert found.exit_code == -9
    assert not (tmp_path / "result.json").exists()


def test_nothing_is_found_before_the_delivery_is_whole(tmp_path: Path) -> None:
    prefix = f"memory://{uuid.uuid4().hex}"
    job = left(tmp_path / "node", prefix)
    (tmp_path / "node/out/link").symlink_to("a.txt")
    with pytest.raises(UsageError, match="output link is a symbolic link"):
        deliver(job, exit_code=0)
    assert find(open_store(prefix), KEY) is None
