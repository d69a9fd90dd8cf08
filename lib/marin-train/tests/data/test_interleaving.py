import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.data.interleaving import WHOLE, Interleave, _floors
from marin_train.errors import ConfigError, ExhaustedError

POSITIVE = st.floats(1e-9, 1e9, allow_nan=False) | st.integers(1, 5).map(float)
WEIGHTS = st.lists(POSITIVE, min_size=1, max_size=12).map(
    lambda values: {f"c{i:02}": weight for i, weight in enumerate(values)}
)
Stages = list[tuple[int, dict[str, float]]]


def constant(weights: dict[str, float], **limits: int) -> Interleave:
    return Interleave(list(weights), [(0, weights)], limits=limits)


@st.composite
def stages(draw: st.DrawFn, *, weight: st.SearchStrategy[float] = POSITIVE) -> Stages:
    """Stages of two to nine components, at any draws."""
    names = [f"c{i}" for i in range(draw(st.integers(2, 9)))]
    starts = sorted(draw(st.sets(st.integers(1, 300), max_size=12)))
    some = st.lists(weight, min_size=len(names), max_size=len(names)).filter(any)
    return [(start, dict(zip(names, draw(some), strict=True))) for start in (0, *starts)]


ANY_STAGES = stages(weight=POSITIVE | st.just(0.0))


def _targets(stage_list: Stages, num_draws: int) -> dict[str, Fraction]:
    """By definition: the sum of the shares of every draw."""
    targets = dict.fromkeys(stage_list[0][1], Fraction(0))
    for (start, weights), stop in zip(stage_list, [*(s for s, _ in stage_list[1:]), num_draws], strict=True):
        exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
        for name, weight in exact.items():
            targets[name] += weight / sum(exact.values()) * max(0, min(stop, num_draws) - start)
    return targets


@given(weights=WEIGHTS, start=st.integers(0, 10**15), length=st.integers(0, 60))
@settings(max_examples=50)
def test_each_draw_is_the_next_of_its_component(weights: dict[str, float], start: int, length: int) -> None:
    interleave = constant(weights)
    draws = interleave.draws(start, start + length)
    counts = interleave.counts(start)
    for component, ordinal in zip(draws.component, draws.ordinal, strict=True):
        assert ordinal == counts[component]
        counts[component] += 1
    assert np.array_equal(counts, interleave.counts(start + length))


@given(stage_list=ANY_STAGES)
@settings(max_examples=50)
def test_each_draw_is_the_next_of_its_component_whatever_the_stages(stage_list: Stages) -> None:
    interleave = Interleave(list(stage_list[0][1]), stage_list)
    draws = interleave.draws(0, 400)
    counts = np.zeros(len(interleave.names), np.int64)
    for n, (component, ordinal) in enumerate(zip(draws.component, draws.ordinal, strict=True)):
        assert np.array_equal(interleave.counts(n), counts)
        assert ordinal == counts[component]
        counts[component] += 1


@given(weights=WEIGHTS, prefix=st.integers(0, 10**15))
@settings(max_examples=50)
def test_every_prefix_holds_exact_proportions(weights: dict[str, float], prefix: int) -> None:
    counts = constant(weights).counts(prefix)
    assert counts.sum() == prefix
    for count, target in zip(counts.tolist(), _targets([(0, weights)], prefix).values(), strict=True):
        # Half a sequence for each level of the tree; shares are rounded to 96 bits.
        assert abs(count - target) <= Fraction(math.ceil(math.log2(len(weights))), 2) + Fraction(1, 10**6)


@given(stage_list=stages())
@settings(max_examples=50)
def test_changes_of_weights_do_not_add_up_to_a_drift(stage_list: Stages) -> None:
    interleave = Interleave(list(stage_list[0][1]), stage_list)
    depth = math.ceil(math.log2(len(interleave.names)))
    for n in range(0, 400, 23):
        for count, target in zip(interleave.counts(n).tolist(), _targets(stage_list, n).values(), strict=True):
            assert -depth * (depth + 1) / 4 - 1e-6 <= count - target <= depth / 2 + 1e-6


@given(weights=WEIGHTS, start=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 50), max_size=5))
@settings(max_examples=50)
def test_draws_do_not_depend_on_how_they_are_asked_for(weights: dict[str, float], start: int, cuts: list[int]) -> None:
    interleave = constant(weights)
    whole = interleave.draws(start, start + 50)
    bounds = [0, *sorted(cuts), 50]
    for a, b in reversed(list(itertools.pairwise(bounds))):
        piece = interleave.draws(start + a, start + b)
        assert np.array_equal(piece.component, whole.component[a:b])
        assert np.array_equal(piece.ordinal, whole.ordinal[a:b])


def test_a_window_longer_than_one_pass_is_the_passes_joined() -> None:
    interleave = constant({"a": 0.3, "b": 0.7, "c": 1e-3})
    whole = interleave.draws(5, 30_005)
    assert np.array_equal(np.bincount(whole.component), interleave.counts(30_005) - interleave.counts(5))
    assert np.array_equal(whole.ordinal[20_000:20_010], interleave.draws(20_005, 20_015).ordinal)


def test_a_tiny_weight_gets_its_turn() -> None:
    interleave = constant({"web": 1.0, "rare": 1e-12})
    assert interleave.counts(10**12)[1] in (0, 1)
    assert interleave.counts(10**13)[1] in (9, 10, 11)


