"""The ``marin`` command: reads what runs have recorded, and plans or runs scripts.

    marin run experiments/quickstart.py --steps 300
    marin explain experiments/quickstart.py 'train*'
    marin verify --deep

SCRIPT is ``file.py`` or ``file.py:build``; what follows it goes to the script's own command line. The reading commands
need no script: they know the prefix alone.
"""

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marin_core.errors import CorruptRecordError, NewerRecordError, PrefixError, UsageError
from marin_core.exits import exit_code_of, guarded
from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.records import RunRecord, StepRecord, committed, from_json
from marin_core.store import Store, default_prefix, open_store

Unreadable = CorruptRecordError | NewerRecordError
SCRIPT_COMMANDS = ("run", "plan", "explain", "graph")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def command() -> int:
        if arguments and arguments[0] in SCRIPT_COMMANDS:
            return _script_command(*arguments)
        parsed = _parser().parse_args(arguments)
        return parsed.command(parsed)

    return guarded(command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="marin",
        description="Plan, run and read graphs of recorded steps.",
        epilog="example: marin run experiments/quickstart.py --steps 300; marin status",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, what in (
        ("run", "bring a script's steps up to date"),
        ("plan", "say what would run and why; run nothing"),
        ("explain", "every digest and reason of a script's steps (SCRIPT [GLOB])"),
        ("graph", "a script's steps and edges as Mermaid text"),
    ):
        commands.add_parser(name, help=what, usage=f"marin {name} SCRIPT[:build] [script's flags]")
    _reader(commands, "status", status, "what the prefix holds: runs and committed steps", "marin status --json")
    logs = _reader(commands, "logs", logs_of, "what a step's body printed", "marin logs train/0123456789ab")
    logs.add_argument("address", help="a step's address, or its name for the newest")
    logs.add_argument("--attempt", type=int, help="default: the newest")
    report = _reader(commands, "report", report_of, "a run's page as one HTML file", "marin report --html run.html")
    report.add_argument("run", nargs="?", help="run id; default: the newest")
    report.add_argument("--html", required=True, metavar="FILE", help="where to write it")
    serve = _reader(commands, "serve", serve_prefix, "runs, steps and files in the browser", "marin serve --port 0")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine alone")
    serve.add_argument("--port", type=int, default=8642, help="default: 8642; 0 takes a free one")
    serve.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="another name it answers to")
    verify = _reader(commands, "verify", verify_outputs, "check committed outputs", "marin verify --deep")
    verify.add_argument("addresses", nargs="*", metavar="ADDRESS", help="default: all")
    verify.add_argument("--deep", action="store_true", help="compare every file's sha256, not only sizes")
    again = "make a step again in a clean checkout and compare"
    reproduce = _reader(commands, "reproduce", reproduced, again, "marin reproduce train/0123456789ab")
    reproduce.add_argument("address", help="a step's address, or its name for the newest")
    reproduce.add_argument("--repository", metavar="PATH", help="holds the commit; default: where it was recorded")
    reproduce.add_argument("--keep", metavar="DIR", help="keep checkout and outputs in this new directory")
    return parser


def _reader(
    commands: Any, name: str, command: Callable[[Any], int], what: str, example: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=what, epilog=f"example: {example}")
    parser.set_defaults(command=command)
    parser.add_argument("--prefix", default=default_prefix(), help="default: MARIN_PREFIX or .marin")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


# Commands on a script


def _script_command(command: str, *rest: str) -> int:
    if not rest or rest[0] in ("-h", "--help"):
        print(
            f"usage: marin {command} SCRIPT[:build] [script's flags]\n"
            f"example: marin {command} experiments/quickstart.py"
        )
        return 0 if rest else 2
    from marin_core.script import run_script

    script, *flags = rest
    module, build = _load(script)
    prog = f"marin {command} {script}"
    if command == "run":
        return run_script(build, flags, epilogue=getattr(module, "epilogue", None), prog=prog)
    if command == "plan":
        return run_script(build, [*flags, "--plan"], prog=prog)
    glob = (flags.pop(0),) if command == "explain" and flags and not flags[0].startswith("-") else ("*",)
    return _on_graph(command, build, flags, prog, glob)


