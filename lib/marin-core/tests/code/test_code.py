"""The code digest: it changes with the code that a step reaches, and with nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from marin_core.code import Code, sources
from marin_core.errors import EncodingError

BASE = """
    import math
    from marin_core import step, Resources

    LIMIT = 3
    TABLE = {"a": 1}
    UNUSED = 0

    class Shape:
        def area(self):
            return helper(2)

    def helper(x):
        return x * LIMIT

    def shadowing(UNUSED):
        return [UNUSED for UNUSED in range(UNUSED)]

    @step(resources=Resources(cpus=1))
    def work(*, n: int = 1) -> int:
        "Doc."
        from math import sqrt
        return Shape().area() + TABLE["a"] + len(shadowing(n))
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"Doc."', '"Another docstring, \\n of two lines."'),
        ("return x * LIMIT", "# why\n        return (x   *\n            LIMIT)  # comment"),
        ("UNUSED = 0", "UNUSED = 1"),
        ("cpus=1", "cpus=4"),
        ("import math\n", "import math\n    import json\n"),
        ("class Shape:", 'class Shape:\n        "What it is."'),
    ],
)
def test_what_cannot_change_a_result_does_not_count(code_of: Callable[..., Code], old: str, new: str) -> None:
    assert old in BASE
    assert code_of(main=BASE).digest == code_of(main=BASE.replace(old, new, 1)).digest


@pytest.mark.parametrize(
    ("old", "new", "unit"),
    [
        ("LIMIT = 3", "LIMIT = 4", "LIMIT"),
        ("LIMIT = 3", "LIMIT = 3.0", "LIMIT"),
        ("return x * LIMIT", "return LIMIT * x", "helper"),
        ("helper(2)", "helper(3)", "Shape"),
        ('TABLE = {"a": 1}', 'TABLE = {"a": 1}\n    TABLE["b"] = 2', "TABLE"),
        ('TABLE = {"a": 1}', 'TABLE = {"a": 1}\n    TABLE.update(b=2)', "TABLE"),
        ("LIMIT = 3", "match 1:\n        case _:\n            LIMIT = 3", "LIMIT"),
        ("LIMIT = 3", "if math.pi > 3:\n        LIMIT = 3", "LIMIT"),
        ("len(shadowing(n))", "len(shadowing(n + 1))", "work"),
        ("n: int = 1", "n: int = 2", "work"),
    ],
)
def test_what_the_step_reaches_counts_and_is_named(code_of: Callable[..., Code], old: str, new: str, unit: str) -> None:
    before, after = code_of(main=BASE), code_of(main=BASE.replace(old, new, 1))
    changed = {n for n in before.units | after.units if before.units.get(n) != after.units.get(n)}
    assert changed - {"pkg.main:math"} == {f"pkg.main:{unit}"}
    assert before.digest != after.digest


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from pkg.helpers import f\ndef work():\n    return f()", {"f", "C"}),
        ("import pkg.helpers\ndef work():\n    return pkg.helpers.f()", {"f", "C"}),
        ("import pkg.helpers as h\ndef work():\n    return h.f()", {"f", "C"}),
        ("def work():\n    from . import helpers\n    return helpers.f()", {"f", "C"}),
        ("def work():\n    import pkg\n    return pkg.f()", {"f", "C"}),
        ("from pkg import f as g\nwork_table = [g]\ndef work():\n    return work_table[0]()", {"f", "C"}),
        ("from pkg.helpers import *\ndef work():\n    return f()", {"f", "C"}),
        ("def work():\n    from pkg import helpers\n    return getattr(helpers, 'g')()", {"f", "g", "C"}),
        (
            "def work(n='pkg.helpers'):\n    import importlib\n    return importlib.import_module(n).g()",
            {"f", "g", "C"},
        ),
        ("def work(f):\n    return f()", set()),
        ("def work():\n    return 'helpers.f'", set()),
    ],
)
def test_reach_follows_every_way_of_importing(code_of: Callable[..., Code], source: str, expected: set[str]) -> None:
    init = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from pkg.helpers import f
        def __getattr__(name):
            import pkg.helpers
            return getattr(pkg.helpers, name)
    """
    helpers = "C = 1\ndef f():\n    return C\ndef g():\n    return 2\n"
    marked = source.replace("def work", "from marin_core import step\n@step\ndef work", 1)
    reached = code_of(__init__=init, helpers=helpers, main=marked).units
    assert {n.partition(":")[2] for n in reached if n.startswith("pkg.helpers:")} == expected


def test_a_dynamic_import_reaches_every_module_of_the_package(code_of: Callable[..., Code]) -> None:
    main = """
        from importlib import import_module
        from marin_core import step
        @step
        def work(*, which: str) -> int:
            return import_module(f"pkg.{which}").f()
    """
    units = code_of(helpers="def f(): return 1\n", other="def f(): return 2\n", main=main).units
    assert {"pkg.helpers:f", "pkg.other:f"} <= set(units)


def test_source_that_is_not_python_is_named_with_its_line(code_of: Callable[..., Code]) -> None:
    main = "from marin_core import step\n@step\ndef work():\n    import pkg.broken\n    return pkg.broken.f()\n"
    with pytest.raises(EncodingError, match=r"broken\.py:2: .*must be valid"):
        code_of(broken="def f():\n    return (\n", main=main)


def test_mutual_recursion_and_missing_names_end(code_of: Callable[..., Code]) -> None:
    main = "from marin_core import step\n"
    main += "def a():\n    return b()\ndef b():\n    return a() or undefined_name\n@step\ndef work():\n    return a()\n"
    assert set(code_of(main=main).units) == {"pkg.main:a", "pkg.main:b", "pkg.main:work"}


def test_a_file_beside_the_script_comes_before_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "statistics.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (sources.locate, sources._top_level):
        cached.cache_clear()
    assert sources.locate("statistics") == tmp_path / "statistics.py"
    assert sources.locate("os") is sources.locate("json.decoder") is sources.locate("sys") is None
    monkeypatch.undo()
    for cached in (sources.locate, sources._top_level):
        cached.cache_clear()
    assert sources.locate("statistics") is None


@pytest.mark.parametrize("damaged", ["{}", "[]", '{"units": 3}', '{"units": {"a": [1]}}', "3", "{"])
def test_a_damaged_memory_of_a_file_is_ignored(
    code_of: Callable[..., Code], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = code_of(main=BASE).digest
    memories = list((tmp_path / "cache/marin/syntax").iterdir())
    assert memories
    for memory in memories:
        memory.write_text(damaged)
    assert code_of(main=BASE).digest == before
