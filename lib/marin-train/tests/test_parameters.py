import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from jaxtyping import Array, Float

from marin_train import models
from marin_train.configs import ModelConfig, MoEConfig
from marin_train.errors import ParameterError
from marin_train.parameters import (
    Constant,
    Normal,
    Parameter,
    ParameterTable,
    build,
    gain,
    init_model,
    map_parameters,
    matrix,
    stacked,
)

SHAPE = ModelConfig(
    vocab_size=11, hidden_dim=8, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=12, max_seq_len=16
)


def leaf_shapes(model):
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}


@pytest.mark.parametrize("tie", [False, True])
def test_a_models_leaves_are_exactly_the_tables(tie):
    config = dataclasses.replace(SHAPE, tie_embeddings=tie)
    family = models.family(config)
    table = family.parameter_table(config)
    model = jax.eval_shape(lambda: init_model(family.Model, table, seed=0))
    assert leaf_shapes(model) == {p.path: p.shape for p in table}
    assert ("output" in leaf_shapes(model)) is not tie


def test_an_undeclared_leaf_is_an_error_that_names_it():
    class Pair(eqx.Module):
        left: Float[Array, " dim"]
        right: Float[Array, " dim"]

    table = ParameterTable((gain("left", 3, dim="dim", hf_key="left"),))
    with pytest.raises(ParameterError, match="right is a field of Pair"):
        init_model(Pair, table, seed=0)
    with pytest.raises(ParameterError, match="right is a leaf of the model but not in its parameter table"):
        map_parameters(lambda p: p, table, Pair(np.ones(3), np.ones(3)))


def test_a_declaration_without_a_leaf_is_an_error_that_names_it():
    class One(eqx.Module):
        left: Float[Array, " dim"]

    both = ParameterTable(tuple(gain(path, 3, dim="dim", hf_key=path) for path in ("left", "right")))
    with pytest.raises(ParameterError, match="not a leaf of the model: right"):
        init_model(One, both, seed=0)


def test_a_path_declared_twice_is_refused():
    leaf = gain("norm", 3, dim="embed", hf_key="norm")
    with pytest.raises(ParameterError, match=r"declared twice.*norm"):
        ParameterTable((leaf, leaf))


def test_shape_and_dims_must_agree():
    with pytest.raises(ParameterError, match="w: shape"):
        Parameter(path="w", shape=(2, 3), dims=("a",), role="matrix", init=Constant(0), hf_key="w")


def test_layers_may_only_be_stacked_in_front():
    with pytest.raises(ParameterError, match="must be the first"):
        Parameter(path="w", shape=(2, 3), dims=("a", "layer"), role="matrix", init=Constant(0), hf_key="w")


def test_initial_values_do_not_depend_on_the_other_leaves_or_on_depth():
    class Block(eqx.Module):
        weight: Float[Array, "*layer a b"]

    class Small(eqx.Module):
        layers: Block

    class Large(eqx.Module):
        first: Float[Array, "a b"]
        layers: Block

    weight = matrix("weight", (4, 5), dims=("a", "b"), hf_key="weight")
    first = matrix("first", (4, 5), dims=("a", "b"), hf_key="first")

    def layers(n):
        return stacked([weight], path="layers", num_layers=n, hf_key="layers.{layer}")

    small = init_model(Small, ParameterTable(layers(2)), seed=7)
    large = init_model(Large, ParameterTable((first, *layers(3))), seed=7)
    assert np.array_equal(small.layers.weight, large.layers.weight[:2])
    assert not np.array_equal(large.layers.weight[1], large.layers.weight[2])
    assert not np.array_equal(large.first, large.layers.weight[0])


def test_seed_decides_the_values():
    class One(eqx.Module):
        weight: Float[Array, "a b"]

    table = ParameterTable((matrix("weight", (4, 5), dims=("a", "b"), hf_key="weight"),))
    first, same, other = (init_model(One, table, seed=seed).weight for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_projections_start_with_variance_one_over_their_input_width():
    leaf = matrix("w", (400, 300), dims=("a", "b"), hf_key="w")
    assert leaf.init == Normal(400**-0.5)
    values = leaf.init(jax.random.key(0), leaf.shape)
    assert np.std(values) == pytest.approx(1 / 20, rel=0.02)


def test_build_leaves_an_optional_field_empty():
    class Maybe(eqx.Module):
        head: Float[Array, " dim"] | None

    assert build(Maybe, {}).head is None


def test_every_leaf_says_where_it_lies_in_a_published_checkpoint():
    table = models.family(SHAPE).parameter_table(SHAPE)
    assert table["layers.attention.query"].hf_key == "model.layers.{layer}.self_attn.q_proj.weight"
    assert table["output"].hf_key == "lm_head.weight"
    keys = [p.hf_key for p in table]
    assert len(set(keys)) == len(keys)
    assert all(("{layer}" in p.hf_key) == (p.dims[0] == "layer") for p in table)


def test_only_the_vocabulary_is_padded():
    with pytest.raises(ParameterError, match="w: only a dim 'vocab' is padded"):
        matrix("w", (4, 6), dims=("a", "b"), hf_key="w", padding=2)


EXPERTS = {"mixtral", "qwen3_moe", "marin_moe"}


@pytest.mark.parametrize("family", models.FAMILIES)
def test_every_leaf_of_every_family_says_where_it_lies_in_a_published_checkpoint(family):
    experts = {"moe": MoEConfig(num_experts=4, top_k=2, expert_dim=6), "mlp_dim": 0} if family in EXPERTS else {}
    experts |= {"norm_gate_dim": 4} if family == "marin_moe" else {}
    config = dataclasses.replace(SHAPE, family=family, **experts)
    keys = {p.path: p.hf_key for p in models.family(config).parameter_table(config)}
    assert all(("{expert}" in key) == (".experts." in path) for path, key in keys.items())
    assert len(set(keys.values())) == len(keys)
    assert all(("{layer}" in key) == path.startswith("layers.") for path, key in keys.items())
    norms = {
        "layers.attention_norm": "input_layernorm",
        "layers.attention_post_norm": "post_attention_layernorm",
        "layers.mlp_norm": "pre_feedforward_layernorm" if family == "gemma3" else "post_attention_layernorm",
        "layers.mlp_post_norm": "post_feedforward_layernorm",
        "layers.attention.query_norm": "self_attn.q_norm",
        "layers.attention.key_norm": "self_attn.k_norm",
    }
    for path, name in norms.items():
        assert keys.get(path, f"model.layers.{{layer}}.{name}.weight") == f"model.layers.{{layer}}.{name}.weight"
