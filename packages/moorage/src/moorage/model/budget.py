"""Budget: GPU-hours or money for users or tenants in a day, a week or a month, and the action at the limit.

The server computes the use and stores it in the status; admission reads only the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from msgspec import Meta, Struct

from moorage.model.machine import Fault
from moorage.model.names import GROUP, VERSION
from moorage.model.schedule import problem_of_zone
from moorage.model.targets import parse_target
from moorage.model.tenant import Condition
from moorage_kube.errors import UsageError
from moorage_kube.moments import parse_rfc3339
from moorage_kube.resources import Obj, Resource

BUDGETS = Resource(GROUP, VERSION, "budgets", "Budget", namespaced=False)
PERIODS = ("day", "week", "month")
WARN, QUEUE, REFUSE = "warn", "queue", "refuse"
ACTIONS = (WARN, QUEUE, REFUSE)  # from the mildest to the strictest
EVERYBODY = "*"
USES_MAX = 500  # rows of a status; the largest shares
WARN_AT = (80, 100)

_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Amount = Annotated[str, Meta(pattern=r"^[0-9]{1,15}(\.[0-9]{1,6})?$")]
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})


class BudgetSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The amount, the period, the users or tenants, and the action at the limit.

    Each user or tenant has a separate amount.
    """

    users: Annotated[list[_Name], Meta(max_length=1000, description='Users; "*": all users. Or `tenants`.')] = []
    tenants: Annotated[list[_Name], Meta(max_length=1000, description='Tenants; "*": all. Or `users`.')] = []
    period: Annotated[
        str, Meta(pattern="^(day|week|month)$", extra_json_schema={"enum": list(PERIODS)}),
        Meta(description="A new one begins at midnight, on Mondays, or on the first day. Default month."),
    ] = "month"  # fmt: skip
    time_zone: Annotated[
        str, Meta(max_length=64, description="Time zone in which periods begin, such as Asia/Tokyo. Default UTC.")
    ] = "UTC"
    gpu_hours: Annotated[
        _Amount, Meta(description="GPU-hours of a period, as `moor top` counts them. Or `money`.")
    ] = ""
    money: Annotated[
        _Amount,
        Meta(description="Money of a period, in the currency of the installed prices. Or `gpuHours`."),
    ] = ""
    warn_at: Annotated[
        list[Annotated[int, Meta(ge=1, le=1000)]],
        Meta(max_length=10, description="Percent of the budget at which a notice is sent. Default 80 and 100."),
    ] = []
    when_over: Annotated[
        str, Meta(pattern="^(warn|queue|refuse)$", extra_json_schema={"enum": list(ACTIONS)}),
        Meta(
            description="For new work once the budget is used: warn, queue (it waits behind others), or refuse."
            " Running work continues. Default warn."
        ),
    ] = WARN  # fmt: skip
    notify: Annotated[
        list[Annotated[str, Meta(max_length=2048)]],
        Meta(max_length=10, description="Receivers of notices: https://… or mailto:ADDRESS."),
    ] = []


class BudgetUse(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The use of one user or tenant in the period."""

    name: Annotated[str, Meta(description="User or tenant.")]
    used: Annotated[str, Meta(description="GPU-hours, or money.")]
    percent: Annotated[int, Meta(description="Of the budget, rounded down.")]
    warned: Annotated[int, Meta(description="The highest share of `warnAt` that a notice was sent for.")] = 0


class BudgetStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The current period, and the use in it."""

    start: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When the period began.")
    ] = ""
    end: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When it ends; then all begin at 0.")
    ] = ""
    computed_at: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="Up to when use is counted.")
    ] = ""
    currency: Annotated[str, Meta(description="Of money.")] = ""
    uses: Annotated[list[BudgetUse], Meta(description="The largest first, 500 at most.")] = []
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class BudgetObject(Struct, frozen=True, rename="camel", omit_defaults=True):
    """GPU-hours or money that users or tenants may use in a day, a week or a month."""

    spec: BudgetSpec
    status: BudgetStatus = BudgetStatus()


# --- as decisions read them


class Use(Struct, frozen=True, kw_only=True):
    """The use of one user or tenant in the current period."""

    name: str
    used: Decimal
    percent: int
    warned: int = 0


