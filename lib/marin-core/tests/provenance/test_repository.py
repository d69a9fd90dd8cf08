"""The patch of a checkout: applied to the commit it gives the checkout back, and making it disturbs nobody."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.provenance import repository
from marin_core.provenance.repository import snapshot

Git = Callable[..., str]


def git_in(directory: Path, *arguments: str, stdin: bytes = b"") -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout.decode("utf-8", "replace")


def commit_in(directory: Path, files: dict[str, bytes]) -> None:
    git_in(directory, "init", "--quiet")
    write(directory, files)
    git_in(directory, "add", "--all")
    git_in(directory, "commit", "--quiet", "--allow-empty", "-m", "x")


def write(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def tree(directory: Path) -> dict[str, tuple[bytes, bool]]:
    """Content of every file outside ``.git``, and whether it is executable."""
    paths = [p for p in directory.rglob("*") if p.is_file() and ".git" not in p.relative_to(directory).parts[:1]]
    return {p.relative_to(directory).as_posix(): (p.read_bytes(), os.access(p, os.X_OK)) for p in paths}


def patch_of(root: Path) -> bytes:
    seen = snapshot(root)
    assert seen is not None
    patch, why = seen.patch()
    assert patch is not None, why
    return patch


def rebuilt(root: Path, patch: bytes, into: Path) -> Path:
    """The commit in a clone, with the patch applied."""
    git_in(root, "clone", "--quiet", str(root), str(into))
    if patch:
        git_in(into, "apply", "--binary", "--whitespace=nowarn", "-", stdin=patch)
    return into


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    commit_in(root, {"a.py": b"x = 1\n", "deep/b.bin": b"\0\1\2", "gone.txt": b"g\n", ".gitignore": b"*.log\n"})
    return root


def test_a_clean_checkout_has_a_commit_and_nothing_to_patch(repo: Path) -> None:
    seen = snapshot(repo)
    assert seen is not None
    assert seen.commit == git_in(repo, "rev-parse", "HEAD").strip()
    assert (seen.branch, seen.changed, seen.patch(), seen.omitted) == ("main", (), (b"", ""), ())


def test_the_patch_makes_the_checkout_again_from_the_commit(repo: Path, tmp_path: Path) -> None:
    write(
        repo,
        {"a.py": b"x = 2", "deep/b.bin": b"\0\xff" * 50, "new dir/ü [x]*.txt": b"\r\n", "empty": b"", "c.log": b"l"},
    )
    (repo / "gone.txt").unlink()
    (repo / "a.py").chmod(0o755)
    seen = snapshot(repo)
    assert seen is not None
    assert {*seen.changed} == {"a.py", "deep/b.bin", "gone.txt"}
    expected = tree(repo)
    assert expected.pop("c.log") == (b"l", False)
    assert tree(rebuilt(repo, patch_of(repo), tmp_path / "again")) == expected


contents = st.binary(max_size=40) | st.sampled_from([b"a\n", b"a", b"a\r\nb", b"", b"a\nb\n\n", b"\xff\xfe\n"])
trees = st.dictionaries(st.sampled_from(["f", "g.py", "d/h", "d/e/i.bin", "sp ace"]), contents, max_size=5)


@settings(max_examples=12)
@given(before=trees, after=trees)
def test_whatever_changed_the_patch_tells_it(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "repo")
        root.mkdir()
        commit_in(root, before)
        for name in before:
            (root / name).unlink()
        write(root, after)
        assert tree(rebuilt(root, patch_of(root), Path(directory, "again"))) == tree(root)


def test_looking_at_a_checkout_leaves_its_index_and_objects_as_they_are(repo: Path) -> None:
    write(repo, {"a.py": b"x = 3\n", "new.py": b"y\n"})
    os.utime(repo / "gone.txt", (1, 1))  # git would like to enter into its index that only the time differs

    def state() -> dict[Path, tuple[bytes, int]]:
        return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (repo / ".git").rglob("*") if p.is_file()}

    before = state()
    assert patch_of(repo)
    assert state() == before


def test_outputs_are_no_part_of_the_patch_even_where_git_does_not_ignore_them(repo: Path) -> None:
    write(repo, {"out [1]/x": b"1", ".marin/runs/r.json": b"{}", "deep/.marin/y": b"1"})
    seen = snapshot(repo, without=repo / "out [1]")
    assert seen is not None
    assert seen.patch() == (b"", "")


def test_a_settled_diff_format_does_not_depend_on_the_users_configuration(repo: Path, tmp_path: Path) -> None:
    for name, value in (("diff.noprefix", "true"), ("color.ui", "always"), ("diff.external", "false")):
        git_in(repo, "config", name, value)
    write(repo, {"a.py": b"x = 5\n"})
    assert tree(rebuilt(repo, patch_of(repo), tmp_path / "again")) == tree(repo)


def test_a_git_hook_s_variables_do_not_lead_to_another_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    commit_in(other, {"z": b"z"})
    commit = git_in(repo, "rev-parse", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    seen = snapshot(repo)
    assert seen is not None
    assert (seen.commit, seen.patch()) == (commit, (b"", ""))


def test_changes_over_the_cap_are_not_kept_and_that_is_said(repo: Path) -> None:
    write(repo, {"deep/b.bin": os.urandom(5_000)})
    seen = snapshot(repo)
    assert seen is not None
    assert seen.patch(cap_bytes=1_000) == (None, "the changes since the commit: more than the cap of 1.0 kB")


def test_untracked_files_beyond_the_cap_stay_out_largest_first(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repo, {"small.py": b"s", "big.bin": os.urandom(5_000)})
    seen = snapshot(repo, cap_bytes=1_000)
    assert seen is not None
    assert "small.py" in tree(rebuilt(repo, seen.patch()[0] or b"", tmp_path / "again"))
    assert seen.omitted == ("big.bin: 5.0 kB, untracked",)
    write(repo, {f"many/{i}": b"" for i in range(9)})
    monkeypatch.setattr(repository, "UNTRACKED_CAP", 4)
    seen = snapshot(repo)
    assert seen is not None
    assert seen.omitted[-1] == "4 more untracked files"
    assert patch_of(repo).count(b"new file mode") == 4


def test_a_listing_that_does_not_end_is_given_up(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    stuck = tmp_path / "bin/git"
    stuck.parent.mkdir()
    stuck.write_text(f'#!/bin/sh\ncase "$*" in *ls-files*) exec tail -f /dev/null;; esac\nexec {real} "$@"\n')
    stuck.chmod(0o755)
    write(repo, {"a.py": b"x = 4\n"})
    monkeypatch.setenv("PATH", f"{stuck.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(repository, "_LISTING_SECONDS", 0.1)
    seen = snapshot(repo)
    assert seen is not None
    assert b"x = 4" in patch_of(repo)
    assert "listing them took longer" in seen.omitted[0]


def test_linked_worktrees_detached_heads_and_nested_repositories(repo: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git_in(repo, "worktree", "add", "--quiet", "--detach", str(linked))
    write(linked, {"a.py": b"x = 9\n", "new.py": b"n\n"})
    nested = linked / "vendor/tool"
    nested.mkdir(parents=True)
    commit_in(nested, {"t.py": b"t\n"})
    seen = snapshot(linked)
    assert seen is not None
    assert seen.branch == ""
    assert seen.omitted == ("vendor/tool/: a repository of its own",)
    again = tree(rebuilt(repo, patch_of(linked), tmp_path / "again"))
    assert (again["a.py"][0], again["new.py"][0]) == (b"x = 9\n", b"n\n")


def test_a_change_of_equal_size_in_the_moment_of_a_commit_is_seen(repo: Path) -> None:
    git_in(repo, "config", "core.checkStat", "minimal")  # by size and time alone
    git_in(repo, "config", "core.trustctime", "false")
    file, index = repo / "a.py", repo / ".git/index"
    before, moment = file.read_bytes(), 1_700_000_000 * 10**9
    os.utime(file, ns=(moment, moment))
    git_in(repo, "update-index", "--refresh")
    write(repo, {"a.py": before.replace(before[:1], b"y", 1), "new.py": b"n\n"})
    for touched in (file, index):
        os.utime(touched, ns=(moment, moment))
    assert b"+y" in patch_of(repo)


def test_a_repository_without_a_commit_and_a_directory_without_a_repository(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git_in(empty, "init", "--quiet")
    seen = snapshot(empty)
    assert seen is not None
    assert (seen.commit, seen.patch()) == ("", (b"", ""))
    assert repository.root_of(tmp_path) is None
    assert snapshot(tmp_path) is None


def test_a_stamp_tells_every_change_and_none_is_given_before_files_stand_still(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stamp() -> str | None:
        seen = snapshot(repo)
        assert seen is not None
        return seen.stamp()

    clean = stamp()
    assert clean == stamp() is not None
    write(repo, {"a.py": b"x = 7\n"})
    assert stamp() is None
    monkeypatch.setattr(repository, "_SETTLED_NS", -(10**12))  # as if all had been written long ago
    stamps = [clean, stamp()]
    for change in ({"a.py": b"x = 8\n"}, {"new.py": b""}, {"new.py": b"1"}):
        write(repo, change)
        stamps.append(stamp())
    (repo / "gone.txt").unlink()
    stamps.append(stamp())
    assert None not in stamps
    assert len(set(stamps)) == len(stamps)
    assert stamp() == stamps[-1]
