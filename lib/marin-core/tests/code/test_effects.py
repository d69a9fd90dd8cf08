"""Effects: a statement at module level that may change what others read counts for whoever loads its module."""

from collections.abc import Callable

import pytest

from marin_core.code import Code

REGISTRY = """
    ALL = {}
    CONFIG = {"k": 0}
    def register(name, f):
        ALL[name] = f
        return f
    def through(name, f):
        made = register(name, f)
        return made
    def given(d, f):
        d["f"] = f
        return d
    def index(f):
        ALL["f"] = f
        return f
    def counted():
        global COUNT
        COUNT = 1
    def put(n):
        setattr(Box, "n", n)
        return n
    def lazily(f):
        from pkg.registry import ALL as everything
        everything["f"] = f
        return f
    class Box: n = 0
    class Registry(dict):
        def add(self, f):
            self["f"] = f
            return f
        def size(self): return len(self)
        @classmethod
        def of(cls, f):
            cls.all = [f]
            return cls()
    class Child(Registry): pass
    class Entry:
        def __init__(self, f):
            ALL["f"] = f
    TABLE = Registry()
    add = TABLE.add
"""
MAIN = """
    import pkg.plugins
    from pkg.registry import ALL
    from marin_core import step
    @step
    def work(): return ALL
"""


def of_plugins(code_of: Callable[..., Code], plugins: str) -> set[str]:
    source = f"from pkg import registry\nfrom pkg.registry import *\ndef _f(): return 1\n{plugins}\n"
    return {
        n.partition(":")[2] for n in code_of(registry=REGISTRY, plugins=source, main=MAIN).units if ".plugins:" in n
    }


@pytest.mark.parametrize(
    "plugins",
    [
        "g = register('f', _f)",
        "g = registry.register('f', _f)",
        "g: object = through('f', _f)",
        "g, h = through('f', _f), 1",
        "g = registry.index(_f)",
        "GIVEN = given(ALL, _f)",
        "ok = (counted(), _f)",
        "ok = put(_f)",
        "ok = lazily(_f)",
        "g = TABLE.add(_f)",
        "g = registry.TABLE.add(_f)",
        "g = add(_f)",
        "g = Entry(_f)",
        "g = Registry.of(_f)",
        "g = Child.of(_f)",
        "g = [register(n, _f) for n in 'ab']",
        "if not register('f', _f):\n    raise SystemExit",
        "while not register('f', _f):\n    pass",
        "import contextlib\nwith contextlib.nullcontext(register('f', _f)):\n    pass",
        "assert register('f', _f)",
        "assert CONFIG.update(k=_f) is None",
        "if (CONFIG.update(k=_f)) is None:\n    pass",
        "class Z:\n    CONFIG['k'] = _f",
        "class Z:\n    handler = register('f', _f)",
        "class Z:\n    if register('f', _f): pass",
        "def z(q=register('f', _f)): pass",
        "def z(*, q=register('f', _f)): pass",
        "import functools\n@functools.partial(print, register('f', _f))\ndef z(): pass",
    ],
)
def test_an_effect_counts_whatever_becomes_of_its_result(code_of: Callable[..., Code], plugins: str) -> None:
    assert "_f" in of_plugins(code_of, plugins)


PURE = """
    import dataclasses, enum, logging, re
    from dataclasses import dataclass, field
    from pathlib import Path
    from typing import NamedTuple, NewType, TypeVar
    from marin_core import Resources, step
    log = logging.getLogger(__name__)
    T = TypeVar("T")
    X = int(3)
    HERE = Path(__file__).parent / "data"
    WORDS = re.compile("a").findall("aa")
    Name = NewType("Name", str)
    NAME = Name("x")
    SIZES = {"a": 1}
    TOTAL = sum(SIZES.values()) + SIZES.get("b", 0)
    @dataclass(frozen=True)
    class Model:
        dim: int = 1
        more: list = field(default_factory=list)
        def twice(self):
            log.info("twice")
            return dataclasses.replace(self, dim=2 * self.dim)
        @classmethod
        def tiny(cls): return cls(dim=1)
    class Pair(NamedTuple):
        a: int
    class Level(enum.Enum):
        LOW = enum.auto()
    SMALL = Model(dim=2)
    TINY = Model.tiny()
    LARGE = dataclasses.replace(SMALL, dim=9)
    PAIR = Pair(1)
    def grid(n):
        made = []
        for i in range(n):
            made.append({"n": i})
            made[-1]["m"] = i
        return made
    GRID = grid(3)
    @step
    def other(*, n: int) -> int:
        SIZES["c"] = n
        return n
    HANDLE = other(n=1)
    def build(): return [other(n=n) for n in range(3)]
    TARGETS = build()
    @step(resources=Resources(cpus=2))
    def work(): return 1
    if X > 5 and HERE.exists() and grid(1):
        Y = grid(2)
"""


def test_what_only_makes_a_value_belongs_to_those_that_read_it(code_of: Callable[..., Code]) -> None:
    assert set(code_of(main=PURE).units) == {"pkg.main:work"}


def test_a_comment_or_layout_of_an_effect_changes_nothing(code_of: Callable[..., Code]) -> None:
    def digest(plugins: str) -> str:
        return code_of(registry=REGISTRY, plugins=plugins, main=MAIN).digest

    before = digest("from pkg.registry import register\ng = register('f', 1)\n")
    assert before == digest("from pkg.registry import register\n# why\ng = register(\n    'f',\n    (1),  # 1\n)\n")
    assert before != digest("from pkg.registry import register\ng = register('f', 2)\n")
