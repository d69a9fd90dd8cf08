from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from marin_train import models
from marin_train.configs import ModelConfig
from marin_train.models.decoder import forward
from marin_train.parameters import build
from marin_train.policy import Policy

MODEL = ModelConfig(
    vocab_size=16, hidden_dim=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=64, max_seq_len=16
)


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Those of a program and of the programs that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
            if isinstance(value, Jaxpr | ClosedJaxpr):
                yield from equations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)


def gradient_program(config: ModelConfig, policy: Policy) -> Jaxpr:
    """The layers and their derivatives."""
    family = models.family(config)
    table = family.parameter_table(config)
    model = build(family.Model, {p.path: jax.ShapeDtypeStruct(p.shape, jnp.float32) for p in table})
    tokens = jnp.zeros((2, 16), jnp.int32)
    gradient = jax.grad(lambda model: jnp.sum(forward(model, tokens, config=config, policy=policy)))
    return jax.make_jaxpr(gradient)(model).jaxpr


def differentiated(policy: Policy) -> Counter[str]:
    """How often each operation stands in the program of one layer and its derivatives."""
    return Counter(equation.primitive.name for equation in equations(gradient_program(MODEL, policy)))


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


@pytest.mark.parametrize(("remat", "period"), [("full", 1), ("dots", 1), ("named", 1), ("full", 2)])
def test_a_loop_over_layers_keeps_no_copy_of_their_parameters(remat, period):
    windows = {"sliding_window": 8, "global_every": 2} if period == 2 else {}
    config = replace(MODEL, num_layers=2 * period, mlp_dim=72, **windows)
    program = gradient_program(config, Policy(operands="bfloat16", attention="blocked", remat=remat, scan=True))
    loops = [equation for equation in equations(program) if equation.primitive.name == "scan"]
    stacked = [v.aval.shape for loop in loops for v in loop.outvars if v.aval.shape[-2:] == (32, 72)]
    # The gradients of the gate and of the other projection to that width, and nothing else.
    assert stacked == 2 * [(2, period, 32, 72)]
