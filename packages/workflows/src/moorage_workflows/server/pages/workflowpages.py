"""The web pages of workflows: /workflows and /workflows/NAMESPACE/NAME, each with a part that is refreshed.

Workflows are read as the user of the page: rights on a Workflow are rights on its records. A workflow's
page shows boxes that the address names as opened (`open`), closed (`shut`) and chosen (`at`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from html import escape
from typing import Any, cast
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.runlogs import Cut
from moorage.actions.storedrecords import lines_of
from moorage.api.storedrecords import StoredPod
from moorage.model.argo import WORKFLOWS
from moorage.model.names import is_dns_label
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.namespaces import oldest_for
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.jobpages import LINES, STOP_ASKING, Tail, read_tail
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rights import Allowed
from moorage.server.pages.site import Page, Site, key_in
from moorage.server.problems import Problem, as_problem
from moorage.server.storedruns import RecordsForUser
from moorage_kube.api import Api, PodApi
from moorage_kube.errors import ApiError, BadRequest, MoorageError, NotFound, ServerError, StorageError
from moorage_kube.resources import PODS, Obj
from moorage_workflows.actions import workflows
from moorage_workflows.actions.workflowlogs import main_container
from moorage_workflows.actions.workflows import Choice
from moorage_workflows.actions.workflowwaits import explain_waits
from moorage_workflows.decide.workflows.executororders import LOGS
from moorage_workflows.decide.workflows.folding import Box, fold
from moorage_workflows.decide.workflows.templates import Library, TemplateMissing
from moorage_workflows.decide.workflows.views import WorkflowView, view_workflow, workflow_object
from moorage_workflows.decide.workflows.waiting import waits_of
from moorage_workflows.model.workflow import NodeRecord, WorkflowRecord
from moorage_workflows.server.pages.workflowboard import (
    STATES,
    Panel,
    WaitRow,
    WorkflowModel,
    WorkflowRow,
    has_ended,
    newest_of,
    panel_of,
    timeline_of,
    wait_rows,
    workflow_model,
    workflow_rows,
)
from moorage_workflows.server.pages.workflowdrawing import Links, draw, is_waiting
from moorage_workflows.server.rest.workflows import records_of
from moorage_workflows.server.rest.workflowwaits import holders_for, pods_of
from moorage_workflows.workflows.records import LocalRecords

HERE = "/workflows"
ONE = f"{HERE}/{{namespace}}/{{name}}"
CONTROLS = ("create workflow", "change workflow", "delete workflow")
GLANCE_ROWS = 5  # on the front page
BOXES_MAX = 40  # opened and closed ones that an address may name
PODS_EXPLAINED = 3  # at each look at a page: every one looks at all nodes of the cluster
ATTEMPTS_ASKED = 10  # of the chosen step, for their use of memory
ID_MAX = 400  # characters of the id of a box
EVERY = ((500, 1), (5000, 3), (2**63, 10))  # nodes at most, and seconds after which a page asks again
GONE_LOG = "The pod was deleted, and its log is not stored."
KEPT_LOG = f"The pod was deleted. Its log is the artifact {LOGS} of this step."


class Seen(Struct, frozen=True, kw_only=True):
    """A workflow that was read. `document`: its manifest with the templates at its start."""

    view: WorkflowView
    nodes: tuple[NodeRecord, ...]
    document: Mapping[str, Any]


async def show_list(site: Site, request: Request) -> Response:
    """The web page of workflows."""
    shown = await listed(site, request)
    part = fragment("workflows_live.html", list=shown)
    return site.page(request, "workflows.html", HERE, live_part=part, list=shown)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of workflows that changes."""
    return HTMLResponse(fragment("workflows_live.html", list=await listed(site, request)))


async def show(site: Site, request: Request) -> Response:
    """The web page of one workflow: its graph, the selected step, its times."""
    seen = await see(site, request)
    parts = await _parts(site, request, seen)
    namespace, name, at = seen.view.namespace, seen.view.name, request.query_params.get("at", "")[:ID_MAX]
    page = f"{HERE}/{quote(namespace)}/{quote(name)}"
    return site.page(
        request,
        "workflow.html",
        HERE,
        live=not has_ended(seen.view),
        parts=parts,
        namespace=namespace,
        name=name,
        live_at=_address(f"{page}/live", _fields(request)),
        goes_on=not has_ended(seen.view),
        every=next(seconds for most, seconds in EVERY if len(seen.nodes) <= most),
        log=_log_of(seen, at),
        log_at=_address(f"{page}/log", [("at", at)]),
    )


