"""Rounds: commands that are measured side by side, and the table of what they said.

Every measurement is a process of its own, and rounds are interleaved, so that what disturbs the machine disturbs all
alike. A row: the median and the range of the rounds, CPU where the process under measurement tells it, our budget, and
how many times longer a peer takes than we do. ``*`` marks a row during which other processes took more than a tenth of
the machine.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUSY = 0.1
"""Share of all cores that others may take before a row is marked."""

Job = Callable[[int], list[str]]
"""From the number of a round to a command, which prints a line of JSON or is measured as a whole."""


@dataclass(frozen=True)
class Row:
    """A line of the table: one measure of one job."""

    title: str
    job: str
    measure: str = "process"
    unit: str = "s"
    steps: int = 0
    """If given, the measure is shown in milliseconds a step."""
    budget: float | None = None
    against: "Row | None" = None
    """Of a peer's row: the row of ours that it is compared with."""


@dataclass
class Results:
    """What the jobs have said in each round, who had company, and who failed."""

    said: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, command: list[str]) -> None:
        """Runs a command to its end."""
        wall, own, everyone = time.perf_counter(), _own_seconds(), _busy_seconds()
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        wall, own, everyone = time.perf_counter() - wall, _own_seconds() - own, _busy_seconds() - everyone
        if done.returncode:
            self.failed[name] = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:100]
            return
        last = (done.stdout.strip().splitlines() or [""])[-1]
        measures = json.loads(last) if last.startswith('{"') else {}
        self.said.setdefault(name, []).append({"process": [wall, own], **measures})
        share = (everyone - own) / wall / (os.cpu_count() or 1)
        self.others[name] = max(share, self.others.get(name, 0.0))

    def of(self, row: Row) -> tuple[list[float], float | None]:
        """The wall seconds (or other numbers) of a row, and the median of the CPU seconds beside them."""
        found = [said[row.measure] for said in self.said.get(row.job, ()) if row.measure in said]
        pairs = [v if isinstance(v, list) else [v, None] for v in found]
        scale = 1e3 / row.steps if row.steps else 1.0
        cpu = [scale * c for _, c in pairs if c is not None]
        return [scale * w for w, _ in pairs], statistics.median(cpu) if cpu else None


def _own_seconds() -> float:
    """CPU seconds of this program and of the children it has waited for."""
    return sum(os.times()[:4])


def _busy_seconds() -> float:
    """CPU seconds of the whole machine since it started."""
    if not Path("/proc/stat").exists():
        return _own_seconds()
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Peer:
    """Another executor: its jobs, its rows, and the program that shows that it is installed."""

    name: str
    program: Path
    jobs: dict[str, Job]
    rows: list[Row]


def measure(results: Results, jobs: dict[str, Job], *, rounds: int, once: frozenset[str] = frozenset()) -> None:
    """All jobs in order, as often as there are rounds (some but once); one that failed is not tried again."""
    for k in range(rounds):
        for name, job in jobs.items():
            if name not in results.failed and not (k and name in once):
                print(f"\rround {k + 1} of {rounds}: {name:<24}", end="", file=sys.stderr, flush=True)
                results.add(name, job(k))
    print("\r" + " " * 48, end="\r", file=sys.stderr)


def show(results: Results, tables: dict[str, list[Row]]) -> None:
    """The tables, and what has to be known to read them."""
    print(f"{'':<46}{'median':>9}{'min':>9}{'max':>9}{'CPU':>9}  {'unit':<8}{'budget':>7}{'x ours':>8}")
    for heading, rows in tables.items():
        print(heading)
        for row in rows:
            print(f"  {row.title:<44}{_cells(results, row)}")
    company = max(results.others.values(), default=0.0)
    print(f"other processes took up to {company:.0%} of the machine" + (" (*)" if company > BUSY else ""))


def _cells(results: Results, row: Row) -> str:
    numbers, cpu = results.of(row)
    if not numbers:
        return f"{'–':>9}  {results.failed.get(row.job, 'not measured')}"
    middle = statistics.median(numbers)
    shown = "".join(f"{_digits(v):>9}" for v in (middle, min(numbers), max(numbers)))
    budget = "" if row.budget is None else f"{row.budget:g}" + ("!" if middle > row.budget else "")
    ours = results.of(row.against)[0] if row.against is not None else []
    ratio = f"{middle / statistics.median(ours):.1f}" if ours else ""
    busy = " *" if results.others.get(row.job, 0.0) > BUSY else ""
    return f"{shown}{'' if cpu is None else _digits(cpu):>9}  {row.unit:<8}{budget:>7}{ratio:>8}{busy}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
