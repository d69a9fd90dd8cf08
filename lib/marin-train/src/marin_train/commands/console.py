"""What commands share at the console: types of arguments, and how a result is shown."""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

Overrides = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="A.B=C"), tyro.conf.UseAppendAction]

Services = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME"), tyro.conf.UseAppendAction]

Config = Annotated[Path, tyro.conf.arg(metavar="CONFIG")]

Checkpoint = Annotated[Path, tyro.conf.arg(metavar="CHECKPOINT")]

# What may be left out has no default worth showing.
Steps = Annotated[str | None, tyro.conf.arg(metavar="START:STOP", help_behavior_hint="")]

Address = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")]

Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]

Page = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]

OtherConfig = Annotated[Path | None, tyro.conf.arg(metavar="CONFIG", help_behavior_hint="")]


def print_result(result: Any) -> None:
    """Prints lines as they are, and anything else as one JSON document."""
    print(result if isinstance(result, str) else json.dumps(result, indent=1))
