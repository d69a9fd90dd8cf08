"""Where a tokenizer comes from: the files of a directory, or of a repository of the Hugging Face hub.

What makes ids is one ``tokenizer.json``, and it is taken byte for byte. The files beside it only say which tokens have
a role, and they do it in several ways, of which the first that speaks is believed: ``tokenizer_config.json``,
``special_tokens_map.json``, ``generation_config.json``, ``config.json`` (the latter two by id, or by a list of ids of
which the first is meant). A directory of the first byte-level tokenizers has ``vocab.json`` and ``merges.txt`` instead;
a ``tokenizer.json`` is made of them. A SentencePiece model alone is refused with the way to convert it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_zephyr.errors import MissingExtraError, TokenizerError

TOKENIZER_FILE = "tokenizer.json"

_VOCAB_FILE, _MERGES_FILE = "vocab.json", "merges.txt"
_CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_MODEL_CONFIG_FILES = ("generation_config.json", "config.json")
_ROLES = ("eos", "bos")
_SHOWN_FILES = 8  # in a message
_CONVERT = (
    "convert it once, where `transformers` is installed: "
    "python -c \"from transformers import AutoTokenizer as A; A.from_pretrained('{path}').save_pretrained('{path}')\""
)


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files of a tokenizer say.

    Attributes:
        path: the file that errors name.
        content: the ``tokenizer.json``.
        roles: ``eos`` and ``bos``, where they are told: the token, or its id.
        control: every token that a file beside the ``tokenizer.json`` calls special.
    """

    path: Path
    content: bytes
    roles: Mapping[str, str | int]
    control: frozenset[str]


def find_files(source: str | Path) -> TokenizerFiles:
    """Reads the files of a tokenizer.

    Args:
        source: a ``tokenizer.json``, a directory, or, where no such path exists, the ``owner/name`` of a repository.

    Raises:
        TokenizerError: nothing is there, or nothing that can be read; the message says what to do.
        MissingExtraError: the name of a repository, and the hub's client is not installed.
    """
    path = Path(source)
    if not os.path.exists(path) and _is_hub_name(str(source)):  # noqa: PTH110  of any name, a too long one too
        path = _fetch(str(source))
    is_directory = os.path.isdir(path)  # noqa: PTH112  likewise
    file = path / TOKENIZER_FILE if is_directory else path
    if is_directory and not file.is_file():
        content = _convert(path)
    else:
        try:
            content = file.read_bytes()
        except OSError as error:
            reason = "" if isinstance(error, FileNotFoundError) else f" ({error.strerror})"
            raise TokenizerError(
                f"no tokenizer at {file}{reason}: give a tokenizer.json, a directory that holds one, "
                f"a repository's owner/name, or 'bytes'"
            ) from None
    configs = [_json_object(file.with_name(name)) for name in _CONFIG_FILES]
    models = [_json_object(file.with_name(name)) for name in _MODEL_CONFIG_FILES]
    roles = {role: token for role in _ROLES if (token := _role(role, configs, models)) is not None}
    control = frozenset(token for config in configs for token in _special_tokens(config))
    return TokenizerFiles(file, content, roles, control)


def _role(role: str, configs: list[dict[str, Any]], models: list[dict[str, Any]]) -> str | int | None:
    for config in configs:
        if token := _text(config.get(f"{role}_token")):
            return token
    for model in models:
        match model.get(f"{role}_token_id"):
            case bool():
                pass
            case int(number) | [int(number), *_]:
                return number
    return None


def _special_tokens(config: dict[str, Any]) -> Iterator[str]:
    """Tokens with a role, further special ones, and those of the list of added tokens that are marked as special."""
    for key, value in config.items():
        if key.endswith("_token") and (token := _text(value)):
            yield token
    match config.get("additional_special_tokens"):
        case list(values):
            yield from filter(None, map(_text, values))
    match config.get("added_tokens_decoder"):
        case dict(tokens):
            yield from (token for value in tokens.values() if _is_special(value) and (token := _text(value)))


def _is_special(token: Any) -> bool:
    return isinstance(token, dict) and bool(token.get("special"))


def _text(token: Any) -> str | None:
    """A token: its text, or an object with its text and its stripping rules."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror or error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _convert(directory: Path) -> bytes:
    """A ``tokenizer.json`` for a directory that has none."""
    vocab, merges = directory / _VOCAB_FILE, directory / _MERGES_FILE
    if vocab.is_file() and merges.is_file():
        return _byte_level(vocab, merges)
    present = sorted(path.name for path in directory.iterdir() if path.suffix in (".model", ".txt", ".json"))
    if not any(name.endswith(".model") or name == "vocab.txt" for name in present):
        raise TokenizerError(
            f"no tokenizer at {directory / TOKENIZER_FILE}: "
            f"the directory holds {_named(present) or 'no file of a tokenizer'}"
        )
    raise TokenizerError(
        f"{directory} holds {_named(present)} and no {TOKENIZER_FILE}: {_CONVERT.format(path=directory)}"
    )


def _named(files: list[str]) -> str:
    """The first of ``files``, and how many more there are."""
    more = len(files) - _SHOWN_FILES
    return ", ".join(files[:_SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")


def _byte_level(vocab: Path, merges: Path) -> bytes:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    pieces = _json_object(vocab)
    if any(piece.endswith("</w>") for piece in pieces):
        raise TokenizerError(f"{vocab} is not byte-level: {_CONVERT.format(path=vocab.parent)}")
    try:
        backend = Backend(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the binding raises bare Exception
        raise TokenizerError(f"{vocab} and {merges.name} are no BPE: {error}") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    configs = [_json_object(vocab.with_name(name)) for name in _CONFIG_FILES]
    named = {token for config in configs for token in _special_tokens(config)} | {"<|endoftext|>"}
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in sorted(named & pieces.keys())])
    return backend.to_str(pretty=True).encode()


def _is_hub_name(source: str) -> bool:
    owner, slash, name = source.partition("/")
    return bool(slash and owner and name) and owner[0] not in ".~" and "/" not in name and "\\" not in source


def _fetch(name: str) -> Path:
    """The tokenizer's files of a repository, in the hub client's own cache."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(
            f"no tokenizer at {name}, and fetching it from the hub needs the extra `hf`: "
            "pip install 'marin-zephyr[hf]' (in the workspace: uv run --extra hf ...)"
        ) from None
    wanted = [TOKENIZER_FILE, _VOCAB_FILE, _MERGES_FILE, *_CONFIG_FILES, *_MODEL_CONFIG_FILES]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TokenizerError(
            f"no tokenizer at {name}, neither on disk nor on the hub ({reason}): "
            "give a tokenizer.json, a directory that holds one, a repository's owner/name, or 'bytes'"
        ) from None
