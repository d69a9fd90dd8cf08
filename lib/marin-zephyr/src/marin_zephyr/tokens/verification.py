"""Reading all of a token store to find what is damaged in it, and whether it says what it should.

Every byte that lies there is read once, past any cache. A part's files are held against the sha256 of each in the
manifest, its ids also block by block against their CRC, so that damage there is told to the mebibyte, with the tokens
and documents in it. Of files that are as they were written it is asked whether they make sense: an index that runs
through its part, ids of the vocabulary, documents that begin and end as the manifest says, lengths of texts that
decoding confirms for a sample. That finds a writer's faults, which no checksum does.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isal import isal_zlib

from marin_zephyr.errors import ZephyrError
from marin_zephyr.progress import Progress, Work
from marin_zephyr.tokens.directories import CHUNK_BYTES
from marin_zephyr.tokens.parts import BLOCK_BYTES, NUMPY_DTYPES
from marin_zephyr.tokens.reading import Part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from marin_zephyr.tokens.store import TokenStore

_SAMPLE = 16  # documents whose text is decoded
_DIGEST_DIFFERS = "sha256 differs from the manifest's"


@dataclass(frozen=True)
class Damage:
    """Something in a store that is not as it was written, or was written wrong.

    Attributes:
        file: the file's name.
        problem: what is wrong with it.
        block: the 1 MiB block of the ids, where that is known.
        tokens: the first and the last token of the store that the block holds.
        documents: the first and the last document that has a token in it, where the index is sound.
    """

    file: str
    problem: str = _DIGEST_DIFFERS
    block: int | None = None
    tokens: tuple[int, int] | None = None
    documents: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.block is None:
            return f"{self.file}: {self.problem}"
        told = f"{self.file}: block {self.block} (bytes from {self.block * BLOCK_BYTES:,}) {self.problem}"
        ranges = (("tokens", self.tokens), ("documents", self.documents))
        return told + "".join(f", {name} {r[0]:,} to {r[1]:,}" for name, r in ranges if r is not None)


def verify(store: "TokenStore", *, progress: Progress | None = None) -> tuple[Damage, ...]:
    """Reads every byte of ``store``.

    Args:
        store: an open store.
        progress: is told how it goes.

    Returns:
        What is damaged, in the order of the parts; nothing if the store is sound.

    Raises:
        InputError: a remote file cannot be read.
    """
    sizes = [file.size for part in store.parts for file in part.record.files.values()]
    num_chunks = sum(-(-size // CHUNK_BYTES) for size in sizes)
    if progress is not None:
        progress.start(Work(name="verify", steps="stretches", items="tokens", total=num_chunks, num_bytes=sum(sizes)))
    try:
        found = list(_manifest_damage(store))
        for number, part in enumerate(store.parts):
            first_token, first_document = store.first_tokens[number], store.first_documents[number]
            found += _PartVerifier(store, part, first_token, first_document, progress).run()
        found += _rejects_damage(store)
        if not found:
            found += _text_damage(store)
    finally:
        if progress is not None:
            progress.finish()
    return tuple(found)


def _manifest_damage(store: "TokenStore") -> Iterator[Damage]:
    """Whether the tokenizer is still what it was when the store was opened, and has ids for what it is used for."""
    from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE

    content = store.directory.read(TOKENIZER_FILE)
    if content is None or hashlib.sha256(content).hexdigest() != store.manifest.tokenizer_digest:
        yield Damage(TOKENIZER_FILE)


def _rejects_damage(store: "TokenStore") -> Iterator[Damage]:
    """Whether the records that were refused are as they were written."""
    for name, record in store.rejects.items():
        content = store.directory.read(name)
        if content is None or hashlib.sha256(content).hexdigest() != record.sha256:
            yield Damage(name, "is missing" if content is None else _DIGEST_DIFFERS)


@dataclass
class _PartVerifier:
    """Verifies one part; ``first_token`` and ``first_document`` are its first ones' numbers in the store."""

    store: "TokenStore"
    part: Part
    first_token: int
    first_document: int
    progress: Progress | None
    damaged: set[str] = field(default_factory=set)

    def run(self) -> list[Damage]:
        """The damage in its files: the sidecars' first, since they tell where in the ids there is damage."""
        found: list[Damage] = []
        ids = self.part.file("bin")
        for name, record in self.part.record.files.items():
            if name == ids:
                continue
            digest = hashlib.sha256()
            for chunk in self._chunks(name, record.size):
                digest.update(chunk)
            if digest.hexdigest() != record.sha256:
                self.damaged.add(name.rpartition(".")[2])
                found.append(Damage(name))
        if "idx" not in self.damaged:
            found += self._index_damage()
        for suffix, check in (("bytes", self._text_bytes_damage), ("sources", self._sources_damage)):
            if suffix not in self.damaged:
                found += check()
        return found + list(self._ids_damage())

    def _chunks(self, name: str, size: int) -> Iterator[bytes]:
        for chunk in self.part.directory.chunks(name, size):
            if self.progress is not None:
                tokens = len(chunk) // self.part.itemsize if name == self.part.file("bin") else 0
                self.progress.advance(items=tokens, num_bytes=len(chunk))
            yield chunk

    def _index_damage(self) -> Iterator[Damage]:
        """Whether the index runs through the part from its first token to its last, one document after the other."""
        import numpy as np

        part, name = self.part, self.part.file("idx")
        try:
            lengths = part.lengths.astype(np.int64)
        except ZephyrError as error:
            problem = str(error)
        else:
            ends = np.cumsum(lengths)
            total = int(ends[-1]) if len(ends) else 0
            if (lengths <= 0).any():
                problem = f"document {self.first_document + int(np.argmax(lengths <= 0))} has no token"
            elif total != part.record.num_tokens:
                problem = f"documents have {total} tokens, the part has {part.record.num_tokens}"
            elif (wrong := part.offsets != (ends - lengths) * part.itemsize).any():
                problem = f"document {self.first_document + int(np.argmax(wrong))} does not begin where the last ended"
            elif (part.boundaries != np.arange(len(lengths) + 1)).any():
                problem = "a document is not one sequence"
            else:
                return
        self.damaged.add("idx")
        yield Damage(name, problem)

    def _text_bytes_damage(self) -> Iterator[Damage]:
        sizes, record = self.part.text_bytes, self.part.record
        if (sizes < 0).any() or (total := int(sizes.sum())) != record.num_bytes:
            told = "one is negative" if (sizes < 0).any() else f"they add up to {total}"
            yield Damage(self.part.file("bytes"), f"lengths of {record.num_bytes} bytes in all are told; {told}")

    def _sources_damage(self) -> Iterator[Damage]:
        sources, count = self.part.sources, self.part.record.num_documents
        if sources is not None and sources[1][-1] != count:
            yield Damage(
                self.part.file("sources"), f"tells sources of {sources[1][-1]} documents, the part has {count}"
            )

    def _ids_damage(self) -> Iterator[Damage]:
        """Reads the ids once: by block against the CRC, as a whole against the sha256, and as ids."""
        import numpy as np

        name = self.part.file("bin")
        record = self.part.record.files[name]
        checksums = [] if "crc" in self.damaged else self.part.checksums
        digest = hashlib.sha256()
        bad_blocks: list[int] = []
        faults = _IdFaults.of(self) if "idx" not in self.damaged else None
        start = 0
        for chunk in self._chunks(name, record.size):
            digest.update(chunk)
            for at in range(0, len(chunk), BLOCK_BYTES):
                block = (start + at) // BLOCK_BYTES
                content = memoryview(chunk)[at : at + BLOCK_BYTES]
                if block < len(checksums) and isal_zlib.crc32(content) != checksums[block]:
                    bad_blocks.append(block)
            if faults is not None:
                whole = len(chunk) // self.part.itemsize
                faults.look(np.frombuffer(chunk, NUMPY_DTYPES[self.part.dtype], whole), start // self.part.itemsize)
            start += len(chunk)
        if digest.hexdigest() != record.sha256:
            yield from (self._block_damage(name, block) for block in bad_blocks)
            if not bad_blocks:
                yield Damage(name)
        elif bad_blocks:
            crc = self.part.file("crc")
            yield Damage(
                crc, f"the CRC of block {bad_blocks[0]} is not that of the ids, which are as they were written"
            )
        elif faults is not None:
            yield from (Damage(name, problem) for problem in faults.told())

    def _block_damage(self, name: str, block: int) -> Damage:
        per_block = BLOCK_BYTES // self.part.itemsize
        first, last = block * per_block, min((block + 1) * per_block, self.part.record.num_tokens) - 1
        documents = None
        if "idx" not in self.damaged:
            begins, ends = (
                self.part.offsets.searchsorted(at * self.part.itemsize, "right") - 1 for at in (first, last)
            )
            documents = self.first_document + int(begins), self.first_document + int(ends)
        tokens = self.first_token + first, self.first_token + last
        return Damage(name, "fails its CRC", block=block, tokens=tokens, documents=documents)


@dataclass
class _IdFaults:
    """What is wrong with ids that are as they were written: outside the vocabulary, or a document's ends."""

    vocab_size: int
    first_token: int
    ends: list[tuple[str, int, "NDArray[np.int64]"]]
    """What begins or ends each document: how it is called, its id, and where it must stand in the part."""
    counts: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, verifier: _PartVerifier) -> "_IdFaults":
        part, manifest = verifier.part, verifier.store.manifest
        starts = part.offsets // part.itemsize
        places = {"bos": (manifest.bos_id, starts), "eos": (manifest.eos_id, starts + part.lengths - 1)}
        ends = [(f"{name} {id}", id, at) for name, (id, at) in places.items() if id is not None]
        return cls(manifest.vocab_size, verifier.first_token, ends)

    def look(self, ids: "NDArray[np.integer]", first: int) -> None:
        """Looks at the part's ids from number ``first`` on."""
        if len(ids) and (int(ids.max()) >= self.vocab_size or int(ids.min()) < 0):
            wrong = ((ids >= self.vocab_size) | (ids < 0)).nonzero()[0]
            self._count(f"ids outside the vocabulary of {self.vocab_size}", first + int(wrong[0]), len(wrong))
        for name, special, at in self.ends:
            low, high = at.searchsorted([first, first + len(ids)])
            wrong = (ids[at[low:high] - first] != special).nonzero()[0]
            if len(wrong):
                verb = "begin" if name.startswith("bos") else "end"
                self._count(f"documents that do not {verb} with {name}", int(at[low + wrong[0]]), len(wrong))

    def told(self) -> list[str]:
        """One line a kind of fault."""
        return [f"{n:,} {what}, the first at token {self.first_token + at:,}" for what, (at, n) in self.counts.items()]

    def _count(self, what: str, at: int, n: int) -> None:
        known = self.counts.setdefault(what, [at, 0])
        known[1] += n


def _text_damage(store: "TokenStore") -> Iterator[Damage]:
    """Whether some documents decode to as many bytes as the store says; only byte-level text can be held to that."""
    if not store.is_lossless:
        return
    count = store.num_documents
    for index in sorted({round(i * (count - 1) / max(1, _SAMPLE - 1)) for i in range(min(count, _SAMPLE))}):
        part, within = store.part_of(index)
        told, found = int(part.text_bytes[within]), len(store.text(index).encode("utf-8", "replace"))
        if told != found:
            problem = f"tells {told} bytes of text for document {index}, which decodes to {found}"
            yield Damage(part.file("bytes"), problem)
