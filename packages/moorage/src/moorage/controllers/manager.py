"""The operator: all controllers in one process, with one lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal, Protocol

from moorage.controllers.base import Controller, Operator, OperatorApi, Shared
from moorage.controllers.dataset.controller import DatasetController
from moorage.controllers.host.controller import HostController
from moorage.controllers.loop import LoopMetrics, note_write
from moorage.controllers.machine.controller import MachineController
from moorage.controllers.machinenodepool.controller import MachineNodePoolController
from moorage.controllers.mapjob.controller import MapJobController
from moorage.controllers.memorykill.controller import MemoryKillController
from moorage.controllers.priorityclass.controller import PriorityClassController
from moorage.controllers.reservation.controller import ReservationController
from moorage.controllers.run.controller import RunController
from moorage.controllers.tenant.controller import TenantController
from moorage.controllers.volumebackup.controller import VolumeBackupController
from moorage.controllers.workspace.controller import WorkspaceController
from moorage.decide.runs.restarts import LOST_AFTER
from moorage.evaluator.pool import Evaluation, InPlace
from moorage.features import load_all
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.notify.outbound import Outbound
from moorage_kube.api import Api
from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.informers import Informers
from moorage_kube.remote.leader import Elector, Times

LEASE = "moorage-operator"


class GuardedApi(OperatorApi, Protocol):
    """The API client of a leader: `KubeClient` is one."""

    def guarded(self, guard: Callable[[], None]) -> Api:
        """The same API, but each write first calls `guard`, which may raise ApiError to prevent the write."""
        ...


Certificates = Literal["", "own", "given"]


async def run_operator(
    api: GuardedApi,
    *,
    identity: str,
    leader_elect: bool,
    times: Times | None = None,
    clock: Clock = SYSTEM,
    certificates: Certificates = "",
    lost_after: timedelta = LOST_AFTER,
    metrics: LoopMetrics | None = None,
    informers: Informers | None = None,
    outbound: Outbound | None = None,
    registries: Sequence[str] = (),
    evaluation: Evaluation | None = None,
) -> None:
    """Run all controllers until cancelled; with `leader_elect`, only while the lease is held.

    `times`: durations of the lease. `informers`: informers of other parts of this process, which end with it;
    with `leader_elect` each term makes new ones. `identity` must differ between processes. `certificates`: on
    a real cluster, whether Moorage or another issuer makes and renews the webhook's certificate; "" on a
    local cluster, where `moor up` makes it. `outbound`: the allowed targets of heartbeats and of workflows'
    notifications; None: public addresses, by https. `registries`: registries, in addition to public ones,
    that are asked for commands of images. `evaluation`: where users' expressions are evaluated; None: in this
    process.
    """

    # all controllers of one term share their informers
    async def work(guarded: Api, informers: Informers, guard: Callable[[], None] | None = None) -> None:
        shared = Shared(
            api=guarded,
            clock=clock,
            informers=informers,
            metrics=metrics,
            lost_after=lost_after,
            evaluation=evaluation or InPlace(),
            outbound=outbound or Outbound(),
        )
        operator = Operator(shared=shared, api=api, guard=guard, identity=identity, registries=registries)
        await _run_controllers(operator, certificates)

    # a local cluster has one operator: no lease
    if not leader_elect:
        await work(api.guarded(note_write), informers or Informers())
        return
    elector = Elector(api, clock=clock, name=LEASE, namespace=SYSTEM_NAMESPACE, identity=identity, times=times)

    # a write after the lease is lost raises an error
    def check() -> None:
        elector.check()
        note_write()

    await elector.run(lambda: work(api.guarded(check), Informers(), elector.check))


async def _run_controllers(operator: Operator, certificates: Certificates) -> None:
    shared = operator.shared
    api, clock, metrics = shared.api, shared.clock, shared.metrics
    machines = MachineController(shared)
    controllers: list[Controller] = [
        RunController(shared),
        machines,
        ReservationController(shared, machines),
        MachineNodePoolController(shared),
        PriorityClassController(shared),
        MemoryKillController(shared),
        MapJobController(shared),
        TenantController(shared),
        HostController(shared),
        DatasetController(shared),
        VolumeBackupController(shared),
        WorkspaceController(shared, machines),
    ]
    awake = AwakeTime(clock)
    async with contextlib.AsyncExitStack() as stack:
        for make in load_all("controllers"):
            controllers += await stack.enter_async_context(make(operator))
        informers = {informer for controller in controllers for informer in controller.informers}
        if metrics is not None:
            metrics.began([controller.loop for controller in controllers], list(informers))
            stack.callback(metrics.ended)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(awake.run(), name="awake")
        for informer in informers:
            tasks.create_task(informer.run(), name=f"informer {informer.resource}")
        for controller in controllers:
            awake.on_wake(controller.loop.queue.fire_all)  # delayed keys may be due
            tasks.create_task(controller.loop.run(), name=f"loop {controller.loop.name}")
        if certificates:
            from moorage.controllers.certs.controller import CertificateController

            tasks.create_task(
                CertificateController(api, clock=clock, ours=certificates == "own").run(), name="certificates"
            )
