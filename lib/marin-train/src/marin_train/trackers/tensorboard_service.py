"""TensorBoard: each number of a row as a scalar, in ``tensorboard/`` of the run's directory.

A resumed run first declares void what the file has of later steps, so that none stands there twice.

See: https://tensorboardx.readthedocs.io
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make(out_dir: Path) -> "TensorboardTracker":
    """The tracker of a run's directory."""
    return TensorboardTracker(out_dir / "tensorboard")


class TensorboardTracker:
    """A `marin_train.tracking.Tracker`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(self._directory), purge_step=step + 1 if step else None, filename_suffix=f".{step}"
        )
        if not step:
            self._writer.add_text("run", f"```\n{json.dumps(dict(record), indent=1)}\n```")

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
