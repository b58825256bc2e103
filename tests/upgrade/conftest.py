"""What tests of upgrades need: the last release's sources, and databases as it left them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moorage.errors import NotReady
from moorage.testing import postgres

sys.path.insert(0, str(Path(__file__).parent))  # its modules are imported by name: tests are no packages

import releases


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the last release's files; the test is skipped where its commit is not in the clone."""
    folder = tmp_path_factory.mktemp("last-release")
    if reason := releases.unpack_last_release(folder):
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server's first database."""
    try:
        with postgres.throwaway_postgres() as server:
            yield server.url
    except NotReady as error:
        pytest.skip(f"{error.message}: {error.hint}")


@pytest.fixture
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes one more empty PostgreSQL database; returns its address."""
    server: str = request.getfixturevalue("postgres_server")
    return lambda: postgres.new_database(server)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Where the queue and people are: empty, then in files of the folder; or an empty PostgreSQL database."""
    if request.param == "sqlite":
        return ""
    return str(request.getfixturevalue("new_database")())
