"""What commands share at the console: types of arguments, and how a report and its progress are shown.

Standard output holds the report alone, so that it can be piped; progress and logs go to standard error.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import os
import sys
from typing import Annotated, Any, Literal

import tyro

from marin_zephyr.progress import BarProgress, LogProgress, Progress

Inputs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
Format = Literal["jsonl", "json", "parquet", "arrow", "warc", "csv", "text"]


def shown_progress() -> Progress:
    """A bar on a terminal that can draw one, else lines."""
    is_capable = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return BarProgress() if is_capable else LogProgress()


def print_json(value: Any) -> None:
    """Prints one JSON document."""
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_report(report: Any, where: str, *, json: bool) -> int:
    """Prints a report, as JSON or as lines of which the last says where the result lies; the exit code, 0."""
    facts = dataclasses.asdict(report) if dataclasses.is_dataclass(report) else report  # pyrefly: ignore
    if json:
        print_json(facts)
        return 0
    _print_facts({name: value for name, value in facts.items() if value != where})
    print(where)
    return 0


def _print_facts(facts: dict[str, Any], prefix: str = "") -> None:
    for name, value in facts.items():
        name = prefix + name.replace("_", " ")
        match value:
            case dict():
                _print_facts(value, f"{name} ")
                continue
            case list() | tuple() if any(isinstance(entry, dict) for entry in value):
                for entry in value:
                    _print_facts({n: v for n, v in entry.items() if n != "name"}, f"{entry.get('name', name)} ")
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
        print(f"{name:<24} {shown}")
