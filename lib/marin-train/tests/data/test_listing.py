import numpy as np
import pytest

from marin_train.configs import Component, DataConfig, PackingConfig
from marin_train.data.listing import list_rows, to_text
from marin_train.data.mixture import Mixture

PACKINGS = [PackingConfig(), *(PackingConfig(kind="documents", overlong=o) for o in ("split", "left", "right", "drop"))]


@pytest.fixture(params=PACKINGS, ids=lambda packing: f"{packing.kind} {packing.overlong}")
def mixture(store, request) -> Mixture:
    components = (Component(name="a", path=str(store), weight=0.7), Component(name="b", path=str(store), weight=0.3))
    return Mixture.open(DataConfig(components=components, seq_len=16, packing=request.param), batch_size=8)


def test_the_tokens_that_are_listed_are_those_of_the_batch(mixture: Mixture) -> None:
    for step in (7, 0, 123):
        batch = mixture.batch(step)
        for row in list_rows(mixture, step):
            stop = row.first_token + row.num_tokens
            tokens = mixture.stores[row.component].read(row.first_token, stop)
            assert 2 <= row.num_tokens <= 17
            if row.num_tokens < 17:
                assert batch.segment_ids is not None
                assert not batch.segment_ids[row.row, row.num_tokens :].any()
            assert np.array_equal(batch.tokens[row.row, : row.num_tokens], tokens)


def test_a_listing_is_a_table_that_says_how_to_go_on(mixture: Mixture) -> None:
    rows = list_rows(mixture, 3)
    lines = to_text(rows, step=3).splitlines()
    assert lines[0] == "step 3, counted from 0 (metrics.jsonl and blame call it 4)"
    assert [line.split()[1] for line in lines[3:11]] == [row.component for row in rows]
    assert lines[-1].endswith(f"zephyr inspect {rows[0].store} --token {rows[0].first_token}")
