"""One part of a token store being read: views of its files, nothing is loaded.

See: ``docs/reference/token-store.md``; `parts` writes what this reads.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens.manifest import PartRecord
from marin_zephyr.tokens.parts import DTYPE_CODES, HEADER, MAGIC, NUMPY_DTYPES, VERSION, required_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
        return self._view("idx", "<i4", self.record.num_documents, HEADER.size)

    @cached_property
    def offsets(self) -> "NDArray[np.int64]":
        """Where each document starts in the ``.bin``, in bytes: shape ``[num_documents]``."""
        return self._view("idx", "<i8", self.record.num_documents, HEADER.size + 4 * self.record.num_documents)

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
            header = file.read(HEADER.size)
        count = self.record.num_documents
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

    def _view(self, suffix: str, dtype: str, count: int, offset: int = 0) -> "NDArray":
        import numpy as np

        if count == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        path = self.directory / f"{self.record.name}.{suffix}"
        # A plain array over the map: slices of np.memmap itself cost several microseconds each.
        return np.asarray(np.memmap(path, dtype, mode="r", offset=offset, shape=(count,)))
