"""A month of a small cluster with costs that a reader can compute; docs/howto/read-a-cost-report.md does so.

The cluster has one purchased machine, and a spot node for 200 hours of April 2026. Prices and sums are round.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.nodelives import NodeLife

APRIL = datetime(2026, 4, 1, tzinfo=UTC)
MAY = datetime(2026, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
GIB = 2**30
MONTH_SHEET = {
    "source": "our invoice 2024-117, and the price list of the provider",
    "date": "2026-04-01",
    "currency": "USD",
    "owned": [
        {
            "name": "dgx",
            "nodes": ["gpu-*"],
            "purchase": 87600,
            "years": 4,
            "watts": 5000,
            "pricePerKWh": 0.20,
            "hostingPerMonth": 365,
        }
    ],
    "machines": [{"name": "c-32", "cpu": 32, "memory": "128Gi", "prices": [{"region": "west", "spot": 0.48}]}],
}


def a_life(
    node: str = "gpu-1",
    *,
    since: datetime = APRIL,
    hours: float | None = None,
    gpus: int = 4,
    cpu: int = 40,
    gib: int = 320,
    kind: str = "",
    region: str = "",
    market: str = "",
) -> NodeLife:
    """A node with whole GPUs. `hours`: its lifetime; None if it still exists."""
    return NodeLife(
        node_uid=f"uid-of-{node}",
        node=node,
        instance_type=kind,
        region=region,
        market=market,
        gpu_type="a100" if gpus else "",
        devices=(("nvidia.com/gpu", gpus),) if gpus else (),
        cpu_milli=cpu * 1000,
        memory_bytes=gib * GIB,
        started_at=since,
        ended_at=None if hours is None else since + hours * HOUR,
        first_seen_at=since,
        last_seen_at=since,
    )


def a_share(
    uid: str,
    *,
    since: datetime = APRIL,
    hours: float | None = 1,
    node: str = "gpu-1",
    owner: str = "ada",
    namespace: str = "vision",
    run: str = "",
    part_of: str = "",
    gpus: int = 0,
    cpu: int = 0,
    gib: int = 0,
    reserved_for: str = "",
) -> Interval:
    """Make the usage record of a pod. `hours` None: the pod still runs."""
    return Interval(
        pod_uid=uid,
        namespace=namespace,
        pod=f"pod-{uid}",
        run=run,
        attempt=1,
        owner=owner,
        node=node,
        gpu_type="a100" if gpus else "",
        gpus=gpus,
        cpu_milli=cpu * 1000,
        memory_bytes=gib * GIB,
        started_at=since,
        ended_at=None if hours is None else since + hours * HOUR,
        last_seen_at=since,
        gpu_counts=(("nvidia.com/gpu", gpus),) if gpus else (),
        part_of=part_of,
        reserved_for=reserved_for,
    )


MONTH_LIVES = (
    a_life("gpu-1"),
    a_life("spot-1", since=APRIL + 48 * HOUR, hours=200, gpus=0, cpu=32, gib=128, kind="c-32", region="west",
           market="spot"),
)  # fmt: skip
MONTH_PODS = (
    a_share("train", hours=300, run="train", gpus=2, cpu=10, gib=80),
    a_share("tune", since=APRIL + 24 * HOUR, hours=100.5, owner="ben", namespace="speech", run="tune",
            gpus=1, cpu=4, gib=40),
    a_share("map", since=APRIL + 50 * HOUR, hours=150, node="spot-1", part_of="map/squares", cpu=16, gib=32),
    a_share("agent", hours=None, owner="-", namespace="kube-system", cpu=1, gib=2),
    a_share("kept", since=APRIL + 400 * HOUR, hours=50, owner="-", namespace="moorage-system", gpus=1, cpu=8,
            gib=64, reserved_for="gpus/one"),
)  # fmt: skip
