"""Documents to ids: tokenizers, their training, and the token store that training reads.

- `train_tokenizer`, `load_tokenizer`, `byte_tokenizer`: a tokenizer from a corpus, from disk, or of bytes.
- `tokenize`: documents to a token store, on all cores, resumable; `ChatFormat` or
  `CompletionFormat` says that they are conversations, or prompts with completions, of which only a part is learned.
- `TokenStore`: reads one.
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
