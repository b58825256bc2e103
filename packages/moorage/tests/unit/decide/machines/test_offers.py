"""Which machines may be asked for, by the nodes of a cluster; prices, quotas and the command that asks."""

from __future__ import annotations

import pytest

from moorage.api.nodes import Node
from moorage.decide.machines.offers import MachineOffer, how_to_ask, offers_of, price_of
from moorage.decide.machines.quota import quota_words
from moorage.model.prices import market_of, parse_sheet

GI = 2**30


def a_node(name="n", **fields):
    size = {"cpu_millicores": 16_000, "memory_bytes": 64 * GI, "state": "Ready"}
    return Node(name=name, **(size | fields))


def an_offer(**fields):
    known = {
        "type": "", "region": "", "market": "", "gpu_type": "", "gpus": 0, "cpu": 16_000, "memory": 64 * GI,
        "nodes": 1, "ready": 1, "free_gpus": 0, "together": 0, "free_cpu": 16_000, "free_memory": 64 * GI,
    }  # fmt: skip
    return MachineOffer(**(known | fields))


def test_nodes_of_one_type_and_size_are_one_offer_and_what_is_free_is_on_ready_nodes():
    gpu = {"gpu_type": "a100", "gpus": 4, "instance_type": "p4", "market": "spot"}
    nodes = [
        a_node("c"),
        a_node("g1", gpus_used=3, cpu_used_millicores=1_000, **gpu),
        a_node("g2", gpus_used=1, memory_used_bytes=GI, **gpu),
        a_node("g3", **(gpu | {"state": "Cordoned"})),
        a_node("g4", **(gpu | {"market": "on-demand", "state": "NotReady"})),
    ]
    kept = {"type": "p4", "gpu_type": "a100", "gpus": 4}
    assert offers_of(nodes) == (
        an_offer(**kept, market="on-demand", ready=0, free_cpu=0, free_memory=0),
        an_offer(
            **kept, market="spot", nodes=3, ready=2, free_gpus=4, together=3, free_cpu=31_000, free_memory=127 * GI
        ),
        an_offer(),
    )
    assert offers_of([]) == ()


@pytest.mark.parametrize(
    ("offer", "name", "command"),
    [
        (an_offer(gpus=4, gpu_type="a100"), "4xa100", "moor run --gpus 4 --gpu-type a100 -- COMMAND"),
        (an_offer(gpus=1, gpu_type="gpu", type="vm"), "vm", "moor run --gpus 1 -- COMMAND"),
        (an_offer(), "cpu", "moor run --cpu 16 -- COMMAND"),
        (an_offer(cpu=500), "cpu", "moor run --cpu 1 -- COMMAND"),
    ],
)
def test_each_offer_says_how_to_ask_for_it(offer, name, command):
    assert (offer.name, how_to_ask(offer)) == (name, command)


@pytest.mark.parametrize(
    ("fields", "price"),
    [
        pytest.param({"type": "p4", "region": "eu"}, 4.0, id="on demand where the nodes do not say"),
        pytest.param({"type": "p4", "region": "eu", "market": "spot"}, 1.5, id="spot"),
        pytest.param({"type": "p4", "region": "us"}, None, id="another region"),
        pytest.param({"type": "p5"}, 9.0, id="a price without a region holds everywhere"),
        pytest.param({"type": ""}, None, id="nodes without a type"),
    ],
)
def test_the_price_is_that_of_type_region_and_market(fields, price):
    size = {"cpu": 8, "memory": "32Gi"}
    sheet = parse_sheet(
        {
            "machines": [
                {"name": "p4", **size, "prices": [{"region": "eu", "spot": 1.5, "onDemand": 4}]},
                {"name": "p5", **size, "prices": [{"onDemand": 9}]},
            ]
        }
    )
    known = price_of(an_offer(**fields), sheet)
    assert (known.price_per_hour if known else None) == price


@pytest.mark.parametrize(
    ("labels", "market"),
    [
        ({}, ""),
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-preemptible": "false"}, "spot"),
        ({"node.moorage.dev/spot": "false"}, "on-demand"),
    ],
)
def test_nodes_say_by_their_labels_whether_they_may_be_taken_away(labels, market):
    assert market_of(labels) == market


def test_of_several_quotas_the_nearest_counts():
    def a_quota(hard, used):
        return {"status": {"hard": hard, "used": used}}

    quotas = [
        a_quota({"requests.nvidia.com/gpu": "8", "requests.cpu": "64", "services": "3"}, {"requests.cpu": "12"}),
        a_quota({"requests.nvidia.com/gpu": "4", "memory": "1Ti"}, {"requests.nvidia.com/gpu": "3"}),
        {"spec": {"hard": {"pods": "50", "cpu": "?"}}},
    ]
    assert quota_words(quotas) == "GPUs (nvidia.com/gpu) 3/4, CPU 12/64, memory 0/1Ti, pods 0/50"
    assert quota_words([]) == quota_words([{}]) == ""
