"""The web pages /admin/tenants: teams, their people and their limits; members see their own teams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import tenants
from moorage.api.budgets import BudgetRow
from moorage.api.errors import ErrorCode
from moorage.api.tenants import IdleRule, Tenant, TenantRow
from moorage.model.tenant import TENANTS
from moorage.model.tenantquota import read_quota
from moorage.present.tenantsanswer import holders_of
from moorage.server import tenantviews
from moorage.server.pages import settingforms
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import (
    Button,
    Cell,
    Form,
    Input,
    Line,
    Section,
    Table,
    names_in,
    some,
)
from moorage.server.pages.budgetpages import limit_words, used_cell, when_over_words
from moorage.server.pages.forms import Field, Reader
from moorage.server.pages.paging import Shown
from moorage.server.pages.settingforms import Setting, listed, pair_lines
from moorage.server.pages.site import Page, Site, checked_name, done, problem_to_show, read_form
from moorage.server.pages.texts import N_, say
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.resources import Obj

HERE = "/admin/tenants"
ONE = f"{HERE}/{{tenant}}"
BACK = (HERE, "All tenants")
MAY_CHANGE = "change tenant"
ASK = N_("Administrators of the cluster set the quota, budgets and idle rules: ask one for a change.")
READY, NOT_READY = "Ready", "Not ready"
QUOTA_FIELDS = {  # field of the form → the limited resource, and its label
    "gpus": ("gpus", "GPUs at most"),
    "cpu": ("requests.cpu", "CPUs at most"),
    "memory": ("requests.memory", "Memory at most"),
}
LIST = AdminList(
    here=HERE,
    title="Tenants",
    table=Table(
        caption="Tenants, their namespace and how many people and nodes they have",
        headers=("Tenant", "State", "Namespace", "Admins", "People", "Dedicated nodes"),
        numbers=(3, 4),
    ),
    nothing="No tenant yet. A tenant gives a team a namespace, roles and a quota.",
    states=(READY, NOT_READY),
)
MEMBERS = Table(caption="People with their roles", headers=("Name", "Kind", "Role"))
QUOTA = Table(caption="Quota of the tenant", headers=("Resource", "Used", "Limit"), numbers=(0, 1))
BUDGETS = Table(
    caption="Budgets of the tenant",
    headers=("Budget", "Used", "Limit", "When used up"),
)
IDLE = Table(
    caption="Rules for idle work",
    headers=("Rule", "Work", "Warning after", "Reminder after", "Suspended after"),
)
NEW = Form(
    id="new",
    title="New tenant",
    to=HERE,
    button="Create",
    inputs=(
        Input(name="name", label="Name", hint="a-z, 0-9 and -", required=True, most=63),
        Input(name="namespace", label="Namespace", hint="empty: the name of the tenant", most=63),
        Input(name="admins", label="Admins", hint="users, separated by commas", most=1000),
        Input(name="members", label="Members", hint="users, separated by commas", most=1000),
        Input(name="groups", label="Groups", hint="their users are members", most=1000),
        *(
            Input(name=name, label=label, hint="empty: no limit", most=32)
            for name, (_, label) in QUOTA_FIELDS.items()
        ),
    ),
)


async def show_list(site: Site, request: Request) -> Response:
    """The web page of tenants."""
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of tenants that changes."""
    return HTMLResponse(live_part(LIST, await _listed(site, request)))


async def create(site: Site, request: Request) -> Response:
    """Create a tenant from the form of the page."""
    form = await read_form(request)
    site.context.audit(request, "create", f"tenant {form.get('name', '')}")
    try:
        name = checked_name(form)
        obj = tenants.plan_tenant(name, spec_of(form, name))
        await tenants.create_tenant(site.context.acting(request.state.user), obj)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error), form)
    return done(f"{HERE}/{name}", "created", name)


async def show(site: Site, request: Request) -> Response:
    """The web page of one tenant."""
    return await _page(site, request)


async def change_form(site: Site, request: Request) -> Response:
    """The form with the settings of a tenant."""
    return await settingforms.change_form(site, request, SETTING)


async def save(site: Site, request: Request) -> Response:
    """Change the settings of a tenant from its form."""
    return await settingforms.save(site, request, SETTING)


async def add(site: Site, request: Request) -> Response:
    """Add users and groups to a role in a tenant."""
    return await _change(site, request, is_added=True)


async def remove(site: Site, request: Request) -> Response:
    """Remove a role in a tenant from a user or a group."""
    return await _change(site, request, is_added=False)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="POST", path=HERE, handler=create),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{HERE}/{{name}}/change", handler=change_form, controls=(MAY_CHANGE,)),
    Page(method="POST", path=f"{HERE}/{{name}}/change", handler=save),
    Page(method="POST", path=f"{ONE}/add", handler=add),
    Page(method="POST", path=f"{ONE}/remove", handler=remove),
)


