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

    def take(self, leaves: Leaves) -> dict[str, "jax.Array"]:
        """Copies arrays, shard for shard, into the memory of the host that holds each shard.

        Args:
            leaves: arrays on a mesh; those of another call must have the same shapes and places.
        """
        import jax

        if next(iter(next(iter(leaves.values())).devices())).platform != "cpu":
            places = {name: leaf.sharding.with_memory_kind("pinned_host") for name, leaf in leaves.items()}
            return jax.device_put(dict(leaves), places)
        if self._copy is None or self._last is None:
            places = {name: leaf.sharding for name, leaf in leaves.items()}
            self._copy = jax.jit(_copied, donate_argnums=0, keep_unused=True, out_shardings=places)
            self._last = {name: jax.numpy.zeros_like(leaf, device=leaf.sharding) for name, leaf in leaves.items()}
        self._last = self._copy(self._last, dict(leaves))
        return dict(self._last)


def _copied(before: Leaves, leaves: Leaves) -> dict[str, Any]:
    """A copy of the leaves, in the memory of those before."""
    import jax.numpy as jnp

    return {name: jnp.copy(leaf) for name, leaf in leaves.items()}
