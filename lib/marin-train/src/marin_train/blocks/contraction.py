"""Matrix products whose operands may be narrower than their results: the one place where precision is decided.

With ``operands="bfloat16"`` both operands are rounded to bfloat16 and products are accumulated and returned in
float32, in the forward pass and in both products of the backward pass. Everything between products stays float32:
element-wise bfloat16 is emulated on CPUs, and sums in it lose digits everywhere. Left to itself, jax would
differentiate a product of rounded operands into products with one float32 operand, which no matrix unit runs fast;
hence the derivative written out here.

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
    if operands == "float32":
        return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
    return _contract_rounded(spec, a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _contract_rounded(spec: str, a: Array, b: Array) -> Array:
    return _product(spec, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _product(spec, a, b), (a, b)


def _backward(spec: str, operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    a, b = operands
    inputs, out = spec.split("->")
    a_dims, b_dims = inputs.split(",")
    cotangent = cotangent.astype(jnp.bfloat16)
    return _product(f"{out},{b_dims}->{a_dims}", cotangent, b), _product(f"{a_dims},{out}->{b_dims}", a, cotangent)


_contract_rounded.defvjp(_forward, _backward)


def _product(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
