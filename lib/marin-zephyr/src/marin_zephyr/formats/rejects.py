"""What becomes of a record that cannot be taken: raised, counted, or kept with its reason; never dropped quietly.

A reject is one JSON line: ``file``, ``line``, ``offset`` (of its first byte, uncompressed), ``reason``, and the record
itself: ``raw`` (base64 of its bytes, at most 1 MiB of them; ``raw_bytes`` says how long it was) where a reader refused
it, ``row`` where an operation did. Where a reader gives up a file, or the rest of it, ``rows`` says how many rows that
were, if the file tells.

A reason is a kind, and after a colon the particulars (places, values), so that reasons can be counted by kind.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import IO, Any

from marin_zephyr.durability import writing
from marin_zephyr.errors import BadRecordError
from marin_zephyr.formats.files import PART, SINK_MANIFEST, InputFile
from marin_zephyr.nodes import OnError
from marin_zephyr.reporting.quantities import clipped
from marin_zephyr.reporting.refusals import Refused, add_refused

ASIDE = 'pass on_error="quarantine" to set such records aside'
_RAW_LIMIT = 1 << 20
_SHOWN = 200
_OBJECT = re.compile(r"^object [\d,]+: ")


class Desk:
    """Where readers and operations hand in the records they refuse, for one task.

    Args:
        policy: ``raise``, ``skip`` or ``quarantine``.
        path: the rejects file; made on the first reject and only under ``quarantine``.
        aside: what else than a repair helps against a record that a reader refuses, for the message.
    """

    def __init__(self, policy: OnError, path: Path, *, aside: str = ASIDE) -> None:
        self.policy = policy
        self.aside = aside
        self.path = path
        if policy == "quarantine":
            self.path.unlink(missing_ok=True)  # an earlier try's
        self.num_records = 0
        self.num_rows = 0
        self.num_filtered = 0
        """Rows that a reader left out because its predicate was not true of them."""
        self.absent: dict[str, bool] = {}
        """Column that a predicate names -> whether every batch so far lacked it."""
        self.refused: Refused = {}
        """What was refused, by the kind of reason."""
        self._file: IO[str] | None = None

    def record(
        self, file: InputFile, *, line: int | None, offset: int | None, reason: str, raw: bytes, rows: int = 1
    ) -> None:
        """A reader refuses a record, or so many rows at once."""
        self.num_records += rows
        where = ("" if line is None else f", line {line:,}") + ("" if offset is None else f", byte offset {offset:,}")
        if self.policy == "raise":
            raise BadRecordError(f"{file.url}{where}: {reason}; {_fix(file, self.aside)}")
        add_refused(self.refused, kind(reason), num_records=rows, example=f"{file.name}{where}: {reason}")
        if self.policy == "quarantine":
            kept = base64.b64encode(raw[:_RAW_LIMIT]).decode()
            at = {"file": file.name, "line": line, "offset": offset}
            several = {} if rows == 1 else {"rows": rows}
            self._write({**at, "reason": reason, **several, "raw_bytes": len(raw), "raw": kept})

    def row(self, row: dict[str, Any], *, operation: str, reason: str) -> None:
        """An operation refuses a row."""
        self.num_rows += 1
        if self.policy == "raise":
            fix = 'pass on_error="quarantine" to set such rows aside'
            raise BadRecordError(f"{operation} refused a row of {place(row)}: {reason}; {fix}")
        add_refused(self.refused, kind(reason), num_records=1, example=f"{operation}, {place(row)}: {reason}")
        if self.policy == "quarantine":
            at = {"file": row.get("source"), "line": row.get("source_row"), "offset": row.get("source_offset")}
            self._write({**at, "operation": operation, "reason": reason, "row": row})

    @property
    def count(self) -> int:
        """All that was refused."""
        return self.num_records + self.num_rows

    def close(self) -> None:
        """Flushes the rejects file, if there is one."""
        if self._file is not None:
            with writing(self.path):
                self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        with writing(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", newline="\n", errors="backslashreplace")
            self._file.write(json.dumps(entry, ensure_ascii=False, default=_plain) + "\n")


def kind(reason: str) -> str:
    """A reason without its particulars."""
    return _OBJECT.sub("", reason).partition(": ")[0]


def _fix(file: InputFile, aside: str) -> str:
    directory, _, name = file.url.rpartition("/")
    if "://" not in file.url and PART.fullmatch(name) and (Path(directory) / SINK_MANIFEST).is_file():
        return f"it was whole when it was written: delete {directory} and make it again"
    return f"repair it, or {aside}"


def place(row: dict[str, Any]) -> str:
    """Where a row came from, as far as it says; otherwise its first fields."""
    if row.get("source") is not None:
        return f"{row['source']}, row {row.get('source_row')}"
    return clipped(repr(row), _SHOWN)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value)
