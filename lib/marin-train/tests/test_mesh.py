import jax
import pytest
from jax.sharding import PartitionSpec

from marin_train.configs import MeshConfig
from marin_train.errors import ConfigError
from marin_train.mesh import AXES, check_batch_size, make_mesh, sharding


def test_the_mesh_takes_all_devices_unless_told():
    assert make_mesh(MeshConfig()).shape == dict.fromkeys(AXES, 1) | {"data": len(jax.devices())}
    assert make_mesh(MeshConfig(data=1)).shape["data"] == 1


@pytest.mark.parametrize("data", [0, -2])
def test_an_impossible_number_of_shares_is_refused_by_field_and_value(data):
    with pytest.raises(ConfigError, match=rf"MeshConfig\.data={data} must be at least 1"):
        MeshConfig(data=data)


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(ConfigError, match=r"MeshConfig\(data=4096\) needs 4096 devices, but \d+ device"):
        make_mesh(MeshConfig(data=4096))


def test_a_dim_lies_along_the_axes_of_its_rule():
    mesh = make_mesh(MeshConfig())
    assert sharding(mesh, ("batch", "seq")).spec == PartitionSpec(("replica", "data", "expert"), "context")
    assert sharding(mesh, ("layer", "embed", "mlp")).spec == PartitionSpec("stage", "data", "model")
    assert sharding(mesh, ()).is_fully_replicated


def test_any_batch_fits_one_device():
    check_batch_size(make_mesh(MeshConfig(data=1)).shape, 7)
