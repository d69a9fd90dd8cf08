"""What a reader wants first: what ran, how it ended, what came out, and with what it was made.

The headline is whatever the target steps recorded; the page knows nothing of training. A few targets are shown one by
one, many (a sweep) as a table with a row each, so that they can be compared.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from marin_core.quantities import format_count, format_seconds, format_time, label
from marin_core.records import NodeRecord
from marin_core.web.files import UnreadableFileError
from marin_core.web.links import attempt_url
from marin_core.web.logs import clean_log
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.outputs import render_outputs
from marin_core.web.steps import render_failure
from marin_core.web.sweeps import render_members
from marin_core.web.values import figures, in_words, render_value
from marin_core.web.view import COMMITTED, FAILED, RunView, outcome_class

_MAX_TABLES = 6
_MAX_STATS = 8
_MAX_FAILURES = 10
_LOG_LINES = 12
_LOG_BYTES = 8_000


def render_header(view: RunView) -> Markup:
    """Script, status, when and how long, and how many steps came to what."""
    record = view.record
    start, end = view.span
    counts = Counter(view.word(outcome_class(node.outcome)) for node in record.nodes)
    steps = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    facts = [
        ("run", element("code", record.run_id)),
        ("started", format_time(record.started_at)),
        ("took", format_seconds(end - start) if record.ended_at is not None else "not finished"),
        ("steps", f"{len(record.nodes):,}: {steps}" if steps else "none"),
    ]
    return element(
        "header",
        element(
            "h1", record.script, " ", element("span", record.status, class_=f"status {outcome_class(record.status)}")
        ),
        element(
            "dl", [element("div", element("dt", name), element("dd", body)) for name, body in facts], class_="facts"
        ),
    )


def render_failures(view: RunView) -> Markup | None:
    """The steps that failed, with tracebacks, and how many others could not run for it; None when all went well."""
    failed = [(i, node) for i, node in enumerate(view.record.nodes) if node.outcome in FAILED]
    if not failed:
        return None
    shown = [_failed(view, i) for i, _ in failed[:_MAX_FAILURES]]
    blocked = sum(node.outcome == "blocked" for node in view.record.nodes)
    return element(
        "section",
        element("h2", "What went wrong"),
        shown,
        note(f"{format_count(len(failed) - len(shown), 'more step')} failed; see the list of steps.")
        if len(failed) > len(shown)
        else None,
        note(f"{format_count(blocked, 'step')} downstream did not run.") if blocked else None,
        id="failures",
        class_="failures",
    )


def _failed(view: RunView, index: int) -> Markup:
    """One step that failed: which attempt, what it raised, what it printed last, and where all of that is."""
    node = view.record.nodes[index]
    tried = f" at attempt {node.attempt}" if node.attempt is not None else ""
    heading = element("h3", element("a", view.label(index), href=f"#s{index}"), f" {view.word(node.outcome)}{tried}")
    return element(
        "div",
        heading,
        render_failure(node.failure) if node.failure else element("p", node.reason),
        _last_words(view, node) if node.log else None,
        class_="failed",
    )


def _last_words(view: RunView, node: NodeRecord) -> Markup:
    """The end of a step's log, and how to come by the rest."""
    log = node.log or ""
    try:
        text = clean_log(view.files.tail(log, max_bytes=_LOG_BYTES), max_lines=_LOG_LINES)
    except UnreadableFileError as e:
        text, remark = "", note(str(e))
    else:
        remark = note("It printed nothing.") if not text else None
    which = "" if node.attempt is None else f" --attempt {node.attempt}"
    path: Markup = element("code", log)
    if view.served and node.attempt is not None:
        path = element("a", path, href=attempt_url(node.address, node.attempt))
    command = element("code", f"marin logs {node.address}{which}")
    more = element("p", "All of it: ", command, " or ", path, class_="note")
    printed = fragment(element("h4", "The last it printed"), element("pre", text, tabindex=0)) if text else remark
    return fragment(printed, more)


def render_results(view: RunView) -> Markup | None:
    """The values that the target steps recorded, and what they produced to look at."""
    if not view.targets:
        return None
    body = fragment([_target(view, i) for i in view.headline]) if view.headline else _tables(view)
    return element("section", element("h2", "Results"), body, id="results")


def render_environment(view: RunView) -> Markup:
    """With what the run was made: command, commit, machine and packages."""
    record = view.record
    environment = dict(record.environment)
    packages = environment.pop("packages", None)
    git = record.git
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    rows: list[tuple[str, Markup | str]] = [
        ("command", element("code", shlex.join(record.argv))),
        ("git", fragment(element("code", str(git["commit"])), branch, dirty) if git.get("commit") else "none recorded"),
        *(
            (label(key), render_value(value, name=key))
            for key, value in environment.items()
            if value not in (None, "", [], {})
        ),
    ]
    fields = element("dl", [(element("dt", name), element("dd", body)) for name, body in rows], class_="fields")
    return element(
        "section", element("h2", "Environment"), fields, _packages(packages) if packages else None, id="environment"
    )


def _packages(packages: Any) -> Markup:
    if not isinstance(packages, Mapping):
        return render_value(packages, name="packages")
    items = [element("li", f"{name} ", element("span", str(version))) for name, version in sorted(packages.items())]
    summary = element("summary", format_count(len(packages), "package"))
    return element("details", summary, element("ul", items), class_="packages")


def _target(view: RunView, index: int) -> Markup | None:
    """One target: all that it recorded, and its samples, texts and pictures."""
    node = view.record.nodes[index]
    body = fragment(_recorded(node), render_outputs(view, index))
    if not body:
        if node.outcome in COMMITTED:
            body = note(f"{view.word(node.outcome)}; recorded no value.")
        else:
            said = node.failure.message if node.failure else view.reason(node)
            word = view.word(node.outcome)
            body = note(said if said.startswith(node.outcome) else f"{word}: {said}" if said else word)
    doc = element("p", node.doc, class_="doc") if node.doc else None
    return element("div", element("h3", element("a", view.label(index), href=f"#s{index}")), doc, body, class_="target")


def _recorded(node: NodeRecord) -> list[Markup | None]:
    """The value of a step, its scalars as figures and the rest below them."""
    value = node.value
    if value is None:
        return []
    first = figures(value, name=node.name)[:_MAX_STATS]
    stats = element("dl", [_stat(name, v) for name, v in first], class_="stats") if first else None
    names = {name for name, _ in first}
    if not isinstance(value, Mapping):
        return [stats or render_value(value, name=node.name)]
    rest = {k: v for k, v in value.items() if str(k) not in names}
    if stats is None or not rest:
        return [stats or render_value(value, name=node.name)]
    return [stats, render_value(rest, depth=1)]


def _stat(name: str, value: Any) -> Markup:
    exact = repr(value) if isinstance(value, float) else None
    return element("div", element("dt", label(name)), element("dd", in_words(name, value), title=exact))


def _tables(view: RunView) -> Markup:
    """Many targets: a table for each name, or one for all where the names are many."""
    groups: dict[str, list[int]] = {}
    for i in view.targets:
        groups.setdefault(view.record.nodes[i].name, []).append(i)
    if len(groups) > _MAX_TABLES:
        return fragment(render_members(view, view.targets, even_bare=True))
    return fragment(
        [
            (element("h3", name) if len(groups) > 1 else None, render_members(view, members, even_bare=True))
            for name, members in groups.items()
        ]
    )
