"""`moor workflow list`."""

from __future__ import annotations

import click

from moorage.cli import console
from moorage.cli.listing import Listing, watch_option
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.watching import Source, follow
from moorage.decide.timetext import moment_before
from moorage.model.argo import WORKFLOWS
from moorage_kube.errors import UsageError
from moorage_kube.moments import format_duration, rfc3339
from moorage_workflows.actions.workflows import Choice, list_workflows
from moorage_workflows.cli.workflowsession import ServerRecords, span_text
from moorage_workflows.decide.workflows.views import ENDED, PENDING, PHASES, RUNNING, WorkflowView

HEADERS = ("NAME", "STATUS", "AGE", "DURATION", "PROGRESS", "CRON", "OWNER", "MESSAGE")
SHOWN = 100  # workflows, unless more are asked for


@console.command(
    "list",
    examples={
        "moor workflow list --running --watch": "active workflows, updated continuously",
        "moor workflow list --since 24h --status Failed": "failures of the last day",
        "moor workflow list --cron nightly --limit 10": "the last runs of a schedule",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Workflows of all namespaces.")
@click.option("--running", is_flag=True, help="Only workflows that have not ended.")
@click.option("--completed", is_flag=True, help="Only workflows that have ended.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(PHASES, case_sensitive=False),
    help="Only workflows in this phase. Repeatable.",
)
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--cron", default="", metavar="NAME", help="Only workflows of this CronWorkflow.")
@click.option(
    "--since",
    default=None,
    help="Only workflows created since: 2h or 7d ago, a day such as 2026-01-31, or an RFC 3339 time.",
)
@click.option("-l", "--selector", default="", metavar="SELECTOR", help="Only workflows whose labels match.")
@click.option(
    "--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="At most this number of workflows."
)
@watch_option
@console.output_option
@target_options
def list_(
    target: Target,
    all_namespaces: bool,
    running: bool,
    completed: bool,
    status: tuple[str, ...],
    prefix: str,
    cron: str,
    since: str | None,
    selector: str,
    limit: int,
    watch: bool,
    output: str,
) -> int:
    """List workflows, newest first, also deleted ones that the server has records of."""
    # --running and --completed are sets of phases, which --status narrows
    phases = set(status)
    if running and completed:
        raise UsageError("--running and --completed exclude each other: give only one")
    if running or completed:
        wanted = {PENDING, RUNNING} if running else set(ENDED)
        if phases and not phases & wanted:
            raise UsageError(f"--{'running' if running else 'completed'} excludes --status {', '.join(status)}")
        phases = phases & wanted or wanted

    async def read(session: Session) -> Listing:
        namespace = None if all_namespaces else session.namespace
        # the server filters by this choice
        choice = Choice(
            phases=tuple(sorted(phases)),
            prefix=prefix,
            cron=cron,
            since=None if since is None else moment_before(since, session.clock.now(), "since"),
            selector=selector,
            limit=limit,
        )
        views = await list_workflows(session.api, namespace, choice, ServerRecords(session))
        # an empty list says whether a filter is the reason
        is_chosen = bool(phases or prefix or cron or since or selector)
        where = "in any namespace" if all_namespaces else f"in namespace {session.namespace}"
        now = session.clock.now

        def row(view: WorkflowView) -> list[str]:
            age = format_duration(now() - view.created) if view.created else ""
            cells = [view.name, _phase(view), age, span_text(view.duration(now())), view.progress]
            return [*([view.namespace] if all_namespaces else []), *cells, view.cron, view.owner, view.message]

        return Listing(
            headers=("NAMESPACE", *HEADERS) if all_namespaces else HEADERS,
            rows=lambda: [row(view) for view in views],
            items=[item_of(view) for view in views],
            names=[view.name for view in views],
            nothing=f"no workflow {where} matches"
            if is_chosen
            else f"no workflows {where}; submit one: moor workflow submit FILE",
            keys=[f"{view.namespace}/{view.uid or view.name}" for view in views],
        )

    # with --watch the same reader runs again after each change
    async def work(session: Session) -> int:
        if watch:
            sources = [Source(WORKFLOWS, None if all_namespaces else session.namespace)]
            return await follow(session, sources, lambda: read(session), output=output)
        (await read(session)).show(output)
        return 0

    return in_session(target, work)


def _phase(view: WorkflowView) -> str:
    if view.is_cut_off:
        return "Deleted"
    return f"{view.phase} (deleted)" if view.is_gone else view.phase


def item_of(view: WorkflowView) -> dict[str, object]:
    """Return a workflow of the list for JSON and YAML output."""
    times = {"created": view.created, "started": view.started, "finished": view.finished}
    return {
        "namespace": view.namespace,
        "name": view.name,
        "uid": view.uid,
        "phase": view.phase,
        "message": view.message,
        "progress": view.progress,
        "owner": view.owner,
        "cron": view.cron,
        "labels": dict(view.labels),
        **{key: rfc3339(at) if at else None for key, at in times.items()},
        "gone": view.is_gone,
        "goneAt": view.gone_at or None,
    }
