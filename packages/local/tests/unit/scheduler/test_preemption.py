from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.selectors import parse_label_selector
from moorage_local.scheduler.filters import Refusal, facts_of, judge
from moorage_local.scheduler.preemption import (
    NO_VICTIMS,
    NOT_HELPFUL,
    Candidate,
    choose,
    find_candidates,
    split_by_budget,
    why_not_eligible,
)
from moorage_local.scheduler.snapshot import Budget, NodeState, PodView, Snapshot
from moorage_local.testing.builders import a_node_state, a_pod_view, a_snapshot

SHORT = {"n": (Refusal("Insufficient nvidia.com/gpu", True),)}


def a_pod(name: str, gpus: int = 1, priority: int = 0, *, started: int = 0, **more: Any) -> PodView:
    status = {"startTime": f"2026-11-21T12:{started:02}:00Z"} | more.pop("status", {})
    return a_pod_view(name, gpus=gpus, priority=priority, status=status, **more)


def a_node(name: str, *pods: PodView, gpus: int = 4) -> NodeState:
    return a_node_state(name, *pods, gpus=gpus)


def candidates(pod: PodView, snapshot: Snapshot) -> tuple[list[Candidate], dict[str, tuple[Refusal, ...]]]:
    facts = facts_of(pod, snapshot)
    refusals = {name: judge(pod, node, snapshot, facts) for name, node in snapshot.nodes.items()}
    return find_candidates(pod, snapshot, refusals)


def names(candidate: Candidate | None) -> tuple[str, list[str]]:
    assert candidate is not None
    return candidate.node, [victim.info.name for victim in candidate.victims]


def test_as_few_pods_as_needed_leave_and_the_least_important_ones():
    node = a_node("n", a_pod("a", 1, 1), a_pod("b", 1, 2), a_pod("c", 2, 3))
    found, failed = candidates(a_pod("new", 2, 10), a_snapshot(node))
    assert [names(one) for one in found] == [("n", ["b", "a"])]
    assert failed == {}


def test_the_one_that_ran_longer_is_spared():
    node = a_node("n", a_pod("old", 2, started=1), a_pod("young", 2, started=9))
    found, _ = candidates(a_pod("new", 2, 10), a_snapshot(node))
    assert [names(one) for one in found] == [("n", ["young"])]


def test_pods_of_the_same_priority_are_never_victims():
    found, failed = candidates(a_pod("new", 2, 5), a_snapshot(a_node("n", a_pod("a", 4, 5))))
    assert found == []
    assert failed == {"n": (NO_VICTIMS,)}


def test_a_node_that_no_removal_can_help_is_left_alone():
    found, failed = candidates(a_pod("new", 8, 5), a_snapshot(a_node("n", a_pod("a", 4))))
    assert found == []
    assert failed == {"n": (NOT_HELPFUL,)}


def test_a_node_where_even_all_lower_pods_are_too_few_says_what_is_short():
    node = a_node("n", a_pod("a", 1), a_pod("high", 3, 100))
    found, failed = candidates(a_pod("new", 2, 5), a_snapshot(node))
    assert found == []
    assert failed == {"n": (Refusal("Insufficient nvidia.com/gpu", True),)}


def test_pods_under_a_budget_that_is_used_up_are_spared_while_others_serve():
    protected = a_pod("protected", 2, 1, labels={"app": "db"})
    plain = a_pod("plain", 2, 4)
    budget = Budget(namespace="lab", selector=parse_label_selector("app=db"), allowed=0)
    snapshot = a_snapshot(a_node("n", protected, plain), budgets=(budget,))
    found, _ = candidates(a_pod("new", 2, 10), snapshot)
    assert [names(one) for one in found] == [("n", ["plain"])]
    assert found[0].violations == 0


def test_a_budget_is_broken_when_nothing_else_helps_and_that_is_counted():
    protected = a_pod("protected", 4, 1, labels={"app": "db"})
    budget = Budget(namespace="lab", selector=parse_label_selector("app=db"), allowed=0)
    found, _ = candidates(a_pod("new", 2, 10), a_snapshot(a_node("n", protected), budgets=(budget,)))
    assert [(names(one), one.violations) for one in found] == [(("n", ["protected"]), 1)]


