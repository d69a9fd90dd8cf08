"""Names: what would not be a directory of its own, anywhere, is refused up front."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import AddressCollisionError, UsageError, adopt, lower, run, step
from marin_core.names import WORD, checked_name


@step
def node(*, n: int = 0) -> int:
    return n


LONG = ["a" * 200, "/".join(["a" * 99] * 6)]
NO_WORDS = ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "-a", "a b", "a\n", "é", "a\\b", "a:b", 1, None, "a\0"]
THE_STORES = ["runs", "Runs/a", "objects/a", "environments", "a/attempts", "a/work/b", "a/step.json", "a/LEASE.json"]
TOO_LONG = ["a" * 201, "aa/" * 300 + "a"]


@pytest.mark.parametrize("name", ["a", "a/b.c", "work", "attempts", "A-1", "lr=1e-3", *LONG])
def test_ordinary_names_pass(name: str) -> None:
    assert checked_name(name, where="name") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "must be words of") for name in NO_WORDS),
        *((name, "is a name of the store's own; choose another") for name in THE_STORES),
        *((name, "characters; at most 200 between slashes and 600 in all") for name in TOO_LONG),
    ],
)
def test_what_would_not_be_a_directory_of_its_own_is_refused(name: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^name={re.escape(repr(name)[:40])}.*{message}"):
        checked_name(name, where="name")


@given(st.text(max_size=8))
def test_a_name_stays_below_the_prefix(name: str) -> None:
    try:
        checked_name(name, where="name")
    except UsageError:
        return
    assert all(WORD.fullmatch(word) and word not in (".", "..") for word in name.split("/"))


@pytest.mark.parametrize("version", ["a/b", "..", "", 1, "attempts", "Work", "step.json", "tombstone.json"])
def test_a_version_is_one_word(version: Any) -> None:
    with pytest.raises(UsageError, match=r"step node: version="):
        node(version=version)


@pytest.mark.parametrize("name", ["work", "attempts/x", "out", "a/out/1", "step", "logs", "a/runs", "lease"])
def test_a_step_called_like_a_part_of_the_store_runs_and_is_found_again(name: str, prefix: str) -> None:
    for handle in (node(name=name), node(name=name, version="runs")):
        assert run(handle, prefix=prefix, launcher="inline").ok
        assert run(handle, prefix=prefix, launcher="inline").executed == ()
        assert handle.path(prefix).is_dir()


def test_addresses_that_one_directory_would_hold_are_refused() -> None:
    with pytest.raises(AddressCollisionError, match="a/v1 and A/v1 differ only in case"):
        lower(node(name="a", version="v1"), node(name="A", version="v1"))
    with pytest.raises(AddressCollisionError, match=r"would lie at a/v1/\w{12}, within the output of a/v1"):
        lower(node(name="a", version="v1"), node(name="a/v1"))


@pytest.mark.parametrize("file", ["runs", "work", "é.txt", ".hidden", "a" * 255, "-", "attempts"])
def test_adopted_data_may_be_called_anything(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("x")
    assert len(lower(adopt(tmp_path / file))) == 1
