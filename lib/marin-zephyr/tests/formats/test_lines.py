"""Blocks of lines, wherever the pieces of a file are cut."""

from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.formats.lines import Block, line_blocks

MARK = b"\xef\xbb\xbf"
LINES = st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=20)
ENDS = st.sampled_from([b"\n", b"\r\n"])


def cut(data: bytes, *, piece: int, size: int) -> list[Block]:
    return list(line_blocks((data[i : i + piece] for i in range(0, len(data), piece)), size=size))


@given(lines=LINES, ends=st.booleans(), bom=st.booleans(), size=st.integers(1, 30), piece=st.integers(1, 9))
def test_lines_numbers_and_offsets_do_not_depend_on_the_cuts(lines, ends, bom, size, piece):
    lines = [line.replace(MARK, b"") for line in lines]
    data = MARK * bom + b"\n".join(lines) + (b"\n" if ends and lines else b"")
    got = [line for block in cut(data, piece=piece, size=size) for line in block.lines()]
    expected = lines if ends or not lines or lines[-1] else lines[:-1]
    assert [line.data for line in got] == expected
    assert [line.number for line in got] == list(range(1, len(expected) + 1))
    for line in got:
        assert data[line.offset : line.offset + len(line.data)] == line.data


@given(data=st.binary(max_size=60), size=st.integers(1, 30), pieces=st.tuples(st.integers(1, 9), st.integers(1, 60)))
def test_where_a_file_is_cut_does_not_depend_on_its_pieces(data, size, pieces):
    one, other = (cut(data, piece=piece, size=size) for piece in pieces)
    assert one == other
    assert all(len(block.data) >= size for block in one[:-1] if block.offset != len(MARK))


@given(lines=LINES, end=ENDS, last=st.booleans(), size=st.integers(1, 12))
def test_a_block_says_the_same_of_its_lines_in_every_way(lines, end, last, size):
    data = end.join(lines) + (end if last and lines else b"")
    for block in cut(data, piece=100, size=50):
        each = list(block.lines())
        starts, ends = block.bounds()
        assert [block.data[a:b] for a, b in zip(starts, ends, strict=True)] == [line.data for line in each]
        assert block.raw().to_list() == [line.data for line in each]
        parts = list(block.parts(size))
        assert [line for _, part in parts for line in part.lines()] == each
        assert [part.raw().to_list() for _, part in parts] == [[line.data for line in p.lines()] for _, p in parts]
        assert [first for first, _ in parts] == [part.nth - block.nth for _, part in parts]
        assert all(len(part.data) <= size or part.num_lines == 1 for _, part in parts)
        assert block.num_lines == len(each)
