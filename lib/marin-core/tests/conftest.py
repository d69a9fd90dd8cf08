"""Modules with steps are written to a fresh directory, because a step must be importable by another process."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from marin_core.cli import main
from marin_core.code import Code, Reach

_numbers = itertools.count()

# No test here is judged by its speed: machines are shared, and timings live in bench/.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

# Started in the background of a shell, this process ignores interrupts, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("MARIN_PREFIX", raising=False)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A prefix that does not exist yet."""
    return str(tmp_path / "prefix")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Writes a source and imports it as a module of a unique name."""
    directory = tmp_path / "modules"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)

    def write(source: str) -> ModuleType:
        name = f"flow{next(_numbers)}"
        (directory / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return write


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this Python with arguments to its end; keywords but ``cwd`` are environment variables."""

    def run(*arguments: str | Path, cwd: Path = tmp_path, **extra: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=os.environ | extra, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def code_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Code]:
    """Writes a package (file name -> source), imports its ``main`` module, digests ``work``, and forgets it again."""

    def digest(**files: str) -> Code:
        root = tmp_path / f"root{next(_numbers)}"
        (root / "pkg").mkdir(parents=True)
        (root / "pyproject.toml").write_text("")
        monkeypatch.syspath_prepend(root)
        for name in [m for m in sys.modules if m == "pkg" or m.startswith("pkg.")]:
            monkeypatch.delitem(sys.modules, name)
        from marin_core.code import sources

        for cached in (sources.locate, sources._top_level, sources._descend):
            cached.cache_clear()
        for name, source in {"__init__": "", **files}.items():
            (root / "pkg" / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        main = importlib.import_module("pkg.main")
        return Reach().code_of(main.work.function)

    return digest


class Said(NamedTuple):
    """What a command left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document that it has to be."""
        return json.loads(self.out)

    @property
    def last(self) -> str:
        """The last line of stdout."""
        return self.out.splitlines()[-1]


@pytest.fixture
def marin(prefix: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The ``marin`` command in this very process, on the test's prefix."""

    def command(*arguments: str) -> Said:
        capsys.readouterr()
        code = main([*arguments, "--prefix", prefix])
        return Said(code, *capsys.readouterr())

    return command
