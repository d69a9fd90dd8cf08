"""The objects of Hugging Face's ``tokenizers`` that are made of one ``tokenizer.json``.

- `build_whole` has all that the file has: it names ids and decodes them.
- `build_encoder` reaches no special id from text. It is enough for most models to leave the special tokens' strings
  unparsed. But a model may hold such a string as a piece of its own: a Unigram or WordPiece vocabulary lists it among
  the words, a BPE with ``ignore_merges`` looks whole words up, and merges may have been learned that build it. There
  the piece is taken out of the model; all other ids stay.
- `build_continuing` encodes what is not the beginning of a text: it puts no space before it.
"""

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers


def build_whole(content: bytes, special_ids: Collection[int] = ()) -> "tokenizers.Tokenizer":
    """The tokenizer of a file, with ``special_ids`` marked as special even where the file does not."""
    return _build(_marked(json.loads(content), special_ids))


def build_encoder(content: bytes, special_ids: Collection[int]) -> "tokenizers.Tokenizer":
    """The tokenizer that encodes any text as text: see the module's docstring."""
    return _build(_hidden(_marked(json.loads(content), special_ids)))


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
    """``fields`` without the model's pieces that are special tokens."""
    added = fields.get("added_tokens") or []
    names = {token["content"] for token in added if token["special"]}
    model = fields["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        # An empty piece matches nothing, and the others keep their numbers.
        hidden = {piece for piece, _ in vocab if piece in names}
        model["vocab"] = [["" if piece in hidden else piece, score] for piece, score in vocab]
    elif model.get("merges") is not None:
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if "".join(pair) not in names and names.isdisjoint(pair)]
        hidden = (names & vocab.keys()) - {model.get("unk_token")} if model.get("ignore_merges") else set()
    else:
        hidden = (names & vocab.keys()) - {model.get("unk_token")}
    if isinstance(vocab, dict):
        model["vocab"] = {piece: number for piece, number in vocab.items() if piece not in hidden}
    # Those that the model has no more would get new ids, after which others' would be shifted.
    fields["added_tokens"] = [token for token in added if token["content"] not in hidden]
    return fields


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
