"""A run as one HTML file.

`write_report` turns a run record, and what its steps left under the prefix, into a page that stands alone: styles,
script, charts and pictures are inside it, it needs no network and no server, and it opens from a disk or an e-mail.
It knows nothing of what the steps do; numbers, tables, ``metrics.jsonl``, samples and pictures are drawn because they
are there. What is missing or corrupt is said in its place and never costs the rest of the page.

Two defences keep shown data from acting: everything is escaped (`web.markup`), and the page's own security policy
admits exactly one script and one style sheet, by their hashes, and no network at all (`web.document`). The server
shows the same page (`render_run`), with links to its others.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from marin_core.records import RunRecord
from marin_core.store import open_store
from marin_core.web.curves import render_curves
from marin_core.web.document import document
from marin_core.web.files import PrefixFiles
from marin_core.web.lineage import render_lineage
from marin_core.web.markup import Child, Markup, element, note
from marin_core.web.overview import render_environment, render_failures, render_header, render_results
from marin_core.web.steps import render_steps
from marin_core.web.sweeps import render_sweeps
from marin_core.web.timings import render_timings
from marin_core.web.view import RunView

_logger = logging.getLogger(__name__)

type Section = Callable[[RunView], Markup | None]

_SECTIONS: tuple[tuple[str, str, Section], ...] = (
    ("failures", "What went wrong", render_failures),
    ("results", "Results", render_results),
    ("sweep", "Sweep", render_sweeps),
    ("curves", "Curves", render_curves),
    ("lineage", "Lineage", render_lineage),
    ("timings", "Timings", render_timings),
    ("steps", "Steps", render_steps),
    ("environment", "Environment", render_environment),
)


def write_report(record: RunRecord, prefix: str, html: str) -> str:
    """Writes the page of a run.

    Args:
        record: the run; it may still be running, or have failed.
        prefix: directory or fsspec URL that the record's addresses are relative to. Nothing outside it is read.
        html: path or fsspec URL of the file to write. A local file appears whole or not at all.

    Returns:
        `html`.

    Raises:
        OSError: the file cannot be written.
    """
    write_page(render_report(record, prefix), html)
    return html


def render_report(record: RunRecord, prefix: str) -> str:
    """The page of a run as text; see `write_report`."""
    return render_run(RunView.of(record, PrefixFiles(prefix)))


def render_run(view: RunView, *, above: Child = None) -> Markup:
    """The page of a run; see `render_page`."""
    return render_page(view, render_header, _SECTIONS, above=above)


def render_page(
    view: RunView, header: Section, parts: Sequence[tuple[str, str, Section]], *, above: Child = None
) -> Markup:
    """A page on a run, or on one that is only planned.

    Args:
        view: the run; where it is ``served`` the page links to the server's others.
        header: renders the top of the page.
        parts: anchor, title and renderer of each section.
        above: stands above the header.
    """
    record = view.record
    top = _section(header, "header", view)
    sections = [(name, title, _section(render, name, view)) for name, title, render in parts]
    links = [element("li", element("a", title, href=f"#{name}")) for name, title, section in sections if section]
    return document(
        f"{record.script} · {'plan' if view.planned else record.status} · {record.run_id}",
        above,
        top,
        element("nav", element("ul", links), aria_label="Sections"),
        element("main", [section for _, _, section in sections]),
        served=view.served,
    )


def _section(render: Section, name: str, view: RunView) -> Markup | None:
    """One section; a record that this version cannot draw costs that section alone, and the log says why."""
    try:
        return render(view)
    except Exception:
        _logger.exception("section %r of the report of run %s could not be drawn", name, view.record.run_id)
        return element("section", note(f"This section ({name}) could not be drawn from the record."), id=name)


def write_page(text: str, html: str) -> None:
    """Writes a page; a local file appears whole or not at all."""
    page = text.encode("utf-8", errors="replace")
    if "://" in html:
        directory, _, name = html.rpartition("/")
        open_store(directory, unsafe_single_writer=True).write(name, page)
        return
    target = Path(html)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(page)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
