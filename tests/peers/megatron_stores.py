"""Writes the stores that `megatron_reader` is given: small ids and large ones, in several parts each.

python megatron_stores.py DIR
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from marin_zephyr.tokens import Tokenizer, byte_tokenizer, tokenize

NUM_DOCUMENTS = 3_000


def words(vocab_size: int) -> Tokenizer:
    """A tokenizer of whole words ``w0``, ``w1`` ..., the last id of which ends a sequence."""
    backend = Backend(models.WordLevel({f"w{n}": n for n in range(vocab_size)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(content=backend.to_str().encode(), eos_id=vocab_size - 1, bos_id=None)


def main(directory: Path) -> None:
    """Writes ``bytes``, ``uint16`` (the largest such vocabulary) and ``int32`` (the next) below ``directory``."""
    draw = random.Random(0)
    directory.mkdir(parents=True, exist_ok=True)
    documents = directory / "documents.jsonl"
    texts = (
        " ".join(f"w{draw.randrange(65_499)}" for _ in range(draw.randrange(1, 200))) for _ in range(NUM_DOCUMENTS)
    )
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizers = {"bytes": byte_tokenizer(), "uint16": words(65_499), "int32": words(65_500)}
    for name, tokenizer in tokenizers.items():
        tokenize(documents, directory / name, tokenizer=tokenizer, part_tokens=100_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