async def live(site: Site, request: Request) -> Response:
    """The changing parts of a workflow's page, each for its own element."""
    seen = await see(site, request)
    parts = await _parts(site, request, seen)
    html = "".join(f'<div id="live-{name}" hx-swap-oob="innerHTML">{text}</div>' for name, text in parts.items())
    return HTMLResponse(html, STOP_ASKING if has_ended(seen.view) else 200)


async def log(site: Site, request: Request) -> Response:
    """The end of the log of a step's pod, also of a deleted one."""
    seen = await see(site, request)
    at = request.query_params.get("at", "")
    box = _box_of(fold(seen.nodes, reveal=at), at) or _attempt_of(seen.nodes, at)
    node = newest_of(box) if box is not None else None
    if node is None or not node.pod_name:
        return HTMLResponse("", STOP_ASKING if has_ended(seen.view) else 200)
    text, is_over = await _log(site.context, request.state.user, seen.view, node)
    return HTMLResponse(escape(text), STOP_ASKING if is_over else 200)


async def glance(site: Site, request: Request) -> str:
    """The newest workflows that the caller may see, for the front page."""
    try:
        rows = (await listed(site, request)).rows[:GLANCE_ROWS]
    except (Problem, ApiError, MoorageError):
        rows = None
    return fragment("workflows_glance.html", rows=rows)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="GET", path=f"{ONE}/log", handler=log, live=True),
)


# -- the list


async def listed(site: Site, request: Request) -> Shown[WorkflowRow]:
    context, user = site.context, request.state.user
    api = context.acting(user)
    namespace = request.query_params.get("namespace", "")[:ID_MAX]
    choice, records = Choice(), records_of(context, user)

    async def in_namespace(place: str | None) -> list[WorkflowView]:
        return list(await workflows.list_workflows(api, place, choice, records))

    if namespace:
        views = await in_namespace(namespace) if is_dns_label(namespace) else []
    else:
        views = await site.everywhere(user, WORKFLOWS, in_namespace)
    views.sort(key=lambda view: (view.created is not None, view.created, view.name), reverse=True)
    return page_of(
        workflow_rows(views, context.now()),
        wanted_of(request.query_params, more=[("namespace", namespace)]),
        HERE,
        words=lambda row: (f"{row.namespace}/{row.name}", row.owner, row.cron, row.why),
        state=lambda row: row.state,
        states=STATES,
    )


# -- one workflow


async def see(site: Site, request: Request) -> Seen:
    """Read the workflow of the path with its nodes as the user. Raises NotFound, Problem 503, ApiError."""
    context = site.context
    namespace, name = key_in(request)
    api = context.acting(request.state.user)
    live = await _live(api, namespace, name)
    try:
        record = await _record(context, request.state.user, namespace, name, live)
        if record is not None and not _has_own_nodes(live):
            view = view_workflow(workflow_object(record, (), live))
            return Seen(view=view, nodes=await _nodes(context, record.uid), document=record.document)
    except StorageError as error:
        raise Problem(503, "unavailable", error.message, error.hint) from error
    if live is None:
        raise await workflows.missing(api, WORKFLOWS, namespace, name)
    view = view_workflow(live)
    return Seen(view=view, nodes=view.nodes, document=live)


async def _live(api: Api, namespace: str, name: str) -> Obj | None:
    try:
        return await api.get(WORKFLOWS, name, namespace)
    except NotFound:
        return None


async def _record(
    context: Context, user: User, namespace: str, name: str, live: Obj | None
) -> WorkflowRecord | None:
    if live is not None:
        return await context.part(LocalRecords).by_uid(str(live["metadata"].get("uid") or ""))
    since = await oldest_for(context, user, "get", WORKFLOWS, namespace)
    return await context.part(LocalRecords).get(namespace, name, since)


def _has_own_nodes(live: Obj | None) -> bool:
    """Whether Argo's controller writes nodes into the object."""
    status = (live or {}).get("status") or {}
    return any(status.get(key) for key in ("nodes", "compressedNodes", "offloadNodeStatusVersion"))


async def _nodes(context: Context, uid: str) -> tuple[NodeRecord, ...]:
    nodes: list[NodeRecord] = []
    after = ""
    while True:
        page = await context.part(LocalRecords).nodes(uid, after=after)
        nodes += page.nodes
        if not (after := page.after):
            return tuple(nodes)


