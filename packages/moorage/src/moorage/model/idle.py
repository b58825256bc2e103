"""IdlePolicy: when work that holds GPUs counts as idle, and the notices to its owner before it is suspended.

`moorage.decide.idle` decides which work is idle and the steps that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import time, timedelta, tzinfo
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from moorage.model.machine import Fault
from moorage.model.names import GROUP, VERSION
from moorage.model.schedule import problem_of_zone, zone_named
from moorage.model.spans import SPAN_HINT, SPAN_PATTERN, parse_span
from moorage.model.targets import Email, Target, is_email, parse_target
from moorage.model.tenant import Quantity
from moorage_kube.errors import QuantityError, UsageError
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Resource

IDLE_POLICIES = Resource(GROUP, VERSION, "idlepolicies", "IdlePolicy", namespaced=False)

WORKSPACE, RUN, MAP, WORKFLOW = "workspace", "run", "map", "workflow"
WORK = (WORKSPACE, RUN, MAP, WORKFLOW)  # kinds of work; the last two are only warned about
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
USUAL_SNOOZE = timedelta(hours=4)  # where the policy allows it
WARN_MAX = timedelta(days=7)  # readings are looked at for a day longer
WINDOWS = ("30s", "1m", "2m", "5m", "10m", "15m", "30m", "1h")  # of stored use
BUILT_IN_NAME = "built-in"  # of the policy that holds where the administrator wrote none

Span = Annotated[str, Meta(pattern=SPAN_PATTERN, min_length=2, max_length=32)]
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Clock = Annotated[str, Meta(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class IdleRules(Struct, frozen=True, rename="camel", omit_defaults=True):
    """When work counts as idle: all rules must hold, in each window of the time.

    A window without a reading counts as busy.
    """

    gpu_below: Annotated[
        float,
        Meta(ge=0.1, le=100, extra_json_schema={"default": 5}),
        Meta(description="Percent: the highest reading of each window, of each GPU, is below it."),
    ] = 5.0
    cpu_below: Annotated[
        Quantity,
        Meta(description="Cores of all its pods together, as the mean of each window. Default 200m."),
    ] = "200m"
    window: Annotated[
        Span, Meta(description="Length of a window: 30s, 1m, 2m, 5m, 10m, 15m, 30m or 1h. Default 5m.")
    ] = "5m"
    open_connections: Annotated[
        Span,
        Meta(
            description="A browser that is connected counts as use for so long after the last thing that a person"
            " did in it. Default 8h."
        ),
    ] = "8h"
    busy_kernels: Annotated[
        Span,
        Meta(
            description="A Jupyter kernel that is busy counts as use for so long after its last output, without"
            " GPU and CPU use. Default 12h."
        ),
    ] = "12h"


class QuietSpan(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Hours of some days of the week. A span with an end before its start ends on the next day."""

    start: Annotated[_Clock, Meta(description="Such as 20:00.")]
    end: Annotated[_Clock, Meta(description="Such as 08:00; the same as `start`: the whole day.")]
    days: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"enum": list(DAYS)})]],
        Meta(max_length=7, description="Mon to Sun: the days on which it starts; none: every day."),
    ] = []


