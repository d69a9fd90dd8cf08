"""Hot keys are found, counted within bounds, reported and said once."""

import collections
import logging

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr import session as session_module
from marin_zephyr.reporting import skew
from marin_zephyr.shuffle.keys import key_digests


@settings(max_examples=50, derandomize=True)
@given(data=st.data())
def test_merged_sketches_hold_every_hot_key_within_their_bound(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skew, "_KEPT", 4)
        patch.setattr(skew, "HOT_SHARE", 0.21)
        shards = data.draw(st.lists(st.lists(st.lists(st.integers(0, 12), min_size=1)), min_size=1, max_size=4))
        entries, exact = [], collections.Counter()
        for batches in shards:
            sketch = skew.Sketch(["k"])
            for values in batches:
                frame = pl.DataFrame({"k": values})
                sketch.add(frame, key_digests(frame, ["k"]))
                exact.update(values)
            entries.append(sketch.entries())
            assert len(entries[-1]) <= 4
        rows = exact.total()
        for entry in skew.hot_keys(entries, rows=max(1, rows)):
            assert exact[int(entry["key"])] - rows / 5 <= entry["rows"] <= exact[int(entry["key"])]
        held = {int(key) for shard in entries for _, key, _ in shard}
        assert {key for key, num in exact.items() if num > rows / 5} <= held


@pytest.mark.parametrize("operation", ["reduce", "join"])
def test_a_hot_key_is_reported_and_said_once(operation, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(session_module, "_HOT_ROWS", 100)
    rows = [{"k": "hot" if i % 10 else f"cold{i}"} for i in range(2000)]
    source = Dataset.from_rows(rows, num_shards=4)
    dataset = (
        source.group_by("k").reduce(lambda key, members: {"k": key})
        if operation == "reduce"
        else source.join(Dataset.from_rows([{"k": "hot"}]), on="k", how="full")
    )
    with caplog.at_level(logging.WARNING), Session(backend="inline", work_dir=tmp_path / "work") as session:
        first = session.run(dataset.write_parquet(tmp_path / "out"))
        again = session.run(dataset.write_parquet(tmp_path / "out"))
    assert [(e["key"], e["share"]) for e in first.stages[0].hot_keys] == [("'hot'", pytest.approx(0.9, abs=0.01))]
    assert again.executed == 0
    assert again.stages[0].hot_keys == first.stages[0].hot_keys
    said = [record.getMessage() for record in caplog.records if "hold more than 5%" in record.getMessage()]
    assert len(said) == 1
    assert "'hot' (90%)" in said[0]
