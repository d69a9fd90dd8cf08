"""Experts forward and backward: a layer against the batched product that it comes down to, and whole models.

    uv run bench/experts.py                                    everything, in some minutes
    uv run bench/experts.py --rounds 3
    MARIN_BENCH_PEERS=~/peers uv run bench/experts.py          beside Levanter's layer (in m312/, see bench/train.py)

Of a layer (4,096 tokens of width 256): "batched products" computes groups that are equal and lie ready, and is what
others are compared with: nothing is sorted there, and no row fills up a shape. ``block`` and ``ragged`` are handed
routes as scores without any favour give them, MaxVio as told, which is what a balanced router gives; "dense" is a
feed-forward layer that does as many FLOPs a token.

Of a whole model (4 layers of width 256, 8 sequences of 512 tokens): loss and gradients, by the policy that a run on
this machine would take, against a dense model of equal active FLOPs; and what a step's Quantile Balancing takes, alone:
choosing by biased scores, counting and moving the bias, less choosing by the scores. Rounds are interleaved; medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flows.children import Child, peers_directory

from marin_train import Component, DataConfig, ModelConfig, TrainConfig
from marin_train.blocks import contract
from marin_train.blocks.mlp import GatedMLP, gated
from marin_train.configs import MoEConfig
from marin_train.losses import Batch, summed_loss
from marin_train.measurements import measure
from marin_train.mesh import in_context, make_mesh
from marin_train.moe.balance import quantile, unbalanced
from marin_train.moe.dispatch import BODIES
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes, rebalanced
from marin_train.peak import peak_flops
from marin_train.policy import GAIN, Policy, Precision
from marin_train.train_step import init_state

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A layer, or a model of such layers."""

    num_experts: int
    top_k: int
    expert_dim: int
    tokens: int = 4096
    width: int = 256

    def __str__(self) -> str:
        return f"{self.num_experts} experts of {self.expert_dim}, top {self.top_k}"


CASES = (Case(16, 2, 512), Case(64, 2, 512), Case(64, 8, 128))

SETTLING = 5
"""Batches after which Quantile Balancing has moved the biases of a new model to where they stay."""

SLOW, FEW = ("ragged", "Levanter's layer"), 3
"""XLA's ragged product on a CPU takes seconds: so many rounds tell."""


def layer_runs(case: Case, policy: Policy, *, bodies: tuple[str, ...]) -> tuple[dict[str, Run], float]:
    """Forward and backward by several ways, compiled, and the MaxVio of what is routed."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    draw = lambda *shape: jax.random.normal(next(keys), shape) * shape[-2] ** -0.5  # noqa: E731
    n, k, d, f = case.num_experts, case.top_k, case.width, case.expert_dim
    x = draw(case.tokens, d)
    experts = Experts(draw(n, d, f), draw(n, d, f), draw(n, f, d))
    weights, chosen = jax.lax.top_k(jax.random.normal(next(keys), (case.tokens, n)), k)
    routes = Routes(chosen, jax.nn.softmax(weights))
    load = jnp.zeros(n).at[chosen.reshape(-1)].add(1)

    def by_body(body: str, x: Any, experts: Any, routes: Routes) -> jax.Array:
        return BODIES[body](x, routes, experts, num_expected=case.tokens * k, policy=policy)[0]

    def batched(rows: Any, experts: Any) -> jax.Array:
        gate = contract("ncd,ndf->ncf", rows, experts.gate, policy=policy)
        up = contract("ncd,ndf->ncf", rows, experts.up, policy=policy)
        return contract("ncf,nfd->ncd", gated(gate, up, "silu"), experts.down, policy=policy)

    def dense(x: Any, mlp: Any) -> jax.Array:
        return mlp(x[None], activation="silu", policy=policy)

    mlp = GatedMLP(gate=draw(d, k * f), up=draw(d, k * f), down=draw(k * f, d))
    rows = draw(n, case.tokens * k // n, d)
    runs = {"batched products": compiled(batched, rows, experts)}
    runs |= {body: compiled(partial(by_body, body), x, experts, routes) for body in bodies}
    runs["dense"] = compiled(dense, x, mlp)
    return runs, float(load.max() / load.mean() - 1)


def compiled(forward: Callable[..., jax.Array], x: Any, parameters: Any, *others: Any) -> Run:
    """The derivative by the first two, compiled and run once."""
    both = jax.jit(jax.grad(lambda *arguments: jnp.sum(jnp.square(forward(*arguments))), argnums=(0, 1)))
    return ready(partial(both, x, parameters, *others))


def ready(call: Callable[[], object]) -> Run:
    """The call, waited for; it has run once."""

    def run() -> None:
        jax.block_until_ready(call())

    run()
    return run


def levanter_run(case: Case) -> tuple[Child, Run] | None:
    """Its layer, in its own process."""
    program = peers_directory() / "m312" / "bin" / "python"
    if not program.exists():
        return None
    child = Child.start([str(program), "experts_levanter.py", json.dumps(asdict(case))])
    child.listen()
    return child, partial(child.ask, "")


def timed(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds by row, all rows in every round, but that slow ones are in the first few."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(rounds):
        for name, run in runs.items():
            if k >= FEW and name in SLOW:
                continue
            start = time.perf_counter()
            run()
            found[name].append(1e3 * (time.perf_counter() - start))
    return found


def show(found: dict[str, list[float]], *, base: str) -> None:
    """Rows, and how many times the base's time each takes."""
    middle = statistics.median(found[base])
    for name, ms in found.items():
        ratio = statistics.median(ms) / middle
        print(f"  {name:<34}{statistics.median(ms):>9.1f}{min(ms):>9.1f}{max(ms):>9.1f} ms {ratio:>7.2f}x", flush=True)


