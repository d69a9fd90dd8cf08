"""The training loop: config and directory in, a trained model and its record out; stopping it anywhere changes nothing.

A run is a pure function of its `TrainConfig`, its token stores and its policy. The loop keeps that true on a real
machine: a start looks into ``out_dir``, takes the recorded policy and the newest whole checkpoint, cuts the metrics
back to it, and goes on with the batch that was to come next. Killed at any point and started again, a run has bitwise
the losses of one that was never stopped.

The device is never waited for: a step's metrics are fetched after the next step was dispatched, batches are made and
checkpoints written in background threads. Only a checkpoint's copy to the host stands in the way.

    out_dir/run.json        what the first start decided      out_dir/metrics.jsonl   one row a step
    out_dir/checkpoints/    see `marin_train.checkpoints`     out_dir/summary.json    the run table's row
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_train.certificates import RunFacts
from marin_train.checkpoints import CheckpointWriter, restore_latest
from marin_train.configs import TrainConfig
from marin_train.data.loader import Prefetch
from marin_train.data.mixture import Mixture, digest_batch
from marin_train.errors import DivergedError, ExhaustedError, InterruptedRunError
from marin_train.run_record import SUMMARY, RunRecord, open_record, summarise, write_json
from marin_train.tracking import JsonlTracker, Tracker, read_metrics

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin_train.losses import Batch
    from marin_train.train_step import TrainState, TrainStep

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """A finished run.

    Attributes:
        out_dir: the run's directory.
        checkpoint: the last step's checkpoint.
        loss: training loss, nats a token, mean over the last steps.
        summary: the run table's row, as in ``summary.json``.
    """

    out_dir: Path
    checkpoint: Path
    loss: float
    summary: dict[str, Any]


def train(config: TrainConfig, out_dir: str | Path, *, trackers: Sequence[Tracker] = ()) -> TrainResult:
    """Trains a model, from the start or from wherever an earlier call in ``out_dir`` was stopped.

    Args:
        config: the run; all that decides its result.
        out_dir: the run's directory; created where absent. A finished run there is returned as it is.
        trackers: told of every step beside ``metrics.jsonl``.

    Returns:
        The finished run.

    Raises:
        ConfigError: the configuration cannot be run, or the directory not be written.
        ExhaustedError: the epoch limits of the mixture's components leave less data than the run needs.
        TokenStoreError: a token store is absent, damaged, or does not fit the model.
        CheckpointError: the directory belongs to another run, or its data have changed.
        DivergedError: the loss became infinite or NaN.
        InterruptedRunError: SIGTERM or SIGINT arrived; the state was saved.
    """
    from marin_train.mesh import check_batch_size, make_mesh
    from marin_train.policy import Policy
    from marin_train.train_step import init_state, make_train_step, state_template

    out = Path(out_dir)
    mixture = Mixture.open(
        config.data, batch_size=config.batch_size, vocab_size=config.model.vocab_size, steps=config.steps
    )
    mesh = make_mesh(config.mesh)
    check_batch_size(mesh, config.batch_size)
    record = open_record(out, config, stores=mixture.manifests)
    logger.info(
        "policy %s, whose matmul reaches %.0f GFLOP/s; fp32 matmul %.0f GFLOP/s",
        record.policy_name,
        record.peak_flops / 1e9,
        record.matmul_flops_float32 / 1e9,
    )
    facts = _facts(config, record, mixture)
    restored = restore_latest(out / "checkpoints", state_template(config, mesh=mesh), facts=facts)
    state, step = restored or (init_state(config, mesh=mesh), 0)
    if step:
        logger.info("resuming after step %d of %d", step, config.steps)
    with ExitStack() as stack:
        metrics = stack.enter_context(closing(JsonlTracker(out / "metrics.jsonl")))
        writer = stack.enter_context(CheckpointWriter(out / "checkpoints", facts))
        told = (metrics, *trackers)
        for tracker in told:
            tracker.start({"run_id": record.run_id, "config": record.config, "policy": record.policy_name}, step=step)
        report = _Report(config, record, metrics, trackers, step=step)
        train_step = make_train_step(config, policy=Policy.from_dict(record.policy), mesh=mesh)
        batches = stack.enter_context(_prefetch(mixture, mesh, start=step, stop=config.steps))
        _run(config, state, train_step, start=step, batches=batches, writer=writer, report=report)
        rows = read_metrics(out / "metrics.jsonl")
        tokens_unique = mixture.num_unique_tokens(config.steps)
        summary = summarise(record, rows, config=config, tokens_unique=tokens_unique, mixture=mixture.digest)
        write_json(out / SUMMARY, summary)
        for tracker in told:
            tracker.finish(summary)
    return TrainResult(out_dir=out, checkpoint=writer.path(config.steps), loss=summary["loss"], summary=summary)


def _run(
    config: TrainConfig,
    state: "TrainState",
    train_step: "TrainStep",
    *,
    start: int,
    batches: Iterable["Batch"],
    writer: CheckpointWriter,
    report: "_Report",
) -> None:
    """The steps after ``start``, saved by time and by step; returns when the last one's checkpoint is committed."""
    saved_at = time.monotonic()
    with _stop_signals() as stop:
        for step, batch in enumerate(batches, start + 1):
            state, metrics = train_step(state, batch)
            report.push(step, metrics)
            last, permanent = step == config.steps, _is_permanent(config, step)
            by_time = time.monotonic() - saved_at >= config.checkpoint_seconds and not writer.busy
            if last or permanent or by_time or stop.is_set():
                # The rows of a saved step are on the disk before the step is, so a resume never misses one.
                report.sync()
                writer.save(state, step=step, permanent=permanent)
                saved_at = time.monotonic()
            if stop.is_set() and not last:
                writer.wait()
                raise InterruptedRunError(
                    f"stopped by a signal; saved after step {step} of {config.steps}, where the same call goes on"
                )
    writer.wait()


