"""Keys: which are equal, which comes first, and which partition one belongs to. Declared once, for every keyed work.

A key is one value or several columns. Kinds stand in this order: null < booleans < numbers < strings < bytes < dates <
datetimes without a zone < instants < times < durations < lists < structs. Within a kind:

- numbers compare by exact value, whatever the type that holds them: ``1`` is ``1.0``, ``-0.0`` is ``0.0``, 2^53 + 1 is
  no float, a decimal 0.1 lies below the float 0.1; every NaN is every NaN, above infinity; a boolean is no number
- strings compare by code point, bytes by byte, datetimes by moment whatever the unit
- lists compare member by member, a prefix first; structs as the list of their members that are not null, by name

**Order.** `encode` gives each row's key as bytes whose lexicographic order is this order and whose equality is this
equality, after the tuple layer of FoundationDB: a byte for the kind, then what the kind needs. A string ends in a zero
byte, and zero and one within it are escaped; a list is its members and a zero byte. So no code is a prefix of another,
codes of several columns are joined as they are, and a descending column is complemented. A number is 11 bytes: the
greatest double not above it with its bits arranged to sort, then what is left, doubled; an odd rest says that 26 bytes
of it follow (decimals and 128-bit integers only).

**Equality alone** needs no order and no long keys: a key's *digest* is 128 bits, equal exactly for equal keys but for
chance (n keys: below n^2 / 2^129, 1e-21 for a billion; no guard against an adversary). Numbers, booleans and nulls are
mixed in place, strings and bytes are XXH3-128 seeded by kind, other kinds XXH3-128 of their code; columns are folded
together by a permutation of 128 bits. A key's *partition* is the digest's first word modulo the number of partitions.
`PARTITION_FUNCTION` names all this and enters every fingerprint.

See: https://github.com/apple/foundationdb/blob/main/design/tuple.md, https://github.com/Cyan4973/xxHash (XXH3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from marin_zephyr.errors import SchemaError

KEY = "\1key"  # Arrow's C interface refuses names with a NUL
PARTITION_FUNCTION = "xxh3-128+mix/2"

_END = b"\0"
_NULL, _FALSE, _TRUE, _NUMBER, _TEXT, _BYTES = b"\1", b"\2", b"\3", b"\4", b"\5", b"\6"
_DATE, _DATETIME, _INSTANT, _TIME, _DURATION, _LIST, _STRUCT = b"\7", b"\10", b"\11", b"\12", b"\13", b"\14", b"\15"
_NULL_LAST = b"\xff"

_BINARY = pa.large_binary()
_SIGN = np.uint64(1 << 63)
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_NUMBERS = (pl.Decimal, pl.Int128, pl.UInt128)  # beside those that NumPy knows

_digest: Callable[[Any, int], bytes] = xxhash.xxh3_128_digest


def encode(
    frame: pl.DataFrame,
    on: Sequence[str],
    *,
    descending: bool | Sequence[bool] = False,
    nulls_last: bool | Sequence[bool] = False,
) -> pl.Series:
    """The code of each row's key: bytes that sort and compare as keys do.

    Args:
        frame: rows that have all the columns.
        on: key columns, the first weighs most.
        descending: whether greater values come first, for all columns or one by one.
        nulls_last: whether nulls come after everything else, whatever ``descending`` says; by default before.

    Returns:
        A binary series named `KEY`, without nulls.

    Raises:
        SchemaError: a column of a type that has no order.
    """
    flags = [[flag] * len(on) if isinstance(flag, bool) else flag for flag in (descending, nulls_last)]
    codes = [
        _codes(frame.get_column(name), null=_NULL_LAST if last else _NULL, complement=down)
        for name, down, last in zip(on, *flags, strict=True)
    ]
    return pl.Series(KEY, _joined(*codes) if len(codes) > 1 else codes[0])


def key_digests(frame: pl.DataFrame, on: Sequence[str] | None) -> np.ndarray:
    """The digest of each row's key.

    Args:
        frame: rows.
        on: key columns; None for the whole row, whatever the order of its columns and whether nulls are spelled out.

    Returns:
        ``uint64[rows, 2]``; the first word decides the partition.
    """
    if on is not None and len(on) == 1:
        return _column_digests(frame.get_column(on[0]))
    digests = np.zeros((frame.height, 2), dtype=np.uint64)
    for name in sorted(frame.columns) if on is None else on:
        column = frame.get_column(name)
        if on is not None:
            digests = _permuted(digests ^ _column_digests(column))
        elif column.dtype != pl.Null:
            named = _permuted(_column_digests(column)) ^ _words(_digest(name.encode(), 0))
            digests = np.where(column.is_null().to_numpy()[:, None], digests, _permuted(digests ^ named))
    return digests


def partitions(digests: np.ndarray, num_partitions: int) -> np.ndarray:
    """The partition of each key (`PARTITION_FUNCTION`)."""
    return (digests[:, 0] % np.uint64(num_partitions)).astype(np.int64)


def _codes(column: pl.Series, *, null: bytes = _NULL, complement: bool = False) -> pa.LargeBinaryArray:
    """The codes of one column, as if no value were null; then the null ones replaced."""
    dtype, column = column.dtype, column.alias("")
    if dtype == pl.Null:
        return _repeated(null, len(column))
    if dtype == pl.Boolean:
        made = _fixed(_FALSE[0] + column.fill_null(False).to_numpy().astype(np.uint8))
    elif dtype.is_numeric():
        made = _number_codes(column)
    elif dtype in (pl.String, pl.Categorical, pl.Enum):
        made = _text_codes(_TEXT, column.cast(pl.String).cast(pl.Binary))
    elif dtype == pl.Binary:
        made = _text_codes(_BYTES, column)
    elif dtype.is_temporal():
        made = _time_codes(column)
    elif isinstance(dtype, (pl.List, pl.Array)):
        made = _list_codes(column)
    elif isinstance(dtype, pl.Struct):
        made = _struct_codes(column, dtype)
    else:
        raise _unordered(str(dtype))
    if complement:
        made = _complement(made)
    return _chosen(column.is_null(), null, made) if column.null_count() else made


def _number_codes(column: pl.Series) -> pa.LargeBinaryArray:
    if isinstance(column.dtype, _NUMBERS):
        parts = [_exact_parts(value) for value in column.fill_null(0).to_list()]
        doubles, rests = np.array([p[0] for p in parts], dtype=np.float64), np.array([p[1] for p in parts], dtype=">u2")
        short = _fixed(_filled(_NUMBER, column), _sortable(doubles).astype(">u8"), rests)
        return _joined(short, pa.array([p[2] for p in parts], _BINARY))
    doubles, rests = _number_parts(column)
    return _fixed(_filled(_NUMBER, column), _sortable(doubles).astype(">u8"), (rests << 1).astype(">u2"))


def _number_parts(column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Of each number the greatest double not above it, and the whole number that is left."""
    if column.dtype.is_float():
        return column.cast(pl.Float64).fill_null(0.0).to_numpy(), np.zeros(len(column), dtype=np.int64)
    values = column.cast(pl.UInt64 if column.dtype == pl.UInt64 else pl.Int64).fill_null(0).to_numpy()
    doubles = values.astype(np.float64)
    if not len(values) or (values.max() <= 2**53 and values.min() >= -(2**53)):
        return doubles, np.zeros(len(column), dtype=np.int64)
    beyond = doubles >= (2.0**64 if column.dtype == pl.UInt64 else 2.0**63)
    above = beyond | (np.where(beyond, 0.0, doubles).astype(values.dtype) > values)
    doubles = np.where(above, np.nextafter(doubles, -np.inf), doubles)
    return doubles, (values - doubles.astype(values.dtype)).astype(np.int64)


