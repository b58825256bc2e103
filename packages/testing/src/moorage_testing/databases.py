"""Databases for tests that run with both SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moorage_kube.errors import NotReady
from moorage_testing.postgres import Postgres, new_database, throwaway_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL without autovacuum, which would often start a process for each of its many databases."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(throwaway_postgres(cleans=False))
        except NotReady as error:
            pytest.skip(f"{error.message}: {error.hint}")


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """The address of an empty PostgreSQL database."""
    return new_database(postgres_server.url)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """An empty database: a file that does not exist yet, or an address."""
    if request.param == "sqlite":
        return tmp_path / "some.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