def _prefetch(mixture: Mixture, mesh: "Mesh", *, start: int, stop: int) -> Prefetch["Batch"]:
    """Batches ahead of the step: two from a disk, where one thread suffices, more where a network is waited for."""
    remote = any(store.is_remote for store in mixture.stores.values())
    depth, num_threads = (8, 4) if remote else (2, 1)
    return Prefetch(_on_device(mixture, mesh), start=start, stop=stop, depth=depth, num_threads=num_threads)


def _on_device(mixture: Mixture, mesh: "Mesh") -> Callable[[int], "Batch"]:
    """``batch(step)`` placed on the mesh; called in the background, so that no step waits for a transfer."""
    import jax

    from marin_train.losses import Batch
    from marin_train.mesh import sharding

    where = sharding(mesh, ("batch", "seq"))

    def batch(step: int) -> Batch:
        # All of a batch's arrays lie alike; those that a packing has no need of are None, which is no array.
        return Batch(**jax.device_put(mixture.batch(step)._asdict(), where))

    return batch


def _is_permanent(config: TrainConfig, step: int) -> bool:
    return config.checkpoint_steps > 0 and step % config.checkpoint_steps == 0


class _Report:
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


@contextmanager
def _stop_signals() -> Generator[threading.Event]:
    """Sets an event on the first SIGTERM or SIGINT; a second one acts as it would have without us."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread, and lets no other one listen
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: Any) -> None:
        logger.warning("%s: saving after this step, then stopping", signal.Signals(number).name)
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()


def _facts(config: TrainConfig, record: RunRecord, mixture: Mixture) -> RunFacts:
    def batch_digest(step: int) -> str:
        try:
            return digest_batch(mixture.batch(step))
        except ExhaustedError:
            return ""  # a run may use up all its data; nothing follows its last step

    return RunFacts(
        config=config,
        policy=record.policy,
        tokenizer_file=mixture.tokenizer_file,
        special_ids=mixture.special_ids,
        stores=mixture.manifests,
        batch_digest=batch_digest,
    )
