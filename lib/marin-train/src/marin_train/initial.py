"""What a run begins with: parameters drawn from its seed, or those of another run or a Hugging Face directory.

Of another run they are the parameters alone. The optimizer, the schedule and the data begin anew: a run from there is
one of its own, and what goes on where it was is the same run, called again.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from marin_train.certificates import CERTIFICATE
from marin_train.checkpoints import find, load_parameters, read_config
from marin_train.configs import ModelConfig, TrainConfig
from marin_train.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin_train.train_step import TrainState

_FREE = ("max_seq_len", "vocab_multiple")
"""Fields that may be another's: the room for positions, and rows that no token has."""


def first_state(config: TrainConfig, *, mesh: "Mesh", fingerprint: str | None) -> "TrainState":
    """The state before the first update.

    Args:
        config: the run.
        mesh: the devices.
        fingerprint: what `examine_source` gave when the run was begun.

    Raises:
        CheckpointError: what `config.init_from` names is damaged, or no longer what it was.
    """
    import jax
    import jax.numpy as jnp

    from marin_train.train_step import init_state, state_template

    state = init_state(config, mesh=mesh)
    if config.init_from is None:
        return state
    if examine_source(config) != fingerprint:
        raise CheckpointError(
            f"TrainConfig.init_from={config.init_from!r} is no longer what it was when this run was begun; restore it, "
            f"or begin in another output directory"
        )
    if _is_hf(config.init_from):
        from marin_train.hf import load_hf

        model = load_hf(
            config.init_from, mesh=mesh, vocab_multiple=config.model.vocab_multiple, trained_by=config.model.moe
        ).model
    else:
        model = load_parameters(config.init_from, state_template(config, mesh=mesh).model)
    # The step consumes both, so that they must not be the same arrays.
    return dataclasses.replace(state, model=model, ema=None if state.ema is None else jax.tree.map(jnp.copy, model))


def examine_source(config: TrainConfig) -> str | None:
    """A sha256 that tells whether the parameters to begin with are those of before; None where they are drawn.

    It is that of a checkpoint's certificate, which has their digests, or of a Hugging Face directory's configuration
    and the names and sizes of its files.

    Raises:
        CheckpointError: there is neither a checkpoint nor a Hugging Face model.
        ConfigError: what is there has another shape, or computes otherwise.
        HuggingFaceError: the directory states a model that is not computed here.
    """
    path = config.init_from
    if path is None:
        return None
    if not _is_hf(path):
        found = find(path)
        theirs = read_config(found).model
        _check_same(theirs, config)
        _check_bias(theirs, config)
        return hashlib.sha256((found / CERTIFICATE).read_bytes()).hexdigest()
    from marin_train.hf import read_model_config

    _check_same(read_model_config(path), config)
    files = sorted((file.name, file.stat().st_size) for file in Path(path).glob("*.safetensors"))
    return hashlib.sha256((Path(path) / "config.json").read_bytes() + json.dumps(files).encode()).hexdigest()


def _is_hf(path: str) -> bool:
    return (Path(path) / "config.json").is_file() and not (Path(path) / CERTIFICATE).is_file()


def _check_same(found: ModelConfig, config: TrainConfig) -> None:
    theirs, ours = (dataclasses.asdict(_untrained(model)) for model in (found, config.model))
    differing = [
        f"{name}: {theirs[name]} there, {ours[name]} here"
        for name in ours
        if name not in _FREE and theirs[name] != ours[name]
    ]
    if differing:
        raise ConfigError(
            f"TrainConfig.init_from={config.init_from!r} is another model; set ModelConfig's fields as they are there. "
            f"{'; '.join(differing)}"
        )


def _untrained(model: ModelConfig) -> ModelConfig:
    """The shape without how experts are trained, which is another run's own."""
    from marin_train.hf.expert_fields import plain

    return dataclasses.replace(model, moe=plain(model.moe))


def _check_bias(found: ModelConfig, config: TrainConfig) -> None:
    ours = config.model.moe
    if found.moe is not None and ours is not None and found.moe.is_biased != ours.is_biased:
        has = "has a bias" if found.moe.is_biased else "has no bias"
        raise ConfigError(
            f"TrainConfig.init_from={config.init_from!r} was trained by MoEConfig.balance={found.moe.balance!r} and "
            f"{has} of its experts' scores, other than under balance={ours.balance!r}; choose a rule of its kind"
        )
