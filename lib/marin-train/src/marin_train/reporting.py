"""Metrics on their way from the device to the trackers: one step behind, so that no step is waited for.

A row counts two kinds of tokens, both from the run's first step on: ``tokens`` are the positions gone through, which is
what a step computes and what rates and utilisation are of; ``loss_tokens`` are those that the masks let count, which is
what its loss is a mean over. Where none counts, or the loss is no number, the row's ``loss`` is null and not a number
that a mean could take in.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marin_train.configs import TrainConfig
from marin_train.data.batch_sizes import BatchSizes
from marin_train.errors import DivergedError
from marin_train.routing_rows import RoutingRows
from marin_train.run_record import RunRecord
from marin_train.spikes import SpikeDetector
from marin_train.tracking import JsonlTracker, SilentTracker, Tracker

logger = logging.getLogger(__name__)


class Report:
    """Metrics on their way from the device to the trackers, one step behind.

    Args:
        config: the run.
        record: what its first start decided.
        metrics: the run's own rows, already started.
        loads: the loads of its experts, already started.
        trackers: told of every row beside it.
        step: steps done before.
        loss_tokens: how many tokens counted in their losses.
    """

    def __init__(
        self,
        config: TrainConfig,
        record: RunRecord,
        *,
        metrics: JsonlTracker | SilentTracker,
        loads: JsonlTracker | SilentTracker,
        trackers: Sequence[Tracker],
        step: int,
        loss_tokens: int,
    ) -> None:
        from marin_train.flops import flops_per_token

        self._config, self._metrics, self._trackers = config, metrics, (metrics, *trackers)
        self._loads, self._routing = loads, None if config.model.moe is None else RoutingRows(config)
        self._sizes, self._loss_tokens = BatchSizes(config.batch_size, config.batch_stages), loss_tokens
        self._cost = {
            name: flops_per_token(config.model, seq_len=config.data.seq_len, causal=causal) / record.peak_flops
            for name, causal in (("mfu_causal", True), ("mfu_full", False))
        }
        self._pending: tuple[int, Mapping[str, Any], float | None] | None = None
        self._row_at = self._line_at = time.perf_counter()
        self._line_step, self._first_step = step, step + 1
        self._told_of_nothing = False
        self._detector, self._spikes = SpikeDetector(), list[int]()

    def push(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keeps a step's metrics, and fetches those of the step before, which are done or nearly so."""
        self.flush()
        # Where dispatch itself computes, as on CPU with small programs, the step is done here and not at its fetch.
        done_at = time.perf_counter() if metrics["loss"].is_ready() else None
        self._pending = step, metrics, done_at

    def flush(self) -> None:
        """Fetches what is kept, waiting for the device."""
        if self._pending is None:
            return
        (step, metrics, done_at), self._pending = self._pending, None
        values, watched, routing = _fetched(metrics)
        self._check(step, values)
        self._loss_tokens += values["num_tokens"]
        now = done_at or time.perf_counter()
        seconds, self._row_at = now - self._row_at, now
        rate = self._tokens(step - 1, step) / seconds
        row = {
            "step": step,
            "loss": _number(values["loss"]) if values["num_tokens"] else None,
            "tokens": self._tokens(0, step),
            "loss_tokens": self._loss_tokens,
            "lr": values["lr"],
            "grad_norm": _number(values["grad_norm"]),
            "skipped": values["skipped"],
            "step_time_s": seconds,
            "tokens_per_s": rate,
            **{name: cost * rate for name, cost in self._cost.items()},
            **watched,
        }
        if self._routing is not None:
            row |= self._routing.figures(step, routing)
            if (loads := self._routing.loads(step, routing)) is not None:
                self._loads.log(loads)
        if self._detector.is_spike(row["loss"], skipped=bool(values["skipped"])):
            self._spikes.append(step)
        for tracker in self._trackers:
            tracker.log(row)
        if step % self._config.log_every == 0 or step == self._config.steps:
            self._progress(row, values["loss"], now)
        elif step == self._first_step:  # its time is the compiler's, and no part of the rates that are told
            self._line_at, self._line_step = now, step

    def _check(self, step: int, values: Mapping[str, Any]) -> None:
        """Ends a run that has diverged, and tells of a step that is not as others are."""
        loss, grad_norm, guard = values["loss"], values["grad_norm"], self._config.guard
        if values["nonfinite"] > guard.max_nonfinite:
            before = f", as had the {guard.max_nonfinite} steps before it no finite ones" if guard.max_nonfinite else ""
            raise DivergedError(
                f"step {step} has loss {loss} and gradient norm {grad_norm}{before}; lower "
                f"OptimizerConfig.learning_rate={self._config.optimizer.learning_rate} or lengthen "
                f"ScheduleConfig.warmup={self._config.schedule.warmup}; a lone bad batch is passed over with "
                f"GuardConfig.max_nonfinite={guard.max_nonfinite + 1}"
            )
        if values["skipped"]:
            logger.warning(
                "step %d: loss %.4g and gradient norm %.4g are out of line; it changed nothing", step, loss, grad_norm
            )
        if not values["num_tokens"] and not self._told_of_nothing:
            self._told_of_nothing = True
            logger.warning(
                "step %d: no token of its batch counts in the loss, which is told as null; see the masks of the stores",
                step,
            )

    def _tokens(self, start: int, stop: int) -> int:
        """Positions that are gone through after the first ``start`` steps, up to the ``stop``-th."""
        return (self._sizes.offset(stop) - self._sizes.offset(start)) * self._config.data.seq_len

    def take_spikes(self) -> list[int]:
        """The steps found to be spikes since the last call."""
        spikes, self._spikes = self._spikes, []
        return spikes

    def restart_clock(self) -> None:
        """Leaves out of the next step's time what was done since the last one."""
        now = time.perf_counter()
        self._line_at += now - self._row_at
        self._row_at = now

    def sync(self) -> None:
        """Fetches what is kept, and waits until all rows are on the disk."""
        self.flush()
        self._metrics.sync()
        self._loads.sync()

    def _progress(self, row: Mapping[str, Any], loss: float, now: float) -> None:
        """One plain line, its rates those since the line before."""
        step: int = row["step"]
        seconds, steps = now - self._line_at, step - self._line_step
        self._line_at, self._line_step = now, step
        rate = self._tokens(step - steps, step) / seconds
        logger.info(
            "step %d/%d  loss %.3f  %s%s tokens/s  mfu %.0f%%  eta %.0f s",
            step,
            self._config.steps,
            loss,
            "" if self._routing is None else f"max vio {row['routing/max_vio']:.2f}  ",
            f"{rate:,.0f}",
            100 * self._cost["mfu_causal"] * rate,
            (self._config.steps - step) * seconds / steps,
        )


def _fetched(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float | None], Any]:
    """The step's scalars on the host, every leaf's norms where there are some, and what was counted of routing where
    there are experts, in one wait for all of them."""
    import jax

    values = jax.device_get(dict(metrics))
    routing = values.pop("routing", None)
    watched = {
        f"watch/{leaf}/{name}": _number(norm.item())
        for leaf, norms in values.pop("watch", {}).items()
        for name, norm in norms.items()
    }
    return {name: value.item() for name, value in values.items()}, watched, routing


def _number(value: float) -> float | None:
    """What JSON has a word for."""
    return value if math.isfinite(value) else None
