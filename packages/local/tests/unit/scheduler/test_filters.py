from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.meta import Key
from moorage_kube.resources import PVS
from moorage_kube.testing import builders
from moorage_local.scheduler.filters import Refusal, blanket_message, facts_of, fit_message, judge
from moorage_local.scheduler.snapshot import (
    Claim,
    NodeState,
    PodView,
    Snapshot,
    StorageClass,
    Volume,
    parse_node_info,
    parse_pod_view,
    parse_volume,
)
from moorage_local.testing.builders import a_node_state as a_node
from moorage_local.testing.builders import a_pod_view as a_pod
from moorage_local.testing.builders import a_snapshot

ZONE = "topology.kubernetes.io/zone"


def judged(pod: PodView, snapshot: Snapshot) -> dict[str, tuple[Refusal, ...]]:
    facts = facts_of(pod, snapshot)
    return {name: judge(pod, node, snapshot, facts) for name, node in snapshot.nodes.items()}


def reasons(pod: PodView, snapshot: Snapshot) -> dict[str, list[str]]:
    return {name: [one.reason for one in found] for name, found in judged(pod, snapshot).items()}


def anti(labels: dict[str, str], key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def near(labels: dict[str, str], key: str = ZONE) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.mark.parametrize(
    ("pod", "node", "want"),
    [
        pytest.param(a_pod(gpus=2), a_node("n"), (), id="fits"),
        pytest.param(
            a_pod(gpus=2),
            a_node("n", a_pod("q", gpus=1)),
            (Refusal("Insufficient nvidia.com/gpu", True),),
            id="GPUs taken: removing pods could help",
        ),
        pytest.param(
            a_pod(gpus=4),
            a_node("n"),
            (Refusal("Insufficient nvidia.com/gpu", False),),
            id="more than the node has: removing pods cannot help",
        ),
        pytest.param(
            a_pod(cpu="5", memory="9Gi"),
            a_node("n"),
            (Refusal("Insufficient cpu", False), Refusal("Insufficient memory", False)),
            id="every resource that is short is named",
        ),
        pytest.param(
            a_pod(),
            a_node("n", a_pod("q"), pods="1"),
            (Refusal("Too many pods", True),),
            id="no place for another pod",
        ),
        pytest.param(
            a_pod(gpus=4),
            a_node("n", spec={"unschedulable": True}),
            (Refusal("node(s) were unschedulable", False),),
            id="cordoned: only the first rule speaks",
        ),
        pytest.param(
            a_pod(),
            a_node("n", spec={"taints": [{"key": "gpu", "value": "only", "effect": "NoSchedule"}]}),
            (Refusal("node(s) had untolerated taint {gpu: only}", False),),
            id="tainted",
        ),
        pytest.param(
            a_pod(tolerations=[{"key": "gpu", "operator": "Exists"}]),
            a_node("n", spec={"taints": [{"key": "gpu", "value": "only", "effect": "NoSchedule"}]}),
            (),
            id="tainted and tolerated",
        ),
        pytest.param(
            a_pod(),
            a_node("n", spec={"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}),
            (),
            id="a soft taint refuses nobody",
        ),
        pytest.param(
            a_pod(nodeSelector={"gpu": "a100"}),
            a_node("n", labels={"gpu": "h100"}),
            (Refusal("node(s) didn't match Pod's node affinity/selector", False),),
            id="node selector",
        ),
        pytest.param(
            a_pod(ports=[80]),
            a_node("n", a_pod("q", ports=[80])),
            (Refusal("node(s) didn't have free ports for the requested pod ports", True),),
            id="host port taken",
        ),
    ],
)
def test_a_node_refuses_a_pod_for_the_first_rule_that_does_not_hold(pod, node, want):
    assert judged(pod, a_snapshot(node)) == {"n": want}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ("True", []),
        ("False", ["node(s) had untolerated taint {node.kubernetes.io/not-ready: }"]),
        ("Unknown", ["node(s) had untolerated taint {node.kubernetes.io/unreachable: }"]),
    ],
)
def test_a_node_that_is_not_ready_takes_nothing_even_before_it_is_tainted(status, want):
    node = a_node("n")
    obj = node.obj | {"status": node.obj["status"] | {"conditions": [{"type": "Ready", "status": status}]}}
    assert reasons(a_pod(), a_snapshot(NodeState(info=parse_node_info(obj), obj=obj))) == {"n": want}


def test_a_node_without_a_ready_condition_is_taken_at_its_word():
    obj = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "1"}}}
    assert reasons(a_pod(), a_snapshot(NodeState(info=parse_node_info(obj)))) == {"n": []}


