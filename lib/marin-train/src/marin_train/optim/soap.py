"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner.

Of each matrix's gradients G the averages of G G' and G' G are kept; their eigenvectors are the axes along which Adam's
second moment is taken. The first update finds them and moves nothing else: along its own eigenvectors a gradient is a
diagonal and rounding, which Adam would blow up. Every few updates one step of orthogonal iteration turns them. The
first moment stays in the matrix's own axes, so that it survives the turn.

Directions in which a matrix has had no gradient yet, as an oblong one's first leaves some, have no eigenvectors but
those that rounding gives. Hence under this rule alone losses on another mesh, or in other parts of a batch, differ by
more than rounding, some 1e-3; a restart on the same mesh is bitwise the same, as under every rule.

State of a matrix (in, out) is two of its size and two squares of either side.

See: Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam" (arXiv 2409.11321).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

_STATE = ("mean", "square", "left", "right", "left_axes", "right_axes")


class SoapState(NamedTuple):
    """Updates done; first moments in the matrices' own axes, second ones in the eigenvectors'; both averages of
    products, and their eigenvectors by column.
    """

    count: Int[Array, ""]
    mean: Any
    square: Any
    left: Any
    right: Any
    left_axes: Any
    right_axes: Any


def scale_by_soap(*, beta1: float, beta2: float, eps: float, refresh_steps: int) -> optax.GradientTransformation:
    """Adam's direction, taken in each matrix's eigenbasis.

    Args:
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment and of both products.
        eps: added to the root of the second moment.
        refresh_steps: updates between two turns of the axes.
    """

    def init(params: Any) -> SoapState:
        def squares(axis: int) -> Any:
            return jax.tree.map(lambda w: jnp.zeros((*w.shape[:-2], w.shape[axis], w.shape[axis]), w.dtype), params)

        zeros = optax.tree.zeros_like(params)
        count = jnp.zeros((), jnp.int32)
        return SoapState(count, zeros, zeros, squares(-2), squares(-1), squares(-2), squares(-1))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, SoapState]:
        begun = jnp.minimum(state.count, 1).astype(jnp.float32)
        num_moments = jnp.maximum(state.count, 1)
        leaves, treedef = jax.tree.flatten(updates)
        old = [treedef.flatten_up_to(getattr(state, name)) for name in _STATE]
        steps, new = [], []
        for gradient, mean, square, *products in zip(leaves, *old, strict=True):
            mean = beta1 * mean + (1 - beta1) * begun * gradient
            left, right, left_axes, right_axes = _turned(
                gradient, *products, count=state.count, beta=beta2, every=refresh_steps
            )
            rotated = _t(left_axes) @ gradient @ right_axes
            square = beta2 * square + (1 - beta2) * begun * jnp.square(rotated)
            corrected = (_t(left_axes) @ mean @ right_axes) / (1 - beta1**num_moments)
            step = corrected / (jnp.sqrt(square / (1 - beta2**num_moments)) + eps)
            steps.append(left_axes @ step @ _t(right_axes))
            new.append((mean, square, left, right, left_axes, right_axes))
        columns = [treedef.unflatten(column) for column in zip(*new, strict=True)]
        return treedef.unflatten(steps), SoapState(jnp.asarray(optax.safe_increment(state.count)), *columns)

    return optax.GradientTransformation(init, update)


def _turned(
    gradient: Float[Array, "... in out"],
    left: Float[Array, "... in in"],
    right: Float[Array, "... out out"],
    left_axes: Float[Array, "... in in"],
    right_axes: Float[Array, "... out out"],
    *,
    count: Int[Array, ""],
    beta: float,
    every: int,
) -> tuple[Array, Array, Array, Array]:
    """Both products with this gradient, and their axes, turned where it is time."""
    share = jnp.where(count == 0, 0.0, beta)
    left = share * left + (1 - share) * gradient @ _t(gradient)
    right = share * right + (1 - share) * _t(gradient) @ gradient
    when = jnp.where(count == 0, 2, (count % every == 0).astype(jnp.int32))
    left_axes, right_axes = jax.lax.switch(
        when,
        [
            lambda: (left_axes, right_axes),
            lambda: (jnp.linalg.qr(left @ left_axes)[0], jnp.linalg.qr(right @ right_axes)[0]),
            lambda: (jnp.linalg.eigh(left)[1][..., ::-1], jnp.linalg.eigh(right)[1][..., ::-1]),
        ],
    )
    return left, right, left_axes, right_axes


def _t(matrices: Float[Array, "... a b"]) -> Float[Array, "... b a"]:
    return jnp.swapaxes(matrices, -1, -2)
