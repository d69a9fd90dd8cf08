"""Documents to ids: tokenizers, their training, and the token store that training reads.

- `train_tokenizer`, `load_tokenizer`, `byte_tokenizer`: a tokenizer from a corpus, from disk, or of bytes.
- `tokenize`: documents to a token store, on all cores, resumable; `ChatFormat` or
  `CompletionFormat` says that they are conversations, or prompts with completions, of which only a part is learned.
- `TokenStore`: reads one.

Tokenizers::

    tokenizer.py          one whose control ids cannot be reached from text
    tokenizer_files.py    where it comes from: a directory's files, or a repository's
    hugging_face.py       the objects of `tokenizers` that are made of a tokenizer.json
    training.py           byte-level BPE from a corpus

Text to ids::

    batches.py            what flows: runs of rows, runs of documents; protocols of encoders and engines
    texts.py              plain text, and the reference engine
    cutting.py            long texts in stretches, with the ids of the whole
    engines.py            which engine encodes; how the fast one is held to the reference
    fast.py               the fast engine
    edge_cases.py         texts on which engines differ
    sample.py             documents of the corpus to compare engines on

Conversations::

    chat.py               conversations to documents
    chat_templates.py     Jinja templates to text, with the assistant's turns
    chat_environment.py   their sandbox
    special_strings.py    which special strings a template wrote, and which a message holds
    completions.py        prompts with completions
    marked.py             text with control tokens and a loss mask, to ids

Writing a store::

    encoding.py           `tokenize`
    documents.py          rows of the inputs, in a fixed order
    parallel_encoding.py  runs of rows on several threads, in order
    part_sequence.py      documents to parts, one after the other
    parts.py              one part being written: ids, index, sidecars
    resumption.py         what a killed run leaves, and how the next goes on
    lineage.py            what a store says of its inputs
    manifest.py           the manifest
    publishing.py         a finished store to a URL

Reading one::

    store.py              the store
    reading.py            one part of it
    directories.py        where its files lie: a local directory, or behind a URL
    blocks.py             the local cache of what was fetched
    inspection.py         what there is to tell of it
    verification.py       what is damaged in it
"""

from marin_zephyr.tokens.chat import ChatFormat
from marin_zephyr.tokens.completions import CompletionFormat
from marin_zephyr.tokens.encoding import TokenizeReport, tokenize
from marin_zephyr.tokens.manifest import Manifest
from marin_zephyr.tokens.store import Damage, Location, TokenStore
from marin_zephyr.tokens.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer
from marin_zephyr.tokens.training import TrainingReport, train_tokenizer

__all__ = [
    "ChatFormat",
    "CompletionFormat",
    "Damage",
    "Location",
    "Manifest",
    "TokenStore",
    "TokenizeReport",
    "Tokenizer",
    "TrainingReport",
    "byte_tokenizer",
    "load_tokenizer",
    "tokenize",
    "train_tokenizer",
]
