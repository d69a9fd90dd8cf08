"""Scopes: one walk over a piece of syntax that writes its canonical text and finds what it takes from outside itself.

Text: node types, fields and leaves in order, without positions, comments, docstrings and statements that do nothing
(``pass``, a bare string). Annotations are part of it: they decide what a parameter receives and what fields a
dataclass has. Those of a function's local variables are not, as Python never evaluates them, nor what a step is said
to return, which `results.form` tells those that receive it. Imports that follow each other have no order.

Reads: dotted names that are bound neither in the piece nor in Python, scopes respected, so that a local variable
called like a module constant is no read of that constant. Beside names there are what a program imports by text:
strings that spell a module (``"pkg.models.x"``, ``f"pkg.models.{name}"``, ``".x"``, ``"pkg.x:f"``), the argument of
``import_module``, the word after ``-m``, and a script's file (``"tools/split.py"``, ``HERE / "tools" / "split.py"``).
In a module with ``import_module(NAME)``, every one-word string may name a module. ``globals()``, ``eval``, ``exec`` and
``sys.modules[__name__]`` read the whole module they stand in.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin_core.code.imports import (
    BY_FILE,
    FILE_STRING,
    IMPORTERS,
    MODULE_STRING,
    Chain,
    Import,
    Read,
    dotted,
    imported,
    loaded,
    named_in,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNDIGESTED = {"ctx", "kind", "type_comment"}
_WHOLE_MODULE = ("globals", "eval", "exec")

_IMMUTABLE = (str, bytes, int, float, tuple, frozenset, range, Path, re.Pattern, re.Match)
_LOGGING = ("debug", "info", "warning", "error", "exception", "critical", "log", "getChild", "isEnabledFor")
HARMLESS = frozenset(m for kind in _IMMUTABLE for m in dir(kind) if m[0] != "_") | {
    *("keys", "values", "items", "get", "copy"),
    *_LOGGING,
}
"""Methods that are taken to change nothing, whatever they are called on."""

CHANGED = "="
"""Ends the chain of a thing that is assigned to: ``("CONFIG", "=")`` for ``CONFIG["x"] = 1``."""

_OWN_MODULE = Read((), Import(BY_FILE, "", None))


class _Scope:
    """Reads and bindings of one function body, comprehension or module-level statement."""

    def __init__(self, *, is_function: bool = False) -> None:
        self.is_function = is_function
        self.bound: set[str] = set()
        self.imports: dict[str, dict[Import, None]] = {}
        """All that a name is imported from: which of two imports runs, only a run can tell."""
        self.outer: set[str] = set()
        self.parameters: set[str] = set()
        self.reads: dict[Chain, None] = {}
        self.acts: dict[tuple[Chain, bool], None] = {}
        """What is called or changed, and whether that waits for a call."""


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(f for f in kind._fields if f not in _UNDIGESTED)


class Reader:
    """One walk over a tree that writes its canonical text and finds what it reads from outside.

    Empty fields are left out of the text, so that fields a later Python adds do not change it.
    """

    def __init__(self, executors: frozenset[str], *, words: bool = False) -> None:
        self.executors = executors
        self.words = words
        """Whether any one word may name a module: ``import_module(NAME)``."""
        self.text: list[str] = []
        self.found: dict[Read, None] = {}
        self.loads: list[Import] = []
        self.acts: dict[Read, None] = {}
        """What is called or changed when the module is loaded."""
        self.changes: dict[Read, None] = {}
        """What is called or changed when the unit is called."""
        self.touches = False
        """Whether a call changes what it is given, or a global."""
        self.is_step = False
        self.scopes = [_Scope()]

    def finish(self) -> list[Read]:
        """All reads; at module level nothing is local."""
        self.found.update(dict.fromkeys(Read(chain, None) for chain in self.scopes[0].reads))
        for chain, later in self.scopes[0].acts:
            (self.changes if later else self.acts)[Read(chain, None)] = None
        if any(chain[0] in _WHOLE_MODULE for chain in self.scopes[0].reads):
            self.found[_OWN_MODULE] = None
        return list(self.found)

    def read(self, node: Any) -> None:
        """A node, a list of nodes or a leaf."""
        if isinstance(node, list):
            self.text.append("[")
            self._after_dash_m(node)
            for item in _ordered(node):
                if isinstance(item, ast.AnnAssign) and self.scopes[-1].is_function:
                    self._annotated(item)
                elif not _does_nothing(item):
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
            self.scopes[-1].bound.add(node.id)

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._act(dotted(node.value), CHANGED)
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
        value = node.value
        self.text.append(hex(value) if type(value) is int else repr(value))
        if isinstance(value, str):
            self.found.update(dict.fromkeys(named_in(value)))
            if self.words and value.isidentifier():
                self.found[Read((), Import(0, value, None))] = None

    def _act(self, chain: Chain, *more: str) -> None:
        if chain:
            later = any(scope.is_function for scope in self.scopes)
            self.scopes[-1].acts[(*chain, *more), later] = None

    def _after_dash_m(self, nodes: list[Any]) -> None:
        """``[sys.executable, "-m", "prep"]``"""
        for before, after in itertools.pairwise(nodes):
            if isinstance(before, ast.Constant) and before.value == "-m" and isinstance(after, ast.Constant):
                module = after.value
                if isinstance(module, str) and MODULE_STRING.fullmatch(module):
                    self.found[Read((), Import(0, module, None))] = None
                    self.found[Read((), Import(0, module, "__main__"))] = None

    def _division(self, node: ast.BinOp) -> None:
        """``HERE / "tools" / "split.py"``"""
        self._children(node, _fields(type(node)))
        parts: list[ast.expr] = []
        base: ast.expr = node
        while isinstance(base, ast.BinOp) and isinstance(base.op, ast.Div):
            parts.insert(0, base.right)
            base = base.left
        self._joined(parts)

    def _joined(self, parts: list[ast.expr]) -> None:
        """Parts of a path: those at its end that are given as text may name a script."""
        words: list[str] = []
        for part in reversed(parts):
            if not isinstance(part, ast.Constant) or not isinstance(part.value, str):
                break
            words.insert(0, part.value)
        if len(words) > 1 and FILE_STRING.fullmatch("/".join(words)):
            self.found[Read((), Import(BY_FILE, "/".join(words), None))] = None

    def _call(self, node: ast.Call) -> None:
        """``import_module("helpers")``: there, one word is a module too."""
        self._children(node, _fields(type(node)))
        self._joined(node.args)
        callee = dotted(node.func)
        if callee in (("setattr",), ("delattr",)):
            self._act(dotted(node.args[0] if node.args else None), CHANGED)
        else:
            self._act(callee)
        first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "name"), None)
        name = first.value if isinstance(first, ast.Constant) else None
        if (
            isinstance(name, str)
            and name.isidentifier()
            and dotted(node.func)[-1:]
            and dotted(node.func)[-1] in IMPORTERS
        ):
            self.found[Read((), Import(0, name, None))] = None

    def _subscript(self, node: ast.Subscript) -> None:
        self._children(node, _fields(type(node)))
        if not isinstance(node.ctx, ast.Load):
            self._act(dotted(node.value), CHANGED)
        if dotted(node.value) == ("sys", "modules"):
            self.found[_OWN_MODULE] = None

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._children(node, _fields(type(node)))
        for name, target in imported(node):
            self.scopes[-1].bound.add(name)
            self.scopes[-1].imports.setdefault(name, {})[target] = None
        self.loads.extend(loaded(node))

    def _annotated(self, node: ast.AnnAssign) -> None:
        """Of an annotated local variable, the assignment."""
        if node.value is not None:
            self.read(ast.Assign(targets=[node.target], value=node.value))
        elif isinstance(node.target, ast.Name):
            self.scopes[-1].bound.add(node.target.id)

    def _outer(self, node: ast.Global | ast.Nonlocal) -> None:
        self._children(node, _fields(type(node)))
        self.scopes[-1].outer.update(node.names)
        self.touches |= isinstance(node, ast.Global)

    def _named(self, node: Any) -> None:
        """Patterns and handlers that bind a name given as text."""
        if node.name:
            self.scopes[-1].bound.add(node.name)
        self._children(node, _fields(type(node)))

    def _function(self, node: Any) -> None:
        """Decorators, defaults and annotations belong to the scope around, parameters and body to a new one."""
        if not isinstance(node, ast.Lambda):
            self.text.append(node.name)
            self.scopes[-1].bound.add(node.name)
            is_step = self._decorators(node)
            self.is_step |= is_step and len(self.scopes) == 1
            self._children(node, ("type_params",) if is_step else ("returns", "type_params"))
        self.read(node.args)
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.scopes.append(_Scope(is_function=True))
        self.scopes[-1].parameters.update(a.arg for a in named if a is not None)
        self.scopes[-1].bound |= self.scopes[-1].parameters
        self.read(node.body)
        self._leave()

    def _class(self, node: ast.ClassDef) -> None:
        """Names that a class body binds are not seen by its methods, so they hide nothing from the scope around; what
        it imports becomes an attribute, which may be read in any way."""
        self.text.append(node.name)
        self.scopes[-1].bound.add(node.name)
        self._decorators(node)
        self._children(node, ("bases", "keywords", "type_params"))
        self.scopes.append(_Scope())
        self.read(node.body)
        self.scopes[-1].outer.update(self.scopes[-1].bound)
        self._leave()

    def _comprehension(self, node: ast.AST) -> None:
        self.scopes.append(_Scope())
        self._children(node, _fields(type(node)))
        self._leave()

    def _decorators(self, node: Any) -> bool:
        """A decorator of marin_core sets resources and retries, which cannot change a result: it does not count.

        Returns:
            Whether there is one.
        """
        kept = [d for d in node.decorator_list if dotted(d)[:1] == () or dotted(d)[0] not in self.executors]
        if kept:
            self.read(kept)
        return kept != node.decorator_list

    def _leave(self) -> None:
        """Ends a scope: what it does not bind is read from the scope around; what an import binds is found."""
        scope = self.scopes.pop()
        for name in scope.outer & scope.imports.keys():  # whoever reads it, there or elsewhere
            self.found.update(dict.fromkeys(Read((), target) for target in scope.imports[name]))
        for chain in scope.reads:
            if chain[0] in scope.bound and chain[0] not in scope.outer:
                self.found.update(dict.fromkeys(Read(chain[1:], i) for i in scope.imports.get(chain[0], ())))
            else:
                self.scopes[-1].reads[chain] = None
        for chain, later in scope.acts:
            name, *rest = chain
            if name not in scope.bound or name in scope.outer:
                self.scopes[-1].acts[chain, later] = None
            elif name in scope.imports:
                acts = self.changes if later else self.acts
                acts.update(dict.fromkeys(Read(tuple(rest), i) for i in scope.imports[name]))
            elif name in scope.parameters and name != "self" and (name != "cls" or CHANGED in rest):
                self.touches |= not rest or rest[-1] not in HARMLESS


_SPECIAL: dict[type[ast.AST], Any] = {
    ast.Name: Reader._name,
    ast.Attribute: Reader._attribute,
    ast.Constant: Reader._constant,
    ast.BinOp: Reader._division,
    ast.Call: Reader._call,
    ast.Subscript: Reader._subscript,
    ast.Import: Reader._import,
    ast.ImportFrom: Reader._import,
    ast.Global: Reader._outer,
    ast.Nonlocal: Reader._outer,
    ast.ExceptHandler: Reader._named,
    ast.MatchAs: Reader._named,
    ast.MatchStar: Reader._named,
    ast.FunctionDef: Reader._function,
    ast.AsyncFunctionDef: Reader._function,
    ast.Lambda: Reader._function,
    ast.ClassDef: Reader._class,
    **dict.fromkeys(_COMPREHENSIONS, Reader._comprehension),
}


def _ordered(nodes: list[Any]) -> Iterator[Any]:
    """Nodes with every run of import statements, and the names of each, sorted; not where the last of two counts."""
    for is_import, group in itertools.groupby(nodes, lambda n: isinstance(n, ast.Import | ast.ImportFrom)):
        run = list(group)
        bound = [name for node in run for name, _ in imported(node)] if is_import else []
        if len(set(bound)) == len(bound) > 0:
            for node in run:
                node.names.sort(key=ast.dump)
            run.sort(key=ast.dump)
        yield from run


def _does_nothing(node: Any) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
