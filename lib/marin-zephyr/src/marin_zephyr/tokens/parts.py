"""One part of a token store being written: the ids, their index, and the sidecars.

A part holds whole documents only. It is written in one pass over its documents, with checksums taken on the way, and
nothing of it is kept in memory but a few numbers a document, and a bit a token where there is a mask. The index is
Megatron-core's IndexedDataset with one sequence a document, so that Megatron, NeMo and ``numpy.memmap`` read the same
files.

See: ``docs/reference/token-store.md``; NVIDIA Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``.
"""

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.durability import replace_file, writing
from marin_zephyr.tokens.manifest import FileRecord, PartRecord

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20  # what one CRC covers
HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, document boundaries
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES = {"int32": 4, "uint16": 8}
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
    """Writes one part, a run of documents at a time, and tells what it has written.

    Args:
        directory: where the files go; files of that name are overwritten.
        name: the part's name, as `part_name` makes it.
        dtype: ``uint16`` or ``int32``.
    """

    def __init__(self, directory: Path, name: str, *, dtype: str) -> None:
        self.name = name
        self.num_tokens = 0
        self.num_documents = 0
        self._directory = directory
        self._dtype = dtype
        self._lengths: list[NDArray[np.int64]] = []
        self._text_bytes: list[NDArray[np.int64]] = []
        self._sources: list[tuple[str, int]] = []  # runs of documents of one source: its name, and their number
        self._mask: MaskBits | None = None
        self._checksums: list[int] = []
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()
        self._path = directory / f"{name}.bin"
        with writing(self._path):
            self._file = self._path.open("wb")

    def append(
        self,
        ids: "NDArray[np.integer]",
        *,
        lengths: "NDArray[np.int64]",
        num_bytes: "NDArray[np.int64]",
        sources: "pl.Series",
        mask: "NDArray[np.bool_] | None" = None,
    ) -> None:
        """Adds documents.

        Args:
            ids: shape ``[tokens]``, the documents' ids one after the other, special ones included.
            lengths: shape ``[documents]``, ids of each: at least 1.
            num_bytes: shape ``[documents]``, the UTF-8 length of each text.
            sources: String, one a document, the name of the file that it came from.
            mask: shape ``[tokens]``, which ids count in the loss; None where all do.
        """
        for source, run in groupby(sources.to_list()):
            before = self._sources.pop()[1] if self._sources and self._sources[-1][0] == source else 0
            self._sources.append((source, before + sum(1 for _ in run)))
        self._lengths.append(lengths)
        self._text_bytes.append(num_bytes)
        if mask is not None and self._mask is None:
            self._mask = MaskBits()
            self._mask.append(None, self.num_tokens)
        if self._mask is not None:
            self._mask.append(mask, len(ids))
        self.num_tokens += len(ids)
        self.num_documents += len(lengths)
        self._pending += ids.astype(NUMPY_DTYPES[self._dtype]).tobytes()
        whole = len(self._pending) - len(self._pending) % BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            self._write_block(self._pending[start : start + BLOCK_BYTES])
        if whole:
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
        lengths, text_bytes = np.concatenate(self._lengths), np.concatenate(self._text_bytes)
        sidecars = {
            "idx": index_bytes(lengths, dtype=self._dtype),
            "bytes": text_bytes.astype("<i8").tobytes(),
            "crc": np.asarray(self._checksums, "<u4").tobytes(),
            "sources": "".join(json.dumps(run) + "\n" for run in self._sources).encode(),
            **({} if self._mask is None else {"mask": self._mask.to_bytes()}),
        }
        files = {f"{self.name}.bin": FileRecord(size=self._size, sha256=self._digest.hexdigest())}
        for suffix, data in sidecars.items():
            replace_file(self._directory / f"{self.name}.{suffix}", data)
            files[f"{self.name}.{suffix}"] = FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return PartRecord(
            name=self.name,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            num_bytes=int(text_bytes.sum()),
            files=files,
        )

    def close(self) -> None:
        """Gives the file back; a part that was not finished is not one, so that what cannot be flushed is no loss."""
        with suppress(OSError):
            self._file.close()

    def _write_block(self, block: bytearray) -> None:
        from isal import isal_zlib

        self._checksums.append(isal_zlib.crc32(block))
        self._digest.update(block)
        self._size += len(block)
        with writing(self._path):
            self._file.write(block)


class MaskBits:
    """Bits one after the other, eight in a byte, the first of them the least; a byte goes on with the next run."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._num_bits = 0

    def append(self, bits: "NDArray[np.bool_] | None", count: int) -> None:
        """Adds ``bits``, or ``count`` ones where there are none."""
        import numpy as np

        bits = np.ones(count, np.bool_) if bits is None else bits
        if used := self._num_bits % 8:  # the last byte is begun
            last = np.unpackbits(np.frombuffer(self._packed[-1:], np.uint8), count=used, bitorder="little")
            bits = np.concatenate([last.astype(np.bool_), bits])
            del self._packed[-1:]
        self._packed += np.packbits(bits, bitorder="little").tobytes()
        self._num_bits += count

    def to_bytes(self) -> bytes:
        """The bits; those of the last byte that are none are 0."""
        return bytes(self._packed)


def index_bytes(lengths: "Sequence[int] | NDArray[np.integer]", *, dtype: str) -> bytes:
    """The ``.idx`` of documents of ``lengths`` tokens, one sequence each."""
    import numpy as np

    sizes = np.asarray(lengths, "<i4")
    ends = np.cumsum(sizes, dtype="<i8") * np.dtype(NUMPY_DTYPES[dtype]).itemsize
    starts = np.concatenate([np.zeros(1, "<i8"), ends])[: len(sizes)]
    header = HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype], len(sizes), len(sizes) + 1)
    return header + sizes.tobytes() + starts.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
