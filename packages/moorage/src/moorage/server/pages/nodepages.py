"""The web pages of one node and of one GPU type, for all users: free GPUs, and the runs with their
owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.api.errors import ErrorCode
from moorage.decide.runs.state import RunView
from moorage.decide.usage.gpus import gpu_type
from moorage.server.pages.board import node_cards, type_name
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.rows import job_rows
from moorage.server.pages.site import Page, Site
from moorage_kube.errors import NotFound
from moorage_kube.meta import is_condition_true, labels_of
from moorage_kube.quantity import format_amount
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_node, parse_pod, used_on

HERE = "/"
NODE = "/nodes/{node}"
TYPE = "/gpus/{type}"


class Amount(Struct, frozen=True, kw_only=True):
    """The total of a node's resource, and the sum of its pods' requests."""

    name: str
    used: str
    total: str
    percent: int


async def show_node(site: Site, request: Request) -> Response:
    """The web page of one node."""
    name = request.path_params["node"]
    part = await _node(site, name)
    return site.page(request, "place.html", HERE, title=name, what="Node", at=f"/nodes/{name}", live_part=part)


async def live_node(site: Site, request: Request) -> Response:
    """The part of a node's page that changes."""
    return HTMLResponse(await _node(site, request.path_params["node"]))


async def show_type(site: Site, request: Request) -> Response:
    """The web page of one GPU type."""
    kind = request.path_params["type"]
    part = await _type(site, kind)
    return site.page(
        request, "place.html", HERE, title=type_name(kind), what="GPU type", at=f"/gpus/{kind}", live_part=part
    )


async def live_type(site: Site, request: Request) -> Response:
    """The part of a GPU type's page that changes."""
    return HTMLResponse(await _type(site, request.path_params["type"]))


PAGES = (
    Page(method="GET", path=NODE, handler=show_node),
    Page(method="GET", path=f"{NODE}/live", handler=live_node, live=True),
    Page(method="GET", path=TYPE, handler=show_type),
    Page(method="GET", path=f"{TYPE}/live", handler=live_type, live=True),
)


async def _node(site: Site, name: str) -> str:
    """Raises NotFound."""
    context = site.context
    cluster, now = await context.ready(), context.now()
    node = cluster.nodes.get(name)
    if node is None:
        raise NotFound(
            f"node {name!r} not found", hint="list the nodes with GPUs: moor gpus", code=ErrorCode.NOT_FOUND
        )
    pods = [pod for pod in cluster.pods.all() if (pod.get("spec") or {}).get("nodeName") == name]
    shown, more = job_rows((run for run in await site.runs() if _is_on(run, name)), now)
    gpus = next((known for known in cluster.gpus().nodes if known.name == name), None)
    return fragment(
        "node_live.html",
        card=node_cards([gpus], now)[0] if gpus is not None else None,
        type=gpu_type(labels_of(node)) if gpus is not None else "",
        status=_status(node),
        amounts=_amounts(node, pods),
        rows=shown,
        more=more,
    )


async def _type(site: Site, kind: str) -> str:
    """Raises NotFound."""
    context = site.context
    cluster, now = await context.ready(), context.now()
    view = cluster.gpus()
    counts = view.by_type.get(kind)
    if counts is None:
        known = ", ".join(sorted(view.by_type))
        raise NotFound(
            f"GPU type {kind!r} not found", hint=f"use {known}" if known else None, code=ErrorCode.NOT_FOUND
        )
    runs = [run for run in await site.runs() if run.gpu_type == kind and not run.state.ended]
    shown, more = job_rows(runs, now)
    cards = node_cards((node for node in view.nodes if node.type == kind), now)
    return fragment("type_live.html", counts=counts, cards=cards, rows=shown, more=more)


def _is_on(run: RunView, node: str) -> bool:
    return run.node == node and not run.state.ended


def _status(node: Obj) -> str:
    """The status of a node; "" if it is ready and schedulable."""
    if not is_condition_true(node, "Ready"):
        return "not ready"
    return "cordoned" if (node.get("spec") or {}).get("unschedulable") else ""


def _amounts(node: Obj, pods: Iterable[Obj]) -> tuple[Amount, ...]:
    total: Mapping[str, int] = parse_node(node).allocatable
    used = used_on(parse_pod(pod) for pod in pods)
    return tuple(
        Amount(
            name=words,
            used=format_amount(name, used.get(name, 0)),
            total=format_amount(name, total[name]),
            percent=min(100, 100 * used.get(name, 0) // total[name]),
        )
        for name, words in (("cpu", "CPUs"), ("memory", "Memory"), ("pods", "Pods"))
        if total.get(name)
    )
