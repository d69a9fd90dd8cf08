"""A token store, read: one long stream of token ids over memory-mapped parts, refused when it is not whole.

The format is a directory of Megatron-core IndexedDataset parts with a manifest written last (the reference page
"The token store" of the documentation). Invariant kept here: an open `TokenStore` agrees with its manifest in every
size and count, so that arithmetic on the manifest (how many sequences, how many bytes) is arithmetic on the data.
Token ids are not rehashed at open, which costs seconds a gigabyte; sizes, index headers and the tokenizer's
digest are, which costs nothing and finds every truncated or foreign file.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from marin_train.errors import TokenStoreError

_SCHEMA_VERSION = 1
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_HEADER_BYTES = 34
_DTYPES = {"uint16": (8, np.dtype("<u2")), "int32": (4, np.dtype("<i4"))}
"""Name in the manifest -> code in the index (Megatron's) and type in the ``.bin``."""


@dataclass(frozen=True)
class _Part:
    """One part: its first token's place in the store's stream, and its files mapped into memory."""

    name: str
    start: int
    tokens: np.ndarray
    mask_bits: np.ndarray | None

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class TokenStore:
    """An open store. Documents follow one another in the order of parts, as one stream of ``num_tokens`` ids."""

    path: Path
    manifest: dict[str, Any]
    digest: str
    """sha256 of ``manifest.json``: it names every file's sha256, so it names the data."""
    parts: tuple[_Part, ...]

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens a store and checks it against its manifest.

        Args:
            path: the store's directory.

        Raises:
            TokenStoreError: the manifest is absent or of another version, or a file is absent, of another size,
                or contradicts it; the message names the file.

        See: the documentation's reference page "The token store".
        """
        directory = Path(path)
        file = directory / "manifest.json"
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise TokenStoreError(
                f"{directory} is not a token store: {file.name} cannot be read ({error.strerror}). The manifest is "
                f"written last, so an unfinished store has none; run the tokenization again"
            ) from None
        manifest = _parse_manifest(raw, file)
        parts, start = [], 0
        for entry in manifest["parts"]:
            part = _open_part(directory, entry, dtype=manifest["dtype"], start=start)
            parts.append(part)
            start = part.stop
        store = cls(directory, manifest, hashlib.sha256(raw).hexdigest(), tuple(parts))
        store._check_totals()
        return store

    @property
    def num_tokens(self) -> int:
        return self.manifest["num_tokens"]

    @property
    def num_documents(self) -> int:
        return self.manifest["num_documents"]

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the documents' text; special tokens count none."""
        return self.manifest["num_bytes"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["vocab_size"]

    @property
    def bos_id(self) -> int | None:
        return self.manifest["special_ids"]["bos"]

    @property
    def eos_id(self) -> int | None:
        return self.manifest["special_ids"]["eos"]

    @property
    def tokenizer_digest(self) -> str:
        return self.manifest["tokenizer"]["digest"]

    @property
    def tokenizer_file(self) -> Path:
        return self.path / self.manifest["tokenizer"]["file"]

    @property
    def has_mask(self) -> bool:
        """Whether some part is supervised data, whose ``.mask`` says which tokens count in the loss."""
        return any(part.mask_bits is not None for part in self.parts)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([part.start for part in self.parts], np.int64)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Token ids ``start`` to ``stop`` of the stream, over part boundaries: Int32[stop - start]."""
        pieces = [part.tokens[a:b] for part, a, b in self._spans(start, stop)]
        return np.concatenate(pieces).astype(np.int32) if pieces else np.zeros(0, np.int32)

    def read_mask(self, start: int, stop: int) -> np.ndarray:
        """Which of the tokens ``start`` to ``stop`` count in the loss; all of them where a part has no mask."""
        pieces = [_unpack(part.mask_bits, a, b) for part, a, b in self._spans(start, stop)]
        return np.concatenate(pieces) if pieces else np.zeros(0, bool)

    def document_borders(self) -> np.ndarray:
        """Where each document begins in the stream, then ``num_tokens``: Int64[num_documents + 1].

        Raises:
            TokenStoreError: an index's documents are not as long as its tokens are many.
        """
        borders, first = np.empty(self.num_documents + 1, np.int64), 0
        for part, entry in zip(self.parts, self.manifest["parts"], strict=True):
            file, last = self.path / f"{part.name}.idx", first + entry["num_documents"]
            lengths = np.fromfile(file, "<i4", count=last - first, offset=_INDEX_HEADER_BYTES)
            borders[first] = part.start
            borders[first + 1 : last + 1] = part.start + np.cumsum(lengths, dtype=np.int64)
            if borders[last] != part.stop or np.any(lengths < 0):
                raise TokenStoreError(
                    f"{file}: its documents have {borders[last] - part.start} tokens, {part.name}.bin has "
                    f"{len(part.tokens)}; write the store again"
                )
            first = last
        return borders

    def verify(self) -> None:
        """Hashes every file against the manifest, about a second a gigabyte.

        Raises:
            TokenStoreError: naming the file that is not the one written.
        """
        for part in self.manifest["parts"]:
            for name, entry in part["files"].items():
                with (self.path / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                        raise TokenStoreError(f"{self.path / name}: sha256 differs from the manifest's; tokenize again")

    def _spans(self, start: int, stop: int) -> Iterator[tuple[_Part, int, int]]:
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start}:{stop} of {self.path}, which holds {self.num_tokens}")
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        for part in self.parts[first:]:
            if part.start >= stop:
                return
            a, b = max(start, part.start) - part.start, min(stop, part.stop) - part.start
            if a < b:
                yield part, a, b

    def _check_totals(self) -> None:
        for field in ("num_documents", "num_tokens", "num_bytes"):
            total = sum(entry[field] for entry in self.manifest["parts"])
            if total != self.manifest[field]:
                raise TokenStoreError(
                    f"{self.path / 'manifest.json'}: {field}={self.manifest[field]}, but the parts sum to {total}; "
                    f"write the store again"
                )
        file = self.tokenizer_file
        found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "absent"
        if found != self.tokenizer_digest:
            raise TokenStoreError(
                f"{file}: sha256 is {found}, the manifest says {self.tokenizer_digest}; the store was not written "
                f"with this tokenizer"
            )


def _parse_manifest(raw: bytes, file: Path) -> dict[str, Any]:
    """The manifest, with every field this reader relies on present and of its type."""
    try:
        manifest = json.loads(raw)
    except ValueError as error:
        raise TokenStoreError(f"{file} is not JSON ({error}); write the store again") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != _SCHEMA_VERSION:
        raise TokenStoreError(f"{file}: schema_version={version!r}, this reader knows {_SCHEMA_VERSION}")
    wanted = {"tokenizer": dict, "vocab_size": int, "dtype": str, "special_ids": dict, "parts": list}
    wanted |= dict.fromkeys(("num_documents", "num_tokens", "num_bytes"), int)
    _require(manifest, wanted, file, "")
    _require(manifest["tokenizer"], {"file": str, "digest": str}, file, "tokenizer.")
    _require(manifest["special_ids"], dict.fromkeys(("bos", "eos"), int | None), file, "special_ids.")
    counts = {"name": str, "num_documents": int, "num_tokens": int, "num_bytes": int, "files": dict}
    for i, entry in enumerate(manifest["parts"]):
        _require(entry, counts, file, f"parts[{i}].")
    if manifest["dtype"] not in _DTYPES:
        raise TokenStoreError(f"{file}: dtype={manifest['dtype']!r}, known are {sorted(_DTYPES)}")
    return manifest


def _require(record: Any, types: dict[str, Any], file: Path, where: str) -> None:
    for name, kind in types.items():
        if not isinstance(record, dict) or name not in record or not isinstance(record[name], kind):
            found = record.get(name, "absent") if isinstance(record, dict) else record
            raise TokenStoreError(f"{file}: {where}{name} is {found!r}, expected {getattr(kind, '__name__', kind)}")


def _open_part(directory: Path, entry: dict[str, Any], *, dtype: str, start: int) -> _Part:
    """Maps one part's tokens and mask, once its files' sizes and its index's header agree with the manifest."""
    for name, facts in entry["files"].items():
        file = directory / name
        size = file.stat().st_size if file.is_file() else "absent"
        if size != facts["size"]:
            raise TokenStoreError(
                f"{file}: size is {size}, the manifest says {facts['size']} bytes; the store is damaged or was copied "
                f"only in part"
            )
    for name in (f"{entry['name']}.bin", f"{entry['name']}.idx"):
        if name not in entry["files"]:
            raise TokenStoreError(f"{directory / 'manifest.json'}: {name} is not among the files of {entry['name']}")
    code, kind = _DTYPES[dtype]
    _check_index(directory / f"{entry['name']}.idx", entry, code=code)
    tokens = _map(directory / f"{entry['name']}.bin", kind)
    if len(tokens) != entry["num_tokens"]:
        raise TokenStoreError(
            f"{directory / entry['name']}.bin holds {len(tokens)} tokens, the manifest says {entry['num_tokens']}"
        )
    mask = f"{entry['name']}.mask"
    bits = _map(directory / mask, np.dtype(np.uint8)) if mask in entry["files"] else None
    if bits is not None and len(bits) != (len(tokens) + 7) // 8:
        raise TokenStoreError(f"{directory / mask} has {len(bits)} bytes for {len(tokens)} tokens, one bit a token")
    return _Part(entry["name"], start, tokens, bits)


def _check_index(file: Path, entry: dict[str, Any], *, code: int) -> None:
    """Reads the 34-byte header: a foreign file, dtype or byte order shows here."""
    with file.open("rb") as stream:
        header = stream.read(_INDEX_HEADER_BYTES)
    if len(header) < _INDEX_HEADER_BYTES or header[:9] != _INDEX_MAGIC:
        raise TokenStoreError(f"{file} is not a Megatron index: it does not start with {_INDEX_MAGIC!r}")
    version, found = int.from_bytes(header[9:17], "little"), header[17]
    if version != 1 or found != code:
        raise TokenStoreError(
            f"{file}: version {version} and dtype code {found}, expected 1 and {code}; it was written for another "
            f"token type, or on a machine of other endianness"
        )
    boundaries = int.from_bytes(header[26:34], "little")
    if boundaries != entry["num_documents"] + 1:
        raise TokenStoreError(
            f"{file}: {boundaries - 1} documents, the manifest says {entry['num_documents']}; write the store again"
        )


def _map(file: Path, dtype: np.dtype) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(file, dtype, mode="r") if file.stat().st_size else np.zeros(0, dtype)


def _unpack(bits: np.ndarray | None, start: int, stop: int) -> np.ndarray:
    if bits is None:
        return np.ones(stop - start, bool)
    window = np.unpackbits(bits[start // 8 : (stop + 7) // 8], bitorder="little")
    return window[start % 8 :][: stop - start].astype(bool)
