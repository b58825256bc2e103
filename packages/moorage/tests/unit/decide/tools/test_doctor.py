"""Why a node stays: each rule of the autoscaler by itself, and what they have in common."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.doctortext import report_json, report_text
from moorage.decide.tools.doctor import HOLD_RULES, SAFE_TO_EVICT, SAFE_VOLUMES, SCALE_DOWN_DISABLED, diagnose


def a_node(name: str, *, gpus: int = 0, annotations: Any = None, cpu: str = "4") -> Any:
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "10"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {}, "status": status}


def a_pod(
    name: str = "p",
    *,
    node: str = "a",
    namespace: str = "lab",
    owner: str | None = "ReplicaSet",
    annotations: Any = None,
    volumes: Any = None,
    requests: Any = None,
    phase: str = "Running",
    **spec: Any,
) -> Any:
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": annotations or {}}
    meta["labels"] = {"app": name}
    if owner:
        meta["ownerReferences"] = [{"kind": owner, "name": "o", "uid": "1", "controller": True}]
    container = {"name": "c", "resources": {"requests": requests or {}}}
    fields = {"nodeName": node, "containers": [container], "volumes": volumes or []} | spec
    return {"metadata": meta, "spec": fields, "status": {"phase": phase}}


def a_budget(app: str = "p", *, allowed: int = 1, namespace: str = "lab", name: str = "pdb") -> Any:
    spec = {"selector": {"matchLabels": {"app": app}}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
        "status": {"disruptionsAllowed": allowed},
    }


def rules(pods: Any, budgets: Any = (), nodes: Any = None, **options: Any) -> list[str]:
    reports = diagnose(nodes or [a_node("a"), a_node("b")], pods, budgets, **options)
    return [hold.rule for hold in reports[0].holds]


EMPTY_DIR = [{"name": "scratch", "emptyDir": {}}]
HOST_PATH = [{"name": "host", "hostPath": {"path": "/x"}}]
SAFE = {SAFE_TO_EVICT: "true"}


@pytest.mark.parametrize(
    ("pod", "budgets", "want"),
    [
        pytest.param(a_pod(), [], [], id="an ordinary pod moves"),
        pytest.param(a_pod(owner=None), [], ["no-controller"], id="alone"),
        pytest.param(a_pod(owner="Workflow"), [], ["custom-controller"], id="a controller it does not know"),
        pytest.param(a_pod(owner="DaemonSet", volumes=HOST_PATH), [], [], id="DaemonSets' pods do not count"),
        pytest.param(a_pod(owner=None, annotations={"kubernetes.io/config.mirror": "x"}), [], [], id="static"),
        pytest.param(a_pod(owner=None, phase="Succeeded"), [], [], id="finished"),
        pytest.param(a_pod(owner=None, priority=-11), [], [], id="expendable"),
        pytest.param(a_pod(owner=None, priority=-10), [], ["no-controller"], id="at the cut-off"),
        pytest.param(a_pod(volumes=EMPTY_DIR), [], ["local-storage"], id="emptyDir"),
        pytest.param(a_pod(volumes=HOST_PATH), [], ["local-storage"], id="hostPath"),
        pytest.param(a_pod(volumes=[{"name": "m", "emptyDir": {"medium": "Memory"}}]), [], [], id="in memory"),
        pytest.param(a_pod(volumes=[{"name": "c", "configMap": {"name": "x"}}]), [], [], id="ConfigMap"),
        pytest.param(a_pod(volumes=EMPTY_DIR, annotations={SAFE_VOLUMES: "x, scratch"}), [], [], id="given up"),
        pytest.param(
            a_pod(volumes=EMPTY_DIR + HOST_PATH, annotations={SAFE_VOLUMES: "scratch"}), [], ["local-storage"],
            id="one of two given up",
        ),
        pytest.param(a_pod(namespace="kube-system"), [], ["system-pod"], id="of kube-system"),
        pytest.param(
            a_pod(namespace="kube-system"), [a_budget(namespace="kube-system")], [], id="of kube-system, budgeted"
        ),
        pytest.param(a_pod(), [a_budget(allowed=0)], ["budget"], id="a budget that is spent"),
        pytest.param(a_pod(), [a_budget("other", allowed=0)], [], id="another's budget"),
        pytest.param(a_pod(), [a_budget(), a_budget(name="two")], ["budget"], id="two budgets"),
        pytest.param(a_pod(annotations={SAFE_TO_EVICT: "false"}), [], ["not-safe-to-evict"], id="not to evict"),
        pytest.param(a_pod(owner=None, volumes=EMPTY_DIR, annotations=SAFE), [], [], id="safe to evict"),
        pytest.param(a_pod(annotations=SAFE), [a_budget(allowed=0)], ["budget"], id="safe, but budgeted"),
        pytest.param(a_pod(nodeSelector={"x": "y"}), [], ["no-place"], id="fits nowhere else"),
        pytest.param(
            a_pod(owner=None, namespace="kube-system", volumes=HOST_PATH), [],
            ["no-controller", "system-pod", "local-storage"], id="all that is wrong is told",
        ),
    ],
)  # fmt: skip
def test_what_holds_a_node(pod, budgets, want):
    assert rules([pod], budgets) == want


def test_a_pod_on_its_way_out_holds_nothing():
    pod = a_pod(owner=None)
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert rules([pod]) == []


def test_a_node_that_is_annotated_stays():
    nodes = [a_node("a", annotations={SCALE_DOWN_DISABLED: "true"}), a_node("b")]
    assert rules([], nodes=nodes) == ["scale-down-disabled"]


@pytest.mark.parametrize(
    ("requests", "gpus", "options", "want"),
    [
        ({"cpu": "1999m"}, 0, {}, []),
        ({"cpu": "2"}, 0, {}, ["utilisation"]),
        ({"memory": "4Gi"}, 0, {}, ["utilisation"]),
        ({"cpu": "2"}, 0, {"threshold": 0.6}, []),
        ({"cpu": "3"}, 4, {}, []),  # with GPUs only they count
        ({"nvidia.com/gpu": "2"}, 4, {}, ["utilisation"]),
        ({"nvidia.com/gpu": "2"}, 4, {"gpu_threshold": 0.6}, []),
    ],
)
def test_use_is_judged_against_the_threshold(requests, gpus, options, want):
    nodes = [a_node("a", gpus=gpus), a_node("b", gpus=gpus)]
    assert rules([a_pod(requests=requests)], nodes=nodes, **options) == want


def test_pods_that_fit_one_by_one_but_not_together_are_told():
    pods = [a_pod(f"p{n}", requests={"cpu": "900m"}) for n in range(2)]
    full = a_pod("full", node="b", requests={"cpu": "3"})
    assert rules([*pods, full]) == ["no-place"]


def test_the_last_node_has_nowhere_to_send_its_pods():
    (report,) = diagnose([a_node("a")], [a_pod()], [])
    assert [(hold.rule, hold.why) for hold in report.holds] == [("no-place", "there is no other node")]


def test_both_forms_of_the_report_name_pod_rule_and_cure():
    reports = diagnose([a_node("a"), a_node("b")], [a_pod(owner=None)], [])
    text = "\n".join(report_text(reports))
    assert "a: stays; cpu 0 % (0 of 4) requested, threshold 50 %; 1 pod to move" in text
    assert "  pod lab/p: no-controller: nothing would make the pod again" in text
    assert "b: could go" in text
    first, second = report_json(reports)
    assert (first["mayGo"], first["holds"][0]["pod"], second["mayGo"]) == (False, "lab/p", True)
    assert first["holds"][0]["source"].startswith("https://github.com/kubernetes/autoscaler/")


pods = st.builds(
    a_pod,
    name=st.uuids().map(str),
    node=st.sampled_from(["a", "b", "gone"]),
    namespace=st.sampled_from(["lab", "kube-system"]),
    owner=st.sampled_from(["ReplicaSet", "DaemonSet", "Workflow", None]),
    annotations=st.sampled_from([{}, SAFE, {SAFE_TO_EVICT: "false"}]),
    volumes=st.sampled_from([[], EMPTY_DIR, HOST_PATH]),
    phase=st.sampled_from(["Running", "Pending", "Succeeded", "Failed"]),
)


@given(st.lists(pods, max_size=6))
def test_every_hold_has_a_rule_and_a_node_without_holds_is_free_of_each_pod_that_could_hold_it(some):
    for report in diagnose([a_node("a"), a_node("b")], some, []):
        assert all(hold.rule in HOLD_RULES for hold in report.holds)
        held = {hold.pod.name for hold in report.holds if hold.pod}
        alive = [one for one in some if one["spec"]["nodeName"] == report.node
                 and one["status"]["phase"] in ("Running", "Pending")]  # fmt: skip
        unsafe = {
            one["metadata"]["name"]
            for one in alive
            if one["metadata"]["annotations"].get(SAFE_TO_EVICT) == "false"
            and one["metadata"].get("ownerReferences", [{}])[0].get("kind") != "DaemonSet"
        }
        assert unsafe <= held


@given(st.lists(pods, max_size=6))
def test_marking_every_pod_safe_never_adds_a_hold(some):
    def count(given_pods: list[Any]) -> int:
        reports = diagnose([a_node("a"), a_node("b")], given_pods, [])
        return sum(hold.rule != "no-place" for report in reports for hold in report.holds)

    marked = copy.deepcopy(some)
    for one in marked:
        one["metadata"]["annotations"] = dict(SAFE)
    assert count(marked) <= count(some)
