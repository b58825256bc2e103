"""The controls that a page shows to a user: each control names the rights that it needs.

The API server decides (SubjectAccessReview), and its answers are cached for a minute. A page asks
once for each right in all namespaces, and where that is refused once for each namespace that it
shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage.model.budget import BUDGETS
from moorage.model.dataset import DATASETS
from moorage.model.idle import IDLE_POLICIES
from moorage.model.machine import MACHINES
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import GROUP
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.reservation import RESERVATIONS
from moorage.model.tenant import TENANTS
from moorage.model.volumebackup import BACKUPS
from moorage.model.workspace import OPEN_VERB, WORKSPACES
from moorage.server.identity.auth import Auth, User
from moorage.server.pages.refusals import is_htmx, wants_page
from moorage.server.tenants import KnownTenants
from moorage_kube.errors import ApiError
from moorage_kube.resources import CONFIGMAPS, JOBS, NODES, PODS, PVCS, SECRETS, SERVICEACCOUNTS, Resource

ASKED_AT_ONCE = 16


class Right(Struct, frozen=True):
    """A permission in RBAC. `namespace`: a fixed one; empty: that of the object, or none for the cluster's."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""


def to(verb: str, resource: Resource, *, namespace: str = "", subresource: str = "") -> Right:
    """The right to use a verb on objects of a kind."""
    return Right(verb, resource.plural, resource.group, subresource, namespace)


CONTROLS: Mapping[str, tuple[Right, ...]] = {
    # of objects in a namespace
    "create run": (to("create", JOBS),),
    "cancel run": (to("patch", JOBS),),
    "delete run": (to("delete", JOBS),),
    "create workspace": (to("create", WORKSPACES),),
    "switch workspace": (to("patch", WORKSPACES),),
    "open workspace": (to(OPEN_VERB, WORKSPACES),),
    "delete workspace": (to("delete", WORKSPACES),),
    "create volume": (to("create", PVCS),),
    "resize volume": (to("patch", PVCS),),
    "delete volume": (to("delete", PVCS),),
    "read volume file": (to("create", PODS), to("create", PODS, subresource="exec")),
    "create dataset": (to("create", DATASETS),),
    "change dataset": (to("patch", DATASETS),),
    "delete dataset": (to("delete", DATASETS),),
    "delete secret": (to("delete", CONFIGMAPS),),
    "create map": (to("create", MAPJOBS),),
    "change map": (to("update", MAPJOBS),),
    "delete map": (to("delete", MAPJOBS),),
    "create backup": (to("create", BACKUPS),),
    "restore backup": (to("patch", BACKUPS),),
    "create reservation": (to("create", RESERVATIONS), to("list", MACHINES)),
    "delete reservation": (to("delete", RESERVATIONS),),
    "create workflow": (to("create", WORKFLOWS),),
    "change workflow": (to("patch", WORKFLOWS),),
    "delete workflow": (to("delete", WORKFLOWS),),
    "change schedule": (to("patch", CRON_WORKFLOWS),),
    "run schedule": (to("create", WORKFLOWS),),
    "delete schedule": (to("delete", CRON_WORKFLOWS),),
    # of the cluster
    "see users": (to("list", SERVICEACCOUNTS, namespace=PEOPLE_NAMESPACE),),
    "create user": (
        to("create", SERVICEACCOUNTS, namespace=PEOPLE_NAMESPACE),
        to("create", SECRETS, namespace=PEOPLE_NAMESPACE),
    ),
    "change user": (
        to("patch", SERVICEACCOUNTS, namespace=PEOPLE_NAMESPACE),
        to("create", SECRETS, namespace=PEOPLE_NAMESPACE),
        to("patch", SECRETS, namespace=PEOPLE_NAMESPACE),
        to("list", SECRETS, namespace=PEOPLE_NAMESPACE),
        to("delete", SECRETS, namespace=PEOPLE_NAMESPACE),
    ),
    "see tenants": (to("list", TENANTS),),
    "create tenant": (to("create", TENANTS),),
    "change tenant": (to("patch", TENANTS),),
    "see budgets": (to("list", BUDGETS),),
    "change budget": (to("create", BUDGETS), to("patch", BUDGETS), to("delete", BUDGETS)),
    "see idle policies": (to("list", IDLE_POLICIES),),
    "change idle policy": (to("create", IDLE_POLICIES), to("patch", IDLE_POLICIES), to("delete", IDLE_POLICIES)),
    "see nodes": (to("list", NODES), to("list", PODS)),
    "cordon node": (to("patch", NODES),),
    "drain node": (to("patch", NODES), to("create", PODS, subresource="eviction")),
    "see machines": (to("list", MACHINES),),
    "see reservations": (to("list", RESERVATIONS),),
    "see audit": (Right("get", "audit", GROUP),),
}


