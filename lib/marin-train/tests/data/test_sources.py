from collections.abc import Callable
from pathlib import Path

import pytest

from marin_train.data.sources import Sources
from marin_train.data.store import TokenStore
from marin_train.errors import TokenStoreError

PARTS = [[[1, 0]] * 3, [[2, 0]] * 4]


def test_each_document_has_the_source_that_its_part_tells(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    runs = [[("a b.jsonl", 1), ("\u00fc.txt", 2)], [("\u00fc.txt", 1), ("c", 3)]]
    sources = Sources(TokenStore.open(write_store(tmp_path / "store", PARTS, sources=runs)))
    assert [sources.of(document) for document in range(7)] == ["a b.jsonl", *["\u00fc.txt"] * 3, *["c"] * 3]


def test_a_store_that_does_not_say_leaves_it_open(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    sources = Sources(TokenStore.open(write_store(tmp_path / "store", PARTS)))
    assert [sources.of(document) for document in range(7)] == [None] * 7


@pytest.mark.parametrize("runs", [[[("a", 2)], [("c", 4)]], [[("a", 3, 4)], [("c", 4)]]])
def test_a_record_that_does_not_fit_its_part_is_refused_by_name(
    tmp_path: Path, write_store: Callable[..., Path], runs: list
) -> None:
    sources = Sources(TokenStore.open(write_store(tmp_path / "store", PARTS, sources=runs)))
    with pytest.raises(TokenStoreError, match=r"part-00000\.sources"):
        sources.of(0)
