"""How this machine computes a step fastest: chosen by measuring, named, recorded, and reused on resume.

A policy changes the speed and the rounding of a step, never its meaning. Which one is fastest follows from matrix
units, cache sizes and the compiler, so it is measured at a run's first start and not guessed from a machine's name.
Two measurements can differ and so can the last digits of two policies: a run therefore records its policy, and a
resume takes the recorded one, which keeps its losses bitwise equal.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from marin_train.errors import ConfigError

if TYPE_CHECKING:
    from marin_train.configs import TrainConfig

logger = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]
Backend = Literal["reference", "blocked", "dot_product", "splash"]
Dispatch = Literal["oracle", "block", "ragged"]
Remat = Literal["keep", "full", "dots", "named"]

GAIN = 1.2
"""So much faster must products of bfloat16 be than those of float32 to be taken: rounding operands costs time too, and
digits."""

REPETITIONS = 3
"""Timed runs a candidate, at least."""

REPEATING_SECONDS = 0.5
"""Runs that are short are repeated for so long: beside other work on the machine, few of them run undisturbed."""

MARGIN = 0.02
"""A candidate must be faster by this share than those before it in their order: what is closer is noise, and taking the
first then gives equal runs equal policies."""

PROBE_TOKENS = 2048
"""Tokens in a probe at most: enough to fill the machine."""

PROBE_SEQ_LEN = 256
"""Tokens a sequence at most, where candidates attend alike: the blocks that attention goes through are most of what a
probe takes to compile, and say nothing about recomputing or looping."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a step is computed.

    Args:
        operands: the type to which operands of matrix products are rounded; they are accumulated in float32 always.
        activations: the type of what layers hand on; parameters, gradients, norms and losses are float32 always.
        attention: the body of causal attention.
        remat: what the backward pass recomputes of a layer: nothing (``keep``); all, from its input (``full``); all
            but matrix products with weights and attention (``dots``); all but attention and what goes into it, hence
            feed-forward layers, whose arrays are the widest (``named``).
        scan: whether layers are a compiled loop rather than unrolled.
        dispatch: what computes experts, in models that have them; see `marin_train.moe.dispatch`.
    """

    operands: Precision = "float32"
    activations: Precision = "float32"
    attention: Backend = "reference"
    remat: Remat = "keep"
    scan: bool = False
    dispatch: Dispatch = "block"

    @property
    def name(self) -> str:
        """Its parts joined by dashes, in order: ``bfloat16-blocked-full-unroll``.

        The first is ``mixed`` where operands and activations both are bfloat16; what dispatches is told where it is not
        ``block``, behind the others: ``bfloat16-blocked-full-unroll-ragged``.
        """
        precision = "mixed" if self.activations == "bfloat16" else self.operands
        dispatch = "" if self.dispatch == "block" else f"-{self.dispatch}"
        return f"{precision}-{self.attention}-{self.remat}-{'scan' if self.scan else 'unroll'}{dispatch}"

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
        ConfigError: there is none, with what its parts may be.
    """
    for policy in _all():
        if policy.name == name:
            return policy
    parts = (("float32", "bfloat16", "mixed"), get_args(Backend), get_args(Remat), ("scan", "unroll"))
    dispatch = "|".join(d for d in get_args(Dispatch) if d != Policy.dispatch)
    raise ConfigError(
        f"TrainConfig.policy={name!r} is not a policy; use 'auto', or a name such as {Policy().name!r}, of the parts "
        f"{' - '.join('|'.join(part) for part in parts)}, and - {dispatch} where experts are computed so"
    )