def test_resources_left_to_an_extender_are_not_looked_at():
    snapshot = a_snapshot(a_node("n"), ignored_resources=frozenset({"nvidia.com/gpu"}))
    assert reasons(a_pod(gpus=8), snapshot) == {"n": []}


def test_room_made_for_a_pod_is_kept_from_pods_of_no_higher_priority():
    waiting = a_pod("waiting", gpus=2, priority=10)
    snapshot = a_snapshot(a_node("n"), nominated={"n": (waiting,)})
    assert reasons(a_pod("same", gpus=1, priority=10), snapshot) == {"n": ["Insufficient nvidia.com/gpu"]}
    assert reasons(a_pod("higher", gpus=1, priority=11), snapshot) == {"n": []}
    assert reasons(waiting, snapshot) == {"n": []}


def test_company_that_is_only_expected_does_not_satisfy_affinity():
    expected = a_pod("expected", labels={"app": "db"})
    pod = a_pod(affinity=near({"app": "db"}, "kubernetes.io/hostname"))
    assert reasons(pod, a_snapshot(a_node("n"), nominated={"n": (expected,)})) == {
        "n": ["node(s) didn't match pod affinity rules"]
    }


def test_anti_affinity_keeps_pods_apart_in_both_directions():
    lonely = a_pod("lonely", labels={"app": "a"}, affinity=anti({"app": "a"}))
    plain = a_pod("plain", labels={"app": "a"})
    assert reasons(lonely, a_snapshot(a_node("n", plain), a_node("m"))) == {
        "n": ["node(s) didn't match pod anti-affinity rules"],
        "m": [],
    }
    assert reasons(plain, a_snapshot(a_node("n", lonely), a_node("m"))) == {
        "n": ["node(s) didn't satisfy existing pods anti-affinity rules"],
        "m": [],
    }


def test_anti_affinity_by_zone_covers_every_node_of_the_zone():
    lonely = a_pod("lonely", affinity=anti({"app": "a"}, ZONE))
    snapshot = a_snapshot(
        a_node("n", a_pod("q", labels={"app": "a"}), labels={ZONE: "1"}),
        a_node("m", labels={ZONE: "1"}),
        a_node("o", labels={ZONE: "2"}),
        a_node("unzoned"),
    )
    assert [name for name, found in reasons(lonely, snapshot).items() if not found] == ["o", "unzoned"]


def test_affinity_wants_a_pod_in_the_same_zone():
    pod = a_pod(affinity=near({"app": "db"}))
    snapshot = a_snapshot(
        a_node("n", a_pod("q", labels={"app": "db"}), labels={ZONE: "1"}),
        a_node("m", labels={ZONE: "1"}),
        a_node("o", labels={ZONE: "2"}),
        a_node("unzoned"),
    )
    assert [name for name, found in reasons(pod, snapshot).items() if not found] == ["n", "m"]


def test_the_first_pod_of_a_group_that_wants_its_own_company_may_stand_anywhere():
    first = a_pod("first", labels={"app": "db"}, affinity=near({"app": "db"}))
    stranger = a_pod("stranger", affinity=near({"app": "db"}))
    snapshot = a_snapshot(a_node("n", labels={ZONE: "1"}), a_node("unzoned"))
    assert reasons(first, snapshot) == {"n": [], "unzoned": ["node(s) didn't match pod affinity rules"]}
    assert reasons(stranger, snapshot)["n"] == ["node(s) didn't match pod affinity rules"]


