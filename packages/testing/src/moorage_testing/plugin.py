"""Fixtures of pytest: the cluster that the environment chooses, a local cluster for a single test, and
databases.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_testing.cluster import Cluster, local_cluster, start_cluster
from moorage_testing.databases import database as database
from moorage_testing.databases import postgres_server as postgres_server
from moorage_testing.databases import postgres_url as postgres_url


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short path, because paths of Unix sockets have a limit of 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="moor-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[Cluster]:
    with short_folder() as folder, start_cluster(folder / "home") as cluster:
        yield cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster that the environment chooses. If the cluster lacks a need of the test, the test is skipped.

    Needs are declared by `@pytest.mark.cluster("scheduler", "kubelet", …)`.
    """
    found: Cluster = request.getfixturevalue("_session_cluster")
    marker = request.node.get_closest_marker("cluster")
    reason = found.lacks(set(marker.args) if marker else {"api"})
    if reason:
        pytest.skip(reason)
    return found


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A local cluster for a single test, which may kill it. `@pytest.mark.parametrize` with
    `indirect=["own_cluster"]` gives other options for `moor up`.
    """
    options = getattr(request, "param", ())
    with short_folder() as folder, local_cluster(folder / "home", *options) as cluster:
        yield cluster
