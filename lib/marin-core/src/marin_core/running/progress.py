"""Progress: what a run shows while it goes on. On a terminal a live table, elsewhere plain lines.

Both are observers of the runner. Each running step shows the last line of its log, so whatever a body prints (a
training loop's loss, a bar that rewrites its line) is its progress, and core needs to know nothing about it.

What is shown is bounded, however large the graph: the table by the screen, with counts of what it has no room for; the
lines of a graph of more than `MOST_LINED` steps by telling of troubles alone, up to a number, and counting the rest.
"""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.records import NodeRecord, RunRecord
from marin_core.running.examination import tail
from marin_core.running.ledger import Ledger

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY = 10.0
_LIVE_PER_SECOND = 5
_MOST_ROWS = 24
MOST_LINED = 200
"""Steps of a graph up to which plain output has a line for each start and each end."""
_MOST_LINES = 100
"""Lines of single steps, troubles and others, in the plain output of a larger graph."""
_MOST_TAILS = 8
"""Running steps whose last log line plain output shows at a time."""
_BAR_WIDTH = 20
_WIDE = 80
"""Columns from which on there is room for a bar beside a line."""
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")
_COUNTS = re.compile(r"\b(\d[\d,]*)(?:/| of )(\d[\d,]*)\b")
_URGENT: dict[str, int] = {"failed": 0, "refused": 0, "running": 1}
"""Outcomes whose steps are shown whatever else has to be left out, in this order."""
_MARKS = {
    "succeeded": ("✓", "green"),
    "reused": ("·", "dim"),
    "running": ("▸", "cyan"),
    "failed": ("✗", "red"),
    "refused": ("✗", "yellow"),
    "cancelled": ("–", "yellow"),
    "blocked": ("–", "yellow"),
    "unselected": (" ", "dim"),
    "pending": (" ", "dim"),
}


def make_display() -> "Plain | Live":
    """A live table if stdout is a terminal, else plain lines."""
    return Live() if sys.stdout.isatty() else Plain(sys.stdout)


def bar_text(line: str) -> str:
    """A log line that counts (``step 30/120``, ``7 of 14 parts``), with a bar before it; any other as it is."""
    match = _COUNTS.search(line)
    if match is None:
        return line
    done, total = (int(n.replace(",", "")) for n in match.groups())
    if not 0 <= done <= total or total == 0:
        return line
    return f"{bar_of(done, total)} {line}"


def counts_of(nodes: Sequence[NodeRecord]) -> str:
    """``90/201 steps, 24 running, 1 failed``."""
    found = Counter(node.outcome for node in nodes)
    others = (f"{found[o]:,} {o}" for o in ("running", "failed", "refused", "blocked", "cancelled") if found[o])
    return ", ".join((f"{found['succeeded'] + found['reused']:,}/{len(nodes):,} steps", *others))


def bar_of(done: int, total: int) -> str:
    """A bar of fixed width, filled by the share that is done."""
    filled = _BAR_WIDTH * done // max(1, total)
    return "━" * filled + "╌" * (_BAR_WIDTH - filled)


class _Display:
    """What both displays share: the view of the run, and a thread that looks at logs from time to time."""

    def __init__(self) -> None:
        self.view: Ledger | None = None
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def _start_ticker(self, period: float) -> None:
        def tick() -> None:
            while not self._over.wait(period):
                self.tick()

        self._ticker = threading.Thread(target=tick, daemon=True)
        self._ticker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()

    def tick(self) -> None:
        """Looks at the logs of running steps."""

    def label(self, node: NodeRecord) -> str:
        """What a step is called."""
        return self.view.label(node) if self.view is not None else node.name

    def last_line(self, node: NodeRecord) -> str:
        """The last line that the node's body has printed."""
        local = self.view.store.local if self.view else None
        return tail(Path(local) / node.log, 1) if local and node.log else ""


class Plain(_Display):
    """Lines for logs and pipes: the start and the end of each step, and every ten seconds where the running ones stand.

    Args:
        stream: where they go; None for nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self._said: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._counted = ""
        self._lines_left: int | None = None
        """How many more lines there are for single steps; None for a graph that is small enough for all."""

    def started(self, run: Ledger) -> None:
        """Starts the ticker."""
        self.view = run
        self._lines_left = _MOST_LINES if len(run.nodes) > MOST_LINED else None
        if self._stream is not None:
            self._start_ticker(_PLAIN_EVERY)

    def changed(self, node: NodeRecord) -> None:
        """One line for each start and each end; of a large graph's, for what has failed or is refused."""
        outcome = node.outcome
        if self._said.get(node.address) == outcome:
            return
        self._said[node.address] = outcome
        if outcome in ("failed", "refused"):
            self.said(f"{self.label(node)}: {outcome}")
        elif self._lines_left is not None:
            return
        elif outcome == "running":
            self.said(f"{self.label(node)}: started ({node.reason})")
        elif outcome == "succeeded":
            files = format_count(node.num_files, "file")
            size = f", {files}, {format_bytes(node.num_bytes)}" if node.num_files else ""
            self.said(f"{self.label(node)}: done in {format_seconds(node.seconds)}{size}")
        elif outcome in ("blocked", "unselected"):
            self.said(f"{self.label(node)}: {outcome} ({node.reason})")

    def said(self, text: str) -> None:
        """Prints a line, if there is one left."""
        if self._lines_left is None:
            self._print(text)
        elif self._lines_left > 0:
            self._lines_left -= 1
            self._print(text if self._lines_left else f"{text}\n(no more lines of single steps; the counts go on)")

    def _print(self, text: str) -> None:
        if self._stream is not None:
            print(text, file=self._stream, flush=True)

    def tick(self) -> None:
        """The counts of a large graph; the last log line of each running step, when it is new."""
        nodes = list(self.view.nodes.values()) if self.view else []
        if self._lines_left is not None:
            self._count(nodes)
            return
        for node in [n for n in nodes if n.outcome == "running"][:_MOST_TAILS]:
            line = self.last_line(node)
            if line and self._shown.get(node.address) != line:
                self._shown[node.address] = line
                self._print(f"{self.label(node)}: {line.strip()}")

    def _count(self, nodes: Sequence[NodeRecord]) -> None:
        counted = counts_of(nodes)
        if counted != self._counted:
            self._counted = counted
            self._print(counted)

    def ended(self, record: RunRecord) -> None:
        """The script says the last words."""


