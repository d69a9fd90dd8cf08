"""The recipe against Delphi's published runs, and the invariants of everything it gives."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_delphi import CompletedAdamHParams
from marin_delphi.errors import BudgetError, RecipeError, SelectionError

RECIPE = CompletedAdamHParams()
SUITE = {3e18: 5, 9e18: 10, 1.8e19: 15, 3e19: 9, 9e19: 14, 1.8e20: 13, 3e20: 12}
"""Budget -> number of runs, as published."""

BUDGETS = st.floats(math.log(1e18), math.log(3e25)).map(math.exp)


def target(budget: float) -> float:
    """Tokens of the loss-optimal model, Delphi's fit over its seven optima."""
    return 0.04758 * budget**0.5684


def fork(name: str, value: Any) -> CompletedAdamHParams:
    """The recipe with one field changed."""
    changes: dict[str, Any] = {name: value}
    return dataclasses.replace(RECIPE, **changes)


PUBLISHED = {
    # name: (candidate, H, L, heads, MLP, N logged, tokens, B, steps, eta, Adam rate, beta2, eps), each as printed
    "3e18 smallest": (
        lambda: RECIPE.candidates(3e18)[0],
        (512, 6, 4, 2048, 156_508_160, 4_304_928_768, 32, 32_844),
        ("3.785e-03", "3.53e-04", "0.9999", "3.433e-08"),
    ),
    "3e20 largest": (
        lambda: RECIPE.candidates(3e20)[-1],
        (4096, 40, 32, 16384, 11_788_433_408, 3_964_207_104, 16, 60_489),
        ("2.743e-03", "2.60e-04", "0.9999", "4.659e-08"),
    ),
    "1e21": (
        lambda: RECIPE.select(1e21, tokens_min=46.2e9).with_batch(512),
        (2560, 26, 20, 10240, 3_383_110_656, 46_256_881_664, 512, 22_057),
        ("7.425e-03", "4.314e-04", "0.99920", "2.813e-08"),
    ),
    "1e22": (
        lambda: RECIPE.select(1e22, tokens_min=target(1e22)).with_batch(1024),
        (3840, 37, 30, 15360, 9_714_698_752, 160_369_213_440, 1024, 38_235),
        ("7.232e-03", "3.276e-04", "0.99840", "3.704e-08"),
    ),
    "1e23": (
        lambda: RECIPE.select(1e23, tokens_min=target(1e23)).with_batch(2048),
        (5376, 51, 42, 21504, 24_963_098_112, 628_172_521_472, 2048, 74_884),
        ("6.790e-03", "2.341e-04", "0.99680", "5.184e-08"),
    ),
}


def as_printed(value: float, like: str) -> str:
    """``value`` with as many digits as the published text ``like``."""
    kind = "e" if "e" in like else "f"
    digits = len(like.partition("e")[0].partition(".")[2])
    return f"{value:.{digits}{kind}}"


@pytest.mark.parametrize(("budget", "count"), SUITE.items())
def test_the_suite_has_the_published_number_of_runs(budget: float, count: int) -> None:
    assert len(RECIPE.candidates(budget)) == count


@pytest.mark.parametrize("run", PUBLISHED)
def test_published_runs_to_the_printed_digit(run: str) -> None:
    make, counts, printed = PUBLISHED[run]
    c = make()
    a, h = c.architecture, c.hyperparameters
    assert counts == (
        a.hidden_dim,
        a.num_layers,
        a.num_heads,
        a.mlp_dim,
        c.num_params(),
        c.tokens,
        c.batch_size,
        c.steps,
    )
    assert a.num_kv_heads == a.num_heads
    values = (h.learning_rate, h.adam_learning_rate, h.beta2, h.eps)
    assert printed == tuple(as_printed(v, like) for v, like in zip(values, printed, strict=True))
    assert h.beta1 == 0.9


@pytest.mark.parametrize(
    ("budget", "own_batch", "logged_flops"),
    [(1e21, 256, 1.000005513819445e21), (1e22, 1024, 9.999954550919371e21), (1e23, 4096, 1.0000093447543512e23)],
)
def test_held_out_runs_have_the_logged_flops(budget: float, own_batch: int, logged_flops: float) -> None:
    c = RECIPE.select(budget, tokens_min=46.2e9 if budget == 1e21 else target(budget))
    assert c.batch_size == own_batch
    assert c.flops == pytest.approx(logged_flops, rel=1e-15)


@given(BUDGETS)
def test_every_candidate_spends_the_budget_within_half_a_step(budget: float) -> None:
    for c in RECIPE.candidates(budget):
        assert abs(c.tokens - c.tokens_exact) <= c.batch_size * RECIPE.seq_len / 2
        assert c.flops / budget == pytest.approx(c.tokens / c.tokens_exact, rel=1e-12)
        assert c.tokens == c.steps * c.batch_size * RECIPE.seq_len


@given(BUDGETS)
def test_every_candidate_keeps_the_caps(budget: float) -> None:
    for c in RECIPE.candidates(budget):
        params = c.num_params(convention="recipe")
        assert params <= RECIPE.num_params_cap(budget) <= 1e12
        assert c.tokens_exact / params <= 250
        assert 8 <= c.batch_size <= 8192
        assert c.batch_size & (c.batch_size - 1) == 0
        h = c.hyperparameters
        assert c.batch_size == 8 or max(h.learning_rate, h.adam_learning_rate) < 0.01
        assert 0.9 < h.beta2 <= 0.9999


