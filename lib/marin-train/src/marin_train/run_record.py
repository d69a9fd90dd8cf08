"""What a run directory says about its run: ``run.json`` before the first step, ``summary.json`` after the last.

``run.json`` is written once, at the first start, and holds what a start decides by measuring: the policy, and the rates
of `marin_train.peak`. A restart reads it, so that it computes with the same rounding and reports
against the same peak. ``summary.json`` is the run's row of the run table, the contract with the scaling-law tools; the
budget and the recipe are the caller's to add.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from marin_train.certificates import CADENCE, check_same_run, flatten
from marin_train.configs import TrainConfig, to_dict
from marin_train.data.batch_sizes import BatchSizes
from marin_train.durability import to_json, write_whole
from marin_train.errors import CheckpointError, ConfigError

RECORD = "run.json"
SUMMARY = "summary.json"
EVALUATIONS = "eval.jsonl"
FINAL_LOSS_STEPS = 10
"""The summary's loss is the mean over the tokens of so many last steps: that of one is mostly the luck of its batch."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What was decided at a run's first start.

    Attributes:
        run_id: 12 hex digits over configuration and data; equal runs have equal ids wherever they are.
        config: the configuration, as plain values.
        policy: the policy, as plain values.
        policy_name: its name.
        peak_flops: FLOP/s of this machine's matrix products under that policy.
        matmul_flops_float32: FLOP/s of its float32 products, whatever the policy.
        stores: mixture component -> sha256 of its token store's manifest.
        init_fingerprint: of what `TrainConfig.init_from` named when the run began.
        chosen_earlier: whether the policy is what an earlier run of that shape chose on this machine.
    """

    run_id: str
    config: dict[str, Any]
    policy: dict[str, Any]
    policy_name: str
    peak_flops: float
    matmul_flops_float32: float
    stores: dict[str, str]
    chosen_earlier: bool = False
    init_fingerprint: str | None = None

    @property
    def machine(self) -> str:
        """What was measured, in a line."""
        return (
            f"policy {self.policy_name}, whose matmul reaches {self.peak_flops / 1e9:.0f} GFLOP/s; fp32 matmul "
            f"{self.matmul_flops_float32 / 1e9:.0f} GFLOP/s"
        )


def open_record(out_dir: Path, config: TrainConfig, *, stores: Mapping[str, str]) -> RunRecord:
    """Reads the record of a run that goes on, or measures the machine and writes that of a new one.

    Args:
        out_dir: the run's directory, created where absent.
        config: the run.
        stores: mixture component -> sha256 of its token store's manifest.

    Raises:
        CheckpointError: the directory belongs to a run with another configuration, or to something else.
        ConfigError: the directory cannot be written, or ``config.policy`` names no policy.
    """
    file = out_dir / RECORD
    if file.is_file():
        try:
            record = RunRecord(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); restore it or choose another directory") from None
        check_same_run(record.config, config, where=out_dir)
        return record
    _check_unused(out_dir)
    from marin_train.initial import examine_source
    from marin_train.measurements import measure

    fingerprint = examine_source(config)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        measured = measure(config)
        policy = measured.policy
        record = RunRecord(
            run_id=_run_id(config, stores),
            config=to_dict(config),
            policy=policy.to_dict(),
            policy_name=policy.name,
            peak_flops=measured.rates[policy.operands],
            matmul_flops_float32=measured.rates["float32"],
            chosen_earlier=measured.is_earlier,
            init_fingerprint=fingerprint,
            stores=dict(stores),
        )
        write_whole(file, to_json(asdict(record)))
    except OSError as error:
        raise ConfigError(f"output directory {out_dir} cannot be written: {error.strerror or error}") from None
    return record


def summarise(
    record: RunRecord, rows: Sequence[Mapping[str, Any]], *, config: TrainConfig, tokens_unique: int, mixture: str
) -> dict[str, Any]:
    """The run table's row of a finished run.

    Args:
        record: what the first start decided.
        rows: all rows of ``metrics.jsonl``.
        config: the run.
        tokens_unique: predicted tokens, each counted once however often it was trained on.
        mixture: the mixture's digest.
    """
    from marin_train import models
    from marin_train.flops import flops_per_token

    table, moe = models.family(config.model).parameter_table(config.model), config.model.moe
    tokens = BatchSizes(config.batch_size, config.batch_stages).offset(config.steps) * config.data.seq_len
    flops = flops_per_token(config.model, seq_len=config.data.seq_len, causal=False)
    last = rows[-FINAL_LOSS_STEPS:]
    seconds = sum(row["step_time_s"] for row in rows)
    return {
        "run_id": record.run_id,
        "num_params_total": table.size,
        "num_params_active": table.active_size,
        "num_params_non_embedding": table.non_embedding_size,
        "num_experts": 0 if moe is None else moe.num_experts,
        # Of a width 4 times the model's, as many experts make one dense layer.
        "granularity": None if moe is None else 4 * config.model.hidden_dim / moe.expert_dim,
        "tokens": tokens,
        "tokens_unique": tokens_unique,
        "flops_total": flops * tokens,
        "loss": mean_loss(rows, last=len(last)),
        "train_loss": mean_loss(rows, last=len(last)),
        "loss_name": f"train, mean of the last {len(last)} steps",
        "loss_unit": "nats/token",
        "eval_digest": None,
        "mixture_digest": mixture,
        "seed": config.seed,
        "params_convention": "total: every leaf once; non_embedding: without embedding and head",
        "flops_convention": "3 x forward; matrix products with the head, full attention map, no recomputation",
        "policy": record.policy_name,
        "peak_flops": record.peak_flops,
        "matmul_flops_float32": record.matmul_flops_float32,
        "seconds": seconds,
        "mfu_full": flops * tokens / seconds / record.peak_flops,
        "config": to_dict(config),
    }


def mean_loss(rows: Sequence[Mapping[str, Any]], *, last: int) -> float | None:
    """The mean loss of the last rows, each weighed by the tokens that counted in it; None where none did.

    Args:
        rows: all rows of ``metrics.jsonl``.
        last: how many of them.
    """
    counted = [0, *(row["loss_tokens"] for row in rows)]
    weights = [after - before for before, after in pairwise(counted)]
    weighed = [(r["loss"], w) for r, w in zip(rows[-last:], weights[-last:], strict=True) if r["loss"] is not None]
    tokens = sum(weight for _, weight in weighed)
    return sum(loss * weight for loss, weight in weighed) / tokens if tokens else None


def _check_unused(out_dir: Path) -> None:
    """Refuses a directory that holds anything but a run; hidden files may be there, as a killed start leaves one."""
    if out_dir.is_dir() and (found := sorted(p.name for p in out_dir.iterdir() if not p.name.startswith("."))):
        raise CheckpointError(
            f"{out_dir} is not empty and holds no run ({RECORD} is absent, {found[0]} is there); choose another output "
            f"directory"
        )


def _run_id(config: TrainConfig, stores: Mapping[str, str]) -> str:
    decisive = {name: value for name, value in flatten(to_dict(config)) if not CADENCE.fullmatch(name)}
    return hashlib.sha256(json.dumps([decisive, dict(stores)], sort_keys=True).encode()).hexdigest()[:12]