class QuietHours(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Times without notices and suspensions. This time does not count for reminders and suspension."""

    spans: Annotated[list[QuietSpan], Meta(min_length=1, max_length=32)]
    time_zone: Annotated[str, Meta(max_length=64, description="IANA name, such as Asia/Tokyo. Default UTC.")] = ""


class Exemptions(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Work that is never warned about and never suspended; one match is enough."""

    users: Annotated[list[_Name], Meta(max_length=1000, description="Names of owners.")] = []
    names: Annotated[
        list[_Name],
        Meta(
            max_length=1000, description='Names of the work, as NAMESPACE/NAME or NAME; "*" stands for any text.'
        ),
    ] = []
    labels: Annotated[dict[str, str], Meta(description="Work that has all these labels.")] = {}


class SnoozeLimits(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Limits on how long and how often an owner may postpone a suspension."""

    longest: Annotated[Span, Meta(description="Of one snooze. Default 24h.")] = "24h"
    times: Annotated[
        int,
        Meta(ge=0, le=1000, description="In a row, until it is used again; 0: never. Default 3."),
    ] = 3


class IdleNotify(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The receivers of notices, in addition to the marks and events that all users see.

    The owner gets mail where the name is an e-mail address, by `addresses`, by `mailDomain`, or by the
    annotation moorage.dev/notify of the work.
    """

    targets: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=2048)]],
        Meta(max_length=10, description="Receivers of all notices: https://… (Slack's form) or mailto:ADDRESS."),
    ] = []
    mail_domain: Annotated[
        str, Meta(max_length=253, description="Owner ada has the address ada@ this domain.")
    ] = ""
    addresses: Annotated[
        dict[str, str], Meta(description="Owner's name: https://… or mailto:ADDRESS; before mailDomain.")
    ] = {}


class IdlePolicySpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The work it applies to, when that work counts as idle, and the action that follows."""

    warn_after: Annotated[Span, Meta(description="Idle for so long: its owner is warned.")]
    remind_after: Annotated[
        Span | None, Meta(description="So long after the warning the owner is reminded; none: not reminded.")
    ] = None
    suspend_after: Annotated[
        Span | None,
        Meta(
            description="So long after the warning it is suspended; none: never. A run is suspended only if it has"
            " a checkpoint newer than its start; maps and workflows never are."
        ),
    ] = None
    tenants: Annotated[
        list[_Name], Meta(max_length=1000, description="Tenants it holds for; none: all work.")
    ] = []
    work: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"enum": list(WORK)})]],
        Meta(max_length=len(WORK), description="workspace, run, map, workflow; none: all of them."),
    ] = []
    idle: IdleRules = IdleRules()
    quiet_hours: QuietHours | None = None
    exempt: Exemptions = Exemptions()
    snooze: SnoozeLimits = SnoozeLimits()
    notify: IdleNotify = IdleNotify()


class IdlePolicy(Struct, frozen=True, rename="camel", omit_defaults=True):
    """When work that holds GPUs is idle, and the action that follows: a warning, a reminder, suspension.

    If several apply, one that names the tenant has precedence over one that names none, then the first by name.
    Without any, owners are warned after a day and nothing is suspended.
    """

    spec: IdlePolicySpec


class BadIdlePolicy(UsageError):
    """An IdlePolicy is invalid. The message starts with the field."""


class QuietTimes(Struct, frozen=True):
    """Parsed quiet hours. `weekdays`: the days on which a span starts; 0 is Monday."""

    zone: tzinfo
    spans: tuple[tuple[frozenset[int], time, time], ...]


class Policy(Struct, frozen=True, kw_only=True):
    """An IdlePolicy, read."""

    name: str
    warn_after: timedelta
    remind_after: timedelta | None = None
    suspend_after: timedelta | None = None
    tenants: frozenset[str] = frozenset()
    work: frozenset[str] = frozenset(WORK)
    gpu_below: float = 5.0
    cpu_below_milli: float = 200.0
    window: timedelta = timedelta(minutes=5)
    open_connections: timedelta = timedelta(hours=8)
    busy_kernels: timedelta = timedelta(hours=12)
    quiet: QuietTimes | None = None
    exempt: Exemptions = field(default_factory=Exemptions)
    snooze_longest: timedelta = timedelta(hours=24)
    snooze_times: int = 3
    targets: tuple[Target, ...] = ()
    mail_domain: str = ""
    addresses: Mapping[str, Target] = field(default_factory=dict)

    @property
    def usual_snooze(self) -> timedelta:
        """The default snooze of the button and of the command in a notification."""
        return min(USUAL_SNOOZE, self.snooze_longest)

    def targets_of(self, owner: str, own: Sequence[Target] = ()) -> tuple[Target, ...]:
        """The receivers of a notice about work of this owner; `own`: those that the work itself names.

        Each once.
        """
        mine: Target | None = self.addresses.get(owner)
        if mine is None and is_email(owner):
            mine = Email((owner,))
        if mine is None and self.mail_domain and is_email(address := f"{owner}@{self.mail_domain}"):
            mine = Email((address,))
        every = (*own, *((mine,) if mine is not None else ()), *self.targets)
        return tuple(dict.fromkeys(every))


BUILT_IN = Policy(name=BUILT_IN_NAME, warn_after=timedelta(days=1), remind_after=timedelta(days=6))


def parse_policy(obj: Mapping[str, Any]) -> Policy:
    """Parse an IdlePolicy. Raises BadIdlePolicy, which names the field."""
    if faults := check_idle_policy(obj):
        raise BadIdlePolicy("; ".join(f"{fault.field}: {fault.message}" for fault in faults))
    spec = msgspec.convert(obj["spec"], IdlePolicySpec)
    rules = spec.idle
    return Policy(
        name=str(obj["metadata"]["name"]),
        warn_after=parse_span(spec.warn_after),
        remind_after=parse_span(spec.remind_after) if spec.remind_after else None,
        suspend_after=parse_span(spec.suspend_after) if spec.suspend_after else None,
        tenants=frozenset(spec.tenants),
        work=frozenset(spec.work or WORK),
        gpu_below=float(rules.gpu_below),
        cpu_below_milli=float(parse_quantity(str(rules.cpu_below)) * 1000),
        window=parse_span(rules.window),
        open_connections=parse_span(rules.open_connections),
        busy_kernels=parse_span(rules.busy_kernels),
        quiet=_parse_quiet(spec.quiet_hours) if spec.quiet_hours else None,
        exempt=spec.exempt,
        snooze_longest=parse_span(spec.snooze.longest),
        snooze_times=spec.snooze.times,
        targets=tuple(parse_target(text) for text in spec.notify.targets),
        mail_domain=spec.notify.mail_domain,
        addresses={name: parse_target(text) for name, text in spec.notify.addresses.items()},
    )


def policy_for(policies: Iterable[Policy], *, tenant: str, work: str) -> Policy | None:
    """The policy for this kind of work of this tenant ("": no tenant). None if no policy applies."""
    mine = [
        policy for policy in policies if work in policy.work and (not policy.tenants or tenant in policy.tenants)
    ]
    return min(mine, key=lambda policy: (not policy.tenants, policy.name), default=None)


def check_idle_policy(obj: Mapping[str, Any]) -> list[Fault]:
    """All errors of an IdlePolicy."""
    try:
        spec = msgspec.convert(obj.get("spec") or {}, IdlePolicySpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        return [Fault(f"spec{path.rstrip('`')}", "", message)]
    faults = _check_spans(spec)
    for at, kind in enumerate(spec.work):
        if kind not in WORK:
            faults.append(Fault(f"spec.work[{at}]", kind, f"must be one of {', '.join(WORK)}"))
    try:
        too_low = parse_quantity(str(spec.idle.cpu_below)) <= Decimal(0)
    except QuantityError:
        too_low = True
    if too_low:
        message = "must be a number of cores above zero, such as 200m or 1"
        faults.append(Fault("spec.idle.cpuBelow", str(spec.idle.cpu_below), message))
    return faults + _check_quiet(spec.quiet_hours) + _check_notify(spec.notify)


def _check_spans(spec: IdlePolicySpec) -> list[Fault]:
    faults: list[Fault] = []
    read: dict[str, timedelta] = {}
    for where, text in (
        ("warnAfter", spec.warn_after),
        ("remindAfter", spec.remind_after),
        ("suspendAfter", spec.suspend_after),
        ("idle.window", spec.idle.window),
        ("idle.openConnections", spec.idle.open_connections),
        ("idle.busyKernels", spec.idle.busy_kernels),
        ("snooze.longest", spec.snooze.longest),
    ):
        if text is None:
            continue
        try:
            read[where] = parse_span(text)
        except ValueError:
            faults.append(Fault(f"spec.{where}", text, SPAN_HINT))
    if "idle.window" in read and read["idle.window"] not in [parse_span(text) for text in WINDOWS]:
        faults.append(Fault("spec.idle.window", spec.idle.window, f"must be one of {', '.join(WINDOWS)}"))
    if read.get("warnAfter", timedelta(0)) > WARN_MAX:
        faults.append(Fault("spec.warnAfter", spec.warn_after, f"must be at most {WARN_MAX.days}d"))
    warn, remind, suspend = (read.get(key) for key in ("warnAfter", "remindAfter", "suspendAfter"))
    if warn and "idle.window" in read and warn < 2 * read["idle.window"]:
        message = f"must be at least two windows (spec.idle.window is {spec.idle.window})"
        faults.append(Fault("spec.warnAfter", spec.warn_after, message))
    if remind and suspend and remind >= suspend:
        message = f"must be less than suspendAfter ({spec.suspend_after}): both count from the warning"
        faults.append(Fault("spec.remindAfter", str(spec.remind_after), message))
    return faults


def _check_quiet(quiet: QuietHours | None) -> list[Fault]:
    if quiet is None:
        return []
    faults: list[Fault] = []
    if problem := problem_of_zone(quiet.time_zone):
        faults.append(Fault("spec.quietHours.timeZone", quiet.time_zone, problem))
    for at, span in enumerate(quiet.spans):
        for day in span.days:
            if day not in DAYS:
                message = f"must be one of {', '.join(DAYS)}"
                faults.append(Fault(f"spec.quietHours.spans[{at}].days", day, message))
    if not faults and _is_always(_parse_quiet(quiet)):
        message = "these spans cover the whole week: notices would never be sent"
        faults.append(Fault("spec.quietHours.spans", "", message))
    return faults


def _is_always(quiet: QuietTimes) -> bool:
    """Whether the quiet hours cover the whole week."""
    minutes = bytearray(7 * 1440)
    for days, start, end in quiet.spans:
        first = start.hour * 60 + start.minute
        length = (end.hour * 60 + end.minute - first) % 1440 or 1440
        for day in days:
            for minute in range(day * 1440 + first, day * 1440 + first + length):
                minutes[minute % len(minutes)] = 1
    return all(minutes)


def _check_notify(notify: IdleNotify) -> list[Fault]:
    faults: list[Fault] = []
    given = [(f"targets[{at}]", text) for at, text in enumerate(notify.targets)]
    given += [(f"addresses[{name}]", text) for name, text in notify.addresses.items()]
    for where, text in given:
        if text.strip().lower().startswith("command:"):
            faults.append(Fault(f"spec.notify.{where}", "", "must be https://… or mailto:ADDRESS"))
            continue
        try:
            parse_target(text)
        except UsageError as error:  # the value may hold a secret: it is not repeated
            faults.append(Fault(f"spec.notify.{where}", "", error.message))
    if notify.mail_domain and not is_email(f"ada@{notify.mail_domain}"):
        message = "must be a domain, such as example.com"
        faults.append(Fault("spec.notify.mailDomain", notify.mail_domain, message))
    return faults


def _parse_quiet(quiet: QuietHours) -> QuietTimes:
    spans = tuple(
        (
            frozenset(DAYS.index(day) for day in span.days) or frozenset(range(7)),
            time.fromisoformat(span.start),
            time.fromisoformat(span.end),
        )
        for span in quiet.spans
    )
    return QuietTimes(zone_named(quiet.time_zone), spans)
