from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.scheduler.scores import (
    WEIGHTS,
    balanced_allocation,
    least_allocated,
    pick,
    score_parts,
    total_scores,
)
from moorage_local.scheduler.snapshot import NodeState, PodView, Snapshot
from moorage_local.testing.builders import a_node_state as a_node
from moorage_local.testing.builders import a_pod_view as a_pod

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def parts(pod: PodView, *nodes: NodeState) -> dict[str, dict[str, int]]:
    return score_parts(pod, nodes, Snapshot(nodes={node.name: node for node in nodes}))


def total(pod: PodView, *nodes: NodeState) -> dict[str, int]:
    return total_scores(pod, nodes, Snapshot(nodes={node.name: node for node in nodes}))


def test_an_emptier_node_scores_higher_so_that_gpu_pods_are_spread():
    pod, standing = a_pod(gpus=1), a_pod("q", gpus=1)
    scores = total(pod, a_node("used", standing), a_node("empty"))
    assert scores["empty"] > scores["used"]


def test_least_allocated_averages_the_free_shares_of_cpu_and_memory():
    assert least_allocated(a_pod(cpu="1", memory="4Gi"), a_node("n")) == (75 + 50) // 2
    assert least_allocated(a_pod(cpu="5", memory="4Gi"), a_node("n")) == 25  # more than there is counts as 0


def test_balanced_allocation_prefers_even_use():
    assert balanced_allocation(a_pod(cpu="2", memory="4Gi"), a_node("n")) == 100
    assert balanced_allocation(a_pod(cpu="4"), a_node("n")) == 50
    assert balanced_allocation(a_pod(gpus=1), a_node("n")) == 0


def test_preferred_node_affinity_is_scaled_to_the_best_node():
    prefer = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}}
        for weight, key in ((10, "a"), (30, "b"))
    ]
    pod = a_pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}})
    nodes = a_node("a", labels={"a": ""}), a_node("b", labels={"b": ""}), a_node("ab", labels={"a": "", "b": ""})
    assert parts(pod, *nodes, a_node("none"))["NodeAffinity"] == {"a": 25, "b": 75, "ab": 100, "none": 0}


def test_soft_taints_are_avoided():
    tainted = a_node("n", spec={"taints": [{"key": "x", "effect": "PreferNoSchedule"}]})
    assert parts(a_pod(), tainted, a_node("m"))["TaintToleration"] == {"n": 0, "m": 100}
    tolerant = a_pod(tolerations=[{"operator": "Exists"}])
    assert parts(tolerant, tainted, a_node("m"))["TaintToleration"] == {"n": 100, "m": 100}


def wish(kind: str, app: str, weight: int = 1) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOST}
    one = {"weight": weight, "podAffinityTerm": term}
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [one]}}


@pytest.mark.parametrize(
    ("pod", "standing", "want"),
    [
        (a_pod(affinity=wish("podAffinity", "q")), a_pod("q", labels={"app": "q"}), {"n": 100, "m": 0}),
        (a_pod(affinity=wish("podAntiAffinity", "q")), a_pod("q", labels={"app": "q"}), {"n": 0, "m": 100}),
        (a_pod(labels={"app": "p"}), a_pod("q", affinity=wish("podAffinity", "p")), {"n": 100, "m": 0}),
        (a_pod(labels={"app": "p"}), a_pod("q", affinity=wish("podAntiAffinity", "p")), {"n": 0, "m": 100}),
        (a_pod(), a_pod("q"), {"n": 0, "m": 0}),
    ],
    ids=["wants company", "wants distance", "is wanted", "is unwanted", "indifferent"],
)
def test_wishes_about_neighbours_count_from_both_sides(pod, standing, want):
    assert parts(pod, a_node("n", standing), a_node("m"))["InterPodAffinity"] == want


def test_soft_spread_prefers_the_emptier_zone():
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
    pod = a_pod("new", labels={"app": "a"}, topologySpreadConstraints=[constraint])
    one = a_pod("one", labels={"app": "a"})
    scores = parts(pod, a_node("n", one, labels={ZONE: "1"}), a_node("m", labels={ZONE: "2"}), a_node("o"))
    assert scores["PodTopologySpread"] == {"n": 0, "m": 100, "o": 0}


def test_pods_of_one_replica_set_are_spread_without_being_told():
    scores = parts(a_pod("b", owner="rs"), a_node("n", a_pod("a", owner="rs")), a_node("m"))
    assert scores["PodTopologySpread"]["m"] > scores["PodTopologySpread"]["n"]
    assert set(parts(a_pod("b"), a_node("n", a_pod("a")), a_node("m"))["PodTopologySpread"].values()) == {0}


def test_ties_are_broken_at_random_but_repeatably():
    totals = {"a": 5, "b": 5, "c": 4}
    first = [pick(totals, random.Random(seed)) for seed in range(50)]
    assert set(first) == {"a", "b"}
    assert first == [pick(totals, random.Random(seed)) for seed in range(50)]


amounts = st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(0, 2))


@given(st.lists(st.lists(amounts, max_size=4), min_size=1, max_size=5), amounts)
def test_every_score_is_an_integer_from_0_to_100(nodes, asked):
    def pod(name: str, one: tuple[int, int, int]) -> PodView:
        return a_pod(name, cpu=str(one[0]), memory=f"{one[1]}Gi", gpus=one[2], owner="rs")

    states = [
        a_node(f"n{at}", *(pod(f"p{at}-{number}", one) for number, one in enumerate(held)))
        for at, held in enumerate(nodes)
    ]
    found = parts(pod("new", asked), *states)
    assert found.keys() == WEIGHTS.keys()
    for scores in found.values():
        assert scores.keys() == {node.name for node in states}
        assert all(isinstance(score, int) and 0 <= score <= 100 for score in scores.values())
