"""Adopted data: known by its content, read once, and never taken for what it was before."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_core import UsageError, adopt, adoption, lower, run

LONG_AGO = 1_000_000_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "b.txt").write_text("bb")
    return root


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content is read, as they are read."""
    names: list[str] = []
    real = adoption._sha256

    def noted(base: Path, name: str) -> str:
        names.append(name)
        return real(base, name)

    monkeypatch.setattr(adoption, "_sha256", noted)
    return names


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets so much time pass that all files have settled."""
    real = time.time_ns
    return lambda: monkeypatch.setattr(time, "time_ns", lambda: real() + 2 * adoption._SETTLED_NS)


def address(*args: Any, **kwargs: Any) -> str:
    return lower(adopt(*args, **kwargs)).targets[0]


def test_settled_files_are_read_once(data: Path, read: list[str], later: Callable[[], None]) -> None:
    later()
    first = address(data)
    assert sorted(read) == ["a.txt", "sub/b.txt"]
    assert address(data) == first
    assert address(data, files=["sub/b.txt"]) != first
    assert len(read) == 2


def test_a_file_that_has_just_changed_is_read_again(data: Path, read: list[str], later: Callable[[], None]) -> None:
    first = address(data)
    assert address(data) == first
    assert len(read) == 4
    later()
    address(data)
    address(data)
    assert len(read) == 6


def test_a_change_is_seen_although_size_and_modification_time_are_as_before(
    data: Path, read: list[str], later: Callable[[], None]
) -> None:
    for path in (data / "a.txt", data / "sub" / "b.txt"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    later()
    first = address(data)
    replacement = data / "new"
    replacement.write_text("A")
    os.utime(replacement, ns=(LONG_AGO, LONG_AGO))
    replacement.replace(data / "a.txt")
    assert address(data) != first
    assert read[2:] == ["a.txt"]


def test_a_file_that_changes_while_it_is_read_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(base: Path, name: str) -> str:
        with (base / name).open("a") as f:
            f.write("more")
        return "0" * 64

    monkeypatch.setattr(adoption, "_sha256", growing)
    with pytest.raises(UsageError, match=r"a\.txt changed while it was read"):
        adopt(data)


def test_a_forgotten_or_damaged_memory_changes_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[], None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    later()
    first = address(data)
    memory = next((tmp_path / "cache" / "marin" / "adopted").iterdir())
    memory.write_text(memory.read_text()[:40])
    assert address(data) == first
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "a.txt"))
    assert address(data) == first


def test_one_file_is_data_too(data: Path) -> None:
    assert address(data / "a.txt") == address(data, files=["a.txt"], name="a.txt")


@pytest.mark.parametrize(
    ("files", "message"),
    [(["none.txt"], "none.txt: No such file"), (["sub"], "sub is not a file"), (["../x"], "leaves the directory")],
)
def test_a_named_file_that_is_not_there_is_told(data: Path, files: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        adopt(data, files=files)


def test_links_are_followed_as_a_body_would_follow_them(data: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "c.txt").write_text("c")
    before = address(data)
    (data / "more").symlink_to(elsewhere)
    (data / "again").symlink_to(elsewhere / "c.txt")
    linked = address(data)
    (elsewhere / "c.txt").write_text("d")
    assert len({before, linked, address(data)}) == 3
    copy = tmp_path / "copy" / "data"
    shutil.copytree(data, copy)
    assert not any(p.is_symlink() for p in copy.rglob("*"))
    assert address(copy) == address(data)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.symlink_to("nowhere"), "a link that leads to no file"),
        (lambda path: path.symlink_to(path.parent), "a link that leads back up"),
        (lambda path: path.symlink_to(path.parent.parent), "a link that leads back up"),
        (os.mkfifo, "neither a file nor a directory"),
    ],
)
def test_what_is_no_file_is_refused_unless_the_files_are_named(data: Path, make: Any, what: str) -> None:
    make(data / "sub" / "odd")
    with pytest.raises(UsageError, match=f"sub/odd is {what}; name the files that matter"):
        adopt(data)
    assert address(data, files=["a.txt"])


def test_two_links_to_each_other_are_told(data: Path) -> None:
    (data / "sub" / "x").symlink_to(data / "sub" / "y")
    (data / "sub" / "y").symlink_to(data / "sub" / "x")
    with pytest.raises(UsageError, match=r"adopt\(.*sub/[xy]"):
        adopt(data)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["a.txt", "sub"])
def test_what_cannot_be_read_is_named(data: Path, name: str) -> None:
    (data / name).chmod(0)
    try:
        with pytest.raises(UsageError, match=f"{name}: Permission denied"):
            adopt(data)
    finally:
        (data / name).chmod(0o700)


def test_moved_data_keeps_its_identity_and_changed_data_does_not(data: Path, tmp_path: Path) -> None:
    before = address(data)
    moved = data.rename(tmp_path / "moved")
    assert address(moved, name="data") == before
    assert address(moved).removeprefix("moved/") == before.removeprefix("data/")
    (moved / "a.txt").write_text("b")
    assert address(moved, name="data") != before


WRITER = """
    from marin_core import Input, step
    @step
    def through_open(source: Input): source.open("a.txt", "w")
    @step
    def through_the_path(source: Input): (source / "a.txt").write_text("changed")
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [("through_open", "an input is read-only"), ("through_the_path", "a.txt changed while it was read")],
)
def test_a_body_that_writes_to_adopted_data_commits_nothing(
    module: Any, data: Path, prefix: str, how: str, said: str
) -> None:
    report = run(getattr(module(WRITER), how)(adopt(data)), prefix=prefix)
    failure = report.record.nodes[-1].failure
    assert failure is not None
    assert said in failure.message
    assert report.executed == ()
