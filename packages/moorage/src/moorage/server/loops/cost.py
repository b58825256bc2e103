"""Compute the cost of the last 24 hours every few minutes, so that the metrics endpoint only shows it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from moorage.decide.cost.report import By, report
from moorage.decide.measures.reclaim import Cost
from moorage.server.context import Context
from moorage.server.costs import facts_of, installed_sheet
from moorage_kube.errors import MoorageError, NotFound

log = logging.getLogger(__name__)

WINDOW = timedelta(hours=24)
COMPUTE_SECONDS = 300.0  # between two computations
LOOK_SECONDS = 30.0  # between two looks for prices where none are installed


class CostOfDay:
    """`cost` is None until prices are installed, and after they are deleted or cannot be read."""

    def __init__(self) -> None:
        self.cost: Cost | None = None
        self._failing = ""

    async def run(self, context: Context) -> None:
        """Compute until cancelled. A failure is logged once, and the computation is retried."""
        while True:
            await self.compute(context)
            await context.clock.sleep(LOOK_SECONDS if self.cost is None else COMPUTE_SECONDS)

    async def compute(self, context: Context) -> None:
        """Compute once."""
        try:
            self.cost = await _cost(context)
            self._failing = ""
        except NotFound:  # no prices
            self.cost, self._failing = None, ""
        except (MoorageError, OSError) as error:
            self.cost = None
            if str(error) != self._failing:
                self._failing = str(error)
                log.warning("metrics of cost cannot be computed", extra={"error": str(error)})


async def _cost(context: Context) -> Cost:
    sheet, now = await installed_sheet(context), context.now()
    facts, begin = await facts_of(context, sheet, now - WINDOW, now)
    answer = await asyncio.to_thread(lambda: report(facts, by=By.TENANT, since=begin, until=now))
    return Cost(report=answer, currency=sheet.currency, computed=now)
