"""The state of a node by its step's pod: still running, ready as a daemon, or ended.

The order of reasons is Argo's: a deadline or an eviction, the main container's exit code, then the
containers that carry inputs and outputs. https://argo-workflows.readthedocs.io/en/latest/walk-through/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.interruptions import LONG_AGO, STOPPED, is_interruption
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.events import ContainerSeen, PodSeen
from moorage_workflows.model.workflow import NodePhase, NodeRecord, Outputs

CLOCKS_DIFFER = timedelta(seconds=5)  # those of nodes and ours; the times of pods are rounded to seconds, too
NOT_RUN = 64  # exit code of a container of a set whose command does not exist, or waited for one that failed


class Ended(Struct, frozen=True, kw_only=True):
    """A pod's end. `is_lost`: its node took it away, with any result. `is_stuck`: it must be deleted."""

    phase: NodePhase
    message: str = ""
    outputs: Outputs | None = None
    host: str = ""
    finished_at: str = ""
    is_lost: bool = False
    is_stuck: bool = False
    resources_seconds: Mapping[str, int] = field(default_factory=dict)


class Ready(Struct, frozen=True):
    """A daemon that answers: nodes after it may start."""

    host: str
    address: str


def outcome_of(
    pod: PodSeen,
    *,
    cut: str = "",
    is_daemon: bool = False,
    is_request: bool = False,
    members: Sequence[str] = (),
) -> Ended | Ready | None:
    """None while it runs. `cut`: why its end was asked for. `members`: the containers of a set, which all
    count.

    `is_request`: of an HTTP template. The report of its pod counts, even if the pod fails afterwards: a
    request that was answered is not sent again. It has no exit code.
    """
    # a pod without an end: only a daemon's readiness counts
    if not pod.is_ended:
        if is_daemon and pod.is_ready:
            return Ready(pod.host, pod.address)
        return None
    # the outputs: those in the report, and the exit code
    outputs = pod.report.outputs if pod.report is not None else Outputs()
    # the exit code in the script's report counts more than a later one of a node that lost the process
    if outputs.exit_code == "0":
        pod = replace(pod, exit_code=0, failure="", broken="", is_watched=True)
    if pod.exit_code is not None and not is_request:
        outputs = msgspec.structs.replace(outputs, exit_code=str(pod.exit_code))
    if members:
        pod = _as_a_whole(pod, members)
    kept = None if outputs == Outputs() else outputs

    def ended(phase: NodePhase, message: str = "", *, is_lost: bool = False) -> Ended:
        return Ended(
            phase=phase,
            message=message,
            outputs=kept,
            host=pod.host,
            finished_at=pod.finished_at,
            is_lost=is_lost,
            is_stuck=pod.is_stuck,
            resources_seconds=pod.resources_seconds,
        )

    # a requested end decides before the pod's own result
    if cut:
        return ended(NodePhase.FAILED, cut)
    if is_request and pod.report is not None:
        return ended(NodePhase.FAILED if pod.report.error else NodePhase.SUCCEEDED, pod.report.error)
    # a lost pod is started again: its node took it away before it could finish
    is_interrupted = is_interruption(
        exit_code=pod.exit_code,
        ended=moment(pod.finished_at) if pod.finished_at else None,
        stopped_at=pod.stopped_at or (LONG_AGO if pod.disrupted else None),
        is_watched=pod.is_watched,
    )
    is_unsaved = bool(pod.broken) and pod.report is None  # the container that saves outputs was asked to stop too
    if pod.disrupted and (is_interrupted or is_unsaved):
        return ended(NodePhase.FAILED, pod.disrupted, is_lost=True)
    # reasons outside of the main container
    if pod.failure:
        return ended(NodePhase.FAILED, pod.failure)
    if pod.is_deleted and (pod.exit_code != 0 or is_interrupted):
        return ended(NodePhase.ERROR, pod.broken or "pod deleted")
    # the main container's exit code
    if pod.exit_code == STOPPED:
        return ended(
            NodePhase.FAILED,
            "interrupted: it was asked to stop and did not report that it had finished",
            is_lost=True,
        )
    if pod.exit_code is None:
        return ended(NodePhase.ERROR, pod.broken or "the pod ended, and its main container never ran")
    if pod.exit_code != 0:
        words = pod.reason or "Error"
        detail = f": {pod.message}" if pod.message else ""
        return ended(NodePhase.FAILED, f"{words} (exit code {pod.exit_code}){detail}")
    # the step succeeded: its outputs must be saved
    if pod.report is not None and pod.report.error:
        return ended(NodePhase.ERROR, pod.report.error)
    if pod.broken:
        return ended(NodePhase.ERROR, pod.broken)
    return ended(NodePhase.SUCCEEDED)


