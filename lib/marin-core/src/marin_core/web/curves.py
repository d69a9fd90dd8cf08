"""Curves: every ``metrics.jsonl`` of a committed output, drawn.

The format is the least that a training loop can write: one JSON object a line. Its numbers are columns; the column
``step``, where there is one, is the horizontal axis; ``loss`` comes first and large. Files of several steps (a sweep)
are laid over one another column by column, which is how one compares runs: all files where they are few, else those of
one name. Those of the steps that were asked for come first. A column that never changes is a setting
and is said in a line of text rather than drawn. Lines that do not parse are counted, never fatal.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from marin_core.quantities import format_count, format_quantity, is_number
from marin_core.web.charts import Series, drawable, line_chart
from marin_core.web.files import UnreadableFileError
from marin_core.web.markup import Markup, element, note
from marin_core.web.view import RunView, output_directory

_NAME = "metrics.jsonl"
_AXIS = "step"
_FIRST = "loss"
_MAX_FILE_BYTES = 64_000_000
_MAX_CHARTED = 24
_MAX_OVERLAID = 6
_MAX_COLUMNS = 24


@dataclass(frozen=True)
class Metrics:
    """The numbers of one file: `columns` are as long as `xs`, which ascends; what a row lacks is None."""

    label: str
    axis: str
    xs: tuple[float, ...]
    columns: dict[str, tuple[float | None, ...]]
    num_unreadable: int
    step: str = ""
    """Name of the step whose file it is."""

    def varying(self) -> list[str]:
        return [name for name in self.columns if len(self._seen(name)) > 1]

    def constants(self) -> dict[str, float]:
        return {name: self._seen(name).pop() for name in self.columns if len(self._seen(name)) == 1}

    def _seen(self, name: str) -> set[float]:
        return {y for y in self.columns[name] if y is not None and drawable(y)}


def parse_metrics(text: bytes, *, label: str) -> Metrics:
    """Columns of a ``metrics.jsonl``; rows are sorted by the step, ties in the order written."""
    rows: list[dict[str, Any]] = []
    num_unreadable = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            num_unreadable += 1
    axis = [_number(row.get(_AXIS)) for row in rows]
    has_axis = bool(rows) and all(x is not None and drawable(x) for x in axis)
    if has_axis:
        rows.sort(key=lambda row: float(row[_AXIS]))
    names = dict.fromkeys(name for row in rows for name in row if not (has_axis and name == _AXIS))
    columns = {name: tuple(_number(row.get(name)) for row in rows) for name in names}
    return Metrics(
        label=label,
        axis=_AXIS if has_axis else "row",
        xs=tuple(float(row[_AXIS]) if has_axis else float(i) for i, row in enumerate(rows)),
        columns={name: ys for name, ys in columns.items() if any(y is not None for y in ys)},
        num_unreadable=num_unreadable,
    )


def render_curves(view: RunView) -> Markup | None:
    """The section of curves; None when no output of the run holds metrics."""
    metrics, remarks = _collect(view)
    if not metrics and not remarks:
        return None
    groups = _together(metrics)
    return element(
        "section",
        element("h2", "Curves"),
        [_charts(group, title=title if len(groups) > 1 or len(metrics) == 1 else None) for title, group in groups],
        [note(remark) for remark in remarks],
        id="curves",
    )


def _together(metrics: list[Metrics]) -> list[tuple[str, list[Metrics]]]:
    """The files whose lines share charts: all of them where they are few, else those of the steps of one name."""
    if len(metrics) <= _MAX_OVERLAID and len({m.axis for m in metrics}) == 1:
        return [(metrics[0].label, metrics)] if metrics else []
    named: dict[tuple[str, str], list[Metrics]] = defaultdict(list)
    for each in metrics:
        named[each.step, each.axis].append(each)
    return [(group[0].label if len(group) == 1 else step, group) for (step, _), group in named.items()]


def _collect(view: RunView) -> tuple[list[Metrics], list[str]]:
    """Every readable file, those of what was asked for first, and a remark for each thing left out."""
    found: list[Metrics] = []
    remarks: list[str] = []
    paths = [
        (i, file.path)
        for i in sorted(range(len(view.record.nodes)), key=lambda i: i not in view.targets)
        for file in view.outputs.get(i, ())
        if file.path.rsplit("/", 1)[-1] == _NAME
    ]
    for i, path in paths[:_MAX_CHARTED]:
        folder = path.rpartition("/")[0]
        label = f"{view.label(i)}, {folder}" if folder else view.label(i)
        try:
            text = view.files.read(f"{output_directory(view.record.nodes[i])}/{path}", max_bytes=_MAX_FILE_BYTES)
        except UnreadableFileError as e:
            remarks.append(str(e))
            continue
        metrics = replace(parse_metrics(text, label=label), step=view.record.nodes[i].name)
        if metrics.num_unreadable:
            skipped = format_count(metrics.num_unreadable, "line")
            remarks.append(f"{label}: skipped {skipped} of {path}, which should be JSON objects")
        if metrics.columns:
            found.append(metrics)
        else:
            remarks.append(f"{label}: {path} holds no numbers")
    if len(paths) > _MAX_CHARTED:
        remarks.append(f"not drawn: {format_count(len(paths) - _MAX_CHARTED, 'more file')} named {_NAME}")
    return found, remarks


def _charts(group: list[Metrics], *, title: str | None) -> Markup:
    """The charts of files that share axes: one a column, the loss first."""
    names = dict.fromkeys(name for metrics in group for name in metrics.varying())
    ordered = sorted(names, key=lambda name: name != _FIRST)
    charts = [
        line_chart(
            name,
            [Series(m.label, m.xs, m.columns[name]) for m in group if name in m.columns],
            x_label=group[0].axis,
            large=rank == 0,
        )
        for rank, name in enumerate(ordered[:_MAX_COLUMNS])
    ]
    left_out = len(ordered) - len(charts)
    return element(
        "div",
        element("h3", title) if title else None,
        element("div", charts, class_="charts"),
        [_constants(m, named=len(group) > 1) for m in group],
        note(f"Not drawn: {format_count(left_out, 'more column')}.") if left_out > 0 else None,
        _gaps(group),
    )


def _constants(metrics: Metrics, *, named: bool) -> Markup | None:
    constants = metrics.constants()
    if not constants:
        return None
    shown = ", ".join(f"{name} = {format_quantity(name, y)}" for name, y in list(constants.items())[:_MAX_COLUMNS])
    return note("Constant throughout", f" in {metrics.label}" if named else "", ": ", shown, ".")


def _gaps(group: Iterable[Metrics]) -> Markup | None:
    count = sum(not drawable(y) for m in group for ys in m.columns.values() for y in ys if y is not None)
    return note(f"Left as gaps: {format_count(count, 'value')} not finite.") if count else None


def _number(value: Any) -> float | None:
    if not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