def _load(script: str) -> tuple[Any, Callable[..., Any]]:
    """The script as a module, loaded as if it were run but without its ``__main__`` part, and its build function."""
    from marin_core.launchers.worker import load_script

    path, _, name = script.rpartition(":") if ".py:" in script else (script, "", "build")
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"{path}: there is no such script")
    sys.path.insert(0, str(file.parent))
    try:
        module = load_script(str(file))
    except Exception as e:
        if exit_code_of(e) is not None:
            raise
        raise UsageError(f"{_place(e, str(file), path)}: {type(e).__name__}: {getattr(e, 'msg', None) or e}") from e
    build = getattr(module, name or "build", None)
    if not callable(build):
        raise UsageError(f"{path} has no function {name or 'build'}(); name the one that returns steps as {path}:NAME")
    return module, build


def _place(e: Exception, file: str, path: str) -> str:
    """``file:line`` of what is wrong with a script: where its text is no Python, else the last line of it that ran."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{path if e.filename == file else e.filename}:{e.lineno or 1}"
    lines = [at.lineno for at in traceback.extract_tb(e.__traceback__) if at.filename == file]
    return f"{path}:{lines[-1] if lines else 1}"


def _on_graph(command: str, build: Callable[..., Any], flags: Sequence[str], prog: str, glob: tuple[str, ...]) -> int:
    from marin_core.graph import lower
    from marin_core.reasons import matches
    from marin_core.script import parse

    keywords, runner = parse(build, flags, prog=prog)
    graph = lower(build(**keywords))
    if command == "graph":
        if runner.json:
            print(json.dumps({"nodes": list(graph.addresses), "edges": [list(e) for e in graph.edges]}, indent=2))
            return 0
        number = {address: i for i, address in enumerate(graph.addresses)}
        lines = [f'  s{i}["{address}"]' for address, i in number.items()]
        print("\n".join(["graph TD", *lines, *(f"  s{number[a]} --> s{number[b]}" for a, b in graph.edges)]))
        return 0
    if not any(matches(glob, node) for node in graph.nodes.values()):
        names = ", ".join(dict.fromkeys(n.name for n in list(graph.nodes.values())[:12]))
        raise UsageError(f"{glob[0]}: no step of this name or address; there are {names}")
    planned = [p for p in graph.plan(runner.prefix, options=runner.options()) if matches(glob, graph.nodes[p.address])]
    if runner.json:
        print(json.dumps([_explained(p, graph.nodes[p.address]) for p in planned], indent=2, allow_nan=False))
        return 0
    for p in planned:
        explained = _explained(p, graph.nodes[p.address])
        print(f"{p.address}\n  {p.decision}: {p.reason}")
        for part in ("digests", "arguments", "code"):
            print(*(f"  {part:<10} {name} = {value}" for name, value in explained[part].items()), sep="\n")
    return 0


def _explained(planned: Any, node: Any) -> dict[str, Any]:
    """Everything that a decision rests on."""
    from marin_core.reasons import flatten

    return {
        "address": planned.address,
        "decision": planned.decision,
        "reason": planned.reason,
        "digests": {"recipe": node.recipe_digest, "code": node.code.digest, "environment": node.environment},
        "arguments": flatten(node.recipe),
        "code": node.code.units,
    }


# Commands on a prefix


def status(parsed: argparse.Namespace) -> int:
    """Newest runs and all committed steps."""
    store = _existing(parsed.prefix)
    runs, steps, corrupt = _runs(store), [], []
    for _, found in _steps(store):
        (steps if isinstance(found, StepRecord) else corrupt).append(found)
    if parsed.json:
        shown = [{k: v for k, v in dataclasses.asdict(r).items() if k != "nodes"} for r in runs]
        entries = [
            {"address": s.address, "seconds": s.seconds, "num_bytes": s.num_bytes, "value": s.value} for s in steps
        ]
        print(
            json.dumps({"runs": shown, "steps": entries, "corrupt": list(map(str, corrupt))}, indent=2, allow_nan=False)
        )
        return 0
    for r in runs[-10:]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(r.started_at))
        took = format_seconds(r.ended_at - r.started_at) if r.ended_at else "not ended"
        print(f"{r.run_id}  {when}  {r.status:<10} {took:>12}  {format_count(len(r.nodes), 'step')}  {r.script}")
    for s in steps:
        files = format_count(len(s.files), "file")
        print(f"{s.address:<44} {format_seconds(s.seconds):>12} {files:>12} {format_bytes(s.num_bytes):>10}")
    for error in corrupt:
        print(f"{'corrupt: ' if isinstance(error, CorruptRecordError) else ''}{error}")
    print(f"{format_count(len(steps), 'committed step')}, {format_count(len(runs), 'run')} under {store.url}")
    return 0


def logs_of(parsed: argparse.Namespace) -> int:
    """The log of one attempt."""
    store = _existing(parsed.prefix)
    address = parsed.address.rstrip("/")
    if not store.names(f"{address}/attempts"):
        named = [s for _, s in _steps(store) if isinstance(s, StepRecord) and s.name == address]
        if not named:
            raise UsageError(f"{address}: no attempt at a step of this address or name under {store.url}")
        address = max(named, key=lambda s: s.committed_at).address
    numbers = [int(n) for n in store.names(f"{address}/attempts") if n.isdigit()]
    number = parsed.attempt or max(numbers)
    text = store.read(f"{address}/attempts/{number}/log.txt")
    if text is None:
        raise UsageError(f"{address}: attempt {number} has no log; there are attempts {numbers}")
    shown = text.decode("utf-8", errors="replace")
    if parsed.json:
        print(json.dumps({"address": address, "attempt": number, "log": shown}))
    else:
        sys.stdout.write(shown)
    return 0


def report_of(parsed: argparse.Namespace) -> int:
    """The page of one run."""
    from marin_core.report import write_report

    store = _existing(parsed.prefix)
    if parsed.run is not None:
        data = store.read(f"runs/{parsed.run}.json")
        if data is None:
            raise UsageError(f"run {parsed.run}: no such run under {store.url}; marin status lists them")
        record = from_json(RunRecord, data, where=f"runs/{parsed.run}.json")
    else:
        runs = _runs(store)
        if not runs:
            raise UsageError(f"there is no run under {store.url}")
        record = runs[-1]
    path = write_report(record, store.url, parsed.html)
    print(json.dumps({"run_id": record.run_id, "html": path}) if parsed.json else f"report: {path}")
    return 0


def serve_prefix(parsed: argparse.Namespace) -> int:
    """The prefix in the browser."""
    from marin_core.server.command import serve_command

    where = {"host": parsed.host, "port": parsed.port, "allowed_hosts": parsed.allow_host}
    return serve_command(parsed.prefix, as_json=parsed.json, **where)


def verify_outputs(parsed: argparse.Namespace) -> int:
    """Compares committed outputs with their manifests."""
    store = _existing(parsed.prefix)
    wanted = [a.rstrip("/") for a in parsed.addresses]
    bad: dict[str, list[str]] = {}
    checked = 0
    for address, found in _steps(store):
        is_record = isinstance(found, StepRecord)
        if wanted and address not in wanted and not (is_record and found.name in wanted):
            continue
        checked += 1
        if is_record:
            damage = store.damage(f"{address}/attempts/{found.attempt}/out", found.files, deep=parsed.deep)
        else:
            damage = ["corrupt record" if isinstance(found, CorruptRecordError) else str(found)]
        bad.update({address: damage} if damage else {})
    if wanted and not checked:
        raise UsageError(f"{', '.join(wanted)}: no committed step of this address or name under {store.url}")
    if parsed.json:
        print(json.dumps({"checked": checked, "damaged": bad}, indent=2))
    else:
        print(
            *(f"{address}: {what}" for address, damage in bad.items() for what in damage),
            sep="\n",
            end="\n" if bad else "",
        )
        print(f"{format_count(checked, 'step')} checked, {len(bad)} damaged")
    return 1 if bad else 0


def reproduced(parsed: argparse.Namespace) -> int:
    """Makes a step again and compares; the certificate says what differs and why."""
    from marin_core import reproduction

    _existing(parsed.prefix)
    return reproduction.command(parsed)


def _existing(prefix: str) -> Store:
    """The store of a prefix that can be read; a reading command makes none."""
    store = open_store(prefix, unsafe_single_writer=True)
    if store.local is not None and not store.local.is_dir():
        what = "is not a directory" if store.local.exists() else "does not exist"
        raise PrefixError(f"prefix {store.url} {what}; give --prefix or MARIN_PREFIX")
    return store


def _runs(store: Store) -> list[RunRecord]:
    """Readable run records, oldest first."""
    found = [_read(store, f"runs/{name}", RunRecord) for name in store.names("runs") if name.endswith(".json")]
    return [r for r in found if isinstance(r, RunRecord)]


def _steps(store: Store) -> Iterator[tuple[str, StepRecord | Unreadable]]:
    """Address and record of every committed step."""
    for key in store.find("step.json"):
        try:
            found = committed(store.read(key), where=key)
        except (CorruptRecordError, NewerRecordError) as e:
            found = e
        if found is not None:
            yield key.removesuffix("/step.json"), found


def _read[T](store: Store, key: str, kind: type[T]) -> T | Unreadable:
    try:
        return from_json(kind, store.read(key) or b"", where=key)
    except (CorruptRecordError, NewerRecordError) as e:
        return e


if __name__ == "__main__":
    sys.exit(main())
