"""Matrix products whose operands may be narrower than their results: the one place where precision is decided.

With ``operands="bfloat16"`` both operands are rounded to bfloat16 and products are accumulated and returned in
float32, in the forward pass and in both products of the backward pass. Everything between products stays float32:
element-wise bfloat16 is emulated on CPUs, and sums in it lose digits everywhere.

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

from marin_train.policy import Operands


def contract(spec: str, a: Float[Array, "..."], b: Float[Array, "..."], *, operands: Operands) -> Float[Array, "..."]:
    """The einsum of two float32 arrays, in float32.

    Args:
        spec: an einsum in which no index stands in one operand alone: ``"bsd,df->bsf"``.
        a: the left operand.
        b: the right operand.
        operands: the type to which both operands are rounded before they are multiplied.
    """
    return _contract(spec, operands, a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _contract(spec: str, operands: Operands, a: Array, b: Array) -> Array:
    return _product(spec, a.astype(operands), b.astype(operands))


def _forward(spec: str, operands: Operands, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    a, b = a.astype(operands), b.astype(operands)
    return _product(spec, a, b), (a, b)


def _backward(spec: str, operands: Operands, residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    inputs, out = spec.split("->")
    a_dims, b_dims = inputs.split(",")
    a, b, above = jax.lax.optimization_barrier((*residuals, cotangent.astype(operands)))
    return _product(f"{out},{b_dims}->{a_dims}", above, b), _product(f"{a_dims},{out}->{b_dims}", a, above)


_contract.defvjp(_forward, _backward)


def _product(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