def test_affinity_reaches_into_namespaces_chosen_by_label():
    term = {
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"team": "x"}},
        "topologyKey": ZONE,
    }
    pod = a_pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    node = a_node("n", a_pod("q", labels={"app": "db"}), labels={ZONE: "1"})
    assert reasons(pod, a_snapshot(node, namespaces={"lab": {"team": "x"}})) == {"n": []}
    assert reasons(pod, a_snapshot(node, namespaces={"lab": {"team": "y"}}))["n"]


def spread(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a"}},
            **more,
        }
    ]


def test_hard_spread_constraints_fill_the_emptier_zone():
    pod = a_pod("new", labels={"app": "a"}, topologySpreadConstraints=spread())
    snapshot = a_snapshot(
        a_node("n", a_pod("q", labels={"app": "a"}), labels={ZONE: "1"}),
        a_node("m", labels={ZONE: "2"}),
        a_node("unzoned"),
    )
    assert judged(pod, snapshot) == {
        "n": (Refusal("node(s) didn't match pod topology spread constraints", True),),
        "m": (),
        "unzoned": (
            Refusal("node(s) didn't match pod topology spread constraints (missing required label)", False),
        ),
    }


def test_pods_that_are_ending_do_not_count_for_spread():
    ending = a_pod("q", labels={"app": "a"}, metadata={"deletionTimestamp": "x"})
    pod = a_pod("new", labels={"app": "a"}, topologySpreadConstraints=spread())
    snapshot = a_snapshot(a_node("n", ending, labels={ZONE: "1"}), a_node("m", labels={ZONE: "2"}))
    assert reasons(pod, snapshot) == {"n": [], "m": []}


def test_too_few_domains_count_as_an_empty_one():
    pod = a_pod("new", labels={"app": "a"}, topologySpreadConstraints=spread(minDomains=3))
    one = a_pod("one", labels={"app": "a"})
    snapshot = a_snapshot(a_node("n", one, labels={ZONE: "1"}), a_node("m", one, labels={ZONE: "2"}))
    assert all(found for found in reasons(pod, snapshot).values())


def test_nodes_that_the_pod_cannot_use_do_not_count_as_domains():
    pod = a_pod("new", labels={"app": "a"}, topologySpreadConstraints=spread(), nodeSelector={"gpu": "a100"})
    snapshot = a_snapshot(
        a_node("n", a_pod("q", labels={"app": "a"}), labels={ZONE: "1", "gpu": "a100"}),
        a_node("m", labels={ZONE: "2"}),
    )
    assert reasons(pod, snapshot)["n"] == []


def test_match_label_keys_count_only_pods_of_the_same_revision():
    pod = a_pod("new", labels={"app": "a", "rev": "2"}, topologySpreadConstraints=spread(matchLabelKeys=["rev"]))
    old = a_pod("old", labels={"app": "a", "rev": "1"})
    snapshot = a_snapshot(a_node("n", old, labels={ZONE: "1"}), a_node("m", labels={ZONE: "2"}))
    assert reasons(pod, snapshot) == {"n": [], "m": []}


def with_claim(name: str = "data") -> PodView:
    return a_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}])


DELAYED = {
    "late": StorageClass(delayed=True, provisioner="x"),
    "soon": StorageClass(delayed=False, provisioner="x"),
}


@pytest.mark.parametrize(
    ("claim", "want"),
    [
        pytest.param(None, 'persistentvolumeclaim "data" not found', id="missing"),
        pytest.param(Claim(deleting=True), 'persistentvolumeclaim "data" is being deleted', id="deleting"),
        pytest.param(
            Claim(lost=True, volume="pv"),
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
            id="lost",
        ),
        pytest.param(
            Claim(storage_class="soon"), "pod has unbound immediate PersistentVolumeClaims", id="not bound yet"
        ),
        pytest.param(Claim(storage_class="late"), None, id="waits for the pod"),
        pytest.param(Claim(bound=True, volume="pv"), None, id="bound"),
    ],
)
def test_a_claim_must_be_there_and_bound_unless_it_waits_for_its_pod(claim, want):
    snapshot = a_snapshot(a_node("n"), claims={Key("lab", "data"): claim} if claim else {}, classes=DELAYED)
    assert reasons(with_claim(), snapshot) == {"n": [want] if want else []}


