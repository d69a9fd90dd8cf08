"""Models that transformers wrote, with the logits that it computed: fixtures/made_by.json says how they are made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from marin_train import models
from marin_train.configs import ModelConfig
from marin_train.hf import load_hf
from marin_train.models import decoder
from marin_train.policy import Policy

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))


def last_logits(model, ids, *, config: ModelConfig, count: int):
    def compute(model, ids):
        hidden = decoder.forward(model, ids, config=config, policy=Policy(scan=True))[:, -count:]
        return decoder.logits(hidden, models.family(config).head(model), config=config, policy=Policy())

    return np.asarray(jax.jit(compute)(model, jnp.asarray(ids, jnp.int32)))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers_and_padding_has_none(name: str) -> None:
    reference = load_file(FIXTURES / name / "reference.safetensors")
    loaded = load_hf(FIXTURES / name, vocab_multiple=16)
    assert loaded.model.embed.shape[0] == 64
    found = last_logits(loaded.model, reference["ids"], config=loaded.config, count=reference["logits"].shape[1])
    np.testing.assert_allclose(found[..., :61], reference["logits"], atol=1e-4, rtol=0)
    assert np.all(found[..., 61:] == -np.inf)


def test_the_fixtures_cover_every_family_type_and_layout() -> None:
    assert set(CASES) == {"llama-half", "qwen3-tied", "gemma3-linear", "mixtral", "qwen3-moe-dense"}
    assert {load_hf(FIXTURES / name).config.family for name in CASES} == set(models.FAMILIES) - {"marin_moe"}
    assert len(list((FIXTURES / "llama-half").glob("*.safetensors"))) > 2


def test_every_device_is_given_its_part_of_a_leaf() -> None:
    script = """
import sys
import jax, numpy as np
from marin_train.configs import MeshConfig
from marin_train.hf import load_hf
from marin_train.mesh import make_mesh, shard_shape
from marin_train.models import family
mesh = make_mesh(MeshConfig(data=2, model=2))
whole, spread = (load_hf(sys.argv[1], vocab_multiple=16, mesh=m) for m in (None, mesh))
table = {p.path: p for p in family(whole.config).parameter_table(whole.config)}
for (path, one), other in zip(
    jax.tree_util.tree_leaves_with_path(whole.model), jax.tree.leaves(spread.model), strict=True
):
    np.testing.assert_array_equal(one, other)
    leaf = table[jax.tree_util.keystr(path, simple=True, separator=".")]
    assert other.addressable_shards[0].data.shape == shard_shape(leaf.dims, leaf.shape, mesh.shape), leaf.path
assert spread.model.embed.addressable_shards[0].data.shape == (32, 8)
"""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", script, str(FIXTURES / "llama-half")], env=env, check=True)


def test_a_model_that_sees_gives_its_text_model(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    text = FIXTURES / "gemma3-linear"
    written = json.loads((text / "config.json").read_text())
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(text / "model.safetensors").items()}
    save_file(tensors | {"vision_tower.patch.weight": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": written}))
    found, expected = load_hf(tmp_path), load_hf(text)
    assert found.config == expected.config
    for one, other in zip(jax.tree.leaves(found.model), jax.tree.leaves(expected.model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_url_is_read_like_a_directory() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(FIXTURES / "llama-half"), "/models/llama", recursive=True)
    found, expected = load_hf("memory://models/llama"), load_hf(FIXTURES / "llama-half")
    assert (found.config, found.tokenizer) == (expected.config, expected.tokenizer)
    np.testing.assert_array_equal(found.model.layers.mlp.up, expected.model.layers.mlp.up)
