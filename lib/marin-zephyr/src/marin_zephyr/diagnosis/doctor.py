"""The doctor: reads files to the end and says what is wrong with them and where, without stopping at the first fault.

It uses the readers themselves, with a desk that notes instead of raising, so it finds exactly what a run would stumble
over. To these *findings* it adds *notes*: what is read all the same, but has lost rows elsewhere (see
`diagnosis.oddities`), or changes the type of a column. Where a reader only knows that two lines of thousands
disagree, the line is looked for (see `diagnosis.kinds`), and the reading goes on without that column.

Files are also held against each other, in order: a column of another type than in the files before is a finding in the
file that departs; a new column, or a type that widens, is a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap

import pyarrow as pa

from marin_zephyr.dataset import Dataset
from marin_zephyr.diagnosis.kinds import Kinds, Place, conflicts, find_kinds
from marin_zephyr.diagnosis.oddities import find_oddities
from marin_zephyr.errors import InputError, SchemaError, ZephyrError
from marin_zephyr.formats import reader
from marin_zephyr.formats.files import UNKNOWN, InputFile, encodable, list_files
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import unify
from marin_zephyr.nodes import FileSource, Inputs, ReadOptions
from marin_zephyr.reporting.quantities import cut

_MAX_FINDINGS = 1000
_SHOWN_FINDINGS = 20
_WIDTH = 80
_FILE_WIDTH = 46
_WHOLE_BYTES = 256 << 20  # a larger file is not parsed as one document


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault, or one note: where in the file (line from 1, byte offset in the uncompressed file), and what."""

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
    notes: tuple[Finding, ...] = ()
    """What is odd and read all the same."""


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
        One diagnosis a file, in order. A file of no known format has that as its finding.

    Raises:
        InputError: nothing matches.
    """
    source = Dataset.from_files(inputs, format=format, on_error="skip").node
    assert isinstance(source, FileSource)
    known: dict[str, _Known | None] = {}
    return [_examine(file, known) for file in list_files(source, lenient=True)]


def is_sound(diagnoses: Sequence[Diagnosis]) -> bool:
    """Whether nothing was found."""
    return not any(d.num_findings for d in diagnoses)


@dataclass(frozen=True)
class _Known:
    """What the files so far say of a column."""

    field: pa.Field
    file: str


def _examine(file: InputFile, known: dict[str, _Known | None]) -> Diagnosis:
    if file.format == UNKNOWN:
        reason = "the name tells no known format, so a run refuses it; name the inputs without it, or pass format="
        found = (Finding(line=None, offset=None, reason=reason),)
        return Diagnosis(
            file=encodable(file.url),
            format=UNKNOWN,
            compression=None,
            rows=0,
            columns={},
            findings=found,
            num_findings=1,
        )
    desk, rows, schema, error = _read(file, ReadOptions())
    faults: list[Finding] = []
    if isinstance(error, SchemaError) and file.format == "jsonl":
        kinds = find_kinds(file)
        disagreeing = conflicts(kinds)
        faults = [_conflict(*entry) for entry in disagreeing]
        known |= {column: None for column, *_ in disagreeing}
        agreed = [c for c in kinds if "." not in c and "[]" not in c and not _is_in(c, disagreeing)]
        if faults:  # all other faults show when the columns that disagree are left out
            desk, rows, schema, error = _read(file, ReadOptions(columns=tuple(agreed) or ("",)))
    if error is not None:
        reason = str(error).removeprefix(f"{file.url}, ").replace(file.url, encodable(file.url))
        desk.record(file, line=None, offset=None, reason=reason, raw=b"")
    findings = sorted([*faults, *desk.findings], key=lambda f: -1 if f.offset is None else f.offset)
    num_findings = desk.num_records + len(faults)
    if file.format == "jsonl" and findings and findings[0].line == 1 and (whole := _documents(file)):
        findings, num_findings = [whole], 1
    notes = [Finding(line=o.line, offset=o.offset, reason=o.reason) for o in _oddities(file)]
    apart, notes_apart = _hold_against(file, schema, known)
    if not rows and not findings:
        notes.append(Finding(line=None, offset=0, reason=f"no records: the file has {file.size:,} bytes"))
    return Diagnosis(
        file=encodable(file.url),
        format=file.format,
        compression=file.compression,
        rows=rows,
        columns={field.name: _type_name(field.type) for field in schema},
        findings=(*findings, *apart),
        num_findings=num_findings + len(apart),
        notes=(*notes, *_late_floats(file, schema), *notes_apart),
    )


def _read(file: InputFile, options: ReadOptions) -> tuple[_NotingDesk, int, pa.Schema, ZephyrError | None]:
    """What the reader makes of a file: refused records, rows, columns, and the error that ended it, if one did."""
    desk, rows = _NotingDesk(), 0
    schemas: list[pa.Schema] = []
    try:
        for frame in reader(file.format)(file, options, desk):
            rows += frame.height
            schema = frame.to_arrow().schema
            if not schemas or schema != schemas[-1]:
                schemas.append(schema)
        return desk, rows, unify(schemas, what=file.url), None
    except ZephyrError as e:
        return desk, rows, schemas[0] if schemas and isinstance(e, SchemaError) else pa.schema([]), e


def _oddities(file: InputFile) -> list[Finding]:
    if file.format not in ("jsonl", "json", "csv", "text"):
        return []
    return [Finding(line=o.line, offset=o.offset, reason=o.reason) for o in find_oddities(file)]


def _conflict(column: str, first: str, other: str, place: Place) -> Finding:
    reason = f"column {column!r} holds {other} from here on and {first} before; map it to one type"
    return Finding(line=place.line, offset=place.offset, reason=reason)


def _is_in(column: str, found: Sequence[tuple[str, str, str, Place]]) -> bool:
    return any(name == column or name.startswith((f"{column}.", f"{column}[]")) for name, *_ in found)


def _documents(file: InputFile) -> Finding | None:
    """Whether what calls itself JSON lines is JSON documents over several lines, or an array of records."""
    try:
        data = b"".join(blocks(file.url, file.compression)) if file.size <= _WHOLE_BYTES else b""
        text = data.decode("utf-8-sig").strip()
        count, position, is_spread, decoder = 0, 0, text.startswith("["), json.JSONDecoder()
        while position < len(text):
            _, end = decoder.raw_decode(text, position)
            is_spread |= text.find("\n", position, end) >= 0
            count, position = count + 1, _past_blanks(text, end)
    except (InputError, ValueError, RecursionError):
        return None
    if not is_spread:
        return None
    what = f"{count:,} JSON document{'s' if count > 1 else ''} spread over lines"
    fix = 'read it with format="json", or name it .json' if count == 1 else "write one object a line (jq -c .)"
    if text.startswith("[") and count == 1:
        what = "one JSON array at the top"
    return Finding(line=1, offset=0, reason=f"{what}, not one object a line; {fix}")


def _past_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _late_floats(file: InputFile, schema: pa.Schema) -> list[Finding]:
    """Columns of integers in which a float comes late: elsewhere it has been rounded."""
    columns = [f.name for f in schema if pa.types.is_floating(f.type)]
    if file.format != "jsonl" or not columns:
        return []
    kinds = find_kinds(file, until=_all_known(columns, "floats"))
    late = [(c, kinds[c]) for c in columns if next(iter(kinds.get(c, {})), "") == "integers" and "floats" in kinds[c]]
    reason = "column {!r} holds floats from here on and integers before; it is read as floats"
    return [Finding(line=p["floats"].line, offset=p["floats"].offset, reason=reason.format(c)) for c, p in late]


def _all_known(columns: Sequence[str], kind: str) -> Callable[[Kinds], bool]:
    return lambda kinds: all(kind in kinds.get(column, {}) for column in columns)


def _hold_against(
    file: InputFile, schema: pa.Schema, known: dict[str, _Known | None]
) -> tuple[list[Finding], list[Finding]]:
    """What departs from the files before: faults and notes. Learns what is new."""
    is_first = not known
    faults, notes = [], []
    for field in schema:
        name, kind = field.name, _type_name(field.type)
        before = known.get(name)
        if before is None and name in known:
            continue  # an earlier file disagrees with itself about it
        if before is None:
            known[name] = _Known(field, file.name)
            if not is_first and not pa.types.is_null(field.type):
                notes.append(_placed(file, name, f"column {name!r} ({kind}) is new here; the files before have null"))
            continue
        was = _type_name(before.field.type)
        try:
            unified = unify([pa.schema([before.field]), pa.schema([field])], what=file.name).field(0)
        except SchemaError:
            reason = f"column {name!r} is {kind} here and {was} in {before.file}; map it to one type"
            faults.append(_placed(file, name, reason))
            continue
        if unified.type != before.field.type and not pa.types.is_null(before.field.type):
            reason = f"column {name!r} is {kind} here and {was} before; it is read as {_type_name(unified.type)}"
            notes.append(_placed(file, name, reason))
        known[name] = replace(before, field=unified)
    return faults, notes


def _placed(file: InputFile, column: str, reason: str) -> Finding:
    """A finding about a column, at the first line that has a value of it."""
    if file.format != "jsonl":
        return Finding(line=None, offset=None, reason=reason)
    places = find_kinds(file, until=lambda kinds: column in kinds).get(column)
    place = next(iter(places.values())) if places else None
    if place is None:
        return Finding(line=None, offset=None, reason=reason)
    return Finding(line=place.line, offset=place.offset, reason=reason)


def _type_name(kind: pa.DataType) -> str:
    """``string``, ``float``, ``list<item: int64>``."""
    return str(kind).replace("large_", "").replace("double", "float64").replace("string_view", "string")


def tell(diagnoses: Sequence[Diagnosis]) -> str:
    """The diagnoses as a table of 80 columns; under a file what was found in it, and last the sum."""
    lines = [f"{'file':<{_FILE_WIDTH}}  {'rows':>12}  {'faults':>7}  {'notes':>6}"]
    for d in diagnoses:
        file = cut(d.file, _FILE_WIDTH)
        lines.append(f"{file:<{_FILE_WIDTH}}  {d.rows:>12,}  {d.num_findings:>7,}  {len(d.notes):>6,}")
        for finding in d.findings[:_SHOWN_FINDINGS]:
            lines += _entry("", finding)
        if d.num_findings > _SHOWN_FINDINGS:
            lines.append(f"  and {d.num_findings - _SHOWN_FINDINGS:,} more (--json shows up to a thousand)")
        for note in d.notes[:_SHOWN_FINDINGS]:
            lines += _entry("note: ", note)
        if d.columns:
            lines += _wrapped("  ", ", ".join(f"{name}: {kind}" for name, kind in d.columns.items()))
    damaged = sum(bool(d.num_findings) for d in diagnoses)
    faults = sum(d.num_findings for d in diagnoses)
    state = f"{damaged:,} of them damaged: {faults:,} faults" if damaged else "all sound"
    return "\n".join([*lines, f"{len(diagnoses):,} files, {state}"])


def _entry(what: str, finding: Finding) -> list[str]:
    line = "" if finding.line is None else f"line {finding.line:,}, "
    place = "" if finding.offset is None else f"{line}byte {finding.offset:,}: "
    return _wrapped("  ", f"{what}{place}{finding.reason}")


def _wrapped(indent: str, text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
