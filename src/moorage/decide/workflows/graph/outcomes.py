"""What a step's pod means for its node: still running, ready as a daemon, or ended.

The order of reasons is Argo's: a deadline or an eviction, the main container's exit code, then the containers that
carry inputs and outputs. https://argo-workflows.readthedocs.io/en/latest/walk-through/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from moorage.decide.workflows.graph.events import PodSeen
from moorage.model.workflow import NodePhase, Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A pod's end. `is_lost`: its node took it away, whatever it did. `is_stuck`: it must be deleted."""

    phase: NodePhase
    message: str = ""
    outputs: Outputs | None = None
    host: str = ""
    finished_at: str = ""
    is_lost: bool = False
    is_stuck: bool = False
    resources_seconds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """A daemon that answers: what comes after it may start."""

    host: str
    address: str


def outcome_of(pod: PodSeen, *, cut: str = "", is_daemon: bool = False) -> Ended | Ready | None:
    """None: it goes on. `cut`: why its end was asked for."""
    if not pod.is_ended:
        if is_daemon and pod.is_ready:
            return Ready(pod.host, pod.address)
        return None
    outputs = pod.report.outputs if pod.report is not None else Outputs()
    if pod.exit_code is not None:
        outputs = msgspec.structs.replace(outputs, exit_code=str(pod.exit_code))
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

    if cut:
        return ended(NodePhase.FAILED, cut)
    if pod.disrupted:
        return ended(NodePhase.FAILED, pod.disrupted, is_lost=True)
    if pod.failure:
        return ended(NodePhase.FAILED, pod.failure)
    if pod.is_deleted and pod.exit_code != 0:
        return ended(NodePhase.ERROR, pod.broken or "pod deleted")
    if pod.exit_code is None:
        return ended(NodePhase.ERROR, pod.broken or "the pod ended, and its main container never ran")
    if pod.exit_code != 0:
        words = pod.reason or "Error"
        detail = f": {pod.message}" if pod.message else ""
        return ended(NodePhase.FAILED, f"{words} (exit code {pod.exit_code}){detail}")
    if pod.report is not None and pod.report.error:
        return ended(NodePhase.ERROR, pod.report.error)
    if pod.broken:
        return ended(NodePhase.ERROR, pod.broken)
    return ended(NodePhase.SUCCEEDED)