class Live(_Display):
    """A table on a terminal: a line a step, running ones with the last line of their log.

    Args:
        file: where it goes; default stdout.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live as RichLive

        self._is_over = False
        self._console = Console(file=file)
        self._live = RichLive(
            console=self._console,
            get_renderable=self._table,
            refresh_per_second=_LIVE_PER_SECOND,
            transient=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def started(self, run: Ledger) -> None:
        """Shows the table."""
        self.view = run
        if len(run.nodes) > MOST_LINED:
            self._live.refresh_per_second = 1  # each refresh looks at every step
        self._live.start()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._live.is_started:
            self._live.stop()

    def changed(self, node: NodeRecord) -> None:
        """The next refresh shows it."""

    def said(self, text: str) -> None:
        """A line above the table."""
        self._console.print(text, markup=False, highlight=False)

    def ended(self, record: RunRecord) -> None:
        """Leaves the table as it stands at the end."""
        self._is_over = True
        if self._live.is_started:
            self._live.refresh()

    def _table(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), expand=True)
        width = self._console.width
        for column in ("", "step", "time", "size"):
            table.add_column(column, no_wrap=True, justify="right" if column in ("time", "size") else "left")
        table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gives way
        nodes = list(self.view.nodes.values()) if self.view else []
        shown, hidden = _rows(nodes, room=max(3, self._console.height - 3), is_over=self._is_over)
        for node in shown:
            mark, style = _MARKS[node.outcome]
            name = _shortened(self.label(node), most=max(8, width // 3))
            table.add_row(Text(mark, style), Text(name), *(Text(t, "dim") for t in self._cells(node, width=width)))
        if hidden:
            counts = ", ".join(f"{n:,} {'waiting' if o == 'pending' else o}" for o, n in _by_outcome(hidden))
            table.add_row("", Text(f"… {len(hidden):,} more", "dim"), "", "", Text(counts, "dim"))
        done = sum(n.outcome in ("succeeded", "reused") for n in nodes)
        total = Text(f"   {counts_of(nodes)}  {bar_of(done, len(nodes))}", "bold", no_wrap=True, overflow="ellipsis")
        return Group(table, total)

    def _cells(self, node: NodeRecord, *, width: int) -> tuple[str, str, str]:
        if node.outcome == "running":
            elapsed = format_seconds(time.time() - (node.started_at or time.time()))
            line = _printable(self.last_line(node))
            return elapsed, "", bar_text(line) if width >= _WIDE else line
        time_shown = format_seconds(node.seconds) if node.seconds is not None else ""
        size = format_bytes(node.num_bytes) if node.num_bytes else ""
        if node.failure is not None:
            what = f"{node.failure.type}: {node.failure.message}"
            return time_shown, size, _printable(node.reason if node.outcome == "pending" else what)
        return time_shown, size, {"succeeded": "", "pending": "waiting"}.get(node.outcome, node.reason)


def _shortened(name: str, *, most: int) -> str:
    """A name without its middle: what tells one of many from the others stands at its end."""
    return name if len(name) <= most else f"{name[: most // 3]}…{name[len(name) - most + most // 3 + 1 :]}"


def _printable(line: str) -> str:
    """A line of a log without the colours and movements that a body wrote for a terminal of its own."""
    return "".join(c for c in _ESCAPES.sub("", line) if c.isprintable()).strip()


def _rows(nodes: list[NodeRecord], *, room: int, is_over: bool) -> tuple[list[NodeRecord], list[NodeRecord]]:
    """The nodes that are shown, and those that are not: all that failed or run, as far as the screen has room for them
    (when the run is over the table may be longer), then others up to a number."""
    urgent = sum(n.outcome in _URGENT for n in nodes)
    most = max(min(_MOST_ROWS, room), urgent if is_over else min(urgent, room))
    if len(nodes) <= most:
        return nodes, []
    ranked = sorted(nodes, key=lambda n: _URGENT.get(n.outcome, 2 if n.outcome == "blocked" else 3))
    return ranked[:most], ranked[most:]


def _by_outcome(nodes: list[NodeRecord]) -> list[tuple[str, int]]:
    return Counter[str](node.outcome for node in nodes).most_common()
