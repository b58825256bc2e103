from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.gpus import (
    NOBODY,
    UNKNOWN_TYPE,
    Counts,
    GpuState,
    device_ids,
    gpu_type,
    started_at,
    view_gpus,
)
from moorage.present.gpusanswer import make_gpus
from moorage_kube.moments import moment
from moorage_kube.testing import builders
from moorage_kube.testing.builders import GPU
from moorage_testing.builders import a_run_pod, keyed

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def a_node(name="n1", gpus=2, *, kind="a100", capacity=None, resource=GPU, **more):
    whole = {} if capacity is None else {resource: str(capacity)}
    sizes = {"allocatable": {resource: str(gpus)}, "capacity": whole, "cpu": "8", "memory": "", "pods": ""}
    return builders.a_node(name, gpu_type=kind, **sizes | more)


def a_pod(name="p1", node="n1", gpus=1, *, start="2026-01-05T10:00:00Z", devices=None, resource=GPU, **more):
    assigned = {"name": resource, "resources": [{"resourceID": device} for device in devices or ()]}
    statuses = [] if devices is None else [{"name": "main", "allocatedResourcesStatus": [assigned]}]
    spec = {"activeDeadlineSeconds": more.pop("deadline")} if "deadline" in more else {}
    made = {"user": more.pop("owner", "ada"), "uid": f"uid-{name}", "limits": {resource: str(gpus)}, "spec": spec}
    return a_run_pod(name, node=node, started=start, statuses=statuses, **made | more)


def states(view):
    return [(gpu.node, gpu.index, str(gpu.state), gpu.holder.pod if gpu.holder else gpu.why) for gpu in view.gpus]


def test_a_held_gpu_shows_whose_it_is_since_when_and_until_when():
    view = view_gpus([a_node()], [a_pod(devices=["1"], expected="3600")])
    assert states(view) == [("n1", 0, "free", ""), ("n1", 1, "used", "p1")]
    assert msgspec.to_builtins(make_gpus(view, now=NOON).nodes[0].gpus[1]) == {
        "index": 1,
        "type": "a100",
        "resource": "nvidia.com/gpu",
        "device": "1",
        "state": "used",
        "why": "",
        "fragmented": False,
        "stranded": False,
        "owner": "ada",
        "run": "train",
        "step": "",
        "namespace": "lab",
        "pod": "p1",
        "since": "2026-01-05T10:00:00Z",
        "expectedUntil": "2026-01-05T11:00:00Z",
    }


@pytest.mark.parametrize(
    ("nodes", "pods", "want"),
    [
        pytest.param(
            [a_node()],
            [a_pod("b", start="2026-01-05T11:00:00Z"), a_pod("a", start="2026-01-05T11:30:00Z")],
            [("n1", 0, "used", "b"), ("n1", 1, "used", "a")],
            id="without device ids, holders stand in the order of their start",
        ),
        pytest.param(
            [a_node()],
            [a_pod("a", devices=["GPU-9b1c"]), a_pod("b", devices=["0"])],
            [("n1", 0, "used", "b"), ("n1", 1, "used", "a")],
            id="a numbered device stands at its number, a UUID takes what is left",
        ),
        pytest.param(
            [a_node()],
            [a_pod("a", devices=["GPU-n1-1"])],
            [("n1", 0, "free", ""), ("n1", 1, "used", "a")],
            id="a simulated device bears its node's name and its number",
        ),
        pytest.param(
            [a_node()],
            [a_pod("a", devices=["0"]), a_pod("b", devices=["0"])],
            [("n1", 0, "used", "a"), ("n1", 1, "used", "b")],
            id="two holders of one id are two devices",
        ),
        pytest.param(
            [a_node()],
            [a_pod("a", devices=["7"])],
            [("n1", 0, "used", "a"), ("n1", 1, "free", "")],
            id="an id beyond the node's devices is counted",
        ),
        pytest.param(
            [a_node(ready=False)],
            [a_pod("a", devices=["1"])],
            [("n1", 0, "unavailable", "node not ready"), ("n1", 1, "used", "a")],
            id="node not ready: what nobody holds is unavailable",
        ),
        pytest.param(
            [a_node(cordoned=True)],
            [],
            [("n1", 0, "unavailable", "cordoned"), ("n1", 1, "unavailable", "cordoned")],
            id="cordoned",
        ),
        pytest.param(
            [a_node(gpus=1, capacity=2)],
            [a_pod("a")],
            [("n1", 0, "used", "a"), ("n1", 1, "unavailable", "device unhealthy")],
            id="unhealthy device",
        ),
        pytest.param(
            [a_node(gpus=1)],
            [a_pod("a", phase="Succeeded"), a_pod("b", phase="Failed"), a_pod("c", node="")],
            [("n1", 0, "free", "")],
            id="finished and unbound pods hold nothing",
        ),
        pytest.param(
            [a_node(gpus=1)],
            [a_pod("a", phase="Pending", start=None)],
            [("n1", 0, "used", "a")],
            id="a bound pod holds its GPU before it starts",
        ),
        pytest.param([a_node(gpus=0)], [], [], id="a node without GPUs is not in the view"),
        pytest.param(
            [a_node(gpus=1)], [a_pod(node="gone")], [("n1", 0, "free", "")], id="a pod of a node that is gone"
        ),
    ],
)
def test_every_gpu_has_one_state(nodes, pods, want):
    assert states(view_gpus(nodes, pods)) == want


