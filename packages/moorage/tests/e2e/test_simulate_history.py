"""`moor simulate --history`, typed: the cluster's own nodes and the pods that it has run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.usage.intervals import Interval, Open
from moorage.usage.store import UsageStore
from moorage_testing.cluster import Cluster

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def an_interval(at: int) -> Interval:
    started = BEGAN + timedelta(minutes=at)
    return Interval(
        pod_uid=f"uid-{at}",
        namespace="lab",
        pod=f"train-{at}",
        run="",
        attempt=1,
        owner="ada",
        node="gone",
        gpu_type="a100",
        gpus=1 + at % 2,
        cpu_milli=100,
        memory_bytes=2**20,
        started_at=started,
        ended_at=started + timedelta(hours=1),
        last_seen_at=started,
    )


@pytest.mark.parametrize("own_cluster", [("--nodes", "3", "--gpus", "4", "--gpu-type", "a100")], indirect=True)
def test_a_replay_of_the_clusters_own_history(own_cluster: Cluster) -> None:
    data = ("--data", str(own_cluster.home))
    early = own_cluster.moor("simulate", "--history", *data, check=False)
    assert early.returncode == 2
    assert "has 0 pods with GPUs; a replay needs at least 20" in early.stderr
    store = UsageStore(own_cluster.home / "usage.db")
    store.apply(Open(an_interval(at)) for at in range(40))
    store.close()
    typed = ("simulate", "--history", *data, "--policy", "pack", "--policy", "fragmentation", "--seeds", "1")
    found = json.loads(own_cluster.moor(*typed, "-o", "json").stdout)
    assert [one["policy"] for one in found] == ["pack", "fragmentation"]
    assert all(0.9 < one["allocated"] <= 1 for one in found)
    assert "3 nodes with 12 GPUs, 40 pods, 1 seeds" in own_cluster.moor(*typed).stderr
