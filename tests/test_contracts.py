"""Contracts between packages that never import one another: what one writes, another reads."""

import itertools
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest

import marin_train
from marin_train.data.blocks import BlockCache
from marin_train.data.store import TokenStore as Reader
from marin_zephyr import TokenStore as Writer
from marin_zephyr.tokens import ChatFormat, tokenize

TEXTS = ["plain text", "naïve café 😀", "line\r\nline", "a literal <|endoftext|> stays text", "x" * 5000]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """A store of byte tokens in several parts."""
    directory = tmp_path_factory.mktemp("store")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 40)
    (directory / "documents.jsonl").write_text(rows)
    tokenize(directory / "documents.jsonl", directory / "store", tokenizer="bytes", part_tokens=50_000)
    return directory / "store"


def test_train_reads_the_tokens_that_zephyr_wrote(store):
    written, read = Writer.open(store), Reader.open(store)
    assert len(written.manifest.parts) > 1
    assert (read.num_tokens, read.num_bytes) == (written.num_tokens, written.num_bytes)
    assert read.num_bytes == sum(len(text.encode()) for text in TEXTS * 40)
    np.testing.assert_array_equal(read.read(0, read.num_tokens), written.tokens(0, written.num_tokens))


TEMPLATE = """{% for message in messages %}{% if message.role == "assistant" %}{% generation %}{{ message.content }}
{% endgeneration %}{% else %}{{ message.content }}
{% endif %}{% endfor %}"""


def test_train_reads_the_documents_and_masks_that_zephyr_wrote_here_and_behind_a_url(tmp_path):
    rows = [
        {"messages": [{"role": role, "content": text[: 7 * n]} for role in ("user", "assistant")[: 1 + n % 3]]}
        for n, text in enumerate(TEXTS * 40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    url = "memory://contracts/store"
    options = {"supervised": ChatFormat(TEMPLATE), "part_tokens": 5_000, "on_error": "skip"}
    tokenize(tmp_path / "chats.jsonl", url, tokenizer="bytes", work_dir=tmp_path / "store", **options)
    try:
        written = Writer.open(tmp_path / "store")
        documents = range(written.manifest.num_documents)
        ids, masks = ([of(i).tolist() for i in documents] for of in (written.document, written.mask))
        assert len(written.manifest.parts) > 2
        assert {True, False} <= {bit for mask in masks for bit in mask}
        for place in (tmp_path / "store", url):
            read = Reader.open(place, cache=BlockCache(tmp_path / "cache"))
            read.verify()
            borders = read.document_borders().tolist()
            assert [read.read(a, b).tolist() for a, b in itertools.pairwise(borders)] == ids
            assert [read.read_mask(a, b).tolist() for a, b in itertools.pairwise(borders)] == masks
    finally:
        fsspec.filesystem("memory").rm("/contracts", recursive=True)


def test_the_manifest_holds_what_the_schema_requires(store):
    schema = json.loads((Path(__file__).parent.parent / "docs/reference/token-store.schema.json").read_text())
    manifest = json.loads((store / "manifest.json").read_text())
    assert set(schema["required"]) <= set(manifest) <= set(schema["properties"])
    part = schema["properties"]["parts"]["items"]
    for entry in manifest["parts"]:
        assert set(part["required"]) <= set(entry) <= set(part["properties"])


def test_delphi_and_train_count_the_same_llama_parameters():
    """Two tables of one architecture, held together: the recipe's shapes and the trainer's."""
    config = marin_train.presets.llama_3_1_8b()
    h, layers, kv = config.hidden_dim, config.num_layers, config.num_kv_heads * config.head_dim
    by_hand = 2 * config.vocab_size * h + layers * (2 * h * h + 2 * h * kv + 3 * h * config.mlp_dim + 2 * h) + h
    from marin_train.flops import num_params

    assert num_params(config) == by_hand == 8_030_261_248