def test_a_bound_volume_keeps_the_pod_where_the_volume_can_be_reached():
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    volume = parse_volume(builders.an_object(PVS, "pv", spec=affinity))
    snapshot = a_snapshot(
        a_node("n"),
        a_node("m"),
        claims={Key("lab", "data"): Claim(bound=True, volume="pv")},
        volumes={"pv": volume},
    )
    assert reasons(with_claim(), snapshot) == {
        "n": [],
        "m": ["node(s) didn't match PersistentVolume's node affinity"],
    }


def test_a_claim_that_nobody_provisions_needs_a_free_volume():
    claims = {Key("lab", "data"): Claim(storage_class="static")}
    classes = {"static": StorageClass(delayed=True, provisioner="kubernetes.io/no-provisioner")}
    none = a_snapshot(a_node("n"), claims=claims, classes=classes)
    free = a_snapshot(
        a_node("n"),
        claims=claims,
        classes=classes,
        volumes={"pv": Volume(storage_class="static", available=True)},
    )
    assert reasons(with_claim(), none) == {"n": ["node(s) didn't find available persistent volumes to bind"]}
    assert reasons(with_claim(), free) == {"n": []}


def test_a_claim_being_made_for_one_node_draws_the_pod_there_unless_the_node_is_gone():
    claims = {Key("lab", "data"): Claim(storage_class="late", selected_node="m")}
    both = a_snapshot(a_node("n"), a_node("m"), claims=claims, classes=DELAYED)
    alone = a_snapshot(a_node("n"), claims=claims, classes=DELAYED)
    assert [name for name, found in reasons(with_claim(), both).items() if not found] == ["m"]
    assert reasons(with_claim(), alone) == {"n": []}


def test_a_claim_for_one_pod_admits_no_second_one_anywhere():
    claims = {Key("lab", "data"): Claim(bound=True, volume="pv", single_pod=True)}
    other = parse_pod_view(with_claim().obj | {"metadata": {"name": "other", "namespace": "lab"}})
    snapshot = a_snapshot(a_node("n", other), a_node("m"), claims=claims)
    found = judged(with_claim(), snapshot)
    assert {one.resolvable for refused in found.values() for one in refused} == {True}
    assert all(found.values())


def test_the_message_counts_and_sorts_reasons_as_kube_scheduler_does():
    gpu, cpu = Refusal("Insufficient nvidia.com/gpu", True), Refusal("Insufficient cpu", True)
    assert fit_message(3, [[gpu], [gpu, cpu], [cpu]]) == (
        "0/3 nodes are available: 2 Insufficient cpu, 2 Insufficient nvidia.com/gpu."
    )
    assert blanket_message(2, Refusal('persistentvolumeclaim "x" not found', False), "preemption: no.") == (
        '0/2 nodes are available: persistentvolumeclaim "x" not found. preemption: no.'
    )


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
def test_taking_pods_off_a_node_undoes_putting_them_on(gpus, data):
    pods = [a_pod(f"p{at}", gpus=count, cpu="1", memory="1Gi") for at, count in enumerate(gpus)]
    gone = data.draw(st.sets(st.sampled_from(pods).map(lambda pod: pod.key)) if pods else st.just(set()))
    node = a_node("n", *pods).without_pods(*gone)
    rest = a_node("n", *(pod for pod in pods if pod.key not in gone))
    assert node.pods == rest.pods
    assert +Counter(node.used) == +Counter(rest.used)
    assert +Counter(node.nonzero) == +Counter(rest.nonzero)


@given(st.lists(st.integers(0, 4), max_size=5), st.integers(1, 5))
def test_a_pod_is_let_in_exactly_when_its_gpus_are_free(held, asked):
    node = a_node("n", *(a_pod(f"p{at}", gpus=count) for at, count in enumerate(held)), gpus=4)
    fits = sum(held) + asked <= 4
    assert (reasons(a_pod("new", gpus=asked), a_snapshot(node)) == {"n": []}) is fits
