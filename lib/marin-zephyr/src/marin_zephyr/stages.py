"""One stage, from its tasks to its manifest: what is done already, what remains, and the moment it counts.

A stage lives in a *home*: a directory of the work directory or, for a sink, a hidden directory inside the output
directory. Tasks put files and records there. When all records are there the stage is committed: for an intermediate
stage by writing ``manifest.json``; for a sink by moving the parts into the output directory and then writing
``_manifest.json``. The manifest is written last, so a directory without one is not a dataset.

Invariants:

- Readers of an output directory see the old dataset whole until the new one is whole, save for the moment of the
  renames, during which there is no manifest and readers of this package refuse it (`formats.files.check_whole`).
- A home is named by its fingerprint, so work of another plan is never taken for this one's.
- Parts of an earlier run (also of one with more shards) are removed in the same step; files that are not ours never
  are.
- One writer: the directory where the files will lie is locked while a stage runs, so that two plans cannot publish
  into one output directory either.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.context import check_clash
from marin_zephyr.durability import replace_file, sole_writer, sync, sync_all, writing
from marin_zephyr.errors import OutputError, SchemaError
from marin_zephyr.formats.files import PART, REJECTS, SINK_MANIFEST, STAGING, is_rejects
from marin_zephyr.outputs import Parts
from marin_zephyr.reporting.reports import StageReport
from marin_zephyr.specs import HOME_MANIFEST, Stage

if TYPE_CHECKING:
    from marin_zephyr.records import TaskRecord

_SCHEMA = 2


def directory(stage: Stage) -> Path:
    """Where the committed files lie: the output directory of a sink, else the stage's home."""
    output = stage.spec.output
    return Path(output.path).absolute() if isinstance(output, Parts) else stage.spec.home


def committed(stage: Stage) -> tuple[StageReport, ...] | None:
    """The reports of a stage that was committed before and still lies there whole; for a sink those of all its stages.

    Sizes are checked, not contents: a file that was cut or is missing makes the stage run again.
    """
    path = manifest_path(stage)
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if data.get("schema") != _SCHEMA or data.get("fingerprint") != stage.fingerprint:
        return None
    for file in data["files"]:
        try:
            if (path.parent / file["name"]).stat().st_size != file["size"]:
                return None
        except OSError:
            return None
    return tuple(StageReport.from_lasting(entry) for entry in data["stages"])


@contextmanager
def opened(stage: Stage) -> Generator[None]:
    """Makes the stage's directories and holds the lock.

    Raises:
        OutputError: the directory cannot be made, or holds parts that are not ours.
        OutputBusyError: another run holds it.
    """
    _check_ours(stage)
    with sole_writer(directory(stage)):
        with writing(directory(stage)):
            stage.spec.home.mkdir(exist_ok=True)
        yield


def commit(stage: Stage, report: StageReport, *, earlier: Sequence[tuple[Stage, StageReport]]) -> None:
    """Makes a stage count; see the module's docstring for how."""
    if not isinstance(stage.spec.output, Parts):
        for unfinished in stage.spec.home.glob(".*.tmp"):  # of a task that was killed
            unfinished.unlink(missing_ok=True)
        _write_manifest(stage, report.files, [report], durable=False)  # it may be lost with the machine
        return
    with writing(directory(stage)):
        _publish(stage, report, earlier)


def _publish(stage: Stage, report: StageReport, earlier: Sequence[tuple[Stage, StageReport]]) -> None:
    out, home = directory(stage), stage.spec.home
    files = [dict(f) for f in report.files]
    for before, its_report in earlier:
        for file in its_report.files:
            if is_rejects(file["name"]):
                files.append(dict(file))
                (home / REJECTS).mkdir(exist_ok=True)
                shutil.copyfile(before.spec.home / file["name"], home / file["name"])
    (out / SINK_MANIFEST).unlink(missing_ok=True)
    _remove_others(out, keep={f["name"] for f in files})
    # A file that is not there was moved by an earlier run, which died before the manifest.
    moving = [file["name"] for file in files if (home / file["name"]).exists()]
    sync_all(home / name for name in moving)
    for name in moving:
        (out / name).parent.mkdir(exist_ok=True)
        (home / name).replace(out / name)
    sync(out)
    _write_manifest(stage, files, [*(r for _, r in earlier), report], durable=True)
    for staging in out.glob(f"{STAGING}*"):
        shutil.rmtree(staging, ignore_errors=True)
    for unfinished in out.glob(f".{SINK_MANIFEST}.*"):
        unfinished.unlink(missing_ok=True)


def _write_manifest(
    stage: Stage, files: Sequence[dict[str, Any]], reports: Sequence[StageReport], *, durable: bool
) -> None:
    data = {
        "schema": _SCHEMA,
        "fingerprint": stage.fingerprint,
        "ingredients": stage.ingredients,
        "files": sorted(files, key=lambda f: f["name"]),
        "stages": [r.lasting() for r in reports],
    }
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False)
    replace_file(manifest_path(stage), text.encode("utf-8", "backslashreplace"), durable=durable)


def manifest_path(stage: Stage) -> Path:
    """Where the manifest lies that makes the stage count."""
    if isinstance(stage.spec.output, Parts):
        return directory(stage) / SINK_MANIFEST
    return stage.spec.home / HOME_MANIFEST


def _check_ours(stage: Stage) -> None:
    """Refuses an output directory whose parts no zephyr manifest or staging directory vouches for."""
    out = directory(stage)
    if not isinstance(stage.spec.output, Parts) or not out.exists():
        return
    if not out.is_dir():
        raise OutputError(f"{out}: is a file; name a directory")
    if (out / SINK_MANIFEST).exists() or any(out.glob(f"{STAGING}*")):
        return
    foreign = next((p.name for p in sorted(out.iterdir()) if PART.fullmatch(p.name)), None)
    if foreign:
        raise OutputError(
            f"{out}: holds {foreign}, which zephyr did not write; choose an empty directory, or remove it"
        )


def _remove_others(out: Path, *, keep: set[str]) -> None:
    for path in [*out.iterdir(), *(out / REJECTS).glob("*.jsonl")]:
        name = path.relative_to(out).as_posix()
        if name not in keep and (PART.fullmatch(name) or is_rejects(name)):
            path.unlink()


def check_columns(stage: Stage, records: Sequence[TaskRecord]) -> None:
    """What only all tasks together can tell of columns.

    Raises:
        SchemaError: an expression names a column that no row of the whole input has, or shards disagree on which
            columns of the two sides of a join clash.
    """
    for column in dict.fromkeys(column for record in records for column in record.clashes):
        check_clash(column, {record.clashes[column] for record in records if column in record.clashes})
    for place, name in dict.fromkeys((p, name) for r in records for p, names in r.absent.items() for name in names):
        if all(r.absent.get(place, {}).get(name, True) for r in records):
            raise SchemaError(f"{stage.spec.name}: no row of the input has a column {name!r}; check the name")
