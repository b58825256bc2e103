"""`moor nodes`: the capacity of each node, its use, and whether it takes pods, from the server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import click
import msgspec

from moorage.api.nodes import Node, Nodes
from moorage.cli import console
from moorage.cli.listing import Listing, watch_option
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage_kube.errors import NotFound
from moorage_kube.moments import format_duration
from moorage_kube.quantity import format_bytes, format_milli
from moorage_kube.texts import as_lines

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
@click.argument("name", required=False, shell_complete=complete("nodes"))
@watch_option
@console.output_option
@target_options
def nodes(target: Target, name: str | None, watch: bool, output: str) -> int:
    """List the nodes: state, GPUs, CPU and memory as used/total, and how many runs each has.

    With NAME, show one node with the names of its runs.
    """

    async def work(session: Session) -> int:
        if watch:
            from moorage.cli.watching import follow

            async def read() -> Listing:
                return listing(chosen(await read_nodes(session), name), session.clock.now, wide=output == "wide")

            return await follow(session, (), read, output=output)
        answer = chosen(await read_nodes(session), name)
        if name is not None and output in console.TABLES:
            console.show_text(node_text(answer.nodes[0], session.clock.now()))
            return 0
        listing(answer, session.clock.now, wide=output == "wide").show(output)
        return 0

    return in_session(target, work, asks_once=not watch)


async def read_nodes(session: Session) -> Nodes:
    return await ask_server(session, Nodes, "/api/v1/nodes", kubectl="kubectl describe nodes")


def chosen(answer: Nodes, name: str | None) -> Nodes:
    """Return the answer with only the node of this name. Raises NotFound, with the names of the nodes."""
    nodes = tuple(node for node in answer.nodes if name in (None, node.name))
    if name is not None and not nodes:
        names = ", ".join(node.name for node in answer.nodes)
        raise NotFound(f"node {name!r} not found", hint=f"there are: {names}")
    return msgspec.structs.replace(answer, nodes=nodes)


def listing(answer: Nodes, now: Callable[[], datetime], *, wide: bool) -> Listing:
    """Convert the answer to a listing."""
    return Listing(
        headers=(*HEADERS, *WIDE) if wide else HEADERS,
        rows=lambda: [_row(node, now(), wide=wide) for node in answer.nodes],
        items=[msgspec.to_builtins(node) for node in answer.nodes],
        names=[node.name for node in answer.nodes],
        nothing="this cluster has no nodes",
    )


def node_text(node: Node, now: datetime) -> str:
    """Return one node as text for people."""
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
    return as_lines(lines)


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
