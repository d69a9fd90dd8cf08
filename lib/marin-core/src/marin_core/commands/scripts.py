"""What a script's steps are and would do: ``marin explain`` and ``marin graph``, and the way to run or plan one.

SCRIPT is ``file.py`` or ``file.py:build``. What these commands do not take for themselves goes to the script's own
command line, so that the graph is the one that ``python file.py`` with the same flags would run.
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marin_core.commands import Answer
from marin_core.errors import UsageError
from marin_core.exits import aside, exit_code_of
from marin_core.namesakes import titled
from marin_core.quantities import format_count

_QUOTE = '"'
USAGE = {
    "run": "usage: marin run SCRIPT[:build] [script's flags]\n"
    "brings a script's steps up to date\n"
    "example: marin run experiments/quickstart.py --steps 300",
    "plan": "usage: marin plan SCRIPT[:build] [script's flags]\n"
    "says what would run and why; runs nothing\n"
    "example: marin plan experiments/quickstart.py",
    "explain": "usage: marin explain SCRIPT[:build] [GLOB] [--full] [script's flags]\n"
    "why each step would run or not, against the nearest that was ever made; --full, or a GLOB that names one step,\n"
    "adds every digest, argument and unit of code\n"
    "example: marin explain experiments/quickstart.py 'train*'",
    "graph": "usage: marin graph SCRIPT[:build] [--html FILE] [script's flags]\n"
    "a script's steps and edges as Mermaid text, or drawn with decisions and reasons on one page\n"
    "example: marin graph experiments/quickstart.py --html graph.html",
}
"""Help of the commands on a script, whose flags are not known before it is loaded."""


def on_script(command: str, arguments: Sequence[str]) -> int | Answer:
    """One command on a script; the runner's own commands print as they go and give their exit code."""
    from marin_core.script import run_script

    script, *flags = arguments
    with aside("--json" in flags):
        module, build = _load(script)
    prog = f"marin {command} {script}"
    if command == "run":
        return run_script(build, flags, epilogue=getattr(module, "epilogue", None), prog=prog)
    if command == "plan":
        return run_script(build, [*flags, "--plan"], prog=prog)
    return (explain if command == "explain" else graph)(script, build, flags, prog=prog)


def explain(script: str, build: Callable[..., Any], flags: list[str], *, prog: str) -> Answer:
    """Why each step would run or not."""
    from marin_core.history import History
    from marin_core.reasons import matches
    from marin_core.running.ledger import labels_in
    from marin_core.store import open_store

    full = _taken(flags, "--full")
    glob = (flags.pop(0),) if flags and not flags[0].startswith("-") else ("*",)
    lowered, runner = _lowered(build, flags, prog)
    if not any(matches(glob, node) for node in lowered.nodes.values()):
        names = ", ".join(dict.fromkeys(n.name for n in list(lowered.nodes.values())[:12]))
        raise UsageError(f"{glob[0]}: no step of this name or address; there are {names}")
    plan = lowered.plan(runner.prefix, options=runner.options())
    planned = [p for p in plan if matches(glob, lowered.nodes[p.address])]
    history = History(open_store(runner.prefix))
    document = [_explained(p, lowered.nodes[p.address], history) for p in planned]
    called = labels_in(lowered)
    runs = sum(p.decision == "run" for p in planned)
    last = f"{runs:,} of {format_count(len(planned), 'step')} would run"
    full = full or (len(document) == 1 and glob != ("*",))
    lines = [line for e in document for line in _block(e, titled(e["address"], called[e["address"]]), full=full)]
    return Answer(document=document, lines=[*lines, last])


