"""Launchers: where a step's body runs. A launcher starts a command under a name and can find it again by that name.

`Launcher` is a Protocol; whatever has its four methods will do, also in a package that never imports this one. The
name of a job is a function of the step's address and attempt, so a restarted driver can ask for a job that is still
running.

- `InlineLauncher`   in this process: for debugging, and for graphs of very cheap steps.
- `ProcessLauncher`  Pythons of their own, each a process group, which die with the driver.
- `RayLauncher`      an actor of a Ray cluster a step, which outlives the driver and is adopted by the next.

Three attributes and a method say more of a launcher that has them:

- ``blocking``  `launch` returns when the body has ended, so only one runs at a time and the loop cannot end it.
- ``notifies``  every end is notified, so nobody has to poll.
- ``places``    it places bodies on other machines by itself, so this machine's memory and accelerators are no limit.
- ``close()``   ends what it keeps for later bodies; a runner calls it after a run on a launcher that it made itself.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from marin_core.errors import UsageError
from marin_core.records import Failure
from marin_core.steps import Resources

MORTAL = ("InlineLauncher", "ProcessLauncher")
"""Kinds of launcher whose bodies die with their driver."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One body to run: ``command`` reads the request file and leaves a result file beside it."""

    name: str
    request: str
    """Local path of the pickled request."""
    log: str
    """Local path that receives stdout and stderr."""
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for this body, beside the driver's."""
    timeout_seconds: float | None = None
    """For a launcher that blocks; of the others' bodies the loop keeps the time."""
    run_id: str = ""
    script: str | None = None
    """The driver's script, if the body needs it loaded."""
    shareable: bool = False
    """Whether the body may follow another one of its run in the same process."""
    prefix: str = ""
    """Path or URL of the store that the attempt belongs to, and below it the attempt's own directory: for a launcher
    that runs the body where the paths above may not exist."""
    key: str = ""
    python: str = sys.executable
    """The driver's interpreter."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs the body with this Python."""
        return (self.python, "-P", str(Path(__file__).with_name("worker.py")), self.request)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What a launcher knows of a job. ``exit_code`` is None while it runs, and negative for a signal."""

    running: bool
    exit_code: int | None = None
    pid: int | None = None
    """Process group on this host, where there is one that dies with its driver: whoever takes the step over kills it.
    A body that is to be adopted has none."""
    failure: Failure | None = None
    """Why the launcher could not run the body, or not bring home what it left."""
    uploaded: bool = False
    """The body ran elsewhere, and log, result and output were uploaded to the prefix from there."""


@runtime_checkable
class Launcher(Protocol):
    """Starts jobs and finds them again by their deterministic names."""

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        """Starts a job. Calls ``notify(job.name)``, from any thread, once it has ended, if the launcher can."""
        ...

    def poll(self, name: str) -> JobStatus | None:
        """The state of a job, or None for an unknown name."""
        ...

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        """Ends a job: asks, waits ``grace`` seconds, then kills. Returns when the body has ended; the processes that
        it leaves behind are killed with it."""
        ...

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        """Takes over a job that an earlier driver left running; False if there is none."""
        ...


def make_launcher(spec: "str | Launcher") -> "Launcher":
    """A launcher from ``inline``, ``process``, ``ray`` or ``module:factory``; what has its methods is passed through.

    Raises:
        UsageError: there is no such launcher, or its extra is not installed.
    """
    if not isinstance(spec, str):
        return _checked(spec, "launcher")
    if spec == "inline":
        from marin_core.launchers.inline import InlineLauncher

        return InlineLauncher()
    if spec == "process":
        from marin_core.launchers.process import ProcessLauncher

        return ProcessLauncher()
    if spec == "ray":
        from marin_core.launchers.ray import RayLauncher

        return RayLauncher()
    module, _, factory = spec.partition(":")
    if not factory:
        raise UsageError(f"--launcher {spec}: give inline, process, ray or module:factory")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, TypeError, ValueError) as e:
        raise UsageError(f"--launcher {spec}: {e}") from e
    return _checked(made, f"--launcher {spec}")


def kind_of(launcher: Launcher) -> str:
    """What an attempt's record calls the launcher that has its job."""
    return getattr(launcher, "kind", type(launcher).__name__)


def _checked(made: Any, what: str) -> Launcher:
    if isinstance(made, Launcher):
        return made
    missing = ", ".join(f"{m}()" for m in ("launch", "poll", "cancel", "adopt") if not hasattr(made, m))
    raise UsageError(f"{what}: {made!r} is no launcher, it has no {missing}; name a factory of one")
