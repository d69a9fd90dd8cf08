import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from marin_train import models
from marin_train.checkpoints import load_model
from marin_train.configs import Component, DataConfig, TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.data.store import TokenStore
from marin_train.errors import ConfigError
from marin_train.held_out import evaluate_held_out
from marin_train.loop import train
from marin_train.models import decoder


def test_it_is_the_mean_over_the_sequences_that_were_never_trained_on(
    tiny_config: Callable[..., TrainConfig], store: Path, tmp_path: Path
) -> None:
    some = Component(name="some", path=str(store), validation=4)
    data = DataConfig(components=(some, dataclasses.replace(some, name="none", validation=0)), seq_len=16)
    run = train(tiny_config(data=data), tmp_path / "run").out_dir
    (result,) = evaluate_held_out(run, batch_size=2)
    assert (result.component, result.num_sequences, result.num_tokens) == ("some", 4, 64)

    trained = load_model(run)
    family, config = models.family(trained.config.model), trained.config.model
    tokens = Mixture.open(data, batch_size=1).validation("some").batch(0, 4).tokens
    forward = jax.jit(lambda m, t: decoder.forward(m, t, config=config, policy=trained.policy) @ family.head(m))
    logits = np.asarray(forward(trained.model, tokens[:, :-1]), np.float64)
    of_targets = np.take_along_axis(logits, tokens[:, 1:, None].astype(np.int64), axis=-1)[..., 0]
    nats = np.log(np.exp(logits).sum(axis=-1)) - of_targets
    assert result.loss == pytest.approx(float(nats.mean()), rel=1e-5)
    whole = TokenStore.open(store)
    per_byte = whole.num_tokens / whole.num_bytes / math.log(2)
    assert result.bits_per_byte == pytest.approx(float(nats.mean()) * per_byte, rel=1e-5)


def test_a_run_that_holds_nothing_out_is_refused(finished_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds anything out; set Component\.validation"):
        evaluate_held_out(finished_run)
    with pytest.raises(ConfigError, match="batch_size=0"):
        evaluate_held_out(finished_run, batch_size=0)


def test_no_loss_is_told_of_sequences_in_which_nothing_counts(
    finished_run: Path, tmp_path: Path, write_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_store(tmp_path / "masked", [[[1] * 200]], masks=[[False] * 200])
    data = DataConfig(components=(Component(name="masked", path=str(path), validation=3),), seq_len=16)
    trained = load_model(finished_run)
    other = dataclasses.replace(trained, config=dataclasses.replace(trained.config, data=data))
    monkeypatch.setattr("marin_train.held_out.load_model", lambda checkpoint: other)
    with pytest.raises(ConfigError, match="3 sequences held out of 'masked' have no token that counts"):
        evaluate_held_out(finished_run)
