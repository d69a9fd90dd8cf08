"""A run as its page sees it: the record, joined with what lies on disk.

Built once and read by every part of the page: the anchor of each step, the edges between them, and the files of
committed outputs. A run may have 10,000 steps, so files are looked at for the few hundred that a reader is likeliest
to open (the failed, then the targets, then the rest in order); the others keep all that the record says of them.
"""

import functools
from dataclasses import dataclass, replace

from marin_core.namesakes import distinctions
from marin_core.records import NodeRecord, RunRecord
from marin_core.web.files import FoundFile, PrefixFiles, UnreadableFileError
from marin_core.web.markup import Markup, element

MAX_INSPECTED = 400
_MAX_FILES = 2000
_MAX_HEADLINE = 6

FAILED = ("failed", "refused", "cancelled")
COMMITTED = ("succeeded", "reused")
_PLANNED = {"reused": "up to date", "pending": "would run"}
_LEFT = {"pending": "not run", "running": "cut off"}
"""What a run that is over, or whose driver died, has not brought to an end."""
_NO_NEWS = ("up to date", "no committed output")


@dataclass(frozen=True)
class RunView:
    """The run of `record`, whose steps lie under the prefix of `files`."""

    record: RunRecord
    files: PrefixFiles
    links: dict[str, str]
    """Address -> ``#fragment`` of the step on the page."""
    edges: tuple[tuple[int, int], ...]
    """(upstream, dependant) by position in ``record.nodes``."""
    distinctions: tuple[str, ...]
    """What tells each step from others of its name; see `namesakes`."""
    targets: tuple[int, ...]
    inspected: frozenset[int]
    """Positions of the steps whose logs and outputs are read."""
    outputs: dict[int, tuple[FoundFile, ...]]
    """Files of the committed output of each inspected step, relative to its ``out`` directory."""
    missing: dict[int, str]
    """Why an inspected step's output could not be listed."""
    collected: frozenset[int] = frozenset()
    """Positions of those whose output was there and has been collected since."""
    served: bool = False
    """A server shows the page, so that it may link to pages of steps, attempts and files."""

    planned: bool = False
    """It is the run of a plan: what is pending would run."""

    @classmethod
    def of(cls, record: RunRecord, files: PrefixFiles, *, served: bool = False, planned: bool = False) -> "RunView":
        position = {node.address: i for i, node in enumerate(record.nodes)}
        targets = tuple(position[address] for address in record.targets if address in position)
        edges = tuple(
            (position[upstream], i)
            for i, node in enumerate(record.nodes)
            for upstream in dict.fromkeys(node.upstream)
            if position.get(upstream, i) < i
        )
        wanted = set(targets)
        ranked = sorted(
            range(len(record.nodes)), key=lambda i: (record.nodes[i].outcome not in FAILED, i not in wanted, i)
        )
        outputs: dict[int, tuple[FoundFile, ...]] = {}
        missing: dict[int, str] = {}
        committed = {i: at for i in ranked[:MAX_INSPECTED] if (at := output_directory(record.nodes[i])) is not None}
        for i, found in zip(committed, files.find_each(committed.values(), max_files=_MAX_FILES), strict=True):
            if isinstance(found, UnreadableFileError):
                missing[i] = str(found)
            else:
                outputs[i] = tuple(found)
        collected = {i for i in missing if _is_collected(files, record.nodes[i].address)}
        missing |= dict.fromkeys(collected, "Its output has been collected since.")
        links = {address: f"#s{i}" for address, i in position.items()}
        inspected = frozenset(ranked[:MAX_INSPECTED])
        apart = tuple(distinctions(record.nodes, edges))
        return cls(
            record,
            files,
            links,
            edges,
            apart,
            targets,
            inspected,
            outputs,
            missing,
            frozenset(collected),
            served,
            planned,
        )

    def inspecting(self, index: int) -> "RunView":
        """The same run with the files of one step looked at, whether or not they were before."""
        directory = output_directory(self.record.nodes[index])
        outputs, missing = dict(self.outputs), dict(self.missing)
        if directory is not None and index not in self.inspected:
            try:
                outputs[index] = tuple(self.files.find(directory, max_files=_MAX_FILES))
            except UnreadableFileError as e:
                missing[index] = str(e)
        return replace(self, inspected=self.inspected | {index}, outputs=outputs, missing=missing)

    @property
    def is_large(self) -> bool:
        """Too many steps to have all their details in the page as elements."""
        return len(self.record.nodes) > MAX_INSPECTED

    def label(self, index: int) -> str:
        """The step's name, with what tells it apart where the name alone does not."""
        return f"{self.record.nodes[index].name} {self.distinctions[index]}".rstrip()

    def word(self, outcome: str) -> str:
        """An outcome as it is told."""
        told = _PLANNED if self.planned else {} if self.record.status == "running" else _LEFT
        return told.get(outcome, outcome_class(outcome))

    def reason(self, node: NodeRecord) -> str:
        """Why a step ran, or did not; empty where that is no news."""
        return "" if node.reason in _NO_NEWS and not (self.planned and node.decision == "run") else node.reason

    def label_of(self, node: NodeRecord) -> str:
        """`label` of one of the record's nodes."""
        return self.label(int(self.links[node.address].removeprefix("#s")))

    def link(self, index: int) -> Markup:
        """A link to the step, by its label; the page has several to each."""
        found = self._link_cache.get(index)
        if found is None:
            found = self._link_cache[index] = element("a", self.label(index), href=f"#s{index}")
        return found

    @functools.cached_property
    def _link_cache(self) -> dict[int, Markup]:
        return {}

    @property
    def headline(self) -> tuple[int, ...]:
        """The targets that are shown one by one at the top, with their outputs; none when they are many."""
        return self.targets if len(self.targets) <= _MAX_HEADLINE else ()

    @functools.cached_property
    def span(self) -> tuple[float, float]:
        """Start and end of the run, in seconds since the epoch; the end of one that is cut off is its last step's."""
        start = self.record.started_at
        last = [end for node in self.record.nodes for end in (node.started_at, node.ended_at) if end is not None]
        return start, max([start, self.record.ended_at or start, *(last if self.record.ended_at is None else ())])


def _is_collected(files: PrefixFiles, address: str) -> bool:
    try:
        return files.status(f"{address}/tombstone.json") is not None
    except UnreadableFileError:
        return False


def output_directory(node: NodeRecord) -> str | None:
    """Where the step's committed output lies, relative to the prefix; None when there is none."""
    if node.outcome not in COMMITTED or node.attempt is None:
        return None
    return f"{node.address}/attempts/{node.attempt}/out"


def outcome_class(outcome: str) -> str:
    """An outcome as a word that is safe in a class name; a record of another version may hold any string."""
    return outcome if outcome.isascii() and outcome.isalpha() else "unknown"
