"""Bytecode: an edit within the second of a compilation runs as what it says."""

import os
import py_compile
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from marin_core import resolve
from marin_core.code.bytecode import forget_racy


def test_an_edit_of_the_same_size_in_the_same_second_is_what_runs(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(
        """
        from marin_core import step
        @step
        def f() -> int:
            return 10
        """
    )
    path = Path(str(flow.__file__))
    for value in (10, 20, 30):
        second = time.time_ns() // 10**9 * 10**9
        os.utime(path, ns=(second, second))
        py_compile.compile(str(path), doraise=True)
        path.write_text(re.sub("return .*", f"return {value}", path.read_text()))
        os.utime(path, ns=(second + value, second + value))
        assert resolve(flow.f(), prefix=prefix) == value


@pytest.mark.parametrize(("later_s", "kept"), [(1, False), (3, True)])
def test_bytecode_is_believed_once_its_source_has_settled(tmp_path: Path, later_s: int, kept: bool) -> None:
    source = tmp_path / "m.py"
    source.write_text("x = 1\n")
    compiled = Path(py_compile.compile(str(source), doraise=True) or "")
    written = compiled.stat().st_mtime_ns - later_s * 10**9
    os.utime(source, ns=(written, written))
    forget_racy([source, tmp_path / "gone.py"])
    assert compiled.exists() is kept
