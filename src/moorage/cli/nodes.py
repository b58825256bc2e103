"""`moor nodes`: what each node offers, what is taken, and whether it takes pods."""

from __future__ import annotations

import asyncio
from datetime import datetime

import click
import msgspec

from moorage.api.nodes import Node, Nodes
from moorage.apimachinery.moments import format_duration
from moorage.apimachinery.quantity import format_bytes, format_milli
from moorage.apimachinery.resources import NODES, PODS
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.usage.nodes import view_nodes
from moorage.errors import Forbidden, NotFound, NotReady, ServerError, Unauthorized
from moorage.present.nodesanswer import make_nodes

HEADERS = ("NAME", "STATE", "GPUS", "TYPE", "CPU", "MEMORY", "RUNS", "AGE", "REASON")
WIDE = ("PODS", "TAINTS", "VERSION")


@console.command(
    examples={
        "moor nodes": "every node: its GPUs, CPU and memory, used and in all",
        "moor nodes node-1": "one node, with the runs on it",
        "moor nodes -o wide": "with pods, taints and versions",
        "moor cordon node-1": "start no new pods on a node",
    }
)
@click.argument("name", required=False)
@console.output_option
@target_options
def nodes(target: Target, name: str | None, output: str) -> int:
    """List the nodes: state, GPUs, CPU and memory as used/total, and how many runs each has.

    With NAME, show one node with the names of its runs.
    """

    async def work(session: Session) -> int:
        answer = await read_nodes(session)
        shown = [node for node in answer.nodes if name in (None, node.name)]
        if name is not None and not shown:
            names = ", ".join(node.name for node in answer.nodes)
            raise NotFound(f"node {name!r} not found", hint=f"there are: {names}")
        now = session.clock.now()
        if name is not None and output in console.TABLES:
            console.show(node_text(shown[0], now))
            return 0
        wide = output == "wide"
        console.print_listing(
            output,
            headers=(*HEADERS, *WIDE) if wide else HEADERS,
            rows=lambda: [_row(node, now, wide=wide) for node in shown],
            items=[msgspec.to_builtins(node) for node in shown],
            names=[node.name for node in shown],
            nothing="this cluster has no nodes",
        )
        return 0

    return in_session(target, work)


async def read_nodes(session: Session) -> Nodes:
    """What the server says; where there is none, the same from the nodes and pods that this user may list."""
    try:
        return await session.server.ask(Nodes, "GET", "/api/v1/nodes")
    except (NotReady, ServerError, Unauthorized, Forbidden, NotFound):  # NotFound: an older server
        objs, pods = await asyncio.gather(session.api.list(NODES), session.api.list(PODS))
        return make_nodes(view_nodes(objs.items, pods.items), now=session.clock.now())


def node_text(node: Node, now: datetime) -> str:
    """One node, for people."""
    gpus = f"{node.gpus_used} of {node.gpus} {node.gpu_type} in use" if node.gpus else "none"
    fields = [
        ("node", node.name),
        ("state", f"{node.state} ({node.reason})" if node.reason else node.state),
        ("age", format_duration(now - node.created) if node.created else ""),
        ("GPUs", gpus),
        ("CPU", f"{format_milli(node.cpu_used_millicores)} of {format_milli(node.cpu_millicores)} requested"),
        ("memory", f"{format_bytes(node.memory_used_bytes)} of {format_bytes(node.memory_bytes)} requested"),
        ("pods", str(node.pods)),
        ("taints", ", ".join(node.taints)),
        ("version", node.version),
    ]
    width = max(len(label) for label, text in fields if text)
    lines = [f"{label:<{width}}  {text}" for label, text in fields if text]
    lines += ["", "Runs", *(f"  {run}" for run in node.runs or ("none",))]
    return "\n".join(lines)


def _row(node: Node, now: datetime, *, wide: bool) -> list[str]:
    cells = [
        node.name,
        node.state,
        f"{node.gpus_used}/{node.gpus}" if node.gpus else "",
        node.gpu_type,
        f"{format_milli(node.cpu_used_millicores)}/{format_milli(node.cpu_millicores)}",
        f"{format_bytes(node.memory_used_bytes)}/{format_bytes(node.memory_bytes)}",
        str(len(node.runs)),
        format_duration(now - node.created) if node.created else "",
        node.reason,
    ]
    return [*cells, str(node.pods), ", ".join(node.taints), node.version] if wide else cells
