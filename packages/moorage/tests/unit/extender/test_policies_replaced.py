from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from moorage.decide.packing.policies import Ask
from moorage.decide.packing.winner import OUTVOTES
from moorage.extender.app import parse_arguments, prioritize
from moorage.extender.cache import ExtenderCache, ask_of
from moorage.extender.policies import make_policy
from moorage_kube.errors import UsageError
from moorage_kube.meta import Key
from moorage_kube.resources import NODES, PODS, Obj
from moorage_local.testing.fakeapi import FakeApi

GPU = "nvidia.com/gpu"
TYPE = "nvidia.com/gpu.product"


def a_node(name: str) -> Obj:
    return {
        "metadata": {"name": name, "labels": {TYPE: "a100"}},
        "status": {"allocatable": {"cpu": "96", GPU: "8"}},
    }


def a_pod(name: str, node: str = "", *, gpus: int = 1, cpu: str = "8", **spec: Any) -> Obj:
    limits = {"cpu": cpu, **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": name, "namespace": "lab", "uid": name},
        "spec": {
            "containers": [{"resources": {"limits": limits}}],
            **({"nodeName": node} if node else {}),
            **spec,
        },
    }


@pytest.mark.anyio
async def test_fragmentation_keeps_whole_nodes_whole_and_gpus_with_cpu():
    api = FakeApi()
    for name in ("whole", "broken", "no-cpu"):
        api.put(NODES, a_node(name))
    api.put(PODS, a_pod("one", "broken"))
    api.put(PODS, a_pod("hog", "no-cpu", gpus=0, cpu="88"))
    cache = ExtenderCache(api, policy=make_policy("fragmentation"))
    task = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        body = {"Pod": a_pod("new"), "NodeNames": ["whole", "broken", "no-cpu", "stranger"]}
        best = json.loads(prioritize(parse_arguments(json.dumps(body).encode()), cache))
        wish = {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}
        body |= {"Pod": a_pod("new", **wish)}
        answer = json.loads(prioritize(parse_arguments(json.dumps(body).encode()), cache))
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert best == [{"Host": "broken", "Score": OUTVOTES}]
    points = {one["Host"]: one["Score"] for one in answer}
    assert list(points) == body["NodeNames"]
    assert points["broken"] > points["whole"]
    assert points["stranger"] == 0
    asked, key = ask_of(a_pod("new")), Key("lab", "new")
    want = {name: cache.policy.points(asked, cache.rooms(name, without=key)) for name in points}
    assert points == want | {"stranger": 0}


def test_the_gpu_type_asked_for_is_read_from_selector_or_affinity():
    def affinity(*terms: Obj) -> Obj:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return {"affinity": {"nodeAffinity": required}}

    def term(*kinds: str) -> Obj:
        return {"matchExpressions": [{"key": TYPE, "operator": "In", "values": list(kinds)}]}

    plain = Ask(((GPU, 1),), 1000, 8000)
    assert ask_of(a_pod("p")) == plain
    assert ask_of(a_pod("p", nodeSelector={TYPE: "t4"})) == plain._replace(kinds=("t4",))
    assert ask_of(a_pod("p", **affinity(term("h100", "a100"), term("t4")))).kinds == ("a100", "h100", "t4")
    assert ask_of(a_pod("p", **affinity(term("t4"), {"matchExpressions": []}))).kinds == ()


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(UsageError) as caught:
        make_policy("best")
    assert "'best'" in caught.value.message
