"""Services that a run can tell of its steps, each behind an extra: one file a service, by the name users give it.

Their clients talk to networks, start threads and processes, and raise what they like. None of that may stop a run or
make it wait, so a service is told from a thread of its own (`marin_train.trackers.background`).
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from marin_train.errors import ConfigError, MissingExtraError
from marin_train.trackers.background import Background
from marin_train.tracking import Tracker

SERVICES = {"wandb": "wandb", "tensorboard": "tensorboardX", "trackio": "trackio"}
"""The names of the services and of the modules that their clients are, one extra each."""


def make_tracker(name: str, out_dir: str | Path) -> Tracker:
    """A tracker of that service, which cannot stop the run.

    Args:
        name: one of `SERVICES`.
        out_dir: the run's directory, where clients that write files write them.

    Raises:
        ConfigError: there is no service of that name.
        MissingExtraError: its client is not installed.
    """
    if name not in SERVICES:
        raise ConfigError(f"tracker {name!r} is not one of: {', '.join(SERVICES)}")
    try:
        importlib.import_module(SERVICES[name])
    except ImportError:
        raise MissingExtraError(
            f"tracker {name} needs a package that is not here: pip install {SERVICES[name]}"
        ) from None
    module = importlib.import_module(f"marin_train.trackers.{name}_service")
    return Background(cast(Callable[[Path], Tracker], module.make)(Path(out_dir)), name=name)


__all__ = ["SERVICES", "Background", "make_tracker"]
