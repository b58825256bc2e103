"""The web pages /admin/users: accounts, their groups and sessions, for users who may list accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import people
from moorage.api.errors import ErrorCode
from moorage.api.people import Account, AccountChange, NewAccount
from moorage.model.people import LOCAL
from moorage.server.identity.accountroutes import apply_change
from moorage.server.identity.sessions import Session
from moorage.server.inputs import as_struct
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import Button, Cell, Form, Input, Line, Section, Table, names_in
from moorage.server.pages.board import ago
from moorage.server.pages.paging import Shown
from moorage.server.pages.site import Page, Question, Site, done, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.errors import Forbidden, MoorageError, NotFound

HERE = "/admin/users"
ONE = f"{HERE}/{{person}}"
BACK = (HERE, "All users")
ENABLED, DISABLED = "enabled", "disabled"
LIST = AdminList(
    here=HERE,
    title="Users",
    table=Table(
        caption="Users, their groups, and when they were here last",
        headers=("User", "State", "Login", "Groups", "Last seen", "Sessions"),
        numbers=(3, 4),
    ),
    nothing="No account yet. People who log in at the identity provider get one by themselves.",
    states=(ENABLED, DISABLED),
)
SESSIONS = Table(caption="Sessions of the user", headers=("Session", "From", "Began", "Last used"), numbers=(1, 2))
LOGINS = {LOCAL: "password", "oidc": "identity provider"}
NEW = Form(
    id="new",
    title="New user",
    to=HERE,
    button="Create",
    inputs=(
        Input(name="name", label="Name", hint="the name for the login", required=True),
        Input(name="groups", label="Groups", hint="separated by commas; a tenant can name them", most=1000),
    ),
)


async def show_list(site: Site, request: Request) -> Response:
    """The web page of users."""
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of users that changes."""
    return HTMLResponse(live_part(LIST, await _listed(site, request)))


async def create(site: Site, request: Request) -> Response:
    """Create an account with a first password, which the page shows once."""
    form = await read_form(request)
    name, groups = form.get("name", ""), names_in(form.get("groups", ""))
    site.context.audit(request, "create", f"user {name}")
    password = people.first_password()
    try:
        body = as_struct({"name": name, "password": password, "groups": groups}, NewAccount)
        await people.create_local_account(site.context.acting(request.state.user), body)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error), form)
    return _password_page(site, request, name, password, f"Account {name} is created")


async def show(site: Site, request: Request) -> Response:
    """The web page of one user."""
    return await _page(site, request)


async def set_groups(site: Site, request: Request) -> Response:
    """Set the groups of a user."""
    form = await read_form(request)
    groups = names_in(form.get("groups", ""))
    return await _change(site, request, {"groups": groups}, "groups", "groups", form)


async def set_password(site: Site, request: Request) -> Response:
    """Set a new password for a user, which the page shows once; the user's sessions end."""
    await read_form(request)
    person, password = request.path_params["person"], people.first_password()
    site.context.audit(request, "change", f"password of user {person}")
    try:
        api = site.context.acting(request.state.user)
        await apply_change(site.context, api, person, AccountChange(password=password))
    except (Problem, MoorageError) as error:
        return await _page(site, request, problem_to_show(error))
    return _password_page(site, request, person, password, f"{person} has a new password")


