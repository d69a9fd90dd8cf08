"""What the tests of tokens share: a small corpus, ways to write it, and tokenizers of several kinds."""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from marin_zephyr.tokens import Tokenizer, byte_tokenizer, load_tokenizer, train_tokenizer

# fmt: off
_WORDS = (
    "def", "return", "self", "import", "value", "=", "(", ")", ":", ",", "the", "of", "and", "to", "in", "is",
    "that", "for", "12", "2024", "naïve", "東京", "привет", "'a'", '"b"',
)
# fmt: on


def _prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    separators = [" ", " ", " ", "\n", "\n    ", "\n\n", "  ", "\t"]
    return "".join(draw.choice(_WORDS) + draw.choice(separators) for _ in range(words))


def _write(path: Path, texts: Sequence[str | None], *, row_group_size: int) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=row_group_size)
    return path


@pytest.fixture(scope="session")
def prose() -> Callable[[int, int], str]:
    """Text of some words, drawn by a seed."""
    return _prose


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """Forty documents."""
    return [_prose(seed, 50 + 40 * seed) for seed in range(40)]


@pytest.fixture(scope="session")
def write_parquet() -> Callable[[Path, Sequence[str | None]], Path]:
    """Writes texts to a Parquet file of several row groups."""
    return lambda path, texts: _write(path, texts, row_group_size=7)


@pytest.fixture(scope="session")
def write_jsonl() -> Callable[[Path, Sequence[str | None]], Path]:
    """Writes texts to a JSON Lines file."""

    def write(path: Path, texts: Sequence[str | None]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory, corpus: list[str]) -> Path:
    """A trained ``tokenizer.json``."""
    directory = tmp_path_factory.mktemp("tokenizer")
    source = _write(directory / "corpus.parquet", corpus, row_group_size=7)
    train_tokenizer(source, directory / "tokenizer.json", vocab_size=400)
    return directory / "tokenizer.json"


@pytest.fixture(scope="session")
def trained(tokenizer_file: Path) -> Tokenizer:
    """The trained tokenizer."""
    return load_tokenizer(tokenizer_file)


@pytest.fixture(scope="session", params=["trained", "bytes"])
def tokenizer(request: pytest.FixtureRequest, trained: Tokenizer) -> Tokenizer:
    """Each tokenizer that this package makes."""
    return trained if request.param == "trained" else byte_tokenizer()


@pytest.fixture(scope="session")
def digests() -> Callable[[Path], dict[str, str]]:
    """The sha256 of every file below a directory, by its relative name."""

    def take(directory: Path) -> dict[str, str]:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return take
