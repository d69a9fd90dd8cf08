"""A tokenizer whose control ids cannot be reached from text.

It is Hugging Face's ``tokenizers`` behind a narrow door. What the door keeps:

- **Text stays text.** A document that holds ``<|endoftext|>`` is encoded as those thirteen characters and decodes to
  them: the ids of special tokens are appended by whoever writes sequences, never found by parsing a document.
- **Encoding is whole.** Truncation, padding and templates that a ``tokenizer.json`` carries are off.
- **One identity.** ``digest`` is the sha256 of the very ``tokenizer.json``; a store keeps that file and that digest.

The byte tokenizer is the same thing with no merges: id = byte, and 256 ends a sequence.

See: Sennrich et al. 2016 (arXiv 1508.07909) for BPE; Radford et al. 2019 for its byte-level alphabet.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.errors import TokenizerError
from marin_zephyr.tokens.hugging_face import build_encoder, build_whole, encoding
from marin_zephyr.tokens.tokenizer_files import TOKENIZER_FILE as TOKENIZER_FILE
from marin_zephyr.tokens.tokenizer_files import find_files

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"

# Tried in this order where no tokenizer_config.json says which special token ends or begins a sequence.
_USUAL_EOS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
_USUAL_BOS = ("<|begin_of_text|>", "<s>", "<bos>")


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back. Make one with `load_tokenizer` or `byte_tokenizer`.

    Attributes:
        content: the ``tokenizer.json``, byte for byte.
        eos_id: the id that ends a sequence, or None if the tokenizer has none.
        bos_id: the id that begins a sequence, or None.
        control_ids: further ids that no text may reach though ``content`` does not mark them as special: those that the
            files beside it call special.
    """

    content: bytes = field(repr=False)
    eos_id: int | None
    bos_id: int | None
    control_ids: tuple[int, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The sha256 of ``content``, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one: what an embedding table must hold, also where ids have gaps."""
        return _vocab_size(self.backend)

    @cached_property
    def backend(self) -> "tokenizers.Tokenizer":
        """The ``tokenizers`` object of the whole file, built on first use: for names, settings and decoding."""
        return build_whole(self.content, self.special_ids)

    @cached_property
    def encoder(self) -> "tokenizers.Tokenizer":
        """The ``tokenizers`` object that encodes, and that no text makes yield a special id."""
        return build_encoder(self.content, self.special_ids)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids that are special whatever ``content`` says of their tokens."""
        return (*(i for i in (self.eos_id, self.bos_id) if i is not None), *self.control_ids)

    def replica(self) -> "Tokenizer":
        """An equal tokenizer with backends of its own: threads that share one contend for its cache."""
        return replace(self)

    def encode_batch(self, texts: Sequence[str]) -> "list[NDArray[np.int32]]":
        """The ids of each text, without any special token.

        Args:
            texts: valid Unicode, without lone surrogates.

        Returns:
            One int32 array of shape ``[tokens]`` a text.
        """
        import numpy as np

        with encoding():
            encodings = self.encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.fromiter(encoding.ids, np.int32, count=len(encoding)) for encoding in encodings]

    def decode(self, ids: "Sequence[int] | NDArray[np.integer]") -> str:
        """The text of ``ids``; special tokens appear as their names. Bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)


def load_tokenizer(
    source: "str | Path | Tokenizer", *, eos_token: str | None = None, bos_token: str | None = None
) -> Tokenizer:
    """Loads a tokenizer from disk.

    Args:
        source: a ``tokenizer.json``, a directory that holds one (or ``vocab.json`` and ``merges.txt``), the
            ``owner/name`` of a repository of the Hugging Face hub, ``"bytes"`` for the built-in byte tokenizer, or a
            `Tokenizer`, which is returned as it is.
        eos_token: the token that ends a sequence. By default what the files beside it say (`tokenizer_files`), else
            the usual names, else the only special token there is.
        bos_token: likewise for the beginning.

    Raises:
        TokenizerError: there is no such file, it is no tokenizer, or it lacks the token that was named.
        MissingExtraError: a repository's name, and the hub's client is not installed.
    """
    if isinstance(source, Tokenizer):
        return source
    if str(source) == "bytes":
        return byte_tokenizer()
    files = find_files(source)
    try:
        backend = build_whole(files.content)
    except Exception as error:  # the binding raises bare Exception
        raise TokenizerError(f"{files.path} is not a tokenizer.json of Hugging Face tokenizers: {error}") from None
    if not backend.get_vocab_size(with_added_tokens=True):
        raise TokenizerError(f"{files.path} has no token: its vocabulary is empty")
    special = [t.content for t in backend.get_added_tokens_decoder().values() if t.special]
    eos = eos_token or files.roles.get("eos") or _first(_USUAL_EOS, special)
    bos = bos_token or files.roles.get("bos") or _first(_USUAL_BOS, special)
    if eos is None and len(special) == 1:
        eos = special[0]
    control = {i for token in files.control if (i := backend.token_to_id(token)) is not None}
    loaded = Tokenizer(
        content=files.content,
        eos_id=_id(backend, eos, "eos", files.path),
        bos_id=_id(backend, bos, "bos", files.path),
        control_ids=tuple(sorted(control)),
    )
    loaded.__dict__["vocab_size"] = _vocab_size(backend)  # cached: whoever encodes need not build another for it
    return loaded


def byte_tokenizer() -> Tokenizer:
    """The built-in tokenizer of 257 ids: each UTF-8 byte is its own id, and 256 ends a sequence."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocab = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    # Without merges any split gives the same ids; lines keep the pieces short.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(content=backend.to_str(pretty=True).encode(), eos_id=256, bos_id=None)


def _vocab_size(backend: "tokenizers.Tokenizer") -> int:
    return max(backend.get_vocab(with_added_tokens=True).values()) + 1


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _id(backend: "tokenizers.Tokenizer", token: str | int | None, role: str, path: Path) -> int | None:
    """The id of a token that is named, or numbered, as the one of a role."""
    if token is None:
        return None
    number = backend.token_to_id(token) if isinstance(token, str) else token
    if number is None or not 0 <= number < 1 << 32 or backend.id_to_token(number) is None:
        raise TokenizerError(
            f"{path} has no token {token!r}, which was named as its {role} token: "
            f"name another with {role}_token, or correct the files beside it"
        )
    return number


def _first(wanted: Sequence[str], present: Sequence[str]) -> str | None:
    return next((token for token in wanted if token in present), None)
