"""The operator: every controller, in one process, behind one lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from moorage.apimachinery.api import Api
from moorage.apimachinery.awake import Awake
from moorage.apimachinery.informer import Informer
from moorage.clock import SYSTEM, Clock
from moorage.controllers.dataset.controller import DatasetController
from moorage.controllers.host.controller import HostController
from moorage.controllers.loop import Loop, LoopMetrics
from moorage.controllers.machine.controller import MachineController
from moorage.controllers.machinenodepool.controller import MachineNodePoolController
from moorage.controllers.mapjob.controller import MapJobController
from moorage.controllers.memorykill.controller import MemoryKillController
from moorage.controllers.reservation.controller import ReservationController
from moorage.controllers.run.controller import RunController
from moorage.controllers.tenant.controller import TenantController
from moorage.controllers.volumebackup.controller import VolumeBackupController
from moorage.controllers.workspace.controller import WorkspaceController
from moorage.decide.runs.restarts import LOST_AFTER
from moorage.kube.events import EventRecorder
from moorage.kube.leader import Elector
from moorage.model.names import SYSTEM_NAMESPACE

LEASE = "moorage-operator"
COMPONENT = "moorage-operator"


class _Controller(Protocol):
    """What the operator runs of each kind's controller."""

    @property
    def informers(self) -> Sequence[Informer]: ...

    @property
    def loop(self) -> Loop: ...


async def run_operator(
    api: Api,
    *,
    identity: str,
    leader_elect: bool,
    clock: Clock = SYSTEM,
    certificates: bool = False,
    lost_after: timedelta = LOST_AFTER,
    metrics: LoopMetrics | None = None,
) -> None:
    """Run all controllers until cancelled; with `leader_elect`, whenever the lease is held.

    `identity` must differ between processes. `certificates`: also make and renew the webhook's certificate (on a
    real cluster; beside a local one `moor up` does).
    """

    async def lead() -> None:
        await _run_controllers(api, clock=clock, certificates=certificates, lost_after=lost_after, metrics=metrics)

    if not leader_elect:
        await lead()
        return
    elector = Elector(api, clock=clock, name=LEASE, namespace=SYSTEM_NAMESPACE, identity=identity)
    await elector.run(lead)


async def _run_controllers(
    api: Api, *, clock: Clock, certificates: bool, lost_after: timedelta, metrics: LoopMetrics | None
) -> None:
    events = EventRecorder(api, component=COMPONENT, clock=clock)
    machines = MachineController(api, clock=clock, events=events, metrics=metrics)
    controllers: list[_Controller] = [
        RunController(api, clock=clock, events=events, lost_after=lost_after, metrics=metrics),
        machines,
        ReservationController(api, machines, clock=clock, events=events, metrics=metrics),
        MachineNodePoolController(api, clock=clock, metrics=metrics),
        MemoryKillController(api, clock=clock, events=events, metrics=metrics),
        MapJobController(api, clock=clock, events=events, metrics=metrics),
        TenantController(api, clock=clock, metrics=metrics),
        HostController(api, clock=clock, events=events, metrics=metrics),
        DatasetController(api, clock=clock, events=events, metrics=metrics),
        VolumeBackupController(api, clock=clock, events=events, metrics=metrics),
        WorkspaceController(api, machines, clock=clock, events=events, metrics=metrics),
    ]
    awake = Awake(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(awake.run(), name="awake")
        for controller in controllers:
            awake.on_wake(controller.loop.queue.fire_all)  # what was to be looked at later may be due
            for informer in controller.informers:
                tasks.create_task(informer.run(), name=f"informer {informer.resource}")
            tasks.create_task(controller.loop.run(), name=f"loop {controller.loop.name}")
        if certificates:
            from moorage.controllers.certs.controller import CertificateController

            tasks.create_task(CertificateController(api, clock=clock).run(), name="certificates")
