"""The web pages /admin/budgets: budgets and their use; administrators set and delete them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.limits import EITHER, set_budget
from moorage.actions.specs import missing
from moorage.api.budgets import BudgetRow
from moorage.model.budget import BUDGETS, EVERYBODY, QUEUE, REFUSE, WARN, WARN_AT, check_budget
from moorage.server.budgets.use import budgets_for
from moorage.server.pages import settingforms
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import Button, Cell, Line, Section, Table, names_in
from moorage.server.pages.forms import Field, Option, Reader
from moorage.server.pages.paging import Shown
from moorage.server.pages.settingforms import Setting, listed
from moorage.server.pages.site import Page, Site
from moorage.server.pages.texts import N_, say
from moorage_kube.resources import Obj

HERE = "/admin/budgets"
NEW = "/admin/new-budget"
ONE = f"{HERE}/{{name}}"
BACK = (HERE, "All budgets")
MAY_CHANGE = "change budget"
ASK = N_("Administrators of the cluster set and delete budgets: ask one for a change.")
WHEN_OVER = ((WARN, N_("warn only")), (QUEUE, N_("new work waits behind others")), (REFUSE, N_("refuse new work")))
LIST = AdminList(
    here=HERE,
    title="Budgets",
    table=Table(
        caption="Budgets, and the largest use of each",
        headers=("Budget", "Holds for", "Limit", "Most used", "When used up", "Until (UTC)"),
    ),
    nothing="No budget holds for you. A budget limits the GPU-hours or the money of a team or a person.",
)
USES = Table(
    caption="Use of the budget in its period, the largest first", headers=("User or team", "Used", "Percent"),
    numbers=(0, 1),
)  # fmt: skip


async def show_list(site: Site, request: Request) -> Response:
    """The web page of budgets."""
    may = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    make = (NEW, "New budget") if may else None
    return list_page(site, request, LIST, await _listed(site, request), make=make, notes=() if may else (ASK,))


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of budgets that changes."""
    may = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    return HTMLResponse(live_part(LIST, await _listed(site, request), () if may else (ASK,)))


async def show(site: Site, request: Request) -> Response:
    """The web page of one budget, for its users and for administrators."""
    name = request.path_params["name"]
    rows = [row for row in (await budgets_for(site.context, request.state.user)).budgets if row.budget == name]
    if not rows:
        raise missing(BUDGETS, name)
    may = (await site.allowed(request, (MAY_CHANGE,))).may(MAY_CHANGE)
    return site.page(
        request, "admin_one.html", HERE, live=False, title=name, subtitle="budget",
        sections=sections_of(rows, may_change=may), back=BACK, given={},
    )  # fmt: skip


async def new_form(site: Site, request: Request) -> Response:
    """The form of a new budget."""
    return await settingforms.new_form(site, request, SETTING)


async def change_form(site: Site, request: Request) -> Response:
    """The form with the fields of a budget."""
    return await settingforms.change_form(site, request, SETTING)


async def save(site: Site, request: Request) -> Response:
    """Create or change a budget from its form."""
    return await settingforms.save(site, request, SETTING)


async def ask_delete(site: Site, request: Request) -> Response:
    """The page that asks before a budget is deleted."""
    return await settingforms.ask_delete(site, request, SETTING)


async def delete(site: Site, request: Request) -> Response:
    """Delete a budget, after the page has asked."""
    return await settingforms.delete(site, request, SETTING)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=NEW, handler=new_form, controls=(MAY_CHANGE,)),
    Page(method="POST", path=NEW, handler=save),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/change", handler=change_form, controls=(MAY_CHANGE,)),
    Page(method="POST", path=f"{ONE}/change", handler=save),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=(MAY_CHANGE,)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


def lines_of(rows: Sequence[BudgetRow]) -> list[Line]:
    """A line for each budget. `rows` are sorted by budget, the largest use first."""
    lines = []
    for name, group in groupby(rows, key=lambda row: row.budget):
        first, *more = group
        whose = say("all") if first.name == EVERYBODY else first.name
        lines.append(
            Line(
                head=Cell(text=name, href=f"{HERE}/{quote(name)}"),
                cells=(
                    Cell(text=say("{name} and {count} more", name=whose, count=len(more)) if more else whose),
                    Cell(text=limit_words(first)),
                    used_cell(first),
                    Cell(text=when_over_words(first)),
                    _until(first),
                ),
            )
        )
    return lines


