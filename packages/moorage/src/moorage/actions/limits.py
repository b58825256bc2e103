"""Budgets and IdlePolicies: fields that an administrator sets by command or page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time
from typing import Any

from moorage.actions.specs import Changes, Set, set_spec
from moorage.api.errors import ErrorCode
from moorage.model.budget import BUDGETS, check_budget
from moorage.model.idle import DAYS, IDLE_POLICIES, check_idle_policy
from moorage.model.spans import SPAN_HINT, parse_span
from moorage_kube.api import Api
from moorage_kube.errors import UsageError
from moorage_kube.resources import Obj

EITHER = (("users", "tenants"), ("gpuHours", "money"))  # of a Budget: one of the two
SPANS = ("warnAfter", "remindAfter", "suspendAfter")  # of an IdlePolicy


async def set_budget(
    api: Api, name: str, fields: Changes, *, seen: int | None = None, dry_run: bool = False
) -> Set:
    """Create a Budget, or change the given fields; `seen`, and the errors: see `set_spec`."""
    changes = without_others(fields)
    return await set_spec(api, BUDGETS, name, lambda _: changes, check=check_budget, seen=seen, dry_run=dry_run)


def without_others(fields: Changes) -> dict[str, Any]:
    """The fields; a given one of a pair removes the other."""
    changes = dict(fields)
    for pair in EITHER:
        for field, other in (pair, pair[::-1]):
            if changes.get(field) and not changes.get(other):
                changes[other] = None
    return changes


async def set_idle_policy(
    api: Api, name: str, fields: Changes, *, seen: int | None = None, dry_run: bool = False
) -> Set:
    """Create an IdlePolicy, or change the given fields; `seen`: see `set_spec`.

    Raises the errors of `set_spec`, and UsageError.
    """
    for field in SPANS:
        if text := fields.get(field):
            check_span(field, text)

    def plan(spec: Obj) -> Changes:
        if not spec and "warnAfter" not in fields:
            raise UsageError(
                f"IdlePolicy {name!r} is new: it needs an idle time until the warning",
                hint="such as --warn-after 4h",
                code=ErrorCode.INVALID,
                field="warnAfter",
            )
        return fields

    return await set_spec(api, IDLE_POLICIES, name, plan, check=check_idle_policy, seen=seen, dry_run=dry_run)


def check_span(field: str, text: str) -> None:
    """Raise UsageError for a text that is no span of time."""
    try:
        parse_span(text)
    except ValueError as error:
        raise UsageError(
            f"invalid {field} {text!r}", hint=SPAN_HINT, code=ErrorCode.INVALID, field=field
        ) from error


def read_quiet(text: str) -> Mapping[str, Any]:
    """Quiet hours such as "20:00-08:00", "Sat,Sun" or "Fri 18:00-24:00" as a span of an IdlePolicy.

    Raises UsageError.
    """
    days, _, hours = text.rpartition(" ") if "-" in text else (text, "", "00:00-00:00")
    start, _, end = hours.partition("-")
    end = "00:00" if end == "24:00" else end
    named = [day.strip().capitalize() for day in days.split(",") if day.strip()]
    try:
        time.fromisoformat(start), time.fromisoformat(end)
        if not set(named) <= set(DAYS) or len(start) != len("00:00") or len(end) != len("00:00"):
            raise ValueError(text)
    except ValueError as error:
        raise UsageError(
            f"invalid quiet hours {text!r}",
            hint="use START-END, DAYS, or DAYS START-END: 20:00-08:00, Sat,Sun or 'Fri 12:00-13:00'",
            code=ErrorCode.INVALID,
            field="quiet",
        ) from error
    return {"start": start, "end": end} | ({"days": named} if named else {})


def quiet_text(span: Mapping[str, Any]) -> str:
    """The text that `read_quiet` reads."""
    days, hours = ",".join(span.get("days") or ()), f"{span['start']}-{span['end']}"
    return days if days and span["start"] == span["end"] == "00:00" else f"{days} {hours}".strip()
