"""The manifest of a token store: what is in it, file by file, and where it came from.

It holds the sha256 of every other file, and of itself: a byte that was changed anywhere is laid to the right file.

It is written last and read first, so that a store either has a manifest that describes all of it or does not exist. The
same bytes come out for the same content: no time, host or absolute path enters.

See: ``docs/reference/token-store.md`` and ``token-store.schema.json``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and sha256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class PartRecord:
    """One part: its counts and its files by name. ``num_bytes`` counts the text, not the files."""

    name: str
    num_documents: int
    num_tokens: int
    num_bytes: int
    files: Mapping[str, FileRecord]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        files = {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()}
        return {
            "name": self.name,
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "files": files,
        }

    @classmethod
    def from_json(cls, fields: Any, *, where: str) -> "PartRecord":
        """Raises `TokenStoreError`, naming ``where`` and the field, unless ``fields`` is what `to_json` makes."""
        name = _field(fields, "name", str, where)
        where = f"{where}, {name}"
        files = {
            file: FileRecord(
                size=_field(record, "size", int, f"{where}, {file}"),
                sha256=_field(record, "sha256", str, f"{where}, {file}"),
            )
            for file, record in _field(fields, "files", dict, where).items()
        }
        counts = {key: _field(fields, key, int, where) for key in ("num_documents", "num_tokens", "num_bytes")}
        return cls(name=name, files=files, **counts)


@dataclass(frozen=True)
class Manifest:
    """All that a reader needs to know of a store.

    Attributes:
        tokenizer_digest: sha256 of the ``tokenizer.json`` in the store.
        vocab_size: the largest id plus one.
        dtype: ``uint16`` or ``int32``.
        bos_id: the id that begins every document of the store, or None if none does.
        eos_id: the id that ends every document, or None.
        parts: in the order of their documents.
        lineage: the inputs with their number of documents, the settings, and the versions that wrote the store.
    """

    tokenizer_digest: str
    vocab_size: int
    dtype: str
    bos_id: int | None
    eos_id: int | None
    parts: tuple[PartRecord, ...]
    lineage: Mapping[str, Any]

    @property
    def num_documents(self) -> int:
        """Documents of all parts."""
        return sum(part.num_documents for part in self.parts)

    @property
    def num_tokens(self) -> int:
        """Special ids included."""
        return sum(part.num_tokens for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of text."""
        return sum(part.num_bytes for part in self.parts)

    def to_bytes(self) -> bytes:
        """The content of ``manifest.json``."""
        fields = {
            "schema_version": SCHEMA_VERSION,
            "tokenizer": {"file": TOKENIZER_FILE, "digest": self.tokenizer_digest},
            "vocab_size": self.vocab_size,
            "dtype": self.dtype,
            "special_ids": {"bos": self.bos_id, "eos": self.eos_id},
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "parts": [part.to_json() for part in self.parts],
            "lineage": dict(self.lineage),
        }
        fields["digest"] = _digest(fields)
        return json.dumps(fields, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> "Manifest":
        """Reads the content of a ``manifest.json``; ``where`` is what its errors call it.

        Raises:
            TokenStoreError: it is damaged, of another schema version, or does not add up.
        """
        try:
            fields = json.loads(content)
        except ValueError as error:
            raise TokenStoreError(f"{where} cannot be read: {error}") from None
        version = _field(fields, "schema_version", int, where)
        if version != SCHEMA_VERSION:
            raise TokenStoreError(f"{where}: schema_version is {version}, this reader knows {SCHEMA_VERSION}")
        special = _field(fields, "special_ids", dict, where)
        parts = _field(fields, "parts", list, where)
        manifest = cls(
            tokenizer_digest=_field(_field(fields, "tokenizer", dict, where), "digest", str, where),
            vocab_size=_field(fields, "vocab_size", int, where),
            dtype=_field(fields, "dtype", str, where),
            bos_id=_field(special, "bos", int | None, where),
            eos_id=_field(special, "eos", int | None, where),
            parts=tuple(PartRecord.from_json(part, where=where) for part in parts),
            lineage=_field(fields, "lineage", dict, where),
        )
        for key in ("num_documents", "num_tokens", "num_bytes"):
            told, total = _field(fields, key, int, where), getattr(manifest, key)
            if told != total:
                raise TokenStoreError(f"{where}: {key} is {told}, but the parts add up to {total}")
        if "digest" in fields and fields["digest"] != _digest(fields):
            raise TokenStoreError(
                f"{where} is not as it was written: its digest differs. Restore it; if the change is meant, remove "
                f"the field digest"
            )
        return manifest


def _digest(fields: Mapping[str, Any]) -> str:
    """The sha256 of all fields but ``digest``, as JSON without spaces and with sorted keys."""
    rest = {key: value for key, value in fields.items() if key != "digest"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _field(fields: Any, key: str, kind: Any, where: str) -> Any:
    if not isinstance(fields, dict) or key not in fields:
        raise TokenStoreError(f"{where}: {key} is missing")
    value = fields[key]
    if not isinstance(value, kind):
        raise TokenStoreError(f"{where}: {key} is {value!r}, not of type {getattr(kind, '__name__', kind)}")
    return value
