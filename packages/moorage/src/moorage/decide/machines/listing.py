"""The machines of each type for lists: how many exist, are reserved, used, requested and booked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moorage.model.machine import FIFO, group_of
from moorage.model.reservation import ACTIVE
from moorage_kube.meta import condition


def booked_of(reservations: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """The machines of each (group, type) that calendar reservations hold now, whether used or not."""
    booked: dict[tuple[str, str], int] = {}
    for reservation in reservations:
        spec, status = reservation.get("spec") or {}, reservation.get("status") or {}
        if status.get("phase") == ACTIVE:
            key = (str(spec.get("machineGroup")), str(spec.get("machineType")))
            booked[key] = booked.get(key, 0) + int(status.get("held") or 0)
    return booked


def rows_of(
    machine: Mapping[str, Any], booked: Mapping[tuple[str, str], int] | None = None
) -> list[dict[str, Any]]:
    """One JSON row for each machine type."""
    booked = booked or {}
    spec, status = machine.get("spec") or {}, machine.get("status") or {}
    usage = {machine["name"]: machine["usage"] for machine in status.get("availableMachines") or ()}
    ready = condition(machine, "Ready")
    return [
        {
            "group": group_of(machine),
            "type": kind["name"],
            "size": kind["spec"],
            "available": kind["available"],
            "order": spec.get("order") or FIFO,
            "usage": usage.get(kind["name"]),
            "booked": booked.get((group_of(machine), kind["name"]), 0),
            "ready": (ready or {}).get("status", "Unknown"),
            "reason": (ready or {}).get("reason", ""),
        }
        for kind in spec.get("machineTypes") or ()
    ]


def complaints(machine: Mapping[str, Any]) -> Sequence[str]:
    """Messages of the conditions that report a fault."""
    bad = {"Ready": "False", "Oversubscribed": "True", "UnmanagedGuests": "True"}
    return [
        str(reported["message"])
        for kind, word in bad.items()
        if (reported := condition(machine, kind)) is not None
        and reported.get("status") == word
        and reported.get("message")
    ]
