"""Does a mixture of experts stay balanced without paying for it in loss? Quantile Balancing against its rivals.

    uv run experiments/moe/balancing.py                            # under 40 minutes on 2 cores; again: nothing to do
    uv run experiments/moe/balancing.py --tiny                     # all of it, so small that it takes two minutes
    uv run experiments/moe/balancing.py --rules quantile sign      # some rules alone; what is trained already is reused
    uv run experiments/moe/balancing.py --plan                     # what would run, and why

One small model (4 layers of 16 experts, 2 of which see a token; 3.9M parameters, 1.1M of them active) is trained on the
quickstart's corpus under every rule and from several seeds. Runs of a seed begin with the same parameters, see the same
batches in the same order, do as many steps and as many active FLOPs; the rule is all that differs, at the strength that
is its default. Precision and kernels are pinned by name, so that no rule is given a faster or a coarser machine than
another.

What is compared:

- the loss on held-out documents, each token scored once, with the experts that a causal model can choose: under
  `expert_choice` and `sinkhorn`, which train with choices that depend on later tokens, these are those of the highest
  scores. Their training loss is no other rule's like, and is told with that mark;
- MaxVio, of a step's worst layer: how much the fullest expert is over the mean load;
- what a capacity of 1.25 would drop. Nothing is dropped here, as all experts lie on one device: the share of routes
  beyond 1.25 times the mean load of an expert is computed from the loads that a run keeps.

Every run is a step: a killed experiment goes on from its last checkpoint. Curves and the table are in the run's report.
"""

import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the steps that experiments share lie there

from bridge import evaluate, exact_dedup, fuzzy_dedup, normalize, split, tokenize, train, train_tokenizer
from corpora import raw_files
from marin_core import Input, Out, RunReport, Step, main, step
from marin_train import Component, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from marin_train.configs import MoEConfig
from marin_train.configs.experts import Balance

RULES: tuple[Balance, ...] = ("quantile", "sign", "switch", "sequence", "sinkhorn", "expert_choice", "none")
SEQ_LEN = 64
"""Short, so that a batch is of many documents: loads follow the text, and one of few is no sample of the next."""

SETTLED = 0.1
"""MaxVio and drops are means over what follows this share of the steps, in which every rule finds its balance."""


def build(
    *,
    corpus: str = "stdlib",
    rules: tuple[Balance, ...] = RULES,
    seeds: int | None = None,
    steps: int | None = None,
    learning_rate: float = 1e-2,
    policy: str = "float32-blocked-full-scan",
    tiny: bool = False,
) -> list[Step]:
    """Every rule from every seed, and the comparison.

    Args:
        corpus: "stdlib", "tinystories", or a path or glob of jsonl, txt or parquet files.
        rules: what keeps the experts balanced.
        seeds: runs of each rule, from different initial parameters and in another order of the data; by default 3.
        steps: updates of a run; by default 400.
        learning_rate: the peak of the schedule.
        policy: how all runs compute; "auto" would measure for each of them, and might choose differently.
        tiny: a smaller model, and by default 1 seed and 12 steps.
    """
    num_seeds = (1 if tiny else 3) if seeds is None else seeds
    num_steps = (12 if tiny else 400) if steps is None else steps
    vocab_size = 512 if tiny else 2048
    raw = raw_files(corpus)
    sides = split(fuzzy_dedup(exact_dedup(normalize(raw.step, files=raw.files, documents=raw.documents))), seed=0)
    tokenizer = train_tokenizer(sides, vocab_size=vocab_size)
    train_tokens = tokenize(sides, tokenizer, part="train", name="tokenize_train")
    validation_tokens = tokenize(sides, tokenizer, part="validation", name="tokenize_validation")
    runs = [(rule, seed) for rule in rules for seed in range(num_seeds)]
    models = [
        train(
            train_tokens,
            config=TrainConfig(
                model=_model(rule, vocab_size=vocab_size, tiny=tiny),
                data=DataConfig(components=(Component(name="corpus", path=""),), seq_len=SEQ_LEN, seed=seed),
                optimizer=OptimizerConfig(learning_rate=learning_rate),
                steps=num_steps,
                batch_size=8 if tiny else 32,
                seed=seed,
                policy=policy,
            ),
            name=f"train_{rule}",
        )
        for rule, seed in runs
    ]
    scores = [
        evaluate(model, validation_tokens, name=f"evaluate_{rule}")
        for model, (rule, _) in zip(models, runs, strict=True)
    ]
    return [compare_rules(models, scores, rules=tuple(rule for rule, _ in runs))]


