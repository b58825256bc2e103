"""`moor jobs`: list the runs of a namespace."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from moorage.api.jobs import SORTS, STATES, Job, JobDetails
from moorage.cli import console
from moorage.cli.listing import Listing, watch_option
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_server, in_session, target_options
from moorage.model.names import RUN_LABEL
from moorage.present.idlemarks import mark_of_run
from moorage_kube.moments import format_duration

HEADERS = (
    "NAME",
    "OWNER",
    "STATE",
    "GPUS",
    "TYPE",
    "NODE",
    "AGE",
    "RAN",
    "TIME-LEFT",
    "RESTARTS",
    "RETRIES",
    "CHECKPOINT",
    "COMMAND",
)
CHOICES = ("mine", "owner", "since", "active", "state", "selector")  # options that leave runs out


@console.command(
    examples={
        "moor jobs --mine --active --watch": "your runs that have not ended, refreshed",
        "moor jobs --all-namespaces --state running --sort gpus": "the largest users of the cluster",
        "moor jobs --since 24h --state failed": "failed runs of the last day",
        "moor jobs -l 'project=vision,stage!=test'": "the runs with, and without, a label",
    }
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Runs of all namespaces.")
@click.option("--mine", is_flag=True, help="Only your runs.")
@click.option("--owner", "--user", default=None, help="Only runs of this user.")
@click.option("--active", is_flag=True, help="Only runs that have not ended.")
@click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    default=None,
    help="Only runs in this state.",
)
@click.option(
    "--gpu-type",
    default=None,
    help="Only runs that have, or ask for, GPUs of this type.",
    shell_complete=complete("gpu_types"),
)
@click.option(
    "-l",
    "--selector",
    default=None,
    metavar="SELECTOR",
    help="Only runs whose labels match, such as project=vision,stage!=test.",
)
@click.option(
    "--since",
    default=None,
    help="Only runs created since: 2h or 7d ago, a day such as 2026-01-31, or an RFC 3339 time.",
)
@click.option("--sort", type=click.Choice(SORTS), default="age", show_default=True, help="Order of the runs.")
@click.option("--limit", type=click.IntRange(1), default=None, help="At most this number of runs.")
@watch_option
@console.output_option
@target_options
def jobs(
    target: Target,
    all_namespaces: bool,
    watch: bool,
    output: str,
    gpu_type: str | None,
    **choice: Any,
) -> int:
    """List the runs of a namespace, newest first."""

    async def read(session: Session) -> Listing:
        where, at = "in any namespace", "--all-namespaces"
        params = choice | {"gpuType": gpu_type, "attempts": True}
        if not all_namespaces:
            where, at = f"in namespace {session.namespace}", f"-n {session.namespace}"
            params["namespace"] = session.namespace
        kubectl = f"kubectl get jobs {at} -l {RUN_LABEL}"
        runs = (await ask_server(session, JobDetails, "/api/v1/jobs", params, kubectl=kubectl)).jobs
        now = session.clock.now
        return Listing(
            headers=(("NAMESPACE", *HEADERS) if all_namespaces else HEADERS),
            rows=lambda: [([run.namespace] if all_namespaces else []) + row(run, now()) for run in runs],
            items=[msgspec.to_builtins(run) for run in runs],
            names=[run.name for run in runs],
            nothing=f"no run {where} matches"
            if gpu_type or any(choice[name] for name in CHOICES)
            else f"no runs {where}; start one: moor run -- python train.py",
            keys=[f"{run.namespace}/{run.name}" for run in runs],
        )

    async def work(session: Session) -> int:
        if watch:
            from moorage.cli.watching import follow

            return await follow(session, (), lambda: read(session), output=output)
        (await read(session)).show(output)
        return 0

    return in_session(target, work, asks_once=not watch)


def row(run: Job, now: datetime) -> list[str]:
    """The cells of a run, in the order of HEADERS."""
    left = ""
    if run.deadline is not None and not run.has_ended:
        left = format_duration(run.deadline - now)
    checkpoint = ""
    if run.checkpoint:
        checkpoint = f"{format_duration(now - run.checkpoint_at)} ago" if run.checkpoint_at else "none yet"
    return [
        run.name,
        run.owner,
        f"{run.state} ({mark})" if (mark := mark_of_run(run, now)) else run.state,
        str(run.gpus),
        run.gpu_type,
        run.node,
        format_duration(now - run.created) if run.created else "",
        format_duration(timedelta(seconds=run.ran_seconds)) if run.ran_seconds is not None else "",
        left,
        str(run.restarts),
        str(run.retries),
        checkpoint,
        run.command,
    ]
