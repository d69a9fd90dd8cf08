"""A token store, read: one long stream of token ids, local or remote, refused when it is not whole.

The format is a directory of Megatron-core IndexedDataset parts with a manifest written last (the reference page
"The token store" of the documentation). Invariant kept here: an open `TokenStore` agrees with its manifest in every
size and count, so that arithmetic on the manifest (how many sequences, how many bytes) is arithmetic on the data.
Token ids of a local store are not rehashed at open, which costs seconds a gigabyte; sizes, index headers and the
tokenizer's digest are, which costs nothing and finds every truncated or foreign file. What comes over a network is
checked as it comes.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from marin_train.data.blocks import BlockCache, BlockFile, BlockPieces
from marin_train.data.directories import Directory, RemoteDirectory, open_directory
from marin_train.data.stream import MappedPieces, Stream, take_bits, take_windows
from marin_train.errors import TokenStoreError

_SCHEMA_VERSION = 1
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_HEADER_BYTES = 34
_SHA256 = re.compile("[0-9a-f]{64}")
_DTYPES = {"uint16": (8, np.dtype("<u2")), "int32": (4, np.dtype("<i4"))}
"""Name in the manifest -> code in the index (Megatron's) and type in the ``.bin``."""


@dataclass(frozen=True)
class TokenStore:
    """An open store. Documents follow one another in the order of parts, as one stream of ``num_tokens`` ids."""

    path: Path | str
    """Its directory, or its URL."""
    manifest: dict[str, Any]
    digest: str
    """sha256 of ``manifest.json``: it names every file's sha256, so it names the data."""
    directory: Directory

    @classmethod
    def open(cls, path: str | Path, *, cache: BlockCache | None = None) -> Self:
        """Opens a store and checks it against its manifest.

        Args:
            path: the store's directory, or any URL that fsspec knows. From a URL come the blocks that are read, and no
                others; each is checked, and kept on the local disk.
            cache: where blocks of remote stores are kept; by default as `BlockCache` says.

        Raises:
            TokenStoreError: the manifest is absent or of another version, or a file is absent, of another size,
                or contradicts it; the message names the file.

        See: the documentation's reference page "The token store".
        """
        directory = open_directory(path, cache)
        file = directory.name("manifest.json")
        try:
            raw = directory.read("manifest.json")
        except FileNotFoundError:
            if isinstance(directory.path, Path) and not directory.path.exists():
                raise TokenStoreError(
                    f"{directory.path} does not exist (working directory {Path.cwd()}); "
                    f"give the store's directory or URL"
                ) from None
            raise TokenStoreError(
                f"{directory.path} is not a token store: it has no manifest.json. The manifest is written last, so an "
                f"unfinished store has none; run the tokenization again"
            ) from None
        except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
            raise TokenStoreError(f"{file} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        store = cls(directory.path, _parse_manifest(raw, file), hashlib.sha256(raw).hexdigest(), directory)
        store._check_totals()
        store._check_files()
        store._check_indexes()
        # Made here and not at first use, when several threads may ask for them.
        _ = store._tokens, store._mask
        return store

    @property
    def num_tokens(self) -> int:
        """Ids of all documents, special ones included."""
        return self.manifest["num_tokens"]

    @property
    def num_documents(self) -> int:
        """Documents of all parts."""
        return self.manifest["num_documents"]

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the documents' text; special tokens count none."""
        return self.manifest["num_bytes"]

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self.manifest["vocab_size"]

    @property
    def bos_id(self) -> int | None:
        """The id that begins every document, or None."""
        return self.manifest["special_ids"]["bos"]

    @property
    def eos_id(self) -> int | None:
        """The id that ends every document, or None."""
        return self.manifest["special_ids"]["eos"]

    @property
    def tokenizer_digest(self) -> str:
        """sha256 of the ``tokenizer.json`` that the store was written with."""
        return self.manifest["tokenizer"]["digest"]

    @property
    def is_remote(self) -> bool:
        """Whether reading may have to wait for a network."""
        return isinstance(self.directory, RemoteDirectory)

    @property
    def tokenizer_file(self) -> Path:
        """A local file; a remote store's is fetched first."""
        return self.local_file(self.manifest["tokenizer"]["file"])

    @cached_property
    def has_mask(self) -> bool:
        """Whether some part is supervised data, whose ``.mask`` says which tokens count in the loss."""
        return any(f"{part['name']}.mask" in part["files"] for part in self.manifest["parts"])

    @cached_property
    def _tokens(self) -> Stream:
        parts, dtype = self.manifest["parts"], _DTYPES[self.manifest["dtype"]][1]
        if isinstance(self.directory, RemoteDirectory):
            return Stream(self._blocks(self.directory, dtype), take_windows, dtype=np.int32)
        files = [partial(self.local_file, f"{part['name']}.bin") for part in parts]
        return Stream(MappedPieces(self._part_tokens, files, dtype=dtype), take_windows, dtype=np.int32)

    @cached_property
    def _mask(self) -> Stream:
        names = [f"{part['name']}.mask" if f"{part['name']}.mask" in part["files"] else None for part in self._parts]
        files = [None if name is None else partial(self.local_file, name) for name in names]
        return Stream(MappedPieces(self._part_tokens, files, dtype=np.dtype(np.uint8)), take_bits, dtype=bool)

    @property
    def _parts(self) -> list[dict[str, Any]]:
        return self.manifest["parts"]

    @property
    def _part_tokens(self) -> list[int]:
        return [part["num_tokens"] for part in self._parts]

    def _blocks(self, directory: RemoteDirectory, dtype: np.dtype) -> BlockPieces:
        """The token ids of a remote store."""
        for part in self._parts:
            if f"{part['name']}.crc" not in part["files"]:
                raise TokenStoreError(
                    f"{directory.name(part['name'] + '.crc')} is not in the manifest: without it, what comes over "
                    f"a network cannot be checked; copy the store to a local disk, or write it again"
                )
        checksums = self.local_files([f"{part['name']}.crc" for part in self._parts])
        files = []
        for part, file in zip(self._parts, checksums, strict=True):
            name, facts = f"{part['name']}.bin", part["files"][f"{part['name']}.bin"]
            checksum = np.fromfile(file, "<u4")
            files.append(BlockFile(name=name, sha256=facts["sha256"], size=facts["size"], checksums=checksum))
        return BlockPieces(directory, files, dtype=dtype)

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Rows of ``length`` token ids that begin at ``starts``, Int64[n], over part boundaries: Int32[n, length]."""
        return self._tokens.gather(starts, length)

    def gather_into(self, out: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> None:
        """The same, written into those rows, Int64[n], of Int32[rows, length]."""
        self._tokens.gather_into(out, rows, starts)

    def gather_mask(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Which tokens of such rows count in the loss, all where a part has no mask: Bool[n, length]."""
        return self._mask.gather(starts, length)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Token ids ``start`` to ``stop`` of the stream, over part boundaries: Int32[stop - start]."""
        return self._tokens.read(start, stop)

    def read_mask(self, start: int, stop: int) -> np.ndarray:
        """Which of the tokens ``start`` to ``stop`` count in the loss; all of them where a part has no mask."""
        return self._mask.read(start, stop)

    def document_borders(self) -> np.ndarray:
        """Where each document begins in the stream, then ``num_tokens``: Int64[num_documents + 1].

        Raises:
            TokenStoreError: an index's documents are not as long as its tokens are many.
        """
        borders, first, start = np.empty(self.num_documents + 1, np.int64), 0, 0
        borders[0] = 0
        for part, file in zip(self._parts, self.local_files([f"{p['name']}.idx" for p in self._parts]), strict=True):
            last, stop = first + part["num_documents"], start + part["num_tokens"]
            lengths = np.fromfile(file, "<i4", count=part["num_documents"], offset=_INDEX_HEADER_BYTES)
            if len(lengths) != last - first or np.any(lengths < 0) or lengths.sum(dtype=np.int64) != stop - start:
                raise TokenStoreError(
                    f"{self.directory.name(part['name'] + '.idx')}: its documents do not add up to the "
                    f"{part['num_tokens']} tokens of {part['name']}.bin; write the store again"
                )
            borders[first + 1 : last + 1] = start + np.cumsum(lengths, dtype=np.int64)
            first, start = last, stop
        return borders

    def local_file(self, name: str) -> Path:
        """A file of the store on the local disk; a remote store's is fetched whole, and checked.

        Raises:
            TokenStoreError: it cannot be had, or is not the file written.
        """
        return self.local_files([name])[0]

    def local_files(self, names: Sequence[str]) -> list[Path]:
        """The same for several files, fetched together."""
        return self.directory.local_files({name: self._digests[name] for name in names})

    @cached_property
    def _digests(self) -> dict[str, str]:
        tokenizer = self.manifest["tokenizer"]
        files = {name: facts["sha256"] for part in self._parts for name, facts in part["files"].items()}
        return files | {tokenizer["file"]: tokenizer["digest"]}

    def verify(self) -> None:
        """Hashes every file against the manifest, about a second a gigabyte; a remote store is read through for it.

        Raises:
            TokenStoreError: naming the file that is not the one written.
        """
        start = 0
        for part in self._parts:
            stop = start + part["num_tokens"]
            for name, facts in part["files"].items():
                if self.is_remote and name.endswith(".bin"):
                    found = self._hash_tokens(start, stop)
                else:
                    with self.local_file(name).open("rb") as file:
                        found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != facts["sha256"]:
                    raise TokenStoreError(
                        f"{self.directory.name(name)}: sha256 differs from the manifest's; tokenize again"
                    )
            start = stop

    def _hash_tokens(self, start: int, stop: int) -> str:
        """sha256 of a part's ``.bin``, by way of the blocks, which are then at hand for whoever reads on."""
        dtype, window = _DTYPES[self.manifest["dtype"]][1], 1 << 24
        hasher = hashlib.sha256()
        for begin in range(start, stop, window):
            hasher.update(self.read(begin, min(begin + window, stop)).astype(dtype))
        return hasher.hexdigest()

    def _check_totals(self) -> None:
        for field in ("num_documents", "num_tokens", "num_bytes"):
            total = sum(entry[field] for entry in self._parts)
            if total != self.manifest[field]:
                raise TokenStoreError(
                    f"{self.directory.name('manifest.json')}: {field}={self.manifest[field]}, but the parts sum to "
                    f"{total}; write the store again"
                )

    def _check_files(self) -> None:
        """Every file is there and has its size, and those of token ids and masks hold as many as they should."""
        wanted = {name: facts["size"] for part in self._parts for name, facts in part["files"].items()}
        for name, size in self.directory.sizes(wanted).items():
            if size != wanted[name]:
                raise TokenStoreError(
                    f"{self.directory.name(name)}: size is {'absent' if size is None else size}, the manifest says "
                    f"{wanted[name]} bytes; the store is damaged or was copied only in part"
                )
        itemsize = _DTYPES[self.manifest["dtype"]][1].itemsize
        for part in self._parts:
            name, tokens = part["name"], part["num_tokens"]
            sizes = {"bin": tokens * itemsize, "mask": (tokens + 7) // 8, "crc": -(-tokens * itemsize >> 20) * 4}
            for suffix, size in sizes.items():
                if wanted.get(f"{name}.{suffix}", size) != size:
                    raise TokenStoreError(
                        f"{self.directory.name(f'{name}.{suffix}')} has {wanted[f'{name}.{suffix}']} bytes; {tokens} "
                        f"tokens of {self.manifest['dtype']} take {size}"
                    )

    def _check_indexes(self) -> None:
        """The tokenizer is the one written with, and each index is of these parts."""
        tokenizer = self.manifest["tokenizer"]
        self.directory.check_digest(tokenizer["file"], tokenizer["digest"])
        names = [f"{part['name']}.idx" for part in self._parts]
        for part, header in zip(self._parts, self.directory.heads(names, _INDEX_HEADER_BYTES), strict=True):
            name = self.directory.name(f"{part['name']}.idx")
            _check_index(header, name, num_documents=part["num_documents"], code=_DTYPES[self.manifest["dtype"]][0])


def _parse_manifest(raw: bytes, file: str) -> dict[str, Any]:
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
        for name, facts in entry["files"].items():
            _require(facts, {"size": int, "sha256": str}, file, f"parts[{i}].files[{name!r}].")
            # Both become names of files on this machine.
            if "/" in name or not _SHA256.fullmatch(facts["sha256"]):
                raise TokenStoreError(f"{file}: {name!r} with sha256 {facts['sha256']!r} is no file of a token store")
        for name in (f"{entry['name']}.bin", f"{entry['name']}.idx"):
            if name not in entry["files"]:
                raise TokenStoreError(f"{file}: {name} is not among the files of {entry['name']}")
    if manifest["dtype"] not in _DTYPES:
        raise TokenStoreError(f"{file}: dtype={manifest['dtype']!r}, known are {sorted(_DTYPES)}")
    return manifest


def _require(record: Any, types: dict[str, Any], file: str, where: str) -> None:
    for name, kind in types.items():
        if not isinstance(record, dict) or name not in record or not isinstance(record[name], kind):
            found = record.get(name, "absent") if isinstance(record, dict) else record
            raise TokenStoreError(f"{file}: {where}{name} is {found!r}, expected {getattr(kind, '__name__', kind)}")


def _check_index(header: bytes, file: str, *, num_documents: int, code: int) -> None:
    """The first 34 bytes: a foreign file, dtype or byte order shows here."""
    if len(header) < _INDEX_HEADER_BYTES or header[:9] != _INDEX_MAGIC:
        raise TokenStoreError(f"{file} is not a Megatron index: it does not start with {_INDEX_MAGIC!r}")
    version, found = int.from_bytes(header[9:17], "little"), header[17]
    if version != 1 or found != code:
        raise TokenStoreError(
            f"{file}: version {version} and dtype code {found}, expected 1 and {code}; it was written for another "
            f"token type, or on a machine of other endianness"
        )
    boundaries = int.from_bytes(header[26:34], "little")
    if boundaries != num_documents + 1:
        raise TokenStoreError(
            f"{file}: {boundaries - 1} documents, the manifest says {num_documents}; write the store again"
        )
