"""The order of admission's steps: no rule decides by what another changes later."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.order import STEPS, Part, admit, judge
from moorage.decide.admission.review import OPERATOR, Request, make_draft
from moorage.decide.admission.templates import WORKLOADS
from moorage.model.budget import budgets_of
from moorage.model.machine import parse_machine
from moorage.model.names import RESTART_LIMIT_ANNOTATION, SERVICE_MARKS
from moorage.model.policy import Policy
from moorage.model.tenant import TenantDefaults
from moorage_local.apiserver.wire.patch import json_patch

AWAY = ({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},)
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
GUEST = {"moorage.dev/machine-group": "gpu-machines", "moorage.dev/machine-type": "small"}
RUN = {"moorage.dev/run": "train"}
MACHINE = {
    "metadata": {"name": "gpu-machines"},
    "spec": {
        "nodePool": [{"name": "gpu-1", "mode": "ready", "taint": True, "machineType": [{"name": "small"}]}],
        "machineTypes": [
            {
                "name": "small",
                "spec": {"cpu": "4", "memory": "8Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}},
                "available": 2,
            }
        ],
    },
}
TEAM = {"metadata": {"name": "lab"}, "spec": {"namespace": "lab", "cpuNodes": {"selector": {"pool": "lab"}}}}
BUDGET = {
    "metadata": {"name": "month", "resourceVersion": "1", "generation": 1},
    "spec": {"users": ["*"], "gpuHours": "100", "whenOver": "queue"},
    "status": {
        "start": "2026-11-01T00:00:00Z",
        "end": "2026-12-01T00:00:00Z",
        "uses": [{"name": "ada", "used": "120", "percent": 120}],
    },
}
FILLING = Policy(
    {
        "memoryLimit": {"level": "fill", "default": "2Gi"},
        "gpuNodes": {"level": "fill"},
        "retryWithoutLimit": {"level": "fill"},
        "guaranteedQos": {"level": "fill"},
    }
)
CLASSES = (
    {"metadata": {"name": "usual"}, "value": 0, "globalDefault": True},
    {"metadata": {"name": "moorage-default"}, "value": 0, "preemptionPolicy": "Never"},
)


def a_request(kind: str, obj: Any, **facts: Any) -> Request:
    given = {
        "operation": "CREATE",
        "user": "ada",
        "pools": {"gpu-machines": parse_machine(MACHINE)},
        "gpu_machines": frozenset({"gpu-machines", "small"}),
        "away_from_gpus": AWAY,
        "namespace": {"metadata": {"name": "lab", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        "classes": CLASSES,
        "scheduler": "second",
        "now": datetime(2026, 11, 15, tzinfo=UTC),
    }
    return Request(kind=kind, obj=obj, **(given | facts))


def a_job(labels: Any, *, pod_labels: Any = None, **pod: Any) -> Any:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {}}]} | pod
    template = {"metadata": {"labels": {**labels, **(pod_labels or {})}}, "spec": spec}
    return {
        "metadata": {"name": "train", "namespace": "lab", "labels": dict(labels)},
        "spec": {"backoffLimit": 0, "template": template},
    }


def admitted(request: Request) -> Any:
    verdict = admit(request)
    assert verdict.refusals == ()
    return json_patch(request.obj, list(verdict.patches)), verdict.warnings


def test_a_step_that_reads_a_part_comes_after_every_step_that_sets_it():
    for at, step in enumerate(STEPS):
        for later in STEPS[at + 1 :]:
            assert not (step.reads - step.sets) & later.sets, f"{step.name} before {later.name}"


# --- a machine is known before anything is decided by GPUs, memory or nodes


def test_a_run_on_a_machine_is_not_kept_off_gpu_nodes_and_has_a_memory_limit():
    job, warnings = admitted(a_request("Job", a_job(RUN, pod_labels=GUEST)))
    assert "affinity" not in job["spec"]["template"]["spec"]
    assert RESTART_LIMIT_ANNOTATION not in job["metadata"]["annotations"], "it starts again after a drain"
    assert [text for text in warnings if "memory" in text] == []
    made = {"metadata": {"name": "train-x", "namespace": "lab"} | job["spec"]["template"]["metadata"]}
    pod, _ = admitted(a_request("Pod", made | {"spec": job["spec"]["template"]["spec"]}, user=JOB_CONTROLLER))
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "nvidia.com/gpu.present" not in str(terms)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize("facts", [{}, {"policy": FILLING}, {"defaults": TenantDefaults(cpu="1", memory="16Gi")}])
@pytest.mark.parametrize("kind", [kind for kind in WORKLOADS if kind != "MapJob"])
def test_a_template_of_a_machines_guests_is_left_to_the_machine(kind, facts):
    job = a_job(RUN if kind in ("Job", "Pod") else {}, pod_labels=GUEST)
    template = job["spec"]["template"]
    spec = {"template": template, "backoffLimit": 0}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": {"template": template, "backoffLimit": 0}}}
    obj = {"metadata": job["metadata"], "spec": spec}
    if kind == "Pod":
        obj = {"metadata": {"name": "train", "namespace": "lab", "labels": RUN | GUEST}, "spec": template["spec"]}
    made, warnings = admitted(a_request(kind, obj, **facts))
    assert "nvidia.com/gpu.present" not in str(made)
    assert "16Gi" not in str(made)
    assert [text for text in warnings if "memory" in text or "GPU" in text] == []


def test_restarts_are_judged_by_the_memory_that_a_policy_fills_in():
    job = a_job(RUN, containers=[{"name": "main"}, {"name": "side"}]) | {}
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    made, warnings = admitted(a_request("Job", job, policy=FILLING))
    assert RESTART_LIMIT_ANNOTATION not in made["metadata"]["annotations"]
    assert [text for text in warnings if "never restarted" in text] == []


# --- each step sets what it says, and a second pass finds nothing more to do


def part_of(path: tuple[str, ...]) -> Part | None:
    """The part that a changed field belongs to."""
    text, last = "/".join(path), path[-1]
    for key, part in (
        ("nodeName", Part.NODES), ("nodeSelector", Part.NODES), ("affinity", Part.NODES),
        ("tolerations", Part.TOLERATIONS), ("schedulingGates", Part.GATES), ("schedulerName", Part.SCHEDULER),
        ("priorityClassName", Part.PRIORITY), ("priority", Part.PRIORITY), ("preemptionPolicy", Part.PRIORITY),
        ("backoffLimit", Part.RETRIES), ("restartPolicy", Part.RETRIES), ("podFailurePolicy", Part.RETRIES),
        ("podReplacementPolicy", Part.RETRIES), ("activeDeadlineSeconds", Part.RETRIES),
        ("securityContext", Part.SECURITY), ("env", Part.SECURITY), ("suspend", Part.QUEUE),
    ):  # fmt: skip
        if key in path:
            return part
    if "resources" in path:
        return Part.GPUS if last.endswith("/gpu") else Part.AMOUNTS
    if last in ("moorage.dev/owner",):
        return Part.OWNER
    if last in SERVICE_MARKS or "annotations" in path:
        return Part.MARKS
    if "queue-name" in text:
        return Part.QUEUE
    return None


def changed(before: Any, after: Any, path: tuple[str, ...] = ()) -> set[Part | None]:
    if before == after or (not before and not after):
        return set()
    before, after = (dict(enumerate(one)) if isinstance(one, list) else one for one in (before, after))
    if isinstance(before or {}, dict) and isinstance(after or {}, dict) and "affinity" not in path:
        before, after = before or {}, after or {}
        return {
            part
            for key in {*before, *after}
            for part in changed(before.get(key), after.get(key), (*path, str(key)))
        }
    return {part_of(path)}


AMOUNTS = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["1", "2"]), "memory": st.just("1Gi"), "nvidia.com/gpu": st.just("1")}
)
CONTAINERS = st.builds(
    lambda limits, requests: {"name": "main", "resources": {"limits": limits, "requests": requests}},
    AMOUNTS,
    AMOUNTS,
)
LABELS = st.sampled_from([{}, GUEST, RUN, RUN | GUEST, {"moorage.dev/workflow": "w"}])
SPECS = st.fixed_dictionaries(
    {"containers": CONTAINERS.map(lambda one: [one]), "restartPolicy": st.sampled_from(["Never", "OnFailure"])},
    optional={
        "nodeSelector": st.just({"zone": "a"}),
        "tolerations": st.just([{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        "priorityClassName": st.sampled_from(["usual", "moorage-over-budget"]),
    },
)
FACTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["ada", OPERATOR, JOB_CONTROLLER]),
        "tenant": st.sampled_from([None, TEAM]),
        "defaults": st.sampled_from([TenantDefaults(), TenantDefaults(cpu="2", memory="1Gi", time_seconds=60)]),
        "restart_limit_max": st.sampled_from([None, 3]),
        "policy": st.sampled_from([None, FILLING]),
        "budgets": st.sampled_from([(), tuple(budgets_of([BUDGET]))]),
    }
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(["Pod", "Job", "Deployment"]))
    labels, spec = draw(LABELS), draw(SPECS)
    meta = {
        "name": "train",
        "namespace": "lab",
        "labels": dict(labels),
        "annotations": {"moorage.dev/owner": "ada"},
    }
    if kind == "Pod":
        return a_request(kind, {"metadata": meta, "spec": spec}, **draw(FACTS))
    template = {"metadata": {"labels": dict(labels)}, "spec": spec}
    return a_request(kind, {"metadata": meta, "spec": {"backoffLimit": 0, "template": template}}, **draw(FACTS))


@given(requests())
def test_each_step_sets_only_the_parts_that_it_names(request):
    draft = make_draft(request)
    for step in STEPS:
        if request.kind in step.kinds and request.operation in step.operations:
            before = copy.deepcopy(draft.obj)
            step.apply(draft)
            assert changed(before, draft.obj) <= step.sets, step.name


@given(requests())
def test_a_second_pass_changes_nothing_more_and_the_validating_side_agrees(request):
    verdict = admit(request)
    if verdict.refusals:
        assert verdict.patches == ()
        return
    made = json_patch(request.obj, list(verdict.patches))
    facts = {name: getattr(request, name) for name in Request.__slots__ if name != "obj"}
    again = admit(Request(obj=made, **facts))
    assert (again.patches, again.refusals) == ((), ())
    assert judge(Request(obj=made, **facts)).refusals == ()
