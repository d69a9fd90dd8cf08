"""What every store keeps: on a disk, in memory, behind fsspec and on an S3 server."""

import hashlib
import threading
from pathlib import Path

import pytest

from marin_core.errors import ConflictError
from marin_core.records import FileEntry
from marin_core.store import Guard, Store


def test_what_is_written_is_read_listed_and_deleted(store: Store) -> None:
    assert store.read("a/b.json") is None
    store.write("a/b.json", b"1")
    store.write("a/b.json", b"2")
    store.write("a/c/d.json", b"3")
    assert store.read("a/b.json") == b"2"
    assert store.names("a") == ["b.json", "c"]
    assert list(store.find("b.json")) == ["a/b.json"]
    assert [store.read(key) for key in ("a/b.json", "none", "a/c/d.json")] == [b"2", None, b"3"]
    store.delete("a/b.json")
    store.delete("a/b.json")
    assert store.read("a/b.json") is None
    assert store.names("nothing") == []


def test_a_swap_replaces_what_was_read_and_nothing_else(store: Store) -> None:
    first = store.swap("a/r", b"1", expected=None)
    assert store.read_versioned("a/r") == (b"1", first)
    second = store.swap("a/r", b"2", expected=first)
    for data, expected in ((b"3", None), (b"3", first), (b"3", "another")):
        with pytest.raises(ConflictError):
            store.swap("a/r", data, expected=expected)
    with pytest.raises(ConflictError):
        store.swap("a/none", b"3", expected=second)
    assert store.read_versioned("a/r") == (b"2", second)
    assert store.read("a/none") is None


def test_a_guard_that_does_not_hold_forbids_the_swap(store: Store) -> None:
    store.write("a/lease", b"mine")
    version = store.swap("a/r", b"1", expected=None, guard=Guard("a/lease", lambda data: data == b"mine"))
    with pytest.raises(ConflictError, match="a/lease forbids"):
        store.swap("a/r", b"2", expected=version, guard=Guard("a/lease", lambda data: data == b"yours"))
    with pytest.raises(ConflictError):
        store.swap("a/r", b"2", expected=version, guard=Guard("a/none", lambda data: data is not None))
    assert store.read("a/r") == b"1"


def test_of_concurrent_writers_each_swap_is_won_by_one(store: Store) -> None:
    store.write("n/count", b"0")
    wins: list[int] = []

    def add(who: int) -> None:
        for _ in range(8):
            while True:
                found = store.read_versioned("n/count")
                assert found is not None
                try:
                    store.swap("n/count", b"%d %d" % (int(found.data.split()[0]) + 1, who), expected=found.version)
                except ConflictError:
                    continue
                wins.append(who)
                break

    threads = [threading.Thread(target=add, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.read("n/count") or b"").split()[0] == b"32"
    assert len(wins) == 32


def test_a_directory_is_uploaded_listed_checked_and_fetched(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    contents = {"a.txt": b"aa", "deep/with space é.bin": b"b" * 100_000, "deep/empty": b""}
    for name, data in contents.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    store.upload(source, "s/1/attempts/1/out")
    store.write("s/1/attempts/10/out/z", b"another")
    assert store.tree("s/1/attempts/1/out") == {name: len(contents[name]) for name in sorted(contents)}
    files = tuple(
        FileEntry(path=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(contents.items())
    )
    assert store.damage("s/1/attempts/1/out", files, deep=True) == []
    target = tmp_path / "fetched"
    store.get_file("s/1/attempts/1/out/deep/with space é.bin", target)
    assert target.read_bytes() == contents["deep/with space é.bin"]
    with pytest.raises(FileNotFoundError):
        store.get_file("s/1/attempts/1/out/none", target)
    store.write("s/1/attempts/1/out/a.txt", b"ab")
    store.delete("s/1/attempts/1/out/deep/empty")
    assert store.damage("s/1/attempts/1/out", files) == ["deep/empty is missing"]
    assert store.damage("s/1/attempts/1/out", files, deep=True) == [
        "a.txt has another sha256 than recorded",
        "deep/empty is missing",
    ]


def test_a_tree_is_removed_whole_and_its_neighbours_stay(store: Store) -> None:
    store.write("a/attempts/1/out/x.txt", b"xx")
    store.write("a/attempts/1/out/deep/y.txt", b"y")
    store.write("ab/z.txt", b"stays")
    assert store.tree("a/attempts/1") == {"out/deep/y.txt": 1, "out/x.txt": 2}
    store.remove_tree("a")
    assert store.tree("a") == {}
    assert store.read("ab/z.txt") == b"stays"


def test_steps_are_found_and_the_files_of_attempts_are_not(store: Store) -> None:
    addresses = ["wiki/work/2", "word/3"]
    for address in addresses:
        for key in ("step.json", "attempts/1/out/step.json"):
            store.write(f"{address}/{key}", b"{}")
    assert list(store.find("step.json")) == [f"{address}/step.json" for address in addresses]
