"""API types of tenants: `/api/v1/tenants`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from moorage.api.budgets import BudgetRow
from moorage.api.fields import Answer, Request, about

Names = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=253)]], msgspec.Meta(max_length=100)]


class MembersChange(Request):
    """Users and groups that get or lose a role."""

    role: Annotated[Literal["admin", "member", "viewer"], about("The role in the tenant.")] = "member"
    people: Annotated[Names, about("Names of users.")] = []
    groups: Annotated[Names, about("Names of groups.")] = []


class Holders(Answer, frozen=True):
    """The holders of a role."""

    people: Annotated[tuple[str, ...], about("Names of users.")] = ()
    groups: Annotated[tuple[str, ...], about("Names of groups; their users have the role.")] = ()


class QuotaRow(Answer, frozen=True):
    """A resource that the quota limits."""

    resource: Annotated[str, about("Such as requests.nvidia.com/gpu.")]
    hard: Annotated[str, about("The limit.")]
    used: Annotated[str, about("Requested now; empty: unknown.")] = ""


class IdleRule(Answer, frozen=True):
    """An IdlePolicy that applies to work of the tenant."""

    policy: Annotated[str, about("Its name; built-in: the administrator wrote none.")]
    work: Annotated[tuple[str, ...], about("Kinds of work that it applies to.")] = ()
    warn_after: Annotated[str, about("Idle time until the owner is warned.")] = ""
    remind_after: Annotated[str, about("Time from the warning to the reminder; empty: no reminder.")] = ""
    suspend_after: Annotated[str, about("Time from the warning to the suspension; empty: never suspended.")] = ""


class TenantRow(Answer, frozen=True):
    """A tenant in a list."""

    name: str
    namespace: str
    role: Annotated[str, about("Your role: admin, member or viewer; empty: none.")] = ""
    admins: Holders = Holders()
    people: Annotated[int | None, about("Users with a role; null: not counted yet.")] = None
    nodes: Annotated[int | None, about("Dedicated nodes; null: not counted yet.")] = None
    ready: Annotated[bool, about("Whether the namespace matches the present spec.")] = False
    reason: Annotated[str, about("Reason of the condition Ready.")] = ""
    message: Annotated[str, about("The reason as a sentence.")] = ""


class Tenant(TenantRow, frozen=True):
    """A tenant: its members, its limits and their use."""

    may_change_members: Annotated[bool, about("Whether you may add and remove members.")] = False
    members: Holders = Holders()
    viewers: Holders = Holders()
    gpus: Annotated[int, about("GPUs that its pods hold now.")] = 0
    quota: tuple[QuotaRow, ...] = ()
    budgets: Annotated[tuple[BudgetRow, ...], about("Budgets of the tenant.")] = ()
    idle: Annotated[tuple[IdleRule, ...], about("Rules for idle work.")] = ()
    priority_classes: Annotated[tuple[str, ...], about("PriorityClasses that its pods may name.")] = ()
    node_selector: Annotated[Mapping[str, str], about("Labels of its dedicated nodes.")] = {}
    domain: Annotated[str, about("Domain of its hosts; empty: any host that other tenants do not have.")] = ""


class TenantList(Answer, frozen=True):
    """Tenants that the caller may see."""

    tenants: Annotated[tuple[TenantRow, ...], about("Sorted by name.")] = ()
