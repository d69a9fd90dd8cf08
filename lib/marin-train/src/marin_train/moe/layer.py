"""A layer's feed-forward part made of experts: router, balance, dispatch, and what every token sees beside them.

The router scores tokens as they come; where there is a latent width, experts see a projection of them through a norm
of its own, and what they give is projected back. Shared experts see tokens as they come, and are outside of routing.

See: Shazeer et al. 2017 (arXiv 1701.06538); Dai et al. 2024, "DeepSeekMoE" (arXiv 2401.06066), for shared experts.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from marin_train.blocks.contraction import contract
from marin_train.blocks.mlp import GatedMLP, gated_mlp_parameters
from marin_train.blocks.norms import rms_norm
from marin_train.configs import ModelConfig, MoEConfig
from marin_train.mesh import constrain, constrain_residual
from marin_train.moe.balance import rule
from marin_train.moe.dispatch import dispatch
from marin_train.moe.experts import Experts, expert_parameters
from marin_train.moe.routing import Routing, Scores, loads, weigh
from marin_train.parameters import Constant, Parameter, gain, matrix
from marin_train.policy import Policy

ROUTER_BIAS = "router_bias"
"""The name of the leaf that a rule of balance moves, and no gradient."""


class MixtureOfExperts(eqx.Module):
    """``sum of weight * expert(x)`` over the experts that see x, and the shared experts' result."""

    router: Float[Array, "*layer embed experts"]
    router_bias: Float[Array, "*layer experts"] | None
    """Added to scores where experts are chosen; None under a rule that has none."""
    down: Float[Array, "*layer embed latent"] | None
    latent_norm: Float[Array, "*layer latent"] | None
    experts: Experts
    up: Float[Array, "*layer latent embed"] | None
    shared: GatedMLP | None

    def __call__(
        self,
        x: Float[Array, "batch seq embed"],
        *,
        valid: Bool[Array, "batch seq"] | None,
        learns: bool,
        config: ModelConfig,
        policy: Policy,
    ) -> tuple[Float[Array, "batch seq embed"], Routing]:
        """Results, and what was counted of the routing.

        Args:
            x: the tokens.
            valid: which are no padding; None for all.
            learns: whether this is a step of training.
            config: the model's shape.
            policy: how products are computed.
        """
        moe = config.moe
        assert moe is not None
        x = constrain(x, "batch", "seq", None)
        scores = _scores(x, self.router)
        balanced = rule(moe, learns=learns).balance(scores, self.router_bias, valid=valid, config=moe)
        routes = weigh(scores, balanced.chosen, valid=valid, config=moe)
        rows = x
        if self.down is not None and self.latent_norm is not None:
            rows = contract("bsd,dl->bsl", x, self.down, policy=policy)
            rows = rms_norm(rows, self.latent_norm, eps=config.norm_eps)
        done = dispatch(rows, routes, self.experts, config=moe, policy=policy)
        out = done.output if self.up is None else contract("bsl,ld->bsd", done.output, self.up, policy=policy)
        if self.shared is not None:
            out = out + self.shared(x, activation="silu", policy=policy)
        probability, lse = jax.nn.softmax(scores, axis=-1), jax.nn.logsumexp(scores, axis=-1)
        entropy = lse - jnp.sum(probability * scores, axis=-1)
        objective = balanced.objective + moe.router_z_loss * _summed(jnp.square(lse), valid)
        routing = Routing(
            objective=objective,
            load=loads(routes.experts, moe.num_experts),
            counts=balanced.counts,
            entropy=_summed(jax.lax.stop_gradient(entropy), valid),
            num_tokens=jnp.int32(lse.size) if valid is None else jnp.sum(valid, dtype=jnp.int32),
            traffic=done.traffic,
        )
        return constrain_residual(out), routing


def _scores(x: Float[Array, "batch seq embed"], router: Float[Array, "embed experts"]) -> Scores:
    """In float32 whatever the policy: a rounded score is another choice."""
    router = constrain(router, None, None)
    return jnp.einsum("bsd,de->bse", x.astype(jnp.float32), router, precision=jax.lax.Precision.HIGHEST)


def _summed(values: Float[Array, "batch seq"], valid: Bool[Array, "batch seq"] | None) -> Float[Array, ""]:
    return jnp.sum(values if valid is None else jnp.where(valid, values, 0.0))


def mixture_parameters(
    path: str,
    config: ModelConfig,
    *,
    router_key: str,
    expert_keys: tuple[str, str, str],
    hf_key: str,
) -> tuple[Parameter, ...]:
    """The leaves of a `MixtureOfExperts`.

    Args:
        path: where it is in the model.
        config: the model's shape.
        router_key: the router's name in a Hugging Face checkpoint.
        expert_keys: names of gate, up and down there, with ``{expert}`` for the number.
        hf_key: where what a published family has no name for is there.
    """
    moe, hidden = config.moe, config.hidden_dim
    assert moe is not None
    return (
        matrix(
            f"{path}.router",
            (hidden, moe.num_experts),
            dims=("embed", "expert_score"),
            hf_key=router_key,
            role="router",
        ),
        *_bias(f"{path}.{ROUTER_BIAS}", moe, hf_key=f"{hf_key}.gate.e_score_correction_bias"),
        *_latent(path, hidden, moe, hf_key=hf_key),
        *expert_parameters(
            f"{path}.experts",
            hidden if moe.latent_dim is None else moe.latent_dim,
            num_experts=moe.num_experts,
            top_k=moe.top_k,
            expert_dim=moe.expert_dim,
            hf_keys=expert_keys,
        ),
        *_shared(f"{path}.shared", hidden, moe, hf_key=f"{hf_key}.shared_experts"),
    )


def _bias(path: str, moe: MoEConfig, *, hf_key: str) -> tuple[Parameter, ...]:
    if not moe.is_biased:
        return ()
    dims = ("expert_score",)
    return (Parameter(path=path, shape=(moe.num_experts,), dims=dims, role="bias", init=Constant(0.0), hf_key=hf_key),)


def _latent(path: str, hidden_dim: int, moe: MoEConfig, *, hf_key: str) -> tuple[Parameter, ...]:
    if moe.latent_dim is None:
        return ()
    wide, narrow = ("embed", "latent"), ("latent", "embed")
    return (
        matrix(f"{path}.down", (hidden_dim, moe.latent_dim), dims=wide, hf_key=f"{hf_key}.latent_down.weight"),
        gain(f"{path}.latent_norm", moe.latent_dim, dim="latent", hf_key=f"{hf_key}.latent_norm.weight"),
        matrix(f"{path}.up", (moe.latent_dim, hidden_dim), dims=narrow, hf_key=f"{hf_key}.latent_up.weight"),
    )


def _shared(path: str, hidden_dim: int, moe: MoEConfig, *, hf_key: str) -> tuple[Parameter, ...]:
    return gated_mlp_parameters(path, hidden_dim, mlp_dim=moe.shared_dim, hf_key=hf_key) if moe.shared_dim else ()
