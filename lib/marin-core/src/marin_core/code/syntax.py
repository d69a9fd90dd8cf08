"""Syntax: what one source file says, as a pure function of its text, and therefore remembered by its text's hash.

A `Summary` maps every module-level name to what binds it: imports, and at most one unit (all statements that define or
change the name, with the conditions around them, together). Statements that bind nothing are units too, called after
what they call (``register()``), and belong to whoever loads the module. A unit has the digest of its syntax tree and
its reads (`scopes`). Resolving reads to files is not done here; it depends on where things are installed.

Summaries are remembered between processes (`remembered`): reading a hundred files takes milliseconds then.
"""

import ast
import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marin_core.code.imports import Chain, Import, Read, dotted, imported, imports_by_variable, loaded
from marin_core.code.scopes import FUNCTIONS, Reader
from marin_core.errors import EncodingError
from marin_core.remembered import recall, remember

Kind = Literal["helper", "class", "constant", "import", "statement"]

_SCHEMA = 7
_EXECUTOR = "marin_core"
_RUNNERS = ("main", "run", "resolve", "StepRunner")
_DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
_COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
_LONGEST = 60
"""Characters of a call that name the statement."""


@dataclass(frozen=True)
class Unit:
    """All statements of a module that define one name, or one that is run for its effect."""

    kind: Kind
    digest: str
    reads: tuple[Read, ...]
    loads: tuple[Import, ...] = ()
    """Modules that the body imports."""
    acts: tuple[Read, ...] = ()
    """What it calls or changes when the module is loaded."""
    changes: tuple[Read, ...] = ()
    """What it calls or changes when it is called."""
    touches: bool = False
    """Whether a call changes what it is given, or a global."""
    is_step: bool = False
    """Whether a call runs nothing."""


@dataclass(frozen=True)
class Summary:
    """What a source file binds at module level."""

    units: dict[str, Unit]
    imports: dict[str, tuple[Import, ...]]
    stars: tuple[Import, ...]
    """Modules of ``from x import *``."""
    typing: dict[str, tuple[Import, ...]]
    """Imports that only type checkers see; a package may name its lazy exports there."""
    loads: tuple[Import, ...]
    """What Python loads along with the module."""
    effects: tuple[str, ...]
    """Units that act when the module is loaded, whoever reads them: ``register(f)``, ``other.LIMIT = 3``."""
    suspects: tuple[str, ...]
    """Units that do so if what they call does: ``ok = register(f)``, ``class C: CONFIG["x"] = 1``."""
    registered: dict[str, tuple[Chain, ...]]
    """Functions and classes that a decorator or a base class may enter elsewhere, and the names of those."""
    registrars: tuple[str, ...]
    """Classes that act when another class inherits from them."""


def summarise(path: Path) -> Summary:
    """The summary of a source file, as the file is now.

    Raises:
        EncodingError: it is not Python, so that there is no telling what a step reaches there.
    """
    stat = path.stat()
    return _summary(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4096)
def _summary(path: Path, _mtime: int, _size: int) -> Summary:
    text = path.read_bytes()
    key = f"{_SCHEMA} {sys.version_info[:2]} {hashlib.sha256(text).hexdigest()}"
    remembered = recall("syntax", key)
    if remembered is not None:
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            return _from_json(remembered)
    try:
        tree = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as e:
        where = f"{path}:{e.lineno}" if isinstance(e, SyntaxError) and e.lineno else str(path)
        raise EncodingError(f"{where}: {getattr(e, 'msg', e)}; the code that a step reaches must be valid") from e
    summary = _analyse(tree)
    remember("syntax", key, _to_json(summary))
    return summary


def _to_json(summary: Summary) -> Any:
    units = {n: list(vars(u).values()) for n, u in summary.units.items()}
    return vars(summary) | {"units": units}


