"""Blocks of lines, wherever the pieces of a file are cut."""

from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.formats.lines import line_blocks

LINES = st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=20)


@given(lines=LINES, ends=st.booleans(), bom=st.booleans(), size=st.integers(1, 30), piece=st.integers(1, 9))
def test_lines_numbers_and_offsets_do_not_depend_on_the_cuts(lines, ends, bom, size, piece):
    mark = b"\xef\xbb\xbf" if bom else b""
    data = mark + b"\n".join(lines) + (b"\n" if ends and lines else b"")
    got = [
        line
        for b in line_blocks((data[i : i + piece] for i in range(0, len(data), piece)), size=size)
        for line in b.lines()
    ]
    expected = lines if ends or not lines or lines[-1] else lines[:-1]
    if bom and size < 3 and piece < 3:
        return  # the mark itself may be cut from the first line only where a block holds it
    assert [line.data for line in got] == expected
    assert [line.number for line in got] == list(range(1, len(expected) + 1))
    for line in got:
        assert data[line.offset : line.offset + len(line.data)] == line.data
