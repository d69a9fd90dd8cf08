"""Syntax: what one source file says, as a pure function of its text, and therefore remembered by its text's hash.

A `Summary` maps every module-level name to what binds it: imports, and at most one unit (all statements that define or
change the name, with the conditions around them, together). A unit has the digest of its syntax tree, without
docstrings, comments and positions, and the reads: dotted names that its code takes from outside itself, scopes
respected, so that a local variable called like a module constant is no read of that constant. Resolving reads to files
is not done here; it depends on where things are installed.

Summaries are remembered between processes (`remembered`): reading a hundred files takes milliseconds then.
"""

import ast
import functools
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from marin_core.errors import EncodingError
from marin_core.remembered import recall, remember

Kind = Literal["helper", "class", "constant"]
Chain = tuple[str, ...]

_SCHEMA = 2
_EXECUTOR = "marin_core"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNDIGESTED = {"ctx", "kind", "type_comment"}
_MODULE_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\.?|[A-Za-z_]\w*\.")


class Import(NamedTuple):
    """One name of an import statement, as written: ``from {level dots}{module} import {attribute}``."""

    level: int
    module: str
    attribute: str | None
    """None for ``import module``."""


class Read(NamedTuple):
    """A dotted read, from the module's scope or (``local``) from an import inside the body.

    A string that spells a module reads that module: ``chain`` is empty, and ``local`` the import it amounts to; a name
    that ends in a dot stands for every module of that package.
    """

    chain: Chain
    local: Import | None


@dataclass(frozen=True)
class Unit:
    """All statements of a module that define one name."""

    kind: Kind
    digest: str
    reads: tuple[Read, ...]


@dataclass(frozen=True)
class Summary:
    """What a source file binds at module level."""

    units: dict[str, Unit]
    imports: dict[str, tuple[Import, ...]]
    stars: tuple[Import, ...]
    """Modules of ``from x import *``."""


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
    units = {name: [unit.kind, unit.digest, unit.reads] for name, unit in summary.units.items()}
    return {"units": units, "imports": summary.imports, "stars": summary.stars}


def _from_json(data: Any) -> Summary:
    def read(chain: list[str], local: list[Any] | None) -> Read:
        return Read(tuple(chain), Import(*local) if local else None)

    return Summary(
        units={
            n: Unit(kind, digest, tuple(read(*r) for r in reads)) for n, (kind, digest, reads) in data["units"].items()
        },
        imports={n: tuple(Import(*i) for i in found) for n, found in data["imports"].items()},
        stars=tuple(Import(*i) for i in data["stars"]),
    )


def _analyse(tree: ast.Module) -> Summary:
    statements: dict[str, list[Any]] = {}
    imports: dict[str, list[Import]] = {}
    _bind(tree.body, statements, imports)
    stars = imports.pop("*", [])
    executors = {name for name, found in imports.items() if any(i.module.split(".")[0] == _EXECUTOR for i in found)}
    return Summary(
        units={name: _unit(found, executors) for name, found in statements.items()},
        imports={name: tuple(found) for name, found in imports.items()},
        stars=tuple(stars),
    )


