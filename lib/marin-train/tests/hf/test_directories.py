import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from marin_train import cli
from marin_train.checkpoints import load_model
from marin_train.configs import ModelConfig
from marin_train.errors import HuggingFaceError
from marin_train.hf import load_hf, save_hf

FIXTURES = Path(__file__).parent / "fixtures"
SHAPE = {"hidden_dim": 8, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "mlp_dim": 12}
TINY = ModelConfig(vocab_size=11, max_seq_len=16, vocab_multiple=4, **SHAPE)


def tensors(directory: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for file in directory.glob("model*.safetensors"):
        found |= load_file(file)
    return found


def assert_equal_tensors(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert tensor.tobytes() == other[name].tobytes(), name


@settings(max_examples=20)
@given(
    family=st.sampled_from(["llama", "qwen3", "gemma3"]),
    tied=st.booleans(),
    vocab_size=st.integers(1, 40),
    multiples=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 2),
    num_layers=st.integers(1, 3),
    mlp_dim=st.integers(1, 9),
    shard_bytes=st.integers(1, 4000),
)
def test_a_round_trip_keeps_every_bit(
    draw_model: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    family: str,
    tied: bool,
    vocab_size: int,
    multiples: tuple[int, int],
    kv_heads: int,
    groups: int,
    num_layers: int,
    mlp_dim: int,
    shard_bytes: int,
) -> None:
    window = {"sliding_window": 3, "global_every": None, "local_rope_theta": 1e4} if family == "gemma3" else {}
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_dim=6 * kv_heads * groups,
        num_layers=num_layers,
        num_heads=kv_heads * groups,
        num_kv_heads=kv_heads,
        head_dim=4,
        mlp_dim=mlp_dim,
        max_seq_len=8,
        tie_embeddings=tied,
        vocab_multiple=multiples[0],
        **window,
    )
    model, path = draw_model(config), tmp_path_factory.mktemp("hf") / "one"
    save_hf(path, model, config=config, shard_bytes=shard_bytes)
    loaded = load_hf(path, vocab_multiple=multiples[1])
    assert dataclasses.replace(loaded.config, vocab_multiple=multiples[0]) == config
    np.testing.assert_array_equal(loaded.model.embed[:vocab_size], model.embed[:vocab_size])
    for one, other in zip(jax.tree.leaves(loaded.model.layers), jax.tree.leaves(model.layers), strict=True):
        np.testing.assert_array_equal(one, other)
    again = save_hf(path.with_name("two"), loaded.model, config=loaded.config)
    assert_equal_tensors(tensors(path), tensors(again))
    files = list(path.glob("*.safetensors"))
    assert all(
        len(load_file(file)) == 1 or sum(t.nbytes for t in load_file(file).values()) <= shard_bytes for file in files
    )


