"""Tenants for programs and pages: `GET /api/v1/tenants`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from moorage.api.budgets import BudgetRow
from moorage.api.tenants import Holders, IdleRule, QuotaRow, Tenant, TenantRow
from moorage.model.idle import WORK, Policy, policy_for
from moorage.model.spans import format_span
from moorage.model.tenant import ROLES
from moorage.model.tenantquota import read_quota
from moorage_kube.errors import Problems
from moorage_kube.meta import condition
from moorage_kube.resources import Obj


def make_row(obj: Obj, *, role: str) -> TenantRow:
    """A row of a list. `role`: that of the caller."""
    return TenantRow(**_row(obj, role))


def make_tenant(
    obj: Obj,
    *,
    role: str,
    may_change_members: bool,
    used: Mapping[str, Any],
    gpus: int,
    budgets: Iterable[BudgetRow],
    policies: Sequence[Policy],
) -> Tenant:
    """The whole view. `used`: the used amounts of the quota, by resource."""
    name, spec = str(obj["metadata"]["name"]), obj["spec"]
    return Tenant(
        **_row(obj, role),
        may_change_members=may_change_members,
        members=holders(spec, "member"),
        viewers=holders(spec, "viewer"),
        gpus=gpus,
        quota=tuple(
            QuotaRow(resource=resource, hard=str(hard), used=str(used.get(resource, "")))
            for resource, hard in _quota(spec).items()
        ),
        budgets=tuple(budgets),
        idle=idle_rules(policies, name),
        priority_classes=tuple(spec.get("priorityClasses") or ()),
        node_selector=(spec.get("cpuNodes") or {}).get("selector") or {},
        domain=str((spec.get("ingress") or {}).get("domain") or ""),
    )


def _quota(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quota with full names; as it is written, if it is invalid."""
    quota = spec.get("quota") or {}
    try:
        return read_quota(quota)
    except Problems:
        return dict(quota)


def holders(spec: Mapping[str, Any], role: str) -> Holders:
    held = spec.get(f"{role}s") or {}
    return Holders(people=tuple(held.get("people") or ()), groups=tuple(held.get("groups") or ()))


def holders_of(tenant: Tenant) -> dict[str, Holders]:
    """Role → its holders, from the role that may do most."""
    return dict(zip(ROLES, (tenant.admins, tenant.members, tenant.viewers), strict=True))


def idle_rules(policies: Sequence[Policy], tenant: str) -> tuple[IdleRule, ...]:
    """The policies that apply to work of a tenant, each with its kinds of work."""
    kinds: dict[str, list[str]] = {}
    by_name = {policy.name: policy for policy in policies}
    for work in WORK:
        if (policy := policy_for(policies, tenant=tenant, work=work)) is not None:
            kinds.setdefault(policy.name, []).append(work)
    return tuple(
        IdleRule(
            policy=name,
            work=tuple(work),
            warn_after=format_span(by_name[name].warn_after),
            remind_after=_span(by_name[name].remind_after),
            suspend_after=_span(by_name[name].suspend_after),
        )
        for name, work in kinds.items()
    )


def idle_text(rule: IdleRule) -> str:
    """A rule for idle work as text."""
    remind = f", reminder {rule.remind_after} later" if rule.remind_after else ""
    suspend = f"suspended {rule.suspend_after} after the warning" if rule.suspend_after else "never suspended"
    return f"{', '.join(rule.work)}: warning after {rule.warn_after}{remind}, {suspend} (policy {rule.policy})"


def _span(span: timedelta | None) -> str:
    return format_span(span) if span is not None else ""


def _row(obj: Obj, role: str) -> dict[str, Any]:
    spec, status, ready = obj["spec"], obj.get("status") or {}, condition(obj, "Ready") or {}
    is_current = status.get("observedGeneration") == obj["metadata"].get("generation")
    return {
        "name": str(obj["metadata"]["name"]),
        "namespace": str(spec["namespace"]),
        "role": role,
        "admins": holders(spec, "admin"),
        "people": status.get("people", 0 if ready else None),
        "nodes": status.get("nodes", 0 if ready else None),
        "ready": ready.get("status") == "True" and is_current,
        "reason": str(ready.get("reason") or ""),
        "message": str(ready.get("message") or ""),
    }
