"""Items on their way to the server: a temporary file of lines in the format of `add items`.

So even 150,000 items need little memory, and an interrupted upload can continue.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from msgspec import Struct

from moorage.api.errors import ErrorCode
from moorage.decide.maps.leasing import VALUE_BYTES
from moorage.worker.mapworker.placeholders import PLACEHOLDER, fill
from moorage_kube.errors import UsageError


class Spool(Struct):
    """The items as lines for the server, in a file that is deleted when it is closed."""

    file: BinaryIO
    count: int

    def lines(self, start: int = 0, end: int | None = None) -> BinaryIO:
        """Return the file, positioned at line `start`; with `end`, a copy in memory that ends before that line."""
        self.file.seek(0)
        for _ in range(start):
            self.file.readline()
        if end is None:
            return self.file
        return io.BytesIO(b"".join(self.file.readline() for _ in range(end - start)))

    def close(self) -> None:
        self.file.close()


def spool(
    values: Iterable[Any],
    *,
    seconds_field: str | None = None,
    origin: str = "items",
    command: Sequence[str] = (),
) -> Spool:
    """Write items to a temporary file in the server's format.

    Raises UsageError with the first item that is invalid, or lacks a field that `command` names.
    """
    templates = [word for word in command if PLACEHOLDER.search(word)]
    file: BinaryIO = tempfile.TemporaryFile(prefix="moorage-items-")  # noqa: SIM115  (the Spool closes it)
    count = 0
    try:
        for count, value in enumerate(values, 1):
            where = f"item {count} of {origin}"
            file.write(item_line(value, seconds_field, where))
            check_item(templates, count, value, where)
    except BaseException:
        file.close()
        raise
    file.flush()
    return Spool(file, count)


def check_item(command: list[str], index: int, value: Any, where: str) -> None:
    """Raise UsageError for an item that lacks a field of the command."""
    try:
        fill(command, index, value)
    except ValueError as error:
        raise UsageError(
            f"the command does not fit {where}: {error}", code=ErrorCode.INVALID, field="items"
        ) from error


def item_line(value: Any, seconds_field: str | None, where: str) -> bytes:
    """Return an item as a line. Raises UsageError if the value is invalid."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        data = text.encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{where} cannot be written as JSON: {error}", code=ErrorCode.INVALID, field="items"
        ) from error
    if len(data) > VALUE_BYTES:
        raise UsageError(
            f"{where} has {len(data):,} bytes; at most {VALUE_BYTES:,}",
            hint="put it into a file and let the item be its path",
            code=ErrorCode.TOO_LARGE,
            field="items",
        )
    if seconds_field is None:
        return b'{"value":%s}\n' % data
    estimate = value.get(seconds_field) if isinstance(value, dict) else None
    try:
        seconds = float(estimate) if estimate not in (None, "") else None
    except (TypeError, ValueError):
        seconds = -1.0
    if seconds is None:
        return b'{"value":%s}\n' % data
    if not 0 <= seconds < 1e9:
        raise UsageError(
            f"invalid --item-seconds: field {seconds_field!r} of {where} is {estimate!r}; use a number of seconds"
        )
    return b'{"value":%s,"seconds":%s}\n' % (data, repr(seconds).encode())
