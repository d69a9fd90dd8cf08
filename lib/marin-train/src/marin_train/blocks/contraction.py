"""Matrix products whose operands may be narrower than their results: the one place where precision is decided.

With ``operands="bfloat16"`` both operands are rounded to bfloat16 and products are accumulated in float32, in the
forward pass and in both products of the backward pass. What is between products stays float32 on a machine that
emulates element-wise bfloat16, as CPUs do; where that is native, ``activations="bfloat16"`` halves what layers move
through memory, and only sums that lose digits (norms, softmax, losses, gradients of parameters) stay float32.

The derivative is written out for two reasons. Left to itself, jax would differentiate a product of rounded operands
into products with one float32 operand, which no matrix unit runs fast. And the compiler would fuse what made an
operand (a cast, an activation) into the transposed copy that a derivative's product reads, computing it in the order
of the transpose, which misses the cache at every step; the barrier has each operand computed once, in its own order.

See: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), section 3.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin_train.policy import Policy, Precision


def contract(
    spec: str, a: Float[Array, "..."], b: Float[Array, "..."], *, policy: Policy, result: Precision | None = None
) -> Float[Array, "..."]:
    """The einsum of two arrays; each one's gradient has its type.

    Args:
        spec: an einsum in which no index stands in one operand alone: ``"bsd,df->bsf"``.
        a: the left operand.
        b: the right operand.
        policy: its `operands` is the type to which both are rounded before they are multiplied.
        result: the type of the result; by default that of the policy's activations.
    """
    return _contract(spec, policy.operands, result or policy.activations, (str(a.dtype), str(b.dtype)), a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _contract(spec: str, operands: str, result: str, types: tuple[str, str], a: Array, b: Array) -> Array:
    return _product(spec, a.astype(operands), b.astype(operands), result=result)


def _forward(
    spec: str, operands: str, result: str, types: tuple[str, str], a: Array, b: Array
) -> tuple[Array, tuple[Array, Array]]:
    a, b = a.astype(operands), b.astype(operands)
    return _product(spec, a, b, result=result), (a, b)


def _backward(
    spec: str, operands: str, result: str, types: tuple[str, str], residuals: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    inputs, out = spec.split("->")
    a_dims, b_dims = inputs.split(",")
    a, b, above = jax.lax.optimization_barrier((*residuals, cotangent.astype(operands)))
    return (
        _product(f"{out},{b_dims}->{a_dims}", above, b, result=types[0]),
        _product(f"{a_dims},{out}->{b_dims}", a, above, result=types[1]),
    )


_contract.defvjp(_forward, _backward)


def _product(spec: str, a: Array, b: Array, *, result: str) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32).astype(result)
