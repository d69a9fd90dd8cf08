"""Specification files: YAML in, a `Fleet` out, or an error that says file, line and field.

A typing mistake in such a file costs money, so the reader is strict: an unknown field is an error with the nearest
known one, a field stands once, a number or ``yes`` is not text. It works on YAML's nodes, which know their lines,
rather than on loaded values, which do not. It is imported by `Fleet.read` alone, so that yaml costs nobody else.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from marin_rigging.errors import SpecError
from marin_rigging.fleet import Fleet, Job, Pool


def read(path: Path) -> Fleet:
    """The fleet that a file describes. See: `Fleet.read`."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not UTF-8 text; the byte at {error.start} is wrong") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{path}:{line}: is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: is not YAML: {error}") from error
    if root is None:
        raise SpecError(f"{path}: is empty; a fleet has at least a name and pools")
    return _Reader(path).fleet(root)


class _Reader:
    """One method a kind of value; ``where`` is the path of fields to it, such as ``jobs[0].command``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fleet(self, node: yaml.Node) -> Fleet:
        return self.build(Fleet, node, "fleet", {"name": self.text, "pools": self.pools, "jobs": self.jobs})

    def pools(self, node: yaml.Node, where: str) -> tuple[Pool, ...]:
        fields = {"name": self.text, "provider": self.text, "type": self.text, "ranks": self.whole}
        return tuple(self.build(Pool, item, at, fields) for item, at in self.items(node, where))

    def jobs(self, node: yaml.Node, where: str) -> tuple[Job, ...]:
        fields = {"name": self.text, "pool": self.text, "command": self.texts, "env": self.variables, "cwd": self.text}
        return tuple(self.build(Job, item, at, fields) for item, at in self.items(node, where))

    def build[T](self, cls: type[T], node: yaml.Node, where: str, fields: Mapping[str, Callable[..., Any]]) -> T:
        """A dataclass from a mapping; what the dataclass itself refuses is placed at the line of its field."""
        nodes = dict(self.entries(node, where))
        for name, value in nodes.items():
            if name not in fields:
                close = difflib.get_close_matches(name, fields, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"its fields are {', '.join(fields)}"
                raise self.refusal(value, f"{where} has no field {name!r}; {hint}")
        values = {name: fields[name](value, f"{where}.{name}") for name, value in nodes.items()}
        for f in dataclasses.fields(cls):  # type: ignore[arg-type]
            if f.name not in values and f.default is f.default_factory is dataclasses.MISSING:
                raise self.refusal(node, f"{where} lacks {f.name!r}")
        try:
            return cls(**values)
        except SpecError as error:
            raise self.refusal(nodes.get(error.field, node), f"{where}: {error}") from error

    def entries(self, node: yaml.Node, where: str) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.refusal(node, f"{where} must be fields with values, not {_describe(node)}")
        seen: set[str] = set()
        for key, value in node.value:
            name = self.text(key, f"a field of {where}")
            if name in seen:
                raise self.refusal(key, f"{where}.{name} stands twice")
            seen.add(name)
            yield name, value

    def items(self, node: yaml.Node, where: str) -> Iterator[tuple[yaml.Node, str]]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.refusal(node, f"{where} must be a list, not {_describe(node)}")
        yield from ((item, f"{where}[{i}]") for i, item in enumerate(node.value))

    def text(self, node: yaml.Node, where: str) -> str:
        if node.tag != "tag:yaml.org,2002:str":
            raise self.refusal(node, f"{where} must be text, not {_describe(node)}; quote it")
        return node.value

    def texts(self, node: yaml.Node, where: str) -> tuple[str, ...]:
        return tuple(self.text(item, at) for item, at in self.items(node, where))

    def variables(self, node: yaml.Node, where: str) -> dict[str, str]:
        return {name: self.text(value, f"{where}.{name}") for name, value in self.entries(node, where)}

    def whole(self, node: yaml.Node, where: str) -> int:
        if node.tag != "tag:yaml.org,2002:int" or not re.fullmatch(r"[-+]?\d+", node.value):
            raise self.refusal(node, f"{where} must be a whole number, not {_describe(node)}")
        return int(node.value)

    def refusal(self, node: yaml.Node, message: str) -> SpecError:
        return SpecError(f"{self.path}:{node.start_mark.line + 1}: {message}")


def _describe(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "fields with values"
    return "nothing" if node.tag == "tag:yaml.org,2002:null" else repr(node.value)
