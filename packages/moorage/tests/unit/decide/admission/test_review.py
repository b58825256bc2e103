"""What admission makes of an object is valid: the API server sets defaults before it asks, and checks after."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.order import admit
from moorage.decide.admission.review import Request
from moorage.model.names import RUN_LABEL
from moorage.model.policy import Policy, gpu_cluster_policy, policy_for
from moorage.model.tenant import TenantDefaults
from moorage_local.apiserver.kinds.registry import RULES
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.wire.patch import json_patch

AWAY = ({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},)
KINDS = {
    "Pod": ("", "pods"),
    "Job": ("batch", "jobs"),
    "CronJob": ("batch", "cronjobs"),
    "Deployment": ("apps", "deployments"),
}


def the_ready_made_policy() -> Policy:
    policy = policy_for({"moorage.dev/guard": "enabled"}, [gpu_cluster_policy()])
    assert policy is not None
    return policy


def faults(kind: str, obj: Any) -> list[str]:
    """What the API server says of an object that it has completed."""
    rules, errors = RULES[KINDS[kind]], FieldErrors()
    rules.default(obj)
    stored = copy.deepcopy(obj)
    rules.prepare_create(stored)
    rules.validate(stored, errors)
    rules.validate_create(stored, errors)
    return [f"{cause.path}: {cause.message}" for cause in errors.causes]


def admitted(kind: str, obj: Any, **more: Any) -> Any:
    """The object after admission; None where it is refused."""
    asked = Request(kind=kind, operation="CREATE", user="ada", obj=obj, policy=the_ready_made_policy(), **more)
    verdict = admit(asked)
    return None if verdict.refusals else json_patch(obj, list(verdict.patches))


QUANTITIES = st.sampled_from(["500m", "1", "1Gi", "2Gi", "5Gi"])
TABLES = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), QUANTITIES, max_size=3)


def a_container(name: str, requests: Any, limits: Any, restart: str | None) -> Any:
    container = {"name": name, "image": "example.test/x:1", "command": ["true"]}
    container["resources"] = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    return container | ({"restartPolicy": restart} if restart else {})


MAIN = st.builds(a_container, st.just("main"), TABLES, TABLES, st.none())
INIT = st.builds(a_container, st.just("first"), TABLES, TABLES, st.sampled_from([None, "Always"]))
EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "nodeName": st.just("node-1"),
        "nodeSelector": st.just({"zone": "a"}),
        "schedulingGates": st.just([{"name": "example.test/wait"}]),
        "activeDeadlineSeconds": st.just(60),
        "resources": st.just({"limits": {"memory": "8Gi"}}),
    },
)
POD_SPECS = st.builds(
    lambda main, init, restart, more: (
        more | {"containers": [main], "restartPolicy": restart} | ({"initContainers": [init]} if init else {})
    ),
    MAIN,
    st.none() | INIT,
    st.sampled_from(["Never", "OnFailure"]),
    EXTRAS,
)
FAILS = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
JOB_SPECS = st.fixed_dictionaries(
    {"template": st.builds(lambda spec: {"metadata": {}, "spec": spec}, POD_SPECS)},
    optional={
        "backoffLimit": st.sampled_from([0, 3]),
        "podReplacementPolicy": st.sampled_from(["Failed", "TerminatingOrFailed"]),
        "podFailurePolicy": st.just(FAILS),
        "completionMode": st.just("Indexed"),
        "completions": st.just(2),
        "backoffLimitPerIndex": st.just(1),
        "activeDeadlineSeconds": st.just(600),
    },
)


def a_meta(labels: Any) -> Any:
    return {"name": "x", "namespace": "lab", "uid": "u1", "labels": labels, "annotations": {}}


LABELS = st.sampled_from([{}, {"app": "x"}, {RUN_LABEL: "x"}])
OBJECTS = st.one_of(
    st.builds(lambda spec, labels: ("Pod", {"metadata": a_meta(labels), "spec": spec}), POD_SPECS, LABELS),
    st.builds(lambda spec, labels: ("Job", {"metadata": a_meta(labels), "spec": spec}), JOB_SPECS, LABELS),
    st.builds(
        lambda spec: (
            "CronJob",
            {"metadata": a_meta({}), "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}},
        ),
        JOB_SPECS,
    ),
    st.builds(
        lambda spec: (
            "Deployment",
            {
                "metadata": a_meta({}),
                "spec": {
                    "selector": {"matchLabels": {"app": "x"}},
                    "template": {
                        "metadata": {"labels": {"app": "x"}},
                        "spec": {**spec, "restartPolicy": "Always"},
                    },
                },
            },
        ),
        POD_SPECS,
    ),
)


@given(
    OBJECTS,
    st.sampled_from([(), AWAY]),
    st.sampled_from([TenantDefaults(), TenantDefaults(memory="4Gi", cpu="2", time_seconds=120)]),
)
def test_what_was_valid_before_admission_is_valid_after_it(made, away, defaults):
    kind, obj = made
    obj = copy.deepcopy(obj)
    if faults(kind, obj):  # completes it, too
        return
    changed = admitted(kind, obj, away_from_gpus=away, defaults=defaults)
    assert changed is None or faults(kind, changed) == []


@pytest.mark.parametrize("given", [{}, {"podReplacementPolicy": "TerminatingOrFailed"}], ids=["default", "typed"])
def test_a_job_that_learns_to_fail_replaces_pods_only_when_they_have_failed(given):
    container = {"name": "c", "image": "example.test/x:1", "command": ["true"]}
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": a_meta({}), "spec": {"template": template} | given}
    assert faults("Job", job) == []
    assert job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"  # as the API server leaves it
    made = admitted("Job", job)
    assert made["spec"]["podReplacementPolicy"] == "Failed"
    assert faults("Job", made) == []
