"""Parts that model families share: each declares its parameters beside the function that uses them."""

from marin_train.blocks.attention import (
    Attention,
    Context,
    Past,
    attend,
    attend_to_past,
    attention_parameters,
    no_past,
)
from marin_train.blocks.contraction import contract
from marin_train.blocks.embedding import look_up, vocabulary_parameters
from marin_train.blocks.gated_norm import GatedNorm, gated_norm_parameters
from marin_train.blocks.layers import Emitted, Kind, apply_layers
from marin_train.blocks.mlp import GatedMLP, gated_mlp_parameters
from marin_train.blocks.norms import rms_norm
from marin_train.blocks.rope import Rotation, rotary, rotate
from marin_train.blocks.short_convolution import convolution, convolve, convolve_next

__all__ = [
    "Attention",
    "Context",
    "Emitted",
    "GatedMLP",
    "GatedNorm",
    "Kind",
    "Past",
    "Rotation",
    "apply_layers",
    "attend",
    "attend_to_past",
    "attention_parameters",
    "contract",
    "convolution",
    "convolve",
    "convolve_next",
    "gated_mlp_parameters",
    "gated_norm_parameters",
    "look_up",
    "no_past",
    "rms_norm",
    "rotary",
    "rotate",
    "vocabulary_parameters",
]
