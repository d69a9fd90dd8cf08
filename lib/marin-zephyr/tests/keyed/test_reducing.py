"""Python reducers: what they are called with, what they may return, and keys larger than memory."""

import pytest

from marin_zephyr import Dataset
from marin_zephyr.errors import SchemaError, UsageError, UserCodeError

ROWS = [{"a": i % 3, "b": "xy"[i % 2], "i": i} for i in range(12)]
SOURCE = Dataset.from_rows(ROWS, num_shards=3)


def test_a_function_takes_a_value_or_a_tuple_and_gives_one_row_or_several(run):
    assert run(SOURCE.group_by("a").reduce(lambda key, rows: {"key": key, "n": len(list(rows))})) == [
        {"key": key, "n": 4} for key in range(3)
    ]

    def ends(key, rows):
        listed = [row["i"] for row in rows]
        yield {"a": key[0], "b": key[1], "i": listed[0]}
        yield {"a": key[0], "b": key[1], "i": listed[-1]}

    got = run(SOURCE.group_by("a", "b").reduce(ends))
    assert [(row["a"], row["b"]) for row in got] == [(a, b) for a in range(3) for b in "xy" for _ in range(2)]
    assert [row["i"] for row in got[:4]] == [0, 6, 3, 9]
    assert run(SOURCE.group_by("a").reduce(lambda key, rows: [])) == []


def test_rows_that_the_function_does_not_take_are_passed_over(run):
    for memory in (1, 1 << 30):
        got = run(
            SOURCE.group_by("a").reduce(lambda key, rows: next(rows), order_by="i", descending=True), memory=memory
        )
        assert [row["i"] for row in got] == [9, 10, 11]


def test_a_key_larger_than_memory_is_streamed(run):
    rows = [{"k": "hot", "i": i, "text": "x" * 500} for i in range(2000)]
    dataset = Dataset.from_rows(rows, num_shards=4).map_batches(lambda frame: frame, batch_rows=100)
    seen = []

    def watch(key, members):
        seen.extend(row["i"] for row in members)
        return {"k": key, "n": len(seen)}

    assert run(dataset.group_by("k").reduce(watch), memory=100_000) == [{"k": "hot", "n": 2000}]
    assert seen == list(range(2000))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda key, rows: 1 / key, r"failed on the key 0: ZeroDivisionError"),
        (lambda key, rows: None, r"returned NoneType for the key 0; return a row"),
        (lambda key, rows: [key], r"gave int for the key 0; give dicts"),
        (lambda key, rows: ({"x": 1 // row["i"]} for row in rows), r"failed on the key 0: ZeroDivisionError"),
    ],
)
def test_an_error_names_the_key(fn, message, run):
    with pytest.raises(UserCodeError, match=rf"reduce\(<lambda> at .*\) of \(a\) {message}"):
        run(SOURCE.group_by("a").reduce(fn))


def test_rows_of_two_types_are_an_error_that_names_the_reducer(run):
    with pytest.raises(SchemaError, match=r"rows from reduce\(.*column 'x'"):
        run(SOURCE.group_by("a").reduce(lambda key, rows: {"x": "a" if key else 1}))


def test_a_column_to_order_by_that_no_row_has_is_an_error(run):
    with pytest.raises(SchemaError, match="column 'when'"):
        run(SOURCE.group_by("a").reduce(lambda key, rows: next(rows), order_by="when"))


def test_arguments_are_checked_where_they_are_given():
    with pytest.raises(UsageError, match="one entry for each"):
        SOURCE.group_by("a").reduce(lambda key, rows: [], order_by="i", descending=[True, False])
    with pytest.raises(UsageError, match="not callable"):
        SOURCE.group_by("a").reduce("count")
    with pytest.raises(UsageError, match="name of a column"):
        SOURCE.group_by("a").reduce(lambda key, rows: [], order_by=[1])
