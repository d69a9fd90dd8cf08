"""The device mesh, and where an array lies on it: dims are named, and one rule gives each name its mesh axes.

Parameters and batches name their dims and never their devices. `RULES` is the one place where a name meets an axis, so
that another way to spread a model over machines is another rule and no change to the model. Today the batch is spread
over the ``data`` axis and every parameter is whole on every device.
"""

import dataclasses
import math
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin_train.configs import MeshConfig
from marin_train.errors import ConfigError

AXES = ("stage", "replica", "data", "context", "expert", "model")
"""Outermost first: devices that are next to each other, and talk fastest, share the axes that talk most."""

RULES: dict[str, tuple[str, ...]] = {"batch": ("replica", "data", "expert"), "layer": ("stage",)}
"""Mesh axes by dim. A dim that is not here is whole on every device."""


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh that `config` asks for, over the first devices that jax shows.

    Raises:
        ConfigError: it asks for more devices than there are, or for shares that do not take all that are left.
    """
    devices = jax.devices()
    sizes = {axis: getattr(config, axis) for axis in AXES}
    taken = math.prod(size for size in sizes.values() if size != -1)
    for axis, size in sizes.items():
        if size == -1:
            sizes[axis] = max(1, len(devices) // taken)
    if math.prod(sizes.values()) > len(devices):
        asked = ", ".join(f"{name}={size}" for name, size in dataclasses.asdict(config).items() if size != 1)
        raise ConfigError(f"MeshConfig({asked}) needs {taken} devices, but {len(devices)} device(s) are there")
    shape = tuple(sizes.values())
    return Mesh(np.array(devices[: math.prod(shape)]).reshape(shape), AXES)


def sharding(mesh: Mesh, dims: Iterable[str]) -> NamedSharding:
    """Where an array with these dims lies; with no dims, a scalar or an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec(*(RULES.get(dim) for dim in dims)))


def check_batch_size(mesh: Mesh, batch_size: int, *, num_parts: int = 1) -> None:
    """Refuse a batch that the mesh cannot share out equally, each of the parts that it is gone through in.

    Raises:
        ConfigError: naming the batch size and the number of shares.
    """
    num_shares = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    if batch_size % (num_shares * num_parts):
        parts = f" times TrainConfig.accumulation={num_parts}" if num_parts > 1 else ""
        raise ConfigError(
            f"TrainConfig.batch_size={batch_size} must be a multiple of the mesh's {num_shares} data shares{parts}"
        )
