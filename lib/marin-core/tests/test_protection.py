"""Inputs are for reading: what a body does to one all the same is never what later steps are made from."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import RunReport, adopt, run
from marin_core.errors import UsageError
from marin_core.handles import Input
from marin_core.reasons import Options
from marin_core.running import examination
from marin_core.store.manifests import manifest

SOURCE = """
    import os
    from pathlib import Path
    from marin_core import Input, Out, Work, step

    @step
    def made(out: Out, *, n: int = 1) -> int:
        (out / "sub").mkdir()
        for i in range(n):
            (out / f"sub/{i}.txt").write_text("ab")
        return n

    @step
    def harmful(sources: list[Input], *, how: str) -> int:
        path = sources[0] / "sub/0.txt"
        path.parent.chmod(0o700)
        if how == "appends":
            path.chmod(0o600)
            path.open("a").write("more")
        elif how == "adds":
            (path.parent / "new.txt").write_text("new")
        elif how == "removes":
            path.unlink()
        elif how == "links":
            (path.parent / "new.txt").symlink_to(path)
        elif how == "adds a directory":
            (path.parent / "empty").mkdir()
        return 1

    @step
    def links(out: Out, data: Input, source: Input) -> int:
        os.link(data / "d.txt", out / "d.txt")
        os.link(source / "sub/0.txt", out / "0.txt")
        (out / "own.txt").write_text("own")
        return 1

    @step
    def returns(out: Out, source: Input, *, how: str) -> object:
        return eval(how)

    @step
    def reads(data: Input) -> list:
        with data.open("d.csv", "rb") as f:
            return [(data / "d.csv").read_text(), data.open("d.csv").read(), f.read().decode(), str(data.local())]

    @step
    def misreads(data: Input) -> str:
        return data.open("e.csv").read()
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(SOURCE)


def failure_of(report: RunReport) -> Any:
    return report.record.nodes[-1].failure


def modes(directory: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mode & 0o777 for p in sorted(directory.rglob("*")) if p.is_file()}


def test_committed_files_are_read_only_and_directories_are_not(flow: ModuleType, prefix: str, marin: Any) -> None:
    target = flow.made(n=3)
    out = run(target, prefix=prefix).path(target)
    assert not any(mode & 0o222 for mode in modes(out).values())
    assert (out / "sub").stat().st_mode & 0o200
    run(target, prefix=prefix, options=_forced())
    assert marin("gc", "--apply").code == 0
    assert not out.exists()


def _forced() -> Options:
    return Options(force=("*",))


def test_a_file_that_has_another_name_keeps_its_permissions(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    data = tmp_path / "data" / "d.txt"
    data.parent.mkdir()
    data.write_text("mine")
    data.chmod(0o644)
    target = flow.links(adopt(data.parent), flow.made())
    report = run(target, prefix=prefix)
    assert modes(data.parent) == {"d.txt": 0o644}
    assert modes(report.path(target))["own.txt"] & 0o222 == 0


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("appends", "sub/0.txt has another size"),
        ("adds", "sub/new.txt was added"),
        ("removes", "sub/0.txt is gone"),
        ("links", "output sub/new.txt is a symbolic link"),
        ("adds a directory", ""),
        ("does nothing", ""),
    ],
)
@pytest.mark.parametrize("launcher", ["process", "inline"])
@pytest.mark.parametrize("num_files", [1, 100])
def test_a_body_that_changes_a_committed_input_fails(
    flow: ModuleType, prefix: str, marin: Any, how: str, what: str, launcher: str, num_files: int
) -> None:
    made = flow.made(n=num_files)
    report = run(flow.harmful([made], how=how), prefix=prefix, launcher=launcher)
    if not what:
        assert report.ok
        return
    address = report.node(made).address
    assert failure_of(report).type == "UsageError"
    assert failure_of(report).message.startswith(f"input {address} is no longer what was committed: {what} in ")
    assert failure_of(report).message.endswith(
        f"a body writes to its Out alone; --force {address} makes that input again"
    )
    assert report.record.nodes[-1].attempt == 1
    assert not list(Path(prefix).glob("harmful/*/step.json"))
    assert marin("verify").code == 1
    assert run(flow.harmful([made], how="does nothing"), prefix=prefix, options=_forced()).ok


def test_a_look_at_very_many_files_is_spared(flow: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_MOST_LOOKED_AT", 2)
    assert run(flow.harmful([flow.made(n=3)], how="adds"), prefix=prefix).ok


def test_a_file_that_was_added_to_a_commit_is_damage(flow: ModuleType, prefix: str, marin: Any) -> None:
    target = flow.made()
    out = run(target, prefix=prefix).path(target)
    (out / "sub/more.txt").write_text("x")
    assert marin("verify").code == 1
    assert "sub/more.txt was added after the commit" in marin("verify").out


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
def test_permissions_stop_whoever_they_apply_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("a")
    for directory in (tmp_path, *tmp_path.parents[:-1]):
        if directory.stat().st_uid == os.geteuid() and directory.is_relative_to("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o755)
    os.chown(tmp_path / "out" / "a.txt", 65534, 65534)
    manifest(tmp_path / "out")
    code = "import os, sys; os.setgid(65534); os.setuid(65534); open(sys.argv[1], 'a')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out" / "a.txt")], capture_output=True, text=True, check=False
    )
    assert "PermissionError" in done.stderr


# One file that is adopted


def test_a_single_adopted_file_is_read_by_its_name(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,b")
    target = flow.reads(adopt(path))
    assert run(target, prefix=prefix).value(target) == ["a,b", "a,b", "a,b", str(path)]
    assert (Input(str(path)) / "d.csv", Input(str(path)).local()) == (path, path)
    assert Input(str(path)).open("./d.csv").read() == "a,b"


def test_another_name_of_a_single_adopted_file_is_told_which_there_is(
    flow: ModuleType, prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,b")
    report = run(flow.misreads(adopt(path)), prefix=prefix)
    said = f"{path} is a single file: its name is 'd.csv', there is no 'e.csv'"
    assert (failure_of(report).message, failure_of(report).exit_code) == (said, 2)
    with pytest.raises(UsageError, match=r"its name is 'd\.csv'"):
        _ = Input(str(path)) / "sub/d.csv"


# Values


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("out", "returns returned its Out"),
        ("[source]", "returns returned[0] its Input"),
        ("{'model': out / 'a.bin'}", "returns returned['model'] the path "),
        ("source / 'sub' / '0.txt'", "returns returned the path "),
        ("out.local()", "returns returned the path "),
    ],
)
@pytest.mark.parametrize("launcher", ["process", "inline"])
def test_a_value_that_would_not_move_with_the_prefix_is_refused(
    flow: ModuleType, prefix: str, how: str, said: str, launcher: str
) -> None:
    failure = failure_of(run(flow.returns(flow.made(), how=how), prefix=prefix, launcher=launcher))
    assert failure.type == "TypeError"
    assert failure.message.startswith(said)
    assert "return a name within Out, as text" in failure.message


def test_other_paths_are_values(flow: ModuleType, prefix: str) -> None:
    how = "[Path('a/b'), Path('/etc/hosts'), Path(out.url + '-beside')]"
    value = run(flow.returns(flow.made(), how=how), prefix=prefix).value("returns")
    assert value[:2] == ["a/b", "/etc/hosts"]
