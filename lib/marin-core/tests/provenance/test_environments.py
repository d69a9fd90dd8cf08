"""Environments: the digest moves with Python's version and the lock file, and what moved it is named."""

import importlib.metadata
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import graph, lower, run
from marin_core.provenance import environments
from marin_core.provenance.environments import changes, installed_packages, listed, locked_packages, package_changes
from marin_core.records import EnvironmentRecord
from marin_core.store import open_store

SOURCE = """
from marin_core import Out, step

@step
def text(out: Out) -> int:
    return (out / "a").write_text("x")
"""


def lock_text(**versions: str) -> str:
    packages = (f'[[package]]\nname = "{n}"\nversion = "{v}"\n' for n, v in versions.items())
    return "version = 1\n" + "".join(packages)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what this process has digested, as a new process would."""

    def forget() -> None:
        environments._environment_digest.cache_clear()
        environments.record_of.cache_clear()
        graph._environment.cache_clear()

    forget()
    return forget


def test_installed_packages_are_those_that_importlib_metadata_finds() -> None:
    def name(distribution: Any) -> str:
        return re.sub(r"[-_.]+", "-", distribution.name).lower()

    expected: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        expected.setdefault(name(distribution), distribution.version)
    assert installed_packages() == dict(sorted(expected.items()))
    assert "marin-core" in expected


def test_old_egg_metadata_and_the_first_of_two_on_the_path_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, entry in (("one", "twice-1.0.dist-info"), ("two", "twice-2.0.dist-info"), ("two", "old.egg-info")):
        (tmp_path / place / entry).mkdir(parents=True)
    (tmp_path / "two/old.egg-info/PKG-INFO").write_text("Metadata-Version: 1.0\nName: Old_One\nVersion: 0.5\n")
    monkeypatch.setattr("sys.path", [str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "absent")])
    assert installed_packages.__wrapped__() == {"twice": "1.0", "old-one": "0.5"}


def test_of_a_lock_s_versions_for_several_platforms_the_installed_one_counts(tmp_path: Path) -> None:
    pytest_version = importlib.metadata.version("pytest")
    lock = tmp_path / "uv.lock"
    lock.write_text(lock_text(pytest=pytest_version) + lock_text(pytest="0.1", lost="1").removeprefix("version = 1\n"))
    with lock.open("a") as f:
        f.write('[[package]]\nname = "lost"\nversion = "2"\n[[package]]\nname = "own"\n')
    assert locked_packages(lock) == {"lost": "1 or 2", "own": "dynamic", "pytest": pytest_version}


def test_a_lock_that_is_no_toml_has_no_packages(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text("<<<<<<< HEAD\n")
    assert locked_packages(tmp_path / "uv.lock") == {}


def test_changes_are_named_down_to_the_package() -> None:
    def record(python: str, lock: str, **packages: str) -> EnvironmentRecord:
        return EnvironmentRecord(python=python, lock=lock, packages=packages)

    old, new = record("3.12.11", "a", numpy="2.3.1", ray="2"), record("3.12.12", "b", numpy="2.4.0", jax="1")
    assert changes(old, new) == ["jax 1 (new)", "numpy 2.3.1 -> 2.4.0", "ray 2 (gone)", "python 3.12.11 -> 3.12.12"]
    assert changes(old, old) == []
    assert changes(old, record("3.12.11", "b", numpy="2.3.1", ray="2")) == ["uv.lock (of the same versions)"]
    many = list(package_changes({}, {f"p{i}": "1" for i in range(9)}))
    assert listed(many).endswith("p5 1 (new) and 3 more")


def test_a_plan_names_the_package_that_changed_in_the_lock_file(
    module: Any, tmp_path: Path, prefix: str, forgetful: Callable[[], None]
) -> None:
    lock = tmp_path / "modules/uv.lock"
    lock.write_text(lock_text(numpy="2.3.1", scipy="1.0"))
    flow: ModuleType = module(textwrap.dedent(SOURCE))
    assert run(flow.text(), prefix=prefix).ok
    lock.write_text(lock_text(numpy="2.4.0", scipy="1.0"))
    forgetful()
    (planned,) = lower(flow.text()).plan(prefix)
    assert planned.decision == "reuse"
    assert planned.reason == "up to date; environment changed since: numpy 2.3.1 -> 2.4.0"
    for described in Path(prefix, "environments").iterdir():
        described.unlink()
    (planned,) = lower(flow.text()).plan(prefix)
    assert planned.reason == "up to date; environment changed since"


def test_an_environment_is_described_once_with_the_text_of_its_lock(
    module: Any, tmp_path: Path, prefix: str, forgetful: Callable[[], None]
) -> None:
    text = lock_text(numpy="2.3.1")
    (tmp_path / "modules/uv.lock").write_text(text)
    flow: ModuleType = module(textwrap.dedent(SOURCE))
    assert run(flow.text(), prefix=prefix).ok
    (described,) = Path(prefix, "environments").iterdir()
    stamp = described.stat().st_mtime_ns
    record = environments.read(open_store(prefix), described.stem)
    assert record is not None
    assert record.packages == {"numpy": "2.3.1"}
    assert Path(prefix, "objects", record.lock).read_text() == text
    assert run(flow.text(), prefix=prefix).ok
    assert described.stat().st_mtime_ns == stamp
