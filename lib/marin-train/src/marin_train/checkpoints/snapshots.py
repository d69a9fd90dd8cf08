"""A copy of the state that the training step cannot touch: the step donates its buffers, a save outlives them.

Where the state lies in the host's memory, the copy is a compiled program that writes over the copy before it: fresh
memory would cost a page fault every 4 KiB, several times what the copy itself does. Elsewhere it goes to pinned memory
of the host. Both are only dispatched here; the runtime keeps the next step from overwriting what is still read.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

Leaves = Mapping[str, "jax.Array"]


class Snapshots:
    """Takes copies; each makes the one before it invalid."""

    def __init__(self) -> None:
        self._last: dict[str, jax.Array] | None = None
        self._copy: Callable[[Any, Any], Any] | None = None

    def prepare(self, like: Mapping[str, Any]) -> None:
        """Does beforehand what only the first copy needs: a program, and memory that is there and not just promised.

        Args:
            like: arrays, or their shapes, types and places; all that will be copied have the same.
        """
        import jax

        if not _is_on_host(like):
            return
        places = {name: leaf.sharding for name, leaf in like.items()}
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=places[name]) for name, leaf in like.items()
        }
        copy = jax.jit(_copied, donate_argnums=0, keep_unused=True, out_shardings=places)
        self._copy = copy.lower(shapes, shapes).compile()
        self._last = {name: jax.numpy.zeros(leaf.shape, leaf.dtype, device=places[name]) for name, leaf in like.items()}

    def take(self, leaves: Leaves) -> dict[str, "jax.Array"]:
        """Copies arrays, shard for shard, into the memory of the host that holds each shard."""
        import jax

        if not _is_on_host(leaves):
            places = {name: leaf.sharding.with_memory_kind("pinned_host") for name, leaf in leaves.items()}
            return jax.device_put(dict(leaves), places)
        if self._copy is None:
            self.prepare(leaves)
        assert self._copy is not None  # prepared just now
        self._last = self._copy(self._last, dict(leaves))
        return dict(self._last)


def _is_on_host(leaves: Mapping[str, Any]) -> bool:
    (first, *_) = leaves.values()
    return next(iter(first.sharding.device_set)).platform == "cpu"


def _copied(before: Leaves, leaves: Leaves) -> dict[str, Any]:
    """A copy of the leaves, in the memory of those before."""
    import jax.numpy as jnp

    return {name: jnp.copy(leaf) for name, leaf in leaves.items()}
