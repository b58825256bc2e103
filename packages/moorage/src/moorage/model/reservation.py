"""Reservation: machines of one type for a user or a namespace, from one moment to another.

The pods that hold a Machine's places are called reservations too; here, and in `decide.machines`, an entry of the
calendar is a booking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from moorage.model.names import GROUP, VERSION, label_value
from moorage.model.tenant import Condition
from moorage_kube.meta import Key, is_deleting
from moorage_kube.moments import parse_rfc3339
from moorage_kube.resources import Resource

RESERVATIONS = Resource(GROUP, VERSION, "reservations", "Reservation")

PENDING, PREPARING, ACTIVE, EXPIRED, REFUSED = "Pending", "Preparing", "Active", "Expired", "Refused"
PHASES = (PENDING, PREPARING, ACTIVE, EXPIRED, REFUSED)
LEAD_SECONDS = 86_400  # guests without a time limit are taken to run a day
LEAD_MAX_SECONDS = 2_592_000  # thirty days

_NAME = Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_TIME = Meta(extra_json_schema={"format": "date-time"})
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})


class ReservationSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The machines to reserve, their user or namespace, and the time."""

    machine_group: Annotated[str, _NAME, Meta(description="Group of the machines.")]
    machine_type: Annotated[str, _NAME, Meta(description="Name of the machine type.")]
    count: Annotated[int, Meta(ge=1, le=100_000, description="Machines of the type.")]
    start: Annotated[str, Meta(extra_json_schema={"format": "date-time"}, description="From when.")] = field(
        name="from"
    )
    end: Annotated[str, Meta(extra_json_schema={"format": "date-time"}, description="Until when.")] = field(
        name="to"
    )
    user: Annotated[
        str,
        Meta(
            max_length=253,
            description="For guests of this user, wherever they run; without it, for those of the namespace.",
        ),
    ] = ""
    lead_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=LEAD_MAX_SECONDS)] | None,
        Meta(
            description="So long before the start, guests without a time limit no longer start on reserved"
            " machines. Default a day."
        ),
    ] = None


class Granted(Struct, frozen=True, rename="camel", kw_only=True):
    """The booking that is in force."""

    machine_group: Annotated[str, Meta(description="Group of the machines.")]
    machine_type: Annotated[str, Meta(description="Name of the machine type.")]
    count: Annotated[int, Meta(ge=1, description="Machines that are reserved.")]
    start: Annotated[str, _TIME, Meta(description="When the reservation starts.")] = field(name="from")
    end: Annotated[str, _TIME, Meta(description="When the reservation ends.")] = field(name="to")
    at: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}, description="Since when: the earlier one has precedence."),
    ]


class Blocker(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A guest on a machine that is reserved for another owner."""

    owner: Annotated[str, Meta(description="Owner of the pod.")]
    namespace: Annotated[str, Meta(description="Namespace of the pod.")]
    pod: Annotated[str, Meta(description="Name of the pod.")]
    until: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When it ends at the latest, if known.")
    ] = ""


class ReservationStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    phase: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": list(PHASES)},
            description="Pending, Preparing (machines are held for it), Active, Expired or Refused.",
        ),
    ] = ""
    held: Annotated[int, Meta(ge=0, description="Machines held now, including those in use by their owner.")] = 0
    in_use: Annotated[int, Meta(ge=0, description="Machines that its owner's guests use.")] = 0
    shortfall: Annotated[
        int, Meta(ge=0, description="Machines missing: now, or before it starts those expected to be.")
    ] = 0
    full_at: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When nothing is missing any more.")
    ] = ""
    blocked_by: Annotated[list[Blocker], Meta(max_length=20, description="Pods in the way.")] = []
    granted: Granted | None = None
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class Reservation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Machines of one type, reserved from one moment to another for a user or for its namespace."""

    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


# --- as decisions read them


class Terms(Struct, frozen=True, kw_only=True):
    """The number of machines, and the start and end of a booking. The end is exclusive."""

    count: int
    start: datetime
    end: datetime


class Booking(Struct, frozen=True, kw_only=True):
    """A parsed booking of the calendar."""

    namespace: str
    name: str
    group: str
    type: str
    asked: Terms
    granted: Terms | None = None  # in force, by its status; None: nothing is, or of another type
    granted_at: datetime | None = None  # since when: it has precedence over later grants
    user: str = ""  # in the form of the owner label; empty: the namespace's guests
    lead: timedelta = timedelta(seconds=LEAD_SECONDS)
    created: str = ""  # RFC 3339: sorts as text
    cancelled: bool = False  # being deleted

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def age(self) -> tuple[str, str, str]:
        """The sort key of bookings by creation, oldest first."""
        return (self.created, self.namespace, self.name)


def parse_reservation(obj: Mapping[str, Any]) -> Booking:
    """Read a Reservation as stored. Raises ValueError for invalid moments, KeyError for missing fields."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    granted = (obj.get("status") or {}).get("granted") or {}
    same = (granted.get("machineGroup"), granted.get("machineType")) == (spec["machineGroup"], spec["machineType"])
    lead = spec.get("leadSeconds")
    return Booking(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        group=spec["machineGroup"],
        type=spec["machineType"],
        asked=_terms(spec),
        granted=_terms(granted) if same else None,
        granted_at=_moment(granted["at"]) if same else None,
        user=label_value(spec["user"]) if spec.get("user") else "",
        lead=timedelta(seconds=LEAD_SECONDS if lead is None else int(lead)),
        created=meta.get("creationTimestamp") or "",
        cancelled=is_deleting(obj),
    )


def bookings_of(reservations: Iterable[Mapping[str, Any]]) -> list[Booking]:
    """The calendar. Reservations that cannot be read are skipped; the schema refuses them."""
    bookings = []
    for reservation in reservations:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            bookings.append(parse_reservation(reservation))
    return bookings


def _terms(given: Mapping[str, Any]) -> Terms:
    return Terms(count=int(given["count"]), start=_moment(given["from"]), end=_moment(given["to"]))


def _moment(text: str) -> datetime:
    return parse_rfc3339(text).replace(microsecond=0)  # as the status is written