def texts_of(spec: Obj) -> dict[str, str]:
    """The inputs of the form for the settings of a tenant."""
    ingress = spec.get("ingress") or {}
    return {
        "quota": pair_lines(spec.get("quota")),
        "priorityClasses": listed(spec.get("priorityClasses")),
        "cpuNodes": pair_lines((spec.get("cpuNodes") or {}).get("selector")),
        "domain": str(ingress.get("domain") or ""),
        "className": str(ingress.get("className") or ""),
    }


def fields_of(reader: Reader, spec: Obj) -> Mapping[str, Any]:
    """The settings of a tenant from its form; an empty input removes a field."""
    quota = reader.pairs("quota", "quota", "gpu=8")
    labels = reader.pairs("cpuNodes", "label", "LABEL=VALUE")
    held = (spec.get("cpuNodes") or {}).get("selector") or {}
    return {
        "quota": dict.fromkeys(spec.get("quota") or {}) | quota,
        "priorityClasses": names_in(reader.text("priorityClasses") or "") or None,
        "cpuNodes": {"selector": dict.fromkeys(held) | labels} if labels else None,
        "ingress": {"domain": reader.text("domain"), "className": reader.text("className")},
    }


SETTING = Setting(
    resource=TENANTS,
    noun="tenant",
    here=HERE,
    back_to_list=False,
    change_title=N_("Change tenant {name}"),
    note="The quota is the sum that all work of the team may request at a time.",
    inputs=(
        Field(
            name="quota",
            label="Quota",
            kind="area",
            rows=5,
            example="gpu=8\ncpu=64\nmemory=256Gi",
            hint="One RESOURCE=AMOUNT on each line. Empty: no limit.",
        ),
        Field(
            name="cpuNodes",
            label="Labels of dedicated nodes",
            kind="area",
            hint="One LABEL=VALUE on each line: nodes without GPUs, for this team only.",
        ),
        Field(
            name="priorityClasses",
            label="PriorityClasses",
            hint="That its pods may use, separated by commas.",
            most=2000,
        ),
        Field(name="domain", label="Domain of its hosts", example="vision.example.org", hint="Empty: any."),
        Field(name="className", label="Class of its Ingresses", hint="If they have a separate controller."),
    ),
    texts=texts_of,
    fields_of=fields_of,
    set=lambda api, name, changes, seen: tenants.set_tenant(api, name, changes, seen=seen),
)


def spec_of(form: Mapping[str, str], name: str) -> Obj:
    """Read the spec of a tenant from a form. Raises UsageError, with the input of a wrong amount."""
    spec: Obj = {"namespace": form.get("namespace") or name}
    if admins := names_in(form.get("admins", "")):
        spec["admins"] = {"people": admins}
    wanted = {"people": names_in(form.get("members", "")), "groups": names_in(form.get("groups", ""))}
    if members := {field: names for field, names in wanted.items() if names}:
        spec["members"] = members
    quota: dict[str, str] = {}
    for field, (resource, _) in QUOTA_FIELDS.items():
        if amount := form.get(field):
            try:
                quota |= read_quota({resource: amount})
            except UsageError as error:
                raise UsageError(error.message, hint=error.hint, field=field, code=ErrorCode.INVALID) from error
    return spec | ({"quota": quota} if quota else {})


def lines_of(rows: Iterable[TenantRow]) -> list[Line]:
    """A line for each tenant."""
    return [
        Line(
            head=Cell(text=row.name, href=f"{HERE}/{row.name}"),
            cells=(
                state := _state(row),
                _place(row),
                Cell(text=some([*row.admins.people, *row.admins.groups])),
                Cell(text="" if row.people is None else str(row.people)),
                Cell(text="" if row.nodes is None else str(row.nodes)),
            ),
            state=state.text,
        )
        for row in rows
    ]