def _explained(planned: Any, node: Any, history: Any) -> dict[str, Any]:
    """Everything that a decision rests on."""
    from marin_core.reasons import flatten, recipe_changes

    before = planned.record or (history.nearest(node) if planned.decision in ("run", "unselected") else None)
    code = node.code.units
    return {
        "address": planned.address,
        "decision": planned.decision,
        "reason": planned.reason,
        "compared_with": before.address if before else None,
        "changes": {
            "recipe": recipe_changes(before.recipe, node.recipe) if before else [],
            "code": [n for n in {**before.code, **code} if before.code.get(n) != code.get(n)] if before else [],
        },
        "digests": {"recipe": node.recipe_digest, "code": node.code.digest, "environment": node.environment},
        "arguments": flatten(node.recipe),
        "code": code,
    }


def _block(entry: dict[str, Any], title: str, *, full: bool) -> list[str]:
    """The decision about one step and its reason; ``full`` adds what they rest on."""
    lines = [title, f"  {entry['decision']}: {entry['reason']}"]
    if not full:
        return lines
    if entry["compared_with"] and entry["compared_with"] != entry["address"]:
        lines.append(f"  nearest    {entry['compared_with']}")
    lines.extend(f"  changed    {part} {change}" for part, changes in entry["changes"].items() for change in changes)
    for part in ("digests", "arguments", "code"):
        lines.extend(f"  {part:<10} {name} = {value}" for name, value in entry[part].items())
    return lines


def graph(script: str, build: Callable[..., Any], flags: list[str], *, prog: str) -> Answer:
    """A script's steps and edges, as text or as a page."""
    html = _option(flags, "--html")
    lowered, runner = _lowered(build, flags, prog)
    document: dict[str, Any] = {"nodes": list(lowered.addresses), "edges": [list(e) for e in lowered.edges]}
    if html is not None:
        from marin_core.report import write_page
        from marin_core.store import open_store
        from marin_core.web.plan import render_plan

        planned = lowered.plan(runner.prefix, options=runner.options())
        url = open_store(runner.prefix).url
        write_page(render_plan(lowered, planned, script=script, prefix=url, at=time.time()), html)
        return Answer(
            document={**document, "html": html}, lines=[f"graph of {format_count(len(planned), 'step')}: {html}"]
        )
    number = {address: i for i, address in enumerate(lowered.addresses)}
    from marin_core.running.ledger import labels_in

    called = labels_in(lowered)
    boxes = [f'  s{i}["{called[a].replace(_QUOTE, "#quot;")}"]' for a, i in number.items()]
    arrows = [f"  s{number[a]} --> s{number[b]}" for a, b in lowered.edges]
    return Answer(document=document, lines=["graph TD", *boxes, *arrows])


def _lowered(build: Callable[..., Any], flags: Sequence[str], prog: str) -> tuple[Any, Any]:
    """The graph that the script's flags ask for, and the runner's flags."""
    from marin_core.graph import lower
    from marin_core.script import built, parse

    keywords, runner = parse(build, flags, prog=prog)
    with aside(runner.json):
        return lower(built(build, keywords)), runner


def _taken(flags: list[str], flag: str) -> bool:
    """Takes a switch of ours out of the script's flags."""
    found = flag in flags
    flags[:] = [f for f in flags if f != flag]
    return found


def _option(flags: list[str], flag: str) -> str | None:
    """Takes an option of ours with its value out of the script's flags."""
    for i, given in enumerate(flags):
        if given.startswith(f"{flag}="):
            del flags[i]
            return given.partition("=")[2]
        if given == flag:
            if i + 1 == len(flags):
                raise UsageError(f"{flag} needs a FILE")
            value = flags[i + 1]
            del flags[i : i + 2]
            return value
    return None


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
        raise UsageError(
            f"{path} has no function {name or 'build'}(); give the one that returns steps, and that main() gets, a "
            f"name there (a lambda has none), and say {path}:NAME if that is not build"
        )
    return module, build


def _place(e: Exception, file: str, path: str) -> str:
    """``file:line`` of what is wrong with a script: where its text is no Python, else the last line of it that ran."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{path if e.filename == file else e.filename}:{e.lineno or 1}"
    lines = [at.lineno for at in traceback.extract_tb(e.__traceback__) if at.filename == file]
    return f"{path}:{lines[-1] if lines else 1}"
