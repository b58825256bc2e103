"""`moor gpus` and `moor top`: who uses the GPUs, now and over time."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import click

from moorage.apimachinery.moments import format_duration, moment
from moorage.apimachinery.resources import NODES, PODS
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.gpus import gpu_view_json, view_gpus
from moorage.errors import Forbidden, NotReady, ServerError, Unauthorized

GPU_HEADERS = ("NODE", "GPU", "TYPE", "STATE", "OWNER", "RUN", "SINCE", "EXPECTED-UNTIL")
BY = {"user": "USER", "run": "RUN", "type": "TYPE", "gpu": "GPU AND USER"}


@click.command()
@click.option("--free", is_flag=True, help="Only GPUs that are free.")
@console.output_option
@target_options
def gpus(target: Target, free: bool, output: str) -> int:
    """Show every GPU of every node: free, or whose, since when, and until when."""

    async def work(session: Session) -> int:
        body = await _gpu_body(session)
        found = [gpu | {"node": node["name"]} for node in body["nodes"] for gpu in node["gpus"]]
        shown = [gpu for gpu in found if gpu["state"] == "free"] if free else found
        now = session.clock.now()
        console.print_listing(
            output,
            headers=GPU_HEADERS,
            rows=lambda: [_gpu_row(gpu, now) for gpu in shown],
            items=shown,
            names=[f"{gpu['node']}/{gpu['index']}" for gpu in shown],
            nothing="no GPU is free" if found else "no node of this cluster has GPUs",
        )
        if output == "table" and found:
            totals = body["totals"]
            said = f"{totals['free']} of {totals['total']} GPUs are free"
            if totals["unavailable"]:
                said += f", {totals['unavailable']} cannot be used now"
            console.say(said)
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
