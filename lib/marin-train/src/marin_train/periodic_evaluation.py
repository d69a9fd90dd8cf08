"""A run's evaluations on its way: every so many steps on what it holds out, each a row of ``eval.jsonl``.

Two averages are told: over all tokens (micro), and over components, each counting alike (macro). Evaluations are few,
so the file is written anew for each, whole or not at all; one that a resumed run makes again takes the place of the
earlier one and of all behind it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marin_train.configs import TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.distributed import is_first
from marin_train.durability import write_whole
from marin_train.held_out import HeldOut, HeldOutSequences
from marin_train.scorer import Scorer
from marin_train.tracking import Tracker

if TYPE_CHECKING:
    from marin_train.train_step import TrainState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeriodicEvaluation:
    """Scores a state on what the mixture holds out, before it is saved, so that a resumed run lacks no evaluation.

    Args:
        config: the run.
        held_out: by its mixture.
        scorer: of its model.
        path: the ``eval.jsonl``.
        trackers: told of every evaluation.
    """

    config: TrainConfig
    held_out: HeldOutSequences
    scorer: Scorer
    path: Path
    trackers: Sequence[Tracker]

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        scorer: Scorer,
        mixture: Mixture,
        path: Path,
        trackers: Sequence[Tracker],
    ) -> Self | None:
        """That of a run; None where it asks for none.

        Raises:
            ConfigError: it asks for evaluations, and nothing is held out.
        """
        if not config.eval_steps:
            return None
        held_out = HeldOutSequences(config, mixture=mixture, batch_size=config.batch_size)
        return cls(config, held_out, scorer, path, trackers)

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after this step."""
        return step % self.config.eval_steps == 0 or step == self.config.steps

    def evaluate(self, step: int, state: "TrainState") -> None:
        """Scores the parameters, or their moving average where one is kept, and tells of it."""
        results = self.held_out.score(state.model if state.ema is None else state.ema, self.scorer)
        if not is_first():
            return
        row = add_evaluation(self.path, step, results)
        over = f" over tokens, {row['macro_loss']:.4f} over components" if len(results) > 1 else ""
        logger.info("step %d: held out, loss %.4f%s", step, row["micro_loss"], over)
        for tracker in self.trackers:
            tracker.log(for_trackers(row))

    def summary(self) -> dict[str, Any]:
        """What the evaluation after the last step makes of the run table's row; nothing where it was not asked for."""
        rows = read_evaluations(self.path)
        if not rows or rows[-1]["step"] != self.config.steps:
            return {}  # a run that had come to its end before evaluations were asked for
        last = rows[-1]
        name = f"held out, mean over the tokens of {len(last['components'])} component(s)"
        return {"loss": last["micro_loss"], "loss_name": name, "eval_digest": self.held_out.digest, "evaluation": last}


def averages(results: Sequence[HeldOut]) -> dict[str, float]:
    """``loss`` and ``bits_per_byte`` over all tokens (``micro_``), and over components (``macro_``)."""
    tokens = sum(result.num_tokens for result in results)
    return {
        "micro_loss": sum(result.loss * result.num_tokens for result in results) / tokens,
        "macro_loss": sum(result.loss for result in results) / len(results),
        "micro_bits_per_byte": sum(result.bits_per_byte * result.num_tokens for result in results) / tokens,
        "macro_bits_per_byte": sum(result.bits_per_byte for result in results) / len(results),
    }


def read_evaluations(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an ``eval.jsonl``; none where there is no such file."""
    file = Path(path)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def add_evaluation(path: Path, step: int, results: Sequence[HeldOut]) -> dict[str, Any]:
    """Adds a row behind those of earlier steps, and returns it."""
    components = {result.component: result.to_dict() for result in results}
    for values in components.values():
        del values["component"]
    row = {"step": step, **averages(results), "components": components}
    rows = [*(earlier for earlier in read_evaluations(path) if earlier["step"] < step), row]
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
    return row


def for_trackers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``eval.jsonl`` as flat numbers, by names that begin with ``eval/``."""
    flat = {f"eval/{name}": value for name, value in row.items() if name not in ("step", "components")}
    for name, values in row["components"].items():
        flat |= {f"eval/{name}/{key}": values[key] for key in ("loss", "bits_per_byte")}
    return {"step": row["step"], **flat}
