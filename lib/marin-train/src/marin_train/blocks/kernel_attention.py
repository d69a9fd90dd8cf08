"""Causal attention by kernels that others keep: jax's own entry point on GPUs, splash attention on TPUs.

Both take what their hardware multiplies fast, so operands are rounded before them as `contract` would round them, and
accumulate in float32. Neither can do all: ``jax.nn.dot_product_attention`` has no soft-cap. What a kernel refuses, it
refuses when a step is traced, so a policy with it is then no candidate.

``dot_product`` is cuDNN's flash attention where that takes the operands (a GPU, bfloat16), else XLA's formula.
``splash`` is Mosaic's on a TPU and interpreted elsewhere, which is for tests alone.

See: Dao 2023, "FlashAttention-2" (arXiv 2307.08691).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from marin_train.blocks.scoring import Scoring
from marin_train.errors import ConfigError
from marin_train.policy import Policy

TILE = 128
"""Rows and keys of a splash kernel's tile; sequences are padded to a multiple."""


def attend_by_dot_product(
    query: Float[Array, "batch seq heads dim"],
    key: Float[Array, "batch seq kv_heads dim"],
    *,
    value: Float[Array, "batch seq kv_heads dim"],
    segment_ids: Int[Array, "batch seq"] | None,
    scoring: Scoring,
    policy: Policy,
) -> Float[Array, "batch seq heads dim"]:
    """Each query's mean of the values that it sees, by `jax.nn.dot_product_attention`.

    Raises:
        ConfigError: scores have a soft-cap.
    """
    if scoring.softcap is not None:
        raise ConfigError(
            f"attention 'dot_product' has no soft-cap, and ModelConfig.attention_softcap={scoring.softcap}; use "
            f"another policy, such as {Policy(attention='blocked').name!r}"
        )
    same = None if segment_ids is None else (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    cudnn = jax.default_backend() == "gpu" and policy.operands == "bfloat16"
    mixed = jax.nn.dot_product_attention(
        *(x.astype(policy.operands) for x in (query, key, value)),
        mask=same,
        scale=scoring.scale,
        is_causal=True,
        local_window_size=None if scoring.window is None else (scoring.window - 1, 0),
        implementation="cudnn" if cudnn else "xla",
    )
    return checkpoint_name(mixed.astype(policy.activations), "attention_mixed")


def attend_by_splash(
    query: Float[Array, "batch seq heads dim"],
    key: Float[Array, "batch seq kv_heads dim"],
    *,
    value: Float[Array, "batch seq kv_heads dim"],
    segment_ids: Int[Array, "batch seq"] | None,
    scoring: Scoring,
    policy: Policy,
) -> Float[Array, "batch seq heads dim"]:
    """Each query's mean of the values that it sees, by splash attention.

    The sequence is padded behind its end, where causality lets no query look.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    seq_len, num_heads = query.shape[1:3]
    padded = -(-seq_len // TILE) * TILE
    shape = (padded, padded)
    mask = splash.CausalMask(shape)
    if scoring.window is not None:
        mask = splash.LocalMask(shape, (scoring.window - 1, 0), offset=0)
    kernel: Any = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * num_heads),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=scoring.softcap,
        residual_checkpoint_name="attention_mixed",
        interpret=jax.default_backend() != "tpu",
    )

    def tiles(x: Array) -> Array:
        x = jnp.pad(x.astype(policy.operands), ((0, 0), (0, padded - seq_len), (0, 0), (0, 0)))
        return x.swapaxes(1, 2)

    heads = tiles(query * scoring.scale), tiles(key), tiles(value)
    if segment_ids is None:
        mixed = jax.vmap(partial(kernel, segment_ids=None))(*heads)
    else:
        ids = jnp.pad(segment_ids, ((0, 0), (0, padded - seq_len)))
        mixed = jax.vmap(kernel)(*heads, splash.SegmentIds(ids, ids))
    return mixed.swapaxes(1, 2)[:, :seq_len].astype(policy.activations)
