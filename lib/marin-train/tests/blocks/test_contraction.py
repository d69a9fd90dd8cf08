import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train.blocks import contract
from marin_train.policy import Policy

SPECS = [
    ("bsd,df->bsf", (2, 5, 7), (7, 3)),
    ("bqhgd,bkhd->bhgqk", (2, 3, 2, 2, 4), (2, 6, 2, 4)),
    ("bhgqk,bkhd->bqhgd", (2, 2, 2, 3, 6), (2, 6, 2, 4)),
    ("bd,dv->bv", (1, 8), (8, 5)),
]


def operands(shape_a, shape_b):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=shape_a), jnp.float32), jnp.asarray(rng.normal(size=shape_b), jnp.float32)


def value_and_grads(spec, a, b, kind):
    def cost(a, b):
        return jnp.sum(jnp.sin(contract(spec, a, b, policy=Policy(operands=kind))))

    return jax.jit(jax.value_and_grad(cost, argnums=(0, 1)))(a, b)


@pytest.mark.parametrize(("spec", "shape_a", "shape_b"), SPECS)
def test_rounded_operands_agree_with_float32_to_their_precision_in_values_and_gradients(spec, shape_a, shape_b):
    a, b = operands(shape_a, shape_b)
    value, grads = value_and_grads(spec, a, b, "float32")
    rounded_value, rounded_grads = value_and_grads(spec, a, b, "bfloat16")
    assert rounded_value == pytest.approx(value, abs=0.02 * np.sqrt(a.size))
    for exact, rounded in zip(grads, rounded_grads, strict=True):
        assert rounded.dtype == jnp.float32
        assert np.linalg.norm(rounded - exact) < 0.02 * np.linalg.norm(exact)


def test_products_of_numbers_that_bfloat16_holds_are_exact_sums_in_float32():
    a = jnp.full((1, 4096), 1.0)
    b = jnp.full((4096, 1), 1.0).at[0, 0].set(2.0**-8)
    result = jax.jit(lambda a, b: contract("ij,jk->ik", a, b, policy=Policy(operands="bfloat16")))(a, b)
    assert float(result[0, 0]) == 4095 + 2.0**-8


def test_no_product_forward_or_backward_has_a_float32_operand():
    a, b = operands((2, 5, 7), (7, 3))

    def cost(a, b):
        return jnp.sum(contract("bsd,df->bsf", a, b, policy=Policy(operands="bfloat16")) ** 2)

    program = jax.jit(jax.grad(cost, argnums=(0, 1))).lower(a, b).as_text()
    products = [line.rpartition(" : ")[2] for line in program.splitlines() if "dot_general" in line]
    assert len(products) == 3
    for types in products:
        inputs, _, output = types.partition(" -> ")
        assert inputs.count("bf16>") == 2
        assert output.endswith("xf32>")
