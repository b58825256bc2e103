"""The web pages /admin/tenants: teams, their people and their limits, for users who may list tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import tenants
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import (
    Button,
    Cell,
    Form,
    Input,
    Line,
    Section,
    Table,
    given_in,
    names_in,
    some,
)
from moorage.server.pages.paging import Shown
from moorage.server.pages.site import Page, Site, checked_name, done, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.meta import condition
from moorage_kube.resources import Obj, Resource

HERE = "/admin/tenants"
ONE = f"{HERE}/{{tenant}}"
BACK = (HERE, "All tenants")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
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
    Page(method="POST", path=f"{ONE}/add", handler=add),
    Page(method="POST", path=f"{ONE}/remove", handler=remove),
)


def spec_of(form: Mapping[str, str], name: str) -> Obj:
    """Read the spec of a tenant from a form."""
    spec: Obj = {"namespace": form.get("namespace") or name}
    if admins := names_in(form.get("admins", "")):
        spec["admins"] = {"people": admins}
    wanted = {"people": names_in(form.get("members", "")), "groups": names_in(form.get("groups", ""))}
    if members := {field: names for field, names in wanted.items() if names}:
        spec["members"] = members
    if quota := {resource: form[field] for field, (resource, _) in QUOTA_FIELDS.items() if form.get(field)}:
        spec["quota"] = quota
    return spec


def lines_of(objs: Iterable[Obj]) -> list[Line]:
    """A line for each tenant."""
    lines = []
    for obj in objs:
        name, spec, status = obj["metadata"]["name"], obj["spec"], obj.get("status") or {}
        admins = spec.get("admins") or {}
        state = _state(obj)
        lines.append(
            Line(
                head=Cell(text=name, href=f"{HERE}/{name}"),
                cells=(
                    state,
                    Cell(text=str(spec["namespace"]), href=f"/jobs?whose=all&namespace={spec['namespace']}"),
                    Cell(text=some([*admins.get("people", ()), *admins.get("groups", ())])),
                    Cell(text=str(status.get("people", ""))),
                    Cell(text=str(status.get("nodes", ""))),
                ),
                state=state.text,
            )
        )
    return lines


def sections_of(obj: Obj, used: Mapping[str, Any], *, may_change: bool) -> tuple[Section, ...]:
    """The content of a tenant's page. `used`: amounts of the quota in use, by resource."""
    name, spec, status = obj["metadata"]["name"], obj["spec"], obj.get("status") or {}
    ingress, selector = spec.get("ingress") or {}, (spec.get("cpuNodes") or {}).get("selector") or {}
    # one line for each user and group, by role
    members: list[Line] = []
    for role in tenants.ROLES:
        held = spec.get(f"{role}s") or {}
        for kind, field in (("user", "people"), ("group", "groups")):
            members += [
                _member(name, person, kind, role, len(members) + number, may_change=may_change)
                for number, person in enumerate(held.get(field) or ())
            ]
    # the facts come from the status and the spec
    facts = (
        ("State", _state(obj)),
        ("Namespace", Cell(text=spec["namespace"], href=f"/jobs?whose=all&namespace={spec['namespace']}")),
        ("People", Cell(text=str(status.get("people", "")))),
        (
            "Dedicated nodes",
            Cell(text=", ".join(f"{key}={value}" for key, value in selector.items()) or say("none")),
        ),
        ("Hosts", Cell(text=ingress.get("domain") or say("any that other tenants do not have"))),
    )
    # a form for administrators, and the quota with its use
    give = Form(
        id="add",
        title="Add people",
        to=f"{HERE}/{name}/add",
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
        Line(head=Cell(text=resource), cells=(Cell(text=str(used.get(resource, ""))), Cell(text=str(limit))))
        for resource, limit in (spec.get("quota") or {}).items()
    )
    return (
        Section(id="facts", title="Status", facts=facts),
        Section(
            id="members",
            title="People",
            table=MEMBERS,
            lines=tuple(members),
            nothing="No people yet.",
            forms=(give,) if may_change else (),
        ),
        Section(id="quota", title="Quota", table=QUOTA, lines=quota, nothing="No quota: the team may use all."),
    )


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


def _state(obj: Obj) -> Cell:
    ready = condition(obj, "Ready") or {}
    if ready.get("status") == "True":
        return Cell(text=READY, tone="good")
    return Cell(text=NOT_READY, tone="wait", note=str(ready.get("message") or "the operator has not looked yet"))


async def _listed(site: Site, request: Request) -> Shown[Line]:
    objs = await tenants.list_tenants(site.context.acting(request.state.user))
    return wanted_lines(LIST, request, lines_of(objs))


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    form = NEW if given is None else given_in(NEW, given.items())
    may_create = (await site.allowed(request, ("create tenant",))).may("create tenant")
    listed = await _listed(site, request)
    return list_page(site, request, LIST, listed, forms=(form,) if may_create else (), problem=problem)


async def _page(site: Site, request: Request, problem: Problem | None = None) -> Response:
    api, name = site.context.acting(request.state.user), request.path_params["tenant"]
    obj = await tenants.get_tenant(api, name)
    used: dict[str, Any] = {}
    try:
        for quota in (await api.list(QUOTAS, obj["spec"]["namespace"])).items:
            used |= (quota.get("status") or {}).get("used") or {}
    except ApiError:  # the rest is of use without
        used = {}
    may_change = (await site.allowed(request, ("change tenant",))).may("change tenant")
    return site.page(
        request,
        "admin_one.html",
        HERE,
        problem=problem,
        live=False,
        title=name,
        subtitle="tenant",
        sections=sections_of(obj, used, may_change=may_change),
        back=BACK,
        wrong=(problem.field or "") if problem is not None else "",
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
        api = site.context.acting(request.state.user)
        change = tenants.add_to_tenant if is_added else tenants.remove_from_tenant
        await change(api, name, role, {field: listed for field, listed in names.items() if listed})
    except (Problem, MoorageError) as error:
        return await _page(site, request, problem_to_show(error))
    return done(f"{HERE}/{name}", "members", name)
