"""The objects of Hugging Face's ``tokenizers`` that are made of one ``tokenizer.json``.

- `build_whole` has all that the file has: it names ids and decodes them.
- `build_encoder` reaches no special id from text. It is enough for most models to leave the special tokens' strings
  unparsed. But a model may hold such a string as a piece of its own: a Unigram or WordPiece vocabulary lists it among
  the words, a BPE with ``ignore_merges`` looks whole words up, and merges may have been learned that build it. There
  the piece is renamed to what no text holds. It is not taken out: tokens that the model lacks are numbered after it, by
  how many pieces it has.
- `build_bordered` is `build_encoder`'s with further tokens, whose ids are in use by nothing else.
- `build_continuing` encodes what is not the beginning of a text: it puts no space before it.
"""

import json
import secrets
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers


@contextmanager
def encoding() -> Generator[None]:
    """Turns what the library raises on a text, a bare `Exception`, into a `TokenizerError`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise TokenizerError(f"the tokenizer fails on a text: {error}. Its tokenizer.json has to be mended") from None


def build_whole(content: bytes, special_ids: Collection[int] = ()) -> "tokenizers.Tokenizer":
    """The tokenizer of a file, with ``special_ids`` marked as special even where the file does not."""
    return _build(_marked(json.loads(content), special_ids))


def build_encoder(content: bytes, special_ids: Collection[int]) -> "tokenizers.Tokenizer":
    """The tokenizer that encodes any text as text: see the module's docstring."""
    return _build(_hidden(_marked(json.loads(content), special_ids)))


def build_bordered(
    content: bytes, special_ids: Collection[int], borders: "Sequence[tokenizers.AddedToken]", *, first: int
) -> "tokenizers.Tokenizer":
    """`build_encoder`'s without a post-processor, and with ``borders`` as tokens whose ids are ``first`` or higher.

    The library numbers tokens by how many there are, which in a vocabulary with gaps are numbers in use: nameless
    tokens take those up.
    """
    backend = build_encoder(content, special_ids)
    backend.post_processor = None  # one of them makes offsets narrower
    probe = _nameless()
    backend.add_special_tokens([probe])
    taken = backend.token_to_id(probe) or 0
    backend.add_special_tokens([_nameless() for _ in range(taken + 1, first)])
    backend.add_tokens(list(borders))
    return backend


def build_continuing(content: bytes, special_ids: Collection[int]) -> "tokenizers.Tokenizer | None":
    """`build_encoder`'s, but that puts nothing before a text; None where that one does not either, or would always."""
    fields = _hidden(_marked(json.loads(content), special_ids))
    if any(not token["special"] for token in fields.get("added_tokens") or ()):
        return None  # a space is put after each of these too, which must stay
    before = json.dumps(fields)
    normalizer = _without_prepending(fields.get("normalizer"))
    fields.update(normalizer=normalizer, pre_tokenizer=_without_prepending(fields.get("pre_tokenizer")))
    return None if json.dumps(fields) == before else _build(fields)


def _build(fields: dict[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(json.dumps(fields))
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def _marked(fields: dict[str, Any], special_ids: Collection[int]) -> dict[str, Any]:
    for token in fields.get("added_tokens") or ():
        token["special"] = token["special"] or token["id"] in special_ids
    if fields["model"].get("dropout"):
        fields["model"]["dropout"] = None  # it makes ids random
    return fields


def _hidden(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with other names for the model's pieces that are special tokens."""
    added = fields.get("added_tokens") or []
    names = {token["content"] for token in added if token["special"]}
    model = fields["model"]
    vocab = model.get("vocab")
    pieces = {piece for piece, _ in vocab} if isinstance(vocab, list) else set(vocab)
    hidden = {name: _nameless() for name in names & pieces}
    if isinstance(vocab, list):
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
        return _renamed(fields, hidden)
    if model.get("merges") is not None:
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        builds = (first + second.removeprefix(prefix) for first, second in pairs)
        model["merges"] = [
            pair for pair, made in zip(pairs, builds, strict=True) if made not in names and names.isdisjoint(pair)
        ]
        if not model.get("ignore_merges"):
            return fields
    hidden.pop(model.get("unk_token"), None)  # the model asks for it by name
    model["vocab"] = {hidden.get(piece, piece): number for piece, number in vocab.items()}
    return _renamed(fields, hidden)


def _renamed(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """``fields`` whose added tokens have other names; without them, others would get new ids."""
    added = fields.get("added_tokens") or []
    fields["added_tokens"] = [{**token, "content": names.get(token["content"], token["content"])} for token in added]
    return fields


def _nameless() -> str:
    """The name of a token that no text can hold but by guessing it."""
    return secrets.token_hex(16)


def _without_prepending(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer that puts no space before a text."""
    match part:
        case {"type": "Sequence"}:
            key = "normalizers" if "normalizers" in part else "pretokenizers"
            inner = [kept for one in part[key] if (kept := _without_prepending(one)) is not None]
            return {**part, key: inner}
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            # The older fields say the same in another way.
            return {**{k: v for k, v in part.items() if k != "add_prefix_space"}, "prepend_scheme": "never"}
        case {"type": "ByteLevel"} if part.get("add_prefix_space"):
            return {**part, "add_prefix_space": False}
    return part