class Budget(Struct, frozen=True, kw_only=True):
    """A Budget, parsed. Exactly one of `users` and `tenants` is not empty."""

    name: str
    users: frozenset[str]
    tenants: frozenset[str]
    period: str
    zone: str
    limit: Decimal
    is_money: bool
    warn_at: tuple[int, ...]
    when_over: str
    notify: tuple[str, ...]
    start: datetime | None = None
    end: datetime | None = None
    computed_at: datetime | None = None
    currency: str = ""
    uses: tuple[Use, ...] = ()
    generation: int = 0

    @property
    def unit(self) -> str:
        return (self.currency or "money") if self.is_money else "GPU-hours"

    def is_for(self, *, user: str, tenant: str) -> str:
        """The user or tenant whose use counts for a user's work in a tenant's namespace.

        "" if the budget does not apply.
        """
        if self.users:
            return user if user and (user in self.users or EVERYBODY in self.users) else ""
        return tenant if tenant and (tenant in self.tenants or EVERYBODY in self.tenants) else ""

    def use_of(self, name: str, now: datetime) -> Use | None:
        """The use in the current period; None: no use, or the status is of an earlier period."""
        if self.end is None or now >= self.end:
            return None
        return next((use for use in self.uses if use.name == name), None)


def check_budget(obj: Mapping[str, Any]) -> list[Fault]:
    """All errors of a Budget's spec."""
    spec = obj.get("spec") or {}
    faults = []
    if bool(spec.get("users")) == bool(spec.get("tenants")):
        faults.append(Fault("spec", "", "must have users or tenants, and not both"))
    if bool(spec.get("gpuHours")) == bool(spec.get("money")):
        faults.append(Fault("spec", "", "must have gpuHours or money, and not both"))
    for field in ("gpuHours", "money"):
        text = str(spec.get(field) or "")
        if text and _decimal(text) <= 0:
            faults.append(Fault(f"spec.{field}", text, "must be a number above 0, such as 500 or 12.5"))
    if problem := problem_of_zone(str(spec.get("timeZone") or "UTC")):
        faults.append(Fault("spec.timeZone", str(spec.get("timeZone")), problem))
    for at, target in enumerate(spec.get("notify") or ()):
        try:
            if not str(target).startswith(("https://", "http://", "mailto:")):
                raise UsageError("must be https://… or mailto:ADDRESS")
            parse_target(str(target))
        except UsageError as error:
            faults.append(Fault(f"spec.notify[{at}]", "", error.message))
    return faults


def parse_budget(obj: Mapping[str, Any]) -> Budget:
    """Parse a stored Budget. Raises ValueError if it is invalid."""
    if faults := check_budget(obj):
        raise ValueError(f"{faults[0].field}: {faults[0].message}")
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return Budget(
        name=str(obj["metadata"]["name"]),
        users=frozenset(spec.get("users") or ()),
        tenants=frozenset(spec.get("tenants") or ()),
        period=str(spec.get("period") or "month"),
        zone=str(spec.get("timeZone") or "UTC"),
        limit=_decimal(str(spec.get("money") or spec.get("gpuHours"))),
        is_money=bool(spec.get("money")),
        warn_at=tuple(sorted(spec.get("warnAt") or WARN_AT)),
        when_over=str(spec.get("whenOver") or WARN),
        notify=tuple(spec.get("notify") or ()),
        start=_moment(status.get("start")),
        end=_moment(status.get("end")),
        computed_at=_moment(status.get("computedAt")),
        currency=str(status.get("currency") or ""),
        uses=tuple(
            Use(
                name=str(use["name"]),
                used=_decimal(str(use["used"])),
                percent=int(use["percent"]),
                warned=int(use.get("warned") or 0),
            )
            for use in status.get("uses") or ()
        ),
        generation=int(obj["metadata"].get("generation") or 0),
    )


def budgets_of(objects: Iterable[Obj]) -> list[Budget]:
    """The valid Budgets, sorted by name."""
    budgets = []
    for obj in sorted(objects, key=lambda obj: str(obj["metadata"]["name"])):
        try:
            budgets.append(parse_budget(obj))
        except (ValueError, KeyError, TypeError):
            continue
    return budgets


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(0)


def _moment(text: Any) -> datetime | None:
    return parse_rfc3339(str(text)) if text else None