def _from_json(data: Any) -> Summary:
    def reads(found: list[Any]) -> tuple[Read, ...]:
        return tuple(Read(tuple(chain), Import(*local) if local else None) for chain, local in found)

    def imports(found: list[Any]) -> tuple[Import, ...]:
        return tuple(Import(*i) for i in found)

    return Summary(
        units={
            name: Unit(kind, digest, reads(found), imports(loads), reads(acts), reads(changes), touches, is_step)
            for name, (kind, digest, found, loads, acts, changes, touches, is_step) in data["units"].items()
        },
        imports={name: imports(found) for name, found in data["imports"].items()},
        stars=imports(data["stars"]),
        typing={name: imports(found) for name, found in data["typing"].items()},
        loads=imports(data["loads"]),
        effects=tuple(data["effects"]),
        suspects=tuple(data["suspects"]),
        registered={name: tuple(map(tuple, chains)) for name, chains in data["registered"].items()},
        registrars=tuple(data["registrars"]),
    )


class _Module:
    """What a walk over a module's statements has found so far."""

    def __init__(self, *, words: bool) -> None:
        self.words = words
        self.statements: dict[str, list[Any]] = {}
        self.imports: dict[str, list[Import]] = {}
        self.typing: dict[str, list[Import]] = {}
        self.loads: list[Import] = []
        self.effects: dict[str, None] = {}
        self.running: set[str] = set()
        self.registered: dict[str, tuple[Chain, ...]] = {}
        self.registrars: list[str] = []

    def summary(self) -> Summary:
        stars = self.imports.pop("*", [])
        of_executor = {n: i for n, found in (self.typing | self.imports).items() for i in found if _is_executor(i)}
        executors = frozenset(of_executor)
        runners = {n for n, i in of_executor.items() if i.attribute is None or i.attribute in _RUNNERS}
        units = {}
        for name, nodes in self.statements.items():
            reader = Reader(executors, words=self.words)
            units[name] = _unit(name, nodes, reader, tuple(self.imports.get(name, ())))
        for name, found in self.imports.items():
            if name not in units and name not in executors:
                units[name] = Unit("import", _sha(repr(list(dict.fromkeys(found)))), ())
        starts = {n for n in self.running if _names_in(self.statements[n]) & runners}
        acting = self.effects.keys() - starts
        acting.update(n for n in self.statements if n in self.imports)  # another module's object is changed here
        return Summary(
            units=units,
            imports={name: tuple(found) for name, found in self.imports.items()},
            stars=tuple(stars),
            typing={name: tuple(found) for name, found in self.typing.items()},
            loads=tuple(dict.fromkeys(self.loads)),
            effects=tuple(sorted(acting)),
            suspects=tuple(sorted(n for n in self.running - starts - acting if units[n].acts)),
            registered=self.registered,
            registrars=tuple(self.registrars),
        )

    def read(
        self, body: list[ast.stmt], around: tuple[Any, ...] = (), *, runs: bool = True, typing: bool = False
    ) -> None:
        """Enters statements, also those inside ``if`` and other blocks, each with what decides whether it takes effect.

        Args:
            body: the statements.
            around: what decides whether they run.
            runs: False for the part of a script that does not run when it is imported.
            typing: True for what only type checkers see.
        """
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, target in imported(node):
                    (self.typing if typing else self.imports).setdefault(name, []).append(target)
                if runs:
                    self.loads.extend(loaded(node))
                continue
            names, nodes = _bound_names(node), [node]
            if not names and isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                callee = node.value.func if isinstance(node.value, ast.Call) else node.value
                names = [f"{ast.unparse(callee)[:_LONGEST]}()"]
                if runs:
                    self.effects[names[0]] = None
            elif not names and (calls := _calls_in_head(node)):
                names, nodes = [f"{ast.unparse(calls[0].func)[:_LONGEST]}()"], [ast.Expr(c) for c in calls]
            for name in names:
                self.statements.setdefault(name, []).extend((*around, *nodes))
            if runs:
                self.running.update(names)
            if isinstance(node, _DEFINITIONS):
                if runs:
                    self._define(node)
                continue
            for block, condition in _blocks(node):
                inert = isinstance(node, ast.If) and block is node.body
                self.read(
                    block,
                    (*around, condition),
                    runs=runs and not (inert and (_is_main(node) or _is_typing(node))),
                    typing=typing or (inert and _is_typing(node)),
                )

    def _define(self, node: Any) -> None:
        by = [*node.decorator_list, *getattr(node, "bases", ())]
        if chains := tuple(dict.fromkeys(chain for d in by if (chain := dotted(d)))):
            self.registered[node.name] = (*self.registered.get(node.name, ()), *chains)
        if isinstance(node, ast.ClassDef):
            methods = {f.name for f in node.body if isinstance(f, FUNCTIONS)}
            if "__init_subclass__" in methods or any(k.arg == "metaclass" for k in node.keywords):
                self.registrars.append(node.name)