def _as_a_whole(pod: PodSeen, members: Sequence[str]) -> PodSeen:
    """Return the pod of a container set as if it had one container with the result of the set.

    The result is that of the first failed container. Containers that did not run because another failed count
    last.
    """
    by_name = {container.name: container for container in pod.containers}
    ends = [by_name.get(name) or ContainerSeen(name=name) for name in members]
    failed = sorted((end for end in ends if end.exit_code), key=lambda end: end.exit_code == NOT_RUN)
    if failed:
        worst = failed[0]
        name_first = f"{worst.name}: {worst.reason or 'Error'}"
        pod = replace(pod, exit_code=worst.exit_code, reason=name_first, message=worst.message)
    else:
        is_whole = all(end.exit_code == 0 for end in ends)
        pod = replace(pod, exit_code=0 if is_whole else None)
    return replace(pod, finished_at=max((end.finished_at for end in ends), default=""))


def ended_by_itself(pod: PodSeen, late_at: datetime | None) -> bool:
    """Whether a pod that must end by now ended for another reason. As in Argo, that reason then counts.

    A deleted pod counts only if it had ended before `late_at` (None: the time is unknown). A failure shortly
    before `late_at` does not count: the clocks may differ.
    """
    finished = moment(pod.finished_at) if pod.finished_at else None
    slack = timedelta() if pod.exit_code == 0 else CLOCKS_DIFFER
    was_in_time = late_at is not None and finished is not None and finished + slack <= late_at
    return pod.is_ended and (was_in_time or not pod.is_deleted)


def members_of(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the containers of a container set; empty for other templates."""
    containers = (template.get("containerSet") or {}).get("containers") or ()
    return tuple(str(container["name"]) for container in containers)


def members_seen(
    nodes: Sequence[NodeRecord], pod: PodSeen | None, ended: Ended | None, *, now: str
) -> tuple[NodeRecord, ...]:
    """The nodes of a set's containers, by the state of their pod. `ended`: None while the pod runs.

    They are final when the pod's own node is: until then the pod may be lost and start again.
    """
    by_name = {container.name: container for container in pod.containers} if pod is not None else {}
    return tuple(_member(node, by_name.get(node.display_name), ended, now) for node in nodes)


def _member(node: NodeRecord, seen: ContainerSeen | None, ended: Ended | None, now: str) -> NodeRecord:
    seen = seen or ContainerSeen(name=node.display_name)
    started = seen.started_at or node.started_at
    if ended is None:
        has_begun = seen.is_running or seen.exit_code is not None
        phase = NodePhase.RUNNING if has_begun else NodePhase.PENDING
        return msgspec.structs.replace(node, phase=phase, started_at=started)
    outputs, message = None, ""
    match seen.exit_code:
        case None if ended.phase is NodePhase.SUCCEEDED:  # its state was not seen, and the pod's was
            phase = NodePhase.SUCCEEDED
        case None:
            phase, message = NodePhase.FAILED, ended.message or "the pod ended before this container did"
        case 0:
            phase = NodePhase.SUCCEEDED
        case code:
            phase = NodePhase.ERROR if code == NOT_RUN else NodePhase.FAILED
            detail = f": {seen.message}" if seen.message else ""
            message = f"{seen.reason or 'Error'} (exit code {code}){detail}"
    if seen.exit_code is not None:
        outputs = Outputs(exit_code=str(seen.exit_code))
    return msgspec.structs.replace(
        node,
        phase=phase,
        message=message,
        outputs=outputs,
        host=ended.host or node.host,
        started_at=started,
        finished_at=seen.finished_at or ended.finished_at or now,
    )
