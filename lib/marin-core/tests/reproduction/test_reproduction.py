"""Reproduction, with real repositories and processes: what a step's record alone brings back, and what explains it when
it comes out differently."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_core.errors import UsageError
from marin_core.reading.catalogue import Catalogue
from marin_core.records import origin_of
from marin_core.reproduction import committed_step, reproduce
from marin_core.reproduction.certificates import Certificate, Comparison, as_text
from marin_core.reproduction.rebuilding import build_flags
from marin_core.store import open_store

JOB = '''
import os
from pathlib import Path

from marin_core import Input, Out, adopt, main, step
from words import SUFFIX

HERE = Path(__file__).parent

@step
def text(out: Out, *, word: str) -> int:
    return (out / "a.txt").write_text(word + SUFFIX)

@step
def locked(out: Out) -> int:
    return (out / "version").write_text((HERE / "uv.lock").read_text())

@step
def noise(source: Input, out: Out) -> dict:
    (out / "same.txt").write_text("same")
    (out / "noise.bin").write_bytes(b"head" + os.urandom(8))
    return {"n": 1, "pid": os.getpid()}

@step
def placed(source: Input, out: Out) -> str:
    (out / "path.json").write_text(f'{{"path": "{source.url}"}}')
    return source.url

@step
def cached(source: Input) -> bool:
    mark = Path(os.environ["XDG_CACHE_HOME"], "mark")
    found = mark.exists()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return found

@step
def held(source: Input) -> int:
    if place := os.environ.get("HOLD"):
        Path(place).read_text()
    return 1

@step
def reads_beside(source: Input) -> int:
    return len((HERE / "secret.txt").read_text())

@step
def total(source: Input) -> dict:
    return {"files": {p.name: len(p.read_bytes()) for p in sorted(source.local().iterdir())}}

@step
def copy(source: Input, out: Out) -> int:
    return sum((out / p.name).write_bytes(p.read_bytes()) for p in sorted(source.local().iterdir()))

def build(*, kind: str = "plain", word: str = "hi", data: str = ""):
    """Makes a chain of steps.

    Args:
        kind: which step follows the text.
        word: what the text begins with.
        data: adopted instead of a text.
    """
    word = os.environ.get("WORD", word)
    if data:
        return copy(adopt(data, name="raw"), name="data/copy")
    if kind == "locked":
        return copy(locked())
    first = text(word=word)
    steps = {"noise": noise, "placed": placed, "cached": cached, "beside": reads_beside, "held": held, "plain": copy}
    middle = steps[kind](first)
    return total(middle, name="total") if kind in ("noise", "plain") else middle

def other():
    return copy(text(word="other"))

if __name__ == "__main__":
    main(build)
'''

Run = Callable[..., subprocess.CompletedProcess[str]]


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def commit(directory: Path, message: str = "x") -> str:
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", message)
    return git(directory, "rev-parse", "HEAD").strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a script, a module of its own, and ignored files."""
    root = tmp_path / "repo"
    (root / "pkg").mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "pkg/job.py").write_text(textwrap.dedent(JOB))
    (root / "pkg/words.py").write_text('SUFFIX = "!"\n')
    (root / ".gitignore").write_text("*.txt\n__pycache__/\nhidden.py\n")
    commit(root)
    return root


@pytest.fixture
def job(repo: Path, python: Run, prefix: str) -> Run:
    """Runs the script in the repository, with the bodies in its own process."""

    def run(*flags: str, cwd: Path = repo, **variables: str) -> subprocess.CompletedProcess[str]:
        done = python(repo / "pkg/job.py", *flags, "--launcher", "inline", "--prefix", prefix, cwd=cwd, **variables)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def without_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No uv on the path, so that a lock file is not installed from."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(programs))


def entry(certificate: Certificate, name: str) -> Comparison:
    (found,) = (s for s in certificate.steps if s.address.startswith(f"{name}/"))
    return found


def files(root: Path) -> dict[str, bytes]:
    return {
        p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc"
    }


