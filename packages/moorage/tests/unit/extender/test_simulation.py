from __future__ import annotations

import csv
import io
import random

import pytest

from moorage.decide.packing.policies import WHOLE, Ask
from moorage.extender.policies import make_policy
from moorage.extender.simulation import (
    GPU,
    Cluster,
    Scheduler,
    TraceNode,
    TracePod,
    bound,
    churn,
    fill,
    impossible,
    read_nodes,
    read_pods,
)
from moorage_kube.errors import UsageError

NODES = [TraceNode(f"n{at:03}", 96000, 393216, 8, "a100") for at in range(12)]


def a_pod(gpus: int = 1, milli: int = WHOLE, cpu: int = 8000, kinds: tuple[str, ...] = ()) -> TracePod:
    return TracePod("p", Ask(((GPU, gpus),) if gpus else (), milli, cpu, kinds), 1024)


PODS = [a_pod()] * 30 + [a_pod(2, cpu=16000)] * 4 + [a_pod(8, cpu=64000)] * 3


def rows(text: str):
    return csv.DictReader(io.StringIO(text))


def test_a_trace_is_read_and_shares_are_left_out_on_demand():
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nb,1,2,1,500,\na,3,4,2,1000,T4|P100\nc,5,6,0,0,\n"
    assert read_pods(rows(text)) == [
        TracePod("a", Ask(((GPU, 2),), WHOLE, 3, ("P100", "T4")), 4),
        TracePod("b", Ask(((GPU, 1),), 500, 1), 2),
        TracePod("c", Ask((), WHOLE, 5), 6),
    ]
    assert [pod.name for pod in read_pods(rows(text), whole=True)] == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sn,cpu_milli,memory_mib,model\nn,1,2,T4\n", "no column gpu (line 2)"),
        ("sn,cpu_milli,memory_mib,gpu\nn,1,x,2\n", "line 2: memory_mib is 'x', not a whole number"),
        ("sn,cpu_milli,memory_mib,gpu\nn,1,2,-1\n", "line 2: gpu is -1, less than 0"),
        ("sn,cpu_milli,memory_mib,gpu\nn,1,2,1\nn,1,2,1\n", "same name"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named_by_line_and_column(text, words):
    with pytest.raises(UsageError) as caught:
        read_nodes(rows(text))
    assert words in caught.value.message


@pytest.mark.parametrize(("nodes", "want"), [(50, 50), (100, 100), (1213, 497), (5000, 500), (20000, 1000)])
def test_so_many_nodes_are_looked_at_as_by_kube_scheduler(nodes, want):
    assert Scheduler().sample(nodes) == want


@pytest.mark.parametrize("policy", ["pack", "fragmentation", "spread", "none"])
def test_what_is_placed_fits_and_what_leaves_leaves_nothing_behind(policy):
    mixed = [*PODS, a_pod(1, 300), a_pod(1, 700), a_pod(0)]
    cluster = Cluster(NODES, make_policy(policy), Scheduler(default_scores=True), random.Random(1))
    chosen = random.Random(2)
    standing = []
    for _ in range(400):
        if standing and chosen.random() < 0.4:
            cluster.leave(standing.pop(chosen.randrange(len(standing))))
        else:
            placed = cluster.arrive(chosen.choice(mixed))
            if placed:
                standing.append(placed)
        for node in cluster._nodes:
            assert min(node.devices) >= 0
            assert node.cpu >= 0
            assert node.memory >= 0
    for placed in standing:
        cluster.leave(placed)
    assert all(node.devices == [WHOLE] * 8 and node.cpu == 96000 for node in cluster._nodes)


def test_equal_seeds_give_equal_runs():
    run = {"policy": "fragmentation", "seed": 3, "scheduler": Scheduler()}
    assert fill(NODES, PODS, **run) == fill(NODES, PODS, **run)
    assert churn(NODES, PODS, load=0.9, **run) == churn(NODES, PODS, load=0.9, **run)


def test_keeping_nodes_whole_serves_large_pods_better_than_spreading():
    def refused(policy: str) -> int:
        runs = [fill(NODES, PODS, policy=policy, seed=seed, scheduler=Scheduler()) for seed in range(5)]
        return sum(run.large_refused for run in runs)

    assert refused("fragmentation") < refused("spread")
    assert refused("pack") < refused("spread")


def test_the_bound_counts_what_no_placement_avoids():
    assert bound(NODES, PODS) == 1.0
    half_impossible = [a_pod(), a_pod(kinds=("t4",))]
    assert impossible(NODES, half_impossible) == 0.5
    assert bound(NODES, half_impossible) == 0.5
    assert bound(NODES, [a_pod(1, 800)]) == pytest.approx(1 - 0.2)
