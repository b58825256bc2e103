"""`moor gpus` and `moor top`: who uses the GPUs, now and over time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from moorage.apimachinery.moments import format_duration, moment
from moorage.apimachinery.resources import NODES, PODS
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.usage.gpus import view_gpus
from moorage.errors import Forbidden, NotReady, ServerError, Unauthorized
from moorage.present.gpusanswer import gpu_view_json

GPU_HEADERS = ("NODE", "GPU", "TYPE", "STATE", "OWNER", "RUN", "SINCE", "EXPECTED-UNTIL")
VIEWS = ("gpu", "node", "type", "user")
SUMS = ("total", "used", "reserved", "free", "fragmented", "stranded", "together", "unavailable")
BY = {"user": "USER", "run": "RUN", "type": "TYPE", "gpu": "GPU AND USER"}


@click.command()
@click.option("--free", is_flag=True, help="Only GPUs that are free.")
@click.option("--by", type=click.Choice(list(VIEWS)), default="gpu", show_default=True, help="What a row is.")
@console.output_option
@target_options
def gpus(target: Target, free: bool, by: str, output: str) -> int:
    """Show every GPU of every node: free, reserved, or whose, since when, and until when.

    Of the free ones: FRAGMENTED, when others of the node are taken; STRANDED, when no CPU or memory is left beside
    them; TOGETHER, the most on one node.
    """
    if free and by != "gpu":
        raise click.UsageError("--free goes with --by gpu only")

    async def work(session: Session) -> int:
        body = await _gpu_body(session)
        if by != "gpu":
            _print_summed(body, by, output)
            return 0
        all_gpus = [gpu | {"node": node["name"]} for node in body["nodes"] for gpu in node["gpus"]]
        shown = [gpu for gpu in all_gpus if gpu["state"] == "free"] if free else all_gpus
        now = session.clock.now()
        console.print_listing(
            output,
            headers=GPU_HEADERS,
            rows=lambda: [_gpu_row(gpu, now) for gpu in shown],
            items=shown,
            names=[f"{gpu['node']}/{gpu['index']}" for gpu in shown],
            nothing="no GPU is free" if all_gpus else "no node of this cluster has GPUs",
        )
        if output == "table" and all_gpus:
            console.say(_totals(body["totals"]))
        return 0

    return in_session(target, work)


@click.command()
@click.option("--since", default="24h", show_default=True, help="From so long ago (24h, 7d), or an RFC 3339 time.")
@click.option("--by", type=click.Choice(list(BY)), default="user", show_default=True, help="What to sum up by.")
@console.output_option
@target_options
def top(target: Target, since: str, by: str, output: str) -> int:
    """Show GPU-hours by user, run, GPU type, or single GPU and its users."""

    async def work(session: Session) -> int:
        body = await session.server.get("/api/v1/top", {"since": since, "by": by})
        rows: list[dict[str, Any]] = body["rows"]
        console.print_listing(
            output,
            headers=(BY[by], "GPU-HOURS", "GPUS-NOW", "CPU-HOURS", "MEMORY-GIB-HOURS", "PODS"),
            rows=lambda: [
                [
                    row["name"],
                    _hours(row["gpuHours"]),
                    str(row["runningGpus"]),
                    _hours(row["cpuHours"]),
                    _hours(row["memoryGiBHours"]),
                    str(row["pods"]),
                ]
                for row in rows
            ],
            items=rows,
            names=[row["name"] for row in rows],
            nothing=f"nothing was used since {since}" if "-" in since else f"nothing was used in the last {since}",
        )
        return 0

    return in_session(target, work)


def _totals(totals: Mapping[str, int]) -> str:
    """The sums in one line. A server older than this command does not tell all of them."""
    message = f"{totals['free']} of {totals['total']} GPUs are free"
    if totals["free"] and totals.get("together", totals["free"]) < totals["free"]:
        message += f" (at most {totals['together']} on one node)"
    if totals.get("stranded"):
        message += f", {totals['stranded']} of them without CPU or memory to go with them"
    if totals.get("reserved"):
        message += f", {totals['reserved']} reserved for machines"
    if totals["unavailable"]:
        message += f", {totals['unavailable']} cannot be used now"
    return message


def _print_summed(body: Mapping[str, Any], by: str, output: str) -> None:
    """One row for each node, type or user."""
    items: list[dict[str, Any]] = body["users" if by == "user" else f"{by}s"]
    name = "name" if by == "node" else by

    def cells(row: Mapping[str, Any]) -> list[str]:
        if by == "user":
            types = row.get("types") or {}
            return [row["user"], str(row["gpus"]), ", ".join(f"{many} {kind}" for kind, many in types.items())]
        return [row[name], *([row["type"]] if by == "node" else []), *(str(row.get(key, "")) for key in SUMS)]

    summed = tuple(key.upper() for key in SUMS)
    headers = {"user": ("USER", "GPUS", "TYPES"), "type": ("TYPE", *summed), "node": ("NODE", "TYPE", *summed)}
    console.print_listing(
        output,
        headers=headers[by],
        rows=lambda: [cells(item) for item in items],
        items=[{key: value for key, value in item.items() if key != "gpus" or by == "user"} for item in items],
        names=[item[name] for item in items],
        nothing="nobody holds a GPU" if by == "user" else "no node of this cluster has GPUs",
    )


def _hours(value: float) -> str:
    """Two decimals, and four for what would otherwise read as nothing."""
    return f"{value:.4f}" if 0 < value < 0.1 else f"{value:.2f}"


async def _gpu_body(session: Session) -> dict[str, Any]:
    """What the server says; where there is none, the same from the nodes and pods this user may list."""
    try:
        body: dict[str, Any] = await session.server.get("/api/v1/gpus")
    except (NotReady, ServerError, Unauthorized, Forbidden):
        nodes, pods = await asyncio.gather(session.api.list(NODES), session.api.list(PODS))
        body = gpu_view_json(view_gpus(nodes.items, pods.items), now=session.clock.now())
    return body


def _gpu_row(gpu: dict[str, Any], now: datetime) -> list[str]:
    since, until = moment(gpu.get("since")), moment(gpu.get("expectedUntil"))
    state = f"{gpu['state']} ({gpu['why']})" if gpu.get("why") else str(gpu["state"])
    return [
        gpu["node"],
        str(gpu["index"]),
        gpu["type"],
        state,
        gpu.get("owner") or "",
        gpu.get("run") or gpu.get("pod") or "",
        f"{format_duration(now - since)} ago" if since else "",
        _until(until, now),
    ]


def _until(until: datetime | None, now: datetime) -> str:
    if until is None:
        return ""
    return f"in {format_duration(until - now)}" if until >= now else f"{format_duration(now - until)} overdue"