def test_a_budget_lets_as_many_go_as_it_allows():
    pods = [a_pod(name, labels={"app": "db"}) for name in "abc"]
    budget = Budget(namespace="lab", selector=parse_label_selector("app=db"), allowed=2)
    protected, free = split_by_budget(pods, [budget])
    assert [pod.info.name for pod in protected] == ["c"]
    assert [pod.info.name for pod in free] == ["a", "b"]


@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        pytest.param({"n": [(2, 5)], "m": [(2, 3)]}, "m", id="lower top priority"),
        pytest.param({"n": [(1, 5), (1, 5)], "m": [(1, 5), (1, 3)]}, "m", id="lower sum"),
        pytest.param(
            {"n": [(1, -1), (1, -1)], "m": [(2, -1)]}, "m", id="fewer victims, priorities being negative"
        ),
    ],
)
def test_the_cheapest_node_is_chosen(nodes, want):
    states = [
        a_node(name, *(a_pod(f"{name}{at}", gpus, priority) for at, (gpus, priority) in enumerate(held)), gpus=2)
        for name, held in nodes.items()
    ]
    found, _ = candidates(a_pod("new", 2, 10), a_snapshot(*states))
    assert names(choose(found, random.Random(0)))[0] == want


def test_between_equals_the_one_that_started_last_goes():
    states = [a_node("n", a_pod("a", 2, started=9), gpus=2), a_node("m", a_pod("b", 2, started=1), gpus=2)]
    found, _ = candidates(a_pod("new", 2, 10), a_snapshot(*states))
    assert names(choose(found, random.Random(0))) == ("n", ["a"])


def test_a_broken_budget_outweighs_a_low_priority():
    guarded = a_pod("guarded", 2, -10, labels={"app": "db"})
    budget = Budget(namespace="lab", selector=parse_label_selector("app=db"), allowed=0)
    states = [a_node("n", guarded, gpus=2), a_node("m", a_pod("plain", 2, 5), gpus=2)]
    found, _ = candidates(a_pod("new", 2, 10), a_snapshot(*states, budgets=(budget,)))
    assert names(choose(found, random.Random(0))) == ("m", ["plain"])


def test_who_may_not_preempt_does_not():
    pod = a_pod("new", 2, 10, preemptionPolicy="Never")
    assert why_not_eligible(pod, "", a_snapshot(), SHORT) == "not eligible due to preemptionPolicy=Never."


def test_while_victims_are_ending_no_more_are_taken():
    going = a_pod(
        "going",
        2,
        metadata={"deletionTimestamp": "2026-11-21T12:00:00Z"},
        status={"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
    )
    snapshot = a_snapshot(a_node("n", going))
    reason = "not eligible due to a terminating pod on the nominated node."
    assert why_not_eligible(a_pod("new", 4, 10), "n", snapshot, SHORT) == reason
    assert why_not_eligible(a_pod("new", 4, 10), "", snapshot, SHORT) is None
    hopeless = {"n": (Refusal("node(s) were unschedulable", False),)}
    assert why_not_eligible(a_pod("new", 4, 10), "n", snapshot, hopeless) is None


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), max_size=5), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_victims_make_room_are_all_lower_and_none_of_them_could_stay(nodes, gpus, priority):
    states = []
    for at, held in enumerate(nodes):
        node = a_node(f"n{at}")
        for number, (count, level) in enumerate(held):
            pod = a_pod(f"p{at}-{number}", count, level)
            if sum(one.info.gpus for one in node.pods) + count <= 4:
                node = node.with_pods(pod)
        states.append(node)
    snapshot = a_snapshot(*states)
    new = a_pod("new", gpus, priority)
    found, failed = candidates(new, snapshot)
    assert {one.node for one in found} | failed.keys() == snapshot.nodes.keys()
    for one in found:
        node = snapshot.nodes[one.node]
        assert all(victim.info.priority < priority for victim in one.victims)
        left = node.without_pods(*(victim.key for victim in one.victims))
        assert judge(new, left, snapshot, facts_of(new, snapshot)) == ()
        for victim in one.victims:
            assert judge(new, left.with_pods(victim), snapshot, facts_of(new, snapshot))