def _all() -> list[Policy]:
    return [
        Policy(operands=operands, activations=activations, attention=attention, remat=remat, scan=scan, dispatch=d)
        for operands, activations in (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
        for attention in get_args(Backend)
        for remat in get_args(Remat)
        for scan in (False, True)
        for d in get_args(Dispatch)
    ]


def choose(config: "TrainConfig", *, rates: Mapping[Precision, float]) -> Policy:
    """The policy that `config` names, or, for ``auto``, the one measured fastest on this machine.

    The rates of products settle the operands; forward and backward through two layers of the run's own widths settle
    the rest. Candidates are few, because compiling them is most of what a choice costs, and all of them are measured,
    however busy the machine is. One that this backend cannot compile or run is no candidate.

    Args:
        config: the run.
        rates: type of operands -> FLOP/s of their products, as `marin_train.peak` measures them.

    Raises:
        ConfigError: `config.policy` is neither ``auto`` nor a policy's name.
    """
    import jax

    if config.policy != "auto":
        return by_name(config.policy)
    narrow = rates["bfloat16"] >= GAIN * rates["float32"]
    found = candidates(config, operands="bfloat16" if narrow else "float32", platform=jax.default_backend())
    alike = len({policy.attention for policy in found}) == 1
    seq_len = min(config.data.seq_len, PROBE_SEQ_LEN) if alike else config.data.seq_len
    return _fastest({policy: partial(_layers_probe, config, policy=policy, seq_len=seq_len) for policy in found})


def candidates(config: "TrainConfig", *, operands: Precision, platform: str) -> list[Policy]:
    """The policies worth measuring, the most promising first.

    Args:
        config: the run.
        operands: the type whose products are fastest.
        platform: jax's name of the backend, ``cpu``, ``gpu`` or ``tpu``: only there do some kernels exist. On the
            latter two, which have element-wise bfloat16, activations are as narrow as operands. A CPU is left one:
            caches are small there, and to compute a layer again takes less than to write what it made and read it
            back. Two layers do not show that, nor what would fit elsewhere, so that no candidate keeps everything; and
            unrolled layers gain a few percent of a step for a compilation that grows with their number. A pipeline's
            stages leave other axes to the compiler, which cannot share out a kernel of Mosaic's.
    """
    if platform == "cpu":
        return [Policy(operands=operands, attention="blocked", remat="full", scan=True)]
    kernel: Backend = "splash" if platform == "tpu" else "dot_product"
    dispatches: tuple[Dispatch, ...] = ("block",) if config.model.moe is None else ("ragged", "block")
    return [
        Policy(operands=operands, activations=operands, attention=attention, remat=remat, scan=True, dispatch=dispatch)
        for attention in (("blocked",) if kernel == "splash" and config.mesh.stage > 1 else (kernel, "blocked"))
        for remat in ("named", "full")
        for dispatch in dispatches
    ]


def _fastest(probes: dict[Policy, Callable[[], Callable[[], object]]]) -> Policy:
    """The policy whose probe, once built, runs shortest; they are built side by side, and timed one after the other."""
    if len(probes) == 1:
        (only,) = probes
        logger.info("policy %s: the only candidate", only.name)
        return only
    with ThreadPoolExecutor(len(probes)) as pool:
        built = dict(zip(probes, pool.map(_built, probes, probes.values()), strict=True))
    runs = {policy: run for policy, run in built.items() if run is not None}
    if not runs:
        raise ConfigError("none of the policies runs on this machine; pin one that does with TrainConfig.policy")
    seconds = _best_seconds(runs)
    for policy, best in seconds.items():
        logger.info("policy %s: %.1f ms for two layers and their derivatives", policy.name, 1e3 * best)
    chosen, *others = seconds
    for policy in others:
        if seconds[policy] < (1.0 - MARGIN) * seconds[chosen]:
            chosen = policy
    return chosen


def _built(policy: Policy, probe: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
    """The compiled probe; None where this machine cannot compile or run it."""
    import jax

    try:
        run = probe()
        jax.block_until_ready(run())
    # Compilers and kernels refuse what they cannot do with either; ours do with a ConfigError, which is a ValueError.
    except (RuntimeError, ValueError) as error:
        logger.info("policy %s cannot run here: %s", policy.name, (str(error).splitlines() or [repr(error)])[0])
        return None
    return run


def _best_seconds(runs: dict[Policy, Callable[[], object]]) -> dict[Policy, float]:
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
    return seconds


def _layers_probe(config: "TrainConfig", *, policy: Policy, seq_len: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from marin_train import models
    from marin_train.models.decoder import forward
    from marin_train.parameters import build

    num_layers = min(2, config.model.num_layers)
    shape = dataclasses.replace(config.model, num_layers=num_layers, vocab_size=256)
    if shape.moe is not None and shape.num_layers < config.model.num_layers:
        shape = dataclasses.replace(shape, moe=dataclasses.replace(shape.moe, num_dense_layers=0), mlp_dim=0)
    family, draw = models.family(shape), np.random.default_rng(0).standard_normal
    # Values do not matter but for the choice of experts: of equal tokens all would see the same.
    leaves = {
        p.path: jnp.asarray(draw(p.shape, np.float32)) if p.role in ("embed", "router") else jnp.full(p.shape, 0.02)
        for p in family.parameter_table(shape)
    }
    model = build(family.Model, leaves)
    num_tokens = min(config.batch_size * config.data.seq_len, PROBE_TOKENS)
    rows = max(1, num_tokens // seq_len)
    tokens = jnp.arange(rows * seq_len, dtype=jnp.int32).reshape(rows, seq_len) % 256

    def cost(model: Any) -> jax.Array:
        return jnp.sum(jnp.square(forward(model, tokens, config=shape, policy=policy)))

    return partial(jax.jit(jax.grad(cost)), model)
