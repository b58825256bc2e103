"""The budgets feature on the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from starlette.routing import BaseRoute

from moorage.api.budgets import Budgets
from moorage.decide.measures.reclaim import measure_budgets
from moorage.metrics.page import exposition
from moorage.model.budget import BUDGETS, parse_budget
from moorage.server.budgets.use import budgets_for
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.loops.budgets import BudgetKeeper
from moorage.server.parts import Work
from moorage_kube.errors import ApiError

log = logging.getLogger(__name__)


async def list_budgets(call: Call[None, None]) -> Budgets:
    """Show the used part of each budget that applies to you or your tenants; of all, for those who list all
    pods.
    """
    return await budgets_for(call.context, call.user)


def routes(context: Context) -> Iterator[BaseRoute]:
    yield Endpoint(method="GET", path="/api/v1/budgets", handler=list_budgets, answer=Budgets).route(context)


def recording(context: Context) -> Iterator[Work]:
    yield BudgetKeeper(context).run


async def measure(context: Context) -> bytes:
    """Metrics of the used amount of each budget. An unreadable Budget has no used amount."""
    try:
        objects = (await context.api.list(BUDGETS)).items
    except ApiError:  # no such kind here, or no answer
        return b""
    budgets = []
    for obj in objects:
        try:
            budgets.append(parse_budget(obj))
        except ValueError as error:
            log.debug("a budget cannot be read", extra={"budget": obj["metadata"]["name"], "error": str(error)})
    return await asyncio.to_thread(exposition, measure_budgets(budgets, context.now()))
