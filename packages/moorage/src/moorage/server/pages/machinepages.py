"""The web pages /admin/machines and /admin/reservations, for users who may list machines and
reservations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import reservations
from moorage.api.errors import ErrorCode
from moorage.decide.machines.listing import booked_of, complaints, rows_of
from moorage.model.machine import MACHINES, NODE_POOLS, Pool, group_of
from moorage.model.reservation import ACTIVE, EXPIRED, PENDING, REFUSED, RESERVATIONS
from moorage.server.pages.adminlists import AdminList, list_page, live_part, wanted_lines
from moorage.server.pages.adminview import Button, Cell, Form, Input, Line, Table, some
from moorage.server.pages.paging import Shown
from moorage.server.pages.rights import Allowed
from moorage.server.pages.site import Page, Question, Site, change, checked_name, done, problem_to_show, read_form
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, MoorageError, NotFound, NotReady, NumberError, UsageError
from moorage_kube.integers import parse_integer
from moorage_kube.meta import condition
from moorage_kube.moments import moment
from moorage_kube.resources import Obj

MACHINES_HERE, HERE = "/admin/machines", "/admin/reservations"
ONE = f"{HERE}/{{namespace}}/{{name}}"
READY_MODE = "ready"  # of a node that offers machines
COUNTS = ("maximum", "reserved", "used", "waiting", "pending")
MACHINE_LIST = AdminList(
    here=MACHINES_HERE,
    title="Machines",
    table=Table(
        caption="Types of machines, how many there are, reserved, used and waited for",
        headers=("Type", "Ready", "Size", "Maximum", "Reserved", "Used", "Waiting", "Pending", "Booked", "Pool"),
        numbers=(2, 3, 4, 5, 6, 7),
    ),
    nothing="No machines in this cluster. A Machine offers places of a size on named nodes.",
)
CALENDAR = AdminList(
    here=HERE,
    title="Reservations",
    table=Table(
        caption="Reservations by their beginning",
        headers=("Reservation", "Phase", "Machines", "For", "From (UTC)", "To (UTC)", "Held"),
        numbers=(5,),
    ),
    nothing="No reservation. A reservation keeps machines from one moment to another.",
    states=(ACTIVE, PENDING, REFUSED, EXPIRED),
)
TONES = {ACTIVE: "good", PENDING: "wait", REFUSED: "bad"}


async def show_machines(site: Site, request: Request) -> Response:
    """The web page of machines: each type, and the nodes of its pool."""
    listed, notes = await _machines(site, request)
    return list_page(site, request, MACHINE_LIST, listed, notes=notes)


async def live_machines(site: Site, request: Request) -> Response:
    """The part of the page of machines that changes."""
    return HTMLResponse(live_part(MACHINE_LIST, *await _machines(site, request)))


async def show_list(site: Site, request: Request) -> Response:
    """The web page of reservations, sorted by their start."""
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of reservations that changes."""
    return HTMLResponse(live_part(CALENDAR, await _calendar(site, request)))


