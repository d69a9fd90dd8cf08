import dataclasses
import functools
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train.accumulation import in_parts, loss_gradients
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.losses import Batch, summed_loss
from marin_train.mesh import AXES, check_batch_size, make_mesh, sharding
from marin_train.policy import Policy
from marin_train.train_step import make_train_step

MODEL = ModelConfig(
    vocab_size=16, hidden_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32, max_seq_len=16
)
RUN = TrainConfig(
    model=MODEL,
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12),
    steps=4,
    batch_size=16,
    mesh=MeshConfig(data=1),
)
PLAIN = Policy(scan=True)


def masked_batch(seed, *, silent=()):
    """Masks that leave from none to all of a row's tokens; the rows of the parts ``silent`` of 8 count nowhere."""
    rng = np.random.default_rng(seed)
    mask = rng.random((16, 12)) < rng.random((16, 1)) ** 2
    mask[[row for row in range(16) if row % 8 in silent]] = False
    return Batch(jnp.asarray(rng.integers(0, 16, size=(16, 13)), jnp.int32), jnp.asarray(mask))


@functools.cache
def compiled(num_parts):
    def costs(model, part):
        return summed_loss(model, part, config=MODEL, policy=PLAIN, z_loss=1e-3)

    mesh = make_mesh(RUN.mesh)
    return jax.jit(lambda model, batch: loss_gradients(costs, model, batch, num_parts=num_parts, mesh=mesh))


@pytest.mark.parametrize("silent", [(), (0, 3, 7), range(7), range(8)], ids=["none", "some", "all but one", "all"])
def test_parts_change_the_loss_and_the_gradients_by_rounding_alone(draw_model, silent):
    model, batch = draw_model(MODEL), masked_batch(3, silent=silent)
    whole, parts = (compiled(num_parts)(model, batch) for num_parts in (1, 8))
    assert int(parts.num_tokens) == int(whole.num_tokens) == int(batch.loss_mask.sum())
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-6)
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(each.gradients)]) for each in (parts, whole)]
    assert np.linalg.norm(flat[0] - flat[1]) <= 1e-6 * np.linalg.norm(flat[1])
    assert (np.linalg.norm(flat[1]) > 0) == (silent != range(8))


def test_a_mean_of_the_parts_means_would_not_pass(draw_model):
    model, batch = draw_model(MODEL), masked_batch(3, silent=(0, 3))
    parts = in_parts(batch, 8, mesh=make_mesh(RUN.mesh))
    means = [compiled(1)(model, Batch(tokens, mask)).loss for tokens, mask, *_ in zip(*parts[:2], strict=True)]
    assert abs(np.mean(means) / compiled(1)(model, batch).loss - 1) > 0.1


def test_every_row_is_in_one_part_with_its_mask():
    batch = masked_batch(0)
    parts = in_parts(batch, 4, mesh=make_mesh(RUN.mesh))
    for rows, split in zip(batch[:2], parts[:2], strict=True):
        np.testing.assert_array_equal(split, np.stack([rows[p::4] for p in range(4)]))


def test_parts_that_the_mesh_cannot_share_out_are_refused():
    make_train_step(dataclasses.replace(RUN, accumulation=16), policy=PLAIN, mesh=make_mesh(RUN.mesh))
    two_shares = dict.fromkeys(AXES, 1) | {"data": 2}
    with pytest.raises(ConfigError, match=r"batch_size=16 must be a multiple of the mesh's 2 .*accumulation=16"):
        check_batch_size(two_shares, 16, num_parts=16)


def on_four_devices():
    """The parts' rows by device, and how the compiled split moves them."""
    mesh = make_mesh(MeshConfig(data=4))
    batch = jax.device_put(masked_batch(0), sharding(mesh, ("batch", "seq")))
    split = jax.jit(functools.partial(in_parts, num_parts=2, mesh=mesh))
    tokens = split(batch).tokens
    program = split.lower(batch).compile().as_text()
    moves = [word for word in ("all-gather", "all-to-all", "collective-permute", "all-reduce") if word in program]
    shares = [shard.data.shape for shard in tokens.addressable_shards]
    print(json.dumps([moves, shares]))


def test_parts_are_spread_over_all_devices_and_nothing_moves_between_them():
    code = textwrap.dedent(f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location("here", {__file__!r})
        here = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(here)
        here.on_four_devices()
    """)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    moves, shares = json.loads(done.stdout.splitlines()[-1])
    assert moves == []
    assert shares == [[2, 2, 13]] * 4
