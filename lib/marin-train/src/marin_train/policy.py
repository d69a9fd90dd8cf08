"""How this machine computes a step fastest: chosen by measuring, named, recorded, and reused on resume.

A policy changes the speed and the rounding of a step, never its meaning. Which one is fastest follows from matrix
units, cache sizes and the compiler, so it is measured at a run's first start and never guessed from a platform's name.
Two measurements can differ and so can the last digits of two policies: a run therefore records its policy, and a
resume takes the recorded one, which keeps its losses bitwise equal.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from marin_train.errors import ConfigError

if TYPE_CHECKING:
    from marin_train.configs import TrainConfig

logger = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]
Backend = Literal["reference", "blocked", "dot_product", "splash"]
Remat = Literal["keep", "full", "dots", "named"]

SECONDS = 6.0
"""What a choice may take. A candidate that would not be done by then, judged by the slowest before it, is not tried."""

REPETITIONS = 3
"""Timed runs a candidate, at least."""

REPEATING_SECONDS = 0.5
"""Runs that are short are repeated for so long: beside other work on the machine, few of them run undisturbed."""

PROBE_TOKENS = 2048
"""Tokens in a probe at most: enough to fill the machine."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a step is computed.

    Args:
        operands: the type to which operands of matrix products are rounded; they are accumulated in float32 always.
        activations: the type of what layers hand on; parameters, gradients, norms and losses are float32 always.
        attention: the body of causal attention.
        remat: what the backward pass recomputes of a layer: nothing (``keep``); all, from its input (``full``); all
            but matrix products (``dots``); all but the arrays that blocks name as dear (``named``).
        scan: whether layers are a compiled loop rather than unrolled.
    """

    operands: Precision = "float32"
    activations: Precision = "float32"
    attention: Backend = "reference"
    remat: Remat = "keep"
    scan: bool = False

    @property
    def name(self) -> str:
        """Its parts joined by dashes, in order: ``bfloat16-blocked-full-unroll``.

        The first is ``mixed`` where operands and activations both are bfloat16.
        """
        precision = "mixed" if self.activations == "bfloat16" else self.operands
        return f"{precision}-{self.attention}-{self.remat}-{'scan' if self.scan else 'unroll'}"

    def to_dict(self) -> dict[str, Any]:
        """The policy as JSON-able values."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Policy":
        """The policy that `to_dict` gave."""
        return Policy(**values)


def by_name(name: str) -> Policy:
    """The policy of that name.

    Raises:
        ConfigError: there is none, with an example of one.
    """
    for policy in _all():
        if policy.name == name:
            return policy
    raise ConfigError(f"TrainConfig.policy={name!r} is not a policy; use 'auto', or a name such as {Policy().name!r}")


