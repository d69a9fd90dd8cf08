"""Lowering: handles become a graph of nodes in topological order, each with its recipe, code and address.

Iterative and linear: a chain of 10,000 steps lowers without recursion, and a step shared by many is encoded once. Two
handles with one name and one recipe are one node. One address with two recipes is an error that names both.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_core import code, encoding, identity, results
from marin_core.code import sources
from marin_core.errors import AddressCollisionError, UsageError
from marin_core.provenance import environments
from marin_core.steps import Step, StepFunction, find_steps, return_hint

if TYPE_CHECKING:
    from marin_core.reasons import Options, Planned


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One step of a graph, with all that can be known about it before anything runs."""

    step: Step
    address: str
    recipe: dict[str, Any]
    recipe_digest: str
    code: code.Code
    environment: str
    """Digest of what the body would run in; empty for adopted data, which has no body."""
    upstream: Mapping[str, str]
    """Address of each upstream step -> the parameter it is first passed to, in the order of the signature."""

    @property
    def name(self) -> str:
        return self.step.name

    def work_key(self, inputs: str) -> str:
        """Where attempts keep their work, relative to the prefix. A body resumes only on the same inputs: attempts
        share it if their recipe, their code and their inputs digest are the same."""
        return f"{self.address}/work/{encoding.digest([self.recipe_digest, self.code.digest, inputs])[:12]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Nodes by address, in topological order: an upstream step comes before its dependants."""

    nodes: Mapping[str, Node]
    targets: tuple[str, ...]
    """Addresses of the steps that were asked for."""
    handles: Mapping[Step, str]

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses in topological order."""
        return tuple(self.nodes)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs (upstream address, dependant's address)."""
        return tuple((up, node.address) for node in self.nodes.values() for up in node.upstream)

    def dependants(self) -> dict[str, list[str]]:
        """Address -> addresses of the steps that take it as an argument."""
        found: dict[str, list[str]] = {address: [] for address in self.nodes}
        for up, down in self.edges:
            found[up].append(down)
        return found

    def priorities(self) -> dict[str, tuple[int, int]]:
        """Sort key of each node, least starts first: by the longest path to a target, then in the script's order."""
        heights: dict[str, int] = {}
        dependants = self.dependants()
        for address in reversed(self.addresses):
            heights[address] = 1 + max((heights[d] for d in dependants[address]), default=0)
        return {address: (-heights[address], order) for order, address in enumerate(self.nodes)}

    def __len__(self) -> int:
        return len(self.nodes)

    def plan(self, prefix: str | Path | None = None, *, options: "Options | None" = None) -> "tuple[Planned, ...]":
        """What a run would do with each node and why; runs and writes nothing.

        Args:
            prefix: fsspec URL; default ``MARIN_PREFIX`` or ``./.marin``.
            options: forced, accepted or selected steps.
        """
        from marin_core.reasons import Options, plan
        from marin_core.store import open_store

        return plan(self, open_store(prefix, unsafe_single_writer=True), options=options or Options())


def lower(*handles: Any) -> Graph:
    """Makes the graph of the given handles and all they depend on; nothing runs.

    Args:
        handles: steps, or lists, tuples and dicts of them.

    Raises:
        UsageError: there is no step among them.
        EncodingError: an argument has no canonical encoding; names the path to it.
        AddressCollisionError: two recipes claim one address; names both.
    """
    wanted = list(find_steps(handles))
    if not wanted:
        raise UsageError("there is no step to run: build() returned none")
    nodes: dict[str, Node] = {}
    recipes: dict[Step, str] = {}
    addresses: dict[Step, str] = {}
    reach = code.Reach()
    for step in _topological(wanted):
        node = _node(step, recipes, addresses, reach=reach)
        known = nodes.setdefault(node.address, node)
        if known.recipe_digest != node.recipe_digest:
            raise _collision(known, node)
        recipes[step], addresses[step] = node.recipe_digest, node.address
    _check_apart(nodes)
    return Graph(nodes=nodes, targets=tuple(dict.fromkeys(addresses[s] for s in wanted)), handles=addresses)


def _topological(wanted: list[Step]) -> Iterator[Step]:
    """Depth first, upstream before dependants, in the order of the arguments; each step once."""
    done: set[Step] = set()
    for target in wanted:
        stack = [(target, _upstream(target))]
        while stack:
            step, rest = stack[-1]
            if step in done:
                stack.pop()
                continue
            following = next((s for s in rest if s not in done), None)
            if following is not None:
                stack.append((following, _upstream(following)))
            else:
                done.add(step)
                stack.pop()
                yield step


def _upstream(step: Step) -> Iterator[Step]:
    return (s for value in step.arguments.values() for s in find_steps(value))


def _node(step: Step, recipes: dict[Step, str], addresses: dict[Step, str], *, reach: code.Reach) -> Node:
    recipe, given = identity.recipe_of(step, recipes, reach=reach)
    recipe_digest = encoding.digest(recipe)
    upstream: dict[str, str] = {}
    values: dict[tuple[str, str], None] = {}
    for parameter, value in step.arguments.items():
        for other in find_steps(value):
            upstream.setdefault(addresses[other], parameter)
            if step.function.roles.get(parameter) == "value":
                # What the body gets, and the methods that it may run of it, are no part of the upstream's output.
                form, classes = _returned(other.function)
                given += classes
                if form:
                    values[parameter, form] = None
    function = step.function.function
    return Node(
        step=step,
        address=f"{step.name}/{step.version or recipe_digest[:12]}",
        recipe=recipe,
        recipe_digest=recipe_digest,
        code=reach.code_of(function, *given, values=values),
        environment=_environment(function) if step.external is None else "",
        upstream=upstream,
    )


@functools.lru_cache(maxsize=4096)
def _returned(function: StepFunction) -> tuple[str, tuple[type, ...]]:
    """What a step's recorded value becomes before another gets it, and the classes that it may then be of."""
    hint = return_hint(function)
    return results.form(hint, name=code.function_name), tuple(results.classes_in(hint))


@functools.lru_cache(maxsize=4096)
def _environment(function: Any) -> str:
    path = code.source_path(function)
    return environments.environment_digest(path if path is not None and sources.is_workspace(path) else None)


def _check_apart(nodes: Mapping[str, Node]) -> None:
    """Refuses addresses that one directory would hold: within each other, or, where case does not count, the same."""
    folded: dict[str, str] = {}
    for address in nodes:
        other = folded.setdefault(address.lower(), address)
        if other != address:
            raise AddressCollisionError(f"{other} and {address} differ only in case; give one of them another name")
    for address, node in nodes.items():
        words = address.lower().split("/")
        around = next((o for i in range(1, len(words)) if (o := folded.get("/".join(words[:i])))), None)
        if around is not None:
            raise AddressCollisionError(
                f"step {node.name} would lie at {address}, within the output of {around}; give it another name"
            )


def _collision(first: Node, second: Node) -> AddressCollisionError:
    from marin_core.reasons import recipe_changes

    changes = "; ".join(recipe_changes(first.recipe, second.recipe)) or "their recipes differ"
    functions = f"{first.recipe['function']} and {second.recipe['function']}"
    fix = "another version" if first.step.version else "another name"
    return AddressCollisionError(
        f"{functions} both claim the address {first.address} ({changes}); give one of them {fix}"
    )
