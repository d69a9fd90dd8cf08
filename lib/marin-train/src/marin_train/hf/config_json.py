"""``config.json`` of the families that are known here: to a `ModelConfig`, and back.

A `Dialect` states what transformers takes for a field that a file leaves out, and which fields must have one value
because the family here computes nothing else. A field that no dialect knows is refused unless it is off: it might
change the result.

What is written is read back, and must be the configuration that it came from; so nothing that a ``config.json``
cannot express is lost in silence, whatever fields `ModelConfig` gains.

See: https://huggingface.co/docs/transformers/main_classes/configuration
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin_train.config_files import from_dict
from marin_train.configs import ModelConfig
from marin_train.errors import HuggingFaceError, MarinTrainError
from marin_train.hf.dialects import DIALECTS, FULL, SHAPE, SLIDING, WITHOUT_EFFECT, Dialect, text_config
from marin_train.hf.expert_fields import plain, read_experts, write_experts
from marin_train.hf.rotary_fields import ROPE, read_scaling, read_turns, write_turns

OURS = "marin_moe"
"""The family that no dialect spells; its configuration is written as it is."""

_MOST_LAYERS = 100_000
"""A file that says more is damaged; each of them would be looked for by its name."""


def to_model_config(written: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """The configuration that a ``config.json`` states.

    Args:
        written: the file's content.
        where: the file's name, for messages.

    Raises:
        HuggingFaceError: naming a field that this trainer does not know, or a value that it does not compute.
        ConfigError: the values make no model.
    """
    if written.get("model_type") == OURS:
        return _read_ours(written, where=where)
    written = text_config(written, where=where)
    dialect = DIALECTS.get(str(written.get("model_type")))
    if dialect is None:
        known = ", ".join(DIALECTS)
        raise HuggingFaceError(f"{where}: model_type={written.get('model_type')!r} is not one of: {known}")
    _check_fields(written, dialect, where=where)
    try:
        # What no dialect knows has been found to be off, and is not read as another dialect's would be.
        given = {name: value for name, value in written.items() if name in (*dialect.defaults, *ROPE)}
        return _read({**dialect.defaults, **given}, dialect, where=where)
    except MarinTrainError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise HuggingFaceError(f"{where} holds a value that makes no model: {error}") from None


def from_model_config(config: ModelConfig, *, dtype: str, special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of a model.

    Args:
        config: the model; its vocabulary's padding is left out.
        dtype: the type of its tensors, ``float32`` or ``bfloat16``.
        special_ids: ``bos`` and ``eos``; an id, several, or None.

    Raises:
        HuggingFaceError: naming what the file cannot express.
    """
    if config.family == OURS:
        return _written_ours(config, dtype=dtype, special_ids=special_ids)
    model_type = next((name for name, d in DIALECTS.items() if d.family == config.family), None)
    if model_type is None:
        raise HuggingFaceError(f"ModelConfig.family={config.family!r} has no counterpart in transformers that is known")
    dialect = DIALECTS[model_type]
    if not dialect.free_head_dim and config.hidden_dim % config.num_heads:
        raise HuggingFaceError(
            f"ModelConfig.hidden_dim={config.hidden_dim} must be a multiple of num_heads={config.num_heads}: "
            f"transformers' {dialect.architecture} takes no other"
        )
    written: dict[str, Any] = {"architectures": [dialect.architecture], "model_type": model_type}
    written.update({theirs: getattr(config, ours) for theirs, ours in SHAPE.items()}, **dialect.settled)
    written |= write_experts(config, dialect)
    written |= write_turns(config, dialect) | _written_windows(config, dialect) | _written_scores(config, dialect)
    written |= {"attention_dropout": 0.0, "use_cache": True, "torch_dtype": dtype, "pad_token_id": None}
    written |= {f"{name}_token_id": special_ids.get(name) for name in ("bos", "eos")}
    wanted, back = _normal(config), _normal(to_model_config(written))
    lost = [
        f"{f.name}={getattr(wanted, f.name)!r}"
        for f in dataclasses.fields(config)
        if getattr(back, f.name) != getattr(wanted, f.name)
    ]
    if lost:
        raise HuggingFaceError(f"ModelConfig.{', '.join(lost)}: {dialect.architecture} cannot express it")
    return written


def _read_ours(written: Mapping[str, Any], *, where: str) -> ModelConfig:
    if not isinstance(written.get("model"), Mapping):
        raise HuggingFaceError(f"{where}: model is not there, which holds the fields of a {OURS}")
    return from_dict(ModelConfig, written["model"], where=f"{where}: model")


