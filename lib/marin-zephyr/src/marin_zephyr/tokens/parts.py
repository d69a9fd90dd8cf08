"""One part of a token store being written: the ids, their index, and the sidecars.

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
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.durability import replace_file, writing
from marin_zephyr.tokens.manifest import FileRecord, PartRecord

if TYPE_CHECKING:
    import numpy as np
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
    header = HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype], len(sizes), len(sizes) + 1)
    return header + sizes.tobytes() + starts.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
