"""Counts of parameters and FLOPs, against the published closed forms and against a leaf-by-leaf sum."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_delphi import flops_per_token, num_params
from marin_delphi.architecture import Architecture
from marin_delphi.errors import RecipeError


def delphi_shape(hidden_dim: int, num_layers: int) -> Architecture:
    heads = hidden_dim // 128
    return Architecture(
        vocab_size=128_256,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=128,
        mlp_dim=4 * hidden_dim,
    )


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    kv_heads = draw(st.integers(1, 8))
    return Architecture(
        vocab_size=draw(st.integers(1, 300_000)),
        hidden_dim=draw(st.integers(1, 20_000)),
        num_layers=draw(st.integers(1, 200)),
        num_heads=kv_heads * draw(st.integers(1, 8)),
        num_kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 256)),
        mlp_dim=draw(st.integers(1, 80_000)),
        tie_embeddings=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


def leaves(a: Architecture) -> dict[str, tuple[int, int]]:
    """Every leaf with its shape, written out as a trainer would hold it."""
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    layer = {
        "wq": (a.hidden_dim, queries),
        "wk": (a.hidden_dim, keys),
        "wv": (a.hidden_dim, keys),
        "wo": (queries, a.hidden_dim),
        "gate": (a.hidden_dim, a.mlp_dim),
        "up": (a.hidden_dim, a.mlp_dim),
        "down": (a.mlp_dim, a.hidden_dim),
        "attention_norm": (1, a.hidden_dim),
        "mlp_norm": (1, a.hidden_dim),
    }
    if a.qk_norm:
        layer |= {"q_gain": (1, a.head_dim), "k_gain": (1, a.head_dim)}
    tables = {"embed": (a.vocab_size, a.hidden_dim), "final_norm": (1, a.hidden_dim)}
    if not a.tie_embeddings:
        tables["head"] = (a.hidden_dim, a.vocab_size)
    return tables | {f"{i}.{name}": shape for i in range(a.num_layers) for name, shape in layer.items()}


@pytest.mark.parametrize(
    ("hidden_dim", "num_layers", "logged"),
    [
        (512, 6, 156_508_160),
        (2560, 26, 3_383_110_656),
        (3840, 37, 9_714_698_752),
        (4096, 40, 11_788_433_408),
        (5376, 51, 24_963_098_112),
    ],
)
def test_total_is_the_count_that_delphi_logged(hidden_dim: int, num_layers: int, logged: int) -> None:
    assert num_params(delphi_shape(hidden_dim, num_layers)) == logged


@given(hidden_dim=st.integers(1, 128).map(lambda n: 128 * n), num_layers=st.integers(1, 150))
def test_delphi_shapes_follow_the_published_closed_forms(hidden_dim: int, num_layers: int) -> None:
    a, H, L, V, seq = delphi_shape(hidden_dim, num_layers), hidden_dim, num_layers, 128_256, 4096
    assert num_params(a, convention="recipe") == L * (16 * H**2 + 2 * H) + H + 2 * V * H
    assert num_params(a, convention="total") == num_params(a, convention="recipe") + 256 * L
    forward = L * (32 * H**2 + 4 * seq * H + 3 * seq * H // 128) + 2 * H * V
    assert flops_per_token(a, seq_len=seq, training=False) == forward
    assert flops_per_token(a, seq_len=seq) == 3 * forward


@given(architectures())
def test_total_is_the_sum_over_the_leaves(a: Architecture) -> None:
    assert num_params(a) == sum(rows * columns for rows, columns in leaves(a).values())


@given(architectures())
def test_non_embedding_leaves_out_embedding_and_head(a: Architecture) -> None:
    tables = sum(rows * columns for name, (rows, columns) in leaves(a).items() if name in ("embed", "head"))
    assert num_params(a, convention="non_embedding") == num_params(a) - tables


@given(architectures(), st.integers(1, 32_768))
def test_matrices_cost_two_flops_a_weight_and_the_rest_is_attention(a: Architecture, seq_len: int) -> None:
    gains = ("norm", "gain")
    weights = {name: rows * columns for name, (rows, columns) in leaves(a).items() if not name.endswith(gains)}
    # The embedding is a lookup; tied, the same matrix is multiplied by as the head.
    in_matmuls = sum(weights.values()) - (0 if a.tie_embeddings else weights["embed"])
    attention = a.num_layers * a.num_heads * seq_len * (4 * a.head_dim + 3)
    assert flops_per_token(a, seq_len=seq_len, training=False) == float(2 * in_matmuls + attention)


@given(architectures(), st.integers(1, 32_768))
def test_causal_counts_the_visible_positions_alone(a: Architecture, seq_len: int) -> None:
    per_position = a.num_layers * a.num_heads * (4 * a.head_dim + 3)
    full = flops_per_token(a, seq_len=seq_len, training=False)
    causal = flops_per_token(a, seq_len=seq_len, causal=True, training=False)
    assert full - causal == pytest.approx(per_position * (seq_len - 1) / 2, rel=1e-9, abs=full * 1e-12)


def test_counts_stay_exact_beyond_64_bits() -> None:
    a = dataclasses.replace(delphi_shape(1280, 10), vocab_size=2**63)
    assert num_params(a) - num_params(dataclasses.replace(a, vocab_size=2**63 - 1)) == 2 * 1280


def test_a_shape_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"num_kv_heads=3 must divide num_heads=4"):
        dataclasses.replace(delphi_shape(512, 6), num_kv_heads=3)
    with pytest.raises(RecipeError, match=r"num_layers=0 must be at least 1"):
        delphi_shape(512, 0)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(RecipeError, match="convention='active' is not one of"):
        num_params(delphi_shape(512, 6), convention="active")  # type: ignore[arg-type]
