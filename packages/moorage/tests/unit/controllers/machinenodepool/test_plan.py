"""What nodes bear in each mode; and that everything of ours comes off again."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.controllers.machinenodepool.plan import plan, unmark

TYPE = "type.machine.moorage.dev/big"
GROUP_TAINT = {"key": "moorage.dev/machine-group", "value": "gpu", "effect": "NoSchedule"}
THEIRS = {"key": "theirs", "value": "x", "effect": "NoExecute"}


def a_pool(
    mode: str = "ready", *, taint: bool = False, nodes: tuple[str, ...] = ("n0",), **meta: Any
) -> dict[str, Any]:
    entries = [{"name": name, "mode": mode, "taint": taint, "machineType": [{"name": "big"}]} for name in nodes]
    spec = {"machineGroupName": "gpu", "nodePool": entries, "machineTypeStock": [{"name": "big"}]}
    return {"metadata": {"name": "p", **meta}, "spec": spec}


def a_node(name: str = "n0", *, ready: bool = True, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "5", "labels": {"zone": "a", **(labels or {})}},
        "spec": {"taints": [dict(THEIRS)]},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def applied(node: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    meta = dict(node["metadata"])
    for table in ("labels", "annotations"):
        merged = dict(meta.get(table) or {}) | dict((patch.get("metadata") or {}).get(table) or {})
        meta[table] = {key: value for key, value in merged.items() if value is not None}
    return node | {"metadata": meta, "spec": node["spec"] | dict(patch.get("spec") or {})}


@pytest.mark.parametrize(
    ("mode", "taint", "ready", "labels", "taints", "word"),
    [
        pytest.param("ready", False, True, {TYPE: "gpu"}, [], "Healthy", id="ready"),
        pytest.param("ready", True, True, {TYPE: "gpu"}, [GROUP_TAINT], "Healthy", id="ready, for guests only"),
        pytest.param("ready", False, False, {}, ["not-ready"], "Unhealthy", id="ready, and the node is not Ready"),
        pytest.param("not-ready", True, True, {}, [GROUP_TAINT, "not-ready"], "Unhealthy", id="not-ready"),
        pytest.param("maintenance", False, True, {}, ["maintenance"], "Maintenance", id="maintenance"),
    ],
)
def test_a_node_bears_what_its_mode_says_and_is_clean_again_afterwards(
    mode: str, taint: bool, ready: bool, labels: dict[str, str], taints: list[Any], word: str
) -> None:
    pool, node = a_pool(mode, taint=taint), a_node(ready=ready)
    decided = plan(pool, [node], ["p"], {})
    marked = applied(node, decided.patches[0].patch)
    shown = mode if ready else "not-ready"
    mine = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-mode": shown}
    assert marked["metadata"]["labels"] == {"zone": "a"} | mine | labels
    want = [
        {"key": "moorage.dev/machine-mode", "value": taint, "effect": "NoSchedule"}
        if isinstance(taint, str)
        else taint
        for taint in taints
    ]
    assert marked["spec"]["taints"] == [THEIRS, *want]
    assert [node["condition"] for node in decided.nodes] == [word]
    assert plan(pool, [marked], ["p"], {}).patches == ()
    clean = applied(marked, unmark(marked))
    assert clean["metadata"]["labels"] == {"zone": "a"}
    assert clean["metadata"]["annotations"] == {}
    assert clean["spec"]["taints"] == [THEIRS]


def test_a_node_that_left_the_pool_is_cleaned_and_so_are_all_when_it_is_deleted() -> None:
    node = a_node()
    marked = applied(node, plan(a_pool(), [node], ["p"], {}).patches[0].patch)
    for pool in (a_pool(nodes=()), a_pool(deletionTimestamp="2026-11-21T12:00:00Z")):
        patches = plan(pool, [marked], ["p"], {}).patches
        assert applied(marked, patches[0].patch)["metadata"]["labels"] == {"zone": "a"}


def test_a_node_of_another_pool_is_left_to_it() -> None:
    node = a_node()
    marked = applied(node, plan(a_pool(), [node], ["p"], {}).patches[0].patch)
    other = a_pool()
    other["metadata"]["name"] = "q"
    decided = plan(other, [marked], ["p", "q"], {})
    assert (decided.patches, decided.ready, decided.reason) == ((), False, "NodeTaken")
    assert plan(other, [marked], ["q"], {}).patches  # the other pool is no more


def test_a_node_that_does_not_exist_is_said() -> None:
    decided = plan(a_pool(nodes=("gone",)), [], ["p"], {})
    assert (decided.reason, decided.message) == ("NodeMissing", "No such node: gone")


def test_a_node_with_gpus_of_another_family_does_not_offer_the_type() -> None:
    node = a_node(labels={"nvidia.com/gpu.family": "hopper"})
    decided = plan(a_pool(), [node], ["p"], {"big": "ampere"})
    assert TYPE not in applied(node, decided.patches[0].patch)["metadata"]["labels"]
    assert decided.nodes[0]["message"] == "its GPUs are not of the family of big"


def test_marks_of_second_places_are_left_to_those_who_set_them() -> None:
    node = a_node()
    marked = applied(node, plan(a_pool(), [node], ["p"], {}).patches[0].patch)
    marked["metadata"]["labels"]["place.machine.moorage.dev/u1"] = "gpu"
    assert plan(a_pool(), [marked], ["p"], {}).patches == ()
