"""`moor gpus` and `moor top`: the users of GPUs, now and over time."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import msgspec

from moorage.api.gpus import Gpu, GpuCounts, GpuNode, Gpus, GpuUser
from moorage.api.usage import Top
from moorage.cli import console
from moorage.cli.listing import Listing, watch_option
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage_kube.moments import format_duration

GPU_HEADERS = ("NODE", "GPU", "TYPE", "STATE", "OWNER", "RUN", "SINCE", "EXPECTED-UNTIL")
VIEWS = ("gpu", "node", "type", "user")
SUMS = ("total", "used", "reserved", "free", "fragmented", "stranded", "together", "unavailable")
BY = {
    "user": "USER",
    "namespace": "NAMESPACE",
    "run": "RUN",
    "workflow": "WORKFLOW",
    "type": "TYPE",
    "gpu": "GPU AND USER",
}


@console.command(
    examples={
        "moor gpus": "every GPU, and its user",
        "moor gpus --free": "those that are free",
        "moor gpus --by node": "one row for each node",
        "moor gpus --watch": "keep the list up to date",
    }
)
@click.option("--free", is_flag=True, help="Only GPUs that are free.")
@click.option(
    "--by",
    type=click.Choice(list(VIEWS)),
    default="gpu",
    show_default=True,
    help="Print one row for each of these.",
)
@watch_option
@console.output_option
@target_options
def gpus(target: Target, free: bool, by: str, watch: bool, output: str) -> int:
    """Show every GPU of every node: free, reserved, or its user, since when and until when.

    A free GPU is FRAGMENTED if other GPUs of its node are in use, and STRANDED if its node has no CPU or memory
    left. TOGETHER is the largest number of free GPUs on one node.
    """
    if free and by != "gpu":
        raise click.UsageError("--free can only be used with --by gpu")

    async def read(session: Session) -> tuple[Gpus, Listing]:
        answer = await ask_server(session, Gpus, "/api/v1/gpus", kubectl="kubectl describe nodes")
        if by != "gpu":
            return answer, _summed(answer, by)
        gpus_of_nodes = [(node.name, gpu) for node in answer.nodes for gpu in node.gpus]
        shown = [(node, gpu) for node, gpu in gpus_of_nodes if gpu.state == "free" or not free]
        now = session.clock.now
        return answer, Listing(
            headers=GPU_HEADERS,
            rows=lambda: [_gpu_row(node, gpu, now()) for node, gpu in shown],
            items=[msgspec.to_builtins(gpu) | {"node": node} for node, gpu in shown],
            names=[f"{node}/{gpu.index}" for node, gpu in shown],
            nothing="all GPUs are in use" if gpus_of_nodes else "no node of this cluster has GPUs",
        )

    async def work(session: Session) -> int:
        if watch:
            from moorage.cli.watching import follow

            async def read_again() -> Listing:
                return (await read(session))[1]

            return await follow(session, (), read_again, output=output)
        answer, listing = await read(session)
        listing.show(output)
        if by == "gpu" and output in console.TABLES and any(node.gpus for node in answer.nodes):
            console.say(_totals(answer.totals))
        return 0

    return in_session(target, work, asks_once=not watch)


@console.command(
    examples={
        "moor top": "present use of every pod, on a terminal; in a pipe as --once",
        "moor top --once": "GPU-hours of each user in the last day",
        "moor top --since 7d --by run": "GPU-hours of each run in a week",
        "moor top --by workflow": "of each workflow, all of its steps together",
    }
)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    help="Start of the period: 24h or 7d ago, a day such as 2026-01-31, or an RFC 3339 time.",
)
@click.option(
    "--by", type=click.Choice(list(BY)), default="user", show_default=True, help="Print one sum for each of these."
)
@click.option("--once", is_flag=True, help="Print the sums once, also on a terminal.")
@watch_option
@console.output_option
@target_options
@click.pass_context
def top(context: click.Context, target: Target, since: str, by: str, once: bool, watch: bool, output: str) -> int:
    """Show the present use of every pod, or GPU-hours by user, namespace, run, workflow, GPU type, or single GPU.

    On a terminal without options: GPUs, their utilisation, CPU and memory of each pod, refreshed until q. Sort
    with g, u, c, m and o. With an option, or in a pipe: the sums of a period.
    """
    # options of the sums turn off the live view
    chosen = watch or any(
        context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT for name in ("since", "by")
    )
    live = is_live(once=once, chosen=chosen, output=output)

    # the sums of a period
    async def read(session: Session) -> Listing:
        params = {"since": since, "by": by}
        rows = (await session.server.ask(Top, "GET", "/api/v1/top", params=params)).rows
        return Listing(
            headers=(BY[by], "GPU-HOURS", "GPUS-NOW", "CPU-HOURS", "MEMORY-GIB-HOURS", "PODS"),
            rows=lambda: [
                [
                    row.name,
                    _hours(row.gpu_hours),
                    str(row.running_gpus),
                    _hours(row.cpu_hours),
                    _hours(row.memory_hours),
                    str(row.pods),
                ]
                for row in rows
            ],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.name for row in rows],
            nothing=f"nothing was used since {since}" if "-" in since else f"nothing was used in the last {since}",
        )

    async def work(session: Session) -> int:
        # imported late: the live view needs termios and asyncio
        if live:
            from moorage.cli.topscreen import follow_use

            return await follow_use(session)
        if watch:
            from moorage.cli.watching import follow

            return await follow(session, (), lambda: read(session), output=output)
        (await read(session)).show(output)
        return 0

    return in_session(target, work, asks_once=not (live or watch))


def is_live(*, once: bool, chosen: bool, output: str) -> bool:
    """Whether to show the live view: the output is a terminal, and there are no options for the sums."""
    return not once and not chosen and output == "table" and sys.stdin.isatty() and sys.stdout.isatty()


def _totals(totals: GpuCounts) -> str:
    """The totals in one line."""
    message = f"{totals.free} of {totals.total} GPUs are free"
    if totals.together < totals.free:
        message += f" (at most {totals.together} on one node)"
    if totals.stranded:
        message += f", {totals.stranded} of them without CPU or memory to go with them"
    if totals.reserved:
        message += f", {totals.reserved} reserved for machines"
    if totals.unavailable:
        message += f", {totals.unavailable} cannot be used now"
    return message


def _summed(answer: Gpus, by: str) -> Listing:
    """One row for each node, type or user."""
    headers: tuple[str, ...] = ("USER", "GPUS", "TYPES")
    if by == "user":
        rows = [_user_row(user) for user in answer.users]
        items = [msgspec.to_builtins(user) for user in answer.users]
    elif by == "type":
        headers = ("TYPE", *(name.upper() for name in SUMS))
        rows = [[kind.type, *_sums(kind)] for kind in answer.types]
        items = [msgspec.to_builtins(kind) for kind in answer.types]
    else:
        headers = ("NODE", "TYPE", *(name.upper() for name in SUMS))
        rows = [[node.name, node.type, *_sums(node)] for node in answer.nodes]
        items = [_without_gpus(node) for node in answer.nodes]
    return Listing(
        headers=headers,
        rows=lambda: rows,
        items=items,
        names=[row[0] for row in rows],
        nothing="all GPUs are free" if by == "user" else "no node of this cluster has GPUs",
    )


def _sums(counts: GpuCounts) -> list[str]:
    return [str(getattr(counts, name)) for name in SUMS]


def _user_row(user: GpuUser) -> list[str]:
    return [user.user, str(user.gpus), ", ".join(f"{count} {kind}" for kind, count in user.types.items())]


def _without_gpus(node: GpuNode) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(node)
    del document["gpus"]
    return document


def _hours(value: float) -> str:
    """Two decimals, or four for a small value that would otherwise be shown as 0.00."""
    return f"{value:.4f}" if 0 < value < 0.1 else f"{value:.2f}"


def _gpu_row(node: str, gpu: Gpu, now: datetime) -> list[str]:
    return [
        node,
        str(gpu.index),
        gpu.type,
        f"{gpu.state} ({gpu.why})" if gpu.why else gpu.state,
        gpu.owner,
        gpu.run or gpu.step or gpu.pod,
        f"{format_duration(now - gpu.since)} ago" if gpu.since else "",
        _until(gpu.expected_until, now),
    ]


def _until(until: datetime | None, now: datetime) -> str:
    if until is None:
        return ""
    return f"in {format_duration(until - now)}" if until >= now else f"{format_duration(now - until)} overdue"
