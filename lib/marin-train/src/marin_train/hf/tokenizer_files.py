"""A tokenizer's files in a Hugging Face directory: which there are, and those made where only one is at hand."""

from collections.abc import Mapping
from typing import Any

from marin_train.durability import to_json
from marin_train.errors import HuggingFaceError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""What goes with a model and has no tensors."""


def with_companions(
    files: Mapping[str, bytes], special_ids: Mapping[str, Any], *, max_seq_len: int
) -> dict[str, bytes]:
    """The tokenizer's files, with those that transformers looks for beside ``tokenizer.json``."""
    files = dict(files)
    if foreign := sorted(set(files) - set(TOKENIZER_FILES)):
        raise HuggingFaceError(f"{', '.join(foreign)}: not among a tokenizer's files, {', '.join(TOKENIZER_FILES)}")
    given = {f"{name}_token_id": value for name, value in special_ids.items() if value is not None}
    files.setdefault("generation_config.json", to_json({"_from_model_config": True, **given}).encode())
    if "tokenizer.json" not in files or "tokenizer_config.json" in files:
        return files
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    tokens = {
        f"{name}_token": tokenizer.id_to_token(value[0] if isinstance(value, list) else value)
        for name, value in special_ids.items()
        if value is not None
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        "clean_up_tokenization_spaces": False,
        **tokens,
    }
    files["tokenizer_config.json"] = to_json(settings).encode()
    files.setdefault("special_tokens_map.json", to_json(tokens).encode())
    return files
