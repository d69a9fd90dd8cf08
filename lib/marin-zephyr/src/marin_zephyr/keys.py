"""Keys: which are equal, and which partition one belongs to. Declared once, here, for every keyed operation.

A key is one value or several columns. Numbers are equal by value (``1`` is ``1.0``, ``-0.0`` is ``0.0``, every NaN is
every NaN), a boolean is no number, a string is no bytes, null equals null, lists and structs are equal member by
member. A key's *digest* is XXH3-128 of the value's canonical bytes, seeded by its kind; rows are matched by digest.
(For n keys two different ones meet with probability below n^2 / 2^129: 1e-21 for a billion. The hash is not
cryptographic: it guards against accident, not against an adversary.)

A key's partition is the digest's first eight bytes, little-endian, modulo the number of partitions. The function is
named `PARTITION_FUNCTION` and enters every fingerprint; the number of partitions is a function of the inputs.

See: https://github.com/Cyan4973/xxHash (XXH3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import xxhash

from marin_zephyr.errors import SchemaError

PARTITION_FUNCTION = "xxh3-128/1"

_NULL, _BOOL, _INT, _FLOAT, _TEXT, _BYTES, _LIST, _STRUCT, _OTHER = range(9)

_digest: Callable[[Any, int], bytes] = xxhash.xxh3_128_digest


def key_digests(frame: pl.DataFrame, on: Sequence[str] | None) -> np.ndarray:
    """The 16-byte digest of each row's key.

    Args:
        frame: rows.
        on: key columns; None for the whole row, whatever the order of its columns and whether nulls are spelled out.

    Returns:
        ``uint64[rows, 2]``; the first word decides the partition.
    """
    names = sorted(frame.columns) if on is None else on
    columns = [_column_digests(frame.get_column(name)) for name in names]
    if on is None:
        digests = (
            [_digest_members(names, row) for row in zip(*columns, strict=True)]
            if names
            else [b"\0" * 16] * frame.height
        )
    elif len(columns) == 1:
        digests = columns[0]
    else:
        digests = [_digest(b"".join(row), _LIST) for row in zip(*columns, strict=True)]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def partitions(digests: np.ndarray, num_partitions: int) -> np.ndarray:
    """The partition of each key (`PARTITION_FUNCTION`)."""
    return (digests[:, 0] % np.uint64(num_partitions)).astype(np.int64)


def key_digest(value: Any) -> bytes:
    """The digest of one Python value, the definition of key equality."""
    if value is None:
        return _digest(b"", _NULL)
    if isinstance(value, bool):
        return _digest(b"\1" if value else b"\0", _BOOL)
    if isinstance(value, int):
        return _digest(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), _INT)
    if isinstance(value, float):
        if value.is_integer():
            return key_digest(int(value))
        return _digest(struct.pack("<d", value if value == value else float("nan")), _FLOAT)
    if isinstance(value, str):
        return _digest(value.encode(), _TEXT)
    if isinstance(value, bytes):
        return _digest(value, _BYTES)
    if isinstance(value, (list, tuple)):
        return _digest(b"".join(map(key_digest, value)), _LIST)
    if isinstance(value, dict):
        names = sorted(value)
        return _digest_members(names, [key_digest(value[name]) for name in names])
    if isinstance(value, Decimal) or hasattr(value, "isoformat"):
        return _digest(f"{type(value).__name__}:{value}".encode(), _OTHER)
    raise SchemaError(f"a key of type {type(value).__name__} has no declared equality; make it a string or a number")


def _digest_members(names: Sequence[str], digests: Sequence[bytes]) -> bytes:
    """A struct's digest: its members that are not null, by name, so that an absent member is a null one."""
    null = _digest(b"", _NULL)
    held = [_digest(name.encode(), _TEXT) + d for name, d in zip(names, digests, strict=True) if d != null]
    return _digest(b"".join(held), _STRUCT)


def _column_digests(column: pl.Series) -> list[bytes]:
    """`key_digest` of each value; text without a detour through Python strings."""
    if column.dtype == pl.String:
        null = _digest(b"", _NULL)
        return [null if v is None else _digest(v, _TEXT) for v in column.cast(pl.Binary).to_list()]
    return [key_digest(value) for value in column.to_list()]