def test_totals_are_kept_by_type_and_by_user():
    view = view_gpus(
        [a_node("n1", 2), a_node("n2", 1, kind="h100", cordoned=True), a_node("n3", 1, kind="")],
        [a_pod("a", "n1", 2), a_pod("b", "n3", 1, owner="")],
    )
    assert view.totals == Counts(total=4, used=3, free=0, unavailable=1)
    assert view.by_type == {
        "a100": Counts(total=2, used=2),
        "h100": Counts(total=1, unavailable=1),
        UNKNOWN_TYPE: Counts(total=1, used=1),
    }
    assert list(view.by_user.items()) == [("ada", 2), (NOBODY, 1)]


def test_mig_slices_are_a_type_of_their_own():
    resource = "nvidia.com/mig-1g.10gb"
    view = view_gpus([a_node(gpus=2, resource=resource)], [a_pod(resource=resource)])
    assert view.by_type == {"a100 1g.10gb": Counts(total=2, used=1, free=1, fragmented=1, together=1)}


@pytest.mark.parametrize(
    ("expected", "deadline", "want"),
    [
        (None, None, None),
        ("600", None, "2026-01-05T10:10:00Z"),
        (None, 1200, "2026-01-05T10:20:00Z"),
        ("600", 300, "2026-01-05T10:05:00Z"),
        ("soon", None, None),
        ("-5", 60, "2026-01-05T10:01:00Z"),
    ],
)
def test_the_expected_end_is_the_earlier_of_what_was_said_and_the_deadline(expected, deadline, want):
    view = view_gpus([a_node()], [a_pod(expected=expected, deadline=deadline)])
    assert make_gpus(view, now=NOON).nodes[0].gpus[0].expected_until == moment(want)


def test_a_pod_without_start_time_began_with_its_first_container():
    pod = a_pod(start=None)
    pod["status"]["containerStatuses"] = [
        {"state": {"running": {"startedAt": "2026-01-05T09:00:00Z"}}},
        {"state": {}, "lastState": {"terminated": {"startedAt": "2026-01-05T08:00:00Z"}}},
    ]
    assert started_at(pod) == datetime(2026, 1, 5, 8, tzinfo=UTC)
    assert started_at(a_pod(start=None)) is None


def test_device_ids_are_gathered_over_containers_once_each():
    pod = a_pod(devices=["1", "0", "1"])
    assert device_ids(pod) == {"nvidia.com/gpu": ["1", "0"]}
    assert device_ids(a_pod()) == {}


def test_the_type_labels_are_tried_in_order():
    assert gpu_type({"accelerator": "k80", "nvidia.com/gpu.product": "t4"}) == "t4"
    assert gpu_type({"accelerator": "k80"}) == "k80"
    assert gpu_type({}) == UNKNOWN_TYPE


clusters = st.lists(
    st.builds(
        lambda gpus, broken, ready, cordoned, kind: (gpus, broken, ready, cordoned, kind),
        st.integers(0, 5),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["a100", "h100", ""]),
    ),
    max_size=5,
)
loads = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 4),
        st.sampled_from(["Pending", "Running", "Succeeded"]),
        st.lists(st.sampled_from(["0", "1", "2", "9", "GPU-a", "GPU-b"]), max_size=4),
        st.sampled_from(["ada", "bob", ""]),
    ),
    max_size=8,
)


