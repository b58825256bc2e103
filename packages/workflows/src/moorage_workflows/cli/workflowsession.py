"""Shared by the commands of `moor workflow`: the server's records, the controller, one workflow as text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from moorage.api.workflows import ArgoInfo, Workflow, WorkflowList
from moorage.cli import console
from moorage.cli.session import Session
from moorage.model.argo import step_path
from moorage_kube.errors import Forbidden, MoorageError, NotFound, NotReady
from moorage_kube.moments import format_duration, moment, rfc3339
from moorage_kube.quantity import format_bytes
from moorage_kube.resources import Obj
from moorage_kube.texts import as_lines
from moorage_workflows.actions.workflows import Choice
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.views import (
    TreeRow,
    WorkflowView,
    is_suspended_node,
    tree_of,
    with_step_names,
)
from moorage_workflows.model.workflow import NodePhase, NodeRecord

HEADERS = ("STEP", "STATUS", "DURATION", "MESSAGE", "TEMPLATE", "POD")
KEPT = frozenset({"STATUS", "DURATION"})  # columns that a narrow terminal shows before others


class ServerRecords:
    """Implements `actions.workflows.Records` with requests to the server. The first failure prints a note."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_noted = False

    async def read(self, namespace: str, name: str, live: Obj | None) -> Obj | None:
        path = f"/api/v1/workflows/{quote(namespace, safe='')}/{quote(name, safe='')}"
        try:
            kept = as_object(await self._session.server.ask(Workflow, "GET", path))
        except (NotFound, NotReady):
            return None
        except Forbidden:
            raise
        except MoorageError as error:
            self._note(error)
            return None
        is_same = live is None or kept["metadata"].get("uid") == live["metadata"].get("uid")
        return kept if is_same else None

    async def listed(self, namespace: str | None, choice: Choice) -> Sequence[Obj]:
        path = "/api/v1/workflows" + (f"/{quote(namespace, safe='')}" if namespace else "")
        params: dict[str, object] = {
            "status": list(choice.phases),
            "prefix": choice.prefix or None,
            "cron": choice.cron or None,
            "since": rfc3339(choice.since) if choice.since else None,
            "selector": choice.selector or None,
            "limit": choice.limit,
        }
        try:
            answer = await self._session.server.ask(WorkflowList, "GET", path, params=params)
        except NotReady:
            return ()  # without a server there are no records
        except MoorageError as error:
            self._note(error)
            return ()
        return [as_object(item) for item in answer.items]

    def _note(self, error: MoorageError) -> None:
        if not self._is_noted:
            console.note(f"the server's records of workflows are missing here: {error.message}")
        self._is_noted = True


def as_object(workflow: Workflow) -> Obj:
    """Return an answer as a Workflow object."""
    return {
        "apiVersion": workflow.api_version,
        "kind": workflow.kind,
        "metadata": workflow.metadata,
        "spec": workflow.spec,
        "status": workflow.status,
    }


async def controller_here(session: Session) -> Controller:
    """The controller that runs workflows: as the server reports, else as this user may read."""
    from moorage_workflows.actions.argocontroller import controller_of

    with contextlib.suppress(MoorageError, ValueError):
        controller = Controller((await session.server.ask(ArgoInfo, "GET", "/api/v1/info")).controller)
        if controller is not Controller.UNKNOWN:
            return controller
    return await controller_of(session.api, session.clock.now())


# -- one workflow as text


def span_text(span: timedelta | None) -> str:
    return "" if span is None else format_duration(span)


