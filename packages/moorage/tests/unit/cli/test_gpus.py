"""`moor gpus`, `top`, `drain`, `cordon`, `uncordon`, `volume`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from moorage_kube.errors import TooManyRequests
from moorage_kube.resources import NODES, PODS, PVCS, STORAGECLASSES, Obj
from moorage_kube.testing.builders import an_object, an_owner
from moorage_kube.testing.clock import NOON, FakeClock, QuickClock
from moorage_testing.builders import a_run_pod


def a_pod(name: str = "p", **pod: Any) -> Obj:
    """Pod of ada's run train with a GPU of node-1, half an hour old."""
    made = {"namespace": "default", "node": "node-1", "user": "ada", "expected": 3600, "gpus": 1}
    made |= {"owner": an_owner(), "started": NOON - timedelta(minutes=30)}
    return a_run_pod(name, **made | pod)


@pytest.fixture
def two(moor):
    moor.clock = FakeClock()
    moor.node("node-1", gpus=1)
    moor.node("node-2", gpus=1)
    moor.api.put(PODS, a_pod())
    moor.server.serves = moor.api
    return moor


def test_every_gpu_is_shown_free_or_with_its_owner(two):
    done = two("gpus")
    assert done.code == 0
    assert done.out == (
        "NODE     GPU   TYPE   STATE   OWNER   RUN     SINCE     EXPECTED-UNTIL\n"
        "node-1   0     a100   used    ada     train   30m ago   in 30m\n"
        "node-2   0     a100   free    -       -       -         -\n"
    )
    assert done.err == "1 of 2 GPUs are free\n"
    assert two("gpus", "--free", "-o", "name").out == "node-2/0\n"


def test_a_cluster_may_have_no_gpus(moor):
    moor.server.answers["/api/v1/gpus"] = {"now": "2026-01-05T12:00:00Z"}
    done = moor("gpus")
    assert (done.code, done.out, done.err) == (0, "", "no node of this cluster has GPUs\n")


def test_top_shows_gpu_hours(moor):
    row = {"name": "ada", "gpuHours": 1.5, "cpuHours": 3.0, "memoryGiBHours": 4.25, "runningGpus": 2, "pods": 3}
    period = {"since": "2026-01-05T12:00:00Z", "until": "2026-01-12T12:00:00Z"}
    moor.server.answers["/api/v1/top"] = period | {"rows": [row]}
    done = moor("top", "--since", "7d", "--by", "user")
    assert moor.server.asked[-1][1] == {"since": "7d", "by": "user"}
    assert done.out == (
        "USER   GPU-HOURS   GPUS-NOW   CPU-HOURS   MEMORY-GIB-HOURS   PODS\n"
        "ada    1.50        2          3.00        4.25               3\n"
    )
    assert json.loads(moor("top", "-o", "json").out) == [row]


def test_top_without_a_server_is_one_error(moor):
    done = moor("top")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: this cluster has no Moorage server")


def test_a_drain_cordons_evicts_and_waits(two):
    done = two("drain", "node-1")
    assert (done.code, done.out) == (0, "node-1 drained\n")
    assert done.err.splitlines() == ["node-1 cordoned", "evicting pod default/p", "evicted 1 pod in 0s"]
    assert two.api.objects["nodes", "", "node-1"]["spec"]["unschedulable"] is True
    assert two.api.named(PODS) == []


def test_a_pod_that_forbids_the_drain_names_the_option_and_nothing_is_evicted(two):
    two.api.put(PODS, a_pod("bare", owner=None))
    done = two("drain", "node-1")
    assert done.code == 2
    assert done.err.splitlines()[1:] == [
        "error: pod default/bare forbids the drain: it has no controller, so nothing would make it again",
        "hint: --force allows it",
    ]
    assert two.api.named(PODS) == ["bare", "p"]
    assert two("drain", "node-1", "--force").code == 0


def test_an_eviction_that_a_disruption_budget_refuses_is_tried_again(moor):
    moor.node("node-1", gpus=1)
    moor.api.put(PODS, a_pod())
    moor.api.refuse["eviction", "pods"] = TooManyRequests("the budget allows none")

    class Allowing(QuickClock):
        async def sleep(self, seconds: float) -> None:
            moor.api.refuse.clear()

    moor.clock = Allowing()
    done = moor("drain", "node-1")
    assert done.code == 0
    assert "pod default/p cannot be evicted yet: the budget allows none; trying again every 5 s" in done.err


def test_a_drain_that_takes_too_long_says_how_to_go_on(moor):
    moor.node("node-1")
    moor.api.put(PODS, a_pod(deleting=True))
    done = moor("drain", "node-1", "--timeout", "1s")
    assert done.code == 1
    assert done.err.splitlines()[-2:] == [
        "error: node node-1 is cordoned but not empty after 1s",
        "hint: `moor drain node-1` continues; `moor uncordon node-1` makes it schedulable again",
    ]


def test_nodes_are_cordoned_and_opened_again(two):
    assert two("cordon", "node-1", "node-2").out == "node-1 cordoned\nnode-2 cordoned\n"
    assert two("cordon", "node-1").out == "node-1 already cordoned\n"
    assert two("uncordon", "node-1").out == "node-1 uncordoned\n"
    assert not two.api.objects["nodes", "", "node-1"]["spec"].get("unschedulable")


@pytest.mark.parametrize("command", ["drain", "cordon", "uncordon"])
def test_an_unknown_node_is_refused_with_the_known_names(two, command):
    done = two(command, "nod")
    assert done.code == 1
    assert done.err == "error: node 'nod' not found\nhint: there are: node-1, node-2\n"


