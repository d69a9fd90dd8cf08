"""One schema for all parts of a sink of columns: parts that differ are rewritten under the unified one, losslessly.

Whether a column is of integers or of floats may show only in the last shard; and a shard without rows knows no types at
all. So the parts' schemas are compared when all tasks are done, before anything is visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from marin_zephyr.formats.writers import COLUMNAR
from marin_zephyr.frames import unify
from marin_zephyr.outputs import Parts
from marin_zephyr.records import TaskRecord, schema_of, task_file
from marin_zephyr.specs import Stage


def settle(stage: Stage, records: Sequence[TaskRecord]) -> list[TaskRecord]:
    """The records, with parts rewritten (and recorded anew) where their schema was narrower than that of the whole.

    Raises:
        SchemaError: two parts' types of one column do not unify. Names the column and both types.
    """
    output, home = stage.spec.output, stage.spec.home
    if not isinstance(output, Parts) or output.format not in COLUMNAR:
        return list(records)
    schemas = {(r.index, i): schema_of(f) for r in records for i, f in enumerate(r.files) if f.schema is not None}
    known = [s for s in schemas.values() if s is not None]
    if all(s.equals(known[0]) for s in known):
        return list(records)
    unified = unify(known, what=f"parts of {output.path}")
    settled = []
    for record in records:
        files = list(record.files)
        for i, file in enumerate(files):
            schema = schemas.get((record.index, i))
            if schema is None or schema.equals(unified) or not file.is_in(home):
                continue
            COLUMNAR[output.format](home / file.name, output.compression).rewrite(unified)
            files[i] = task_file(home / file.name, home, rows=file.rows, schema=unified)
        settled.append(replace(record, files=tuple(files)))
        if settled[-1] != record:
            settled[-1].save(home)
    return settled
