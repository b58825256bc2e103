"""Measures the use of pods, every 30 seconds: sources in, readings out. One server on a database runs
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.runs.storedruns import uid_of
from moorage.decide.usage.readings import Measured, is_sampled, make_readings, measured_by_kubelet
from moorage.decide.usage.samples import SLOT_SECONDS
from moorage.server.cluster import Cluster
from moorage.server.memoryuse import MemoryUse
from moorage.server.usagesources import GpuSources, MetricsApi
from moorage.usage.samples import SampleStore
from moorage_kube.clock import Clock
from moorage_kube.errors import StorageError
from moorage_kube.informer import wait_synced
from moorage_kube.meta import key_of
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

DOWNSAMPLE_ROUNDS = 10  # of five minutes: a window is over


class Counts(Struct, kw_only=True):
    """Counts of this server since it started."""

    readings: int = 0
    rounds: int = 0
    failures: int = 0  # of the store
    lag_seconds: float = 0.0  # of the last round: from its beginning until its readings were stored


class Collector:
    """Reads every node, exporter and API once a round, and stores one reading of each pod.

    `kubelets` asks the nodes: one summary serves both the memory peaks of attempts and the readings. A source
    that does not answer leaves a gap.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: SampleStore,
        *,
        kubelets: MemoryUse,
        gpus: GpuSources,
        metrics_api: MetricsApi,
        clock: Clock,
    ) -> None:
        self._cluster, self._store, self._clock = cluster, store, clock
        self._kubelets, self._gpus, self._metrics_api = kubelets, gpus, metrics_api
        self._before: Mapping[str, Measured] = {}
        self.counts = Counts()

    @property
    def failures(self) -> int:
        """The number of failures of nodes, exporters, APIs and the store, since this server started."""
        sources = self._gpus.rests.failures + self._metrics_api.rests.failures
        return self._kubelets.failures + sources + self.counts.failures

    async def run(self) -> None:
        """Measure until cancelled, at full half minutes of the clock."""
        await wait_synced(self._cluster.pods, self._cluster.nodes)
        failing = False
        while True:
            try:
                await self.collect()
                if self.counts.rounds % DOWNSAMPLE_ROUNDS == 0:
                    await asyncio.to_thread(self._store.downsample, self._clock.now())
                failing = False
            except StorageError as error:
                self.counts.failures += 1
                if not failing:
                    log.error("the use of pods is not stored", extra={"error": error.message})
                failing = True
            await self._clock.sleep(SLOT_SECONDS - self._clock.now().timestamp() % SLOT_SECONDS)

    async def collect(self) -> int:
        """Run one round; return the number of pods with readings. Raises StorageError."""
        at, began = self._clock.now(), self._clock.monotonic()
        self.counts.rounds += 1
        pods = [pod for pod in self._cluster.pods.all() if is_sampled(pod)]
        summaries, gpus = await asyncio.gather(self._kubelets.summaries(), self._gpus.gpus())
        measured = await self._measured(pods, summaries)
        readings = make_readings(pods, measured, self._before, gpus, at=at)
        self._before = measured
        if readings:
            await asyncio.to_thread(self._store.add, readings)
        self.counts.readings += len(readings)
        self.counts.lag_seconds = self._clock.monotonic() - began
        return len(readings)

    async def _measured(self, pods: list[Obj], summaries: list[Any]) -> dict[str, Measured]:
        """Measurements by uid: from kubelets, and from the metrics API for pods that kubelets do not report."""
        measured: dict[str, Measured] = {}
        for summary in summaries:
            measured |= measured_by_kubelet(summary)
        missing = [pod for pod in pods if uid_of(pod) not in measured]
        if missing and (by_name := await self._metrics_api.measured()):
            measured |= {uid_of(pod): by_name[key] for pod in missing if (key := key_of(pod)) in by_name}
        return measured
