"""The training loop: config and directory in, a trained model and its record out; stopping it anywhere changes nothing.

A run is a pure function of its `TrainConfig`, its token stores and its policy. The loop keeps that true on a real
machine: a start looks into ``out_dir``, takes the recorded policy and the newest whole checkpoint, cuts the metrics
back to it, and goes on with the batch that was to come next. Killed at any point and started again, a run has bitwise
the losses of one that was never stopped.

The device is never waited for: a step's metrics are fetched after the next step was dispatched, batches are made and
checkpoints written in background threads. Only a checkpoint's copy to the host stands in the way.

    out_dir/run.json        what the first start decided      out_dir/metrics.jsonl   one row a step
    out_dir/checkpoints/    see `marin_train.checkpoints`     out_dir/summary.json    the run table's row
    out_dir/routing.jsonl   loads of experts, where there are some
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_train import routing_rows
from marin_train.batches import place, prefetch
from marin_train.certificates import RunFacts
from marin_train.checkpoints import Cadence, CheckpointWriter, restore_latest
from marin_train.configs import TrainConfig
from marin_train.data.mixture import Mixture, digest_batch
from marin_train.distributed import first_then_rest, is_first, lost_processes, wait_for_all
from marin_train.durability import to_json, write_whole
from marin_train.errors import ExhaustedError, InterruptedRunError
from marin_train.initial import first_state
from marin_train.periodic_evaluation import PeriodicEvaluation
from marin_train.profiling import Profiler, ProfileWindow
from marin_train.reporting import Report
from marin_train.run_record import EVALUATIONS, SUMMARY, RunRecord, open_record, summarise
from marin_train.scorer import make_scorer
from marin_train.signals import stop_signals
from marin_train.spikes import SpikeBlame
from marin_train.tracking import JsonlTracker, SilentTracker, Tracker, read_metrics

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
        loss: training loss, nats a token, mean over the last steps' tokens; None where none of them counts.
        summary: the run table's row, as in ``summary.json``.
    """

    out_dir: Path
    checkpoint: Path
    loss: float | None
    summary: dict[str, Any]


Hook = Callable[[int, "TrainState"], object]
"""Called after every step with its number, counted from 1, and the state behind it.

The state may still be under way, and is gone with the next step: what a hook keeps of it, it must copy.
"""