@given(clusters, loads)
def test_every_gpu_appears_exactly_once_and_the_counts_add_up(cluster, load):
    nodes = [
        a_node(f"n{at}", gpus, kind=kind, ready=ready, cordoned=cordoned, capacity=gpus + broken)
        for at, (gpus, broken, ready, cordoned, kind) in enumerate(cluster)
    ]
    pods = [
        a_pod(f"p{at}", f"n{node}", gpus, phase=phase, devices=devices, owner=owner)
        for at, (node, gpus, phase, devices, owner) in enumerate(load)
    ]
    view = view_gpus(nodes, pods)
    places = [(gpu.node, gpu.index) for gpu in view.gpus]
    assert sorted(places) == sorted(
        (f"n{at}", place) for at, (gpus, broken, *_) in enumerate(cluster) for place in range(gpus + broken)
    )
    for counts in (view.totals, *view.by_type.values(), *(node.counts for node in view.nodes)):
        assert counts.used + counts.free + counts.unavailable == counts.total
    assert view.totals.total == len(places) == sum(one.total for one in view.by_type.values())
    assert view.totals.used == sum(view.by_user.values()) == sum(gpu.holder is not None for gpu in view.gpus)
    for node, (gpus, broken, ready, cordoned, _) in ((n, cluster[int(n.name[1:])]) for n in view.nodes):
        asked = sum(pod_gpus for at, pod_gpus, phase, *_ in load if f"n{at}" == node.name and phase != "Succeeded")
        assert node.counts.used == min(asked, gpus + broken)
        if ready and not cordoned:
            assert node.counts.free == max(0, gpus - asked)
        else:
            assert node.counts.free == 0


@given(clusters, loads, st.randoms())
def test_the_order_in_which_objects_are_listed_does_not_matter(cluster, load, shuffler):
    nodes = [a_node(f"n{at}", one[0]) for at, one in enumerate(cluster)]
    pods = [a_pod(f"p{at}", f"n{one[0]}", one[1], devices=one[3]) for at, one in enumerate(load)]
    before = view_gpus(nodes, pods)
    shuffler.shuffle(nodes)
    shuffler.shuffle(pods)
    assert view_gpus(nodes, pods) == before


def test_a_free_gpu_has_no_holder_and_a_used_one_has():
    view = view_gpus([a_node()], [a_pod()])
    assert all((gpu.holder is not None) == (gpu.state is GpuState.USED) for gpu in view.gpus)


def a_reservation(node="n1", gpus=1):
    labels = keyed(reservation="kept", machine_group="vision", machine_type="one")
    return a_pod("place", gpus=gpus, node=node, run="", namespace="moorage-system", labels=labels)


def test_a_reservation_is_no_user():
    view = view_gpus([a_node(gpus=4)], [a_reservation(gpus=2), a_pod("x")])
    assert (view.totals.used, view.totals.reserved, view.totals.free, view.totals.together) == (1, 2, 1, 1)
    assert sum(view.by_user.values()) == 1
    reserved = [gpu for gpu in view.gpus if gpu.state == "reserved"]
    assert {(gpu.why, gpu.holder) for gpu in reserved} == {("for machine vision/one", None)}


def test_only_our_own_namespace_makes_reservations():
    pod = a_reservation()
    pod["metadata"]["namespace"] = "lab"
    assert view_gpus([a_node()], [pod]).totals.reserved == 0


def test_free_gpus_beside_taken_ones_are_fragmented():
    view = view_gpus([a_node("n1", gpus=4), a_node("n2", gpus=2)], [a_pod(gpus=1, node="n1")])
    assert (view.totals.free, view.totals.fragmented, view.totals.together) == (5, 3, 3)


@pytest.mark.parametrize(
    ("free", "lacks", "stranded"),
    [({"cpu": "16", "memory": "64Gi"}, "", 0), ({"cpu": "1500m", "memory": "64Gi"}, "cpu", 3),
     ({"cpu": "16", "memory": "5Gi"}, "memory", 2), ({"cpu": "0", "memory": "0"}, "cpu", 4), ({}, "", 0)],
)  # fmt: skip
def test_free_gpus_with_nothing_left_beside_them_are_stranded(free, lacks, stranded):
    node = a_node(gpus=4)
    node["status"]["allocatable"] = {"nvidia.com/gpu": "4"} | free
    view = view_gpus([node], [])
    assert (view.totals.free, view.totals.stranded) == (4, stranded)
    assert {gpu.why for gpu in view.gpus if gpu.stranded} == ({f"no {lacks} left on its node"} if lacks else set())


def test_shares_in_time_are_a_type_of_their_own():
    resource = "nvidia.com/gpu.shared"
    view = view_gpus([a_node(gpus=4, resource=resource)], [a_pod(resource=resource)])
    assert (list(view.by_type), view.totals.used) == (["a100 shared"], 1)
