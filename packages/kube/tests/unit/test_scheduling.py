"""The scheduler's filter rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.scheduling import (
    Taint,
    Toleration,
    is_extended,
    is_gpu,
    parse_node,
    parse_pod,
    pod_requests,
    refusal_by_labels,
    refusal_by_resources,
    refusal_by_taints,
    refusals,
    shortages,
    used_on,
)
from moorage_kube.testing import builders

GIB = 2**30


def container(cpu=None, memory=None, *, limits=None, **more):
    requests = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"name": "c", "resources": {"requests": requests, "limits": limits or {}}} | more


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, {}, id="nothing asked"),
        pytest.param(
            {"containers": [container("500m", "1Gi"), container("1")]}, {"cpu": 1500, "memory": GIB}, id="sum"
        ),
        pytest.param(
            {"containers": [container(limits={"cpu": "2", "nvidia.com/gpu": "1", "hugepages-2Mi": "4Mi"})]},
            {"cpu": 2000, "nvidia.com/gpu": 1, "hugepages-2Mi": 4 * 2**20},
            id="a limit without a request is a request",
        ),
        pytest.param(
            {"containers": [container("1", limits={"cpu": "4"})]}, {"cpu": 1000}, id="a request beats it"
        ),
        pytest.param(
            {"containers": [container("1"), container("1")], "initContainers": [container("5"), container("3")]},
            {"cpu": 5000},
            id="the largest init container",
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [container("1", restartPolicy="Always"), container("3")],
            },
            {"cpu": 4000},
            id="a sidecar runs beside later init containers",
        ),
        pytest.param(
            {
                "containers": [container("5")],
                "initContainers": [container("3"), container("1", restartPolicy="Always")],
            },
            {"cpu": 6000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {"containers": [container("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "1Gi"}},
            {"cpu": 1250, "memory": 2 * GIB},
            id="overhead",
        ),
        pytest.param(
            {
                "containers": [container("1", "1Gi"), container("1")],
                "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4", "memory": "2Gi"}},
                "overhead": {"cpu": "250m"},
            },
            {"cpu": 3250, "memory": GIB},
            id="resources of the pod as a whole",
        ),
    ],
)
def test_what_a_pod_asks_for(spec, want):
    assert pod_requests(spec) == want | {"pods": 1}


@pytest.mark.parametrize(
    ("name", "extended", "gpu"),
    [
        ("cpu", False, False),
        ("memory", False, False),
        ("pods", False, False),
        ("nvidia.com/gpu", True, True),
        ("amd.com/gpu", True, True),
        ("nvidia.com/mig-1g.5gb", True, True),
        ("gpu.intel.com/i915", True, True),
        ("example.com/fpga", True, False),
        ("kubernetes.io/batch-cpu", False, False),
    ],
)
def test_which_resources_are_devices_and_which_of_them_gpus(name, extended, gpu):
    assert (is_extended(name), is_gpu(name)) == (extended, gpu)


@pytest.mark.parametrize(
    ("toleration", "taint", "want"),
    [
        (Toleration("", "Exists", "", ""), Taint("a", "b", "NoExecute"), True),
        (Toleration("a", "Exists", "", ""), Taint("a", "b", "NoSchedule"), True),
        (Toleration("a", "Exists", "", "NoExecute"), Taint("a", "b", "NoSchedule"), False),
        (Toleration("a", "Equal", "b", ""), Taint("a", "b", "NoSchedule"), True),
        (Toleration("a", "Equal", "c", ""), Taint("a", "b", "NoSchedule"), False),
        (Toleration("x", "Exists", "", ""), Taint("a", "b", "NoSchedule"), False),
        (Toleration("a", "Equal", "", ""), Taint("a", "", "NoSchedule"), True),
    ],
)
def test_what_is_tolerated(toleration, taint, want):
    assert toleration.tolerates(taint) is want


def a_pod(**spec):
    return parse_pod(builders.a_pod(spec=spec))


def a_node(**more):
    return parse_node(builders.a_node(pods="2", gpus=2, **more))


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU = {"gpu": "a100", "count": "4"}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        ({"nodeSelector": {"gpu": "a100"}}, True),
        ({"nodeSelector": {"gpu": "t4"}}, False),
        ({"affinity": affinity(expression("gpu", "In", "t4", "a100"))}, True),
        ({"affinity": affinity(expression("gpu", "NotIn", "a100"))}, False),
        ({"affinity": affinity(expression("gpu", "Exists"))}, True),
        ({"affinity": affinity(expression("gpu", "DoesNotExist"))}, False),
        ({"affinity": affinity(expression("count", "Gt", "3"))}, True),
        ({"affinity": affinity(expression("count", "Lt", "3"))}, False),
        ({"affinity": affinity(expression("gpu", "In", "t4"), expression("count", "Gt", "1"))}, True),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity()}, False),
        (
            {
                "affinity": affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                )
            },
            True,
        ),
        (
            {
                "affinity": affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
                )
            },
            False,
        ),
    ],
)
def test_node_labels_and_fields(spec, fits):
    assert (refusal_by_labels(a_pod(**spec), a_node(labels=GPU)) is None) is fits


@pytest.mark.parametrize(
    ("node", "tolerations", "fits"),
    [
        (a_node(), [], True),
        (a_node(taints=[{"key": "a", "effect": "NoSchedule"}]), [], False),
        (a_node(taints=[{"key": "a", "effect": "NoExecute"}]), [], False),
        (a_node(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), [], True),
        (a_node(taints=[{"key": "a", "effect": "NoSchedule"}]), [{"key": "a", "operator": "Exists"}], True),
        (a_node(taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]), [{"key": "a", "value": "b"}], True),
        (a_node(cordoned=True), [], False),
        (a_node(cordoned=True), [{"operator": "Exists"}], True),
    ],
)
def test_taints_and_cordons(node, tolerations, fits):
    assert (refusal_by_taints(a_pod(tolerations=tolerations), node) is None) is fits


def test_what_is_short_is_named_with_numbers():
    pod = a_pod(containers=[container("3", "9Gi", limits={"nvidia.com/gpu": "1"})])
    other = a_pod(containers=[container("2")], nodeName="n1")
    short = shortages(pod, a_node(), used_on([other]))
    assert short == {"cpu": (3000, 2000), "memory": (9 * GIB, 8 * GIB)}
    text = refusal_by_resources(pod, a_node(), used_on([other]))
    assert text == "too little cpu (asked 3, free 2 of 4), memory (asked 9Gi, free 8Gi of 8Gi)"


def test_a_device_no_node_knows_is_short():
    pod = a_pod(containers=[container(limits={"example.com/fpga": "1"})])
    assert shortages(pod, a_node(), {}) == {"example.com/fpga": (1, 0)}


def test_every_reason_is_given_at_once():
    pod = a_pod(containers=[container("9", ports=[{"hostPort": 80}])], nodeSelector={"gpu": "t4"})
    other = a_pod(containers=[container(ports=[{"hostPort": 80}])], nodeName="n1")
    node = a_node(ready=False, cordoned=True)
    assert [text.split(" ")[0:3] for text in refusals(pod, node, [other])] == [
        ["it", "is", "not"],
        ["it", "is", "cordoned"],
        ["label", "gpu", "is"],
        ["host", "port", "80"],
        ["too", "little", "cpu"],
    ]
    assert refusals(a_pod(), a_node(), []) == []


def test_a_finished_pod_holds_nothing():
    done = parse_pod(builders.a_pod(phase="Succeeded", containers=[container("4", ports=[{"hostPort": 80}])]))
    assert used_on([done]) == {}
    assert refusals(a_pod(containers=[container("4", ports=[{"hostPort": 80}])]), a_node(), [done]) == []


def test_a_pod_is_read_whole():
    pod = parse_pod(
        builders.a_pod(
            node="n1", phase="Running", started="2026-01-01T00:00:00Z", deleting="2026-01-01T00:00:00Z",
            gates=["moorage.dev/machine"], containers=[container(limits={"nvidia.com/gpu": "2"})],
            spec={
                "priority": -10, "preemptionPolicy": "Never", "schedulerName": "gpu",
                "volumes": [{"persistentVolumeClaim": {"claimName": "data"}}, {"emptyDir": {}}],
            },
            status={"nominatedNodeName": "n2"},
        )
    )  # fmt: skip
    assert (pod.node, pod.priority, pod.may_preempt, pod.gates) == ("n1", -10, False, ("moorage.dev/machine",))
    assert (pod.scheduler, pod.claims, pod.gpus, pod.deleting) == ("gpu", ("data",), 2, True)
    assert (pod.nominated_node, pod.finished) == ("n2", False)
    assert pod.started is not None


def test_a_node_that_says_nothing_is_not_ready():
    assert parse_node({"metadata": {"name": "n"}}).ready is False
    assert a_node().gpus == 2


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 8).map(str))


@given(st.lists(amounts, max_size=4), st.lists(amounts, max_size=4))
def test_a_pod_asks_for_no_less_than_its_containers_and_each_init_container(containers, inits):
    def made(found):
        return [{"name": "c", "resources": {"requests": one}} for one in found]

    total = pod_requests({"containers": made(containers), "initContainers": made(inits)})
    alone = pod_requests({"containers": made(containers)})
    assert all(total[name] >= value for name, value in alone.items())
    for init in inits:
        for name, value in pod_requests({"containers": made([init])}).items():
            assert total[name] >= value
    assert pod_requests({"containers": made(containers + inits)}).items() >= {"pods": 1}.items()