def train(
    config: TrainConfig,
    out_dir: str | Path,
    *,
    trackers: Sequence[Tracker] = (),
    hooks: Sequence[Hook] = (),
    profile: ProfileWindow | None = None,
) -> TrainResult:
    """Trains a model, from the start or from wherever an earlier call in ``out_dir`` was stopped.

    Args:
        config: the run; all that decides its result.
        out_dir: the run's directory; created where absent. A finished run there is returned as it is.
        trackers: told of every step beside ``metrics.jsonl``.
        hooks: called after every step.
        profile: steps to trace into ``out_dir/profile``.

    Returns:
        The finished run.

    Raises:
        ConfigError: the configuration cannot be run, or the directory not be written.
        ExhaustedError: the epoch limits of the mixture's components leave less data than the run needs.
        TokenStoreError: a token store is absent, damaged, or does not fit the model.
        CheckpointError: the directory belongs to another run, or its data have changed.
        DivergedError: the loss or the gradient became infinite or NaN, more often than the guard lets pass.
        LostProcessError: another process of the run is gone.
        InterruptedRunError: SIGTERM or SIGINT arrived; the state was saved.
    """
    from marin_train.mesh import check_run, make_mesh
    from marin_train.policy import Policy
    from marin_train.train_step import make_train_step, state_template

    out = Path(out_dir)
    mixture = Mixture.of_run(config, steps=config.steps)
    mesh = make_mesh(config.mesh)
    check_run(config, mesh.shape)
    record = first_then_rest(lambda: open_record(out, config, stores=mixture.manifests))
    logger.info("%s", record.machine)
    facts = _facts(config, record, mixture)
    template = state_template(config, mesh=mesh)
    policy = Policy.from_dict(record.policy)
    programs = {w: make_train_step(config, policy=policy, mesh=mesh, watch=w) for w in (False, True)}
    restored = restore_latest(out / "checkpoints", template, facts=facts)
    state, step = restored or (_begin(config, record, programs[config.watch_steps == 1], mixture, mesh), 0)
    if step == config.steps:
        logger.info("all %d steps are done", step)
    elif step:
        logger.info("resuming after step %d of %d", step, config.steps)
    with lost_processes(), ExitStack() as stack:
        metrics = stack.enter_context(closing(JsonlTracker(out / "metrics.jsonl") if is_first() else SilentTracker()))
        loads = stack.enter_context(closing(_tracker_of_loads(config, out)))
        writer = stack.enter_context(CheckpointWriter(out / "checkpoints", facts, like=template))
        told = (metrics, loads, *(trackers if is_first() else ()))
        for tracker in told:
            tracker.start({"run_id": record.run_id, "config": record.config, "policy": record.policy_name}, step=step)
        scorer = make_scorer(config.model, policy=policy, mesh=mesh)
        run = _Run(
            config=config,
            programs=programs,
            writer=writer,
            report=Report(
                config,
                record,
                metrics=metrics,
                loads=loads,
                trackers=told[2:],
                step=step,
                loss_tokens=_loss_tokens(out),
            ),
            evaluation=PeriodicEvaluation.of(
                config, scorer=scorer, mixture=mixture, path=out / EVALUATIONS, trackers=told[2:]
            ),
            blame=SpikeBlame(mixture, scorer=scorer, directory=out / "blame"),
            profiler=stack.enter_context(closing(Profiler(profile, out / "profile"))),
            hooks=hooks,
        )
        run.go(state, stack.enter_context(prefetch(mixture, mesh, start=step, stop=config.steps)), start=step)
        summary = _summarise(run, record, mixture, out=out)
        for tracker in told:
            tracker.finish(summary)
    return TrainResult(out_dir=out, checkpoint=writer.path(config.steps), loss=summary["train_loss"], summary=summary)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run with all that looks on: what is told, evaluated, written down and saved after a step, and in what order."""

    config: TrainConfig
    programs: "dict[bool, TrainStep]"
    """The step without and with every leaf's norms; the latter is compiled if it is asked for."""
    writer: CheckpointWriter
    report: Report
    evaluation: PeriodicEvaluation | None
    blame: SpikeBlame
    profiler: Profiler
    hooks: Sequence[Hook]

    def go(self, state: "TrainState", batches: "Iterable[Batch]", *, start: int) -> None:
        """The steps after ``start``, saved by time and by step; returns when the last checkpoint is committed."""
        cadence = Cadence(self.config)
        with stop_signals() as stop:
            for step, batch in enumerate(batches, start + 1):
                state = self._do(step, state, batch)
                due = cadence.due(step, stop=stop.is_set(), busy=self.writer.busy)
                if due.save:
                    # The rows of a saved step are on the disk before the step is, so a resume never misses one.
                    self.report.sync()
                    self._write_down(step, state)
                    self.writer.save(state, step=step, permanent=due.permanent)
                if due.stop and step < self.config.steps:
                    self.writer.wait()
                    raise InterruptedRunError(
                        f"stopped as asked; saved after step {step} of {self.config.steps}, and the same call goes on "
                        f"from there"
                    )
        self.writer.wait()

    def _do(self, step: int, state: "TrainState", batch: "Batch") -> "TrainState":
        watch = self.config.watch_steps > 0 and step % self.config.watch_steps == 0
        self.profiler.before(step)
        state, metrics = self.programs[watch](state, batch)
        for hook in self.hooks:
            hook(step, state)
        self.profiler.after(step, metrics)
        self.report.push(step, metrics)
        self._write_down(step, state)
        if self.evaluation is not None and self.evaluation.is_due(step):
            self.report.flush()
            self.writer.check_claim()
            self.evaluation.evaluate(step, state)
            self.report.restart_clock()
        return state

    def _write_down(self, step: int, state: "TrainState") -> None:
        """The documents behind steps that turned out to be spikes, by the parameters after this one."""
        while spikes := self.report.take_spikes():
            self.report.flush()  # a step that is done must not have its time taken after the pause
            for spike in spikes:
                self.blame.write(spike, state.model, parameters_of=step)
            self.report.restart_clock()


def _begin(
    config: TrainConfig, record: RunRecord, program: "TrainStep", mixture: Mixture, mesh: "Mesh"
) -> "TrainState":
    """The state before the first update, made while the step that takes it is compiled: each takes seconds to."""
    from marin_train.train_step import compile_step

    logger.info("compiling the step")
    batch = place(mesh, mixture.sizes.at(0), lambda rows: mixture.batch(0, rows=rows))
    with ThreadPoolExecutor(1) as beside:
        state = beside.submit(first_state, config, mesh=mesh, fingerprint=record.init_fingerprint)
        compile_step(program, config, batch, mesh=mesh)
        return state.result()


def _tracker_of_loads(config: TrainConfig, out: Path) -> JsonlTracker | SilentTracker:
    """Keeps the loads of experts, where there are some and this process tells of them."""
    if config.model.moe is None or not is_first():
        return SilentTracker()
    return JsonlTracker(out / routing_rows.FILE, every_step=False)


def _loss_tokens(out: Path) -> int:
    """Tokens that counted in the loss of the steps that are done, where this process tells of them."""
    rows = read_metrics(out / "metrics.jsonl") if is_first() else []
    return rows[-1]["loss_tokens"] if rows else 0


def _summarise(run: _Run, record: RunRecord, mixture: Mixture, *, out: Path) -> dict[str, Any]:
    """The run table's row of a run whose steps are done, written down."""
    wait_for_all("rows")
    rows = read_metrics(out / "metrics.jsonl")
    tokens_unique = mixture.num_unique_tokens(run.config.steps)
    summary = summarise(record, rows, config=run.config, tokens_unique=tokens_unique, mixture=mixture.digest)
    if run.evaluation is not None:
        summary |= run.evaluation.summary()
    if is_first():
        write_whole(out / SUMMARY, to_json(summary))
    return summary


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
