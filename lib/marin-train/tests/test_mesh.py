import jax
import pytest
from jax.sharding import PartitionSpec

from marin_train.configs import MeshConfig
from marin_train.errors import ConfigError
from marin_train.mesh import check_batch_size, make_mesh, sharding


def test_the_mesh_takes_all_devices_unless_told():
    assert make_mesh(MeshConfig()).shape == {"data": len(jax.devices())}
    assert make_mesh(MeshConfig(data=1)).shape == {"data": 1}


@pytest.mark.parametrize("data", [0, -2, 4096])
def test_an_impossible_number_of_devices_is_refused_by_field_and_value(data):
    with pytest.raises(ConfigError, match=rf"MeshConfig\.data={data}, but \d+ device"):
        make_mesh(MeshConfig(data=data))


def test_only_the_batch_is_spread():
    mesh = make_mesh(MeshConfig())
    assert sharding(mesh, ("batch", "seq")).spec == PartitionSpec("data", None)
    assert sharding(mesh, ("layer", "embed", "mlp")).is_fully_replicated
    assert sharding(mesh, ()).is_fully_replicated


def test_any_batch_fits_one_device():
    check_batch_size(make_mesh(MeshConfig(data=1)), 7)