def _bind(
    body: list[ast.stmt],
    statements: dict[str, list[Any]],
    imports: dict[str, list[Import]],
    around: tuple[Any, ...] = (),
) -> None:
    """Enters module-level bindings, also those inside ``if`` (``TYPE_CHECKING`` too) and other blocks, each with what
    decides whether it takes effect."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, target in _imported(node):
                imports.setdefault(name, []).append(target)
            continue
        for name in _bound_names(node):
            statements.setdefault(name, []).extend((*around, node))
        if not isinstance(node, _DEFINITIONS):
            for block, condition in _blocks(node):
                _bind(block, statements, imports, (*around, condition))


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], list[Any]]]:
    """The blocks of a compound statement, each with what decides whether it runs."""
    head = [getattr(node, field, None) for field in ("test", "iter", "items", "subject")]
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block, [name, *head]
    for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield inner.body, [*(getattr(inner, field, None) for field in ("type", "pattern", "guard")), *head]


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, Import]]:
    if isinstance(node, ast.ImportFrom):
        return [(a.asname or a.name, Import(node.level, node.module or "", a.name)) for a in node.names]
    tops = [(a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0]) for a in node.names]
    return [(name, Import(0, module, None)) for name, module in tops]


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
    names = []
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            targets.extend(target.elts)
        elif isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
            targets.append(target.value)
    return names


def _unit(nodes: list[Any], executors: set[str]) -> Unit:
    reader = _Reader(executors)
    for node in nodes:
        reader.read(node)
    first = next(node for node in nodes if isinstance(node, ast.stmt))
    kind: Kind = (
        "helper" if isinstance(first, _FUNCTIONS) else "class" if isinstance(first, ast.ClassDef) else "constant"
    )
    digest = hashlib.sha256("".join(reader.text).encode()).hexdigest()
    return Unit(kind, digest, tuple(reader.finish()))


class _Scope:
    """Reads and bindings of one function body, comprehension or module-level statement."""

    def __init__(self) -> None:
        self.bound: dict[str, Import | None] = {}
        self.outer: set[str] = set()
        self.reads: dict[Chain, None] = {}


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(f for f in kind._fields if f not in _UNDIGESTED)


class _Reader:
    """One walk over a tree that writes its canonical text and finds what it reads from outside.

    Empty fields are left out of the text, so that fields a later Python adds do not change it.
    """

    def __init__(self, executors: set[str]) -> None:
        self.executors = executors
        self.text: list[str] = []
        self.found: dict[Read, None] = {}
        self.scopes = [_Scope()]

    def finish(self) -> list[Read]:
        """All reads; at module level nothing is local."""
        self.found.update(dict.fromkeys(Read(chain, None) for chain in self.scopes[0].reads))
        return list(self.found)

    def read(self, node: Any) -> None:
        """A node, a list of nodes or a leaf."""
        if isinstance(node, list):
            self.text.append("[")
            for item in node:
                self.read(item)
            self.text.append("]")
        elif not isinstance(node, ast.AST):
            self.text.append(f"{node!r},")
        else:
            self.text.append(f"{type(node).__name__}(")
            special = _SPECIAL.get(type(node))
            if special is None:
                self._children(node, _fields(type(node)))
            else:
                special(self, node)
            self.text.append(")")

    def _children(self, node: ast.AST, fields: tuple[str, ...]) -> None:
        values = node.__dict__
        for field in fields:
            value = values.get(field)
            if value is not None and value != []:
                self.text.append(f"{field}=")
                self.read(value)

    def _name(self, node: ast.Name) -> None:
        self.text.append(node.id)
        if isinstance(node.ctx, ast.Load):
            self.scopes[-1].reads[node.id,] = None
        else:
            self.scopes[-1].bound.setdefault(node.id, None)

    def _attribute(self, node: ast.Attribute) -> None:
        names, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            names.append(base.attr)
            base = base.value
        self.text.append(".".join(reversed(names)))
        if isinstance(base, ast.Name):
            self.text.append(f"<{base.id}")
            self.scopes[-1].reads[base.id, *reversed(names)] = None
        else:
            self.read(base)

    def _constant(self, node: ast.Constant) -> None:
        self.text.append(repr(node.value))
        if isinstance(node.value, str) and _MODULE_STRING.fullmatch(node.value):
            self.found[Read((), Import(0, node.value, None))] = None

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._children(node, _fields(type(node)))
        self.scopes[-1].bound.update(_imported(node))

    def _outer(self, node: ast.Global | ast.Nonlocal) -> None:
        self._children(node, _fields(type(node)))
        self.scopes[-1].outer.update(node.names)

    def _named(self, node: Any) -> None:
        """Patterns and handlers that bind a name given as text."""
        if node.name:
            self.scopes[-1].bound.setdefault(node.name, None)
        self._children(node, _fields(type(node)))

    def _function(self, node: Any) -> None:
        """Decorators, defaults and annotations belong to the scope around, parameters and body to a new one."""
        if not isinstance(node, ast.Lambda):
            self.text.append(node.name)
            self.scopes[-1].bound.setdefault(node.name, None)
            self._decorators(node)
            self._children(node, ("returns", "type_params"))
        self.read(node.args)
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.scopes.append(_Scope())
        self.scopes[-1].bound.update({a.arg: None for a in named if a is not None})
        self.read(node.body if isinstance(node, ast.Lambda) else _without_docstring(node.body))
        self._leave()

    def _class(self, node: ast.ClassDef) -> None:
        """Names that a class body binds are not seen by its methods, so they hide nothing from the scope around."""
        self.text.append(node.name)
        self.scopes[-1].bound.setdefault(node.name, None)
        self._decorators(node)
        self._children(node, ("bases", "keywords", "type_params"))
        self.scopes.append(_Scope())
        self.read(_without_docstring(node.body))
        self.scopes[-1].bound = {n: i for n, i in self.scopes[-1].bound.items() if i is not None}
        self._leave()

    def _comprehension(self, node: ast.AST) -> None:
        self.scopes.append(_Scope())
        self._children(node, _fields(type(node)))
        self._leave()

    def _decorators(self, node: Any) -> None:
        """A decorator of marin_core sets resources and retries, which cannot change a result: it does not count."""
        kept = [d for d in node.decorator_list if _root(d) not in self.executors]
        if kept:
            self.read(kept)

    def _leave(self) -> None:
        """Ends a scope: what it does not bind is read from the scope around; what an import binds is found."""
        scope = self.scopes.pop()
        for chain in scope.reads:
            if chain[0] in scope.bound and chain[0] not in scope.outer:
                local = scope.bound[chain[0]]
                if local is not None:
                    self.found[Read(chain[1:], local)] = None
            else:
                self.scopes[-1].reads[chain] = None


_SPECIAL: dict[type[ast.AST], Any] = {
    ast.Name: _Reader._name,
    ast.Attribute: _Reader._attribute,
    ast.Constant: _Reader._constant,
    ast.Import: _Reader._import,
    ast.ImportFrom: _Reader._import,
    ast.Global: _Reader._outer,
    ast.Nonlocal: _Reader._outer,
    ast.ExceptHandler: _Reader._named,
    ast.MatchAs: _Reader._named,
    ast.MatchStar: _Reader._named,
    ast.FunctionDef: _Reader._function,
    ast.AsyncFunctionDef: _Reader._function,
    ast.Lambda: _Reader._function,
    ast.ClassDef: _Reader._class,
    **dict.fromkeys(_COMPREHENSIONS, _Reader._comprehension),
}


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body


def _root(decorator: ast.expr) -> str:
    """The name that a decorator starts from: ``step`` in ``@step(…)``, ``marin_core`` in ``@marin_core.step``."""
    while not isinstance(decorator, ast.Name):
        inner = decorator.func if isinstance(decorator, ast.Call) else getattr(decorator, "value", None)
        if not isinstance(inner, ast.expr):
            return ""
        decorator = inner
    return decorator.id
