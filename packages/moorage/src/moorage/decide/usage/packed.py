"""Rows of whole numbers as few bytes: readings of one pod in five minutes, its sums of five minutes in an hour.

A row of a database costs its header, its key and the key's index in addition to its content. Ten or twelve rows in
one cost that once. Rows are stored column by column: a column of equal values is one number, and a column that
equals the previous one (a peak and a sum of one reading) takes no space.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[int, list[int | list[int] | None]])


def pack(rows: Sequence[tuple[int, ...]]) -> bytes:
    """Rows of one length, each value from -2**63 to 2**64 - 1; `unpack` returns them in the same order."""
    columns: list[int | list[int] | None] = []
    before: tuple[int, ...] | None = None
    for column in zip(*rows, strict=True):
        if column == before:
            columns.append(None)
        else:
            columns.append(column[0] if column.count(column[0]) == len(column) else list(column))
        before = column
    return _ENCODER.encode((len(rows), columns))


def unpack(data: bytes, columns: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """The rows that were packed, or only these columns of them. Raises ValueError if `pack` did not make it."""
    try:
        count, packed = _DECODER.decode(data)
        chosen = range(len(packed)) if columns is None else columns
        return list(zip(*(_column(packed, place, count) for place in chosen), strict=True))
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ValueError(f"not packed rows: {error}") from error


def _column(packed: Sequence[int | list[int] | None], place: int, count: int) -> Sequence[int]:
    while (values := packed[place]) is None:
        if not place:
            raise ValueError("the first column repeats none")
        place -= 1
    if isinstance(values, int):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"a column has not {count} values")
    return values
