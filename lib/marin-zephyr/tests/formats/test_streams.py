"""Compressed files: whole ones are read, cut or damaged ones never pass for whole."""

import bz2
import gzip
import io
import lzma
import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import InputError, TruncatedFileError
from marin_zephyr.formats import streams
from marin_zephyr.formats.streams import blocks

TEXT = b"".join(b"line %d of a text that is long enough\n" % i for i in range(5000))


def bgzip_like(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[i : i + 9000]) for i in range(0, len(data), 9000))


COMPRESS = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
MULTI = {
    "gz": bgzip_like,
    "zst": lambda data: b"".join(
        zstandard.ZstdCompressor().compress(data[i : i + 9000]) for i in range(0, len(data), 9000)
    ),
    "xz": lambda data: lzma.compress(data[:9000]) + lzma.compress(data[9000:]),
    "bz2": lambda data: bz2.compress(data[:9000]) + bz2.compress(data[9000:]),
}


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("pack", [COMPRESS, MULTI], ids=["one member", "many members"])
def test_whole_files_are_read_whole(tmp_path, kind, pack):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(pack[kind](TEXT))
    assert b"".join(blocks(str(path), kind)) == TEXT


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("pack", [COMPRESS, MULTI], ids=["one member", "many members"])
@pytest.mark.parametrize("cut", [1, 5, 2000])
def test_a_cut_file_is_an_error_that_names_it(tmp_path, kind, pack, cut):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(pack[kind](TEXT)[:-cut])
    with pytest.raises(TruncatedFileError, match=rf"a\.{kind}.*truncated"):
        list(blocks(str(path), kind))


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    data = bytearray(COMPRESS[kind](TEXT))
    for i in range(len(data) // 2, len(data) // 2 + 30):
        data[i] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.{kind}"):
        list(blocks(str(path), kind))


def test_plain_bytes_pass(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    assert zlib.crc32(b"".join(blocks(str(path), None))) == zlib.crc32(TEXT)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(InputError, match="gone"):
        list(blocks(str(tmp_path / "gone"), None))


def drain(path, kind):
    """What comes out of a file before the error, and the error."""
    got = b""
    try:
        for piece in blocks(str(path), kind):
            got += piece
    except InputError as e:
        return got, e
    return got, None


@pytest.mark.parametrize("kind", COMPRESS)
def test_all_that_a_cut_file_still_holds_is_read(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(COMPRESS[kind](TEXT)[:-1])
    got, error = drain(path, kind)
    assert isinstance(error, TruncatedFileError)
    assert TEXT.startswith(got)
    assert f"ends after {len(got):,} uncompressed bytes" in str(error)
    if kind != "bz2":  # its blocks of 900 kB come whole or not at all
        assert len(got) > len(TEXT) // 2


def test_what_lies_before_damage_is_read(tmp_path):
    member = gzip.compress(TEXT)
    data = bytearray(member * 20)
    data[15 * len(member) + 10] = 0xFF  # a block of a type that there is not
    (tmp_path / "a.gz").write_bytes(data)
    got, error = drain(tmp_path / "a.gz", "gz")
    assert got == TEXT * 15
    assert f"gz data is damaged: it shows after {len(got):,} uncompressed bytes" in str(error)


MEMBERS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda data: data * 5000)), st.integers(0, 9)
    ),
    min_size=1,
    max_size=4,
)


def by_the_standard_library(data):
    """What zlib makes of the file before it errs, and its error."""
    got = b""
    stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        while piece := stream.read1(1 << 16):
            got += piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        return got, e
    return got, None


@settings(max_examples=50)
@given(members=MEMBERS, padding=st.integers(0, 3), cut=st.floats(0, 1))
def test_a_gzip_file_cut_anywhere_gives_at_least_what_zlib_gives(members, padding, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("gz") / "a.gz"
    data = b"".join(gzip.compress(text, level) + b"\0" * padding for text, level in members)
    whole = b"".join(text for text, _ in members)
    path.write_bytes(data)
    assert drain(path, "gz") == (whole, None)
    path.write_bytes(data[: int(cut * len(data))])
    (got, error), (theirs, their_error) = drain(path, "gz"), by_the_standard_library(path.read_bytes())
    assert whole.startswith(got)
    assert got.startswith(theirs)
    is_nothing = not path.stat().st_size  # to zlib a file of no member is whole
    assert (error is None) == (their_error is None and not is_nothing)
    if isinstance(their_error, EOFError) or is_nothing:
        assert isinstance(error, TruncatedFileError)


@settings(max_examples=50)
@given(members=MEMBERS, at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_damaged_gzip_file_never_passes_where_zlib_refuses_it(members, at, flip, tmp_path_factory):
    path = tmp_path_factory.mktemp("gz") / "a.gz"
    data = bytearray(b"".join(gzip.compress(text, level) for text, level in members))
    data[int(at * len(data))] ^= flip
    path.write_bytes(data)
    (got, error), (theirs, their_error) = drain(path, "gz"), by_the_standard_library(bytes(data))
    if error is None:
        assert (got, None) == (theirs, their_error)


@settings(max_examples=25)
@given(members=MEMBERS, piece=st.integers(1, 40), limit=st.integers(1 << 10, 1 << 17))
def test_pieces_may_be_cut_anywhere_in_a_member(members, piece, limit, tmp_path_factory):
    path = tmp_path_factory.mktemp("gz") / "a.gz"
    path.write_bytes(b"".join(gzip.compress(text, level) for text, level in members))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_GZIP_PIECE", piece)
        patch.setattr(streams, "_LIMIT", limit)
        assert drain(path, "gz") == (b"".join(text for text, _ in members), None)
        assert max(map(len, blocks(str(path), "gz")), default=0) <= limit


@settings(max_examples=25)
@given(data=st.data(), size=st.integers(1 << 15, 1 << 20))
def test_damage_costs_no_more_where_larger_pieces_are_read(data, size, tmp_path_factory):
    path = tmp_path_factory.mktemp("gz") / "a.gz"
    packed = bytearray(gzip.compress(random.Random(0).randbytes(200_000)) + gzip.compress(TEXT))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_GZIP_PIECE", size)
        large, said = drain(path, "gz")
        patch.setattr(streams, "_GZIP_PIECE", streams._PIECE)
        small, as_said = drain(path, "gz")
    assert large.startswith(small)
    assert type(said) is type(as_said)
