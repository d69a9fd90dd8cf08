"""When to save: after every so many steps for good, after so many seconds for the time being, and before stopping.

Steps are counted alike everywhere; clocks and signals are not. Processes that train together therefore exchange what
their clocks and signals say, at the steps at which a line is logged, and all act on what any of them heard: they save
after the same step, or none of them could.
"""

import time
from dataclasses import dataclass

import numpy as np

from marin_train.configs import TrainConfig


@dataclass(frozen=True)
class Due:
    """What is to be done after a step: save, keep that for good, stop."""

    save: bool
    permanent: bool
    stop: bool


class Cadence:
    """Says after every step what is due; its clock starts when it is made."""

    def __init__(self, config: TrainConfig) -> None:
        import jax

        self._config, self._alone, self._saved_at = config, jax.process_count() == 1, time.monotonic()

    def due(self, step: int, *, stop: bool, busy: bool) -> Due:
        """What is due after a step.

        Args:
            step: steps completed.
            stop: whether this process was asked to stop.
            busy: whether an earlier save is still being written, which only saves by steps wait for.
        """
        config = self._config
        last = step == config.steps
        permanent = config.checkpoint_steps > 0 and step % config.checkpoint_steps == 0
        by_time = time.monotonic() - self._saved_at >= config.checkpoint_seconds and not busy
        stop, by_time = self._agreed(step, stop, by_time)
        save = last or permanent or by_time or stop
        if save:
            self._saved_at = time.monotonic()
        return Due(save=save, permanent=permanent, stop=stop)

    def _agreed(self, step: int, *flags: bool) -> tuple[bool, ...]:
        if self._alone:
            return flags
        if step % self._config.log_every:
            return (False,) * len(flags)
        from jax.experimental.multihost_utils import process_allgather

        return tuple(bool(flag) for flag in process_allgather(np.array(flags)).any(axis=0))
