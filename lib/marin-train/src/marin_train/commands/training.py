"""``run``: trains, and tells a terminal of it."""

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marin_train.commands.console import Address, Config, Number, Overrides, Services, Steps, print_result

if TYPE_CHECKING:
    from marin_train.tracking import Tracker


def run(
    config: Config,
    /,
    *,
    out: Path,
    set_: Overrides = (),
    tracker: Services = (),
    profile: Steps = None,
    coordinator: Address = None,
    num_processes: Number = None,
    process_id: Number = None,
    json: bool = False,
) -> None:
    """Train a model, or go on where a run was stopped.

    Example: marin-train run nano.toml --set optimizer.learning_rate=0.002 --out runs/nano

    Args:
        config: the run's configuration, .json or .toml, nested like TrainConfig.
        out: the run's directory.
        set_: override one field, by its dotted name; may be given again.
        tracker: tell wandb, tensorboard or trackio of every step; may be given again.
        profile: the first and the last step to trace into the run's directory.
        coordinator: train together with other processes, which meet here; or auto, on a cluster that JAX knows.
        num_processes: how many there are.
        process_id: which one this is, from 0; the others print warnings alone.
        json: print the run's summary as JSON.
    """
    from marin_train.config_files import load
    from marin_train.distributed import is_first, join
    from marin_train.loop import train
    from marin_train.profiling import ProfileWindow
    from marin_train.trackers import make_tracker

    window = None if profile is None else ProfileWindow.parse(profile)
    settings, services = load(config, overrides=set_), [make_tracker(name, out) for name in tracker]
    with _chatter_on_stderr(), _progress() as trackers:
        join(coordinator, num_processes=num_processes, process_id=process_id)
        if not is_first():
            logging.getLogger("marin_train").setLevel(logging.WARNING)
        result = train(settings, out, trackers=[*trackers, *services], profile=window)
    if not is_first():
        return
    loss = "none: no token of the last steps counts" if result.loss is None else f"{result.loss:.4f}"
    print_result(result.summary if json else f"loss {loss}\n{result.checkpoint}")


@contextmanager
def _progress() -> Generator[list["Tracker"]]:
    """A line that is drawn anew on a terminal; elsewhere none, and the loop logs plain ones."""
    if not sys.stderr.isatty():
        yield []
        return
    from marin_train.progress import ProgressLine

    plain = logging.getLogger("marin_train.reporting")
    level, line = plain.level, ProgressLine()
    plain.setLevel(logging.WARNING)
    try:
        yield [line]
    finally:
        line.close()
        plain.setLevel(level)


@contextmanager
def _chatter_on_stderr() -> Generator[None]:
    """Standard output is for results: what libraries below Python write there goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
