"""Attention in a ring of virtual devices against the formula on one: every value and every gradient."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

CHILD = """
import json
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from marin_train.blocks import ring_attention
from marin_train.blocks.attention import attend
from marin_train.blocks.scoring import Scoring
from marin_train.configs import MeshConfig
from marin_train.mesh import in_context, make_mesh, sharding
from marin_train.policy import Policy

ring_attention.BLOCK = 5  # a share of 8 queries has two that are not alike
DIMS = ("batch", "seq", "heads", None)

def cost(query, key, value, above, segment_ids, *, mesh, scoring, policy):
    with in_context(mesh):
        mixed = attend(query, key, value=value, segment_ids=segment_ids, scoring=scoring, policy=policy)
    return jnp.sum(mixed * above), mixed

def compiled(mesh, shapes, **how):
    place = sharding(mesh, DIMS)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place) for shape in shapes]
    found = jax.value_and_grad(partial(cost, mesh=mesh, **how), argnums=(0, 1, 2), has_aux=True)
    return jax.jit(found), arguments

def differences(mesh, *, segmented, operands="float32", **scoring):
    rng = np.random.default_rng(0)
    wide, narrow = (2, 32, 4, 8), (2, 32, 2, 8)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in (wide, narrow, narrow, wide)]
    segment_ids = np.sort(rng.integers(1, 5, (2, 32)), axis=1).astype(np.int32) if segmented else None
    values = []
    for on in (make_mesh(MeshConfig(data=1)), mesh):
        run, _ = compiled(on, (), scoring=Scoring(scale=0.5, **scoring), policy=Policy(operands=operands))
        placed = jax.device_put(arrays, sharding(on, DIMS))
        segments = segment_ids if segment_ids is None else jax.device_put(segment_ids, sharding(on, DIMS[:2]))
        (_, mixed), gradients = run(*placed, segments)
        values.append([np.asarray(x) for x in (mixed, *gradients)])
    return [float(np.abs(a - b).max()) for a, b in zip(*values)]

def program(num_shares, **scoring):
    ring_attention.BLOCK = 128
    mesh = make_mesh(MeshConfig(data=1, context=num_shares))
    wide, narrow = (1, 512 * num_shares, 4, 8), (1, 512 * num_shares, 2, 8)
    how = {"scoring": Scoring(scale=0.5, **scoring), "policy": Policy()}
    run, arguments = compiled(mesh, (wide, narrow, narrow, wide), **how)
    return run.lower(*arguments, None).compile()

mesh = lambda **sizes: make_mesh(MeshConfig(data=1, **sizes))
found = {
    "documents across eight shares": differences(mesh(context=8), segmented=True),
    "a window over two shares and a soft-cap": differences(mesh(context=4), segmented=True, window=13, softcap=3.0),
    "a window of one token": differences(mesh(context=4), segmented=False, window=1),
    "a window that ends with a share": differences(mesh(context=4), segmented=False, window=9),
    "heads in shares too": differences(mesh(context=4, model=2), segmented=True, softcap=3.0),
    "rounded operands": differences(mesh(context=4), segmented=True, operands="bfloat16"),
    "memory": [program(n).memory_analysis().temp_size_in_bytes for n in (2, 8)],
}
print(json.dumps(found))
"""
CASES = (
    "documents across eight shares",
    "a window over two shares and a soft-cap",
    "a window of one token",
    "a window that ends with a share",
    "heads in shares too",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The largest difference of the result, and of the gradients of queries, keys and values; bytes of programs."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("case", CASES)
def test_a_ring_gives_the_formulas_values_and_gradients(found: dict[str, Any], case: str) -> None:
    assert max(found[case]) < 1e-5


def test_rounded_operands_stay_within_their_precision(found: dict[str, Any]) -> None:
    assert 0 < max(found["rounded operands"]) < 0.2


def test_a_device_needs_no_more_memory_where_more_devices_hold_a_longer_sequence(found: dict[str, Any]) -> None:
    two, eight = found["memory"]
    assert eight <= 1.05 * two
    # Of a share's scores, 4 heads of 512 x 512, only those of a block and a key-value head are ever held.
    assert two < 4 * 4 * 512 * 512
