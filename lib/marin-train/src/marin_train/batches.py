"""Batches on their way to the devices: made and placed in the background, ahead of the step.

A batch is one array over all devices of the mesh, whichever process they belong to. Each process reads the rows that
its own devices hold, and no others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_train.data.loader import Prefetch
from marin_train.data.mixture import Mixture
from marin_train.data.packing import Sequences

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin_train.losses import Batch


def prefetch(mixture: Mixture, mesh: "Mesh", *, start: int, stop: int) -> Prefetch["Batch"]:
    """Batches ahead of the step: two from a disk, where one thread suffices, more where a network is waited for."""
    remote = any(store.is_remote for store in mixture.stores.values())
    depth, num_threads = (8, 4) if remote else (2, 1)

    def batch(step: int) -> "Batch":
        return place(mesh, mixture.sizes.at(step), lambda rows: mixture.batch(step, rows=rows))

    return Prefetch(batch, start=start, stop=stop, depth=depth, num_threads=num_threads)


def take_rows(sequences: Sequences, rows: slice) -> Sequences:
    """Those rows of sequences that are at hand."""
    return Sequences(*(array if array is None else array[rows] for array in sequences))  # pyrefly: ignore


def place(mesh: "Mesh", num_rows: int, read: Callable[[slice], Sequences]) -> "Batch":
    """A batch over the mesh, of which this process reads what its devices hold.

    Args:
        mesh: the devices.
        num_rows: sequences of the whole batch.
        read: those rows of it.
    """
    import jax

    from marin_train.losses import Batch
    from marin_train.mesh import sharding

    where = sharding(mesh, ("batch", None))
    indices = where.addressable_devices_indices_map((num_rows, 1)).values()
    held = [index[0].indices(num_rows) for index in indices if index is not None]
    first, stop = min(start for start, _, _ in held), max(stop for _, stop, _ in held)
    local = read(slice(first, stop))

    def placed(array: np.ndarray | None) -> Any:
        if array is None:  # what a packing has no need of is no array
            return None

        def share(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # jax asks for what devices of this process hold
            start, end, _ = index[0].indices(num_rows)
            return array[(slice(start - first, end - first), *index[1:])]

        return jax.make_array_from_callback((num_rows, *array.shape[1:]), where, share)

    return Batch(**{name: placed(array) for name, array in local._asdict().items()})