@given(BUDGETS)
def test_a_doubled_batch_would_break_a_bound_or_undershoot_the_steps(budget: float) -> None:
    for c in RECIPE.candidates(budget):
        doubled = RECIPE.hyperparameters(batch_size=2 * c.batch_size, tokens=c.tokens_exact)
        at_a_bound = max(doubled.learning_rate, doubled.adam_learning_rate) >= 0.01 or doubled.beta2 <= 0.9
        assert at_a_bound or c.tokens_exact <= c.batch_size * RECIPE.seq_len * 2**16


@given(BUDGETS)
def test_candidates_run_from_narrow_to_wide_on_the_grid(budget: float) -> None:
    widths = [c.architecture.hidden_dim for c in RECIPE.candidates(budget)]
    step = 128 if budget <= 2e19 else 256
    assert widths == list(range(widths[0], widths[-1] + 1, step))
    assert (widths[0] - 512) % step == 0


@given(BUDGETS, st.integers(1, 20_000))
def test_another_batch_keeps_the_tokens_and_covers_them(budget: float, batch: int) -> None:
    c = RECIPE.candidates(budget)[0]
    other = c.with_batch(batch)
    assert (other.tokens, other.architecture) == (c.tokens, c.architecture)
    per_step = batch * RECIPE.seq_len
    assert (other.steps - 1) * per_step < c.tokens <= other.steps * per_step


def test_its_own_batch_changes_nothing() -> None:
    assert all(c.with_batch(c.batch_size) == c for c in RECIPE.candidates(1e21))


def test_hyperparameters_at_the_anchor_are_the_anchor() -> None:
    h = RECIPE.hyperparameters(batch_size=64, tokens=2.5e9)
    assert (h.learning_rate, h.adam_learning_rate, h.beta2, h.eps) == (0.0063, 6.56e-4, 0.9999, 1.85e-8)


def test_half_life_of_the_second_moment_is_constant_in_tokens() -> None:
    small, large = (RECIPE.hyperparameters(batch_size=b, tokens=1e12).beta2 for b in (64, 512))
    assert 8 * math.log(small) == pytest.approx(math.log(large))


def test_initial_scales() -> None:
    assert RECIPE.init_std(1024) == 1 / 32
    assert RECIPE.embedding_init_std(512) == 1 / 512


@given(BUDGETS, st.floats(0, 1))
def test_selection_takes_the_fewest_tokens_that_suffice(budget: float, at: float) -> None:
    tokens = sorted(c.tokens for c in RECIPE.candidates(budget))
    wanted = at * tokens[-1]
    chosen = RECIPE.select(budget, tokens_min=wanted)
    assert chosen.tokens == min(t for t in tokens if t >= wanted)


def test_selection_of_too_many_tokens_says_what_there_is() -> None:
    with pytest.raises(SelectionError, match=r"tokens_min=1e\+13 .* the most tokens there are 1\.661e\+11"):
        RECIPE.select(1e21, tokens_min=1e13)


@pytest.mark.parametrize(
    ("budget", "why"), [(1e15, "29 for a batch under 8"), (1e26, "45 for over 250 tokens a parameter")]
)
def test_a_budget_without_configurations_says_what_dropped_them(budget: float, why: str) -> None:
    with pytest.raises(BudgetError, match=why):
        RECIPE.candidates(budget)


@pytest.mark.parametrize("budget", [0.0, -3e18, math.nan, math.inf])
def test_a_budget_that_is_no_compute_is_refused(budget: float) -> None:
    with pytest.raises(BudgetError, match="must be a positive, finite number of FLOPs"):
        RECIPE.candidates(budget)


def test_a_fork_changes_what_follows_from_its_field_and_its_digest() -> None:
    narrow = dataclasses.replace(RECIPE, mlp_ratio=3)
    assert narrow.architecture(1024).mlp_dim == 3072
    assert narrow.digest() != RECIPE.digest()
    assert {c.recipe for c in narrow.candidates(3e18)} == {narrow}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(CompletedAdamHParams) if f.type in (int, float)])
def test_every_coefficient_enters_the_digest(name: str) -> None:
    value = getattr(RECIPE, name)
    # Halved where doubling leaves the field's range: decays stay below one, widths stay whole heads.
    other = value / 2 if name.startswith("beta") else value // 2 if name == "head_dim" else 2 * value or 0.01
    assert fork(name, other).digest() != RECIPE.digest()


def test_equal_recipes_have_equal_digests_whatever_number_type_or_source() -> None:
    whole = dataclasses.replace(RECIPE, mlp_ratio=4, source="a notebook")
    assert whole == RECIPE
    assert whole.digest() == RECIPE.digest()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("learning_rate", 0.0, "learning_rate=0.0 must be finite and positive"),
        ("z_loss", -1e-7, "z_loss=-1e-07 must be finite and not negative"),
        ("anchor_tokens", math.nan, "anchor_tokens=nan must be finite"),
        ("beta1", 1.5, "beta1=1.5 must be below 1"),
        ("warmup", 0.9, "warmup=0.9 and decay=0.2 are fractions"),
        ("hidden_dim_step", 100, "hidden_dim_step=100 must be a multiple of head_dim=128"),
        ("seq_len", 4096.5, "seq_len=4096.5 must be a whole number"),
    ],
)
def test_a_coefficient_that_cannot_be_is_refused_by_name(field: str, value: float, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        fork(field, value)


def test_a_width_of_broken_heads_is_refused() -> None:
    with pytest.raises(RecipeError, match="hidden_dim=600 must be a positive multiple of head_dim=128"):
        RECIPE.architecture(600)
