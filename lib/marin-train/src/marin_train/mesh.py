"""The device mesh, and where an array lies on it: dims are named, and one rule gives each name its mesh axis.

Parameters and batches name their dims and never their devices. `RULES` is the one place where a name meets an axis, so
that another way to spread a model over machines is another rule and no change to the model. Today the batch is spread
over the ``data`` axis and every parameter is whole on every device.
"""

from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin_train.configs import MeshConfig
from marin_train.errors import ConfigError

RULES = {"batch": "data"}
"""Mesh axis by dim. A dim that is not here is whole on every device."""


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh that `config` asks for, over the first devices that jax shows.

    Raises:
        ConfigError: it asks for more devices than there are.
    """
    devices = jax.devices()
    num_data = len(devices) if config.data == -1 else config.data
    if not 1 <= num_data <= len(devices):
        raise ConfigError(f"MeshConfig.data={config.data}, but {len(devices)} device(s) are there; use -1 to take all")
    return Mesh(np.array(devices[:num_data]), ("data",))


def sharding(mesh: Mesh, dims: Iterable[str]) -> NamedSharding:
    """Where an array with these dims lies; with no dims, a scalar or an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec(*(RULES.get(dim) for dim in dims)))


def check_batch_size(mesh: Mesh, batch_size: int) -> None:
    """Refuse a batch that the mesh cannot share out equally.

    Raises:
        ConfigError: naming the batch size and the number of shares.
    """
    num_shares = mesh.shape[RULES["batch"]]
    if batch_size % num_shares:
        raise ConfigError(
            f"TrainConfig.batch_size={batch_size} must be a multiple of the mesh's {num_shares} data shares"
        )
