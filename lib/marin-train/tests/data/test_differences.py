from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_train.configs import ShuffleConfig, Stage
from marin_train.data.differences import diff, to_text
from marin_train.data.mixture import Mixture, digest_batch

Open = Callable[..., Mixture]


def _differing(a: Mixture, b: Mixture, steps: int) -> list[int]:
    """By reading every token."""
    return [s for s in range(steps) if digest_batch(a.batch(s)) != digest_batch(b.batch(s))]


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    starts = sorted(draw(st.sets(st.integers(1, 30), max_size=3)))
    weight = st.sampled_from([0.5, 1.0, 2.0])
    return {
        "stages": tuple(Stage(start=s, weights={"a": draw(weight), "c": draw(weight)}) for s in starts),
        "seed": draw(st.sampled_from([0, 0, 0, 1])),
        "b": draw(weight),
        "of": {"b": {"validation": draw(st.integers(0, 1))}},
        "shuffle": ShuffleConfig(block=draw(st.sampled_from([0, 0, 3]))),
    }


@given(one=changes(), other=changes())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_steps_that_differ_are_those_whose_tokens_do(mixture: Open, one: dict, other: dict) -> None:
    a, b = mixture(**one), mixture(**other)
    difference = diff(a, b, steps=40)
    named = [step for start, stop in difference.ranges for step in range(start, stop)]
    assert named == _differing(a, b, 40)
    assert difference.num_differing == len(named)
    assert difference.first == (named[0] if named else None)
    if named:
        assert difference.reasons


def test_a_stage_changes_no_step_before_it(mixture: Open) -> None:
    stages = (Stage(start=17, weights={"a": 1.0}),)
    difference = diff(mixture(), mixture(stages=stages), steps=30)
    assert difference.ranges == ((17, 30),)
    assert difference.reasons == ("stage 1: none -> from step 17 on a 1",)
    assert to_text(difference).splitlines()[:2] == ["13 of 30 steps differ, the first is step 17", "steps: 17-29"]


def test_a_step_that_only_one_mixture_has_differs(mixture: Open) -> None:
    limited = mixture("a", of={"a": {"max_epochs": 2.0}})
    assert diff(limited, mixture("a"), steps=12).ranges == ((8, 12),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": "ac"}, "component 'b' is only in the first"),
        ({"a": 3.0}, "component 'a': weight 1 -> 3"),
        ({"seed": 4}, "seed 0 -> 4"),
        ({"batch_size": 4}, "batch_size 5 -> 4"),
        ({"shuffle": ShuffleConfig(block=2)}, "shuffle.block 0 -> 2"),
        ({"of": {"a": {"max_epochs": 1.5}}}, "component 'a': max_epochs none -> 1.5"),
    ],
)
def test_a_reason_names_what_is_not_the_same(mixture: Open, change: dict[str, Any], reason: str) -> None:
    difference = diff(mixture(), mixture(**change), steps=20)
    assert difference.num_differing > 0
    assert difference.reasons == (reason,)
    assert reason in to_text(difference)


def test_another_store_of_the_same_name_changes_the_steps_that_read_it(
    mixture: Open, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    before = mixture(b=0.1)
    (tmp_path / "b").rename(tmp_path / "old")
    write_store(tmp_path / "b", [[(1000 + np.arange(29)).tolist()]], vocab_size=5000)
    difference = diff(before, mixture(b=0.1), steps=20)
    reads = [step for step in range(20) if 1 in before.rows(step).component]
    assert [s for start, stop in difference.ranges for s in range(start, stop)] == reads
    assert 0 < len(reads) < 20
    assert "component 'b': the store is another one" in difference.reasons[0]


def test_equal_mixtures_differ_nowhere(mixture: Open, tmp_path: Path) -> None:
    difference = diff(mixture("abc"), mixture("cab"), steps=10**9)
    assert (difference.ranges, difference.reasons) == ((), ())
    assert to_text(difference) == "no step of 1,000,000,000 differs\nthe mixtures are the same"
