"""What commands share at the console: types of arguments, and how a report and its progress are shown.

Standard output holds the report alone, so that it can be piped; progress and logs go to standard error.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import os
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import tyro

from marin_zephyr.errors import ZephyrError
from marin_zephyr.progress import BarProgress, LogProgress, Progress

Inputs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
_LABEL, _WIDEST = 24, 48  # columns of the labels: at least; and what is longer stands out
Format = Literal["jsonl", "json", "parquet", "arrow", "warc", "csv", "text"]


def shown_progress() -> Progress:
    """A bar on a terminal that can draw one, else lines."""
    is_capable = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return BarProgress() if is_capable else LogProgress()


@contextmanager
def told_in_flags() -> Generator[None]:
    """What an error inside the block says of an argument of Python, it says of the command's flag."""
    try:
        yield
    except ZephyrError as error:
        error.args = (re.sub(r"""\bon_error=["']?(\w+)["']?""", r"--on-error \1", str(error)), *error.args[1:])
        raise


def print_json(value: Any) -> None:
    """Prints one JSON document."""
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_report(report: Any, where: str, *, json: bool) -> int:
    """Prints a report, as JSON or as lines of which the last says where the result lies; the exit code, 0."""
    facts = dataclasses.asdict(report) if dataclasses.is_dataclass(report) else report  # pyrefly: ignore
    if json:
        print_json(facts)
        return 0
    lines = list(_lines({name: value for name, value in facts.items() if value != where}))
    width = max([_LABEL, *(len(label) for label, _ in lines if len(label) <= _WIDEST)])
    for label, shown in lines:
        print(f"{label:<{width}} {shown}")
    print(where)
    return 0


def _lines(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A label and what is to be shown beside it, for each fact."""
    for name, value in facts.items():
        name = prefix + name.replace("_", " ")
        match value:
            case dict():
                yield from _lines(value, f"{name} ")
                continue
            case list() | tuple() if any(isinstance(entry, dict) for entry in value):
                for entry in value:
                    yield from _lines({n: v for n, v in entry.items() if n != "name"}, f"{entry.get('name', name)} ")
                continue
            case int():
                shown = f"{value:,}"
            case float():
                shown = f"{value:,.3f}"
            case list() | tuple():
                shown = "; ".join(value) or "none"
            case str() if "\n" in value:
                shown = jsonlib.dumps(value, ensure_ascii=False)
            case _:
                shown = value
        yield name, str(shown)