def _exact_parts(value: Any) -> tuple[float, int, bytes]:
    """A decimal or wide integer: the double below it, the rest doubled (odd: more follows), the rest in full."""
    exact = Fraction(value)
    below = float(exact)
    if Fraction(below) > exact:
        below = math.nextafter(below, -math.inf)
    rest = exact - Fraction(below)
    if rest.denominator == 1 and rest < 1 << 15:
        return below, int(rest) << 1, b""
    # Decimals of 38 digits that differ do so by more than 2^-127, and a double's step at 2^128 is 2^76.
    return below, min(int(rest), (1 << 15) - 1) << 1 | 1, int(rest * (1 << 128)).to_bytes(26, "big")


def _sortable(doubles: np.ndarray) -> np.ndarray:
    """Doubles as integers of the same order; one zero, one NaN."""
    bits = np.where(np.isnan(doubles), np.nan, doubles + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _text_codes(kind: bytes, column: pl.Series) -> pa.LargeBinaryArray:
    body = column.to_arrow().cast(_BINARY)
    data = _data(body)
    if len(data) and data.min() <= 1:
        for byte, escaped in ((b"\1", b"\1\2"), (b"\0", b"\1\1")):
            body = pc.call_function("replace_substring", [body], pc.ReplaceSubstringOptions(byte, escaped))
    return _joined(_scalar(kind), body, _scalar(_END))


def _time_codes(column: pl.Series) -> pa.LargeBinaryArray:
    """Days; or seconds and nanoseconds."""
    dtype = column.dtype
    values = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
    if dtype == pl.Date:
        return _fixed(_filled(_DATE, column), (values.view(np.uint64) ^ _SIGN).astype(">u8"))
    if isinstance(dtype, pl.Datetime):
        kind = _INSTANT if dtype.time_zone else _DATETIME
    else:
        kind = _TIME if dtype == pl.Time else _DURATION
    per_second = _PER_SECOND[getattr(dtype, "time_unit", None) or "ns"]
    seconds = values // per_second
    nanoseconds = (values - seconds * per_second) * (10**9 // per_second)
    return _fixed(_filled(kind, column), (seconds.view(np.uint64) ^ _SIGN).astype(">u8"), nanoseconds.astype(">u4"))


def _list_codes(column: pl.Series) -> pa.LargeBinaryArray:
    """Codes of the members lie one after another, so a list's are a longer slice of the same bytes."""
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    members = _codes(lists.explode(empty_as_null=False, keep_nulls=False))
    lengths = lists.list.len().fill_null(0).to_numpy()
    ends = _offsets(members)[np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])]
    body = pa.LargeBinaryArray.from_buffers(_BINARY, len(lists), [None, pa.py_buffer(ends), members.buffers()[2]])
    return _joined(_scalar(_LIST), body, _scalar(_END))


