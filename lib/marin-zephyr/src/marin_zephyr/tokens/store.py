"""Reading a token store.

`TokenStore.open` looks at the manifest and at the size and header of every file, so that a store that opens is whole;
`TokenStore.verify` reads every byte. Ids are views of memory-mapped files: a document or a range of tokens costs no
copy unless it spans parts. Documents and tokens are numbered across the parts, from 0.

See: ``docs/reference/token-store.md``.
"""

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from marin_zephyr.durability import file_digest
from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens.manifest import Manifest
from marin_zephyr.tokens.parts import BLOCK_BYTES, NUMPY_DTYPES
from marin_zephyr.tokens.reading import Part
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Location(NamedTuple):
    """Where a token is.

    Attributes:
        part: the part's name.
        document: the document's number in the store.
        offset: the token's number in that document.
        source: the name of the file that the document came from (see `TokenStore.source`).
    """

    part: str
    document: int
    offset: int
    source: str | None


@dataclass(frozen=True)
class Damage:
    """A file whose content is not what was written. ``block`` is the 1 MiB block of the ids, where that is known."""

    file: str
    block: int | None

    def __str__(self) -> str:
        if self.block is None:
            return f"{self.file}: sha256 differs from the manifest's"
        return f"{self.file}: block {self.block} (bytes from {self.block * BLOCK_BYTES:,}) fails its CRC"


@dataclass(frozen=True)
class TokenStore:
    """A token store that is open for reading.

    Attributes:
        path: its directory.
        manifest: what is in it.
        parts: the parts, in the order of their documents.
    """

    path: Path
    manifest: Manifest
    parts: tuple[Part, ...]

    @classmethod
    def open(cls, path: str | Path) -> "TokenStore":
        """Opens the store in the directory ``path``.

        Raises:
            TokenStoreError: there is no manifest, or a file is missing, of another size, of another kind, or another
                tokenizer; the message names it.
        """
        directory = Path(path)
        manifest = Manifest.read(directory)
        if manifest.dtype not in NUMPY_DTYPES:
            raise TokenStoreError(f"{directory}: dtype is {manifest.dtype!r}, not one of {', '.join(NUMPY_DTYPES)}")
        parts = tuple(Part(directory=directory, record=record, dtype=manifest.dtype) for record in manifest.parts)
        for part in parts:
            part.check()
        tokenizer = directory / TOKENIZER_FILE
        if not tokenizer.is_file():
            raise TokenStoreError(f"{tokenizer} is missing")
        if file_digest(tokenizer) != manifest.tokenizer_digest:
            raise TokenStoreError(f"{tokenizer} is not the tokenizer that the store was made with: its sha256 differs")
        return cls(path=directory, manifest=manifest, parts=parts)

    @property
    def num_documents(self) -> int:
        """Documents in the store."""
        return self.manifest.num_documents

    @property
    def num_tokens(self) -> int:
        """Ids in the store, special ones included."""
        return self.manifest.num_tokens

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the text of all documents."""
        return self.manifest.num_bytes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the store was made with, loaded on first use."""
        return load_tokenizer(self.path)

    def document(self, index: int) -> "NDArray[np.integer]":
        """The ids of document ``index``, special ones included: shape ``[tokens]``, read-only.

        Raises:
            IndexError: there is no such document.
        """
        part, within = _find(self._first_documents, index, "document")
        return self.parts[part].document(within)

    def text(self, index: int) -> str:
        """The text of document ``index``, without the ids that begin and end it."""
        ids = self.document(index)
        begin = 0 if self.manifest.bos_id is None else 1
        end = len(ids) if self.manifest.eos_id is None else len(ids) - 1
        return self.tokenizer.decode(ids[begin:end])

    def tokens(self, start: int, stop: int) -> "NDArray[np.integer]":
        """The ids ``start`` to ``stop`` of the store: shape ``[stop - start]``.

        Raises:
            IndexError: the range does not lie within the store.
        """
        import numpy as np

        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} of a store of {self.num_tokens}")
        if start == stop:
            return np.zeros(0, NUMPY_DTYPES[self.manifest.dtype])
        first, _ = _find(self._first_tokens, start, "token")
        last, _ = _find(self._first_tokens, stop - 1, "token")
        begins = self._first_tokens
        slices = [
            self.parts[number].ids[max(start - begins[number], 0) : stop - begins[number]]
            for number in range(first, last + 1)
        ]
        return slices[0] if len(slices) == 1 else np.concatenate(slices)

    def locate(self, token: int) -> Location:
        """The part, the document and the file that token ``token`` of the store belongs to.

        Raises:
            IndexError: there is no such token.
        """
        import numpy as np

        number, within = _find(self._first_tokens, token, "token")
        part = self.parts[number]
        starts = part.offsets // part.ids.itemsize
        document = int(np.searchsorted(starts, within, side="right")) - 1
        index = self._first_documents[number] + document
        return Location(part.record.name, index, within - int(starts[document]), self.source(index))

    def source(self, index: int) -> str | None:
        """The name of the file that document ``index`` came from.

        That is what the input's column ``source`` says, where it has one, as a corpus has: the raw file, relative to
        the raw corpus's root. Where it has none, it is the name of the file that was tokenized; and it is None in a
        store that another tool wrote without the sidecar ``.sources``.

        Raises:
            IndexError: there is no such document.
        """
        number, within = _find(self._first_documents, index, "document")
        if (sources := self.parts[number].sources) is None:
            return None
        names, firsts = sources
        return names[_find(firsts, within, "document")[0]]

    def verify(self) -> tuple[Damage, ...]:
        """Reads every byte of every part; what is damaged, or nothing."""
        return tuple(damage for part in self.parts for damage in _verify(part))

    @cached_property
    def _first_documents(self) -> list[int]:
        return [0, *accumulate(record.num_documents for record in self.manifest.parts)]

    @cached_property
    def _first_tokens(self) -> list[int]:
        return [0, *accumulate(record.num_tokens for record in self.manifest.parts)]


def _find(firsts: Sequence[int], index: int, kind: str) -> tuple[int, int]:
    """Which stretch ``index`` falls in, and where in it; ``firsts`` are the stretches' beginnings and the total."""
    if not 0 <= index < firsts[-1]:
        raise IndexError(f"{kind} {index} of a store of {firsts[-1]}")
    number = bisect_right(firsts, index) - 1
    return number, index - firsts[number]


def _verify(part: Part) -> Iterator[Damage]:
    """The damage in one part: by block in the ids, by file in the rest."""
    ids = f"{part.record.name}.bin"
    for name, record in part.record.files.items():
        if name != ids and file_digest(part.directory / name) != record.sha256:
            yield Damage(file=name, block=None)
    checksums = (part.directory / f"{part.record.name}.crc").read_bytes()
    expected = [int.from_bytes(checksums[at : at + 4], "little") for at in range(0, len(checksums), 4)]
    digest = hashlib.sha256()
    bad_blocks: list[int] = []
    with (part.directory / ids).open("rb") as file:
        for number, checksum in enumerate(expected):
            block = file.read(BLOCK_BYTES)
            digest.update(block)
            if zlib.crc32(block) != checksum:
                bad_blocks.append(number)
        digest.update(file.read())
    if digest.hexdigest() != part.record.files[ids].sha256:
        yield from (Damage(file=ids, block=block) for block in bad_blocks or [None])
