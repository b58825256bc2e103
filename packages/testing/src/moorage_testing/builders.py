"""Builders of the platform's objects for tests: runs, nodes with GPUs, intervals and tenants.

A dict is an object as the API server stores it. An argument that is absent leaves its field out, unless the
docstring names a default. Plain objects of Kubernetes are in `moorage_kube.testing.builders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.decide.runs.state import AttemptView, PodView, RunView, State
from moorage.decide.usage.intervals import Interval
from moorage.model.tenant import TENANTS
from moorage_kube.resources import Obj
from moorage_kube.testing.builders import a_job, a_node, a_pod, an_object, given
from moorage_kube.testing.clock import NOON

Texts = Mapping[str, str]


def keyed(**texts: Any) -> dict[str, str]:
    """Labels or annotations of the platform: `restart_limit=5` is moorage.dev/restart-limit "5"."""
    return {f"moorage.dev/{key.replace('_', '-')}": str(text) for key, text in given(**texts).items()}


def a_run_pod(
    name: str = "train-x",
    *,
    run: str = "train",
    attempt: int | None = None,
    user: str = "",
    expected: object = None,
    phase: str = "Running",
    says: str = "",
    labels: Texts | None = None,
    annotations: Texts | None = None,
    **pod: Any,
) -> Obj:
    """Running pod train-x of the run "train"; `pod` as in `a_pod`.

    `run` "" leaves the label out. `user` (the owner) and `expected` (seconds) are annotations. `says`: message of
    a scheduler that has no node for the pod.
    """
    if says:
        pod["conditions"] = [{"type": "PodScheduled", "status": "False", "message": says}]
    labels = keyed(run=run, attempt=attempt) | dict(labels or {})
    annotations = keyed(owner=user, expected_seconds=expected) | dict(annotations or {})
    return a_pod(name, phase=phase, labels=labels, annotations=annotations, **pod)


def a_run_job(
    run: str = "train",
    attempt: int | None = 1,
    *,
    name: str = "",
    user: str = "",
    labels: Texts | None = None,
    **job: Any,
) -> Obj:
    """Job of an attempt of the run "train"; `job` as in `a_job`.

    The name is that of the run, or train-r2 for attempt 2. `attempt` None leaves the label out. `user` is the
    label of the owner.
    """
    labels = keyed(run=run, attempt=attempt, owner=user) | dict(labels or {})
    return a_job(name or (run if attempt in (None, 1) else f"{run}-r{attempt}"), labels=labels, **job)


def a_run(name: str = "train", *pods: PodView, **fields: Any) -> RunView:
    """Running run of ada in "lab" without GPUs, created at NOON, with the attempts of `pods`, at least one."""
    numbers = sorted({pod.attempt for pod in pods} | {1})
    known: Obj = {
        "namespace": "lab", "name": name, "owner": "ada", "state": State.RUNNING, "gpus": 0, "gpu_type": "",
        "node": "", "created": NOON, "started": None, "ended": None, "deadline": None, "restarts": 0,
        "restart_limit": 20, "retries": 0, "checkpoint": "", "checkpoint_at": None, "checkpoint_checked_at": None,
        "command": "python train.py", "requests": {}, "reason": "", "exit_code": None,
        "attempts": tuple(an_attempt(number, name, *pods) for number in numbers),
    }  # fmt: skip
    return RunView(**known | fields)


def an_attempt(number: int, run: str, *pods: PodView, **fields: Any) -> AttemptView:
    """A running attempt of `run`, with those of `pods` that are of this attempt."""
    known: Obj = {"job": f"{run}-{number}", "state": "Running"} | fields
    return AttemptView(number=number, pods=tuple(pod for pod in pods if pod.attempt == number), **known)


def an_interval(uid: str = "u1", start: datetime = NOON, end: datetime | None = None, **fields: Any) -> Interval:
    """A pod of ada's run "train" in "lab" on one a100 of n1, from `start`. `end` None: it is open.

    It is seen last at its end, at its start while it is open.
    """
    known: Obj = {
        "namespace": "lab", "pod": "train-x", "run": "train", "attempt": 1, "owner": "ada", "node": "n1",
        "gpu_type": "a100", "gpus": 1, "cpu_milli": 1000, "memory_bytes": 2**30, "last_seen_at": end or start,
    }  # fmt: skip
    known |= {"pod_uid": uid, "started_at": start, "ended_at": end}
    return Interval(**known | fields)


def a_gpu_node(name: str = "n1", gpus: int = 2, *, kind: str = "a100", **node: Any) -> Obj:
    """Node n1 with two a100, 16 CPUs and 64Gi; `node` as in `a_node`. `gpus` 0 leaves out `kind`, too."""
    sizes: Obj = {"gpus": gpus, "gpu_type": kind if gpus else "", "cpu": "16", "memory": "64Gi"} | node
    return a_node(name, **sizes)


def a_tenant(name: str = "lab", namespace: str = "", **spec: Any) -> Obj:
    """A Tenant; its namespace has the same name, unless `namespace` is given."""
    return an_object(TENANTS, name, uid=f"uid-{name}", spec={"namespace": namespace or name} | spec)
