"""One part of a token store on disk: the ids, their index, and the sidecars.

A part holds whole documents only. It is written in one pass over its documents, with checksums taken on the way, and
nothing of it is kept in memory but a few numbers a document. The index is Megatron-core's IndexedDataset with one
sequence a document, so that Megatron, NeMo and ``numpy.memmap`` read the same files.

See: ``docs/reference/token-store.md``; NVIDIA Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``.
"""

import hashlib
import json
import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.durability import replace_file, writing
from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens.manifest import FileRecord, PartRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20  # what one CRC covers
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, document boundaries
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPE_CODES = {"int32": 4, "uint16": 8}
NUMPY_DTYPES = {"int32": "<i4", "uint16": "<u2"}
_UINT16_BELOW = 65_500


def dtype_for(vocab_size: int) -> str:
    """``uint16`` for a vocabulary below 65,500, else ``int32``: Megatron-core's own rule."""
    return "uint16" if vocab_size < _UINT16_BELOW else "int32"


def part_name(number: int) -> str:
    """``part-00000`` and so on."""
    return f"part-{number:05d}"


def required_files(name: str) -> tuple[str, ...]:
    """The names of the files that no part lacks, the ids first."""
    return tuple(f"{name}.{suffix}" for suffix in ("bin", "idx", "bytes", "crc"))


class PartWriter:
    """Writes one part, document by document, and tells what it has written.

    Args:
        directory: where the files go; files of that name are overwritten.
        name: the part's name, as `part_name` makes it.
        dtype: ``uint16`` or ``int32``.
    """

    def __init__(self, directory: Path, name: str, *, dtype: str) -> None:
        self.name = name
        self.num_tokens = 0
        self._directory = directory
        self._dtype = dtype
        self._lengths = array("i")
        self._text_bytes = array("q")
        self._sources: list[tuple[str, int]] = []  # runs of documents of one source: its name, and their number
        self._checksums = array("I")
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()
        self._path = directory / f"{name}.bin"
        with writing(self._path):
            self._file = self._path.open("wb")

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        return len(self._lengths)

    def append(self, ids: "NDArray[np.integer]", *, num_bytes: int, source: str) -> None:
        """Adds one document.

        Args:
            ids: shape ``[tokens]``, special ones included.
            num_bytes: the UTF-8 length of its text.
            source: the name of the file that it came from.
        """
        run = self._sources.pop() if self._sources and self._sources[-1][0] == source else (source, 0)
        self._sources.append((source, run[1] + 1))
        self._lengths.append(len(ids))
        self._text_bytes.append(num_bytes)
        self.num_tokens += len(ids)
        self._pending += ids.astype(NUMPY_DTYPES[self._dtype]).tobytes()
        whole = len(self._pending) - len(self._pending) % BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            self._write_block(self._pending[start : start + BLOCK_BYTES])
        del self._pending[:whole]

    def finish(self) -> PartRecord:
        """Writes what is left, the index and the sidecars, all flushed to the disk."""
        import numpy as np

        if self._pending:
            self._write_block(self._pending)
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        sidecars = {
            "idx": index_bytes(self._lengths, dtype=self._dtype),
            "bytes": np.asarray(self._text_bytes, "<i8").tobytes(),
            "crc": np.asarray(self._checksums, "<u4").tobytes(),
            "sources": "".join(json.dumps(run) + "\n" for run in self._sources).encode(),
        }
        files = {f"{self.name}.bin": FileRecord(size=self._size, sha256=self._digest.hexdigest())}
        for suffix, data in sidecars.items():
            replace_file(self._directory / f"{self.name}.{suffix}", data)
            files[f"{self.name}.{suffix}"] = FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return PartRecord(
            name=self.name,
            num_documents=len(self._lengths),
            num_tokens=self.num_tokens,
            num_bytes=sum(self._text_bytes),
            files=files,
        )

    def close(self) -> None:
        """Gives the file back; a part that was not finished is not one."""
        self._file.close()

    def _write_block(self, block: bytearray) -> None:
        self._checksums.append(zlib.crc32(block))
        self._digest.update(block)
        self._size += len(block)
        with writing(self._path):
            self._file.write(block)