def sections_of(shown: Tenant, *, may_set: bool) -> tuple[Section, ...]:
    """The content of a tenant's page. `may_set`: the user may change its settings, not only its members."""
    may_change = shown.may_change_members
    # one line for each user and group, by role
    members: list[Line] = []
    for role, held in holders_of(shown).items():
        for kind, names in (("user", held.people), ("group", held.groups)):
            members += [
                _member(shown.name, person, kind, role, len(members) + number, may_change=may_change)
                for number, person in enumerate(names)
            ]
    nodes = ", ".join(f"{key}={value}" for key, value in shown.node_selector.items())
    facts = (
        ("State", _state(shown)),
        ("Namespace", _place(shown)),
        *((("Your role", Cell(text=say(shown.role))),) if shown.role else ()),
        ("People", Cell(text="" if shown.people is None else str(shown.people))),
        ("GPUs in use", Cell(text=str(shown.gpus))),
        ("Dedicated nodes", Cell(text=nodes or say("none"))),
        ("Hosts", Cell(text=shown.domain or say("any that other tenants do not have"))),
        *((("PriorityClasses", Cell(text=some(shown.priority_classes))),) if shown.priority_classes else ()),
    )
    change = Button(id="change", words="Change the settings", to=f"{HERE}/{quote(shown.name)}/change")
    admins = some([*shown.admins.people, *(say("group {name}", name=name) for name in shown.admins.groups)])
    ask_admin = say("Admins of the team add and remove people: ask {names}.", names=admins) if admins else ""
    # a form for those who may change the members, and the limits with their use
    give = Form(
        id="add",
        title="Add people",
        to=f"{HERE}/{shown.name}/add",
        button="Add",
        inputs=(
            Input(
                name="role",
                label="Role",
                value="member",
                options=tuple((role, role) for role in ("member", "viewer", "admin")),
            ),
            Input(name="people", label="Users", hint="separated by commas", most=1000),
            Input(name="groups", label="Groups", hint="separated by commas", most=1000),
        ),
    )
    quota = tuple(
        Line(head=Cell(text=row.resource), cells=(Cell(text=row.used), Cell(text=row.hard))) for row in shown.quota
    )
    return (
        Section(
            id="facts",
            title="Status",
            facts=facts,
            buttons=(change,) if may_set else (),
            note="" if may_set else ASK,
        ),
        Section(
            id="members",
            title="People",
            table=MEMBERS,
            lines=tuple(members),
            nothing="No people yet.",
            note="" if may_change else ask_admin,
            forms=(give,) if may_change else (),
        ),
        Section(id="quota", title="Quota", table=QUOTA, lines=quota, nothing="No quota: the team may use all."),
        Section(
            id="budgets",
            title="Budgets",
            table=BUDGETS,
            lines=tuple(_budget(row) for row in shown.budgets),
            nothing="No budget.",
        ),
        Section(id="idle", title="Idle GPUs", table=IDLE, lines=tuple(_rule(rule) for rule in shown.idle)),
    )


def _budget(row: BudgetRow) -> Line:
    cells = (used_cell(row), Cell(text=limit_words(row)), Cell(text=when_over_words(row)))
    return Line(head=Cell(text=row.budget, href=f"/admin/budgets/{quote(row.budget)}"), cells=cells)


def _rule(rule: IdleRule) -> Line:
    texts = (", ".join(say(kind) for kind in rule.work), rule.warn_after, rule.remind_after, rule.suspend_after)
    return Line(head=Cell(text=rule.policy), cells=tuple(Cell(text=text) for text in texts))


def _member(tenant: str, person: str, kind: str, role: str, number: int, *, may_change: bool) -> Line:
    field = "people" if kind == "user" else "groups"
    remove = Button(
        id=f"remove-{number}",
        words="Remove",
        to=f"{HERE}/{tenant}/remove",
        of=f"{person}, {role}",
        is_form=True,
        fields=(("role", role), (field, person)),
    )
    cells = (Cell(text=say(kind)), Cell(text=say(role)))
    href = f"/jobs?owner={quote(person)}" if kind == "user" else ""
    return Line(head=Cell(text=person, href=href), cells=cells, buttons=(remove,) if may_change else ())


def _place(row: TenantRow) -> Cell:
    return Cell(text=row.namespace, href=f"/jobs?whose=all&namespace={row.namespace}")


def _state(row: TenantRow) -> Cell:
    if row.ready:
        return Cell(text=READY, tone="good")
    return Cell(text=NOT_READY, tone="wait", note=row.message or "the operator has not looked yet")


async def _listed(site: Site, request: Request) -> Shown[Line]:
    rows = await tenantviews.list_tenants(site.context, request.state.user)
    return wanted_lines(LIST, request, lines_of(rows))


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    may_create = (await site.allowed(request, ("create tenant",))).may("create tenant")
    listed = await _listed(site, request)
    return list_page(site, request, LIST, listed, forms=(NEW,) if may_create else (), problem=problem, given=given)


async def _page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    shown = await tenantviews.show_tenant(site.context, request.state.user, request.path_params["tenant"])
    may_set = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    return site.page(
        request,
        "admin_one.html",
        HERE,
        problem=problem,
        live=False,
        title=shown.name,
        subtitle="tenant",
        sections=sections_of(shown, may_set=may_set),
        back=BACK,
        given=given or {},
    )


async def _change(site: Site, request: Request, *, is_added: bool) -> Response:
    form, name = await read_form(request), request.path_params["tenant"]
    role = form.get("role", "")
    # a person's name may hold blanks: the button of a row sends exactly one
    names = {
        field: names_in(form.get(field, "")) if is_added else [text for text in [form.get(field, "")] if text]
        for field in ("people", "groups")
    }
    everybody = ", ".join(names["people"] + names["groups"])
    site.context.audit(request, "change", f"tenant {name}: {'add' if is_added else 'remove'} {role} {everybody}")
    try:
        if role not in tenants.ROLES:
            raise Problem(
                422, "invalid", f"invalid role {role[:40]!r}: use {', '.join(tenants.ROLES)}", field="role"
            )
        given = {field: listed for field, listed in names.items() if listed}
        await tenantviews.change_members(site.context, request.state.user, name, role, given, is_added=is_added)
    except (Problem, MoorageError) as error:
        return await _page(site, request, problem_to_show(error), form if is_added else None)
    return done(f"{HERE}/{name}", "members", name)