def _analyse(tree: ast.Module) -> Summary:
    module = _Module(words=imports_by_variable(tree))
    module.read(tree.body)
    return module.summary()


def _is_executor(imported: Import) -> bool:
    return imported.module.split(".")[0] == _EXECUTOR


def _is_main(node: Any) -> bool:
    """``if __name__ == "__main__":``"""
    test = node.test
    return isinstance(test, ast.Compare) and any(
        dotted(side) == ("__name__",) for side in (test.left, *test.comparators)
    )


def _is_typing(node: Any) -> bool:
    return dotted(node.test)[-1:] == ("TYPE_CHECKING",)


def _names_in(nodes: list[Any]) -> set[str]:
    trees = [n for n in nodes if isinstance(n, ast.AST)]
    return {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], list[Any]]]:
    """The blocks of a compound statement, each with what decides whether it runs."""
    head = [getattr(node, field, None) for field in ("test", "iter", "items", "subject")]
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block, [name, *head]
    for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield inner.body, [*(getattr(inner, field, None) for field in ("type", "pattern", "guard")), *head]


def _calls_in_head(node: ast.stmt) -> list[ast.Call]:
    """The calls of a statement that binds nothing; of a compound one, those that decide whether its blocks run."""
    if isinstance(node, ast.Assert):
        parts: list[Any] = [node.test]
    elif isinstance(node, ast.If | ast.While):
        parts = [node.test]
    elif isinstance(node, ast.With | ast.AsyncWith):
        parts = [i.context_expr for i in node.items]
    else:
        parts = [getattr(node, field) for field in ("iter", "subject") if hasattr(node, field)]
    return [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]


def _bound_names(node: ast.stmt) -> list[str]:
    """Names that a statement binds or changes in place (``def X``, ``X = …``, ``X["k"] = …``, ``X.update(…)``)."""
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.TypeAlias):
        return [node.name.id]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets = [i.optional_vars for i in node.items if i.optional_vars]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func.value]
    elif isinstance(node, ast.Delete):
        targets = list(node.targets)
    names = _walrus(node)
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            targets.extend(target.elts)
        elif isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
            targets.append(target.value)
    return names


def _walrus(node: ast.stmt) -> list[str]:
    """Names that expressions of a statement bind with ``:=``; of a compound one, those that decide whether it runs."""
    parts: list[Any] = [node]
    if isinstance(node, _COMPOUND):
        parts = [p for _, condition in _blocks(node) for p in condition if isinstance(p, ast.AST)]
    found = (n for part in parts for n in ast.walk(part) if isinstance(n, ast.NamedExpr))
    return list(dict.fromkeys(n.target.id for n in found))


def _unit(name: str, nodes: list[Any], reader: Reader, imports: tuple[Import, ...]) -> Unit:
    for node in nodes:
        reader.read(node)
    first = next(node for node in nodes if isinstance(node, ast.stmt))
    kind: Kind = (
        "helper" if isinstance(first, FUNCTIONS) else "class" if isinstance(first, ast.ClassDef) else "constant"
    )
    if name.endswith("()") or (imports and kind == "constant"):
        kind = "statement"
    text = "".join(reader.text) + (repr(imports) if imports else "")
    return Unit(
        kind=kind,
        digest=_sha(text),
        reads=tuple(reader.finish()),
        loads=tuple(dict.fromkeys(reader.loads)),
        acts=tuple(reader.acts),
        changes=tuple(reader.changes),
        touches=reader.touches,
        is_step=reader.is_step,
    )


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