def test_a_volume_is_created_listed_and_deleted(moor):
    assert moor("volume", "create", "data", "--size", "5Gi", "--access-mode", "rwx").out == "data\n"
    claim = moor.api.objects["persistentvolumeclaims", "default", "data"]
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    moor.api.put(PODS, a_pod(claims=["data"]))
    [head, row] = moor("volume", "list").out.splitlines()
    assert head.split() == ["NAME", "SIZE", "USED", "MODE", "STATE", "OWNER", "USED-BY", "AGE"]
    assert row.split()[:7] == ["data", "5Gi", "-", "ReadWriteMany", "Pending", "ada", "train"]
    done = moor("volume", "delete", "data", "--yes")
    assert done.code == 1
    assert done.err.splitlines()[0] == "error: volume 'data' is in use by train"
    assert moor.api.named(PVCS) == ["data"]
    moor.api.remove(PODS, "p")
    assert moor("volume", "delete", "data", "--yes").out == "data deleted\n"
    assert moor.api.named(PVCS) == []


def test_a_volume_in_use_is_deleted_by_force_with_its_pods_and_its_users_are_named(moor):
    moor("volume", "create", "data")
    moor.api.put(PODS, a_pod(claims=["data"]))
    done = moor("volume", "delete", "data", "--yes", "--force")
    assert done.code == 0
    assert "train uses volume data" in done.err
    assert moor.api.named(PVCS) == moor.api.named(PODS) == []


def test_a_volume_is_deleted_with_the_finished_pods_that_hold_it(moor):
    """Kubernetes keeps a claim as long as there is a pod that names it; pods without it stay."""
    moor("volume", "create", "data")
    moor("volume", "create", "other")
    for name, claim in (("done", "data"), ("apart", "other")):
        moor.api.put(PODS, a_pod(name, claims=[claim], phase="Succeeded"))
    done = moor("volume", "delete", "data", "--yes")
    assert done.out == "data deleted\n"
    assert "note: pods that held volume data are deleted: done" in done.err
    assert (moor.api.named(PVCS), moor.api.named(PODS)) == (["other"], ["apart"])


def a_class(name: str, provisioner: str = "ebs.csi.aws.com", **fields: Any) -> Obj:
    return an_object(STORAGECLASSES, name, provisioner=provisioner, **fields)


@pytest.mark.parametrize(
    ("size", "expands", "code", "says"),
    [
        ("20Gi", True, 0, "data is being resized from 10Gi to 20Gi"),
        ("10Gi", True, 0, "data already has 10Gi"),
        ("5Gi", True, 2, "cannot make volume 'data' smaller"),
        ("20Gi", False, 1, "its StorageClass disks does not allow expansion"),
        ("big", True, 2, "invalid quantity 'big'"),
    ],
)
def test_a_volume_grows_where_its_class_lets_it_and_never_shrinks(moor, size, expands, code, says):
    moor.api.put(STORAGECLASSES, a_class("disks", allowVolumeExpansion=expands))
    moor("volume", "create", "data", "--storage-class", "disks")
    done = moor("volume", "resize", "data", size)
    assert done.code == code
    assert says in done.out + done.err
    claim = moor.api.objects["persistentvolumeclaims", "default", "data"]
    assert claim["spec"]["resources"]["requests"]["storage"] == (
        "20Gi" if code == 0 and size == "20Gi" else "10Gi"
    )


def test_classes_are_listed_with_their_abilities(moor):
    annotations = {"moorage.dev/access-modes": "ReadWriteOnce, ReadOnlyMany"}
    moor.api.put(STORAGECLASSES, a_class("disks"))
    moor.api.put(STORAGECLASSES, a_class("odd", "example.com/odd"))
    moor.api.put(STORAGECLASSES, a_class("noted", "x/y", annotations=annotations))
    rows = {row.split()[0]: row.split()[1:] for row in moor("volume", "classes").out.splitlines()[1:]}
    assert rows == {
        "disks": ["RWO", "no", "no", "ebs.csi.aws.com"],
        "odd": ["?", "no", "?", "example.com/odd"],
        "noted": ["RWO,ROX", "no", "clone", "x/y"],
    }


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["volume", "create", "Data"], 2, "error: invalid volume name 'Data'"),
        (["volume", "create", "d", "--size", "big"], 2, "error: invalid quantity 'big'"),
        (["volume", "create", "d", "--size", "0"], 2, "error: invalid size '0'"),
        (["volume", "create", "d", "--size", "10"], 2, "error: invalid size '10': less than 1 MiB\nhint: the"),
        (["volume", "create", "there"], 1, "error: the name 'there' is taken: another volume"),
        (["volume", "delete", "none", "--yes"], 1, "error: volume 'none' not found in namespace default"),
    ],
)
def test_a_wrong_volume_is_one_clear_error(moor, words, code, says):
    moor.api.put(PVCS, an_object(PVCS, "there", namespace="default"))
    done = moor(*words)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(says)


def test_a_dry_run_of_a_volume_creates_nothing(moor):
    done = moor("volume", "create", "data", "--dry-run")
    assert "kind: PersistentVolumeClaim" in done.out
    assert moor.api.named(PVCS) == []
    assert moor.api.named(NODES) == []


def test_a_home_folder_is_not_copied_to_a_volume_and_no_pod_is_made(moor, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = moor("volume", "cp", str(tmp_path), "data:/")
    error = f"error: cannot send the folder {tmp_path}: home folders and folders of the system are not sent"
    assert (done.code, done.err.splitlines()[0]) == (2, error)
    assert not [call for call in moor.api.calls if call.verb == "create"]