@pytest.mark.parametrize("how", ["script", "subdirectory", "module", "marin"])
def test_a_dirty_tree_is_made_again_however_the_script_was_started(
    repo: Path, python: Run, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (repo / "pkg/words.py").write_text("from suffix import SUFFIX\n")
    (repo / "pkg/suffix.py").write_text('SUFFIX = open(__file__.replace("suffix.py", "s.bin"), "rb").read().hex()\n')
    (repo / "pkg/s.bin").write_bytes(b"\0\xff\0")
    if how == "module":
        (repo / "pkg/__init__.py").write_text(
            "import sys, pathlib; sys.path.append(str(pathlib.Path(__file__).parent))\n"
        )
    command = {
        "script": ["pkg/job.py"],
        "subdirectory": ["job.py"],
        "module": ["-m", "pkg.job"],
        "marin": ["-m", "marin_core.cli", "run", "pkg/job.py:other"],
    }[how]
    word = [] if how == "marin" else ["--word", "hello you"]
    cwd = repo / "pkg" if how == "subdirectory" else repo
    launcher = "process" if how == "script" else "inline"
    done = python(*command, *word, "--prefix", prefix, "--launcher", launcher, cwd=cwd)
    assert done.returncode == 0, done.stderr
    before, status = files(repo), git(repo, "status", "--porcelain")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    origin = origin_of(committed_step(Catalogue(open_store(prefix)), "copy"))
    assert origin is not None
    assert origin.dirty
    assert origin.launched == (how if how in ("module", "marin") else "script")
    certificate = reproduce("copy", prefix=prefix)
    assert certificate.reproduced, as_text(certificate)
    assert [s.reproduced for s in certificate.steps] == [True, True]
    assert "this interpreter" in certificate.interpreter
    assert certificate.patch == origin.patch != ""
    # Neither the user's checkout nor its repository has changed, and nothing else is left behind.
    assert git(repo, "status", "--porcelain") == status
    assert files(repo) == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("marin-reproduce-")] == []


