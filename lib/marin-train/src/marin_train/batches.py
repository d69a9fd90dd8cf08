"""Batches of a mixture on their way to the devices: made and placed in the background, ahead of the step."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from marin_train.data.loader import Prefetch
from marin_train.data.mixture import Mixture

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin_train.losses import Batch


def prefetch(mixture: Mixture, mesh: "Mesh", *, start: int, stop: int) -> Prefetch["Batch"]:
    """Batches ahead of the step: two from a disk, where one thread suffices, more where a network is waited for."""
    remote = any(store.is_remote for store in mixture.stores.values())
    depth, num_threads = (8, 4) if remote else (2, 1)
    return Prefetch(_on_device(mixture, mesh), start=start, stop=stop, depth=depth, num_threads=num_threads)


def _on_device(mixture: Mixture, mesh: "Mesh") -> Callable[[int], "Batch"]:
    """``batch(step)`` placed on the mesh; called in the background, so that no step waits for a transfer."""
    import jax

    from marin_train.losses import Batch
    from marin_train.mesh import sharding

    where = sharding(mesh, ("batch", "seq"))

    def batch(step: int) -> Batch:
        # All of a batch's arrays lie alike; those that a packing has no need of are None, which is no array.
        return Batch(**jax.device_put(mixture.batch(step)._asdict(), where))

    return batch
