"""`moor simulate` with the extender's handler in it is `moor simulate` without."""

from __future__ import annotations

import json
import random

import pytest

from moorage.decide.packing.policies import Ask
from moorage.decide.packing.winner import OUTVOTES
from moorage.extender.policies import make_policy
from moorage.extender.replay import Handler, make_pod
from moorage.extender.simulation import GPU, Cluster, Scheduler, TraceNode, TracePod
from moorage_kube.errors import UsageError

SLICE = "nvidia.com/mig-1g.10gb"
NODES = [
    *(TraceNode(f"big{at:03}", 96000, 393216, 8, "A100") for at in range(90)),
    *(TraceNode(f"small{at:03}", 104000, 393216, 2, "T4") for at in range(50)),
    *(TraceNode(f"sliced{at:03}", 64000, 131072, 7, "A100", SLICE) for at in range(5)),
    *(TraceNode(f"plain{at:03}", 64000, 131072, 0, "") for at in range(5)),
]
PODS = [
    *(TracePod("one", Ask(((GPU, 1),), cpu=cpu), 4096) for cpu in (1000, 8000, 11000, 24000) for _ in range(8)),
    *(TracePod("typed", Ask(((GPU, 1),), cpu=9000, kinds=("T4",)), 4096) for _ in range(4)),
    *(TracePod("many", Ask(((GPU, count),), cpu=count * 9000), 65536) for count in (2, 4, 8)),
    *(TracePod("slice", Ask(((SLICE, 1),), cpu=4000), 4096) for _ in range(2)),
    TracePod("cpu", Ask((), cpu=6000), 8192),
]


@pytest.mark.parametrize("policy", ["pack", "fragmentation", "spread", "none"])
def test_the_handler_places_every_pod_where_the_scoreboard_says(policy):
    scheduler = Scheduler(default_scores=True)
    clusters = [
        Cluster(NODES, make_policy(policy), scheduler, random.Random(1), extender)
        for extender in (None, Handler(NODES, policy))
    ]
    chosen = random.Random(2)
    standing: list[tuple] = []
    placed_pods = refused = 0
    for _ in range(900):
        if standing and chosen.random() < 0.25:
            for cluster, placed in zip(clusters, standing.pop(chosen.randrange(len(standing))), strict=True):
                cluster.leave(placed)
            continue
        pod = chosen.choice(PODS)
        one, other = (cluster.arrive(pod) for cluster in clusters)
        assert one == other
        if one is None:
            refused += 1
        else:
            placed_pods += 1
            standing.append((one, other))
    assert placed_pods > 500
    assert refused > 5
    assert {placed.pod.ask.gpus for placed, _ in standing} >= {((GPU, 8),), ((SLICE, 1),)}


def test_the_handler_answers_in_the_wire_format():
    handler = Handler(NODES, "fragmentation")
    names = ["big000", "plain000"]
    body = json.dumps({"Pod": make_pod("uid", PODS[0]), "NodeNames": names}).encode()
    status, answer = handler.post("/scheduler/prioritize", body)
    assert status == 200
    assert json.loads(answer) == [{"Host": "big000", "Score": OUTVOTES}]
    body = json.dumps({"Pod": make_pod("uid", PODS[-1]), "NodeNames": names}).encode()
    status, answer = handler.post("/scheduler/prioritize", body)
    assert status == 200
    assert [score["Host"] for score in json.loads(answer)] == names
    assert all(isinstance(score["Score"], int) for score in json.loads(answer))


def test_a_share_of_a_gpu_cannot_be_asked_of_the_handler():
    with pytest.raises(UsageError) as caught:
        Handler(NODES, "pack").created("uid", TracePod("half", Ask(((GPU, 1),), 500), 1))
    assert "half asks for a share of a GPU" in caught.value.message