def index_bytes(lengths: Sequence[int], *, dtype: str) -> bytes:
    """The ``.idx`` of documents of ``lengths`` tokens, one sequence each."""
    import numpy as np

    sizes = np.asarray(lengths, "<i4")
    ends = np.cumsum(sizes, dtype="<i8") * np.dtype(NUMPY_DTYPES[dtype]).itemsize
    starts = np.concatenate([np.zeros(1, "<i8"), ends])[: len(sizes)]
    header = _HEADER.pack(_MAGIC, _VERSION, _DTYPE_CODES[dtype], len(sizes), len(sizes) + 1)
    return header + sizes.tobytes() + starts.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()


@dataclass(frozen=True)
class Part:
    """A part that is read: nothing is loaded, everything is a view of the files.

    Attributes:
        directory: the store.
        record: the part as the manifest describes it.
        dtype: ``uint16`` or ``int32``.
    """

    directory: Path
    record: PartRecord
    dtype: str

    @cached_property
    def ids(self) -> "NDArray[np.integer]":
        """All ids, documents one after the other: shape ``[num_tokens]``."""
        return self._view("bin", NUMPY_DTYPES[self.dtype], self.record.num_tokens)

    @cached_property
    def lengths(self) -> "NDArray[np.int32]":
        """Tokens of each document: shape ``[num_documents]``."""
        return self._view("idx", "<i4", self.record.num_documents, _HEADER.size)

    @cached_property
    def offsets(self) -> "NDArray[np.int64]":
        """Where each document starts in the ``.bin``, in bytes: shape ``[num_documents]``."""
        return self._view("idx", "<i8", self.record.num_documents, _HEADER.size + 4 * self.record.num_documents)

    @cached_property
    def text_bytes(self) -> "NDArray[np.int64]":
        """UTF-8 bytes of each document's text: shape ``[num_documents]``."""
        return self._view("bytes", "<i8", self.record.num_documents)

    @cached_property
    def sources(self) -> tuple[list[str], list[int]] | None:
        """The name of each run of documents of one source, and the runs' beginnings and end; None if not told."""
        name = f"{self.record.name}.sources"
        if name not in self.record.files:
            return None
        runs = [json.loads(line) for line in (self.directory / name).read_text(encoding="utf-8").splitlines()]
        return [source for source, _ in runs], [0, *accumulate(count for _, count in runs)]

    def document(self, index: int) -> "NDArray[np.integer]":
        """The ids of the part's document ``index``."""
        start = int(self.offsets[index]) // self.ids.itemsize
        return self.ids[start : start + int(self.lengths[index])]

    def check(self) -> None:
        """Compares the files' sizes and the index's header with the manifest.

        Raises:
            TokenStoreError: a file is absent, of another size, or the index is of another kind; it names the file.
        """
        for name in required_files(self.record.name):
            if name not in self.record.files:
                raise TokenStoreError(f"{self.directory}: the manifest does not list {name}")
        for name, file in self.record.files.items():
            path = self.directory / name
            size = path.stat().st_size if path.is_file() else None
            if size != file.size:
                found = "is missing" if size is None else f"has {size} bytes"
                raise TokenStoreError(
                    f"{path} {found}, the manifest says {file.size} bytes: restore it, or tokenize again"
                )
        self._check_header()

    def _check_header(self) -> None:
        path = self.directory / f"{self.record.name}.idx"
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
        count = self.record.num_documents
        expected = _HEADER.pack(_MAGIC, _VERSION, _DTYPE_CODES[self.dtype], count, count + 1)
        if header == expected:
            return
        if header[: len(_MAGIC)] != _MAGIC:
            raise TokenStoreError(f"{path} is no index: it does not begin with {_MAGIC[:7].decode()}")
        if header[9:17] == _VERSION.to_bytes(8, "big"):
            raise TokenStoreError(f"{path} is big-endian: a store is little-endian on every machine")
        _, version, code, sequences, boundaries = _HEADER.unpack(header)
        raise TokenStoreError(
            f"{path} says version {version}, dtype code {code}, {sequences} sequences, {boundaries} boundaries; "
            f"by the manifest they are {_VERSION}, {_DTYPE_CODES[self.dtype]}, {count}, {count + 1}"
        )

    def _view(self, suffix: str, dtype: str, count: int, offset: int = 0) -> "NDArray":
        import numpy as np

        if count == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        path = self.directory / f"{self.record.name}.{suffix}"
        # A plain array over the map: slices of np.memmap itself cost several microseconds each.
        return np.asarray(np.memmap(path, dtype, mode="r", offset=offset, shape=(count,)))
