"""The workflows feature of the operator."""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from moorage.controllers.base import Controller, Operator
from moorage_workflows.controllers.cronworkflow.controller import CronWorkflowController
from moorage_workflows.controllers.monitor.controller import RunMonitorController, SlotMonitorController
from moorage_workflows.controllers.workflow.checks import faults_of
from moorage_workflows.controllers.workflow.controller import WorkflowController
from moorage_workflows.controllers.workflow.imagecommands import ImageCommands
from moorage_workflows.controllers.workflow.registry import Registries
from moorage_workflows.controllers.workflow.remote import RemoteStore
from moorage_workflows.controllers.workflow.runtime import read_runtime


@asynccontextmanager
async def controllers(operator: Operator) -> AsyncIterator[tuple[Controller, ...]]:
    shared = operator.shared
    async with (
        aclosing(RemoteStore(operator.api, guard=operator.guard, clock=shared.clock)) as records,
        aclosing(ImageCommands(shared.api, Registries(operator.registries), clock=shared.clock)) as commands,
    ):
        yield (
            CronWorkflowController(shared),
            RunMonitorController(shared),
            SlotMonitorController(shared),
            WorkflowController(
                shared,
                records,
                holder=f"{operator.identity}-{secrets.token_hex(4)}",
                runtime=functools.partial(read_runtime, shared.api),
                check=faults_of,
                commands=commands,
            ),
        )
