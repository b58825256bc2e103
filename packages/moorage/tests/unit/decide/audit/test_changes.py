"""Requests to the Kubernetes API, in the words of the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.audit.changes import (
    NOUNS,
    SUBRESOURCES,
    Change,
    action_of,
    client_of,
    is_recorded,
    path_of,
    target_of,
)
from moorage.model.crds import KINDS as OUR_KINDS
from moorage.model.names import ENDED_ANNOTATION, GROUP, RUN_LABEL
from moorage.present.audit import PAST
from moorage.webhooks.config import AUDITED, KINDS, RULES

RUN = {RUN_LABEL: "train-3"}
CANCELLED = {ENDED_ANNOTATION: "Cancelled by ada"}


def an_object(name: str = "a1", spec: Any = None, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "vision"} | meta, "spec": spec or {}}


def a_change(operation: str, plural: str, *, group: str = "", **fields: Any) -> Change:
    return Change(
        operation=operation, group=group, plural=plural, **({"namespace": "vision", "name": "a1"} | fields)
    )


def an_update(plural: str, old: Any, new: Any, **fields: Any) -> Change:
    return a_change("UPDATE", plural, old=old, obj=new, **fields)


@pytest.mark.parametrize(
    ("change", "action"),
    [
        pytest.param(
            a_change("CREATE", "jobs", group="batch", obj=an_object(labels=RUN)),
            "start run vision/train-3",
            id="a job of a run",
        ),
        pytest.param(
            a_change("CREATE", "jobs", group="batch", obj=an_object()), "create job vision/a1", id="another job"
        ),
        pytest.param(
            a_change("CREATE", "jobs", group="batch", name="", obj={"metadata": {"generateName": "a-"}}),
            "create job vision/a-",
            id="a generated name",
        ),
        pytest.param(
            a_change("DELETE", "jobs", group="batch", name="", old=an_object(labels=RUN)),
            "delete run vision/train-3",
            id="one of a collection",
        ),
        pytest.param(a_change("DELETE", "pods", old=an_object()), "delete pod vision/a1", id="a pod"),
        pytest.param(
            an_update("jobs", an_object(labels=RUN), an_object(labels=RUN, annotations=CANCELLED), group="batch"),
            "cancel run vision/train-3",
            id="cancelled",
        ),
        pytest.param(
            an_update(
                "jobs",
                an_object(labels=RUN, annotations=CANCELLED),
                an_object(spec={"suspend": True}, labels=RUN, annotations=CANCELLED),
                group="batch",
            ),
            "",
            id="what follows from a cancellation",
        ),
        pytest.param(
            an_update("jobs", an_object(), an_object(spec={"suspend": True}), group="batch"),
            "suspend job vision/a1",
            id="suspended",
        ),
        pytest.param(
            an_update("jobs", an_object(spec={"suspend": True}), an_object(), group="batch"),
            "resume job vision/a1",
            id="resumed",
        ),
        pytest.param(
            an_update("nodes", an_object(), an_object(spec={"unschedulable": True}), namespace="", name="gpu-1"),
            "cordon node gpu-1",
            id="cordoned",
        ),
        pytest.param(
            an_update("nodes", an_object(spec={"unschedulable": True}), an_object(), namespace="", name="gpu-1"),
            "uncordon node gpu-1",
            id="uncordoned",
        ),
        pytest.param(
            an_update("nodes", an_object(), an_object(spec={"taints": [{}]}), namespace="", name="gpu-1"),
            "change taints of node gpu-1",
            id="tainted",
        ),
        pytest.param(
            an_update(
                "persistentvolumeclaims",
                an_object(spec={"resources": {"requests": {"storage": "1Gi"}}}),
                an_object(spec={"resources": {"requests": {"storage": "5Gi"}}}),
            ),
            "resize volume vision/a1 to 5Gi",
            id="resized",
        ),
        pytest.param(
            an_update("workspaces", an_object(), an_object(spec={"running": False}), group=GROUP),
            "stop workspace vision/a1",
            id="stopped",
        ),
        pytest.param(
            an_update(
                "tenants",
                an_object(spec={"members": ["a"], "quota": {}}),
                an_object(spec={"members": [], "admins": ["b"], "ingress": {}, "quota": {}}, labels={"a": "b"}),
                group=GROUP,
                namespace="",
            ),
            "change admins, ingress, members and 1 more of tenant a1",
            id="names of fields, three at most",
        ),
        pytest.param(
            an_update("jobs", an_object(), an_object(finalizers=["x"], resourceVersion="2"), group="batch"),
            "",
            id="nothing that people change",
        ),
        pytest.param(
            a_change("CREATE", "namespaces", namespace="team", name="team"),
            "create namespace team",
            id="a namespace",
        ),
        pytest.param(
            a_change(
                "CONNECT", "pods", subresource="exec", obj={"kind": "PodExecOptions", "command": ["cat", "/key"]}
            ),
            "run a command in pod vision/a1",
            id="exec, without the command",
        ),
        pytest.param(
            a_change("CREATE", "pods", subresource="eviction"), "request eviction of pod vision/a1", id="evicted"
        ),
        pytest.param(a_change("UPDATE", "pods", subresource="status"), "", id="another subresource"),
        pytest.param(a_change("CREATE", "secrets", obj=an_object()), "", id="no secret"),
    ],
)
def test_a_request_is_an_action(change, action):
    assert action_of(change) == action


def test_all_jobs_of_a_run_are_one_target():
    jobs = [
        a_change("DELETE", "jobs", group="batch", name=name, old=an_object(name, labels=RUN))
        for name in ("train-3", "train-3-2")
    ]
    assert {target_of(job) for job in jobs} == {"run vision/train-3"}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (a_change("DELETE", "jobs", group="batch"), "/apis/batch/v1/namespaces/vision/jobs/a1"),
        (a_change("CONNECT", "pods", subresource="exec"), "/api/v1/namespaces/vision/pods/a1/exec"),
        (a_change("UPDATE", "nodes", namespace="", name="n"), "/api/v1/nodes/n"),
        (a_change("CREATE", "namespaces", namespace="t", name="t"), "/api/v1/namespaces/t"),
        (
            a_change("DELETE", "tenants", group=GROUP, version="v1alpha1", namespace=""),
            "/apis/moorage.dev/v1alpha1/tenants/a1",
        ),
    ],
)
def test_a_request_has_the_path_of_its_object(change, path):
    assert path_of(change) == path


@pytest.mark.parametrize(
    ("options", "old", "new", "client"),
    [
        ({"fieldManager": "kubectl-create"}, [], [], "kubectl"),
        ({"fieldManager": "moor"}, [], [{"manager": "other"}], "moor"),
        ({}, [], [{"manager": "helm", "time": "2026-01-01T00:00:00Z"}], "helm"),
        (
            {},
            [{"manager": "moor", "time": "1"}, {"manager": "kube-controller-manager", "time": "2"}],
            [{"manager": "moor", "time": "1"}, {"manager": "kubectl-edit", "time": "3"}],
            "kubectl",
        ),
        ({}, [{"manager": "moor", "time": "1"}], [{"manager": "moor", "time": "1"}], ""),
        ({}, [], [{"manager": "kubelet", "subresource": "status"}], ""),
        ({}, [], ["odd"], ""),
        ({"fieldManager": "x" * 200}, [], [], "x" * 63),
    ],
)
def test_the_client_is_the_field_manager_that_is_new(options, old, new, client):
    change = an_update("jobs", an_object(managedFields=old), an_object(managedFields=new), options=options)
    assert client_of(change) == client


@pytest.mark.parametrize(
    ("user", "is_one"),
    [
        ("ada", True),
        ("system:serviceaccount:moorage-users:ada-1", True),
        ("system:serviceaccount:vision:ci", True),
        ("system:anonymous", True),
        ("system:node:gpu-1", False),
        ("system:kube-controller-manager", False),
        ("system:serviceaccount:kube-system:job-controller", False),
        ("system:serviceaccount:moorage-system:moorage-server", False),
    ],
)
def test_what_people_and_programs_do_is_recorded_and_not_what_the_cluster_does(user, is_one):
    assert is_recorded(user) is is_one


def test_whatever_is_brought_for_review_has_a_name_here_and_no_secret_is():
    reviewed = {
        (group, plural.partition("/")[0])
        for group, plurals in [(group, plurals) for group, _, plurals in AUDITED] + list(RULES) + [(GROUP, KINDS)]
        for plural in plurals
    }
    assert reviewed == set(NOUNS)
    assert {(GROUP, kind.resource.plural) for kind in OUR_KINDS} - set(NOUNS) == set()
    subresources = {plural.partition("/")[2] for _, _, plurals in AUDITED for plural in plurals}
    assert subresources - {""} == set(SUBRESOURCES)


def test_each_verb_has_a_past():
    verbs = {verb.partition(" ")[0] for verb in SUBRESOURCES.values()}
    assert {*verbs, "start", "create", "delete", "cordon", "uncordon", "cancel", "suspend", "resume"} <= set(PAST)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(NOUNS)),
    st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]),
    st.fixed_dictionaries(
        {"metadata": st.fixed_dictionaries({"name": st.text(max_size=300)})}, optional={"spec": values}
    ),
    st.none() | st.fixed_dictionaries({"metadata": st.just({})}, optional={"spec": values}),
)
def test_an_odd_object_is_described_in_few_characters(resource, operation, obj, old):
    group, plural = resource
    change = a_change(operation, plural, group=group, name="", obj=obj, old=old)
    assert len(action_of(change)) < 800
    assert len(client_of(change)) <= 63
