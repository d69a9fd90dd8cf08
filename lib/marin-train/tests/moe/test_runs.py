"""Whole runs of a model of experts: what is told, what a kill changes, and what a refused step leaves."""

import dataclasses
import json
import signal
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

from marin_train.checkpoints import load_model
from marin_train.configs import GuardConfig, ModelConfig, MoEConfig, to_dict
from marin_train.evaluation import evaluate
from marin_train.generation import generate
from marin_train.loop import train
from marin_train.losses import Batch
from marin_train.mesh import one_device
from marin_train.policy import Policy
from marin_train.tracking import read_metrics
from marin_train.train_step import init_state, make_train_step

MODEL = ModelConfig(
    family="qwen3_moe",
    vocab_size=64,
    hidden_dim=16,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=24,
    max_seq_len=16,
    moe=MoEConfig(num_experts=8, top_k=2, expert_dim=8, num_dense_layers=1, router_z_loss=0.001),
)


@pytest.fixture(scope="module")
def config(tiny_config):
    return tiny_config(model=MODEL, steps=14, checkpoint_steps=5, ema_decay=0.9, log_every=1)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("runs") / "whole")


def test_every_row_tells_how_balanced_each_layer_and_the_worst_one_was(whole):
    rows = read_metrics(whole.out_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 15))
    for row in rows:
        layers = [row[f"routing/{layer}/max_vio"] for layer in (1, 2)]
        assert row["routing/max_vio"] == max(layers) >= 0
        assert 0 < row["routing/load_entropy"] <= 1
        assert row["routing/dropped_by_sender"] == row["routing/dropped_by_receiver"] == 0
        assert row["routing/padding"] >= 0.2
        assert row["routing/bias_drift"] > 0
        assert "routing/0/max_vio" not in row
    assert np.mean([row["routing/max_vio"] for row in rows[-5:]]) < rows[0]["routing/max_vio"]


def test_the_run_tables_row_counts_experts_and_what_is_active(whole):
    summary = json.loads((whole.out_dir / "summary.json").read_text())
    assert summary["num_experts"] == 8
    assert summary["granularity"] == 4 * 16 / 8
    assert summary["num_params_total"] - summary["num_params_active"] == 2 * 3 * 16 * 8 * (8 - 2)


def test_the_bias_is_in_the_checkpoint_and_in_the_average_as_the_model_has_it(whole):
    bias = np.asarray(load_model(whole.out_dir).model.layers.mlp.router_bias)
    assert bias.shape == (2, 8)
    assert (bias != 0).any()
    np.testing.assert_allclose(bias.mean(axis=1), 0, atol=1e-5)


def test_a_checkpoint_of_experts_is_evaluated_and_generates(whole, config):
    assert np.isfinite(evaluate(whole.out_dir, config.data.components[0].path).loss)
    assert len(generate(whole.out_dir, ["ab", ""], max_new_tokens=4, seed=1)) == 2


KILLED = """
import os, signal, sys
from marin_train.config_files import load
from marin_train.loop import train
from marin_train.losses import Batch
from marin_train.mesh import one_device
from marin_train.policy import Policy

def kill(step, state):
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

train(load(sys.argv[1]), sys.argv[2], hooks=[kill])
"""


@pytest.mark.parametrize("after", [3, 8])
def test_a_run_that_is_killed_goes_on_to_the_same_losses_and_biases_bitwise(after, config, whole, tmp_path):
    file, out = tmp_path / "run.json", tmp_path / "run"
    file.write_text(json.dumps(to_dict(config)))
    child = subprocess.run([sys.executable, "-c", KILLED, str(file), str(out), str(after)], check=False)
    assert child.returncode == -signal.SIGKILL
    resumed = train(config, out)
    for name in ("loss", "routing/max_vio", "routing/1/bias_drift"):
        found, expected = ([r[name] for r in read_metrics(d / "metrics.jsonl")] for d in (out, whole.out_dir))
        assert found == expected
    for a, b in zip(*(jax.tree.leaves(load_model(r.out_dir).model) for r in (resumed, whole)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_is_refused_leaves_the_bias_as_it_was(config):
    config = dataclasses.replace(config, guard=GuardConfig(max_nonfinite=1))
    mesh = one_device()
    step = make_train_step(config, policy=Policy(scan=True), mesh=mesh)
    state = init_state(config, mesh=mesh)
    tokens = np.random.default_rng(0).integers(0, 64, (config.batch_size, 17)).astype(np.int32)
    batch = Batch(tokens, np.ones((config.batch_size, 16), bool))
    state, _ = step(state, batch)
    bias = np.asarray(state.model.layers.mlp.router_bias)
    assert np.abs(bias).max() > 0
    state = eqx.tree_at(lambda s: s.model.final_norm, state, np.full(16, np.nan, np.float32))
    state, metrics = step(state, batch)
    assert metrics["skipped"] == 1
    np.testing.assert_array_equal(state.model.layers.mlp.router_bias, bias)
    np.testing.assert_array_equal(state.ema.layers.mlp.router_bias, bias)
