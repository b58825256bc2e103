"""Jobs in queues of Kueue: what they wait for, what people read, and what the next attempt does not take over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.runs.kueue import (
    UNKNOWN_QUEUES,
    Queues,
    QueueWait,
    is_taken_back,
    queue_problem,
    queue_wait,
    without_kueue,
)
from moorage.decide.runs.state import State, view_run
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.labels import is_reserved_label
from moorage.present.explanation import explain_text, short_reason
from moorage.present.explanationanswer import make_explanation
from moorage_kube.resources import Obj
from moorage_kube.testing import builders
from moorage_testing.builders import a_run_job, keyed

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 2 more needed"


def a_job(queue: str | None = "team-a", *, suspend: bool = True, ours: bool = True, **pod: Any) -> Obj:
    notes, labels = keyed(command="python train.py") if ours else {}, {QUEUE_LABEL: queue} if queue else {}
    made: Obj = {"uid": "j1", "created": "2026-11-21T11:00:00Z", "suspend": suspend, "pod": pod}
    return a_run_job(labels=labels, annotations=notes, **made)


def a_workload(uid: str = "j1", *, active: bool = True, **conditions: tuple[str, str]) -> Obj:
    return {
        "metadata": {"name": "job-train-1", "namespace": "lab", "labels": {"kueue.x-k8s.io/job-uid": uid}},
        "spec": {"active": active},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "message": message}
                for kind, (status, message) in conditions.items()
            ]
        },
    }


def with_checks(workload: Obj, **checks: str) -> Obj:
    states = [{"name": name, "state": state, "message": f"{name} says {state}"} for name, state in checks.items()]
    return workload | {"status": workload["status"] | {"admissionChecks": states}}


RESERVED = {"QuotaReserved": ("True", "Quota reserved in ClusterQueue gpus")}


@pytest.mark.parametrize(
    ("workloads", "message"),
    [
        pytest.param([a_workload(QuotaReserved=("False", NO_QUOTA))], NO_QUOTA, id="no quota"),
        pytest.param([a_workload()], "it waits for its turn", id="Kueue has not looked yet"),
        pytest.param(
            [a_workload("other", QuotaReserved=("False", "x"))],
            "Kueue has not created a Workload for it: Kueue may not run, or the queue may not exist",
            id="of another Job",
        ),
        pytest.param(
            [a_workload(QuotaReserved=("False", "Waiting"), Preempted=("True", "Preempted for job b"))],
            "Preempted for job b; Waiting",
            id="preempted",
        ),
        pytest.param(
            [with_checks(a_workload(**RESERVED), capacity="Pending", other="Ready")],
            "it has quota, and waits for admission check capacity (capacity says Pending)",
            id="an admission check",
        ),
        pytest.param([a_workload(**RESERVED)], "it has quota, and waits for its admission", id="not admitted yet"),
        pytest.param(
            [a_workload(**RESERVED, Admitted=("True", "admitted"))],
            "it is admitted, and about to start",
            id="admitted",
        ),
        pytest.param(
            [a_workload(active=False, Evicted=("True", "The workload is deactivated"))],
            "its Workload is deactivated: The workload is deactivated",
            id="deactivated",
        ),
    ],
)
def test_what_a_job_waits_for_in_its_queue(workloads: list[Obj], message: str) -> None:
    assert queue_wait(a_job(), workloads) == QueueWait("team-a", message)


@pytest.mark.parametrize("job", [None, a_job(None), a_job(suspend=False)])
def test_a_job_that_kueue_does_not_hold_waits_in_no_queue(job: Obj | None) -> None:
    assert queue_wait(job, [a_workload()]) is None


def a_pod(*, gates: tuple[str, ...] = ("kueue.x-k8s.io/admission",), **condition: str) -> Obj:
    conditions = [condition] if condition else []
    return builders.a_pod("w", uid="j1", labels={QUEUE_LABEL: "team-a"}, gates=gates, conditions=conditions)


def test_what_a_pod_waits_for_in_its_queue() -> None:
    held = a_pod(gates=("moorage.dev/machine", "kueue.x-k8s.io/admission"))
    assert queue_wait(held, [a_workload(QuotaReserved=("False", NO_QUOTA))]) == QueueWait("team-a", NO_QUOTA)
    assert queue_wait(a_pod(gates=("moorage.dev/machine",)), [a_workload()]) is None


@pytest.mark.parametrize(
    ("status", "reason", "want"),
    [
        ("True", "WorkloadEvictedDueToPreempted", True),
        ("False", "WorkloadEvictedDueToPreempted", False),
        ("True", "WorkloadDeleted", False),
    ],
)
def test_a_pod_whose_quota_kueue_takes_back_is_known(status: str, reason: str, want: bool) -> None:
    assert is_taken_back(a_pod(type="TerminationTarget", status=status, reason=reason)) is want
    assert not is_taken_back(a_pod())


@pytest.mark.parametrize(
    ("queue", "queues", "want"),
    [
        pytest.param("team-a", Queues(frozenset({"team-a"})), None, id="it exists"),
        pytest.param("team-a", UNKNOWN_QUEUES, None, id="queues may not be read: Kueue judges it"),
        pytest.param(
            "team-b", Queues(frozenset({"team-a", "default"})),
            ("queue 'team-b' not found in namespace lab", "available: default, team-a"), id="another one",
        ),
        pytest.param(
            "team-b", Queues(frozenset()),
            ("queue 'team-b' not found in namespace lab", "ask an administrator to create a LocalQueue there"),
            id="the namespace has none",
        ),
        pytest.param(
            "team-a", Queues(None),
            ("queue 'team-a' not found: Kueue is not installed on this cluster", "leave out the queue"),
            id="without Kueue it would run at once",
        ),
        pytest.param(
            "Team A", UNKNOWN_QUEUES,
            ("invalid queue 'Team A'", "use the name of a LocalQueue: kubectl get localqueues -n lab"),
            id="no name",
        ),
    ],
)  # fmt: skip
def test_a_queue_that_does_not_exist_is_refused(queue: str, queues: Queues, want: tuple[str, str] | None) -> None:
    assert queue_problem(queue, queues, "lab") == want


def test_explain_says_what_a_held_pod_waits_for() -> None:
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": {"cpu": "8", "pods": "9"}}}
    explained = explain(a_pod(), nodes=(node,), pods=(), now=NOON, queue=QueueWait("team-a", NO_QUOTA))
    assert f"Kueue: {NO_QUOTA}" in explain_text(explained).splitlines()
    assert short_reason(explained) == "it is in Kueue's queue team-a"


def test_a_run_in_a_queue_waits_and_names_it() -> None:
    run = view_run([a_job()], [])
    assert (run.state, run.reason) == (State.WAITING, "in Kueue's queue team-a")
    assert view_run([a_job(None)], []).reason == ""


def test_explain_says_what_kueue_says() -> None:
    explained = explain(
        pod_of_job(a_job()), nodes=(), pods=(), now=NOON, suspended=True, queue=QueueWait("team-a", NO_QUOTA)
    )
    lines = explain_text(explained).splitlines()
    assert f"Kueue: {NO_QUOTA}" in lines
    assert not any("suspend: true" in line for line in lines)
    answer = make_explanation(explained)
    assert (answer.queue, answer.queue_message, answer.suspended) == ("team-a", NO_QUOTA, True)
    assert NO_QUOTA not in repr(as_public(explained))


def test_the_reason_in_one_line_names_the_queue() -> None:
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": {"cpu": "8", "pods": "9"}}}
    explained = explain(
        pod_of_job(a_job()), nodes=(node,), pods=(), now=NOON, suspended=True, queue=QueueWait("team-a", "")
    )
    assert short_reason(explained) == "it is in Kueue's queue team-a"


def test_a_user_may_name_the_queue_as_a_label() -> None:
    assert not is_reserved_label(QUEUE_LABEL)


def started_by_kueue(*, ours: bool) -> Obj:
    job = a_job(
        ours=ours,
        nodeSelector={"cloud.google.com/gke-spot": "true"},
        schedulingGates=[{"name": "kueue.x-k8s.io/topology"}, {"name": "moorage.dev/machine"}],
    )
    job["spec"]["template"]["metadata"]["labels"]["kueue.x-k8s.io/podset"] = "main"
    return job


@pytest.mark.parametrize(("ours", "selector"), [(True, None), (False, {"cloud.google.com/gke-spot": "true"})])
def test_the_next_attempt_is_free_to_get_another_flavor(ours: bool, selector: dict[str, str] | None) -> None:
    job = started_by_kueue(ours=ours)
    without_kueue(job["spec"], job)
    template = job["spec"]["template"]
    assert template["metadata"]["labels"] == job["metadata"]["labels"]
    assert template["spec"].get("nodeSelector") == selector
    assert template["spec"]["schedulingGates"] == [{"name": "moorage.dev/machine"}]


def test_the_template_of_a_job_in_no_queue_is_left_alone() -> None:
    job = a_job(None, nodeSelector={"a": "b"})
    before = repr(job)
    without_kueue(job["spec"], job)
    assert repr(job) == before
