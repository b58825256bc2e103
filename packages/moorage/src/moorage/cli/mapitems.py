"""Sources of a map's items: files, a glob, a range, a query. All are read before anything is created.

The items are spooled, so all errors are reported together, and an interrupted upload can continue.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from moorage.client.itemspool import Spool, spool
from moorage_kube.errors import UsageError

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
RANGE_MAX = 100_000_000
STDIN = "-"


class Sources(Struct, frozen=True, kw_only=True):
    """The options for the source of items; exactly one of the first four, or none for a map that is left open."""

    file: str | None = None
    pattern: str | None = None
    range: str | None = None
    query: str | None = None
    database: str | None = None
    format: str | None = None
    seconds_field: str | None = None

    @property
    def given(self) -> int:
        return sum(source is not None for source in (self.file, self.pattern, self.range, self.query))

    def words(self) -> list[str]:
        """The options as command-line arguments."""
        pairs = {
            "-f": self.file,
            "--glob": self.pattern,
            "--range": self.range,
            "--query": self.query,
            "--database": self.database,
            "--format": self.format,
            "--item-seconds": self.seconds_field,
        }
        return [word for option, value in pairs.items() if value is not None for word in (option, value)]


def read(sources: Sources, *, may_be_none: bool = False, command: Sequence[str] = ()) -> Spool:
    """Spool the items that the options select. `command`: has placeholders for them. Raises UsageError."""
    if sources.given > 1 or (not sources.given and not may_be_none):
        raise UsageError(
            "items come from one of -f FILE, --glob, --range and --query"
            + (f"; {sources.given} are given" if sources.given else ""),
            hint="moor map create NAME -f dates.txt -- python make.py {item}",
        )
    if sources.database is not None and sources.query is None:
        raise UsageError("--database can only be used with --query")
    if not sources.given:
        return spool(())
    values, origin = _values(sources)
    items = spool(values, seconds_field=sources.seconds_field, origin=origin, command=command)
    if not items.count and not may_be_none:
        items.close()
        raise UsageError(f"{origin} has no items")
    return items


def _values(sources: Sources) -> tuple[Iterator[Any], str]:
    if sources.pattern is not None:
        return _matches(sources.pattern), f"--glob {sources.pattern}"
    if sources.range is not None:
        return iter(parse_range(sources.range)), f"--range {sources.range}"
    if sources.query is not None:
        return _rows(sources.query, sources.database), "--query"
    name = str(sources.file)
    kind = sources.format or ("lines" if name == STDIN else _SUFFIXES.get(Path(name).suffix.lower(), "lines"))
    return _of_file(name, kind), "stdin" if name == STDIN else name


def parse_range(text: str) -> range:
    """Parse A:B[:STEP], without B, as in Python. Raises UsageError."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
        if len(numbers) not in (2, 3):
            raise ValueError
        span = range(*numbers)
    except ValueError as error:
        raise UsageError(f"invalid --range {text}: use A:B or A:B:STEP", hint=_range_hint(text)) from error
    if len(span) > RANGE_MAX:
        raise UsageError(f"--range {text} has {len(span):,} numbers; at most {RANGE_MAX:,}")
    return span


def _range_hint(text: str) -> str:
    """Return the hint for an invalid range: for a single number the probable range, else the format."""
    if text.isascii() and text.isdigit() and 1 < len(text) < 10 and int(text) > 1:
        return f"0:{text} counts from 0 to {int(text) - 1}"
    return "0:100 counts from 0 to 99, 0:100:10 by tens"


def _matches(pattern: str) -> Iterator[str]:
    yield from sorted(glob.iglob(pattern, recursive=True))


def _of_file(name: str, kind: str) -> Iterator[Any]:
    try:
        if kind == "parquet":
            yield from _parquet(name)
        elif name == STDIN:
            yield from _parsed(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline=""), kind, "stdin")
        else:
            with open(name, encoding="utf-8-sig", newline="") as file:
                yield from _parsed(file, kind, name)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


def _parsed(file: IO[str], kind: str, name: str) -> Iterator[Any]:
    if kind == "csv":
        try:
            for number, row in enumerate(csv.DictReader(file), 2):
                if None in row or None in row.values():
                    raise UsageError(f"line {number} of {name} has not as many fields as the first line")
                yield row
        except csv.Error as error:
            raise UsageError(f"{name} is not CSV: {error}") from error
        return
    for number, line in enumerate(file, 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if kind == "lines":
            yield text
            continue
        try:
            yield json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} of {name} is not JSON: {error}") from error


def _parquet(name: str) -> Iterator[Any]:
    if name == STDIN:
        raise UsageError("Parquet cannot be read from stdin", hint="save it to a file")
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UsageError(
            f"{name}: reading Parquet needs pyarrow, which is not installed",
            hint="pip install pyarrow, or save it as CSV or JSON lines",
        ) from error
    try:
        with parquet.ParquetFile(name) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield {key: _plain(value) for key, value in row.items()}
    except ArrowException as error:
        raise UsageError(f"{name} is not a Parquet file: {error}") from error


def _rows(query: str, database: str | None) -> Iterator[Any]:
    """The rows of a query as objects; with a single column, its values."""
    if database is None:
        raise UsageError(
            "--query needs --database",
            hint="sqlite:///file.db, or postgresql://user@host/name",
        )
    scheme, _, rest = database.partition("://")
    if scheme == "sqlite":
        yield from _sqlite(query, rest.removeprefix("/"))
    elif scheme in ("postgresql", "postgres"):
        yield from _postgres(query, database)
    else:
        raise UsageError(
            f"--database {database.partition('@')[0]}: unknown kind of database",
            hint="sqlite:///file.db (sqlite:////absolute/path.db), or postgresql://user@host/name",
        )


def _sqlite(query: str, path: str) -> Iterator[Any]:
    import sqlite3
    from contextlib import closing
    from urllib.parse import quote

    plain, _, options = path.partition("?")
    if not Path(plain).is_file():
        raise UsageError(f"--database: file {plain} not found")
    uri = f"file:{quote(plain)}?{options + '&' if options else ''}mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            cursor = connection.execute(query)
            yield from _objects([column[0] for column in cursor.description or ()], cursor)
    except sqlite3.Error as error:
        raise UsageError(f"--query: {error}") from error


def _postgres(query: str, database: str) -> Iterator[Any]:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "--database: PostgreSQL needs psycopg, which is not installed", hint="pip install 'moorage[postgres]'"
        ) from error
    try:
        with psycopg.connect(database) as connection, connection.cursor(name="moorage") as cursor:
            connection.read_only = True
            cursor.execute(query.encode())
            yield from _objects([column.name for column in cursor.description or ()], cursor)
    except psycopg.Error as error:
        raise UsageError(f"--query: {str(error).strip().partition(chr(10))[0]}") from error


def _objects(names: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    if not names:
        raise UsageError("--query gives no rows: use a SELECT")
    for row in rows:
        values = [_plain(value) for value in row]
        yield values[0] if len(names) == 1 else dict(zip(names, values, strict=True))


def _plain(value: Any) -> Any:
    """Convert a value from a database or Parquet to JSON: ISO 8601 times, bytes as UTF-8, decimals as numbers."""
    from datetime import date, datetime, time
    from decimal import Decimal

    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
