"""``config.json`` of the families that are known here: to a `ModelConfig`, and back.

A `Dialect` states what transformers takes for a field that a file leaves out, and which fields must have one value
because the family here computes nothing else. A field that no dialect knows is refused unless it is off: it might
change the result. Rotary embeddings are read in both spellings, ``rope_theta`` with ``rope_scaling`` and
``rope_parameters``, and written in both.

What is written is read back, and must be the configuration that it came from; so nothing that a ``config.json``
cannot express is lost in silence, whatever fields `ModelConfig` gains.

See: https://huggingface.co/docs/transformers/main_classes/configuration
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin_train.configs import ModelConfig, RopeScaling
from marin_train.errors import HuggingFaceError, MarinTrainError


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one family spells its configuration.

    Args:
        family: its name here.
        architecture: the class of transformers that scores tokens with it.
        defaults: field -> what transformers takes where a file leaves it out.
        settled: field -> the one value that it may have; also what it is where a file leaves it out.
        local_theta: base of the local layers' rotary embedding where a file leaves it out; None where all have one.
        free_head_dim: whether transformers takes a width that is no multiple of the number of heads.
    """

    family: str
    architecture: str
    defaults: Mapping[str, Any]
    settled: Mapping[str, Any] = field(default_factory=dict)
    local_theta: float | None = None
    free_head_dim: bool = False


_SHAPE = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "mlp_dim",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "rope_theta": "rope_theta",
}
"""Their name -> ours, in every dialect."""


def _shape(*values: Any) -> dict[str, Any]:
    return dict(zip(_SHAPE, values, strict=True))


DIALECTS = {
    "llama": Dialect(
        family="llama",
        architecture="LlamaForCausalLM",
        defaults=_shape(32_000, 4096, 32, 32, None, None, 11_008, 2048, 1e-6, False, 10_000.0),
        settled={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "qwen3": Dialect(
        family="qwen3",
        architecture="Qwen3ForCausalLM",
        defaults=_shape(151_936, 4096, 32, 32, 32, 128, 22_016, 32_768, 1e-6, False, 10_000.0)
        | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None},
        settled={"hidden_act": "silu", "attention_bias": False},
        free_head_dim=True,
    ),
    "gemma3_text": Dialect(
        family="gemma3",
        architecture="Gemma3ForCausalLM",
        defaults=_shape(262_208, 2304, 26, 8, 4, 256, 9216, 131_072, 1e-6, True, 1_000_000.0)
        | {"sliding_window": 4096, "sliding_window_pattern": 6, "layer_types": None, "query_pre_attn_scalar": 256}
        | {"final_logit_softcapping": None},
        settled={
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "use_bidirectional_attention": False,
        },
        local_theta=10_000.0,
    ),
}
"""By ``model_type``."""

_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "original_max_position_embeddings")

_SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor"),
    # Its divisors are chosen by max_seq_len here, by each sequence's length there: short sequences differ.
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
}
"""What each kind of scaling is told, by names that are theirs and ours."""

_WITHOUT_EFFECT = frozenset(
    (
        *("model_type", "architectures", "_name_or_path", "transformers_version", "torch_dtype", "dtype"),
        *("use_cache", "cache_implementation", "initializer_range", "attention_dropout", "pretraining_tp"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "return_dict"),
        *("max_length", "length_penalty", "num_beams", "num_beam_groups", "num_return_sequences", "repetition_penalty"),
        *("temperature", "top_k", "top_p", "typical_p", "_sliding_window_pattern"),
    )
)
"""They name, start or sample a model, and change no logit."""

_MOST_LAYERS = 100_000
"""A file that says more is damaged; each of them would be looked for by its name."""

FULL, SLIDING = "full_attention", "sliding_attention"


