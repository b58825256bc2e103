"""The duration of statements and the number of failures in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moorage.metrics.counters import Histogram, Tally
from moorage.metrics.families import STATEMENT_BOUNDS, Family, Measured
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import StorageError

TABLES_MAX = 40  # schemas, and three verbs of each

SECONDS = Family(
    name="moorage_sql_duration_seconds",
    help="Time of an SQL statement or of the end of a transaction, by the use of the database and the verb",
    kind="histogram",
    labels=("database", "verb"),
    series_max=TABLES_MAX,
    bounds=STATEMENT_BOUNDS,
)
ERRORS = Family(
    name="moorage_sql_errors_total",
    help="SQL statements that failed",
    kind="counter",
    labels=("database", "verb"),
    series_max=TABLES_MAX,
)

_seconds, _errors = Histogram(SECONDS), Tally(ERRORS)  # of the process, as its databases are


@contextmanager
def timed(database: str, verb: str) -> Iterator[None]:
    """Count and time the body; `verb`: open, read or write. For any thread."""
    began = SYSTEM.monotonic()
    try:
        yield
    except StorageError:
        _errors.add(database, verb)
        raise
    finally:
        _seconds.observe(SYSTEM.monotonic() - began, database, verb)


def read_times() -> list[Measured]:
    """The metrics since the start of the process."""
    return [_seconds.read(), _errors.read()]
