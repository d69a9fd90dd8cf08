"""Imports: what an import statement, a dotted expression or a text names, as written; `sources` finds the files."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

Chain = tuple[str, ...]


MODULE_STRING = re.compile(r"(\.*)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\.?)(?::([A-Za-z_]\w*))?")
FILE_STRING = re.compile(r"[\w./-]*\w\.py")
IMPORTERS = ("import_module", "__import__", "run_module", "find_spec")

BY_FILE = -1
"""Level of an import that names a file, relative to the one it stands in; that file itself if it names none."""


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


def imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, Import]]:
    """The names that an import statement binds, and to what."""
    if isinstance(node, ast.ImportFrom):
        return [(a.asname or a.name, Import(node.level, node.module or "", a.name)) for a in node.names]
    tops = [(a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0]) for a in node.names]
    return [(name, Import(0, module, None)) for name, module in tops]


def loaded(node: ast.Import | ast.ImportFrom) -> list[Import]:
    """What an import statement makes Python load, whatever it binds."""
    if isinstance(node, ast.ImportFrom):
        return [target for _, target in imported(node)]
    return [Import(0, a.name, None) for a in node.names]


def imports_by_variable(tree: ast.AST) -> bool:
    """Whether there is an ``import_module(NAME)``, whose argument is not spelt out."""
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func)[-1:])
    return any(
        dotted(call.func)[-1] in IMPORTERS
        and any(
            not isinstance(a, ast.Constant | ast.JoinedStr) for a in (*call.args[:1], *(k.value for k in call.keywords))
        )
        for call in calls
    )


def dotted(node: ast.AST | None) -> Chain:
    """The dotted name that an expression starts with: ``a.b`` of ``a.b``, ``a.b(…)`` and ``a.b[…].c``."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        base = node.value
        while isinstance(base, ast.Attribute):
            base = base.value
        return (*dotted(node.value), node.attr) if isinstance(base, ast.Name) else dotted(base)
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return dotted(node.value) if isinstance(node, ast.Subscript) else ()


def named_in(text: str) -> Iterator[Read]:
    """The modules that a string may name."""
    if FILE_STRING.fullmatch(text):
        yield Read((), Import(BY_FILE, text, None))
    elif (match := MODULE_STRING.fullmatch(text)) is not None:
        dots, module, attribute = match.groups()
        if dots or attribute or "." in module:
            yield Read((), Import(len(dots), module, attribute))
