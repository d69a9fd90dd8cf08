"""What tells steps of one name apart.

The members of a sweep share their name; a reader knows them by what was varied. So a step that shares its name gets
the literal arguments in which it differs from its namesakes (``lr=0.003``); if it differs in none, it takes over what
distinguishes its upstream (the evaluation of the run with ``lr=0.003``); failing that, the start of its digest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marin_core.quantities import format_number, is_number
from marin_core.records import StepRecord

_MAX_NAMED = 3
_MAX_DEPTH = 5
_MAX_CHARACTERS = 24


class Member(Protocol):
    """What is known of a step that may share its name; a `NodeRecord`, for one."""

    @property
    def address(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def upstream(self) -> Sequence[str]: ...
    @property
    def arguments(self) -> Mapping[str, Any]:
        """Literals as JSON, an upstream step as ``{"step": address}``."""
        ...


@dataclass(frozen=True)
class Remembered:
    """A member that a committed step's record tells of."""

    address: str
    name: str
    upstream: tuple[str, ...]
    arguments: dict[str, Any]

    @classmethod
    def of(cls, record: StepRecord) -> "Remembered":
        arguments = {name: _decoded(*value) for name, value in record.recipe.get("arguments", {}).items()}
        return cls(record.address, record.name, record.upstream, arguments)


def labels(members: Iterable[Member]) -> dict[str, str]:
    """Address -> name, with what tells it apart where the name alone does not: ``train lr=0.3, seed=3``.

    Args:
        members: the steps, upstream before dependants.
    """
    members = list(members)
    position = {member.address: i for i, member in enumerate(members)}
    edges = [(position[u], i) for i, m in enumerate(members) for u in m.upstream if position.get(u, i) < i]
    apart = distinctions(members, edges)
    return {m.address: f"{m.name} {said}".rstrip() for m, said in zip(members, apart, strict=True)}


def titled(address: str, label: str) -> str:
    """A step's address, with its label where that says more than its name: ``train/0123456789ab lr=0.3``."""
    name, _, last = address.rpartition("/")
    return address if label in ("", name, f"{name} {last}") else f"{address} {label.removeprefix(f'{name} ')}"


def distinctions(nodes: Sequence[Member], edges: Sequence[tuple[int, int]]) -> list[str]:
    """For each step what sets it apart from others of its name; empty where the name is unique.

    Args:
        nodes: the steps, upstream before dependants.
        edges: (upstream, dependant) by position in `nodes`.
    """
    namesakes: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        namesakes[node.name].append(i)
    upstream: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        upstream[b].append(a)
    own: dict[int, str] = {}
    for group in namesakes.values():
        if len(group) > 1:
            own.update(zip(group, _differing([_scalars(nodes[i].arguments) for i in group]), strict=True))
    said = [""] * len(nodes)
    for i, node in enumerate(nodes):
        if i in own:
            inherited = next((said[u] for u in upstream[i] if said[u]), "")
            said[i] = own[i] or inherited or node.address.rpartition("/")[2][:_MAX_CHARACTERS]
    return said


def _differing(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each member's values of the arguments that are not the same in all."""
    names = sorted({name for literals in group for name in literals})  # on disk too they are in this order
    differing = [name for name in names if len({repr(literals.get(name)) for literals in group}) > 1][:_MAX_NAMED]
    short = [name.rpartition(".")[2] for name in differing]
    shown = short if len(set(short)) == len(short) else differing
    return [
        ", ".join(
            f"{label}={_word(literals[name])}" for label, name in zip(shown, differing, strict=True) if name in literals
        )
        for literals in group
    ]


def literals_in(value: Any, *, path: str = "", depth: int = 0) -> dict[str, Any]:
    """What is no step inside arguments, by dotted path; lists in one piece."""
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        if path and set(value) == {"step"}:
            return {}
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found |= literals_in(inner, path=f"{path}.{key}" if path else str(key), depth=depth + 1)
        return found
    return {path: value}


def _scalars(arguments: Any) -> dict[str, Any]:
    found = literals_in(arguments).items()
    return {path: value for path, value in found if value is None or isinstance(value, str | int | float)}


def _word(value: Any) -> str:
    text = format_number(value) if is_number(value) else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _decoded(tag: str, *rest: Any) -> Any:
    """A value of a recipe as JSON for people, as far as it is scalars in dataclasses and dicts."""
    if tag == "dataclass":
        return {name: _decoded(*value) for name, value in rest[1].items()}
    if tag in ("dict", "OrderedDict", "defaultdict"):
        return {str(_decoded(*key)): _decoded(*value) for key, value in rest[0]}
    if tag == "float":
        return float.fromhex(rest[0]) if "0x" in rest[0] else float(rest[0])
    if tag == "int":
        return int(rest[0])
    return (
        rest[0]
        if tag in ("str", "bool", "none", "path", "posix path")
        else {"step": rest[0]}
        if tag == "step"
        else list(rest)
    )
