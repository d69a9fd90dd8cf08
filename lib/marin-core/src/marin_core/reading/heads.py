"""Heads of runs: what a list says of a run, and what its status is by now.

A run that a dead process of this host drove has ``died``, whatever its record says.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from marin_core.errors import CorruptRecordError
from marin_core.processes import Process, this_host
from marin_core.reading.shapes import checked


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """A run without its nodes."""

    run_id: str
    script: str
    argv: tuple[str, ...]
    status: str
    """The recorded one, or ``died``."""
    started_at: float
    ended_at: float | None
    outcomes: dict[str, int]
    """Outcome -> number of steps."""
    git: dict[str, Any]

    @property
    def num_steps(self) -> int:
        return sum(self.outcomes.values())


def run_key(run_id: str) -> str:
    """The file of a run's record."""
    return f"runs/{run_id}.json"


def head_of(run_id: str, data: dict[str, Any]) -> RunHead | CorruptRecordError:
    """A run without its nodes, from its record as plain JSON."""
    try:
        head = RunHead(
            run_id=run_id,
            script=data["script"],
            argv=tuple(data["argv"]),
            status=live_status(data),
            started_at=data["started_at"],
            ended_at=data["ended_at"],
            outcomes=dict(Counter(node["outcome"] for node in data["nodes"])),
            git=dict(data.get("git") or {}),
        )
        return checked(head, where=run_key(run_id))
    except CorruptRecordError as e:
        return e
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        return CorruptRecordError(f"{run_key(run_id)}: not a readable RunRecord ({e})")


def live_status(run: dict[str, Any]) -> str:
    """A run's status by now: ``died`` if its record says running and its driver, on this host, is no more."""
    driver = run.get("driver") or {}
    if run["status"] == "running" and driver.get("host") == this_host():
        process = Process(pid=int(driver["pid"]), started=int(driver["started"]))
        return "running" if process.alive() else "died"
    return run["status"]
