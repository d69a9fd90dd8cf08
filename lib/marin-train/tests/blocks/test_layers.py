from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from marin_train import models
from marin_train.configs import ModelConfig
from marin_train.models.decoder import forward
from marin_train.parameters import build
from marin_train.policy import Policy

MODEL = ModelConfig(
    vocab_size=16, hidden_dim=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=64, max_seq_len=16
)


def operations(jaxpr: Jaxpr) -> Counter[str]:
    """How often each operation stands in a program and in the programs that it calls."""
    found: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        found[equation.primitive.name] += 1
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
            if isinstance(value, Jaxpr | ClosedJaxpr):
                found += operations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
    return found


def differentiated(policy: Policy) -> Counter[str]:
    """The operations of one layer and its derivatives."""
    family = models.family(MODEL)
    table = family.parameter_table(MODEL)
    model = build(family.Model, {p.path: jax.ShapeDtypeStruct(p.shape, jnp.float32) for p in table})
    tokens = jnp.zeros((2, 16), jnp.int32)
    gradient = jax.grad(lambda model: jnp.sum(forward(model, tokens, config=MODEL, policy=policy)))
    return operations(jax.make_jaxpr(gradient)(model).jaxpr)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("attention", "again"),
    [
        # Recomputed in full: all of the seven products with weights but the last, and attention's two.
        ("reference", {"full": 8, "dots": 1, "named": 4}),
        ("dot_product", {"full": 8, "dots": 1, "named": 4}),
        # This one's derivative takes scores anew anyway, so that nothing of its forward pass is left.
        ("blocked", {"full": 8, "dots": 0, "named": 3}),
    ],
)
def test_what_is_kept_of_a_layer_is_not_computed_again(attention, again, precision):
    how = Policy(operands=precision, activations=precision, attention=attention)
    products = {remat: differentiated(replace(how, remat=remat))["dot_general"] for remat in ("keep", *again)}
    assert {remat: products[remat] - products["keep"] for remat in again} == again


@pytest.mark.parametrize(("remat", "again"), [("full", 1), ("named", 0)])
def test_a_splash_kernel_runs_again_only_where_all_is_recomputed(remat, again):
    kept, found = (differentiated(Policy(attention="splash", remat=r))["pallas_call"] for r in ("keep", remat))
    assert found - kept == again
