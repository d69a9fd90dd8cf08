"""Reading a token store, in a directory or behind a URL.

`TokenStore.open` looks at the manifest and at the size of every file, so that a store that opens is whole;
`TokenStore.verify` reads every byte. Ids of a local store are views of memory-mapped files: a document or a range of
tokens costs no copy unless it spans parts. Of a remote store only the blocks that are asked for are fetched, checked,
and kept on the disk (`directories`). Documents and tokens are numbered across the parts, from 0.

See: ``docs/reference/token-store.md``.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from marin_zephyr.errors import TokenStoreError
from marin_zephyr.progress import Progress
from marin_zephyr.tokens import verification
from marin_zephyr.tokens.directories import LocalDirectory, RemoteDirectory, open_directory
from marin_zephyr.tokens.manifest import MANIFEST_FILE, FileRecord, Manifest
from marin_zephyr.tokens.parts import NUMPY_DTYPES
from marin_zephyr.tokens.reading import PART_FILE, Part
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from marin_zephyr.tokens.verification import Damage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Damage", "Location", "TokenStore"]


class Location(NamedTuple):
    """Where a token is.

    Attributes:
        part: the part's name.
        document: the document's number in the store.
        offset: the token's number in that document.
        source: the name of the file that the document came from (see `TokenStore.source`).
        input: the name of the file that was tokenized.
        row: the document's row in that file, from 0; None where rows were left out of the store, so that it cannot
            be told.
    """

    part: str
    document: int
    offset: int
    source: str | None
    input: str | None
    row: int | None


@dataclass(frozen=True)
class TokenStore:
    """A token store that is open for reading.

    Attributes:
        directory: where its files lie.
        manifest: what is in it.
        parts: the parts, in the order of their documents.
    """

    directory: LocalDirectory | RemoteDirectory
    manifest: Manifest
    parts: tuple[Part, ...]

    @classmethod
    def open(
        cls, where: str | Path, *, cache_dir: str | Path | None = None, cache_bytes: int | None = None
    ) -> "TokenStore":
        """Opens the store in a directory or behind a URL.

        Args:
            where: the store's directory, or a URL that fsspec knows: ``s3://bucket/store``, ``https://...``.
            cache_dir: where blocks of remote stores are kept; by default below ``$MARIN_CACHE``, else the user's cache.
            cache_bytes: how much of them is kept, by default ``$MARIN_CACHE_GB`` gigabytes, else 32; what was not used
                for longest goes first.

        Raises:
            TokenStoreError: there is no manifest, or a file is missing, of another size, of another kind, not in the
                manifest, or another tokenizer; the message names it.
            InputError: the URL cannot be reached.
            MissingExtraError: the URL's protocol needs an extra; the message has its install line.
        """
        directory = open_directory(where, cache_dir=cache_dir, cache_bytes=cache_bytes)
        content = directory.read(MANIFEST_FILE)
        if content is None:
            raise TokenStoreError(_why_none(directory))
        manifest = Manifest.from_bytes(content, where=directory.path(MANIFEST_FILE))
        if manifest.dtype not in NUMPY_DTYPES:
            raise TokenStoreError(
                f"{directory.path(MANIFEST_FILE)}: dtype is {manifest.dtype!r}, not one of {', '.join(NUMPY_DTYPES)}"
            )
        parts = tuple(Part(directory=directory, record=record, dtype=manifest.dtype) for record in manifest.parts)
        listed = [name for record in manifest.parts for name in record.files]
        sizes = directory.sizes([TOKENIZER_FILE, *listed])
        for part in parts:
            part.check(sizes)
        if strangers := sorted(set(filter(PART_FILE.fullmatch, sizes)).difference(listed)):
            raise TokenStoreError(
                f"{directory.path(strangers[0])} is not in the manifest: another store's file? Move it elsewhere"
            )
        if TOKENIZER_FILE not in sizes:
            raise TokenStoreError(f"{directory.path(TOKENIZER_FILE)} is missing")
        store = cls(directory=directory, manifest=manifest, parts=parts)
        if isinstance(directory, LocalDirectory):  # a remote one is checked on arrival, when it is first needed
            store._check_tokenizer()
        return store

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

    @property
    def rejects(self) -> dict[str, FileRecord]:
        """The files of what was refused, by their names in the store; none unless that was asked for."""
        files = self.manifest.lineage.get("rejects", {}).get("files", {})
        return {name: FileRecord(size=file["size"], sha256=file["sha256"]) for name, file in files.items()}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the store was made with, loaded on first use."""
        return load_tokenizer(self.directory.local(TOKENIZER_FILE, self._tokenizer_record))

    @cached_property
    def is_lossless(self) -> bool:
        """Whether decoding a document gives back its text byte for byte: the tokenizer is byte-level and changes
        nothing before, and the text is not a chat of which parts were rendered."""
        fields = json.loads(self.directory.local(TOKENIZER_FILE, self._tokenizer_record).read_bytes())
        is_byte_level = (fields.get("decoder") or {}).get("type") == "ByteLevel" and fields.get("normalizer") is None
        return is_byte_level and not any(part.file("mask") in part.record.files for part in self.parts)

    def document(self, index: int) -> "NDArray[np.integer]":
        """The ids of document ``index``, special ones included: shape ``[tokens]``, read-only.

        Raises:
            IndexError: there is no such document.
        """
        part, within = self.part_of(index)
        return part.document(within)

    def mask(self, index: int) -> "NDArray[np.bool_]":
        """Which ids of document ``index`` count in the loss: all, where the store has no mask.

        Raises:
            IndexError: there is no such document.
        """
        part, within = self.part_of(index)
        start = int(part.offsets[within]) // part.itemsize
        return part.mask(start, start + int(part.lengths[within]))

    def part_of(self, index: int) -> tuple[Part, int]:
        """The part that holds document ``index``, and its number there.

        Raises:
            IndexError: there is no such document.
        """
        number, within = _find(self.first_documents, index, "document")
        return self.parts[number], within

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
        first, _ = _find(self.first_tokens, start, "token")
        last, _ = _find(self.first_tokens, stop - 1, "token")
        begins = self.first_tokens
        slices = [
            self.parts[number].tokens(max(start - begins[number], 0), min(stop, begins[number + 1]) - begins[number])
            for number in range(first, last + 1)
        ]
        return slices[0] if len(slices) == 1 else np.concatenate(slices)

    def locate(self, token: int) -> Location:
        """The part, the document and the file that token ``token`` of the store belongs to.

        Raises:
            IndexError: there is no such token.
        """
        import numpy as np

        number, within = _find(self.first_tokens, token, "token")
        part = self.parts[number]
        document = int(np.searchsorted(part.offsets, within * part.itemsize, side="right")) - 1
        index = self.first_documents[number] + document
        offset = within - int(part.offsets[document]) // part.itemsize
        return Location(part.record.name, index, offset, self.source(index), *self._input(index))

    def source(self, index: int) -> str | None:
        """The name of the file that document ``index`` came from.

        That is what the input's column ``source`` says, where it has one, as a corpus has: the raw file, relative to
        the raw corpus's root. Where it has none, it is the name of the file that was tokenized; and it is None in a
        store that another tool wrote without the sidecar ``.sources``.

        Raises:
            IndexError: there is no such document.
        """
        part, within = self.part_of(index)
        if (sources := part.sources) is None:
            return None
        names, firsts = sources
        return names[_find(firsts, within, "document")[0]]

    def verify(self, *, progress: Progress | None = None) -> tuple[Damage, ...]:
        """Reads every byte of every part where it lies, past any cache; what is damaged, or nothing.

        Args:
            progress: is told how it goes.

        Raises:
            InputError: a remote file cannot be read.
        """
        return verification.verify(self, progress=progress)

    @cached_property
    def first_documents(self) -> list[int]:
        """The number of each part's first document, and of all documents."""
        return [0, *accumulate(record.num_documents for record in self.manifest.parts)]

    @cached_property
    def first_tokens(self) -> list[int]:
        """The number of each part's first token, and of all tokens."""
        return [0, *accumulate(record.num_tokens for record in self.manifest.parts)]

    @property
    def _tokenizer_record(self) -> FileRecord:
        size = self.directory.sizes([TOKENIZER_FILE])[TOKENIZER_FILE]
        return FileRecord(size=size, sha256=self.manifest.tokenizer_digest)

    def _check_tokenizer(self) -> None:
        content = self.directory.read(TOKENIZER_FILE) or b""
        if hashlib.sha256(content).hexdigest() != self.manifest.tokenizer_digest:
            raise TokenStoreError(
                f"{self.directory.path(TOKENIZER_FILE)} is not the tokenizer that the store was made with: its sha256 "
                f"differs"
            )

    def _input(self, index: int) -> tuple[str | None, int | None]:
        """The tokenized file that document ``index`` is from, and its row there if no row was left out."""
        inputs = self.manifest.lineage.get("inputs", ())
        try:
            firsts = [0, *accumulate(int(file["num_documents"]) for file in inputs)]
            number, row = _find(firsts, index, "document")
            name = str(inputs[number]["name"])
        except (TypeError, KeyError, ValueError, IndexError):  # another tool's lineage
            return None, None
        left_out = self.manifest.lineage.get("num_empty") != 0 or "rejects" in self.manifest.lineage
        return name, None if left_out else row


def _find(firsts: Sequence[int], index: int, kind: str) -> tuple[int, int]:
    """Which stretch ``index`` falls in, and where in it; ``firsts`` are the stretches' beginnings and the total."""
    if not 0 <= index < firsts[-1]:
        raise IndexError(f"{kind} {index} of a store of {firsts[-1]}")
    number = bisect_right(firsts, index) - 1
    return number, index - firsts[number]


def _why_none(directory: LocalDirectory | RemoteDirectory) -> str:
    """What there is where no manifest is."""
    none = f"it has no {MANIFEST_FILE}"
    if isinstance(directory, LocalDirectory):
        path = Path(str(directory))
        if path.is_file():
            return f"{path} is a file: give the directory that holds the store's {MANIFEST_FILE}"
        if not path.exists():
            return f"{path} does not exist"
        if any(path.glob("*.idx")) and not any(map(PART_FILE.fullmatch, directory.sizes([]))):
            return (
                f"{path} is no token store: it has Megatron's files, but {none}, which tells the tokenizer and what "
                f"they must hold. Tokenize the documents with `zephyr tokenize`"
            )
    return f"{directory} is no token store: {none}. If a run was killed there, run it again"
