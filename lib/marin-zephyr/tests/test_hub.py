"""Reading datasets: by the real loader from data made here, and what is said where it is not installed or not there."""

import importlib.util
import json

import pytest

from marin_zephyr.errors import InputError, MissingExtraError, OutputError
from marin_zephyr.hub import fetch_rows

installed = importlib.util.find_spec("datasets") is not None
needs_datasets = pytest.mark.skipif(not installed, reason="the extra `hf` is not installed")


@pytest.fixture
def dataset(tmp_path):
    """A local directory that the loader reads as a dataset."""
    directory = tmp_path / "stories"
    directory.mkdir()
    rows = "".join(json.dumps({"text": f"story {i} ☃", "other": i}) + "\n" for i in range(10))
    (directory / "train.jsonl").write_text(rows, encoding="utf-8")
    return str(directory)


@needs_datasets
def test_the_first_rows_are_kept_in_order_with_the_wanted_columns(dataset, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert fetch_rows(dataset, out, revision=None, num_rows=4) == 4
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == [
        {"text": f"story {i} ☃"} for i in range(4)
    ]


@needs_datasets
@pytest.mark.parametrize(
    ("options", "said"),
    [({"columns": ("body",)}, "'body'"), ({"split": "test"}, "test")],
    ids=["a column", "a split"],
)
def test_what_is_not_there_is_named_and_no_file_is_left(dataset, tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        fetch_rows(dataset, tmp_path / "rows.jsonl", revision=None, **options)
    assert not list(tmp_path.glob("*rows*"))


@needs_datasets
def test_a_file_that_cannot_be_written_is_not_blamed_on_the_dataset(dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/rows\.jsonl: cannot write"):
        fetch_rows(dataset, tmp_path / "file" / "rows.jsonl", revision=None)


@needs_datasets
def test_a_missing_dataset_is_named(tmp_path):
    with pytest.raises(InputError, match="no/where"):
        fetch_rows(str(tmp_path / "no" / "where"), tmp_path / "rows.jsonl", revision=None)


@pytest.mark.skipif(installed, reason="the extra `hf` is installed")
def test_without_the_extra_the_install_line_is_given(dataset, tmp_path):
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-zephyr\[hf\]'"):
        fetch_rows(dataset, tmp_path / "rows.jsonl", revision=None)
