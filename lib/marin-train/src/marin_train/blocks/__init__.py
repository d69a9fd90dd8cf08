"""Parts that model families share: each declares its parameters beside the function that uses them."""

from marin_train.blocks.attention import Attention, Context, Past, attention_parameters, no_past
from marin_train.blocks.contraction import contract
from marin_train.blocks.embedding import look_up, vocabulary_parameters
from marin_train.blocks.layers import Emitted, Kind, apply_layers
from marin_train.blocks.mlp import GatedMLP, gated_mlp_parameters
from marin_train.blocks.norms import rms_norm
from marin_train.blocks.rope import Rotation, rotary, rotate

__all__ = [
    "Attention",
    "Context",
    "Emitted",
    "GatedMLP",
    "Kind",
    "Past",
    "Rotation",
    "apply_layers",
    "attention_parameters",
    "contract",
    "gated_mlp_parameters",
    "look_up",
    "no_past",
    "rms_norm",
    "rotary",
    "rotate",
    "vocabulary_parameters",
]
