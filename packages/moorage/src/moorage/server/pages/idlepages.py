"""The web pages /admin/idle: rules for idle GPUs, which administrators set and delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.limits import SPANS, quiet_text, read_quiet, set_idle_policy
from moorage.actions.specs import list_objects
from moorage.model.idle import IDLE_POLICIES, WORK
from moorage.server.pages import settingforms
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import Button, Cell, Line, Table, names_in
from moorage.server.pages.forms import Field, Reader
from moorage.server.pages.paging import Shown
from moorage.server.pages.settingforms import Setting, listed
from moorage.server.pages.site import Page, Site
from moorage.server.pages.texts import N_, say
from moorage_kube.errors import UsageError
from moorage_kube.resources import Obj

HERE = "/admin/idle"
NEW = "/admin/new-idle-policy"
ONE = f"{HERE}/{{name}}"
MAY_CHANGE = "change idle policy"
LIST = AdminList(
    here=HERE,
    title="Idle rules",
    table=Table(
        caption="Rules for work that holds GPUs and does not use them",
        headers=("Rule", "Teams", "Work", "Warning after", "Reminder after", "Suspended after", "Quiet hours"),
    ),
    nothing="No rules: owners are warned after a day, and work is never suspended.",
)


async def show_list(site: Site, request: Request) -> Response:
    """The web page of rules for idle work, for users who may list IdlePolicies."""
    may = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    return list_page(
        site, request, LIST, await _listed(site, request), make=(NEW, "New idle rule") if may else None
    )


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of rules that changes."""
    return HTMLResponse(live_part(LIST, await _listed(site, request)))


async def new_form(site: Site, request: Request) -> Response:
    """The form of a new rule for idle work."""
    return await settingforms.new_form(site, request, SETTING)


async def change_form(site: Site, request: Request) -> Response:
    """The form with the fields of a rule for idle work."""
    return await settingforms.change_form(site, request, SETTING)


async def save(site: Site, request: Request) -> Response:
    """Create or change a rule for idle work from its form."""
    return await settingforms.save(site, request, SETTING)


async def ask_delete(site: Site, request: Request) -> Response:
    """The page that asks before a rule for idle work is deleted."""
    return await settingforms.ask_delete(site, request, SETTING)


async def delete(site: Site, request: Request) -> Response:
    """Delete a rule for idle work, after the page has asked."""
    return await settingforms.delete(site, request, SETTING)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=NEW, handler=new_form, controls=(MAY_CHANGE,)),
    Page(method="POST", path=NEW, handler=save),
    Page(method="GET", path=f"{ONE}/change", handler=change_form, controls=(MAY_CHANGE,)),
    Page(method="POST", path=f"{ONE}/change", handler=save),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=(MAY_CHANGE,)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


def lines_of(objs: Iterable[Obj], *, may_change: bool) -> list[Line]:
    """A line for each IdlePolicy."""
    lines = []
    for obj in objs:
        name, spec = str(obj["metadata"]["name"]), obj["spec"]
        at = f"{HERE}/{quote(name)}"
        buttons = (
            Button(id=f"change-{name}", words="Change", to=f"{at}/change", of=name),
            Button(id=f"delete-{name}", words="Delete", to=f"{at}/delete", of=name),
        )
        texts = (
            listed(spec.get("tenants")) or say("all"),
            ", ".join(say(kind) for kind in spec.get("work") or ()) or say("all"),
            *(str(spec.get(field) or "") for field in SPANS),
            "; ".join(quiet_text(span) for span in (spec.get("quietHours") or {}).get("spans") or ()),
        )
        cells = tuple(Cell(text=text) for text in texts)
        lines.append(Line(head=Cell(text=name), cells=cells, buttons=buttons if may_change else ()))
    return lines


