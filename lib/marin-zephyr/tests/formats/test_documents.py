"""A file that is one JSON document: its objects, in batches, whatever stands between them."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import SchemaError
from marin_zephyr.formats import documents, reader, streams
from marin_zephyr.formats.documents import read_document
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.nodes import RAW, ReadOptions


def read(path: Path, data: bytes, policy: str = "raise", **options) -> tuple[list[dict], Desk]:
    path.write_bytes(data)
    file = InputFile(url=str(path), name=path.name, format="json", compression=None, size=len(data), version="")
    desk = Desk(policy, path.parent / "rejects.jsonl")
    frames = list(reader("json")(file, ReadOptions(**options), desk))
    desk.close()
    return [row for frame in frames for row in frame.to_dicts()], desk


OBJECTS = st.lists(
    st.fixed_dictionaries({"n": st.integers(-5, 5), "t": st.text(max_size=6), "l": st.lists(st.text(max_size=2))}),
    max_size=8,
)
LAYOUTS = st.sampled_from([None, 0, 2])


@settings(max_examples=50)
@given(
    objects=OBJECTS,
    indent=LAYOUTS,
    ascii=st.booleans(),
    bom=st.booleans(),
    blank=st.sampled_from(["", " \r\n\t"]),
    window=st.integers(1, 40),
    piece=st.integers(1, 9),
)
def test_the_objects_of_an_array_are_its_rows(tmp_path_factory, objects, indent, ascii, bom, blank, window, piece):
    text = blank + json.dumps(objects, indent=indent, ensure_ascii=ascii) + blank
    path = tmp_path_factory.mktemp("array") / "a.json"
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_WINDOW", window)
        patch.setattr(documents, "blocks", lambda *_: iter([data[i : i + piece] for i in range(0, len(data), piece)]))
        rows, _ = read(path, data)
        assert rows == objects
        document = documents._Document(documents.blocks())
        for line in document.objects():
            assert data[line.offset :].startswith(line.data)
            assert line.nth == 1 + data.count(b"\n", 0, line.offset)


@settings(max_examples=50)
@given(objects=OBJECTS.filter(bool), cut=st.integers(0, 200), indent=LAYOUTS, junk=st.sampled_from(["", "\0", "nul"]))
def test_of_an_array_that_is_cut_the_objects_before_are_kept(tmp_path_factory, objects, cut, indent, junk):
    data = json.dumps(objects, indent=indent, ensure_ascii=False)
    path = tmp_path_factory.mktemp("cut") / "a.json"
    rows, desk = read(path, (data[: cut % len(data)] + junk).encode(), "skip")
    assert rows == objects[: len(rows)]
    assert desk.num_records == (1 if cut % len(data) or junk else 0)


def test_batches_agree_in_type_or_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_BATCH_BYTES", 1)
    rows, _ = read(tmp_path / "a.json", b'[{"n":1},{"n":1.5},{"m":null}]')
    assert rows == [{"n": 1}, {"n": 1.5}, {"m": None}]
    with pytest.raises(SchemaError, match=r"a\.json: column 'n' is int64 in one place and .*string"):
        read(tmp_path / "a.json", b'[{"n":1},{"n":"x"}]')


def test_raw_lines_and_predicates_reach_the_objects(tmp_path):
    from marin_zephyr import col

    data = b'[\n {"n": 1},\n {"n":\n2}]'
    rows, desk = read(tmp_path / "a.json", data, raw=True, predicate=col("n") > 1, with_source=True)
    assert [(row["n"], json.loads(row[RAW]), row["source_row"]) for row in rows] == [(2, {"n": 2}, 2)]
    assert b"\n" not in rows[0][RAW]
    assert desk.num_filtered == 1


def test_a_large_array_does_not_lie_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_BATCH_BYTES", 1 << 14)
    monkeypatch.setattr(documents, "_WINDOW", 1 << 14)
    monkeypatch.setattr(streams, "_CHUNK", 1 << 14)
    data = json.dumps([{"id": i, "text": "a few words", "tags": ["x", "y"]} for i in range(8_000)]).encode()
    path = tmp_path / "a.json"
    path.write_bytes(data)
    file = InputFile(url=str(path), name="a", format="json", compression=None, size=len(data), version="")
    tracemalloc.start()
    num_rows = sum(frame.height for frame in read_document(file, ReadOptions(), Desk("raise", tmp_path / "r")))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_rows == 8_000
    assert peak < len(data)
