"""What pods of ours get in a namespace of Pod Security `restricted`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.newpods import advise_users
from moorage.decide.admission.restricted import advice, is_ours, is_restricted, names_user, secure, user_of
from moorage.decide.admission.review import Request, make_draft
from moorage_kube.podsecurity import RESTRICTED, violations
from moorage_local.apiserver.wire.patch import json_patch

ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}
RUN_AS = "moorage.dev/run-as-user"


def a_pod(pod: Any = None, container: Any = None, *, init: Any = None) -> Any:
    spec: Any = {"containers": [{"name": "main", "image": "x"} | (container or {})]}
    if init is not None:
        spec["initContainers"] = [{"name": "first", "image": "x"} | init]
    return {"metadata": {"name": "x"}, "spec": spec | (pod or {})}


def secured(pod: Any, user: int | None = 65532) -> Any:
    before = copy.deepcopy(pod)
    made = json_patch(pod, list(secure(pod, user=user)))
    assert pod == before
    return made


def refusals(pod: Any) -> list[str]:
    return [one.reason for one in violations(RESTRICTED, pod["metadata"], pod["spec"])]


def test_a_plain_pod_gets_all_that_restricted_asks_for_and_a_home():
    made = secured(a_pod())["spec"]
    assert made["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = made["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "HOME": "/tmp",
        "USER": "moorage",
        "LOGNAME": "moorage",
    }


@pytest.mark.parametrize(
    ("pod", "user", "want"),
    [
        pytest.param(a_pod(), None, None, id="that of the image"),
        pytest.param(a_pod({"securityContext": {"runAsUser": 1000}}), 65532, 1000, id="the author's"),
        pytest.param(a_pod(None, {"securityContext": {"runAsUser": 7}}), 65532, None, id="the container's"),
        pytest.param(a_pod(), 1234, 1234, id="the namespace's"),
    ],
)
def test_whose_user_a_pod_runs_as(pod, user, want):
    made = secured(pod, user)
    assert made["spec"]["securityContext"].get("runAsUser") == want
    assert refusals(made) == []
    given = not names_user(pod["spec"]) and user is not None
    assert ("env" in made["spec"]["containers"][0]) is given


def test_a_home_that_the_author_names_stays():
    made = secured(a_pod(None, {"env": [{"name": "HOME", "value": "/data"}]}))
    assert made["spec"]["containers"][0]["env"] == [
        {"name": "HOME", "value": "/data"},
        {"name": "USER", "value": "moorage"},
        {"name": "LOGNAME", "value": "moorage"},
    ]


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod({"hostNetwork": True}), "host namespaces"),
        (a_pod(None, {"securityContext": {"privileged": True}}), "privileged"),
        (
            a_pod(None, {"securityContext": {"allowPrivilegeEscalation": True}}),
            "allowPrivilegeEscalation != false",
        ),
        (a_pod({"securityContext": {"runAsNonRoot": False}}), "runAsNonRoot != true"),
        (a_pod({"securityContext": {"runAsUser": 0}}), "runAsUser=0"),
        (a_pod(None, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), "unrestricted capabilities"),
    ],
)
def test_what_an_author_asks_for_is_left_to_kubernetes_to_refuse(pod, reason):
    assert refusals(secured(pod)) == [reason]


CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": st.sampled_from([1, 1000]),
        "runAsGroup": st.just(5),
        "readOnlyRootFilesystem": st.booleans(),
        "capabilities": st.sampled_from(
            [{}, {"drop": ["NET_RAW"]}, {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}]
        ),
        "allowPrivilegeEscalation": st.sampled_from([None, False]),
        "seccompProfile": st.just({"type": "Localhost", "localhostProfile": "x"}),
    },
)
POD_CONTEXTS = st.fixed_dictionaries(
    {}, optional={"runAsUser": st.just(9), "fsGroup": st.just(3), "runAsNonRoot": st.sampled_from([None, True])}
)
PODS = st.builds(
    lambda pod, main, init: a_pod(
        {"securityContext": pod},
        {"securityContext": main},
        init=None if init is None else {"securityContext": init},
    ),
    POD_CONTEXTS,
    CONTEXTS,
    st.none() | CONTEXTS,
)


@given(PODS, st.sampled_from([None, 1234]))
def test_whatever_is_not_said_is_filled_in_once_and_the_pod_passes(pod, user):
    made = secured(pod, user)
    assert refusals(made) == []
    assert secure(made, user=user) == ()


@pytest.mark.parametrize(
    ("labels", "notes", "want"),
    [
        ({"moorage.dev/run": "x"}, {}, 65532),
        ({"moorage.dev/run": "x"}, {RUN_AS: "1000"}, 1000),
        ({"moorage.dev/run": "x"}, {RUN_AS: "image"}, None),
        ({"moorage.dev/run": "x"}, {RUN_AS: "0"}, 65532),
        ({"moorage.dev/run": "x"}, {RUN_AS: "root"}, 65532),
        ({"moorage.dev/run": "x"}, {RUN_AS: "9" * 30}, 65532),
        ({"moorage.dev/workspace": "x"}, {RUN_AS: "1000"}, None),
    ],
)
def test_the_namespace_says_which_user_runs_have(labels, notes, want):
    assert user_of(labels, notes) == want
    assert "no root" in advice(want)


def test_which_pods_and_namespaces_are_meant():
    assert is_restricted(ENFORCED)
    assert not is_restricted({"pod-security.kubernetes.io/enforce": "baseline"})
    assert not is_restricted({"pod-security.kubernetes.io/warn": "restricted"})
    assert is_ours({"moorage.dev/map": "x"})
    assert not is_ours({"app": "x"})


@pytest.mark.parametrize(
    "spec", [None, {}, {"containers": None}, {"containers": [None, 5], "securityContext": "x"}]
)
def test_odd_pods_are_no_defect(spec):
    secure({"metadata": {}, "spec": spec}, user=5)
    names_user(spec or {})


@pytest.mark.parametrize(
    ("security", "says"),
    [
        ({"runAsUser": 0}, "pods of user 0 are refused; name another user, such as --user 1000"),
        ({"runAsUser": 1000}, None),
        ({}, "the containers run as user 65532"),
    ],
)
def test_who_creates_a_run_is_told_which_user_it_has(security, says):
    spec = {"securityContext": security, "containers": [{"name": "main"}]}
    job = {"metadata": {"labels": {"moorage.dev/run": "x"}}, "spec": {"template": {"spec": spec}}}

    def warnings(labels):
        namespace = {"metadata": {"labels": labels}}
        draft = make_draft(Request(kind="Job", operation="CREATE", user="ada", obj=job, namespace=namespace))
        advise_users(draft)
        return draft.warnings

    assert [says in text for text in warnings(ENFORCED)] == ([True] if says else [])
    assert warnings({}) == []