def measure_layers(rounds: int) -> None:
    """The tables of layers; in bfloat16 where products of it are faster."""
    rates = peak_flops(("float32", "bfloat16"))
    types: tuple[Precision, ...] = ("float32", "bfloat16")[: 2 if rates["bfloat16"] > GAIN * rates["float32"] else 1]
    for case in CASES:
        for operands in types:
            alone = operands == "float32"  # neither XLA's ragged product nor Levanter's layer is any faster in bfloat16
            bodies = ("block", "ragged") if alone else ("block",)
            runs, max_vio = layer_runs(case, Policy(operands=operands), bodies=bodies)
            peer = levanter_run(case) if alone else None
            if peer is not None:
                runs["Levanter's layer"] = peer[1]
            print(f"{case}, {operands}, MaxVio {max_vio:.2f}")
            show(timed(runs, rounds), base="batched products")
            if peer is not None:
                peer[0].close()
                peer[0].wait()


def make_config(case: Case, *, dense: bool) -> TrainConfig:
    """A model of experts, or a dense one of as many active parameters in each layer."""
    moe = None if dense else MoEConfig(num_experts=case.num_experts, top_k=case.top_k, expert_dim=case.expert_dim)
    model = ModelConfig(
        family="qwen3" if dense else "qwen3_moe", vocab_size=8192, hidden_dim=case.width, num_layers=4, num_heads=4,
        num_kv_heads=4, head_dim=64, mlp_dim=case.top_k * case.expert_dim if dense else 0, max_seq_len=512, moe=moe,
    )  # fmt: skip
    data = DataConfig(components=(Component(name="none", path="none"),), seq_len=512)
    return TrainConfig(model=model, data=data, steps=1, batch_size=case.tokens // 512)


def model_run(config: TrainConfig) -> Run:
    """Loss and gradients of a batch; experts' biases are those that a few batches have moved."""
    mesh, policy = make_mesh(config.mesh), measure(config).policy
    shape = (config.batch_size, config.data.seq_len + 1)
    tokens = jax.random.randint(jax.random.key(0), shape, 0, config.model.vocab_size)
    batch = Batch(tokens=tokens, loss_mask=jnp.ones((shape[0], shape[1] - 1), bool))

    def cost(model: Any, batch: Batch) -> Any:
        with in_context(mesh):
            sums = summed_loss(model, batch, config=config.model, policy=policy)
        return sums.objective / sums.num_tokens, sums.routing

    both, model = jax.jit(jax.grad(cost, has_aux=True)), init_state(config, mesh=mesh).model
    for _ in range(0 if config.model.moe is None else SETTLING):
        model, _ = rebalanced(model, None, both(model, batch)[1], config=config.model)
    return ready(partial(both, model, batch))


def balance_runs(case: Case, num_layers: int) -> dict[str, Run]:
    """Choosing, counting and moving the bias in all layers; and choosing alone."""
    config = MoEConfig(num_experts=case.num_experts, top_k=case.top_k, expert_dim=case.expert_dim)
    scores = jax.random.normal(jax.random.key(0), (num_layers, case.tokens // 512, 512, case.num_experts))
    bias = jnp.zeros((num_layers, case.num_experts))

    def layer(scores: jax.Array, bias: jax.Array) -> object:
        found = quantile.balance(scores, bias, valid=None, config=config)
        return found.chosen, quantile.updated(bias, found.counts, config=config)

    def plain(scores: jax.Array, bias: jax.Array) -> object:
        return unbalanced.balance(scores, None, valid=None, config=config).chosen

    steps = {"with its balance": layer, "without": plain}
    return {
        name: ready(partial(jax.jit(lambda s, b, f=f: jax.lax.map(lambda both: f(*both), (s, b))), scores, bias))
        for name, f in steps.items()
    }


def measure_models(rounds: int) -> None:
    """The tables of whole models."""
    for case in CASES:
        moe, dense = make_config(case, dense=False), make_config(case, dense=True)
        runs = {"dense model": model_run(dense), "model of experts": model_run(moe)}
        runs |= balance_runs(case, moe.model.num_layers)
        print(f"a model of {case}: loss and gradients")
        found = timed(runs, rounds)
        balance = [a - b for a, b in zip(found.pop("with its balance"), found.pop("without"), strict=True)]
        show(found, base="dense model")
        share = statistics.median(balance) / statistics.median(found["model of experts"])
        print(f"  {'its Quantile Balancing':<34}{statistics.median(balance):>9.1f} ms, {100 * share:.1f} % of that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", choices=("layers", "models"))
    options = parser.parse_args()
    print(f"{'':<36}{'median':>9}{'min':>9}{'max':>9}")
    if options.only != "models":
        measure_layers(options.rounds)
    if options.only != "layers":
        measure_models(options.rounds)


if __name__ == "__main__":
    main()
