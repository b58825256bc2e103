"""The web pages /admin/nodes: cordon, uncordon and drain, for users who may change nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.nodes import begin_drain, preview_drain, set_schedulable
from moorage.decide.tools.drain import DrainOptions, DrainPlan
from moorage.decide.usage.gpus import NodeGpus
from moorage.server.pages.adminlists import AdminList, list_page, live_part, require, wanted_lines
from moorage.server.pages.adminview import Button, Cell, Line, Table
from moorage.server.pages.board import type_name
from moorage.server.pages.paging import Shown
from moorage.server.pages.rights import Allowed
from moorage.server.pages.site import Page, Question, Site, Tick, done, problem_to_show, read_form
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError, Problems
from moorage_kube.meta import is_condition_true, key_of
from moorage_kube.resources import Obj

HERE = "/admin/nodes"
ONE = f"{HERE}/{{node}}"
READY, CORDONED, NOT_READY = "Ready", "Cordoned", "Not ready"
TONES = {READY: "good", CORDONED: "wait", NOT_READY: "bad"}
CONTROLS = ("cordon node", "drain node")
LISTED = 20  # pods that the page that asks names
LIST = AdminList(
    here=HERE,
    title="Nodes",
    table=Table(
        caption="Nodes with their state and use",
        headers=("Node", "State", "GPUs", "In use", "Pods"),
        numbers=(2, 3),
    ),
    nothing="This cluster has no node.",
    states=(READY, CORDONED, NOT_READY),
)
OPTIONS = {  # of `moor drain` → the field of the form, and the words of its box
    "--ignore-daemonsets": ("ignore_daemonsets", "Leave pods of DaemonSets where they are"),
    "--delete-emptydir-data": ("delete_emptydir_data", "Evict pods with emptyDir volumes; their data is lost"),
    "--force": ("force", "Evict pods that no controller would create again"),
}


async def show_list(site: Site, request: Request) -> Response:
    """The web page of nodes, for administrators."""
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of nodes that changes."""
    return HTMLResponse(live_part(LIST, await _listed(site, request)))


async def cordon(site: Site, request: Request) -> Response:
    """Cordon a node from its button."""
    return await _switch(site, request, unschedulable=True)


async def uncordon(site: Site, request: Request) -> Response:
    """Uncordon a node from its button."""
    return await _switch(site, request, unschedulable=False)


async def ask_drain(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that lists the pods that a drain would evict, and asks."""
    node = request.path_params["node"]
    plan = await preview_drain(site.context.acting(request.state.user), node, DrainOptions())
    return site.ask(request, HERE, question_of(node, plan), problem)


async def drain(site: Site, request: Request) -> Response:
    """Cordon a node and evict its pods, after the page has asked. The answer does not wait for the pods to
    end.
    """
    form = await read_form(request)
    node = request.path_params["node"]
    site.context.audit(request, "drain", f"node {node}")
    options = DrainOptions(**{field: bool(form.get(field)) for field, _ in OPTIONS.values()})
    try:
        begun = await begin_drain(site.context.acting(request.state.user), node, options)
    except Problems as error:
        refused = Problem(409, "conflict", error.message, "tick the boxes below to allow it")
        return await ask_drain(site, request, refused)
    except (Problem, MoorageError) as error:
        return await ask_drain(site, request, problem_to_show(error))
    if begun.held:
        held = Problem(409, "conflict", "; ".join(begun.held), "drain the node again when its budget allows it")
        return await ask_drain(site, request, held)
    return done(HERE, "draining", node)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="POST", path=f"{ONE}/cordon", handler=cordon),
    Page(method="POST", path=f"{ONE}/uncordon", handler=uncordon),
    Page(method="GET", path=f"{ONE}/drain", handler=ask_drain, controls=("drain node",)),
    Page(method="POST", path=f"{ONE}/drain", handler=drain),
)


def lines_of(
    nodes: Iterable[Obj], gpus: Iterable[NodeGpus], pods: Mapping[str, int], rights: Allowed
) -> list[Line]:
    """A line for each node, by name. `pods`: the number of pods on each node that have not ended."""
    known = {node.name: node for node in gpus}
    lines = []
    for obj in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        name, state, card = obj["metadata"]["name"], _state(obj), known.get(obj["metadata"]["name"])
        is_cordoned = bool((obj.get("spec") or {}).get("unschedulable"))
        buttons = []
        if rights.may("cordon node"):
            verb = "uncordon" if is_cordoned else "cordon"
            to = f"{HERE}/{name}/{verb}"
            buttons.append(Button(id=f"{verb}-{name}", words=verb.capitalize(), to=to, of=name, is_form=True))
        if rights.may("drain node"):
            buttons.append(Button(id=f"drain-{name}", words="Drain", to=f"{HERE}/{name}/drain", of=name))
        lines.append(
            Line(
                head=Cell(text=name, href=f"/nodes/{name}"),
                cells=(
                    Cell(text=state, tone=TONES[state]),
                    Cell(text=f"{card.counts.total} × {type_name(card.type)}" if card is not None else ""),
                    Cell(text=str(card.counts.used) if card is not None else ""),
                    Cell(text=str(pods.get(name, 0))),
                ),
                buttons=tuple(buttons),
                state=state,
            )
        )
    return lines


def question_of(node: str, plan: DrainPlan) -> Question:
    """The content of the page before a drain: the pods to evict, and the options that the others need."""
    options = list(dict.fromkeys(refusal.option for refusal in plan.refused))
    named = [f"Pod {key_of(pod)} is evicted." for pod in plan.evict[:LISTED]]
    named += [
        f"Pod {refusal.pod} is not evicted unless you tick a box: {refusal.why}." for refusal in plan.refused
    ]
    more = len(plan.evict) - LISTED
    return Question(
        title=f"Drain node {node}?",
        lines=(
            "The node is cordoned first. Runs get their grace period for a checkpoint, and start again elsewhere.",
            *named[: 2 * LISTED],
            *((f"And {more} more pods.",) if more > 0 else ()),
            *(("There are no pods to evict.",) if not plan.evict and not plan.refused else ()),
        ),
        button="Drain",
        action=f"{HERE}/{node}/drain",
        back=HERE,
        danger=True,
        ticks=tuple(Tick(name=OPTIONS[option][0], words=OPTIONS[option][1]) for option in options),
    )


def _state(node: Obj) -> str:
    if not is_condition_true(node, "Ready"):
        return NOT_READY
    return CORDONED if (node.get("spec") or {}).get("unschedulable") else READY


async def _listed(site: Site, request: Request) -> Shown[Line]:
    await require(site, request, "see nodes", "the nodes of the cluster")
    cluster = await site.context.ready()
    pods = Counter(
        str(pod["spec"]["nodeName"])
        for pod in cluster.pods.all()
        if (pod.get("spec") or {}).get("nodeName")
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    )
    rights = await site.allowed(request, CONTROLS)
    return wanted_lines(LIST, request, lines_of(cluster.nodes.all(), cluster.gpus().nodes, pods, rights))


async def _list_page(site: Site, request: Request, problem: Problem | None = None) -> Response:
    return list_page(site, request, LIST, await _listed(site, request), problem=problem)


async def _switch(site: Site, request: Request, *, unschedulable: bool) -> Response:
    await read_form(request)
    node, verb = request.path_params["node"], "cordon" if unschedulable else "uncordon"
    site.context.audit(request, verb, f"node {node}")
    try:
        await set_schedulable(site.context.acting(request.state.user), node, unschedulable=unschedulable)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error))
    return done(HERE, f"{verb}ed", node)
