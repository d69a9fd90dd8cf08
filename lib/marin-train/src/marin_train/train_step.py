"""One step of training: one compiled program from (state, batch) to (state, metrics), in place.

The state is donated, so that a step holds one copy of it. The batch is spread over the mesh's data axis and the loss is
a quotient of global sums, so that the program's result does not depend on the number of devices beyond rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from marin_train import models
from marin_train.configs import TrainConfig
from marin_train.losses import Batch, summed_loss
from marin_train.mesh import check_batch_size, sharding
from marin_train.optim import make_optimizer, make_schedule
from marin_train.parameters import init_model, map_parameters
from marin_train.policy import Policy


class TrainState(eqx.Module):
    """All that a step changes.

    Args:
        model: the parameters, float32.
        opt_state: the optimizer's state.
        step: the number of updates done.
    """

    model: Any
    opt_state: optax.OptState
    step: Int[Array, ""]


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Float[Array, ""]]]]


def init_state(config: TrainConfig, *, mesh: Mesh) -> TrainState:
    """The state before the first update: drawn from `config.seed`, each leaf placed where the mesh wants it."""
    return jax.jit(partial(_draw_state, config), out_shardings=_shardings(state_template(config, mesh=mesh)))()


def state_template(config: TrainConfig, *, mesh: Mesh) -> TrainState:
    """The state's shapes, types and places; nothing is allocated.

    An optimizer's moments lie beside their parameter, its counters everywhere.
    """
    table = models.family(config.model).parameter_table(config.model)
    state = jax.eval_shape(partial(_draw_state, config))
    by_parameter = map_parameters(lambda parameter: sharding(mesh, parameter.dims), table, state.model)
    everywhere: Any = sharding(mesh, ())
    opt_state = optax.tree.map_params(
        make_optimizer(config, table).init,
        lambda _, placed: placed,
        state.opt_state,
        by_parameter,
        transform_non_params=lambda _: everywhere,
    )
    places = TrainState(model=by_parameter, opt_state=opt_state, step=everywhere)
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state, places)


def make_train_step(config: TrainConfig, *, policy: Policy, mesh: Mesh) -> TrainStep:
    """The compiled step. It consumes the state that it is given.

    Returns:
        A function of state and batch to the next state and its metrics, scalars on the device: ``loss`` (mean
        cross-entropy, nats a token), ``grad_norm`` (over all leaves, before the clip), ``lr``, ``num_tokens``.
    """
    check_batch_size(mesh, config.batch_size)
    optimizer = make_optimizer(config, models.family(config.model).parameter_table(config.model))
    schedule = make_schedule(config)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        def objective(model: Any) -> tuple[Array, Any]:
            sums = summed_loss(model, batch, config=config.model, policy=policy, z_loss=config.z_loss)
            scale = 1.0 / jnp.maximum(sums.num_tokens, 1).astype(jnp.float32)
            return sums.objective * scale, (sums, scale)

        gradients, (sums, scale) = jax.grad(objective, has_aux=True)(state.model)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.model)
        metrics: dict[str, Any] = {
            "loss": sums.cross_entropy * scale,
            "grad_norm": optax.tree.norm(gradients),
            "lr": schedule(state.step),
            "num_tokens": sums.num_tokens,
        }
        model = optax.apply_updates(state.model, updates)
        return TrainState(model=model, opt_state=opt_state, step=state.step + 1), metrics

    state, batch = _shardings(state_template(config, mesh=mesh)), sharding(mesh, ("batch", "seq"))
    everywhere = sharding(mesh, ())
    return jax.jit(train_step, donate_argnums=0, in_shardings=(state, batch), out_shardings=(state, everywhere))


def _draw_state(config: TrainConfig) -> TrainState:
    family = models.family(config.model)
    table = family.parameter_table(config.model)
    model = init_model(family.Model, table, seed=config.seed)
    opt_state = make_optimizer(config, table).init(model)
    return TrainState(model=model, opt_state=opt_state, step=jnp.zeros((), jnp.int32))


def _shardings(template: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf.sharding, template)