async def _parts(site: Site, request: Request, seen: Seen) -> dict[str, str]:
    """The changing parts of the page: state, graph, step and times."""
    query = request.query_params
    at = query.get("at", "")[:ID_MAX]
    opened, closed = ([box[:ID_MAX] for box in query.getlist(field)][:BOXES_MAX] for field in ("open", "shut"))
    links = links_of(seen.view.namespace, seen.view.name, opened, closed, at)
    rights = await site.allowed(request, CONTROLS, [seen.view.namespace])
    now = site.context.now()
    why = await _why(site.context, request.state.user, seen)
    kept = await _stored_pods(site.context, request.state.user, seen, at) if at else {}
    # thousands of nodes take a tenth of a second: others are served meanwhile
    return await asyncio.to_thread(_rendered, seen, (opened, closed), at, links, rights, now, why, kept)


async def _why(context: Context, user: User, seen: Seen) -> tuple[WaitRow, ...]:
    """The waits of its steps; for a few of their pods, with the reason."""
    if seen.view.has_ended:
        return ()
    waits = waits_of(replace(seen.view, nodes=seen.nodes), seen.document.get("spec") or {})
    if waits is None:
        return ()
    explained = await explain_waits(
        waits,
        explain_pod=pods_of(context, seen.view.namespace, user),
        find_holders=holders_for(context, user),
        most=PODS_EXPLAINED,
    )
    return wait_rows(explained, seen.view.namespace, context.now())


def _rendered(
    seen: Seen,
    boxes: tuple[Sequence[str], Sequence[str]],
    at: str,
    links: Links,
    rights: Allowed,
    now: datetime,
    why: Sequence[WaitRow],
    kept: Mapping[str, StoredPod],
) -> dict[str, str]:
    """Return the HTML of the parts. `boxes`: the boxes that the address opens and closes."""
    root = fold(seen.nodes, opened=[*boxes[0], *_around(at)], closed=boxes[1], reveal=at)
    model = workflow_model(
        seen.view,
        root,
        draw(root, links, chosen=at) if root.inside else None,
        timeline_of(root, links, now, chosen=at),
        now,
        waits=any(is_waiting(node) for node in seen.nodes),
    )
    panel = _panel(seen, root, links, at, now, kept) if at else None
    return {
        "state": _fragment("workflow_state.html", model, rights, panel, why),
        "graph": _fragment("workflow_graph.html", model, rights, panel),
        "step": _fragment("workflow_step.html", model, rights, panel),
        "times": _fragment("workflow_times.html", model, rights, panel),
    }


def _fragment(
    template: str, model: WorkflowModel, rights: Allowed, panel: Panel | None, why: Sequence[WaitRow] = ()
) -> str:
    return fragment(template, workflow=model, rights=rights, panel=panel, why=why, here=HERE)


def _panel(
    seen: Seen, root: Box, links: Links, at: str, now: datetime, kept: Mapping[str, StoredPod]
) -> Panel | None:
    """The panel of the chosen box; None if it does not exist, such as a box of an earlier run."""
    box = _box_of(root, at) or _attempt_of(seen.nodes, at)
    if box is None:
        return None
    template = _template_of(seen, box.node) if is_waiting(box.node) else None
    return panel_of(box, seen.view, links, now, template=template, kept=kept)


def _box_of(root: Box, at: str) -> Box | None:
    waiting = [root]
    while waiting:
        box = waiting.pop()
        if box.id == at:
            return box
        waiting.extend(box.inside)
    return None


def _attempt_of(nodes: Sequence[NodeRecord], at: str) -> Box | None:
    """Return an attempt of a step as a box, because the graph shows only the step."""
    node = next((node for node in nodes if node.id == at), None)
    if node is None:
        return None
    return Box(
        id=node.id,
        label=node.display_name or node.name,
        phase=node.phase,
        node=node,
        started_at=node.started_at,
        finished_at=node.finished_at,
    )


def _template_of(seen: Seen, node: NodeRecord | None) -> Mapping[str, Any] | None:
    """Return the template of a node from the manifest; None if the manifest does not have it."""
    if node is None:
        return None
    try:
        return Library.of_stored(seen.document).find({"template": node.template}, node.template_ref).template
    except TemplateMissing:
        return None


