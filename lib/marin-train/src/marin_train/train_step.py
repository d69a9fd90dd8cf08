"""One step of training: one compiled program from (state, batch) to (state, metrics), in place.

The state is donated, so that a step holds one copy of it. The batch is spread over the mesh's data axis and the loss is
a quotient of global sums, so that the program's result depends, beyond rounding, neither on the number of devices nor
on that of the parts that a batch is gone through in (`marin_train.accumulation`).

Steps are numbered by their data: `TrainState.step` counts every batch, also one whose update `marin_train.guard`
refused. The learning rate follows that number, so that a schedule ends with its run whatever was skipped; an
optimizer's own counters, such as those that correct Adam's bias, count the updates that entered its moments.

A batch size of its own is a program of its own, compiled when the first such batch comes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Float, Int

from marin_train import models
from marin_train.accumulation import LossGradients, loss_gradients
from marin_train.configs import TrainConfig
from marin_train.guard import GuardState, init_guard, judge, select
from marin_train.losses import Batch, LossSums, summed_loss
from marin_train.mesh import check_run, in_context, sharding
from marin_train.moe import measure_routing, merge_routing, rebalanced
from marin_train.optim import make_optimizer, make_schedule
from marin_train.parameters import dotted, init_model, map_parameters
from marin_train.pipeline import STAGE, check_stages, pipelined_gradients
from marin_train.policy import Policy


class TrainState(eqx.Module):
    """All that a step changes.

    Args:
        model: the parameters, float32.
        opt_state: the optimizer's state.
        step: the number of batches gone through.
        ema: the exponential moving average of the parameters, float32; None where none is kept.
        guard: what the next steps are measured against; None where nothing need be remembered.
    """

    model: Any
    opt_state: optax.OptState
    step: Int[Array, ""]
    ema: Any = None
    guard: GuardState | None = None


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]


def init_state(config: TrainConfig, *, mesh: Mesh) -> TrainState:
    """The state before the first update: drawn from `config.seed`, each leaf placed where the mesh wants it."""
    return jax.jit(partial(_draw_state, config), out_shardings=_shardings(state_template(config, mesh=mesh)))()


def state_template(config: TrainConfig, *, mesh: Mesh | AbstractMesh) -> TrainState:
    """The state's shapes, types and places; nothing is allocated.

    What an optimizer keeps in a parameter's shape lies beside it; its counters, and what it keeps of rows, columns or
    norms, everywhere.
    """
    table = models.family(config.model).parameter_table(config.model)
    state = jax.eval_shape(partial(_draw_state, config))

    def is_masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    by_parameter = map_parameters(lambda p: sharding(mesh, p.dims, shape=p.shape), table, state.model)
    everywhere: Any = sharding(mesh, ())
    opt_state = optax.tree.map_params(
        make_optimizer(config, table).init,
        lambda leaf, parameter, placed: (
            leaf if is_masked(leaf) else placed if leaf.shape == parameter.shape else everywhere
        ),
        state.opt_state,
        state.model,
        by_parameter,
        transform_non_params=lambda _: everywhere,
        is_leaf=is_masked,
    )
    places = TrainState(
        model=by_parameter,
        opt_state=opt_state,
        step=everywhere,
        ema=None if state.ema is None else by_parameter,
        guard=jax.tree.map(lambda _: everywhere, state.guard),
    )
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state, places)


def make_train_step(config: TrainConfig, *, policy: Policy, mesh: Mesh, watch: bool = False) -> TrainStep:
    """The compiled step. It consumes the state that it is given.

    Args:
        config: the run.
        policy: how its products are computed.
        mesh: the devices.
        watch: also tell every leaf's norms. It is another program, for the steps that want them.

    Returns:
        A function of state and batch to the next state and its metrics, scalars on the device: ``loss`` (mean
        cross-entropy, nats a token; 0 where no token counts), ``grad_norm`` (over all leaves, before the clip), ``lr``,
        ``num_tokens`` (those that count in the loss), ``skipped`` (1 where the step changed nothing), ``nonfinite``
        (steps in a row, this one included, whose loss or gradient was not finite); in a model of experts also
        ``routing`` (see `marin_train.moe.metrics`); with ``watch`` also ``watch``: leaf
        -> the norms of ``parameter`` (before the step), ``gradient`` (before the clip) and ``update`` (as proposed).

    Raises:
        ConfigError: the mesh cannot share out a part of a batch equally.
    """
    check_run(config, mesh.shape)
    optimizer = make_optimizer(config, models.family(config.model).parameter_table(config.model))
    schedule = make_schedule(config)

    gradients_of = _gradients_of(config, policy, mesh)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        with in_context(mesh):
            return advance(state, batch)

    def advance(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        gradients, loss, num_tokens, routing = gradients_of(state.model, batch)
        grad_norm = optax.tree.norm(gradients)
        opt_state = state.opt_state if state.guard is None else _on_schedule(state.opt_state, state.step)
        updates, opt_state = optimizer.update(gradients, opt_state, state.model)
        verdict = judge(state.guard, loss, grad_norm=grad_norm, num_tokens=num_tokens, config=config.guard)
        model, ema = optax.apply_updates(state.model, updates), state.ema
        if config.ema_decay is not None:
            ema = optax.incremental_update(model, ema, 1.0 - config.ema_decay)
        if routing is not None:
            model, ema = rebalanced(model, ema, routing, config=config.model)
        if verdict.guard is not None:
            before = (state.model, state.opt_state, state.ema)
            model, opt_state, ema = select(verdict.accepted, (model, opt_state, ema), before)
        metrics: dict[str, Any] = {
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": schedule(state.step),
            "num_tokens": num_tokens,
            "skipped": 1 - verdict.accepted.astype(jnp.int32),
            "nonfinite": verdict.nonfinite,
        }
        if routing is not None:
            metrics["routing"] = measure_routing(routing, state.model, model)
        if watch:
            metrics["watch"] = _norms(parameter=state.model, gradient=gradients, update=updates)
        return TrainState(model=model, opt_state=opt_state, step=state.step + 1, ema=ema, guard=verdict.guard), metrics

    state, batch = _shardings(state_template(config, mesh=mesh)), sharding(mesh, ("batch", None))
    everywhere = sharding(mesh, ())
    return jax.jit(train_step, donate_argnums=0, in_shardings=(state, batch), out_shardings=(state, everywhere))


def compile_step(program: TrainStep, config: TrainConfig, batch: Batch, *, mesh: Mesh) -> None:
    """Compiles the step for batches of that shape before there is a state; calling it then finds it compiled."""
    program.lower(state_template(config, mesh=mesh), batch).compile()  # pyrefly: ignore[missing-attribute]


def _gradients_of(config: TrainConfig, policy: Policy, mesh: Mesh) -> Callable[[Any, Batch], LossGradients]:
    """Loss and gradients of a batch, by way of the mesh's stages where it has several."""
    how: dict[str, Any] = {"num_parts": config.accumulation, "mesh": mesh}
    if mesh.shape[STAGE] > 1:
        check_stages(config.model, mesh.shape[STAGE])
        how |= {"config": config.model, "policy": policy, "z_loss": config.z_loss}
        return partial(pipelined_gradients, **how)

    def costs(model: Any, part: Batch) -> LossSums:
        return summed_loss(model, part, config=config.model, policy=policy, z_loss=config.z_loss)

    merge = None if config.model.moe is None else partial(merge_routing, config=config.model.moe)
    return partial(loss_gradients, costs, merge=merge, **how)


def _draw_state(config: TrainConfig) -> TrainState:
    family = models.family(config.model)
    table = family.parameter_table(config.model)
    model = init_model(family.Model, table, seed=config.seed)
    opt_state = make_optimizer(config, table).init(model)
    return TrainState(
        model=model,
        opt_state=opt_state,
        step=jnp.zeros((), jnp.int32),
        # Begun at the parameters themselves, it is an average from the first step on and needs no correction.
        ema=None if config.ema_decay is None else model,
        guard=init_guard(config.guard),
    )


def _on_schedule(opt_state: optax.OptState, step: Int[Array, ""]) -> optax.OptState:
    """The optimizer's state, its schedules at that step."""

    def is_schedule(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    return jax.tree.map(lambda n: n._replace(count=step) if is_schedule(n) else n, opt_state, is_leaf=is_schedule)


def _norms(**trees: Any) -> dict[str, dict[str, Float[Array, ""]]]:
    """Leaf -> name of the tree -> the norm that the leaf has there."""
    norms: dict[str, dict[str, Array]] = {}
    for name, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            norms.setdefault(dotted(path), {})[name] = jnp.sqrt(jnp.sum(jnp.square(leaf)))
    return norms


def _shardings(template: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf.sharding, template)