def sections_of(rows: Sequence[BudgetRow], *, may_change: bool) -> tuple[Section, ...]:
    """The content of a budget's page."""
    first = rows[0]
    at = f"{HERE}/{quote(first.budget)}"
    buttons = (
        Button(id="change", words="Change", to=f"{at}/change"),
        Button(id="delete", words="Delete", to=f"{at}/delete"),
    )
    facts: tuple[tuple[str, Cell], ...] = (
        ("Limit", Cell(text=limit_words(first))),
        ("When used up", Cell(text=when_over_words(first))),
        ("Until (UTC)", _until(first)),
        *((("Problem", Cell(note=first.problem)),) if first.problem else ()),
    )
    uses = tuple(
        Line(
            head=Cell(text=say("all") if row.name == EVERYBODY else row.name),
            cells=(Cell(text=row.used), Cell(text=f"{row.percent} %", tone="bad" if row.percent >= 100 else "")),
        )
        for row in rows
    )
    return (
        Section(
            id="facts",
            title="Status",
            facts=facts,
            buttons=buttons if may_change else (),
            note="" if may_change else ASK,
        ),
        Section(id="uses", title="Use", table=USES, lines=uses),
    )


def limit_words(row: BudgetRow) -> str:
    """Such as "500 GPU-hours a month"."""
    return say("{limit} {unit} in a " + row.period, limit=row.limit, unit=say(row.unit))


LIMITS = (N_("{limit} {unit} in a day"), N_("{limit} {unit} in a week"), N_("{limit} {unit} in a month"))


def when_over_words(row: BudgetRow) -> str:
    return say(dict(WHEN_OVER)[row.when_over])


def used_cell(row: BudgetRow) -> Cell:
    """The used part; if it cannot be computed, the reason."""
    if row.problem:
        return Cell(note=row.problem)
    return Cell(
        text=f"{row.percent} %", note=f"{row.used} / {row.limit}", tone="bad" if row.percent >= 100 else ""
    )


def texts_of(spec: Obj) -> dict[str, str]:
    """The inputs of the form for the spec of a Budget."""
    texts = {field: str(spec.get(field) or "") for field in ("gpuHours", "money", "timeZone")}
    lists = {field: listed(spec.get(field)) for field in ("tenants", "users", "warnAt")}
    choices = {"period": str(spec.get("period") or "month"), "whenOver": str(spec.get("whenOver") or WARN)}
    return texts | lists | choices | {"notify": "\n".join(spec.get("notify") or ())}


def fields_of(reader: Reader, _: Obj) -> Mapping[str, Any]:
    """The fields of a Budget from its form; an empty input removes a field."""
    fields: dict[str, Any] = {field: reader.text(field) for field in ("gpuHours", "money", "timeZone")}
    fields |= {field: names_in(reader.text(field) or "") or None for field in ("tenants", "users")}
    for first, second in EITHER:
        if bool(fields[first]) == bool(fields[second]):
            reader.refuse(second, "fill in one of these two fields, and leave the other empty")
    percents = names_in(reader.text("warnAt") or "")
    if not all(text.isdecimal() and 1 <= int(text) <= 1000 for text in percents):
        reader.refuse("warnAt", "use whole numbers from 1 to 1000, such as 80, 100")
        percents = []
    fields["warnAt"] = [int(text) for text in percents] or None
    fields["notify"] = reader.lines("notify") or None
    return fields | {"period": reader.text("period"), "whenOver": reader.text("whenOver")}


SETTING = Setting(
    resource=BUDGETS,
    noun="budget",
    here=HERE,
    back_to_list=False,
    new_title="New budget",
    change_title=N_("Change budget {name}"),
    loss="New work is no longer checked against it.",
    note="Each named team or user has the whole amount alone. A period begins at midnight.",
    inputs=(
        Field(
            name="tenants", label="Teams", hint="Tenants, separated by commas; * for each. Or users.", most=2000
        ),
        Field(name="users", label="Users", hint="Separated by commas; * for each. Or teams.", most=2000),
        Field(
            name="period",
            label="Period",
            kind="choice",
            value="month",
            options=(Option("day", "day"), Option("week", "week"), Option("month", "month")),
        ),
        Field(name="gpuHours", label="GPU-hours", example="500", hint="In a period. Or money.", most=22),
        Field(
            name="money", label="Money", hint="In a period, in the currency of the prices. Or GPU-hours.", most=22
        ),
        Field(
            name="whenOver",
            label="When used up",
            kind="choice",
            options=tuple(Option(action, words) for action, words in WHEN_OVER),
        ),
    ),
    folded=(
        Field(name="timeZone", label="Time zone", example="Asia/Tokyo", hint="Empty: UTC.", most=64),
        Field(name="warnAt", label="Notices at percent", example=listed(WARN_AT), hint="Empty: 80 and 100."),
        Field(
            name="notify",
            label="Receivers of notices",
            kind="area",
            hint="One on each line: https://… or mailto:ADDRESS.",
        ),
    ),
    texts=texts_of,
    fields_of=fields_of,
    set=lambda api, name, changes, seen: set_budget(api, name, changes, seen=seen),
    check=lambda obj: [fault for fault in check_budget(obj) if fault.field != "spec"],  # which fields_of finds
)


def _until(row: BudgetRow) -> Cell:
    return Cell(text=f"{row.until:%Y-%m-%d %H:%M}" if row.until else "")


async def _listed(site: Site, request: Request) -> Shown[Line]:
    rows = (await budgets_for(site.context, request.state.user)).budgets
    return wanted_lines(LIST, request, lines_of(rows))