class Allowed(Struct, frozen=True):
    """The controls that a user may use, each with the namespace; an empty namespace stands for all."""

    pairs: frozenset[tuple[str, str]] = frozenset()

    def may(self, control: str, namespace: str = "") -> bool:
        return (control, "") in self.pairs or (control, namespace) in self.pairs


class AdminPage(Struct, frozen=True):
    """A page for administrators of the cluster, and the control that shows the link to it."""

    path: str
    name: str
    control: str


ADMIN_PAGES: tuple[AdminPage, ...] = (
    AdminPage("/admin/users", "Users", "see users"),
    AdminPage("/admin/tenants", "Tenants", "see tenants"),
    AdminPage("/admin/budgets", "Budgets", "see budgets"),
    AdminPage("/admin/idle", "Idle rules", "see idle policies"),
    AdminPage("/admin/nodes", "Nodes", "cordon node"),
    AdminPage("/admin/machines", "Machines", "see machines"),
    AdminPage("/admin/reservations", "Reservations", "see reservations"),
    AdminPage("/admin/audit", "Audit", "see audit"),
)
SEEN_BY_MEMBERS = ("see tenants", "see budgets")


def decide(
    controls: Iterable[str], namespaces: Iterable[str], answers: Mapping[tuple[Right, str], bool]
) -> Allowed:
    """The controls for which every right is given, by the answers to (right, namespace).

    A missing answer counts as a refusal.
    """
    where = ("", *namespaces)

    def holds(right: Right, namespace: str) -> bool:
        return answers.get((right, right.namespace or namespace)) or answers.get((right, "")) or False

    return Allowed(
        frozenset(
            (control, namespace)
            for control in controls
            for namespace in where
            if all(holds(right, namespace) for right in CONTROLS[control])
        )
    )


async def allowed(auth: Auth, user: User, controls: Iterable[str], namespaces: Iterable[str] = ()) -> Allowed:
    """The controls that a user may use. Where the API server gives no answer, nothing is allowed."""
    if not user.account:
        return Allowed()
    chosen, places = tuple(controls), tuple(dict.fromkeys(namespaces))
    rights = dict.fromkeys(right for control in chosen for right in CONTROLS[control])
    gate = asyncio.Semaphore(ASKED_AT_ONCE)
    answers: dict[tuple[Right, str], bool] = {}

    async def ask(right: Right, namespace: str) -> None:
        async with gate:
            answers[right, namespace] = await _may(auth, user, right, namespace)

    await asyncio.gather(*(ask(right, right.namespace) for right in rights))
    refused = [right for right in rights if not right.namespace and not answers[right, ""]]
    await asyncio.gather(*(ask(right, place) for right in refused for place in places))
    return decide(chosen, places, answers)


async def _may(auth: Auth, user: User, right: Right, namespace: str) -> bool:
    try:
        return await auth.may(
            user, right.verb, right.resource, group=right.group, namespace=namespace, subresource=right.subresource
        )
    except ApiError:
        return False


class AdminLinks:
    """The ASGI layer that decides which links to admin pages the user sees in the page header.

    Members of a tenant see the pages of tenants and of budgets too, with their own ones.
    """

    def __init__(self, app: ASGIApp, *, auth: Auth, tenants: KnownTenants) -> None:
        self._app = app
        self._auth = auth
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers, state = Headers(scope=scope), scope.get("state") or {}
            user = state.get("user")
            if user is not None and wants_page(headers, scope["path"]) and not is_htmx(headers):
                rights = await allowed(self._auth, user, [page.control for page in ADMIN_PAGES])
                is_member = any(user.role_in(tenant) for tenant in await self._tenants.all())
                state["admin_links"] = tuple(
                    (page.path, page.name)
                    for page in ADMIN_PAGES
                    if rights.may(page.control) or (is_member and page.control in SEEN_BY_MEMBERS)
                )
        await self._app(scope, receive, send)
