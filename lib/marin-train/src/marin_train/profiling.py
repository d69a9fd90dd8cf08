"""A window of steps under JAX's profiler: what the machine did in them, for TensorBoard's profile page or Perfetto.

It watches a run and changes nothing of it: not its results, and not what a resume compares.

See: https://docs.jax.dev/en/latest/profiling.html
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from marin_train.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProfileWindow:
    """Steps to trace, both ends included, counted from 1. The first steps of a start compile; leave them out."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.stop:
            raise ConfigError(f"ProfileWindow({self.start}, {self.stop}): needs 1 <= start <= stop")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The window that ``START:STOP`` means.

        Raises:
            ConfigError: it is not of that form, or no window.
        """
        start, colon, stop = text.partition(":")
        if not (colon and start.isdecimal() and stop.isdecimal() and len(text) < 40):
            raise ConfigError(f"--profile {text[:40]!r} must look like 100:104, the first and the last step to trace")
        return cls(int(start), int(stop))


class Profiler:
    """Traces the steps of a window into a directory.

    Args:
        window: None traces nothing.
        directory: of the traces.
    """

    def __init__(self, window: ProfileWindow | None, directory: Path) -> None:
        self._window, self._directory, self._tracing = window, directory, False

    def before(self, step: int) -> None:
        """Begins to trace, where the window begins with this step, or a resumed run enters it here."""
        if self._window is not None and not self._tracing and self._window.start <= step <= self._window.stop:
            import jax

            jax.profiler.start_trace(self._directory)
            self._tracing = True

    def after(self, step: int, results: Any) -> None:
        """Ends the trace where the window does, once the devices are done with the step's ``results``."""
        if self._tracing and self._window is not None and step == self._window.stop:
            import jax

            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Ends a trace that is going on; also after a run that was stopped within its window."""
        if self._tracing:
            import jax

            self._tracing = False
            jax.profiler.stop_trace()
            logger.info("profile of the window in %s", self._directory)