def _model(rule: Balance, *, vocab_size: int, tiny: bool) -> ModelConfig:
    experts = MoEConfig(num_experts=8 if tiny else 16, top_k=2, expert_dim=32 if tiny else 128, balance=rule)
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=vocab_size,
        hidden_dim=32 if tiny else 128,
        num_layers=2 if tiny else 4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16 if tiny else 32,
        mlp_dim=0,
        max_seq_len=SEQ_LEN,
        moe=experts,
    )


@step()
def compare_rules(
    out: Out, models: list[Input], scores: list[dict[str, Any]], *, rules: tuple[str, ...]
) -> dict[str, list[dict[str, Any]]]:
    """A row a rule, and its curves, which are means over seeds.

    Args:
        out: gets a ``metrics.jsonl`` a rule, which the report lays over one another.
        models: the runs.
        scores: their evaluations.
        rules: under which rule each was trained.
    """
    from marin_train.routing_history import read_routing

    by_rule = defaultdict(list)
    for rule, model, score in zip(rules, models, scores, strict=True):
        by_rule[rule].append((read_routing(model.local()), score))
    table = []
    for rule, runs in by_rule.items():
        histories = [history for history, _ in runs]
        folder = out.local() / rule
        folder.mkdir()
        curves = _curves(histories)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curves))
        table.append({"rule": rule, **_figures([score["loss"] for _, score in runs], histories)})
    return {"rules": sorted(table, key=lambda row: row["eval_loss"])}


def _figures(losses: list[float], histories: list[Any]) -> dict[str, Any]:
    """A rule's row: means over its runs, and over their steps once they have settled."""
    from marin_train.moe.balance import rule
    from marin_train.routing_history import CAPACITY, overflow

    settled = [[row for row in h.rows if row["step"] > SETTLED * len(h.rows)] for h in histories]
    would = [
        load
        for h in histories
        for when, load in zip(h.load_steps, overflow(h.loads, capacity=CAPACITY).mean(axis=-1).tolist(), strict=True)
        if when > SETTLED * len(h.rows)
    ]
    return {
        "eval_loss": statistics.fmean(losses),
        "eval_loss_spread": statistics.stdev(losses) if len(losses) > 1 else None,
        "train_loss": statistics.fmean(h.summary()["loss"] for h in histories),
        "max_vio": statistics.fmean(row["routing/max_vio"] for rows in settled for row in rows),
        "max_vio_last": statistics.fmean(h.summary()["max_vio"] for h in histories),
        "dead_experts": statistics.fmean(row["routing/dead"] for rows in settled for row in rows),
        f"would_drop_at_{CAPACITY}": statistics.fmean(would),
        "runs": len(losses),
        "causal": rule(MoEConfig(**histories[0].experts)).IS_CAUSAL,
    }


def _curves(histories: list[Any]) -> list[dict[str, float]]:
    """A row a step, each figure a mean over runs."""
    names = ("loss", "routing/max_vio", "routing/load_entropy", "routing/router_entropy", "routing/dead")
    return [
        {
            "step": rows[0]["step"],
            **{name.rpartition("/")[2]: statistics.fmean(r[name] for r in rows) for name in names},
        }
        for rows in zip(*(h.rows for h in histories), strict=True)
    ]


def epilogue(report: RunReport) -> str:
    """The table, and how to look at one of the runs."""
    rows = report.value("compare_rules")["rules"]
    would = next(name for name in rows[0] if name.startswith("would_drop"))
    lines = [
        f"{'rule':<15}{'held-out loss':>18}{'training':>10}{'MaxVio':>9}{'at the end':>12}{'dead':>7}{would:>20}",
        *(
            f"{row['rule']:<15}{row['eval_loss']:>11.4f}{_spread(row):>9}{row['train_loss']:>10.4f}"
            f"{' ' if row['causal'] else '*'}{row['max_vio']:>9.3f}{row['max_vio_last']:>12.3f}"
            f"{row['dead_experts']:>7.2f}{row[would]:>20.2%}"
            for row in rows
        ),
    ]
    if not all(row["causal"] for row in rows):
        lines.append("* trained with choices that depend on later tokens: no loss to hold the others' against")
    lines.append("nats a token, with the standard deviation over seeds; MaxVio of the worst layer, mean over steps")
    one = next(node for node in report.record.nodes if node.name == f"train_{rows[0]['rule']}")
    where = os.path.relpath(report.path(one.address))
    lines.append(f"every expert's load: uv run --extra report marin-train routing {where} --out page.html")
    return "\n".join(lines)


def _spread(row: dict[str, Any]) -> str:
    return "" if row["eval_loss_spread"] is None else f"±{row['eval_loss_spread']:.4f}"


if __name__ == "__main__":
    main(build, epilogue=epilogue)
