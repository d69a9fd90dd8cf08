"""The store: whole files or none, conditional writes, honest manifests."""

import contextlib
import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from marin_core.errors import ConflictError, PrefixError, UsageError
from marin_core.handles import Input, Out
from marin_core.store import Store, manifest, open_store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "p") if request.param == "local" else f"memory://{tmp_path.name}")


def test_what_is_written_is_read_and_listed(store: Store) -> None:
    assert store.read("a/b.json") is None
    store.write("a/b.json", b"1")
    store.write("a/b.json", b"2")
    assert store.read("a/b.json") == b"2"
    assert store.names("a") == ["b.json"]
    assert list(store.find("b.json")) == ["a/b.json"]
    store.delete("a/b.json")
    assert store.read("a/b.json") is None
    assert store.names("nothing") == []


def test_swapping_writers_lose_no_update(store: Store) -> None:
    store.write("n", b"0")

    def add() -> None:
        for _ in range(50):
            while True:
                found = store.read_versioned("n")
                assert found is not None
                with contextlib.suppress(ConflictError):
                    store.swap("n", str(int(found.data) + 1).encode(), expected=found.version)
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("n") == b"200"


def test_readers_see_whole_records_while_one_is_rewritten(tmp_path: Path) -> None:
    store, over, seen = open_store(str(tmp_path)), threading.Event(), set()
    store.write("r", b"a" * 100_000)

    def rewrite() -> None:
        for i in range(200):
            store.write("r", (b"a", b"b")[i % 2] * 100_000, durable=False)
        over.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while True:
        last = over.is_set()
        data = store.read("r") or b""
        seen.add((len(data), len(set(data))))
        if last:
            break
    writer.join()
    assert seen == {(100_000, 1)}


def test_no_space_left_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    real = os.open

    def on_a_full_disk(path: Any, *args: Any, **kwargs: Any) -> Any:
        return real("/dev/full" if str(path).endswith(".tmp") else path, *args, **kwargs)

    monkeypatch.setattr(os, "open", on_a_full_disk)
    with pytest.raises(PrefixError, match="no space left on the device"):
        store.write("r", b"data")
    assert store.read("r") is None


def test_an_unwritable_prefix_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PrefixError, match="Not a directory"):
        open_store(str(tmp_path / "file" / "below")).check_writable()


def test_an_unwritable_prefix_is_named_and_no_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    store = open_store(str(tmp_path))
    monkeypatch.setattr(Path, "touch", denied)
    with pytest.raises(PrefixError) as told:
        store.check_writable()
    assert str(told.value) == f"prefix {tmp_path}: Permission denied; choose another --prefix or MARIN_PREFIX"
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(PrefixError, match=r"Permission denied \(\S*/a/step\.json\); choose"):
        store.write("a/step.json", b"")


def test_an_entry_of_the_wrong_kind_is_named_to_be_deleted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "a/1/step.json").mkdir(parents=True)
    (tmp_path / "a/1/attempts").touch()
    for attempt in (lambda: store.read("a/1/step.json"), lambda: store.write("a/1/step.json", b"")):
        with pytest.raises(PrefixError, match=r"a/1/step\.json is a directory where a file belongs; delete that entry"):
            attempt()
    with pytest.raises(PrefixError, match=r"a/1/attempts is a file where a directory belongs; delete that entry"):
        store.write("a/1/attempts/1/attempt.json", b"")


@pytest.mark.parametrize("url", ["nope://x", "http://host/x", "abfs://container/x"])
def test_a_prefix_without_conditional_writes_is_refused_and_the_flag_named(url: str) -> None:
    with pytest.raises(PrefixError, match=rf"{url}: .* s3:// or gs://, .* --unsafe-single-writer") as told:
        open_store(url)
    assert told.value.exit_code == 2


def test_a_manifest_has_every_file_with_size_and_sha256(tmp_path: Path) -> None:
    contents = {"b.txt": b"b" * 3_000_000, "a/x.bin": b"", "a/y.bin": os.urandom(10)}
    for name, data in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    files = manifest(tmp_path)
    assert [(f.path, f.size, f.sha256) for f in files] == [
        (name, len(contents[name]), hashlib.sha256(contents[name]).hexdigest()) for name in sorted(contents)
    ]
    store = open_store(str(tmp_path.parent))
    assert store.damage(tmp_path.name, files, deep=True) == []
    (tmp_path / "a/y.bin").unlink()  # a committed file is read-only
    (tmp_path / "a/y.bin").write_bytes(os.urandom(10))
    (tmp_path / "b.txt").unlink()
    assert store.damage(tmp_path.name, files) == ["b.txt is missing"]
    assert store.damage(tmp_path.name, files, deep=True) == [
        "a/y.bin has another sha256 than recorded",
        "b.txt is missing",
    ]


def test_a_link_or_a_pipe_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="link is a symbolic link"):
        manifest(tmp_path)
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is neither a file nor a directory"):
        manifest(tmp_path)


def test_steps_of_any_name_are_found_and_the_files_of_attempts_are_not(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    addresses = ["attempts/1", "wiki/work/2", "work/3"]
    for address in addresses:
        for key in ("step.json", "attempts/1/out/step.json", "work/0/step.json"):
            store.write(f"{address}/{key}", b"{}")
    assert list(store.find("step.json")) == [f"{address}/step.json" for address in addresses]


def test_handles_stay_in_their_directory_and_inputs_are_read_only(tmp_path: Path) -> None:
    for name in ("../x", "/etc/passwd", "a/../../x"):
        with pytest.raises(UsageError, match="leaves the directory"):
            Out(str(tmp_path)).open(name, "w")
    with pytest.raises(UsageError, match="read-only"):
        Input(str(tmp_path)).open("x", "w")


def test_the_home_of_nobody_is_no_prefix() -> None:
    with pytest.raises(PrefixError, match="prefix ~no-such-user/x: "):
        open_store("~no-such-user/x")