def to_model_config(written: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """The configuration that a ``config.json`` states.

    Args:
        written: the file's content.
        where: the file's name, for messages.

    Raises:
        HuggingFaceError: naming a field that this trainer does not know, or a value that it does not compute.
        ConfigError: the values make no model.
    """
    written = text_config(written, where=where)
    dialect = DIALECTS.get(str(written.get("model_type")))
    if dialect is None:
        known = ", ".join(DIALECTS)
        raise HuggingFaceError(f"{where}: model_type={written.get('model_type')!r} is not one of: {known}")
    _check_fields(written, dialect, where=where)
    try:
        return _read({**dialect.defaults, **written}, dialect, where=where)
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
    written.update({theirs: getattr(config, ours) for theirs, ours in _SHAPE.items()}, **dialect.settled)
    written |= _written_turns(config, dialect) | _written_windows(config, dialect) | _written_scores(config, dialect)
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


def text_config(written: Mapping[str, Any], *, where: str = "config.json") -> Mapping[str, Any]:
    """The part of a configuration that concerns text: all of it, but of a model that sees, too.

    Raises:
        HuggingFaceError: that part is not fields and values.
    """
    if written.get("model_type") != "gemma3":
        return written
    shared = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    shared_values = {name: written[name] for name in shared if name in written}
    text = written.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise HuggingFaceError(f"{where}: text_config={text!r} must be fields and values")
    return {"model_type": "gemma3_text", **shared_values, **text}


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
    turns, local = _turns(values, dialect, where=where)
    values["rope_theta"] = turns.pop("rope_theta")
    fields = {ours: _typed(values, theirs, ours, where=where) for theirs, ours in _SHAPE.items()}
    fields |= _scores(values) | _windows(values, where=where)
    if "sliding_window" in fields:
        fields["local_rope_theta"] = local
    return ModelConfig(family=dialect.family, rope_scaling=_scaling(turns, values, where=where), **fields)


def _normal(config: ModelConfig) -> ModelConfig:
    """The configuration without what a ``config.json`` has no place for since it changes no logit."""
    every, scale, local = config.global_every, config.query_scale, config.local_rope_theta
    if local is None and config.sliding_window is not None and config.rope_scaling is None:
        local = config.rope_theta
    return dataclasses.replace(
        config,
        vocab_multiple=1,
        local_rope_theta=local,
        global_every=None if every is not None and every > config.num_layers else every,
        query_scale=None if scale == config.head_dim**-0.5 else scale,
    )


def _check_fields(written: Mapping[str, Any], dialect: Dialect, *, where: str) -> None:
    known = {*dialect.defaults, *dialect.settled, *_ROPE, *_WITHOUT_EFFECT}
    for name, value in written.items():
        if name not in known and value:
            raise HuggingFaceError(
                f"{where}: {name}={value!r} is not known for {dialect.architecture} and might change the result; if "
                f"it does not, take it out of the file"
            )
        if name in dialect.settled and (value or False) != dialect.settled[name]:
            raise HuggingFaceError(f"{where}: {name}={value!r}, computed here is only {dialect.settled[name]!r}")


def _typed(values: Mapping[str, Any], theirs: str, ours: str, *, where: str) -> Any:
    kind = {"norm_eps": float, "rope_theta": float, "tie_embeddings": bool}.get(ours, int)
    value = values[theirs]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise HuggingFaceError(f"{where}: {theirs}={value!r} must be of type {kind.__name__}")
    return value


def _turns(values: Mapping[str, Any], dialect: Dialect, *, where: str) -> tuple[dict[str, Any], float | None]:
    """How the layers that see all turn queries and keys, and the base of the local ones where they have another."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    _check_agree(found, values.get("rope_scaling") or {}, where=where)
    theta = values["rope_theta"]
    local = {"rope_theta": values.get("rope_local_base_freq", dialect.local_theta)}
    if FULL in found or SLIDING in found:
        local |= found.get(SLIDING) or {}
        found = found.get(FULL) or {}
        if dialect.local_theta is None and local != {"rope_theta": None}:
            raise HuggingFaceError(f"{where}: rope_parameters.{SLIDING} is not known for {dialect.architecture}")
    if local.get("rope_type", "default") != "default":
        raise HuggingFaceError(f"{where}: rope_parameters.{SLIDING} is {local}; local layers are not scaled here")
    base = local["rope_theta"]
    return {"rope_theta": theta, **found}, None if base is None else float(base)


def _check_agree(found: dict[str, Any], other: dict[str, Any], *, where: str) -> None:
    """Refuses a file that says one thing in the one spelling and another in the other: which is read is not settled."""
    one, two = (
        {"rope_type" if name == "type" else name: value for name, value in (said.get(FULL) or said).items()}
        for said in (found, other)
    )
    if unlike := [name for name, value in two.items() if value is not None and one.get(name) != value]:
        raise HuggingFaceError(
            f"{where}: rope_scaling says {unlike[0]}={two[unlike[0]]!r}, rope_parameters {one.get(unlike[0])!r}; take "
            f"the one that is wrong out of the file"
        )


def _scaling(turns: dict[str, Any], values: Mapping[str, Any], *, where: str) -> RopeScaling | None:
    kind = turns.pop("rope_type", turns.get("type", "default"))
    turns.pop("type", None)
    partial = turns.pop("partial_rotary_factor", None)
    if partial not in (None, 1):
        raise HuggingFaceError(f"{where}: partial_rotary_factor={partial!r} is not known for this model")
    if kind not in _SCALINGS:
        raise HuggingFaceError(f"{where}: rotary embeddings of type {kind!r} are not among {', '.join(_SCALINGS)}")
    longest = values["max_position_embeddings"]
    original = turns.pop("original_max_position_embeddings", None)
    original = values.get("original_max_position_embeddings") or original or longest
    if turns.get("mscale") and turns.get("mscale_all_dim") and turns.get("attention_factor") is None:
        steps = [0.1 * turns[name] * math.log(max(1, turns["factor"])) + 1 for name in ("mscale", "mscale_all_dim")]
        turns["attention_factor"] = steps[0] / steps[1]
    unknown = {
        n: v for n, v in turns.items() if n not in (*_SCALINGS[kind], "mscale", "mscale_all_dim") and v is not None
    }
    if unknown.pop("truncate", True) is not True or unknown:
        raise HuggingFaceError(f"{where}: rotary embeddings of type {kind!r} with {turns} are not computed here")
    if kind == "default":
        return None
    given = {name: turns[name] for name in _SCALINGS[kind] if turns.get(name) is not None}
    if kind in ("yarn", "longrope"):
        given.setdefault("factor", longest / original)
    if "factor" not in given:
        raise HuggingFaceError(f"{where}: rotary embeddings of type {kind!r} without a factor")
    numbers: dict[str, Any] = {n: tuple(map(float, v)) if isinstance(v, list) else float(v) for n, v in given.items()}
    return RopeScaling(kind=kind, original_max_seq_len=None if kind == "linear" else original, **numbers)


def _written_turns(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if config.rope_scaling is not None:
        given = {name: value for name, value in dataclasses.asdict(config.rope_scaling).items() if value is not None}
        parameters = {"rope_type": given.pop("kind")}
        if (original := given.pop("original_max_seq_len", None)) is not None:
            parameters["original_max_position_embeddings"] = original
        used = _SCALINGS[config.rope_scaling.kind]
        parameters |= {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if name in used}
    written: dict[str, Any] = {"rope_scaling": parameters or None}
    full = {"rope_type": "default", "rope_theta": config.rope_theta, **parameters}
    if dialect.local_theta is None:
        return written | {"rope_parameters": full}
    theta = config.rope_theta if config.local_rope_theta is None else config.local_rope_theta
    written |= {"rope_local_base_freq": theta}
    return written | {"rope_parameters": {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": theta}}}


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
    written = {"sliding_window": window, "layer_types": [SLIDING if is_local else FULL for is_local in local]}
    return written | ({"use_sliding_window": window is not None} if "use_sliding_window" in dialect.defaults else {})


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
