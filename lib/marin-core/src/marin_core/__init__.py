"""marin_core: experiments as lazy steps, run once, recorded, resumed after a crash, and explained.

- `step`, `Step`              a function becomes a lazy node; calling it runs nothing.
- `Out`, `Input`, `Work`      the directories a body sees.
- `lower`                     handles -> graph: order, addresses, a plan with reasons.
- `run`, `resolve`, `StepRunner`, `RunReport`  bring a graph up to date.
- `Launcher`, `Resources`     where a body runs and what it needs.
- `sweep`, `adopt`            grids of steps; data that exists already.
- `main`                      a script's command line.

Importing this package loads nothing but `marin_core.errors`; each name loads its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marin_core.errors import (
    AddressCollisionError,
    CorruptRecordError,
    DriftError,
    EncodingError,
    LeaseLostError,
    MarinCoreError,
    MissingOutputError,
    PrefixError,
    RefusedError,
    StepFailedError,
    UsageError,
)

if TYPE_CHECKING:
    from marin_core.adoption import adopt
    from marin_core.graph import Graph, lower
    from marin_core.handles import Input, Out, Work
    from marin_core.launchers import Launcher
    from marin_core.retries import Retry
    from marin_core.runner import RunReport, StepRunner, resolve, run
    from marin_core.script import main
    from marin_core.steps import Resources, Step, step
    from marin_core.sweeps import sweep

__all__ = [
    "AddressCollisionError",
    "CorruptRecordError",
    "DriftError",
    "EncodingError",
    "Graph",
    "Input",
    "Launcher",
    "LeaseLostError",
    "MarinCoreError",
    "MissingOutputError",
    "Out",
    "PrefixError",
    "RefusedError",
    "Resources",
    "Retry",
    "RunReport",
    "Step",
    "StepFailedError",
    "StepRunner",
    "UsageError",
    "Work",
    "adopt",
    "lower",
    "main",
    "resolve",
    "run",
    "step",
    "sweep",
]

_LAZY = {
    "Graph": "graph",
    "lower": "graph",
    "Input": "handles",
    "Out": "handles",
    "Work": "handles",
    "Launcher": "launchers",
    "RunReport": "runner",
    "StepRunner": "runner",
    "resolve": "runner",
    "run": "runner",
    "main": "script",
    "Resources": "steps",
    "Retry": "retries",
    "Step": "steps",
    "step": "steps",
    "adopt": "adoption",
    "sweep": "sweeps",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'marin_core' has no attribute {name!r}")
    value = getattr(import_module(f"marin_core.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