def test_a_tiny_weight_gets_its_turn_under_a_stage_every_step() -> None:
    """Each stage alone owes it a twentieth of a sequence."""
    rng = np.random.default_rng(0)
    stage_list = [(8 * i, {"rare": 1 / 160, **dict(zip("abc", rng.dirichlet([1, 1, 1]), strict=True))})
                  for i in range(2000)]  # fmt: skip
    interleave = Interleave(["a", "b", "c", "rare"], stage_list)
    for n in range(0, 16_000, 500):
        assert abs(interleave.counts(n)[3] - n / 161) < 1.5


@given(stage_list=ANY_STAGES)
@settings(max_examples=50)
def test_a_component_without_weight_is_not_drawn_at_all(stage_list: Stages) -> None:
    interleave = Interleave(list(stage_list[0][1]), stage_list)
    for (start, weights), stop in zip(stage_list, [*(s for s, _ in stage_list[1:]), 400], strict=True):
        drawn = {interleave.names[i] for i in interleave.draws(start, stop).component}
        assert drawn <= {name for name, weight in weights.items() if weight}


def test_a_stage_that_changes_nothing_changes_no_draw() -> None:
    weights = {"a": 0.31, "b": 0.24, "c": 0.45}
    stage_list = [(start, weights) for start in (0, 7, 8, 100)]
    a, b = constant(weights).draws(0, 300), Interleave(list("abc"), stage_list).draws(0, 300)
    assert np.array_equal(a.component, b.component)


def test_weights_are_read_as_the_decimals_that_were_written() -> None:
    counts = constant({"a": 0.1, "b": 0.2, "c": 0.7}).counts(10**18)
    assert counts.tolist() == [10**17, 2 * 10**17, 7 * 10**17]


@given(stage_list=ANY_STAGES, data=st.data())
@settings(max_examples=50)
def test_a_component_at_its_limit_leaves_its_share_to_the_others(stage_list: Stages, data: st.DataObject) -> None:
    names = list(stage_list[0][1])
    limits = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 60), max_size=len(names)))
    interleave = Interleave(names, stage_list, limits=limits)
    end = 400 if interleave.end is None else min(400, interleave.end)
    draws = interleave.draws(0, end)
    counts = np.zeros(len(names), np.int64)
    for n, component in enumerate(draws.component.tolist()):
        assert draws.ordinal[n] == counts[component]
        counts[component] += 1
        if counts[component] == limits.get(names[component]):
            assert interleave.exhausted[names[component]] == n + 1
    assert all(counts[names.index(name)] <= limit for name, limit in limits.items())
    assert np.array_equal(counts, interleave.counts(end))


def test_after_an_exhaustion_the_others_keep_their_ratio() -> None:
    interleave = constant({"a": 3.0, "b": 1.0, "c": 4.0}, c=100)
    start = interleave.exhausted["c"]
    assert start in (199, 200, 201)
    a, b, c = (interleave.counts(start + 400) - interleave.counts(start)).tolist()
    assert abs(a - 300) <= 2
    assert abs(b - 100) <= 2
    assert c == 0


def test_a_component_that_no_stage_exhausts_has_no_last_draw() -> None:
    interleave = Interleave(["a", "b"], [(0, {"a": 1.0, "b": 1.0}), (10, {"a": 1.0})], limits={"b": 6})
    assert interleave.exhausted == {}
    assert interleave.end is None
    assert interleave.counts(10**12).tolist() == [10**12 - 5, 5]


def test_when_all_are_at_their_limit_the_draws_end() -> None:
    interleave = constant({"a": 1.0, "b": 1e-3}, a=20, b=30)
    assert interleave.end == 50
    assert interleave.draws(0, 50).component[-20:].tolist() == [1] * 20
    with pytest.raises(ExhaustedError, match=r"draw 50 .* ends after 50.*max_epochs times \(a, b\)"):
        interleave.draws(49, 51)


def test_more_draws_than_are_counted_are_refused() -> None:
    interleave = constant({"a": 1.0, "b": 2.0})
    assert interleave.counts(2**62).sum() == 2**62
    assert len(interleave.draws(2**62 - 5, 2**62).component) == 5
    with pytest.raises(ConfigError, match=f"{2**62 + 1} sequences are more than"):
        interleave.counts(2**62 + 1)
    with pytest.raises(ConfigError, match=f"{2**70 + 8} sequences are more than"):
        interleave.draws(2**70, 2**70 + 8)


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), -1.0])
def test_a_weight_that_is_negative_or_not_finite_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="'b'"):
        constant({"a": 1.0, "b": weight})


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="no component has a weight above 0 from draw 8"):
        Interleave(["a"], [(0, {"a": 1.0}), (8, {"a": 0.0})])


@given(WEIGHTS)
@settings(max_examples=50)
def test_shares_sum_to_the_whole(weights: dict[str, float]) -> None:
    shares = constant(weights | {"tiny": 1e-300}).segments[0].shares
    assert sum(shares) == WHOLE
    assert min(shares) > 0


@given(base=st.integers(-(10**40), 10**40), unit=st.integers(1, 10**40), data=st.data())
@settings(max_examples=50)
def test_fixed_point_floors_are_exact(base: int, unit: int, data: st.DataObject) -> None:
    slope = data.draw(st.integers(0, unit) | st.sampled_from([0, unit // 2, unit // 3, unit - 1, unit]))
    base %= 10**18 * unit
    expected = [(base + i * slope) // unit for i in range(100)]
    assert _floors(base, slope, unit, 100).tolist() == expected
