"""One part of a token store, being read: views of its files, nothing is loaded before it is asked for.

The ids of a local part are mapped into memory; those of a remote one come block by block (`directories`).

See: ``docs/reference/token-store.md``; `parts` writes what this reads.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens.directories import LocalDirectory, RemoteDirectory
from marin_zephyr.tokens.manifest import PartRecord
from marin_zephyr.tokens.parts import (
    BLOCK_BYTES,
    DTYPE_CODES,
    HEADER,
    MAGIC,
    NUMPY_DTYPES,
    VERSION,
    required_files,
)

PART_FILE = re.compile(r"part-\d{5,}\.(bin|idx|bytes|crc|mask|sources)")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Part:
    """A part of an open store.

    Attributes:
        directory: where the store's files lie.
        record: the part as the manifest describes it.
        dtype: ``uint16`` or ``int32``.
    """

    directory: LocalDirectory | RemoteDirectory
    record: PartRecord
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return 2 if self.dtype == "uint16" else 4

    def file(self, suffix: str) -> str:
        """The name of one of its files."""
        return f"{self.record.name}.{suffix}"

    def tokens(self, start: int, stop: int) -> "NDArray[np.integer]":
        """The part's ids ``start`` to ``stop``, which lie within it: shape ``[stop - start]``, read-only."""
        import numpy as np

        if isinstance(self.directory, LocalDirectory):
            return self._ids[start:stop]
        if start == stop:
            return np.zeros(0, NUMPY_DTYPES[self.dtype])
        name, (first, last) = self.file("bin"), self.blocks_of(start, stop)
        blocks = self.directory.blocks(name, self.record.files[name], self.checksums, first=first, last=last)
        begin = start * self.itemsize - first * BLOCK_BYTES
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return np.frombuffer(data, NUMPY_DTYPES[self.dtype], stop - start, begin)

    def blocks_of(self, start: int, stop: int) -> tuple[int, int]:
        """The first and the last block of the ``.bin`` that hold an id of ``start`` to ``stop``."""
        return start * self.itemsize // BLOCK_BYTES, (stop * self.itemsize - 1) // BLOCK_BYTES

    def document(self, index: int) -> "NDArray[np.integer]":
        """The ids of the part's document ``index``."""
        start = int(self.offsets[index]) // self.itemsize
        return self.tokens(start, start + int(self.lengths[index]))

    def mask(self, start: int, stop: int) -> "NDArray[np.bool_]":
        """Which of the part's ids ``start`` to ``stop`` count in the loss: all, where the part has no mask."""
        import numpy as np

        if self._mask is None:
            return np.ones(stop - start, np.bool_)
        window = np.unpackbits(self._mask[start // 8 : -(-stop // 8)], bitorder="little")
        return window[start % 8 :][: stop - start].astype(np.bool_)

    @cached_property
    def lengths(self) -> "NDArray[np.int32]":
        """Tokens of each document: shape ``[num_documents]``."""
        return self._index[: 4 * self.record.num_documents].view("<i4")

    @cached_property
    def offsets(self) -> "NDArray[np.int64]":
        """Where each document starts in the ``.bin``, in bytes: shape ``[num_documents]``."""
        count = self.record.num_documents
        return self._index[4 * count : 12 * count].view("<i8")

    @cached_property
    def boundaries(self) -> "NDArray[np.int64]":
        """The index of each document's first sequence, and the number of sequences: shape ``[num_documents + 1]``."""
        return self._index[12 * self.record.num_documents :].view("<i8")

    @cached_property
    def text_bytes(self) -> "NDArray[np.int64]":
        """UTF-8 bytes of each document's text: shape ``[num_documents]``."""
        return self._view("bytes").view("<i8")

    @cached_property
    def checksums(self) -> list[int]:
        """The CRC32 of each block of the ``.bin``."""
        return self._view("crc").view("<u4").tolist()

    @cached_property
    def sources(self) -> tuple[list[str], list[int]] | None:
        """The name of each run of documents of one source, and the runs' beginnings and end; None if not told."""
        if self.file("sources") not in self.record.files:
            return None
        runs = [json.loads(line) for line in self._view("sources").tobytes().splitlines()]
        return [source for source, _ in runs], [0, *accumulate(count for _, count in runs)]

    def check(self, sizes: Mapping[str, int]) -> None:
        """Compares the files' sizes, and the index's header where it is at hand, with the manifest.

        Args:
            sizes: of the files that are there.

        Raises:
            TokenStoreError: a file is absent, of another size, or the index is of another kind; it names the file.
        """
        for name in required_files(self.record.name):
            if name not in self.record.files:
                raise TokenStoreError(f"{self.directory}: the manifest does not list {name}")
        if strange := [name for name in self.record.files if not PART_FILE.fullmatch(name)]:
            raise TokenStoreError(f"{self.directory}: the manifest lists {strange[0]!r}, which is no file of a part")
        for name, file in self.record.files.items():
            if (size := sizes.get(name)) != file.size:
                found = "is missing" if size is None else f"has {size} bytes"
                raise TokenStoreError(
                    f"{self.directory.path(name)} {found}, the manifest says {file.size} bytes: restore it, or "
                    f"tokenize again"
                )
        for suffix, size in self._sizes().items():
            name = self.file(suffix)
            if name in self.record.files and self.record.files[name].size != size:
                raise TokenStoreError(
                    f"{self.directory.path(name)} has {self.record.files[name].size} bytes; a part of "
                    f"{self.record.num_documents} documents and {self.record.num_tokens} tokens has {size} of them"
                )
        if isinstance(self.directory, LocalDirectory):
            name = self.file("idx")
            with self.directory.local(name, self.record.files[name]).open("rb") as file:
                self._check_header(file.read(HEADER.size))

    def _sizes(self) -> dict[str, int]:
        """How large each file is by the part's counts."""
        documents, tokens = self.record.num_documents, self.record.num_tokens
        num_bytes = tokens * self.itemsize
        return {
            "bin": num_bytes,
            "idx": HEADER.size + 20 * documents + 8,
            "bytes": 8 * documents,
            "crc": 4 * -(-num_bytes // BLOCK_BYTES),
            "mask": -(-tokens // 8),
        }

    def _check_header(self, header: bytes) -> None:
        path, count = self.directory.path(self.file("idx")), self.record.num_documents
        expected = HEADER.pack(MAGIC, VERSION, DTYPE_CODES[self.dtype], count, count + 1)
        if header == expected:
            return
        if header[: len(MAGIC)] != MAGIC:
            raise TokenStoreError(f"{path} is no index: it does not begin with {MAGIC[:7].decode()}")
        if header[9:17] == VERSION.to_bytes(8, "big"):
            raise TokenStoreError(f"{path} is big-endian: a store is little-endian on every machine")
        _, version, code, sequences, boundaries = HEADER.unpack(header)
        raise TokenStoreError(
            f"{path} says version {version}, dtype code {code}, {sequences} sequences, {boundaries} boundaries; "
            f"by the manifest they are {VERSION}, {DTYPE_CODES[self.dtype]}, {count}, {count + 1}"
        )

    @cached_property
    def _ids(self) -> "NDArray[np.integer]":
        return self._view("bin").view(NUMPY_DTYPES[self.dtype])

    @cached_property
    def _index(self) -> "NDArray[np.uint8]":
        """The ``.idx`` after its header, which a remote part could not show before."""
        data = self._view("idx")
        self._check_header(data[: HEADER.size].tobytes())
        return data[HEADER.size :]

    @cached_property
    def _mask(self) -> "NDArray[np.uint8] | None":
        return self._view("mask") if self.file("mask") in self.record.files else None

    def _view(self, suffix: str) -> "NDArray[np.uint8]":
        """All bytes of a file, mapped into memory."""
        import numpy as np

        name = self.file(suffix)
        if self.record.files[name].size == 0:  # an empty file cannot be mapped
            return np.zeros(0, np.uint8)
        path = self.directory.local(name, self.record.files[name])
        try:
            mapped = np.memmap(path, np.uint8, mode="r")
        except FileNotFoundError:  # another process needed the room in the cache, in this very moment
            mapped = np.memmap(self.directory.local(name, self.record.files[name]), np.uint8, mode="r")
        # A plain array over the map: slices of np.memmap itself cost several microseconds each.
        return np.asarray(mapped)
