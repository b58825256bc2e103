"""`moor map results`: the results of a map as JSON lines, CSV or Parquet, in the order of its items."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from moorage.api.maps import MapCounts
from moorage.cli import console
from moorage.cli.session import Session
from moorage.client.files import replacing
from moorage.present.resultcolumns import Columns, cell
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.quantity import counted
from moorage_kube.texts import visible

if TYPE_CHECKING:
    from moorage.client.maps import MapClient

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet")
PARQUET_ROWS = 10_000  # in one group
STDOUT = "-"


async def write(session: Session, name: str, output: str) -> int:
    """Write the results so far; return 1 when results are missing.

    Raises UsageError for an unknown file format.
    """
    suffix = Path(output).suffix.lower()
    if output != STDOUT and suffix not in SUFFIXES:
        raise UsageError(f"-o {output}: unknown kind of file", hint=f"use {', '.join(SUFFIXES)}, or - for stdout")
    if suffix == ".parquet":
        _pyarrow(output)
    async with await session.maps() as client:
        if output == STDOUT:
            count = await _stream(client, session.namespace, name)
        else:
            count = await _to_file(client, session.namespace, name, Path(output), suffix)
        current = await client.show(session.namespace, name, patient=True)
    return _tell(name, count, current.counts, output)


def _tell(name: str, count: int, counts: MapCounts, output: str) -> int:
    missing = counts.total - count
    where = "" if output == STDOUT else f" in {output}"
    if not missing:
        console.say(f"{counted(count, 'result')}{where}, none missing")
        return 0
    dead = counts.dead
    running = missing - dead
    parts = [f"{dead:,} failed"] if dead else []
    parts += [f"{running:,} not done yet"] if running > 0 else []
    of = f"{missing:,} of {counts.total:,} are missing"
    console.say(f"{counted(count, 'result')}{where}; {of}: {', '.join(parts)}")
    if dead:
        console.say(f"hint: `moor map items --failed {name}` shows why; `moor map retry {name}` runs them again")
    return 1


async def _stream(client: MapClient, namespace: str, name: str) -> int:
    count, terminal = 0, sys.stdout.isatty()
    async for line in client.results(namespace, name, inputs=True):
        shown = visible(line.decode("utf-8", "replace")).encode() if terminal else line
        sys.stdout.buffer.write(shown + b"\n")
        count += 1
    sys.stdout.buffer.flush()
    return count


async def _to_file(client: MapClient, namespace: str, name: str, path: Path, suffix: str) -> int:
    try:
        with replacing(path) as file:
            count, columns = 0, Columns()
            with (
                tempfile.TemporaryFile(prefix="moorage-results-")
                if suffix in (".csv", ".parquet")
                else contextlib.nullcontext(file) as raw
            ):
                async for line in client.results(namespace, name, inputs=True):
                    raw.write(line + b"\n")
                    count += 1
                    if raw is not file:
                        columns.see(json.loads(line))
                if raw is not file:
                    raw.seek(0)
                    rows = (columns.row(json.loads(line)) for line in raw)
                    (_write_csv if suffix == ".csv" else _write_parquet)(file, columns.names, rows)
    except OSError as error:
        raise MoorageError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def _write_csv(file: IO[bytes], names: list[str], rows: Iterator[dict[str, Any]]) -> None:
    import io

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(names)
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in names])
    text.flush()
    text.detach()


def _write_parquet(file: IO[bytes], names: list[str], rows: Iterator[dict[str, Any]]) -> None:
    """Write Parquet in two passes, since the types of the columns come first. Mixed columns become JSON text."""
    pyarrow, parquet = _pyarrow("results")
    with tempfile.TemporaryFile("w+", encoding="utf-8", prefix="moorage-results-") as spooled:
        kinds: dict[str, set[type]] = {name: set() for name in names}
        for row in rows:
            spooled.write(json.dumps(row) + "\n")
            for name, value in row.items():
                if value is not None:
                    kinds[name].add(type(value))
        schema = pyarrow.schema([(name, _arrow_type(pyarrow, kinds[name])) for name in names])
        spooled.seek(0)
        with parquet.ParquetWriter(file, schema) as writer:
            part: list[dict[str, Any]] = []
            for line in spooled:
                row = json.loads(line)
                part.append({name: _fit(row.get(name), schema.field(name).type, pyarrow) for name in names})
                if len(part) >= PARQUET_ROWS:
                    writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))
                    part = []
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _arrow_type(pyarrow: Any, kinds: set[type]) -> Any:
    if kinds <= {bool} and kinds:
        return pyarrow.bool_()
    if kinds <= {int} and kinds:
        return pyarrow.int64()
    if kinds <= {int, float} and kinds:
        return pyarrow.float64()
    return pyarrow.string()


def _fit(value: Any, kind: Any, pyarrow: Any) -> Any:
    if value is None or kind != pyarrow.string() or isinstance(value, str):
        return float(value) if value is not None and kind == pyarrow.float64() else value
    return json.dumps(value, ensure_ascii=False)


def _pyarrow(output: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"{output}: writing Parquet needs pyarrow, which is not installed",
            hint="pip install pyarrow, or write .csv or .jsonl",
        ) from error
    return pyarrow, parquet