def _written_ours(config: ModelConfig, *, dtype: str, special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Of a family that transformers does not have: our own fields, beside those that any reader looks for."""
    return {
        "architectures": ["MarinMoeForCausalLM"],
        "model_type": OURS,
        "model": dataclasses.asdict(dataclasses.replace(config, vocab_multiple=1)),
        "torch_dtype": dtype,
        **{f"{name}_token_id": special_ids.get(name) for name in ("bos", "eos")},
    }


def _read(values: dict[str, Any], dialect: Dialect, *, where: str) -> ModelConfig:
    if values["num_key_value_heads"] is None:
        values["num_key_value_heads"] = values["num_attention_heads"]
    if values["head_dim"] is None:
        width, num_heads = (_typed(values, name, "", where=where) for name in ("hidden_size", "num_attention_heads"))
        values["head_dim"] = width // num_heads
    if _typed(values, "num_hidden_layers", "", where=where) > _MOST_LAYERS:
        raise HuggingFaceError(
            f"{where}: num_hidden_layers={values['num_hidden_layers']} is more than any model has, {_MOST_LAYERS:,}"
        )
    turns, local = read_turns(values, dialect, where=where)
    values["rope_theta"] = turns.pop("rope_theta")
    fields = {ours: _typed(values, theirs, ours, where=where) for theirs, ours in SHAPE.items()}
    fields |= _scores(values) | _windows(values, where=where)
    moe = read_experts(values, dialect, where=where)
    if moe is not None and moe.num_dense_layers == 0:
        fields["mlp_dim"] = 0  # the field is of an expert's width, or of layers that there are none of
    if "sliding_window" in fields:
        fields["local_rope_theta"] = local
    return ModelConfig(family=dialect.family, moe=moe, rope_scaling=read_scaling(turns, values, where=where), **fields)


def _normal(config: ModelConfig) -> ModelConfig:
    """The configuration without what a ``config.json`` has no place for since it changes no logit."""
    every, scale, local = config.global_every, config.query_scale, config.local_rope_theta
    if local is None and config.sliding_window is not None and config.rope_scaling is None:
        local = config.rope_theta
    return dataclasses.replace(
        config,
        vocab_multiple=1,
        moe=plain(config.moe),
        local_rope_theta=local,
        global_every=None if every is not None and every > config.num_layers else every,
        query_scale=None if scale == config.head_dim**-0.5 else scale,
    )


def _check_fields(written: Mapping[str, Any], dialect: Dialect, *, where: str) -> None:
    known = {*dialect.defaults, *dialect.settled, *ROPE, *WITHOUT_EFFECT}
    for name, value in written.items():
        if name not in known and value:
            raise HuggingFaceError(
                f"{where}: {name}={value!r} is not known for {dialect.architecture} and might change the result; if "
                f"it does not, take it out of the file"
            )
        if name in dialect.settled and (value or False) != (dialect.settled[name] or False):
            raise HuggingFaceError(f"{where}: {name}={value!r}, computed here is only {dialect.settled[name]!r}")


def _typed(values: Mapping[str, Any], theirs: str, ours: str, *, where: str) -> Any:
    kind = {"norm_eps": float, "rope_theta": float, "tie_embeddings": bool}.get(ours, int)
    value = values[theirs]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise HuggingFaceError(f"{where}: {theirs}={value!r} must be of type {kind.__name__}")
    return value


def _windows(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Which layers see a window, from a list of all, a period, or the number of those below that do not."""
    if "layer_types" not in values:
        return {}
    num_layers, window = values["num_hidden_layers"], values["sliding_window"]
    window = window if values.get("use_sliding_window", True) else None
    types = values["layer_types"]
    if types is None and "sliding_window_pattern" in values:
        period = values["sliding_window_pattern"]
        types = [SLIDING if (i + 1) % period else FULL for i in range(num_layers)]
    elif types is None:
        first = values["max_window_layers"] if window is not None else num_layers
        types = [SLIDING if i >= first else FULL for i in range(num_layers)]
    if set(types) <= {FULL}:
        return {}
    every = types.index(FULL) + 1 if FULL in types else None
    periodic = [FULL if every and (i + 1) % every == 0 else SLIDING for i in range(num_layers)]
    if types != periodic or window is None:
        raise HuggingFaceError(
            f"{where}: layer_types={types} with sliding_window={window}; computed here is one layer of {FULL} every so "
            f"many layers, and a window in the others"
        )
    return {"sliding_window": window, "global_every": every}


def _written_windows(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    if "layer_types" not in dialect.defaults:
        return {}
    window, every = config.sliding_window, config.global_every
    local = [window is not None and (every is None or (i + 1) % every != 0) for i in range(config.num_layers)]
    written: dict[str, Any] = {"layer_types": [SLIDING if is_local else FULL for is_local in local]}
    if "use_sliding_window" in dialect.defaults:
        return written | {"sliding_window": window, "use_sliding_window": window is not None}
    # Transformers makes the mask of a window although no layer asks for it, and fails where it has no width.
    return written | {"sliding_window": config.max_seq_len if window is None else window}


def _scores(values: Mapping[str, Any]) -> dict[str, Any]:
    if "query_pre_attn_scalar" not in values:
        return {}
    scalar = values["query_pre_attn_scalar"]
    scale = None if scalar == values["head_dim"] else scalar**-0.5
    # Its attn_logit_softcapping is Gemma 2's: transformers' Gemma 3 reads it and applies none.
    return {"query_scale": scale, "logit_softcap": values["final_logit_softcapping"]}


def _written_scores(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    if "query_pre_attn_scalar" not in dialect.defaults:
        return {}
    scalar = config.head_dim if config.query_scale is None else max(1, round(config.query_scale**-2))
    return {"query_pre_attn_scalar": scalar, "final_logit_softcapping": config.logit_softcap}
