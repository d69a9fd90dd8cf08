"""Trackio: a local database with a page of plots (``trackio show``); `TRACKIO_DIR` names another place for it.

See: https://huggingface.co/docs/trackio
"""

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def make(out_dir: Path) -> "TrackioTracker":
    """The tracker of a run's directory."""
    return TrackioTracker(out_dir)


class TrackioTracker:
    """A `marin_train.tracking.Tracker`; the run's name is its directory's with the run's id."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir, self._known = out_dir, 0
        self._run: Any = None

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", "marin")
        name = f"{self._out_dir.name}-{record['run_id']}"
        # A resumed run trains some steps again, with the results that it had: told once is enough.
        told = trackio.SQLiteStorage.get_logs(project, name)
        self._known = max((entry["step"] for entry in told), default=0)
        with redirect_stdout(sys.stderr):  # where results stand, a client has nothing to say
            self._run = trackio.init(project=project, name=name, config=dict(record), resume="allow", embed=False)

    def log(self, row: Mapping[str, Any]) -> None:
        if row["step"] > self._known:
            self._run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()
