"""Rotary embeddings in a ``config.json``: read in both spellings, ``rope_theta`` with ``rope_scaling`` and
``rope_parameters``, and written in both.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from marin_train.configs import ModelConfig, RopeScaling
from marin_train.errors import HuggingFaceError
from marin_train.hf.dialects import FULL, SLIDING, Dialect

ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "original_max_position_embeddings")

_SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor"),
    # Its divisors are chosen by max_seq_len here, by each sequence's length there: short sequences differ.
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
}
"""What each kind of scaling is told, by names that are theirs and ours."""


def read_turns(values: Mapping[str, Any], dialect: Dialect, *, where: str) -> tuple[dict[str, Any], float | None]:
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


def read_scaling(turns: dict[str, Any], values: Mapping[str, Any], *, where: str) -> RopeScaling | None:
    """How frequencies are scaled, by what is left of `read_turns`; None where they are not."""
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
        steps = [
            0.1 * turns[name] * math.log(max(1, turns.get("factor", 1))) + 1 for name in ("mscale", "mscale_all_dim")
        ]
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


def write_turns(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    """The fields of a model's rotary embeddings, in both spellings."""
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