def test_the_command_prints_one_document_and_writes_the_certificate_beside_the_step(
    repo: Path, job: Run, python: Run, prefix: str, tmp_path: Path
) -> None:
    job("--word", "once")
    kept = tmp_path / "kept"
    command = ["-m", "marin_core.cli", "reproduce", "total", "--prefix", prefix, "--keep", str(kept)]
    done = python(*command, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["reproduced"] is True
    (written,) = Path(prefix, said["address"], "reproductions").glob("*.json")
    assert json.loads(written.read_text()) == said
    assert written.with_suffix(".txt").read_text().startswith(f"reproduced: {said['address']}")
    assert (kept / "checkout/pkg/job.py").is_file()
    assert (kept / "prefix" / said["address"] / "step.json").is_file()
    again = python(*command, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "name a directory that does not exist yet" in again.stderr


def test_a_step_that_is_not_deterministic_is_named_and_what_follows_from_it_is_not_blamed(
    job: Run, python: Run, prefix: str, tmp_path: Path
) -> None:
    job("--kind", "noise")
    done = python("-m", "marin_core.cli", "reproduce", "total", "--prefix", prefix, cwd=tmp_path)
    assert done.returncode == 1
    (written,) = Path(prefix).glob("total/*/reproductions/*.json")
    said = json.loads(written.read_text())
    first, second, third = said["steps"]
    assert [s["reproduced"] for s in said["steps"]] == [True, False, True]
    assert [f["path"] for f in second["files"]] == ["noise.bin"]
    assert second["files"][0]["first_byte"] >= 4
    assert second["files"][0]["old"]["sha256"] != second["files"][0]["new"]["sha256"]
    assert [v.split(":")[0] for v in second["values"]] == ["pid"]
    why = "same recipe, code, inputs, environment and machine: the step is not deterministic"
    assert second["explanation"] == why
    assert said["explanation"] == f"the first to differ is {second['address']}: {why}"
    assert first["explanation"] == ""
    assert third["explanation"] == f"the same although input differs: {second['address']}"
    assert done.stdout.startswith(f"reproduced, unlike what it was made from: {third['address']}")
    assert "noise.bin: 12 B, sha256 " in done.stdout


def test_an_output_that_holds_its_place_is_told_from_one_that_is_not_deterministic(job: Run, prefix: str) -> None:
    job("--kind", "placed")
    certificate = reproduce("placed", prefix=prefix)
    step = entry(certificate, "placed")
    assert step.reproduced is False
    assert step.explanation == "only the path of the prefix differs, in path.json, its value"
    assert step.files[0].fields[0].startswith("path: ")


@pytest.mark.usefixtures("without_uv")
def test_a_changed_package_is_named_by_the_plan_and_explains_the_difference(repo: Path, job: Run, prefix: str) -> None:
    lock = repo / "pkg/uv.lock"
    lock.write_text('[[package]]\nname = "numpy"\nversion = "2.3.1"\n')
    commit(repo)
    job("--kind", "locked")
    lock.write_text('[[package]]\nname = "numpy"\nversion = "2.4.0"\n')
    commit(repo)
    assert "up to date; environment changed since: numpy 2.3.1 -> 2.4.0" in job("--kind", "locked", "--plan").stdout
    job("--kind", "locked", "--force", "copy")
    certificate = reproduce("copy", prefix=prefix)
    assert "uv, which would install uv.lock, is not on PATH" in certificate.interpreter
    first = entry(certificate, "locked")
    assert first.explanation == ("same recipe, code, inputs and machine; environment differs: numpy 2.3.1 -> 2.4.0")
    assert entry(certificate, "copy").explanation == f"its input {first.address} differs already"
    assert certificate.explanation.startswith(f"the first to differ is {first.address}: ")


@pytest.mark.usefixtures("without_uv")
def test_a_lock_file_that_git_ignores_is_put_in_its_place(repo: Path, job: Run, prefix: str) -> None:
    (repo / ".gitignore").write_text("uv.lock\n*.txt\n__pycache__/\n")
    commit(repo)
    (repo / "pkg/uv.lock").write_text('[[package]]\nname = "numpy"\nversion = "2.3.1"\n')
    job("--kind", "locked")
    (repo / "pkg/uv.lock").unlink()
    certificate = reproduce("copy", prefix=prefix)
    assert certificate.reproduced, as_text(certificate)
    assert certificate.notes == ("pkg/uv.lock is not in the commit, as recorded; the recorded one was put there",)


def test_adopted_data_is_shared_and_verified(repo: Path, job: Run, prefix: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.txt").write_text("one")
    job("--data", str(data))
    assert reproduce("data/copy", prefix=prefix).reproduced
    (data / "x.txt").write_text("two")
    certificate = reproduce("data/copy", prefix=prefix)
    assert not certificate.reproduced
    assert certificate.explanation.startswith("input raw/")
    assert f"{data} is not what was adopted; the script makes raw/" in certificate.explanation
    assert as_text(certificate).endswith(certificate.explanation)
    shutil.rmtree(data)
    with pytest.raises(UsageError, match="the adopted data is not there any more"):
        reproduce("data/copy", prefix=prefix)


def test_adopted_data_that_git_ignores_is_found_from_the_clean_checkout(repo: Path, job: Run, prefix: str) -> None:
    (repo / "raw").mkdir()
    (repo / "raw/x.txt").write_text("ignored by git")
    job("--data", "raw")
    certificate = reproduce("data/copy", prefix=prefix)
    assert certificate.reproduced, as_text(certificate)


def test_a_moved_prefix_and_a_moved_repository_and_collected_runs(
    repo: Path, job: Run, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job()
    moved = tmp_path / "elsewhere/prefix"
    moved.parent.mkdir()
    Path(prefix).rename(moved)
    shutil.rmtree(moved / "runs")
    assert reproduce("total", prefix=str(moved)).reproduced
    repo.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"repo is in no repository; give the one with commit \w{12} by --repository"):
        reproduce("total", prefix=str(moved))
    assert reproduce("total", prefix=str(moved), repository=tmp_path / "moved").reproduced


def test_a_commit_that_no_branch_has_any_more_is_still_checked_out(repo: Path, job: Run, prefix: str) -> None:
    job()
    git(repo, "commit", "--quiet", "--amend", "--message", "another")
    assert reproduce("total", prefix=prefix).reproduced


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_script_and_leaves_no_checkout(
    job: Run, prefix: str, tmp_path: Path, without_uv: None, number: signal.Signals
) -> None:
    job("--kind", "held")
    scratch, pipe = tmp_path / "scratch", tmp_path / "pipe"
    scratch.mkdir()
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "marin_core.cli", "reproduce", "held", "--prefix", prefix]
    variables = os.environ | {"TMPDIR": str(scratch), "HOLD": str(pipe)}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as process,
        pipe.open("w") as gate,  # opens when the body reads
    ):
        (left,) = (p.name for p in scratch.iterdir() if p.name.startswith("marin-reproduce-"))
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 128 + number, (left, said)
        assert "Traceback" not in said
        assert [p.name for p in scratch.iterdir()] == []
        with pytest.raises(BrokenPipeError):  # the body is gone
            os.write(gate.fileno(), b"go on")


def test_what_cannot_be_made_again_is_said_in_one_line(
    repo: Path, job: Run, python: Run, prefix: str, tmp_path: Path
) -> None:
    job()

    def told(name: str = "total") -> str:
        done = python("-m", "marin_core.cli", "reproduce", name, "--prefix", prefix, "--repository", repo, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr.splitlines()[-1]

    def origin(**changes: Any) -> None:
        (path,) = Path(prefix).glob("total/*/step.json")
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"origin": record["origin"] | changes}))

    assert "nothing: no step of this address or name" in told("nothing")
    (text,) = Path(prefix).glob("text/*/step.json")
    whole = text.read_text()
    text.write_text(whole[:50])
    done = python("-m", "marin_core.cli", "reproduce", "text", "--prefix", prefix, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "not a readable StepRecord" in done.stderr
    text.write_text(whole)
    shutil.rmtree(repo / ".git")
    git(repo, "init", "--quiet")
    assert "is not in" in told()
    origin(patch="0" * 64)
    assert "its patch is gone from objects/" in told()
    origin(patch=None, omitted=["the changes since the commit: 25 MB, over the cap of 20 MB"])
    assert "its patch was not recorded (the changes since the commit: 25 MB, over the cap of 20 MB)" in told()
    origin(commit="")
    assert "pkg/job.py was in no commit of a repository; commit it and run again" in told()
    origin(script="")
    assert "was made by no script" in told()


def test_a_module_that_git_ignores_is_named_as_missing(repo: Path, job: Run, prefix: str) -> None:
    (repo / "pkg/hidden.py").write_text('SUFFIX = "?"\n')
    (repo / "pkg/words.py").write_text("from hidden import SUFFIX\n")
    job()
    with pytest.raises(UsageError, match=r"cannot be planned in the clean checkout: .*No module named 'hidden'"):
        reproduce("total", prefix=prefix)


def test_a_body_that_read_what_no_record_has_fails_in_the_clean_checkout(repo: Path, job: Run, prefix: str) -> None:
    (repo / "pkg/secret.txt").write_text("s")
    job("--kind", "beside")
    certificate = reproduce("reads_beside", prefix=prefix)
    assert entry(certificate, "text").reproduced
    step = entry(certificate, "reads_beside")
    assert step.reproduced is False
    assert step.explanation.startswith("it did not succeed here: FileNotFoundError: ")
    assert "secret.txt" in certificate.explanation


def test_a_recipe_that_depends_on_more_than_the_record_is_named(
    job: Run, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(WORD="from the environment")
    monkeypatch.setenv("WORD", "another")
    certificate = reproduce("total", prefix=prefix)
    assert not certificate.reproduced
    assert certificate.explanation.startswith("the recipe of text/")
    assert "word: 'from the environment' -> 'another'" in certificate.explanation


def test_neither_outputs_nor_caches_nor_modules_of_the_original_reach_the_second_run(
    repo: Path, job: Run, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "lib").mkdir()
    (repo / "pkg/words.py").rename(repo / "lib/words.py")
    monkeypatch.setenv("PYTHONPATH", str(repo / "lib"))
    monkeypatch.setenv("MARIN_PREFIX", prefix)
    job("--kind", "cached")
    # The user's own checkout, from which this process would import, has gone on.
    (repo / "lib/words.py").write_text('SUFFIX = "later"\n')
    certificate = reproduce("cached")
    assert certificate.reproduced, as_text(certificate)
    assert sorted(p.name for p in Path(prefix).glob("*/*/attempts/*")) == ["1", "1"]


@pytest.mark.usefixtures("without_uv")
def test_a_lock_file_that_cannot_be_installed_is_told_in_one_line(
    repo: Path, job: Run, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "of the user")
    (repo / "pkg/uv.lock").write_text("version = 1\n")
    job()
    uv = tmp_path / "programs/uv"
    uv.write_text('#!/bin/sh\necho "$VIRTUAL_ENV $*" >&2\necho "error: no such package" >&2\nexit 2\n')
    uv.chmod(0o755)
    with pytest.raises(UsageError, match=r"^uv sync --frozen failed: error: no such package$"):
        reproduce("total", prefix=prefix, keep=tmp_path / "kept")
    said = (tmp_path / "kept/uv.txt").read_text().splitlines()
    project = tmp_path / "kept/checkout/pkg"
    assert said[0].startswith(f" sync --frozen --project {project} --python 3.")
    assert said[2] == f" sync --frozen --project {project}"


def test_code_that_differs_from_what_the_commit_and_patch_give_is_named(repo: Path, job: Run, prefix: str) -> None:
    job()
    (path,) = Path(prefix).glob("text/*/step.json")
    record = json.loads(path.read_text())
    (name,) = (n for n in record["code"] if n.endswith("SUFFIX"))
    record["code"][name] = "0" * 64
    record["digests"]["code"] = "1" * 64
    path.write_text(json.dumps(record))
    certificate = reproduce("total", prefix=prefix)
    assert certificate.reproduced
    why = f"code differs: the patch is incomplete, {name}"
    assert entry(certificate, "text").explanation == f"the same although {why}"
    path.write_text(json.dumps(record | {"output_digest": "2" * 64}))
    certificate = reproduce("total", prefix=prefix)
    assert not certificate.reproduced
    assert entry(certificate, "text").explanation == f"same recipe, inputs, environment and machine; {why}"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--steps 3 --prefix p --until a --until=b --json", "--steps 3"),
        ("--on_code_change report --keep-going --launcher inline --only x y", "--launcher inline y"),
        ("--plan --name=--prefix --force '*' -- rest", "--name=--prefix -- rest"),
    ],
)
def test_only_flags_that_choose_what_to_run_and_where_are_left_out(given: str, kept: str) -> None:
    assert list(build_flags(given.split())) == kept.split()


def test_every_digest_of_an_origin_names_an_object(repo: Path, job: Run, prefix: str) -> None:
    (repo / "pkg/new.py").write_text("x = 1\n")
    job()
    origin = origin_of(committed_step(Catalogue(open_store(prefix)), "total"))
    assert origin is not None
    assert {*origin.objects} == {p.name for p in Path(prefix, "objects").iterdir()}
    (run,) = Path(prefix, "runs").glob("*.json")
    told = json.loads(run.read_text())
    assert told["origin"] == json.loads(json.dumps(dataclasses.asdict(origin)))
    assert told["git"] == {"commit": origin.commit, "branch": origin.branch, "dirty": False}
    assert {"cpu", "num_cpus", "memory_bytes", "accelerators", "marin_core", "packages"} <= told["environment"].keys()
    assert os.environ.keys().isdisjoint(told["environment"])
