"""The ``marin`` command: reads what runs have recorded, and plans or runs scripts.

    marin run experiments/quickstart.py --steps 300
    marin explain experiments/quickstart.py 'train*'
    marin verify --deep

SCRIPT is ``file.py`` or ``file.py:build``; what follows it goes to the script's own command line. The reading commands
need no script: they know the prefix alone. This file parses and prints; what the commands do is in `commands`.
"""

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from marin_core.commands import Answer
from marin_core.exits import guarded
from marin_core.store import default_prefix

_ON_SCRIPT = {
    "run": "bring a script's steps up to date",
    "plan": "say what would run and why; run nothing",
    "explain": "why each of a script's steps would run or not (SCRIPT [GLOB])",
    "graph": "a script's steps and edges as Mermaid text, or as a page (--html FILE)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def command() -> int:
        if arguments and arguments[0] in _ON_SCRIPT:
            return _script_command(*arguments)
        parsed = _parser().parse_args(arguments)
        parsed.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        module = importlib.import_module(f"marin_core.commands.{parsed.subject}")
        answer = getattr(module, parsed.command)(parsed)
        return answer if isinstance(answer, int) else _show(answer, as_json=parsed.json)

    return guarded(command)


def _script_command(command: str, *rest: str) -> int:
    from marin_core.commands.scripts import USAGE, on_script

    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE[command], file=sys.stdout if rest else sys.stderr)
        return 0 if rest else 2
    answer = on_script(command, rest)
    return answer if isinstance(answer, int) else _show(answer, as_json="--json" in rest)


def _show(answer: Answer, *, as_json: bool) -> int:
    for remark in answer.remarks:
        print(remark, file=sys.stderr)
    if as_json:
        print(json.dumps(answer.document, indent=2, allow_nan=False))
    else:
        lazy = not isinstance(answer.lines, list)
        for line in answer.lines:
            print(line, flush=lazy)
    return answer.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="marin",
        description="Plan, run and read graphs of recorded steps.",
        epilog="example: marin run experiments/quickstart.py --steps 300; marin status",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, what in _ON_SCRIPT.items():
        commands.add_parser(name, help=what, usage=f"marin {name} SCRIPT[:build] [script's flags]")
    for add in (_add_runs, _add_comparison, _add_outputs, _add_repetition, _add_serving):
        add(commands)
    return parser


def _add_runs(commands: Any) -> None:
    status = _reader(
        commands, "runs", "status", "the newest runs, and every step with its state", "marin status --json"
    )
    status.add_argument("--all", action="store_true", help="a line for each of many steps, not for each name")
    status.add_argument("--runs", type=_count, default=10, metavar="N", help="how many runs; default: 10")
    logs = _reader(commands, "runs", "logs", "what a step's body printed", "marin logs train --follow --tail 20")
    _step(logs)
    logs.add_argument("--attempt", type=int, metavar="N", help="default: the newest, of whatever outcome")
    logs.add_argument("--follow", action="store_true", help="stay with a running attempt until it ends")
    logs.add_argument("--tail", type=_count, metavar="N", help="begin with the last N lines")
    report = _reader(commands, "runs", "report", "a run's page as one HTML file", "marin report latest --html run.html")
    report.add_argument("run", nargs="?", default="latest", metavar="RUN", help="run id; default: latest")
    report.add_argument("--html", metavar="FILE", help="where to write it; default: beside the run's record")


def _add_comparison(commands: Any) -> None:
    diff = _reader(
        commands, "comparison", "diff", "what differs in two runs or two steps", "marin diff latest~1 latest"
    )
    diff.add_argument("a", metavar="A", help="a run (id, start of one, latest, latest~1) or a step (address, name)")
    diff.add_argument("b", metavar="B", help="what to compare it with")
    diff.add_argument("--exit-code", action="store_true", help="exit 1 if they differ")
    lineage = _reader(commands, "lineages", "lineage", "what a step was made from, or into", "marin lineage train --up")
    _step(lineage)
    direction = lineage.add_mutually_exclusive_group()
    direction.add_argument("--up", action="store_true", help="what it was made from (the default)")
    direction.add_argument("--down", action="store_true", help="what was made from it")


def _add_outputs(commands: Any) -> None:
    verify = _reader(commands, "outputs", "verify", "check committed outputs and records", "marin verify --deep")
    verify.add_argument("addresses", nargs="*", metavar="ADDRESS", help="steps, by address or name; default: all")
    verify.add_argument("--deep", action="store_true", help="compare every file's sha256, not only sizes")
    what = "say what nothing needs any more; --apply removes it"
    gc = _reader(commands, "outputs", "gc", what, "marin gc --keep-days 30 --apply")
    gc.add_argument("--all", action="store_true", help="a line for each of many things, not for each name")
    gc.add_argument("--apply", action="store_true", help="remove it; without, nothing is changed")
    gc.add_argument(
        "--keep-days", type=float, default=14, metavar="DAYS", help="keep what these runs used; default: 14"
    )
    gc.add_argument("--keep-runs", type=_count, default=1, metavar="N", help="and the newest N runs; default: 1")
    gc.add_argument("--keep-run", action="append", default=[], metavar="RUN", help="and this run; may be repeated")
    pin = _reader(commands, "outputs", "pin", "keep a step's output for good, or list the pins", "marin pin train")
    pin.add_argument("address", nargs="?", metavar="ADDRESS", help="a step's address or name; without, lists the pins")
    pin.add_argument("--why", default="", metavar="TEXT", help="a reason, for those who read the list")
    _step(_reader(commands, "outputs", "unpin", "take a pin away", "marin unpin train"))


def _add_repetition(commands: Any) -> None:
    what = "make a step again in a clean checkout and compare"
    reproduce = _reader(commands, "repetition", "reproduce", what, "marin reproduce train/0123456789ab")
    _step(reproduce)
    reproduce.add_argument("--repository", metavar="PATH", help="holds the commit; default: where it was recorded")
    reproduce.add_argument("--keep", metavar="DIR", help="keep checkout and outputs in this new directory")


def _add_serving(commands: Any) -> None:
    what = "runs, steps and files in the browser"
    serve = _reader(commands, "serving", "serve", what, "marin serve --port 0")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine alone")
    serve.add_argument("--port", type=int, default=8642, help="default: 8642; 0 takes a free one")
    serve.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="another name it answers to")


def _step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="a step's address, or its name for the newest")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _reader(commands: Any, subject: str, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=what, epilog=f"example: {example}")
    parser.set_defaults(subject=subject, command=name)
    parser.add_argument("--prefix", default=default_prefix(), help="default: MARIN_PREFIX or .marin")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
