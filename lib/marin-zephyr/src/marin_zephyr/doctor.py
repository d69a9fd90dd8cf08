"""The doctor: reads files to the end and says what is wrong with them and where, without stopping at the first fault.

It uses the readers themselves, with a desk that notes instead of raising, so it finds exactly what a run would stumble
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import SchemaError, ZephyrError
from marin_zephyr.formats import reader
from marin_zephyr.formats.files import InputFile, encodable, list_files
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.frames import unify
from marin_zephyr.nodes import FileSource, Inputs, ReadOptions

_MAX_FINDINGS = 1000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault: where in the file (line from 1, byte offset in the uncompressed file), and what."""

    line: int | None
    offset: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a file holds, and what is wrong with it. Findings stop at a thousand; ``num_findings`` counts all."""

    file: str
    format: str
    compression: str | None
    rows: int
    columns: dict[str, str]
    findings: tuple[Finding, ...]
    num_findings: int


class _NotingDesk(Desk):
    """Keeps faults in memory."""

    def __init__(self) -> None:
        super().__init__("skip", Path("/dev/null"))
        self.findings: list[Finding] = []

    def record(
        self, file: InputFile, *, line: int | None, offset: int | None, reason: str, raw: bytes, rows: int = 1
    ) -> None:
        self.num_records += 1
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Finding(line=line, offset=offset, reason=reason))


def examine(inputs: Inputs, *, format: str | None = None) -> list[Diagnosis]:
    """Reads every file that ``inputs`` names.

    Args:
        inputs: as in `Dataset.from_files`.
        format: as there.

    Returns:
        One diagnosis a file, in order.

    Raises:
        InputError: nothing matches, or a file is of no known format.
    """
    source = Dataset.from_files(inputs, format=format, on_error="skip").node
    assert isinstance(source, FileSource)
    return [_examine(file) for file in list_files(source)]


def _examine(file: InputFile) -> Diagnosis:
    desk = _NotingDesk()
    rows = 0
    schemas: list[pa.Schema] = []
    try:
        for frame in reader(file.format)(file, ReadOptions(), desk):
            rows += frame.height
            schema = frame.to_arrow().schema
            if not schemas or schema != schemas[-1]:
                schemas.append(schema)
        schemas = [unify(schemas, what=file.url)]
    except ZephyrError as e:
        reason = str(e).removeprefix(f"{file.url}, ").replace(file.url, encodable(file.url))
        desk.record(file, line=None, offset=None, reason=reason, raw=b"")
        schemas = schemas[:1] if isinstance(e, SchemaError) else []
    return Diagnosis(
        file=encodable(file.url),
        format=file.format,
        compression=file.compression,
        rows=rows,
        columns={field.name: str(field.type) for schema in schemas for field in schema},
        findings=tuple(desk.findings),
        num_findings=desk.num_records,
    )


def is_sound(diagnoses: Sequence[Diagnosis]) -> bool:
    """Whether nothing was found."""
    return not any(d.num_findings for d in diagnoses)