def show_text(
    view: WorkflowView, now: datetime, *, whole: bool = False, peaks: Mapping[str, int] | None = None
) -> str:
    """Print a workflow with its steps as a tree. `peaks`: peak memory in bytes by pod name."""
    rows = [
        ("name", view.name),
        ("namespace", view.namespace),
        ("status", _status_text(view)),
        ("message", with_step_names(view.message, view)),
        ("from", _origin(view)),
        ("owner", view.owner),
        ("created", f"{format_duration(now - view.created)} ago" if view.created else ""),
        ("duration", span_text(view.duration(now))),
        ("progress", f"{view.done} of {view.total} pods have ended" if view.total else ""),
    ]
    rows += [("parameter" if not at else "", text) for at, text in enumerate(_pairs(view.arguments))]
    lines = [f"{f'{label}:' if label else '':<11} {text}" for label, text in rows if text]
    if view.unreadable:
        lines += ["", f"steps: not shown: {view.unreadable}"]
    elif view.nodes:
        headers: tuple[str, ...] = HEADERS
        table_rows = node_rows(view, now, whole=whole)
        if peaks:
            headers = (*HEADERS[:-1], "PEAK", HEADERS[-1])
            table_rows = [
                [*row[:-1], format_bytes(peaks[row[-1]]) if row[-1] in peaks else "", row[-1]]
                for row in table_rows
            ]
        table = console.plain_table_for_terminal(headers, table_rows, kept=KEPT)
        lines += ["", *table.split("\n")]
    outputs = list(_pairs(view.outputs.parameters))
    if outputs:
        lines += ["", "outputs:", *(f"  {text}" for text in outputs)]
    return as_lines(lines)


def _pairs(values: Any) -> list[str]:
    return [f"{name}={value}" for name, value in dict(values).items()]


def _status_text(view: WorkflowView) -> str:
    notes = []
    if view.is_gone:
        notes.append("deleted before it ended" if view.is_cut_off else "deleted; this is its record")
    elif not view.has_ended and view.shutdown:
        notes.append("stopping")
    if not view.has_ended and view.is_suspended:
        notes.append("suspended: no step begins")
    return view.phase + (f" ({'; '.join(notes)})" if notes else "")


def _origin(view: WorkflowView) -> str:
    if view.cron:
        return f"cron {view.cron}" + (f", for {view.scheduled}" if view.scheduled else "")
    if view.template.startswith("cluster/"):
        return f"cluster workflow template {view.template.removeprefix('cluster/')}"
    return f"workflow template {view.template}" if view.template else ""


def node_rows(view: WorkflowView, now: datetime, *, whole: bool = False) -> list[list[str]]:
    """Return a table row for each node. Unless `whole`, similar nodes share a row with their number."""
    return [_node_row(row, view, now) for row in tree_of(view.nodes, whole=whole)]


def _node_row(row: TreeRow, view: WorkflowView, now: datetime) -> list[str]:
    node = row.node
    if row.more:
        return [f"{row.guides}… {row.more:,} more", str(node.phase), "", "", node.template, ""]
    name = node.display_name if row.depth else node.name.rpartition(".")[2] or node.name
    status = "Waiting" if is_suspended_node(node) else str(node.phase)
    return [
        f"{row.guides}{name}",
        status,
        span_text(node_duration(node, now)),
        "from its cache" if node.is_memoized and not node.message else with_step_names(node.message, view),
        node.template,
        node.pod_name if node.type.has_pod else "",
    ]


def node_duration(node: NodeRecord, now: datetime) -> timedelta | None:
    started, finished = moment(node.started_at or None), moment(node.finished_at or None)
    if started is None or node.phase in (NodePhase.SKIPPED, NodePhase.OMITTED):
        return None
    return max(timedelta(), (finished or now) - started)


def next_steps(view: WorkflowView) -> list[str]:
    """Useful commands for this workflow in its present state."""
    steps = []
    waiting = [node for node in view.nodes if is_suspended_node(node)]
    if waiting and not view.has_ended:
        steps.append(
            f"{waiting[0].display_name} waits for a person: moor workflow resume {view.name}"
            + (f" --node-field-selector displayName={waiting[0].display_name}" if len(waiting) > 1 else "")
        )
    elif view.is_suspended and not view.has_ended:
        steps.append(f"resume it: moor workflow resume {view.name}")
    pending = [node for node in view.nodes if node.phase is NodePhase.PENDING and node.pod_name]
    if pending and not view.has_ended:
        path = step_path(pending[0].name, view.name)
        steps.append(f"see why {path} waits: moor explain '{view.name}/{path}'")
    failed = [
        node for node in view.nodes if node.type.has_pod and node.phase in (NodePhase.FAILED, NodePhase.ERROR)
    ]
    if failed and view.has_ended:
        path = step_path(failed[-1].name, view.name)
        steps.append(f"see its log: moor workflow logs {view.name} --step '{path}'")
    if view.has_ended and view.phase != "Succeeded" and not view.is_gone:
        steps.append(f"run the failed steps again: moor workflow retry {view.name}")
    return steps
