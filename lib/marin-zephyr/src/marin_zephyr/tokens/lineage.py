"""What a store says of where it came from, and the digest by which a run knows what is its own.

A store answers for its inputs by content: every local file is digested before anything is read, and refused if it is
another one afterwards. Of a file behind a URL, or in an archive, the version stands for the content, so that nothing is
fetched twice.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from marin_zephyr.durability import file_digest
from marin_zephyr.errors import InputError
from marin_zephyr.formats.archives import is_member
from marin_zephyr.formats.files import InputFile
from marin_zephyr.nodes import OnError
from marin_zephyr.tokens.manifest import Manifest
from marin_zephyr.tokens.part_sequence import PartSequence
from marin_zephyr.tokens.parts import dtype_for
from marin_zephyr.tokens.resumption import FinishedPart
from marin_zephyr.tokens.texts import SpecialIds
from marin_zephyr.tokens.tokenizer import Tokenizer


def trace_inputs(files: Sequence[InputFile], *, workers: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a lineage that is known before anything is encoded: versions, settings, and every input's content.

    Args:
        files: the inputs, in their order.
        workers: how many are digested at a time.
        settings: all that decides which ids come out, and where parts end.

    Raises:
        InputError: an input cannot be read.
    """
    with ThreadPoolExecutor(workers, "digest") as pool:
        inputs = list(pool.map(_input_record, files))
    return {
        "tool": {name: version(name) for name in ("marin-zephyr", "tokenizers")},
        "settings": dict(settings),
        "inputs": inputs,
    }


def _input_record(file: InputFile) -> dict[str, Any]:
    record = {"name": file.name, "size": file.size}
    if is_member(file.url):  # the archive's time of change is no part of it
        return {**record, "version": f"crc32:{file.version.rpartition(':')[2]}"}
    if "://" in file.url:
        return {**record, "version": file.version}
    try:
        return {**record, "sha256": file_digest(Path(file.url))}
    except OSError as error:
        raise InputError(f"{file.url} cannot be read: {error.strerror or error}") from error


def plan_digest(tokenizer: Tokenizer, lineage: Mapping[str, Any]) -> str:
    """The digest of all that could change a byte of the store: only a store that agrees in it is taken up."""
    ids = {"tokenizer": tokenizer.digest, "eos": tokenizer.eos_id, "bos": tokenizer.bos_id}
    control = {"control": tokenizer.control_ids}
    return hashlib.sha256(json.dumps({**ids, **control, **lineage}, sort_keys=True).encode()).hexdigest()


def plan_changes(store: Manifest, tokenizer: Tokenizer, lineage: Mapping[str, Any]) -> tuple[str, ...]:
    """In what a store is not the one that a call would make, for a message; empty if it is.

    Args:
        store: its manifest.
        tokenizer: the call's.
        lineage: what `trace_inputs` said of the call, and its ``plan``.
    """
    if store.lineage.get("plan") == lineage["plan"]:
        return ()
    changes = [] if store.tokenizer_digest == tokenizer.digest else ["of another tokenizer"]
    for group in ("settings", "tool"):
        there, here = store.lineage.get(group, {}), lineage[group]
        differing = (name for name in sorted(there.keys() | here.keys()) if there.get(name) != here.get(name))
        changes += [f"{name}={there.get(name)!r}, not {here.get(name)!r}" for name in differing]
    there = [{k: v for k, v in file.items() if k != "num_documents"} for file in store.lineage.get("inputs", ())]
    if there != lineage["inputs"]:
        first = next((file["name"] for file in lineage["inputs"] if file not in there), None)
        changes.append("of other inputs" if first is None else f"of other inputs, without this {first}")
    return tuple(changes or ["of other special tokens"])


def make_manifest(
    sequence: PartSequence,
    tokenizer: Tokenizer,
    *,
    specials: SpecialIds,
    lineage: Mapping[str, Any],
    on_error: OnError,
) -> Manifest:
    """The manifest of a store.

    Args:
        sequence: its parts, all finished.
        tokenizer: what encoded them.
        specials: the ids around each document.
        lineage: what `trace_inputs` said, and the ``plan``; documents of each input, engines and rejects are added.
        on_error: what became of records that could not be taken.
    """
    documents = sequence.documents_by_file
    inputs = [{**file, "num_documents": documents[number]} for number, file in enumerate(lineage["inputs"])]
    refusals = sequence.refusals
    told = {"on_error": on_error, "num_rows": sequence.num_rows, **refusals.to_json()}
    rejects = {"rejects": told} if refusals.counts else {}
    return Manifest(
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype_for(tokenizer.vocab_size),
        bos_id=specials.bos,
        eos_id=specials.eos,
        parts=tuple(part.record for part in sequence.parts),
        lineage={
            **lineage,
            "inputs": inputs,
            "num_empty": sequence.num_empty,
            "engines": _engines(sequence.parts),
            **rejects,
        },
    )


def _engines(parts: Sequence[FinishedPart]) -> list[dict[str, Any]]:
    """What encoded the parts, in their order, with the number of parts in a row that each did."""
    runs = groupby(part.engine for part in parts)
    return [{**engine, "num_parts": sum(1 for _ in run)} for engine, run in runs]
