"""The state of a model of 47M parameters, and how what was written of it is flushed; for every writer alike."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp

WIDTH, LAYERS, VOCAB, INNER = 512, 12, 16384, 1408
SHAPES = {
    "embed": (VOCAB, WIDTH),
    "qkv": (LAYERS, WIDTH, 3 * WIDTH),
    "out": (LAYERS, WIDTH, WIDTH),
    "gate": (LAYERS, WIDTH, INNER),
    "up": (LAYERS, WIDTH, INNER),
    "down": (LAYERS, INNER, WIDTH),
    "norm": (LAYERS, WIDTH),
}


def place() -> jax.sharding.NamedSharding:
    """Whole on the first device, as on a mesh of one."""
    return jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec())


def state_shapes(copies: int) -> dict[str, jax.ShapeDtypeStruct]:
    """One copy of the parameters, or three: with Adam's moments."""
    where = place()
    return {
        f"model.{copy}.{name}": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
        for copy in range(copies)
        for name, shape in SHAPES.items()
    }


def draw_state(copies: int) -> dict[str, jax.Array]:
    """Random leaves, which do not compress."""
    shapes = state_shapes(copies)
    return {name: jax.random.normal(jax.random.key(i), leaf.shape) for i, (name, leaf) in enumerate(shapes.items())}


def flush_all(directory: Path) -> None:
    """Every file and directory to the disk."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
