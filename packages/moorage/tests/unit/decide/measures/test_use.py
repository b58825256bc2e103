"""How busy held GPUs are, as Prometheus is shown it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.measures.use import (
    NODE_COUNT,
    NODE_USE,
    TENANT_COUNT,
    TENANT_USE,
    USER_COUNT,
    USER_USE,
    PodGpus,
    measure_use,
    pod_gpus,
)
from moorage.decide.usage.gpus import view_gpus
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.metrics.families import OTHER
from moorage_kube.meta import Key
from moorage_testing.builders import a_gpu_node
from tests.unit.decide.measures.test_gpus import a_pod

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def a_reading(name, *percents):
    gpus = tuple(GpuReading(device=f"{name}/{at}", utilisation=percent) for at, percent in enumerate(percents))
    return {Key("lab", name): Reading(pod_uid=name, at=NOON, gpus=gpus)}


def values(nodes, pods, readings):
    counted = pod_gpus(view_gpus(nodes, pods), readings, lambda namespace: "vision" * (namespace == "lab"))
    return {row.family: dict(row.values) for row in measure_use(counted)}


def test_means_are_over_measured_gpus_and_the_others_are_counted_apart():
    nodes = [a_gpu_node("n1", 4), a_gpu_node("n2", 2)]
    pods = [a_pod("train", "n1", 2), a_pod("tune", "n1", 1, "ben"), a_pod("dark", "n2", 2)]
    made = values(nodes, pods, a_reading("train", 90, 30) | a_reading("tune", 0))
    assert made[NODE_USE] == {("n1", "a100"): pytest.approx(0.4)}
    assert made[NODE_COUNT] == {
        ("n1", "a100", "yes"): 3,
        ("n1", "a100", "no"): 0,
        ("n2", "a100", "yes"): 0,
        ("n2", "a100", "no"): 2,
    }
    assert made[USER_USE] == {("ada",): pytest.approx(0.6), ("ben",): 0}
    assert made[USER_COUNT] == {("ada", "yes"): 2, ("ada", "no"): 2, ("ben", "yes"): 1, ("ben", "no"): 0}
    assert made[TENANT_USE] == {("vision",): pytest.approx(0.4)}
    assert made[TENANT_COUNT] == {("vision", "yes"): 3, ("vision", "no"): 2}


def test_a_reading_without_gpus_measures_none_and_one_of_too_many_no_more_than_are_held():
    nodes = [a_gpu_node("n1", 4)]
    made = values(nodes, [a_pod("train", "n1", 1)], a_reading("train"))
    assert made[USER_USE] == {}
    assert made[USER_COUNT] == {("ada", "yes"): 0, ("ada", "no"): 1}
    made = values(nodes, [a_pod("train", "n1", 1)], a_reading("train", 40, 60))
    assert made[USER_USE] == {("ada",): pytest.approx(0.5)}
    assert made[USER_COUNT] == {("ada", "yes"): 1, ("ada", "no"): 0}


def test_what_is_beyond_the_bound_has_a_mean_too():
    users = {f"u{number}": 10 for number in range(USER_USE.series_max)} | {"ben": 50, "cas": 100}
    pods = [
        PodGpus(node="n1", type="a100", user=user, tenant="", held=1, known=1, busy=percent / 100)
        for user, percent in users.items()
    ]
    made = {row.family: dict(row.values) for row in measure_use(pods)}[USER_USE]
    assert len(made) == USER_USE.series_max + 1
    assert made["u1",] == pytest.approx(0.1)
    assert made[OTHER,] == pytest.approx(0.75)


asked = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2"]),
        st.integers(1, 3),
        st.sampled_from("ab"),
        st.lists(st.floats(-10, 200), max_size=4),
    ),
    max_size=4,
)


@given(asked)
def test_each_held_gpu_is_counted_once_and_means_are_ratios(asked):
    pods = [a_pod(f"p{at}", node, gpus, owner) for at, (node, gpus, owner, _) in enumerate(asked)]
    readings = {
        key: reading for at, row in enumerate(asked) for key, reading in a_reading(f"p{at}", *row[3]).items()
    }
    made = values([a_gpu_node("n1", 12), a_gpu_node("n2", 12)], pods, readings)
    held = sum(gpus for _, gpus, _, _ in asked)
    for family in (NODE_COUNT, USER_COUNT, TENANT_COUNT):
        assert sum(made[family].values()) == held
    for mean, count in ((NODE_USE, NODE_COUNT), (USER_USE, USER_COUNT), (TENANT_USE, TENANT_COUNT)):
        assert all(-1e-9 <= ratio <= 1 + 1e-9 for ratio in made[mean].values())
        assert set(made[mean]) == {key[:-1] for key, gpus in made[count].items() if key[-1] == "yes" and gpus}
