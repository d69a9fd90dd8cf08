"""Weights & Biases: rows as a run's history. `WANDB_MODE=offline` keeps it in the run's directory, for `wandb sync`.

The run's id on the service is drawn once and kept in the run's directory, so that a resumed run goes on in the same
history; the service itself refuses rows of steps that it has.

See: https://docs.wandb.ai/ref/python
"""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ID = "wandb-id"


def make(out_dir: Path) -> "WandbTracker":
    """The tracker of a run's directory."""
    return WandbTracker(out_dir)


class WandbTracker:
    """A `marin_train.tracking.Tracker`; project and entity are what the environment says, by default ``marin``."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._run: Any = None

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        import os

        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "marin"),
            name=self._out_dir.name,
            id=self._id(),
            resume="allow",
            dir=str(self._out_dir),
            config=dict(record),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row), step=row["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({name: value for name, value in summary.items() if name != "config"})
        self._run.finish()

    def _id(self) -> str:
        file = self._out_dir / _ID
        if not file.is_file():
            file.write_text(uuid.uuid4().hex[:12])
        return file.read_text()
