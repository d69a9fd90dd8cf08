"""Comparisons: two steps or two runs of one prefix, compared by all that is written of them.

`changes` compares records; here they are found, and what lies beside them is brought in: the steps' own records, which
know units of code and files by name, the packages of their environments, and the last rows of their metrics. An output
that was made again since a run is no longer that run's; then the run's record is all there is.
"""

import fnmatch
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marin_core.provenance import environments
from marin_core.quantities import is_number
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.changes import (
    NOT_FINITE,
    Change,
    Pair,
    between_environments,
    between_metrics,
    between_runs,
    between_steps,
    leaves,
)
from marin_core.records import AttemptRecord, NodeRecord, RunRecord, StepRecord
from marin_core.web.files import PrefixFiles, UnreadableFileError

_METRICS = "*metrics*.jsonl"
_LAST_ROW_BYTES = 1 << 16
_MOST_LOOKED_INTO = 2000
"""Pairs of steps of two runs whose own records and files are read."""


@dataclass(frozen=True, kw_only=True)
class RunsCompared:
    """What differs in two runs as wholes, and their steps side by side."""

    whole: list[Change]
    pairs: list[Pair]

    @property
    def differing(self) -> list[Pair]:
        """The steps that differ, or are in one run alone."""
        return [p for p in self.pairs if p.old is None or p.new is None or matter(p.changes)]


def matter(changes: Iterable[Change]) -> bool:
    """Whether there is more in them than that time has passed."""
    return any(c.section not in ("timings", "decisions") and c.name != "status" for c in changes)


def compare_runs(catalogue: Catalogue, old: RunRecord, new: RunRecord) -> RunsCompared:
    """Two runs, step by step."""
    whole, pairs = between_runs(old, new)
    files = PrefixFiles(catalogue.store)
    looked = [_deepened(catalogue, files, p) if i < _MOST_LOOKED_INTO else p for i, p in enumerate(pairs)]
    return RunsCompared(whole=whole, pairs=looked)


def compare_steps(catalogue: Catalogue, old: StepRecord, new: StepRecord) -> list[Change]:
    """Two committed steps."""
    files = PrefixFiles(catalogue.store)
    return [
        *between_steps(old, new),
        *_environments(catalogue, old, new),
        *between_metrics(*(_last_metrics(files, r) for r in (old, new))),
    ]


def _deepened(catalogue: Catalogue, files: PrefixFiles, pair: Pair) -> Pair:
    """Adds what only the steps' own records and files know: units of code, files by name, metrics."""
    if pair.old is None or pair.new is None or pair.old.output_digest == pair.new.output_digest:
        return pair
    old, new = (_as_recorded(catalogue, n) for n in (pair.old, pair.new))
    if old is None or new is None:
        return pair
    known = [c for c in between_steps(old, new) if c.section in ("code", "files")]
    kept = [c for c in pair.changes if c.section not in {k.section for k in known}]
    metrics = between_metrics(*(_last_metrics(files, r) for r in (old, new)))
    return Pair(name=pair.name, old=pair.old, new=pair.new, changes=(*kept, *known, *metrics))


def _as_recorded(catalogue: Catalogue, node: NodeRecord) -> StepRecord | None:
    record = catalogue.remembered(node.address) if node.output_digest else None
    return record if record is not None and record.attempt == node.attempt else None


def _environments(catalogue: Catalogue, old: StepRecord, new: StepRecord) -> list[Change]:
    """Named by package where both environments were recorded, by digest where they were not."""
    digests = old.digests.environment, new.digests.environment
    if digests[0] == digests[1]:
        return []
    known = [_environment(catalogue, r) for r in (old, new)]
    changes = between_environments(known[0], known[1]) if all(known) else []
    return changes or [Change(section="environment", name="digest", old=digests[0][:12], new=digests[1][:12])]


def _environment(catalogue: Catalogue, record: StepRecord) -> dict[str, Any]:
    """Python and packages that a step was made with; empty where nobody wrote them down."""
    found = environments.read(catalogue.store, record.digests.environment)
    if found is not None:
        return {"python": found.python, "packages": found.packages}
    attempt = catalogue.attempt(record.address, record.attempt)
    run = catalogue.run_data(attempt.run_id) if isinstance(attempt, AttemptRecord) else None
    environment = run.get("environment") if isinstance(run, dict) else None
    return {k: environment[k] for k in ("python", "packages") if k in environment} if environment else {}


def _last_metrics(files: PrefixFiles, record: StepRecord) -> dict[str, Any] | None:
    """The numbers in the last row of each ``metrics.jsonl`` of an output: column -> number; None if it is gone. Columns
    of one in a subdirectory bear its path."""
    found: dict[str, Any] = {}
    names = (f.path for f in record.files)
    for name in sorted(n for n in names if fnmatch.fnmatch(n.rpartition("/")[2], _METRICS)):
        at = "" if name == "metrics.jsonl" else f"{name.removesuffix('.jsonl')}:"
        try:
            path = f"{record.address}/attempts/{record.attempt}/out/{name}"
            text = files.tail(path, max_bytes=_LAST_ROW_BYTES)
        except UnreadableFileError:
            return None
        row = next((r for r in map(_row, reversed(text.splitlines())) if r is not None), {})
        found |= {f"{at}{k}": v for k, v in leaves(row).items() if is_number(v) or v in NOT_FINITE}
    return found


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
