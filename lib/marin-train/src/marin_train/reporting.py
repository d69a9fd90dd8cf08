"""Metrics on their way from the device to the trackers: one step behind, so that no step is waited for."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marin_train.configs import TrainConfig
from marin_train.errors import DivergedError
from marin_train.run_record import RunRecord
from marin_train.tracking import JsonlTracker, Tracker

logger = logging.getLogger(__name__)


class Report:
    """Metrics on their way from the device to the trackers, one step behind."""

    def __init__(
        self, config: TrainConfig, record: RunRecord, metrics: JsonlTracker, trackers: Sequence[Tracker], *, step: int
    ) -> None:
        from marin_train.flops import flops_per_token

        self._config, self._metrics, self._trackers = config, metrics, (metrics, *trackers)
        self._tokens = config.batch_size * config.data.seq_len
        self._cost = {
            name: flops_per_token(config.model, seq_len=config.data.seq_len, causal=causal) / record.peak_flops
            for name, causal in (("mfu_causal", True), ("mfu_full", False))
        }
        self._pending: tuple[int, Mapping[str, Any], float | None] | None = None
        self._row_at = self._line_at = time.perf_counter()
        self._line_step = step
        self._told_of_nothing = False

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
        values = {name: float(value) for name, value in metrics.items()}
        if not (math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])):
            raise DivergedError(
                f"step {step} has loss {values['loss']} and gradient norm {values['grad_norm']}; lower "
                f"OptimizerConfig.learning_rate={self._config.optimizer.learning_rate} or lengthen "
                f"ScheduleConfig.warmup={self._config.schedule.warmup}"
            )
        if not values["num_tokens"] and not self._told_of_nothing:
            self._told_of_nothing = True
            logger.warning(
                "step %d: no token of its batch counts in the loss, which is told as 0; see the masks of the stores",
                step,
            )
        now = done_at or time.perf_counter()
        seconds, self._row_at = now - self._row_at, now
        rate = self._tokens / seconds
        row = {
            "step": step,
            "loss": values["loss"],
            "tokens": step * self._tokens,
            "lr": values["lr"],
            "grad_norm": values["grad_norm"],
            "step_time_s": seconds,
            "tokens_per_s": rate,
            **{name: cost * rate for name, cost in self._cost.items()},
        }
        for tracker in self._trackers:
            tracker.log(row)
        if step % self._config.log_every == 0 or step == self._config.steps:
            self._progress(step, values["loss"], now)

    def sync(self) -> None:
        """Fetches what is kept, and waits until all rows are on the disk."""
        self.flush()
        self._metrics.sync()

    def _progress(self, step: int, loss: float, now: float) -> None:
        """One plain line, its rates those since the line before."""
        seconds, steps = now - self._line_at, step - self._line_step
        self._line_at, self._line_step = now, step
        rate = self._tokens * steps / seconds
        logger.info(
            "step %d/%d  loss %.3f  %s tokens/s  mfu %.0f%%  eta %.0f s",
            step,
            self._config.steps,
            loss,
            f"{rate:,.0f}",
            100 * self._cost["mfu_causal"] * rate,
            (self._config.steps - step) * seconds / steps,
        )