def texts_of(spec: Obj) -> dict[str, str]:
    """The inputs of the form for the spec of an IdlePolicy."""
    quiet, exempt, notify = (spec.get(field) or {} for field in ("quietHours", "exempt", "notify"))
    return {
        **{field: str(spec.get(field) or "") for field in SPANS},
        "tenants": listed(spec.get("tenants")),
        "work": listed(spec.get("work")),
        "quietHours": "\n".join(quiet_text(span) for span in quiet.get("spans") or ()),
        "timeZone": str(quiet.get("timeZone") or ""),
        "exemptUsers": listed(exempt.get("users")),
        "exemptNames": listed(exempt.get("names")),
        "notify": "\n".join(notify.get("targets") or ()),
        "mailDomain": str(notify.get("mailDomain") or ""),
    }


def fields_of(reader: Reader, _: Obj) -> Mapping[str, Any]:
    """The fields of an IdlePolicy from its form; an empty input removes a field."""
    spans = []
    for text in reader.lines("quietHours"):
        try:
            spans.append(dict(read_quiet(text)))
        except UsageError as error:
            reader.refuse("quietHours", f"{error.message}; {error.hint}")
    names = {field: names_in(reader.text(field) or "") or None for field in ("tenants", "work")}
    for kind in names["work"] or ():
        if kind not in WORK:
            reader.refuse("work", f"invalid kind of work {kind[:40]!r}: use {', '.join(WORK)}")
    return {
        **{field: reader.text(field) for field in SPANS},
        **names,
        "quietHours": {"spans": spans, "timeZone": reader.text("timeZone")} if spans else None,
        "exempt": {
            "users": names_in(reader.text("exemptUsers") or "") or None,
            "names": names_in(reader.text("exemptNames") or "") or None,
        },
        "notify": {"targets": reader.lines("notify") or None, "mailDomain": reader.text("mailDomain")},
    }


SETTING = Setting(
    resource=IDLE_POLICIES,
    noun="idle policy",
    here=HERE,
    new_title="New idle rule",
    change_title=N_("Change idle rule {name}"),
    loss="Other rules hold for its work, or the built-in one: a warning after a day.",
    note="Of several rules, one that names the team comes first, then the first by name.",
    inputs=(
        Field(
            name="warnAfter",
            label="Warning after",
            example="4h",
            hint="Idle time, such as 30m, 4h or 1d.",
            required=True,
            most=32,
        ),
        Field(name="remindAfter", label="Reminder after", hint="From the warning. Empty: no reminder.", most=32),
        Field(name="suspendAfter", label="Suspended after", hint="From the warning. Empty: never.", most=32),
        Field(name="tenants", label="Teams", hint="Tenants, separated by commas. Empty: all.", most=2000),
        Field(name="work", label="Work", hint="workspace, run, map, workflow. Empty: all."),
        Field(
            name="quietHours",
            label="Quiet hours",
            kind="area",
            example="20:00-08:00\nSat,Sun",
            hint="Without notices and suspensions. One on each line.",
        ),
        Field(name="timeZone", label="Time zone", example="Asia/Tokyo", hint="Empty: UTC.", most=64),
    ),
    folded=(
        Field(name="exemptUsers", label="Exempt users", hint="Separated by commas.", most=4000),
        Field(name="exemptNames", label="Exempt work", hint="NAMESPACE/NAME, separated by commas.", most=4000),
        Field(
            name="notify",
            label="Receivers of notices",
            kind="area",
            hint="One on each line: https://… or mailto:ADDRESS.",
        ),
        Field(name="mailDomain", label="Domain of mail addresses", hint="Owner ada has the address ada@DOMAIN."),
    ),
    texts=texts_of,
    fields_of=fields_of,
    set=lambda api, name, changes, seen: set_idle_policy(api, name, changes, seen=seen),
)


async def _listed(site: Site, request: Request) -> Shown[Line]:
    objs = await list_objects(site.context.acting(request.state.user), IDLE_POLICIES)
    may = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    return wanted_lines(LIST, request, lines_of(objs, may_change=may))