def test_bfloat16_is_kept_bit_by_bit(tmp_path: Path) -> None:
    loaded = load_hf(FIXTURES / "qwen3-tied", vocab_multiple=32)
    path = save_hf(tmp_path / "out", loaded.model, config=loaded.config, dtype="bfloat16")
    assert_equal_tensors(tensors(path), tensors(FIXTURES / "qwen3-tied"))
    assert json.loads((path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_tensors_that_do_not_fit_are_named_at_once(draw_model: Callable[..., Any], tmp_path: Path) -> None:
    path = save_hf(tmp_path / "out", draw_model(TINY), config=TINY)
    found = tensors(path)
    found["model.layers.1.mlp.up_proj.bias"] = found.pop("model.norm.weight")
    found["lm_head.weight"] = found["lm_head.weight"][1:]
    found["model.embed_tokens.weight"] = found["model.embed_tokens.weight"].astype(np.int8)
    save_file(found, path / "model.safetensors")
    with pytest.raises(HuggingFaceError) as refused:
        load_hf(path)
    for told in (
        "1 missing: model.norm.weight",
        "1 unexpected: model.layers.1.mlp.up_proj.bias",
        "lm_head.weight is F32[10, 8], expected F32 or BF16 or F16 [11, 8]",
        "model.embed_tokens.weight is I8",
    ):
        assert told in str(refused.value)


def test_damaged_and_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match="is not a directory"):
        load_hf(tmp_path / "absent")
    (tmp_path / "config.json").write_bytes((FIXTURES / "llama-half" / "config.json").read_bytes())
    with pytest.raises(HuggingFaceError, match=r"neither model\.safetensors nor"):
        load_hf(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(HuggingFaceError, match=r"model-1\.safetensors, which is not there"):
        load_hf(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(HuggingFaceError, match=r"model\.safetensors cannot be read"):
        load_hf(tmp_path)


def test_a_tied_head_may_be_written_but_only_as_the_embedding(draw_model: Callable[..., Any], tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, tie_embeddings=True)
    path = save_hf(tmp_path / "out", draw_model(config), config=config)
    found = tensors(path)
    assert "lm_head.weight" not in found
    save_file(found | {"lm_head.weight": found["model.embed_tokens.weight"]}, path / "model.safetensors")
    assert load_hf(path).model.output is None
    save_file(found | {"lm_head.weight": 2 * found["model.embed_tokens.weight"]}, path / "model.safetensors")
    with pytest.raises(HuggingFaceError, match=r"lm_head\.weight is not the embedding"):
        load_hf(path)


def test_a_directory_that_is_there_is_replaced_only_when_told_to(
    draw_model: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "out"
    path.mkdir()
    save_hf(path, draw_model(TINY, seed=1), config=TINY, shard_bytes=1000)
    before = tensors(path)
    with pytest.raises(HuggingFaceError, match="is there already"):
        save_hf(path, draw_model(TINY), config=TINY)
    assert_equal_tensors(tensors(path), before)
    save_hf(path, draw_model(TINY), config=TINY, overwrite=True)
    assert sorted(p.name for p in path.glob("model*")) == ["model.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_no_export_wrote_is_never_overwritten(
    draw_model: Callable[..., Any], run_copy: Path, tmp_path: Path
) -> None:
    model, file = draw_model(TINY), tmp_path / "run.toml"
    file.write_text("steps = 3")
    for path in (run_copy, *run_copy.glob("checkpoints/step-*"), file):
        with pytest.raises(HuggingFaceError, match=f"{path.name} is not overwritten: .* is there"):
            save_hf(path, model, config=TINY, overwrite=True)
    assert file.read_text() == "steps = 3"
    assert load_model(run_copy).config.steps == 12


def test_a_killed_export_leaves_nothing_under_its_name(draw_model: Callable[..., Any], tmp_path: Path) -> None:
    source, path = save_hf(tmp_path / "source", draw_model(TINY), config=TINY), tmp_path / "deep" / "out"
    script = """
import os, signal, sys
import safetensors.numpy
from marin_train.hf import load_hf, save_hf
loaded = load_hf(sys.argv[1])
save, written = safetensors.numpy.save_file, []
def dying(*arguments, **options):
    save(*arguments, **options)
    written.append(arguments)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
safetensors.numpy.save_file = dying
save_hf(sys.argv[2], loaded.model, config=loaded.config, shard_bytes=400)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(source), str(path)], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(path.parent.rglob("*.safetensors"))) == 3  # it did write
    save_hf(path, draw_model(TINY), config=TINY)
    assert [p.name for p in path.parent.iterdir()] == ["out"]


def test_a_model_of_another_configuration_is_refused(draw_model: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match=r"not one of this configuration: layers\.mlp\.gate"):
        save_hf(tmp_path / "out", draw_model(TINY), config=dataclasses.replace(TINY, mlp_dim=13))
    assert not list(tmp_path.iterdir())


def test_export_writes_what_a_run_trained_with_its_tokenizer(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["export", str(finished_run), "--hf", str(tmp_path / "out"), "--json"])
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "out")}
    loaded, trained = load_hf(tmp_path / "out"), load_model(finished_run)
    assert loaded.config == trained.config.model
    assert loaded.special_ids == {"bos": None, "eos": 0}
    for one, other in zip(jax.tree.leaves(loaded.model), jax.tree.leaves(trained.model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert loaded.tokenizer["tokenizer.json"] == trained.tokenizer_file.read_bytes()
    settings = json.loads(loaded.tokenizer["tokenizer_config.json"])
    assert settings["eos_token"] == Tokenizer.from_file(str(trained.tokenizer_file)).id_to_token(0)
    with pytest.raises(SystemExit) as refused:
        cli.main(["export", str(finished_run), "--hf", str(tmp_path / "out")])
    assert refused.value.code == 2
    assert "is there already" in capsys.readouterr().err
