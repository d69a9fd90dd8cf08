"""What there is to tell of a token store, as facts and as lines for a terminal.

Texts are shown with everything that a terminal would act on escaped, all but the ends of lines; a token is marked where
it stands in its text.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin_zephyr.errors import TokenStoreError, UsageError
from marin_zephyr.reporting.quantities import shown_bytes
from marin_zephyr.tokens.store import Damage, TokenStore

_SHOWN_CHARACTERS = 300
_AROUND = 40  # tokens on either side
_MARKS = "⟦", "⟧"
_LABEL = 12
_BAR = "│ "
_SHOWN_DIGITS = 16


def describe(store: TokenStore, *, token: int | None = None, damage: Sequence[Damage] | None = None) -> dict[str, Any]:
    """The facts, as JSON has them.

    Args:
        store: an open store.
        token: also where this token is, and the text around it; the sample is then of its document.
        damage: what `TokenStore.verify` found, if it was asked; where that is something, texts may be left out.

    Raises:
        UsageError: there is no such token.
        TokenStoreError: the store's files contradict each other, so that no text can be shown.
    """
    if token is not None and not 0 <= token < store.num_tokens:
        last = store.num_tokens - 1
        raise UsageError(f"{store.directory}: there is no token {token}; they are numbered from 0 to {last}")
    manifest = store.manifest
    lineage = manifest.lineage
    facts: dict[str, Any] = {
        "store": str(store.directory),
        "num_documents": store.num_documents,
        "num_tokens": store.num_tokens,
        "num_bytes": store.num_bytes,
        "dtype": manifest.dtype,
        "vocab_size": manifest.vocab_size,
        "special_ids": {"bos": manifest.bos_id, "eos": manifest.eos_id},
        "tokenizer": manifest.tokenizer_digest,
        "parts": [_part(record) for record in manifest.parts],
        "lineage": {key: value for key, value in lineage.items() if key != "inputs"}
        | {"num_inputs": len(lineage.get("inputs", ()))},
    }
    try:
        facts |= _texts(store, token)
    except (IndexError, ValueError, OverflowError) as error:
        if not damage:
            raise TokenStoreError(
                f"{store.directory}: its files contradict each other ({error}): `zephyr inspect --verify` tells what "
                f"is damaged"
            ) from None
    if damage is not None:
        facts["damage"] = [str(one) for one in damage]
    return facts


def _texts(store: TokenStore, token: int | None) -> dict[str, Any]:
    """A token with the text around it, and a sample."""
    manifest, facts, sample = store.manifest, dict[str, Any](), 0
    if token is not None:
        facts["token"] = _token(store, token)
        sample = facts["token"]["document"]
    if store.num_documents:
        ids = store.document(sample)[: _SHOWN_CHARACTERS + 1]
        begin = 0 if manifest.bos_id is None else 1
        is_whole = len(ids) < _SHOWN_CHARACTERS + 1
        end = len(ids) - 1 if is_whole and manifest.eos_id is not None else len(ids)
        facts["sample"] = store.tokenizer.decode(ids[begin:end])[:_SHOWN_CHARACTERS]
        facts["sample_document"] = sample
    return facts


def tell(facts: Mapping[str, Any], *, width: int = 80) -> str:
    """The facts as lines, and what `verify` found if ``damage`` is among them.

    Args:
        facts: what `describe` gave.
        width: columns; texts and damage go on in the next line, the rest is short.
    """
    told = ""
    for label, line in _lines(facts):
        bar = line[:2] if line.startswith(_BAR) else ""
        pieces = textwrap.wrap(
            line.removeprefix(bar), max(20, width - _LABEL - len(bar)), drop_whitespace=not bar, expand_tabs=False
        )
        for number, piece in enumerate(pieces or [""]):
            told += f"{'' if number else label:<{_LABEL}}{bar}{piece}".rstrip() + "\n"
    return told.rstrip("\n")


def _part(record: Any) -> dict[str, Any]:
    counts = {"num_documents": record.num_documents, "num_tokens": record.num_tokens, "num_bytes": record.num_bytes}
    suffixes = sorted(name.rpartition(".")[2] for name in record.files)
    return {"name": record.name, **counts, "size": sum(f.size for f in record.files.values()), "files": suffixes}


def _token(store: TokenStore, token: int) -> dict[str, Any]:
    place = store.locate(token)
    ids, at, decode = store.document(place.document), place.offset, store.tokenizer.decode
    return {
        "number": token,
        "id": int(ids[at]),
        "text": decode(ids[at : at + 1]),
        **place._asdict(),
        "counts_in_loss": bool(store.mask(place.document)[at]),
        # A stretch that begins or ends inside a character says so; the character is not worth a line.
        "before": decode(ids[max(0, at - _AROUND) : at]).lstrip("�"),
        "after": decode(ids[at + 1 : at + 1 + _AROUND]).rstrip("�"),
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    documents, tokens, num_bytes = facts["num_documents"], facts["num_tokens"], facts["num_bytes"]
    yield (
        "documents",
        f"{documents:,}" + (f", of {tokens / documents:,.1f} tokens each on average" if documents else ""),
    )
    yield "tokens", f"{tokens:,}"
    yield "text", shown_bytes(num_bytes) + (f", {num_bytes / tokens:.2f} bytes a token" if tokens else "")
    yield "ids", f"{facts['dtype']}, vocabulary of {facts['vocab_size']:,}; {_ends(facts['special_ids'])}"
    yield "tokenizer", f"sha256 {facts['tokenizer'][:_SHOWN_DIGITS]}…"
    parts = facts["parts"]
    names = f": {parts[0]['name']} to {parts[-1]['name']}" if len(parts) > 1 else ""
    masked = sum("mask" in part["files"] for part in parts)
    yield "parts", f"{len(parts):,}{names}, {shown_bytes(sum(part['size'] for part in parts))}"
    if masked:
        yield "mask", f"in {masked} of {len(parts)} parts: not every token counts in the loss"
    yield from _lineage(facts["lineage"])
    if "token" in facts:
        yield from _token_lines(facts["token"])
    elif "sample" in facts:
        yield "sample", f"document {facts['sample_document']:,}"
        yield from _text_lines(facts["sample"])
    if "damage" in facts:
        for number, damage in enumerate(facts["damage"] or ["none: every byte is as it was written"]):
            yield "" if number else "damage", damage


def _ends(special: Mapping[str, int | None]) -> str:
    told = [
        f"each document {verb} with {special[name]}"
        for name, verb in (("bos", "begins"), ("eos", "ends"))
        if special[name] is not None
    ]
    return " and ".join(told) or "nothing before or after a document"


def _lineage(lineage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    empty = lineage.get("num_empty") or 0
    yield (
        "inputs",
        _counted(lineage["num_inputs"], "file") + (f"; left out: {_counted(empty, 'empty row')}" if empty else ""),
    )
    counts = lineage.get("rejects", {}).get("counts", {})
    for number, (kind, entry) in enumerate(counts.items()):
        yield "" if number else "rejects", f"{entry['count']:,} {kind}"
    if isinstance(tool := lineage.get("tool"), Mapping):
        yield "written by", ", ".join(f"{name} {version}" for name, version in tool.items())
    if engines := lineage.get("engines"):
        yield "encoded by", ", ".join(dict.fromkeys(f"{engine['name']} {engine['version']}" for engine in engines))


def _token_lines(token: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "token", f"{token['number']:,}: id {token['id']}, {_quoted(token['text'])}"
    loss = "" if token["counts_in_loss"] else "; it does not count in the loss"
    yield "", f"token {token['offset']:,} of document {token['document']:,}, in {token['part']}{loss}"
    if token["input"] is not None:
        row = "" if token["row"] is None else f", row {token['row']:,}"
        yield "input", f"{_plain(token['input'])}{row}"
    yield "source", "not told" if token["source"] is None else _plain(token["source"])
    yield from _text_lines(f"{token['before']}{_MARKS[0]}{token['text']}{_MARKS[1]}{token['after']}")


def _text_lines(text: str) -> Iterator[tuple[str, str]]:
    """A text as it stands, line by line behind a bar."""
    for line in text.split("\n"):
        yield "", _BAR + _plain(line.expandtabs(4))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _quoted(text: str) -> str:
    return _plain(json.dumps(text, ensure_ascii=False))


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