async def create(site: Site, request: Request) -> Response:
    """Reserve machines from the form of the page."""
    form = await read_form(request)
    site.context.audit(request, "create", f"reservation {form.get('namespace', '')}/{form.get('name', '')}")
    try:
        obj = reservation_of(form)
        api = site.context.acting(request.state.user)
        pools, calendar = await reservations.read_calendar(api)
        reservations.judge(obj, pools, calendar, now=site.context.now())
        await reservations.create_reservation(api, obj)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error), form)
    return done(HERE, "created", f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")


async def ask_cancel(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a reservation is cancelled."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    await reservations.get_reservation(site.context.acting(request.state.user), namespace, name)
    question = Question(
        title=f"Cancel reservation {name}?",
        lines=(f"It is in namespace {namespace}. Its machines are free at once; running pods continue.",),
        button="Cancel the reservation",
        action=f"{HERE}/{namespace}/{name}/cancel",
        back=HERE,
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def cancel(site: Site, request: Request) -> Response:
    """Cancel a reservation, after the page has asked."""
    await read_form(request)
    act = reservations.cancel_reservation
    return await change(site, request, "cancel reservation", act, again=ask_cancel, back=HERE, outcome="cancelled")


PAGES = (
    Page(method="GET", path=MACHINES_HERE, handler=show_machines),
    Page(method="GET", path=f"{MACHINES_HERE}/live", handler=live_machines, live=True),
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="POST", path=HERE, handler=create),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=f"{ONE}/cancel", handler=ask_cancel, controls=("delete reservation",)),
    Page(method="POST", path=f"{ONE}/cancel", handler=cancel),
)


def machine_lines(
    machines: Iterable[Obj], booked: Mapping[tuple[str, str], int], pools: Mapping[str, str]
) -> list[Line]:
    """A line for each machine type. `pools`: the nodes of each group, in words."""
    lines = []
    for row in (row for machine in machines for row in rows_of(machine, booked)):
        size, usage, is_ready = row["size"], row["usage"] or {}, row["ready"] == "True"
        gpu = size.get("gpu") or {}
        words = f"{size['cpu']} CPU, {size['memory']}" + (f", {gpu['num']} × {gpu['type']}" if gpu else "")
        ready = Cell(
            text="Ready" if is_ready else "Not ready",
            tone="good" if is_ready else "wait",
            note="" if is_ready else row["reason"],
        )
        lines.append(
            Line(
                head=Cell(text=f"{row['group']}/{row['type']}"),
                cells=(
                    ready,
                    Cell(text=words, note=f"order {row['order']}"),
                    *(Cell(text=str(usage.get(key, ""))) for key in COUNTS),
                    Cell(text=str(row["booked"] or "")),
                    Cell(text=pools.get(row["group"], "")),
                ),
            )
        )
    return lines


def pool_words(pools: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The nodes of each group's pool in words; an unusual mode or condition of a node is added."""
    words: dict[str, str] = {}
    for pool in pools:
        spec, status = pool.get("spec") or {}, pool.get("status") or {}
        states = {node["name"]: node.get("condition", "") for node in status.get("nodePool") or ()}
        nodes = []
        for node in spec.get("nodePool") or ():
            state, mode = states.get(node["name"], ""), node.get("mode") or READY_MODE
            unusual = mode if mode != READY_MODE else state if state not in ("", "Healthy") else ""
            nodes.append(f"{node['name']} ({unusual.lower()})" if unusual else node["name"])
        words[str(spec.get("machineGroupName"))] = some(nodes)
    return words


def reservation_lines(objs: Iterable[Obj], rights: Allowed) -> list[Line]:
    """A line for each reservation."""
    lines = []
    for obj in objs:
        meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
        namespace, name, phase = meta["namespace"], meta["name"], str(status.get("phase") or "")
        message = (condition(obj, "Accepted") or {}).get("message") if phase == REFUSED else ""
        to = f"{HERE}/{namespace}/{name}/cancel"
        cancel_button = Button(id=f"cancel-{namespace}--{name}", words="Cancel", to=to, of=name)
        lines.append(
            Line(
                head=Cell(text=name, note=namespace),
                cells=(
                    Cell(text=phase or "new", tone=TONES.get(phase, "done"), note=str(message or "")),
                    Cell(text=f"{spec['count']} × {spec['machineGroup']}/{spec['machineType']}"),
                    Cell(text=f"user {spec['user']}", href=f"/jobs?owner={quote(spec['user'])}")
                    if spec.get("user")
                    else Cell(text=f"namespace {namespace}", href=f"/jobs?whose=all&namespace={namespace}"),
                    Cell(text=_time(spec["from"])),
                    Cell(text=_time(spec["to"])),
                    Cell(text=str(status.get("held") or "")),
                ),
                buttons=(cancel_button,) if rights.may("delete reservation", namespace) else (),
                state=phase,
            )
        )
    return lines


def reservation_of(form: Mapping[str, str]) -> Obj:
    """Read a reservation from a form; times are UTC. Raises UsageError, and Problem 422 for an invalid name."""
    group, _, kind = form.get("machine", "").partition("/")
    return reservations.plan_reservation(
        checked_name(form),
        form.get("namespace", ""),
        group=group,
        kind=kind,
        count=_count(form.get("count") or "1"),
        begins=_moment(form.get("from", ""), "from"),
        ends=_moment(form.get("to", ""), "to"),
        user=form.get("user", ""),
    )


def form_of(pools: Iterable[Pool], namespaces: Iterable[str]) -> Form:
    """The form for a new reservation."""
    kinds = sorted(f"{pool.group}/{name}" for pool in pools for name in pool.types)
    return Form(
        id="new",
        title="New reservation",
        to=HERE,
        button="Reserve",
        inputs=(
            Input(name="name", label="Name", hint="a-z, 0-9 and -", required=True, most=63),
            Input(name="namespace", label="Namespace", options=tuple((name, name) for name in namespaces)),
            Input(name="machine", label="Machine type", options=tuple((kind, kind) for kind in kinds)),
            Input(name="count", label="How many", value="1", kind="number", most=4),
            Input(name="from", label="From (UTC)", kind="datetime-local", required=True),
            Input(name="to", label="To (UTC)", kind="datetime-local", required=True),
            Input(name="user", label="For this user only", hint="empty: for the namespace"),
        ),
    )


def _time(text: str) -> str:
    at = moment(text)
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if at is not None else ""


def _count(text: str) -> int:
    try:
        return parse_integer(text, minimum=1, maximum=9999, name="count")
    except NumberError as error:
        raise UsageError(error.message, code=ErrorCode.INVALID, field="count") from error


def _moment(text: str, field: str) -> datetime:
    try:
        at = datetime.fromisoformat(text[:40])
        return (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)).replace(microsecond=0)
    except (ValueError, OverflowError) as error:
        message = f"invalid time {text[:40]!r}"
        hint = "use a date with a time, such as 2026-12-01T09:00"
        raise UsageError(message, hint=hint, code=ErrorCode.INVALID, field=field) from error


async def _machines(site: Site, request: Request) -> tuple[Shown[Line], list[str]]:
    api = site.context.acting(request.state.user)
    try:
        machines = (await api.list(MACHINES)).items
    except NotFound as error:
        raise NotReady("this cluster has no kind Machine", hint="install Moorage's definitions first") from error
    booked = booked_of(await _optional(api, RESERVATIONS))
    lines = machine_lines(machines, booked, pool_words(await _optional(api, NODE_POOLS)))
    notes = [f"{group_of(machine)}: {message}" for machine in machines for message in complaints(machine)]
    return wanted_lines(MACHINE_LIST, request, lines), notes


async def _optional(api: Api, kind: Any) -> list[Obj]:
    """List the objects of a kind; empty after an API error, such as a missing right."""
    try:
        return (await api.list(kind)).items
    except ApiError:
        return []


async def _calendar(site: Site, request: Request) -> Shown[Line]:
    objs = await reservations.list_reservations(site.context.acting(request.state.user))
    namespaces = (str(obj["metadata"]["namespace"]) for obj in objs)
    rights = await site.allowed(request, ("delete reservation",), namespaces)
    return wanted_lines(CALENDAR, request, reservation_lines(objs, rights))


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    listed = await _calendar(site, request)
    namespaces = await site.places_to_make(request.state.user, RESERVATIONS)
    try:
        pools, _ = await reservations.read_calendar(site.context.acting(request.state.user))
    except ApiError:  # users who may not list the machines cannot choose one
        pools = []
    forms: tuple[Form, ...] = ()
    if namespaces and any(pool.types for pool in pools):
        forms = (form_of(pools, namespaces),)
    return list_page(site, request, CALENDAR, listed, forms=forms, problem=problem, given=given)
