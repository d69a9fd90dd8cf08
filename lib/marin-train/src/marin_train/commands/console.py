"""What commands share at the console: types of arguments, and how a result is shown."""

import json
from typing import Annotated, Any

import tyro

Overrides = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="A.B=C"), tyro.conf.UseAppendAction]

Services = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME"), tyro.conf.UseAppendAction]


def print_result(result: Any) -> None:
    """Prints lines as they are, and anything else as one JSON document."""
    print(result if isinstance(result, str) else json.dumps(result, indent=1))
