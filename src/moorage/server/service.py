"""The server as one part of a process: its application, and the work that keeps it current."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette

from moorage.apimachinery.api import Api
from moorage.apimachinery.informer import Informer
from moorage.clock import SYSTEM, Clock
from moorage.server.app import create_app
from moorage.server.auth import Auth
from moorage.server.cluster import Cluster
from moorage.usage.recorder import Recorder
from moorage.usage.store import UsageStore


class ServerService:
    """Serve `app` (with uvicorn or another ASGI server) while `run` runs.

    `usage_db` is made when it is missing; its folder must exist. Raises StorageError when it cannot be used.
    Informers that are given are run by the giver. `hosts` are names it answers to beside loopback.
    """

    def __init__(
        self,
        api: Api,
        *,
        usage_db: Path,
        page_token: str,
        hosts: Iterable[str] = (),
        clock: Clock = SYSTEM,
        nodes: Informer | None = None,
        pods: Informer | None = None,
        jobs: Informer | None = None,
    ) -> None:
        self.usage = UsageStore(usage_db)
        self.cluster = Cluster(api, clock=clock, nodes=nodes, pods=pods, jobs=jobs)
        self.recorder = Recorder(self.usage, pods=self.cluster.pods, nodes=self.cluster.nodes, clock=clock)
        self.auth = Auth(api, page_token=page_token, clock=clock)
        self.app: Starlette = create_app(
            api=api, cluster=self.cluster, usage=self.usage, auth=self.auth, clock=clock, hosts=hosts
        )

    async def run(self) -> None:
        """Follow the cluster and record its use until cancelled; then streams end and the store is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cluster.run())
                tasks.create_task(self.recorder.run())
        finally:
            self.cluster.close()
            self.usage.close()
