"""Lookups: what is in them, what is not, and that their values alone tell them apart."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.text.lookups import encode_ids, write_lookup

IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.lists(IDS), st.lists(IDS))
def test_ids_are_found_where_they_stand_in_order(
    tmp_path_factory: pytest.TempPathFactory, known: list[str], asked: list[str]
) -> None:
    lookup = write_lookup(encode_ids(known), directory=tmp_path_factory.mktemp("ids"))
    order = sorted(set(known))
    found = lookup.positions(encode_ids([*asked, *known])).tolist()
    assert found == [order.index(i) if i in order else -1 for i in [*asked, *known]]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_hashes_are_found_where_they_stand_in_order(
    tmp_path_factory: pytest.TempPathFactory, known: list[int], asked: list[int]
) -> None:
    lookup = write_lookup(np.array(known, dtype=np.uint64), directory=tmp_path_factory.mktemp("hashes"))
    order = sorted(set(known))
    found = lookup.positions(np.array([*asked, *known], dtype=np.uint64)).tolist()
    assert found == [order.index(i) if i in order else -1 for i in [*asked, *known]]


def test_large_lookups_are_mapped_and_travel_by_path(tmp_path: Path) -> None:
    lookup = write_lookup(np.arange(10_000, dtype=np.uint64), directory=tmp_path)
    sent = pickle.dumps(lookup)
    assert len(sent) < 1000
    assert pickle.loads(sent).positions(np.array([7, 10_000], dtype=np.uint64)).tolist() == [7, -1]
    assert isinstance(lookup.values().base, np.memmap)


def test_values_and_not_places_make_the_fingerprint(tmp_path: Path) -> None:
    one, same, other = (
        write_lookup(np.array(values, dtype=np.uint64), directory=tmp_path / name)
        for name, values in (("a", [1, 2]), ("b", [2, 1, 1]), ("c", [1, 3]))
    )
    assert one == same != other
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
