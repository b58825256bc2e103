"""Decide the status of a ResourceQuota.

https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_kube.clock import parse_rfc3339
from moorage_kube.moments import span_of
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj, Resource
from moorage_local.quota import is_charged, total_usage, write_amounts

SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One quota, and the objects of its namespace in all collections that it counts."""

    quota: Obj
    objects: Mapping[Resource, Sequence[Obj]]
    now: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a pass. `status` is None if the stored status is correct."""

    status: Obj | None = None
    look_again_in: timedelta | None = None


def plan(seen: Observed) -> Plan:
    """Return the status for the observed objects, and the end of the next grace period, after which a pod is
    not charged.
    """
    hard = (seen.quota.get("spec") or {}).get("hard") or {}
    used = write_amounts(total_usage(seen.quota, seen.objects, seen.now))
    status: Obj = {}
    if hard:
        status["hard"] = dict(hard)
    if used:
        status["used"] = used
    ends = [
        parse_rfc3339(pod["metadata"]["deletionTimestamp"])
        + span_of(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        for resource, there in seen.objects.items()
        if (resource.group, resource.plural) == ("", "pods")
        for pod in there
        if pod["metadata"].get("deletionTimestamp") and is_charged(pod, seen.now)
    ]
    again = max(SECOND, min(ends) - seen.now + SECOND) if ends else None
    return Plan(None if _same(seen.quota.get("status") or {}, status) else status, again)


def _same(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> bool:
    return all(_read(old.get(part)) == _read(new.get(part)) for part in ("hard", "used"))


def _read(amounts: Mapping[str, str] | None) -> dict[str, object]:
    return {name: parse_quantity(text) for name, text in (amounts or {}).items()}