async def ask_disable(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before an account is disabled."""
    person = request.path_params["person"]
    await people.get_account(site.context.acting(request.state.user), person)
    question = Question(
        title=f"Disable {person}?",
        lines=(
            "Sessions and tokens are revoked at once, and logins are refused.",
            "The user's runs, workspaces and volumes stay as they are.",
        ),
        button="Disable",
        action=f"{_at(person)}/disable",
        back=_at(person),
        danger=True,
        entry=("reason", "Reason, for administrators", "disabled by an administrator"),
    )
    return site.ask(request, HERE, question, problem)


async def disable(site: Site, request: Request) -> Response:
    """Disable an account, after the page has asked."""
    form = await read_form(request)
    return await _change(site, request, {"disabled": True, "reason": form.get("reason", "")}, "disabled", DISABLED)


async def enable(site: Site, request: Request) -> Response:
    """Enable an account again."""
    await read_form(request)
    return await _change(site, request, {"disabled": False}, "disabled", ENABLED)


async def end_session(site: Site, request: Request) -> Response:
    """End one session of a user. Needs the right to change accounts."""
    await read_form(request)
    person, number = request.path_params["person"], request.path_params["session"]
    site.context.audit(request, "end", f"session of user {person}")
    if not (await site.allowed(request, ("change user",))).may("change user"):
        raise Forbidden("you may not end the sessions of others", hint="accounts are for administrators")
    for session in await site.context.logins.sessions(person):
        if session.id == number:
            await site.context.logins.end(session, "an administrator ended it")
            return done(_at(person), "ended", person)
    raise NotFound(f"session {number[:40]!r} of user {person} not found", code=ErrorCode.NOT_FOUND)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="POST", path=HERE, handler=create),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="POST", path=f"{ONE}/groups", handler=set_groups),
    Page(method="POST", path=f"{ONE}/password", handler=set_password),
    Page(method="GET", path=f"{ONE}/disable", handler=ask_disable, controls=("change user",)),
    Page(method="POST", path=f"{ONE}/disable", handler=disable),
    Page(method="POST", path=f"{ONE}/enable", handler=enable),
    Page(method="POST", path=f"{ONE}/sessions/{{session}}/end", handler=end_session),
)


def lines_of(accounts: Iterable[Account], sessions: Mapping[str, list[Session]], now: datetime) -> list[Line]:
    """A line for each account, by name."""
    lines = []
    for account in accounts:
        own = sessions.get(account.name, [])
        state = DISABLED if account.disabled else ENABLED
        lines.append(
            Line(
                head=Cell(text=account.name, href=_at(account.name)),
                cells=(
                    Cell(text=state, tone="bad" if account.disabled else "good", note=account.reason),
                    Cell(text=say(LOGINS.get(account.source, account.source))),
                    Cell(text=", ".join(account.groups)),
                    Cell(when=ago(max((session.used for session in own), default=None), now)),
                    Cell(text=str(len(own) or "")),
                ),
                state=state,
            )
        )
    return lines


def _at(person: str) -> str:
    return f"{HERE}/{quote(person, safe='@')}"


async def _listed(site: Site, request: Request) -> Shown[Line]:
    accounts = await people.list_accounts(site.context.acting(request.state.user))
    sessions: dict[str, list[Session]] = {}
    for session in await site.context.sessions.do(lambda store: store.all()):
        sessions.setdefault(session.person, []).append(session)
    return wanted_lines(LIST, request, lines_of(accounts, sessions, site.context.now()))


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    listed = await _listed(site, request)
    may_create = (await site.allowed(request, ("create user",))).may("create user")
    return list_page(site, request, LIST, listed, forms=(NEW,) if may_create else (), problem=problem, given=given)


async def _page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    person, now = request.path_params["person"], site.context.now()
    account = people.account_of(await people.get_account(site.context.acting(request.state.user), person))
    may_change = (await site.allowed(request, ("change user",))).may("change user")
    sessions = await site.context.logins.sessions(person)
    return site.page(
        request,
        "admin_one.html",
        HERE,
        problem=problem,
        live=False,
        title=person,
        subtitle="user",
        sections=sections_of(account, sessions, now, may_change=may_change),
        back=BACK,
        given=given or {},
    )


def sections_of(
    account: Account, sessions: Iterable[Session], now: datetime, *, may_change: bool
) -> tuple[Section, ...]:
    """The content of a user's page."""
    # facts of the account
    at, own = _at(account.name), list(sessions)
    state = Cell(
        text=DISABLED if account.disabled else ENABLED,
        tone="bad" if account.disabled else "good",
        note=account.reason,
    )
    facts = (
        ("State", state),
        ("Logs in by", Cell(text=say(LOGINS.get(account.source, account.source)))),
        ("Groups", Cell(text=", ".join(account.groups) or say("none"))),
        ("Created", Cell(when=ago(account.created, now))),
        ("Last seen", Cell(when=ago(max((session.used for session in own), default=None), now))),
        ("Runs", Cell(text=say("All runs of this user"), href=f"/jobs?owner={quote(account.name)}")),
    )
    # actions; passwords and groups of other accounts are changed at the identity provider
    switch = (
        Button(id="enable", words="Enable", to=f"{at}/enable", of=account.name, is_form=True)
        if account.disabled
        else Button(id="disable", words="Disable", to=f"{at}/disable", of=account.name)
    )
    is_local = account.source == LOCAL
    password = Button(id="password", words="New password", to=f"{at}/password", is_form=True)
    groups = Form(
        id="groups",
        title="Change groups",
        to=f"{at}/groups",
        button="Save",
        inputs=(
            Input(
                name="groups",
                label="Groups",
                value=", ".join(account.groups),
                hint="separated by commas",
                most=4000,
            ),
        ),
    )
    # the sections, with actions if the viewer may change accounts
    return (
        Section(
            id="facts",
            title="Status",
            facts=facts,
            buttons=((switch, password) if is_local else (switch,)) if may_change else (),
            forms=(groups,) if may_change and is_local else (),
        ),
        Section(
            id="sessions",
            title="Sessions",
            table=SESSIONS,
            lines=tuple(_session_line(at, session, now, may_change=may_change) for session in own),
            nothing="The user is not logged in anywhere.",
        ),
    )


def _session_line(at: str, session: Session, now: datetime, *, may_change: bool) -> Line:
    end = Button(
        id=f"end-{session.id}", words="End", to=f"{at}/sessions/{session.id}/end", of=session.client, is_form=True
    )
    return Line(
        head=Cell(text=session.client or "unknown"),
        cells=(
            Cell(text=session.address),
            Cell(when=ago(session.created, now)),
            Cell(when=ago(session.used, now)),
        ),
        buttons=(end,) if may_change else (),
    )


async def _change(
    site: Site, request: Request, fields: Mapping[str, object], what: str, outcome: str,
    given: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    person = request.path_params["person"]
    site.context.audit(request, "change", f"{what} of user {person}")
    try:
        change = as_struct(fields, AccountChange)
        await apply_change(site.context, site.context.acting(request.state.user), person, change)
    except (Problem, MoorageError) as error:
        return await _page(site, request, problem_to_show(error), given)
    return done(_at(person), outcome, person)


def _password_page(site: Site, request: Request, person: str, password: str, title: str) -> Response:
    question = Question(
        title=title,
        lines=(
            f"Password: {password}",
            "Give it to the user now; this page shows it once.",
            "The user logs in with it in a browser, or with moor login.",
        ),
        back=_at(person),
    )
    return site.ask(request, HERE, question)
