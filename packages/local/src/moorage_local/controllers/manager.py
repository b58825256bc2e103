"""Runs all controllers of the local cluster, with one set of caches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from moorage_kube.api import Api
from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.resources import Resource
from moorage_local.controllers.catalogue import KNOWN, Catalogue
from moorage_local.controllers.clusterroles import ClusterRoleAggregator
from moorage_local.controllers.cronjob.controller import CronJobController
from moorage_local.controllers.deployment.controller import DeploymentController
from moorage_local.controllers.disruption import DisruptionController
from moorage_local.controllers.endpoints.controller import EndpointsController
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.garbage.collector import GarbageCollector
from moorage_local.controllers.garbage.leftovers import FINISHED_MAX, LeftoverSweeper
from moorage_local.controllers.garbage.namespaces import NamespaceController, NamespaceFurnisher
from moorage_local.controllers.job.controller import JobController
from moorage_local.controllers.nodes.controller import NodeController
from moorage_local.controllers.quota.controller import QuotaController
from moorage_local.controllers.replicaset.controller import ReplicaSetController
from moorage_local.controllers.statefulset.controller import StatefulSetController
from moorage_local.controllers.volumes.controller import VolumeController
from moorage_local.informers import InformerSet

EVENTS_WAIT_SECONDS = 2.0  # for events not yet written when the manager stops


class ControllerManager:
    """The counterpart of a real cluster's `kube-controller-manager`.

    `volumes_folder` holds the folders of persistent volumes. `node_grace_seconds`: silence after which a node is
    Unknown. `gone_node_grace_seconds`: how long the pods of a deleted node are not touched. `resources`: the
    built-in collections of the API, for garbage collection and the emptying of namespaces. `informers`: caches to
    share; they are run by this manager. `quota_in_flight`: the number of writes to a namespace that its API server
    has charged to quotas and not finished.
    """

    def __init__(
        self,
        api: Api,
        *,
        volumes_folder: Path,
        clock: Clock = SYSTEM,
        ca_pem: str | bytes | None = None,
        node_grace_seconds: float = 40,
        gone_node_grace_seconds: float = 40,
        sweep_seconds: float = 20,
        finished_pods_max: int = FINISHED_MAX,
        informers: InformerSet | None = None,
        resources: Iterable[Resource] = KNOWN,
        quota_in_flight: Callable[[str], int] = lambda _: 0,
    ) -> None:
        # all controllers share the caches, the recorder and the clock
        self.informers = informers or InformerSet(api)
        self.ready = asyncio.Event()
        """Set once every cache was filled and the controllers work."""
        self._events = EventRecorder(api, "kube-controller-manager", clock)
        shared = (api, self.informers, self._events, clock)
        self._awake = AwakeTime(clock)
        catalogue = Catalogue(resources)
        # workloads
        self._jobs = JobController(*shared)
        self._crons = CronJobController(*shared)
        self._sets = ReplicaSetController(*shared)
        self._deployments = DeploymentController(*shared)
        self._stateful = StatefulSetController(*shared)
        self._volumes = VolumeController(*shared, volumes_folder=volumes_folder.absolute())
        # nodes and services; silence while the machine slept does not count
        grace = timedelta(seconds=node_grace_seconds)
        self._nodes = NodeController(*shared, grace=grace, awake=self._awake)
        self._endpoints = EndpointsController(*shared)
        self._disruption = DisruptionController(*shared)
        self._leftovers = LeftoverSweeper(
            *shared,
            interval=timedelta(seconds=sweep_seconds),
            quarantine=timedelta(seconds=gone_node_grace_seconds),
            finished_max=finished_pods_max,
            awake=self._awake,
        )
        # these handle every kind, those of custom resources too
        self._namespaces = NamespaceController(api, self.informers, catalogue=catalogue)
        pem = ca_pem.decode() if isinstance(ca_pem, bytes) else ca_pem
        self._furnisher = NamespaceFurnisher(api, self.informers, ca_pem=pem)
        self._roles = ClusterRoleAggregator(api, self.informers)
        self._quotas = QuotaController(api, self.informers, clock, catalogue=catalogue, in_flight=quota_in_flight)
        self._garbage = GarbageCollector(api, self.informers, catalogue=catalogue)

    async def run(self) -> None:
        """Run all controllers until cancelled; then write the remaining events."""
        loops = (
            self._furnisher.loop,
            self._volumes.claims,
            self._volumes.volumes,
            self._jobs.loop,
            self._crons.loop,
            self._sets.loop,
            self._deployments.loop,
            self._stateful.loop,
            self._nodes.nodes,
            self._nodes.evictions,
            self._endpoints.slices,
            self._endpoints.endpoints,
            self._disruption.loop,
            self._quotas.loop,
            self._namespaces.loop,
            self._garbage.loop,
            self._roles.loop,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.informers.run(), name="informers")
                await self.informers.synced()
                await self._volumes.sweep()
                for loop in loops:
                    self._awake.on_wake(loop.queue.fire_all)
                    group.create_task(loop.run(), name=loop.name)
                group.create_task(self._awake.run(), name="awake")
                group.create_task(self._leftovers.run(), name="leftovers")
                self.ready.set()
        finally:
            self.ready.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._events.close(), EVENTS_WAIT_SECONDS)
