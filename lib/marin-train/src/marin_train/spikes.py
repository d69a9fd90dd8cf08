"""Steps whose loss jumps, and the documents behind them, written down while the run goes on.

A step is a spike if its update was refused, or if its loss lies further above the median of the last ones than
`FACTOR` times their usual distance from it: median and median distance, because a mean and a deviation would be moved
by the very spikes that they are to tell apart. Its documents (`marin_train.blame`) are scored by the parameters of the
moment, one step later, and go to ``blame/step-N.json`` of the run's directory. Nothing of it enters the run.
"""

import logging
import statistics
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from marin_train.blame import blame_batch
from marin_train.data.mixture import Mixture
from marin_train.distributed import is_first
from marin_train.durability import to_json, write_whole
from marin_train.errors import MarinTrainError
from marin_train.scorer import Scorer

logger = logging.getLogger(__name__)

WINDOW = 64
"""Losses that a step's is measured against; half of them must be there."""

FACTOR = 8.0
"""Usual distances above the median at which a loss is a spike."""

MOST = 20
"""Spikes of one start that are written down; a run that has more has another trouble than its documents."""


class SpikeDetector:
    """Tells spikes apart, step by step."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)

    def is_spike(self, loss: float | None, *, skipped: bool) -> bool:
        """Whether the next step is one.

        Args:
            loss: its loss; None where it has none that is finite.
            skipped: whether its update was refused.
        """
        spike = skipped or (loss is not None and self._is_outlier(loss))
        if loss is not None:
            self._losses.append(loss)
        return spike

    def _is_outlier(self, loss: float) -> bool:
        if len(self._losses) < WINDOW // 2:
            return False
        median = statistics.median(self._losses)
        distance = statistics.median(abs(other - median) for other in self._losses)
        return loss > median + FACTOR * max(distance, 1e-3 * abs(median))


class SpikeBlame:
    """Writes down the documents behind spikes.

    Args:
        mixture: the run's.
        scorer: of its model.
        directory: where to.
    """

    def __init__(self, mixture: Mixture, *, scorer: Scorer, directory: Path) -> None:
        self._mixture, self._scorer, self._directory, self._number = mixture, scorer, directory, 0

    def write(self, step: int, model: Any, *, parameters_of: int) -> None:
        """Writes down a step, counted from 1, scored by the parameters after so many steps."""
        self._number += 1
        if self._number > MOST:
            return
        try:
            self._write(step, model, parameters_of)
        except (OSError, MarinTrainError) as error:  # a run does not end for lack of its notes
            logger.warning("step %d: its loss jumps; its documents could not be written down (%s)", step, error)

    def _write(self, step: int, model: Any, parameters_of: int) -> None:
        blame = blame_batch(self._mixture, step, partial(self._scorer, model), parameters_of=parameters_of)
        if not is_first():
            return
        self._directory.mkdir(exist_ok=True)
        file = self._directory / f"step-{step}.json"
        write_whole(file, to_json(blame.to_dict()))
        where = f"{blame.documents[0].source or blame.documents[0].component}" if blame.documents else "no document"
        logger.warning("step %d: its loss jumps; most of it is from %s, more in %s", step, where, file)
