from __future__ import annotations

from typing import Any

import pytest

from moorage_kube.testing import builders
from moorage_local.scheduler.shapes import shape_of
from moorage_local.scheduler.snapshot import parse_pod_view


def a_shape(name: str = "p", *, by_labels: bool = False, labels: dict[str, str] | None = None, **spec: Any) -> Any:
    pod = builders.a_pod(name, labels=labels, command=[name], limits={"cpu": "1"}, spec=spec)
    return shape_of(parse_pod_view(pod), by_labels=by_labels)


def an_affinity(kind: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_pods_that_differ_in_name_and_command_have_one_shape():
    assert a_shape("a") == a_shape("b")
    assert hash(a_shape("a")) == hash(a_shape("b"))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"priority": 5}, id="priority"),
        pytest.param({"preemptionPolicy": "Never"}, id="may preempt"),
        pytest.param({"nodeSelector": {"zone": "a"}}, id="node selector"),
        pytest.param({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, id="toleration"),
        pytest.param({"affinity": an_affinity("podAntiAffinity")}, id="anti-affinity"),
        pytest.param(
            {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}, id="host port"
        ),
        pytest.param({"overhead": {"cpu": "1"}}, id="requests"),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
                        }
                    }
                }
            },
            id="node affinity",
        ),
    ],
)
def test_what_a_node_is_chosen_by_makes_another_shape(spec):
    shape = a_shape(**spec)
    assert shape is not None
    assert shape != a_shape()
    assert hash(shape) == hash(a_shape("another", **spec))


def test_labels_count_only_where_somebody_may_select_by_them():
    assert a_shape(labels={"app": "db"}) == a_shape()
    assert a_shape(labels={"app": "db"}, by_labels=True) != a_shape(by_labels=True)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, id="claim"),
        pytest.param({"affinity": an_affinity("podAffinity")}, id="wants company"),
        pytest.param(
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}]},
            id="spread",
        ),
    ],
)
def test_a_pod_that_others_can_help_has_no_shape(spec):
    assert a_shape(**spec) is None
