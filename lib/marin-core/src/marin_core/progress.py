"""Progress: what a run shows while it goes on. On a terminal a live table, elsewhere plain lines.

Both are observers of the runner. Each running step shows the last line of its log, so whatever a body prints (a
training loop's loss, a bar that rewrites its line) is its progress, and core needs to know nothing about it.
"""

import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from marin_core.attempts import tail
from marin_core.ledger import Ledger
from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.records import NodeRecord, RunRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY = 10.0
_LIVE_PER_SECOND = 5
_MOST_ROWS = 24
_BAR_WIDTH = 20
_COUNTS = re.compile(r"\b(\d[\d,]*)(?:/| of )(\d[\d,]*)\b")
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

    def started(self, run: Ledger) -> None:
        """Starts the ticker."""
        self.view = run
        if self._stream is not None:
            self._start_ticker(_PLAIN_EVERY)

    def changed(self, node: NodeRecord) -> None:
        """One line for each start and each end."""
        if self._said.get(node.address) == node.outcome:
            return
        self._said[node.address] = node.outcome
        if node.outcome == "running":
            self.said(f"{node.name}: started ({node.reason})")
        elif node.outcome == "succeeded":
            files = format_count(node.num_files, "file")
            size = f", {files}, {format_bytes(node.num_bytes)}" if node.num_files else ""
            self.said(f"{node.name}: done in {format_seconds(node.seconds)}{size}")
        elif node.outcome in ("failed", "refused", "blocked", "unselected"):
            self.said(
                f"{node.name}: {node.outcome}" + ("" if node.outcome in ("failed", "refused") else f" ({node.reason})")
            )

    def said(self, text: str) -> None:
        """Prints a line."""
        if self._stream is not None:
            print(text, file=self._stream, flush=True)

    def tick(self) -> None:
        """The last log line of each running step, when it is new."""
        for node in list(self.view.nodes.values()) if self.view else ():
            if node.outcome == "running":
                line = self.last_line(node)
                if line and self._shown.get(node.address) != line:
                    self._shown[node.address] = line
                    self.said(f"{node.name}: {line.strip()}")

    def ended(self, record: RunRecord) -> None:
        """The script says the last words."""


class Live(_Display):
    """A table on a terminal: a line a step, running ones with the last line of their log."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console()
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
        if self._live.is_started:
            self._live.refresh()

    def _table(self) -> "RenderableType":
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), expand=True)
        for column in ("", "step", "time", "size"):
            table.add_column(column, no_wrap=True, justify="right" if column in ("time", "size") else "left")
        table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gives way
        nodes = list(self.view.nodes.values()) if self.view else []
        shown, hidden = _rows(nodes, most=min(_MOST_ROWS, max(3, self._console.height - 3)))
        for node in shown:
            mark, style = _MARKS[node.outcome]
            table.add_row(Text(mark, style), Text(node.name), *(Text(t, "dim") for t in self._cells(node)))
        if hidden:
            table.add_row("", Text(f"… and {hidden} more steps", "dim"), "", "", "")
        done = sum(n.outcome in ("succeeded", "reused") for n in nodes)
        table.add_row("", Text(f"{done}/{len(nodes)} steps", "bold"), "", "", Text(bar_of(done, len(nodes)), "bold"))
        return table

    def _cells(self, node: NodeRecord) -> tuple[str, str, str]:
        if node.outcome == "running":
            elapsed = format_seconds(time.time() - (node.started_at or time.time()))
            return elapsed, "", bar_text(self.last_line(node).strip())
        time_shown = format_seconds(node.seconds) if node.seconds is not None else ""
        size = format_bytes(node.num_bytes) if node.num_bytes else ""
        state = {"succeeded": "", "pending": "waiting", "failed": "failed"}.get(node.outcome, node.reason)
        return time_shown, size, state


def _rows(nodes: list[NodeRecord], *, most: int) -> tuple[list[NodeRecord], int]:
    """As many nodes as a screen bears: all, or the running and failed ones first."""
    if len(nodes) <= most:
        return nodes, 0
    order: dict[Any, int] = {"running": 0, "failed": 1, "refused": 1, "blocked": 2, "pending": 3}
    chosen = sorted(nodes, key=lambda n: order.get(n.outcome, 4))[:most]
    return chosen, len(nodes) - most
