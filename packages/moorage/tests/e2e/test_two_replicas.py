"""Two servers and their PostgreSQL, ended again and again under load: as benchmarks/two_replicas.py, but short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moorage_kube.errors import NotReady
from moorage_testing.postgres import RESTARTS, Postgres, throwaway_postgres
from moorage_testing.replicaload import Load
from moorage_testing.replicas import two_replicas

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(throwaway_postgres(connections=100))
        except NotReady as error:
            pytest.skip(f"{error.message}: {error.hint}")


async def test_no_request_of_our_clients_fails_and_nothing_is_lost_when_servers_and_their_database_end(
    tmp_path: Path, postgres: Postgres
) -> None:
    with two_replicas(tmp_path, postgres.url) as site:
        async with site.running():
            load = Load(site.cluster.kubeconfig, site.url, postgres.url)
            async with load.running(), asyncio.TaskGroup() as group:
                group.create_task(site.kill_in_turns(times=4, every=1.0))
                group.create_task(site.restart_database(postgres, RESTARTS, pause=lambda: 1.0))
    assert (dict(load.ours.failed), dict(load.ours.errors), load.ours.lost) == ({}, {}, [])
    assert site.kills == 4  # each of the two once by SIGTERM and once by SIGKILL
    assert [replica.name for replica in site.replicas if "Traceback" in replica.log.read_text()] == []
    assert site.restarts == dict.fromkeys(RESTARTS, 1)
    kinds = {"read", "login", "run", "map", "admission"}
    assert load.ours.asked.keys() == kinds
    assert load.ours.checked.keys() >= {"intervals", "output of items", "runs: lines of logs", "runs: audit"}
