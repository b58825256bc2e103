"""GET /api/v1/budgets: what is used of the budgets that hold for who asks; administrators see everybody's."""

from __future__ import annotations

from typing import Any

from moorage.api.budgets import Budgets
from moorage.server.budgetuse import budgets_for
from moorage.server.endpoint import Call, Endpoint


async def list_budgets(call: Call[None, None]) -> Budgets:
    """Show what is used of each budget that holds for you or your tenants; of all, for those who list all pods."""
    return await budgets_for(call.context, call.user)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/budgets", handler=list_budgets, answer=Budgets),
)
