"""GPUs as Prometheus is shown them: by node, type, owner and tenant."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.measures.gpus import (
    GPUS,
    HELD,
    HELD_SINCE,
    HOLDINGS,
    OF_CLUSTER,
    OF_LITTLE_USE_ON,
    OF_TENANT,
    OF_TYPE,
    measure_gpus,
)
from moorage.decide.usage.gpus import view_gpus
from moorage_testing.builders import a_gpu_node, a_run_pod, keyed


def a_pod(name, node, gpus, owner="ada"):
    labels = keyed(owner=owner)
    return a_run_pod(name, run=name, labels=labels, node=node, gpus=gpus, started="2026-01-05T10:00:00Z")


def values(nodes, pods):
    rows = measure_gpus(view_gpus(nodes, pods), (), lambda namespace: "vision" * (namespace == "lab"))
    return {row.family: dict(row.values) for row in rows}


def test_every_gpu_is_told_by_node_owner_and_tenant():
    made = values([a_gpu_node("n1", 4), a_gpu_node("n2", 2)], [a_pod("train", "n1", 3)])
    assert made[GPUS] == {
        ("n1", "a100", "free"): 1,
        ("n1", "a100", "used"): 3,
        ("n1", "a100", "reserved"): 0,
        ("n1", "a100", "unavailable"): 0,
        ("n2", "a100", "free"): 2,
        ("n2", "a100", "used"): 0,
        ("n2", "a100", "reserved"): 0,
        ("n2", "a100", "unavailable"): 0,
    }
    assert made[HELD] == {("ada",): 3}
    assert made[OF_TENANT] == {("vision", "a100"): 3}
    assert made[HOLDINGS] == {("n1", "a100", "ada", "lab", "train"): 3}
    began = datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp()
    assert made[HELD_SINCE] == {("n1", "a100", "ada", "lab", "train"): began}
    assert made[OF_LITTLE_USE_ON] == {
        ("n1", "a100", "fragmented"): 1,
        ("n1", "a100", "stranded"): 0,
        ("n2", "a100", "fragmented"): 0,
        ("n2", "a100", "stranded"): 0,
    }


pods = st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(1, 3), st.sampled_from("ab")), max_size=4)


@given(pods)
def test_the_sums_agree(asked):
    made = values(
        [a_gpu_node("n1", 4), a_gpu_node("n2", 8)],
        [a_pod(f"p{at}", node, many, owner) for at, (node, many, owner) in enumerate(asked)],
    )
    used = made[OF_CLUSTER]["used",]
    assert sum(made[OF_CLUSTER].values()) == sum(made[GPUS].values()) == sum(made[OF_TYPE].values()) == 12
    assert used == sum(made[HELD].values()) == sum(made[OF_TENANT].values()) == sum(made[HOLDINGS].values())