def _struct_codes(column: pl.Series, dtype: pl.Struct) -> pa.LargeBinaryArray:
    pieces: list[Any] = [_repeated(_STRUCT, len(column))]
    for name in sorted(field.name for field in dtype.fields):
        member = column.struct.field(name)
        label = _TEXT + name.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + _END
        pieces.append(_chosen(member.is_null(), b"", _joined(_scalar(label), _codes(member))))
    return _joined(*pieces, _scalar(_END))


def _column_digests(column: pl.Series) -> np.ndarray:
    dtype = column.dtype
    if dtype == pl.Null:
        return np.broadcast_to(_words(_digest(_NULL, 0)), (len(column), 2))
    if dtype == pl.Boolean:
        yes, no = _words(_digest(_TRUE, 0)), _words(_digest(_FALSE, 0))
        made = np.where(column.fill_null(False).to_numpy()[:, None], yes, no)
    elif dtype.is_numeric():
        made = _number_digests(column)
    elif dtype in (pl.String, pl.Categorical, pl.Enum, pl.Binary):
        seed = _BYTES[0] if dtype == pl.Binary else _TEXT[0]
        texts = column if dtype == pl.Binary else column.cast(pl.String).cast(pl.Binary)
        made = _words(b"".join([_digest(value, seed) for value in texts.fill_null(b"").to_list()]))
    else:
        made = _words(b"".join([_digest(code, 0) for code in _codes(column).to_pylist()]))
    if column.null_count():
        made = np.where(column.is_null().to_numpy()[:, None], _words(_digest(_NULL, 0)), made)
    return made


def _number_digests(column: pl.Series) -> np.ndarray:
    """Injective for what 11 bytes hold: a permutation of (double, rest)."""
    if isinstance(column.dtype, _NUMBERS):
        parts = [_exact_parts(value) for value in column.fill_null(0).to_list()]
        doubles = np.array([p[0] for p in parts], dtype=np.float64)
        rests = np.array([xxhash.xxh3_64_intdigest(p[2]) | 1 if p[2] else p[1] for p in parts], dtype=np.uint64)
    else:
        doubles, rests = _number_parts(column)
        rests = rests.astype(np.uint64) << np.uint64(1)
    return _permuted(np.stack([_sortable(doubles), rests ^ np.uint64(_NUMBER[0] << 56)], axis=1))


def _permuted(words: np.ndarray) -> np.ndarray:
    """A permutation of 128 bits that spreads every bit over all: a Feistel network over MurmurHash3's finaliser.

    See: https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp (fmix64).
    """
    high, low = words[:, 0], words[:, 1]
    for constant in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7):
        mixed = high + np.uint64(constant)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(33)
        high, low = low ^ mixed, high
    return np.stack([high, low], axis=1)


def _words(digests: bytes) -> np.ndarray:
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)


def _scalar(value: bytes) -> pa.LargeBinaryScalar:
    return pa.scalar(value, _BINARY)


def _repeated(value: bytes, length: int) -> pa.LargeBinaryArray:
    return pa.repeat(_scalar(value), length)


def _joined(*pieces: Any) -> pa.LargeBinaryArray:
    return pc.call_function("binary_join_element_wise", [*pieces, _scalar(b"")])


def _chosen(where: pl.Series, value: bytes, codes: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """``codes`` with one value in some places."""
    return pc.call_function("if_else", [where.to_arrow(), _scalar(value), codes])


def _filled(kind: bytes, column: pl.Series) -> np.ndarray:
    return np.full(len(column), kind[0], dtype=np.uint8)


def _fixed(*fields: np.ndarray) -> pa.LargeBinaryArray:
    """Codes of one length, from big-endian fields."""
    columns = [np.ascontiguousarray(f).view(np.uint8).reshape(len(f), f.dtype.itemsize) for f in fields]
    data = np.concatenate(columns, axis=1)
    ends = np.arange(len(data) + 1, dtype=np.int64) * data.shape[1]
    return pa.LargeBinaryArray.from_buffers(_BINARY, len(data), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _complement(codes: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    ends = _offsets(codes)
    data = pa.py_buffer(~_data(codes))
    return pa.LargeBinaryArray.from_buffers(_BINARY, len(codes), [None, pa.py_buffer(ends - ends[0]), data])


def _offsets(array: pa.LargeBinaryArray) -> np.ndarray:
    if not len(array):
        return np.zeros(1, dtype=np.int64)
    return np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array) + 1]


def _data(array: pa.LargeBinaryArray) -> np.ndarray:
    """The bytes of all values, one after another."""
    ends = _offsets(array)
    buffer = array.buffers()[2]
    return np.empty(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)[ends[0] : ends[-1]]


def _unordered(what: str) -> SchemaError:
    return SchemaError(f"a key of type {what} has no declared equality and order; make it a string or a number")
