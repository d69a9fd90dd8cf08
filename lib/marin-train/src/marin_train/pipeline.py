"""Pipeline parallelism: each stage of the mesh holds its share of the layers, and microbatches go from one to the next.

The schedule is 1F1B in lockstep. At tick t, stage s of S reads microbatch ``t - s`` forward and microbatch
``t - 2 (S - 1) + s`` backward, where there is such a one: the last stage turns a microbatch round in the tick in which
it arrives, every other one sees it again ``2 (S - 1 - s)`` ticks later. A stage keeps what a microbatch looked like
when it came in, for as long as that takes, and recomputes the rest in the backward pass: memory grows with the number
of stages and not with that of microbatches. Of the ``M + 2 (S - 1)`` ticks, ``2 (S - 1)`` at the ends are the bubble.

Results are sums over the microbatches, as accumulation's are, so that a loss does not depend on how a model is cut.

See: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters" (arXiv 2104.04473), section
2.2, for the schedule; Huang et al. 2019, "GPipe" (arXiv 1811.06965), for recomputing a stage from its input.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from marin_train.accumulation import LossGradients, in_parts
from marin_train.blocks import Context, apply_layers
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.losses import Batch, LossSums, summed_cross_entropy
from marin_train.mesh import RULES
from marin_train.models import family
from marin_train.policy import Policy

STAGE = "stage"

Hidden = Float[Array, "batch seq embed"]


def forward_at(tick: Any, *, stage: Any) -> Any:
    """The microbatch that a stage reads forward at a tick; below 0 or beyond the last, none."""
    return tick - stage


def backward_at(tick: Any, *, stage: Any, num_stages: int) -> Any:
    """The microbatch that a stage reads backward at a tick; below 0 or beyond the last, none."""
    return tick - 2 * (num_stages - 1) + stage


def num_ticks(num_microbatches: int, *, num_stages: int) -> int:
    """Ticks until the first stage has read the last microbatch backward."""
    return num_microbatches + 2 * (num_stages - 1)


def check_stages(config: ModelConfig, num_stages: int) -> None:
    """Refuses a number of stages that does not cut the layers into equal shares of equal kinds.

    Raises:
        ConfigError: with the number of layers, or the period of their kinds, that the stages must divide.
    """
    if config.moe is not None:
        raise ConfigError(
            f"MeshConfig.stage={num_stages}: layers of experts have no pipeline; set MeshConfig.stage=1, and share "
            f"experts out by MeshConfig.expert"
        )
    kinds = family(config).kinds(config)
    share, rest = divmod(len(kinds), num_stages)
    if rest:
        raise ConfigError(f"MeshConfig.stage={num_stages} must divide ModelConfig.num_layers={len(kinds)}")
    if list(kinds) != list(kinds[:share]) * num_stages:
        raise ConfigError(
            f"MeshConfig.stage={num_stages} gives each stage {share} of {len(kinds)} layers, whose kinds (windows, "
            f"positions) differ from stage to stage; choose one whose share is a multiple of their period"
        )


def pipelined_gradients(
    model: Any,
    batch: Batch,
    *,
    config: ModelConfig,
    policy: Policy,
    mesh: Mesh,
    num_parts: int,
    z_loss: float,
) -> LossGradients:
    """Loss and gradients of a batch whose parts go through the mesh's stages, one behind the other.

    Args:
        model: the parameters, those of layers sharded over the mesh's stages on their first dim.
        batch: its rows divide by ``num_parts`` times the mesh's data shares.
        config: the model's shape.
        policy: see `pipelined_loss`.
        mesh: likewise.
        num_parts: microbatches.
        z_loss: weight of the squared log-normaliser.
    """
    sums, gradients = pipelined_loss(
        model, in_parts(batch, num_parts, mesh=mesh), config=config, policy=policy, mesh=mesh, z_loss=z_loss
    )
    scale = 1.0 / jnp.maximum(sums.num_tokens, 1).astype(jnp.float32)
    return LossGradients(
        jax.tree.map(lambda leaf: leaf * scale, gradients), sums.cross_entropy * scale, sums.num_tokens
    )


def pipelined_loss(
    model: Any,
    microbatches: Batch,
    *,
    config: ModelConfig,
    policy: Policy,
    mesh: Mesh,
    z_loss: float = 0.0,
) -> tuple[LossSums, Any]:
    """The sums over a batch's unmasked tokens, and the gradient of their objective.

    Args:
        model: the parameters, those of layers sharded over the mesh's stages on their first dim.
        microbatches: a batch whose arrays have a leading dim of microbatches.
        config: the model's shape.
        policy: how this machine computes fastest; every stage is recomputed in the backward pass whatever it says.
        mesh: its ``stage`` axis is the pipeline's, and the batch is spread as ever; what lies along ``model`` is left
            to the compiler.
        z_loss: weight of the squared log-normaliser.
    """
    layers, rest = model.layers, eqx.tree_at(lambda m: m.layers, model, None)
    program = _Stage(config=config, policy=policy, num_stages=mesh.shape[STAGE], z_loss=z_loss)
    everywhere, by_layer = PartitionSpec(), PartitionSpec(STAGE)
    run = jax.shard_map(
        partial(_run_stage, program=program),
        mesh=mesh,
        axis_names={STAGE, *RULES["batch"]},
        in_specs=(by_layer, everywhere, PartitionSpec(None, RULES["batch"])),
        out_specs=(everywhere, by_layer, everywhere),
        check_vma=False,
    )
    sums, layer_gradients, rest_gradients = run(layers, rest, microbatches)
    return sums, eqx.tree_at(lambda m: m.layers, rest_gradients, layer_gradients, is_leaf=lambda x: x is None)


class _Flight(NamedTuple):
    """What a stage carries from tick to tick.

    Attributes:
        ahead: the microbatch that comes in from the stage before.
        behind: the slope that comes in from the stage after.
        inputs: what microbatches looked like when they came in, a place for each that may be under way.
        layer_gradients: of this stage's layers, so far.
        rest_gradients: of embedding, final norm and head, so far: the first and the last stage's shares.
        sums: of the last stage.
    """

    ahead: Hidden
    behind: Hidden
    inputs: Float[Array, "places batch seq embed"]
    layer_gradients: Any
    rest_gradients: Any
    sums: LossSums


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """What a stage computes of one microbatch; known to the compiler."""

    config: ModelConfig
    policy: Policy
    num_stages: int
    z_loss: float

    def embedded(self, rest: Any, one: Batch) -> Hidden:
        """What the first stage's layers read."""
        return family(self.config).embed(rest, one.tokens[:, :-1], config=self.config, policy=self.policy)

    def through_layers(self, layers: Any, x: Hidden, one: Batch) -> Hidden:
        """What every stage hands on."""
        parts = family(self.config)
        positions = jnp.arange(x.shape[1])[None] if one.positions is None else one.positions
        context = Context(rotations=parts.rotations(positions, config=self.config), segment_ids=one.segment_ids)
        layer = partial(parts.layer, context=context, config=self.config, policy=self.policy)
        kinds = parts.kinds(self.config)[: self.config.num_layers // self.num_stages]
        return apply_layers(layer, layers, x, kinds=kinds, policy=self.policy)[0]

    def cost(self, rest: Any, y: Hidden, one: Batch) -> tuple[Array, LossSums]:
        """What the last stage makes of its layers' output: the objective, which has a gradient, and all sums."""
        parts = family(self.config)
        objective, cross_entropy = summed_cross_entropy(
            parts.finish(rest, y, config=self.config),
            parts.head(rest),
            targets=one.tokens[:, 1:],
            mask=one.loss_mask,
            z_loss=self.z_loss,
            config=self.config,
            policy=self.policy,
        )
        return objective, LossSums(objective, cross_entropy, jnp.sum(one.loss_mask, dtype=jnp.int32))


def _run_stage(layers: Any, rest: Any, microbatches: Batch, *, program: _Stage) -> tuple[LossSums, Any, Any]:
    """All ticks of one stage; sums and gradients outside the layers are the same on all of them at the end."""
    num_microbatches, batch, width = microbatches.tokens.shape
    num_stages, stage = program.num_stages, jax.lax.axis_index(STAGE)
    is_first, is_last = stage == 0, stage == num_stages - 1
    places = 2 * num_stages - 1

    def tick(flight: _Flight, t: Array) -> tuple[_Flight, None]:
        f, b = forward_at(t, stage=stage), backward_at(t, stage=stage, num_stages=num_stages)
        going, coming = _one(microbatches, f), _one(microbatches, b)
        goes, comes = (f >= 0) & (f < num_microbatches), (b >= 0) & (b < num_microbatches)
        x = jax.lax.cond(is_first, lambda: program.embedded(rest, going), lambda: flight.ahead)
        y = program.through_layers(layers, x, going)
        inputs = flight.inputs.at[f % places].set(x)

        def turned() -> tuple[LossSums, Any, Hidden]:
            (_, sums), (above, slope) = jax.value_and_grad(program.cost, argnums=(0, 1), has_aux=True)(rest, y, going)
            return sums, above, slope

        def passed() -> tuple[LossSums, Any, Hidden]:
            return _no_sums(), jax.tree.map(jnp.zeros_like, rest), flight.behind

        sums, above, slope = jax.lax.cond(is_last & goes, turned, passed)
        slope = jnp.where(comes, slope, 0.0).astype(y.dtype)
        _, pull = jax.vjp(lambda layers, x: program.through_layers(layers, x, coming), layers, inputs[b % places])
        layer_gradients, slope = pull(slope)
        below = jax.lax.cond(
            is_first & comes,
            lambda: jax.vjp(lambda rest: program.embedded(rest, coming), rest)[1](slope)[0],
            lambda: jax.tree.map(jnp.zeros_like, rest),
        )
        return _Flight(
            ahead=jax.lax.ppermute(y, STAGE, [(s, s + 1) for s in range(num_stages - 1)]),
            behind=jax.lax.ppermute(slope, STAGE, [(s + 1, s) for s in range(num_stages - 1)]),
            inputs=inputs,
            layer_gradients=jax.tree.map(jnp.add, flight.layer_gradients, layer_gradients),
            rest_gradients=jax.tree.map(lambda a, b, c: a + b + c, flight.rest_gradients, above, below),
            sums=jax.tree.map(jnp.add, flight.sums, sums),
        ), None

    x = jnp.zeros((batch, width - 1, program.config.hidden_dim), program.policy.activations)
    start = _Flight(
        ahead=x,
        behind=x,
        inputs=jnp.zeros((places, *x.shape), x.dtype),
        layer_gradients=jax.tree.map(jnp.zeros_like, layers),
        rest_gradients=jax.tree.map(jnp.zeros_like, rest),
        sums=_no_sums(),
    )
    ticks = jnp.arange(num_ticks(num_microbatches, num_stages=num_stages))
    end, _ = jax.lax.scan(tick, start, ticks)
    sums, rest_gradients = jax.lax.psum((end.sums, end.rest_gradients), (STAGE, *RULES["batch"]))
    return sums, jax.lax.psum(end.layer_gradients, RULES["batch"]), rest_gradients


def _one(microbatches: Batch, index: Int[Array, ""]) -> Batch:
    """The microbatch of that index, or, where there is none, the nearest."""
    index = jnp.clip(index, 0, microbatches.tokens.shape[0] - 1)
    return jax.tree.map(lambda x: x[index], microbatches)


def _no_sums() -> LossSums:
    return LossSums(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))