def _all() -> list[Policy]:
    return [
        Policy(operands=operands, activations=activations, attention=attention, remat=remat, scan=scan)
        for operands, activations in (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
        for attention in get_args(Backend)
        for remat in get_args(Remat)
        for scan in (False, True)
    ]


def choose(config: "TrainConfig") -> Policy:
    """The policy that `config` names, or, for ``auto``, the one measured fastest on this machine.

    Two measurements at the run's own shapes: first a feed-forward product and its derivatives, which settles the
    operands; then forward and backward through two layers, which settles the rest. Both kinds of operands are always
    tried, the rest in order of promise while `SECONDS` last: compiling one is most of what it costs. Where the first
    measurement shows a busy machine, the most promising is taken as it is. One that this backend cannot compile or run
    is no candidate.

    Raises:
        ConfigError: `config.policy` is neither ``auto`` nor a policy's name.
    """
    if config.policy != "auto":
        return by_name(config.policy)
    start = time.perf_counter()
    operands = _fastest(
        {Policy(operands=name): partial(_product_probe, config, operands=name) for name in ("float32", "bfloat16")},
        what="a product and its derivatives",
        deadline=math.inf,
    ).operands
    candidates = [
        Policy(operands=operands, attention="blocked", remat="full", scan=True),
        Policy(operands=operands, attention="blocked", remat="keep", scan=False),
        Policy(operands=operands, attention="reference", remat="keep", scan=False),
        Policy(operands=operands, attention="blocked", remat="keep", scan=True),
    ]
    if time.perf_counter() - start > SECONDS / 3:
        logger.info("policy %s: taken unmeasured, for lack of time", candidates[0].name)
        return candidates[0]
    return _fastest(
        {policy: partial(_layers_probe, config, policy=policy) for policy in candidates},
        what="two layers and their derivatives",
        deadline=start + SECONDS,
    )


def _fastest(probes: dict[Policy, Callable[[], Callable[[], object]]], *, what: str, deadline: float) -> Policy:
    """The policy whose probe, once built, runs shortest; one is always tried, the others as the deadline allows."""
    import jax

    runs: dict[Policy, Callable[[], object]] = {}
    longest = 0.0
    for policy, probe in probes.items():
        start = time.perf_counter()
        if runs and start + longest > deadline:
            logger.info("policy %s: not tried, for lack of time", policy.name)
            continue
        try:
            run = probe()
            jax.block_until_ready(run())
        except jax.errors.JaxRuntimeError as error:
            logger.info("policy %s cannot run here: %s", policy.name, str(error).splitlines()[0])
        else:
            runs[policy] = run
        longest = max(longest, time.perf_counter() - start)
    if not runs:
        raise ConfigError("none of the policies runs on this machine; pin one that does with TrainConfig.policy")
    if len(runs) == 1:
        (only,) = runs
        logger.info("policy %s: the only one that ran of %s", only.name, what)
        return only
    seconds = _best_seconds(runs, deadline=deadline)
    for policy, best in seconds.items():
        logger.info("policy %s: %.1f ms for %s", policy.name, 1e3 * best, what)
    return min(seconds, key=lambda policy: seconds[policy])


def _best_seconds(runs: dict[Policy, Callable[[], object]], *, deadline: float) -> dict[Policy, float]:
    """Each policy's shortest run, once compiled; interleaved, so that another process disturbs all alike."""
    import jax

    seconds = dict.fromkeys(runs, math.inf)
    repetitions, enough = 0, time.perf_counter() + REPEATING_SECONDS
    while repetitions < REPETITIONS or time.perf_counter() < enough:
        for policy, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[policy] = min(seconds[policy], time.perf_counter() - start)
        repetitions += 1
        if time.perf_counter() > deadline:
            break
    return seconds


def _product_probe(config: "TrainConfig", *, operands: Precision) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    from marin_train.blocks import contract

    model, rows = config.model, min(config.batch_size * config.data.seq_len, PROBE_TOKENS)
    x, weight = jnp.ones((rows, model.hidden_dim)), jnp.ones((model.hidden_dim, model.mlp_dim))

    def cost(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(contract("td,df->tf", x, weight, policy=Policy(operands=operands))))

    return partial(jax.jit(jax.grad(cost, argnums=(0, 1))), x, weight)


def _layers_probe(config: "TrainConfig", *, policy: Policy) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    from marin_train import models
    from marin_train.models.decoder import forward
    from marin_train.parameters import build

    shape = dataclasses.replace(config.model, num_layers=min(2, config.model.num_layers), vocab_size=256)
    family = models.family(shape)
    leaves = {p.path: jnp.full(p.shape, 0.02) for p in family.parameter_table(shape)}
    model, seq_len = build(family.Model, leaves), config.data.seq_len
    tokens = jnp.zeros((max(1, min(config.batch_size, PROBE_TOKENS // seq_len)), seq_len), jnp.int32)

    def cost(model: Any) -> jax.Array:
        return jnp.sum(jnp.square(forward(model, tokens, config=shape, policy=policy)))

    return partial(jax.jit(jax.grad(cost)), model)