def links_of(namespace: str, name: str, opened: Sequence[str], closed: Sequence[str], at: str) -> Links:
    """Return addresses that differ from the current page in one box."""
    page = f"{HERE}/{quote(namespace)}/{quote(name)}"

    def to(opened: Sequence[str], closed: Sequence[str], at: str, anchor: str = "") -> str:
        fields = [("open", box) for box in opened[-BOXES_MAX:]] + [("shut", box) for box in closed[-BOXES_MAX:]]
        return _address(page, [*fields, *([("at", at)] if at else [])]) + anchor

    return Links(
        choose=lambda box: to(opened, closed, box, "#step"),
        open=lambda box: to(
            [*(each for each in opened if each != box), box], [each for each in closed if each != box], at
        ),
        close=lambda box: to(
            [each for each in opened if each != box and not each.startswith(f"{box}~")],
            [*(each for each in closed if each != box), box],
            "" if at.startswith(f"{box}~") else at,
        ),
    )


def _around(at: str) -> list[str]:
    """The box that contains a chosen group."""
    return [at.rpartition("~")[0]] if "~" in at else []


def _fields(request: Request) -> list[tuple[str, str]]:
    query = request.query_params
    fields = [(field, box[:ID_MAX]) for field in ("open", "shut") for box in query.getlist(field)[:BOXES_MAX]]
    return [*fields, *([("at", query["at"][:ID_MAX])] if query.get("at") else [])]


def _address(path: str, fields: Sequence[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(fields)}" if fields else path


def _log_of(seen: Seen, at: str) -> str:
    """Return the name of the selected step if it has or may get a pod; else ""."""
    box = _box_of(fold(seen.nodes, reveal=at), at) or _attempt_of(seen.nodes, at) if at else None
    node = newest_of(box) if box is not None else None
    return box.label if box is not None and node is not None and node.type.has_pod else ""


async def _log(context: Context, user: User, view: WorkflowView, node: NodeRecord) -> tuple[str, bool]:
    """Return the end of the log of a step's pod, and whether the log is complete. Raises Problem."""
    is_over, api = node.phase.is_fulfilled, context.acting(user)
    try:
        pod = await api.get(PODS, node.pod_name, view.namespace)
        tail = await read_tail(cast(PodApi, api), node.pod_name, view.namespace, main_container(pod))
    except BadRequest:
        return "", is_over  # its container has not begun
    except (NotFound, ServerError) as error:  # the pod is deleted, or its node is unreachable
        if (kept := await _stored_log(context, user, view, node)) is not None:
            return kept, is_over
        if not isinstance(error, NotFound):
            raise as_problem(error) from error
        is_artifact = node.outputs is not None and any(each.name == LOGS for each in node.outputs.artifacts)
        return (KEPT_LOG if is_artifact else GONE_LOG if is_over else ""), is_over
    except ApiError as error:
        raise as_problem(error) from error
    return tail.text(), is_over


async def _stored_log(context: Context, user: User, view: WorkflowView, node: NodeRecord) -> str | None:
    """The end of the stored log of a step; None if none is stored. Raises Problem."""
    kept = RecordsForUser(context, user)
    try:
        pods = await kept.steps(view.namespace, view.name, view.uid, pod=node.pod_name)
        if not pods:
            return None
        log = await kept.step_log(view.namespace, view.name, view.uid, pods[-1].uid)
    except NotFound:
        return None
    except ApiError as error:
        raise as_problem(error) from error
    lines, is_cut = lines_of(log, now=context.now(), tail=LINES)
    tail = Tail()
    for line in lines:
        tail.add(line + b"\n")
    return (f"{Cut(node.pod_name, log.most_bytes).text}\n" if is_cut else "") + tail.text()


async def _stored_pods(context: Context, user: User, seen: Seen, at: str) -> dict[str, StoredPod]:
    """The records of the pods of the chosen node, or of its attempts, by their names."""
    name = next((node.name for node in seen.nodes if node.id == at), "")
    tries = [node for node in seen.nodes if node.id == at or (name and node.name.startswith(f"{name}("))]
    names = [node.pod_name for node in tries if node.type.has_pod and node.pod_name][-ATTEMPTS_ASKED:]
    kept, view, pods = RecordsForUser(context, user), seen.view, dict[str, StoredPod]()
    with suppress(ApiError):  # the page is of use without it
        for pod in names:
            pods |= {each.name: each for each in await kept.steps(view.namespace, view.name, view.uid, pod=pod)}
    return pods
