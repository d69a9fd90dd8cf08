"""Results: a value is the same wherever it is read, and is what the annotation says."""

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import UsageError, resolve, run
from marin_core.launchers.worker import plain
from marin_core.results import form, restore


class Level(enum.Enum):
    LOW = 1
    HIGH = (2, "x")


class Name(enum.StrEnum):
    A = "a"


class Where(NamedTuple):
    path: Path
    level: Level | None = None


@dataclass(frozen=True)
class Box[T]:
    item: T
    rest: tuple[T, ...] = ()


@dataclass(frozen=True)
class Leaf:
    level: Level
    loss: float = 0.0
    path: Path | None = None


@dataclass(frozen=True)
class Other:
    kind: Literal["other"]
    pair: tuple[int, Leaf]
    double: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2.0 * self.pair[0])


type Alias = list[Leaf]
Identifier = NewType("Identifier", int)

leaves = st.builds(
    Leaf,
    st.sampled_from(Level),
    st.floats(allow_nan=False),
    st.one_of(st.none(), st.sampled_from([Path("a"), Path("b/c")])),
)
others = st.builds(Other, st.just("other"), st.tuples(st.integers(-5, 5), leaves))
TYPED: dict[Any, st.SearchStrategy[Any]] = {
    Leaf: leaves,
    Other: others,
    Leaf | Other | None: st.one_of(leaves, others, st.none()),
    list[Leaf]: st.lists(leaves, max_size=3),
    dict[str, Leaf | None]: st.dictionaries(st.sampled_from("ab"), st.one_of(leaves, st.none())),
    tuple[Leaf, ...]: st.lists(leaves, max_size=3).map(tuple),
    tuple[int, str, Level]: st.tuples(st.integers(), st.text(), st.sampled_from(Level)),
    Box[Leaf]: st.builds(Box, leaves, st.lists(leaves, max_size=2).map(tuple)),
    Box[Box[Level]]: st.builds(Box, st.builds(Box, st.sampled_from(Level))),
    Where: st.builds(Where, st.just(Path("a")), st.sampled_from([None, *Level])),
    Name: st.sampled_from(Name),
    Alias: st.lists(leaves, max_size=3),
    Annotated[Leaf, "doc"]: leaves,
    Identifier: st.integers(),
    float | str: st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.text()),
    float | None: st.one_of(st.floats(allow_nan=False), st.none()),
    Any: st.one_of(st.integers(), st.text(), st.none()),
}


@pytest.mark.parametrize("kind", TYPED, ids=str)
@given(data=st.data())
def test_what_was_recorded_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    value = data.draw(TYPED[kind])
    recorded = json.loads(json.dumps(plain(value, where="v"), allow_nan=False))
    back = restore(kind, recorded, where="v")
    assert back == value
    assert type(back) is type(value)


def test_what_is_not_finite_comes_back_where_a_float_is_meant() -> None:
    assert math.isnan(restore(Leaf, plain(Leaf(Level.LOW, math.nan), where="v"), where="v").loss)
    assert restore(dict, {"loss": "NaN"}, where="v") == {"loss": "NaN"}


@dataclass(frozen=True)
class More(Leaf):
    extra: int = 0


@dataclass(frozen=True)
class Twin:
    level: Level
    loss: float = 0.0
    path: Path | None = None


@dataclass
class Seeded:
    seed: dataclasses.InitVar[int]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Leaf, More(Level.LOW), r"v was recorded with a field 'extra', which Leaf does not have; annotate"),
        (list[Leaf], [More(Level.LOW)], r"v\[0\] was recorded with a field 'extra'"),
        (Leaf | Twin, Leaf(Level.LOW), "v may be each of Leaf and Twin"),
        (Leaf, {"level": 9}, r"v\.level is 9, which is no value of Level"),
        (Leaf, {}, "v cannot be read back as a Leaf: .*'level'"),
        (Seeded, Seeded(1), "v cannot be read back as a Seeded: .*'seed'"),
        (tuple[int, int], (1, 2, 3), "v has 3 items, but its annotation 2"),
    ],
)
def test_what_does_not_fit_is_told_with_its_path(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        restore(kind, json.loads(json.dumps(plain(value, where="v"))), where="v")


FLOW = """
    import enum
    from dataclasses import dataclass
    from pathlib import Path
    from marin_core import step

    class Level(enum.Enum):
        LOW = "low"

    @dataclass(frozen=True)
    class Score:
        level: Level
        path: Path
        table: dict
        rest: tuple["Score", ...] = ()

    @step
    def make(*, n: int = 1) -> list[Score] | None:
        return [Score(Level.LOW, Path("a"), {"b": 1, "a": 2}, (Score(Level.LOW, Path("b"), {}),))] if n else None

    @step
    def show(made: object) -> str:
        return repr(made)
"""


@pytest.mark.parametrize("launcher", ["inline", "process"])
def test_a_value_is_the_same_to_a_body_and_to_every_reader(
    module: Callable[[str], ModuleType], prefix: str, launcher: str
) -> None:
    flow = module(FLOW)
    made, shown = flow.make(), flow.show(flow.make())
    first = run(made, shown, prefix=prefix, launcher=launcher)
    again = run(made, shown, prefix=prefix, launcher=launcher)
    forms = {repr(report.value(made)) for report in (first, again)} | {repr(resolve(made, prefix=prefix))}
    forms |= {report.value(shown) for report in (first, again)}
    inner = flow.Score(flow.Level.LOW, Path("b"), {})
    assert forms == {repr([flow.Score(flow.Level.LOW, Path("a"), {"a": 2, "b": 1}, (inner,))])}
    assert resolve(flow.make(n=0), prefix=prefix, launcher=launcher) is None


def test_a_form_tells_apart_what_is_restored_differently_and_nothing_else() -> None:
    def told(kind: Any) -> str:
        return form(kind, name=lambda cls: cls.__qualname__)

    plain = [None, Any, int, str, dict, list[int], dict[str, list[int]], int | None, "forward", Annotated[int, "x"]]
    assert {told(kind) for kind in plain} == {""}
    made = [float, Path, Path | None, str | Path, tuple[int, int], list[Path], dict[str, Path], list[tuple[Path, ...]]]
    assert len({told(kind) for kind in made} - {""}) == len(made)
    assert told(Annotated[Path, "x"]) == told(Path)
