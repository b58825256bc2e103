"""Convert database rows to lines of JSON and back. SQLite and PostgreSQL have the same lines."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from moorage.server.backup.parts import COUNTED, PARTS, Part

META = "meta"
BATCH = 500  # rows of a statement
_VERSIONS = ("schema", "readable_by", "alive_at")  # the last: time without a server, which a restore ends
_ENCODER = msgspec.json.Encoder(enc_hook=bytes)
FENCES = 1_000_000  # leases that an item may have been given since the backup

# Leases end with a restore: a worker from before asks with an unknown session, and answers with an invalid fence.
# Its items are leased again. Only SQL that both dialects have.
RELEASE = (
    "UPDATE maps SET ready = ready + (SELECT COUNT(*) FROM items WHERE map = maps.id AND state = 2"
    " AND memory_bytes = 0), large = large + (SELECT COUNT(*) FROM items WHERE map = maps.id AND state = 2"
    " AND memory_bytes <> 0), leased = 0, returned = returned + leases, leases = 0, workers = 0",
    "UPDATE items SET state = CASE WHEN memory_bytes = 0 THEN 1 ELSE 5 END WHERE state = 2",
    f"UPDATE items SET holder = 0, twin = 0, fence = fence + {FENCES} WHERE state NOT IN (3, 4)",
    f"UPDATE items SET fence = fence + {FENCES} WHERE state = 4",  # may be run again
    "DELETE FROM sessions",
)


class Source(Protocol):
    """A snapshot of a database."""

    dialect: str

    def version(self, part: Part) -> int:
        """The version of the part's schema; 0 if the database does not have the part."""
        ...

    def columns(self, part: Part, table: str) -> list[str]: ...

    def rows(self, part: Part, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]: ...


def export(source: Source, folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Write every part as files of lines into a folder.

    Return the schema versions and the row counts of COUNTED.
    """
    schemas, counts = {}, dict.fromkeys(COUNTED, 0)
    for part in PARTS:
        version = source.version(part)
        if not version:
            continue
        schemas[part.name] = version
        target = folder / part.name
        target.mkdir(parents=True)
        for table in part.tables(source.dialect, version):
            if table in part.passing:
                continue
            columns = source.columns(part, table)
            count = _write(target / f"{table}.jsonl", columns, source.rows(part, table, columns))
            if table in counts:
                counts[table] = count
        kept = (row for row in source.rows(part, META, ["name", "value"]) if is_kept(part, str(row[0])))
        _write(target / f"{META}.jsonl", ["name", "value"], kept)
    return schemas, counts


def is_kept(part: Part, name: str) -> bool:
    """Whether a row of `meta` belongs to this part; False for the row with the schema version."""
    prefix, own = part.schema.prefix, name.removeprefix(part.schema.prefix)
    return name.startswith(prefix) and "." not in own and own not in _VERSIONS


def read_lines(path: Path) -> tuple[list[str], Iterator[list[Any]]]:
    """Read the columns and the rows of a table from its file."""
    file = path.open("rb")
    columns = msgspec.json.decode(file.readline(), type=list[str])

    def rows() -> Iterator[list[Any]]:
        with file:
            for line in file:
                yield [_value(value) for value in msgspec.json.decode(line)]

    return columns, rows()


def batches(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _write(path: Path, columns: list[str], rows: Iterable[Sequence[Any]]) -> int:
    count = 0
    with path.open("wb") as file:
        file.write(_ENCODER.encode(columns) + b"\n")
        for row in rows:
            file.write(_ENCODER.encode([_said(value) for value in row]) + b"\n")
            count += 1
    return count


def _said(value: Any) -> Any:
    if isinstance(value, bytes | memoryview | bytearray):
        return {"b64": base64.b64encode(bytes(value)).decode()}
    return value


def _value(value: Any) -> Any:
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value
