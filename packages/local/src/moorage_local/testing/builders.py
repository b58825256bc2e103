"""Pods and nodes as the scheduler reads them, and orders as the shim reads them, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moorage_kube.resources import Obj
from moorage_kube.testing import builders
from moorage_kube.testing.builders import GPU
from moorage_local.scheduler.snapshot import NodeState, PodView, Snapshot, parse_node_info, parse_pod_view


def a_pod_view(
    name: str = "p",
    *,
    cpu: str = "",
    memory: str = "",
    gpus: int = 0,
    ports: Iterable[int] = (),
    owner: str = "",
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> PodView:
    """Pending pod lab/p that requests these amounts; `ports` of its node, `owner`: name of its ReplicaSet."""
    return parse_pod_view(
        builders.a_pod(
            name,
            uid=f"uid-{name}",
            labels=labels,
            owner=builders.an_owner("ReplicaSet", owner) if owner else None,
            requests=builders.given(cpu=cpu, memory=memory) | ({GPU: gpus} if gpus else {}),
            container={"ports": [{"hostPort": port} for port in ports]},
            phase="Pending",
            metadata=metadata,
            spec=spec,
            status=status,
        )
    )


def a_node_state(
    name: str = "n",
    *held: PodView,
    gpus: int = 2,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    **allocatable: Any,
) -> NodeState:
    """Ready node with the pods that it holds; 4 CPUs, 8Gi and 10 pods where `allocatable` has no others."""
    labels = {"kubernetes.io/hostname": name} | dict(labels or {})
    node = builders.a_node(name, gpus=gpus, labels=labels, spec=spec, allocatable={"pods": "10"} | allocatable)
    return NodeState(info=parse_node_info(node), obj=node).with_pods(*held)


def a_shim_order(uid: str, *containers: Obj, **fields: Any) -> Obj:
    """Order of pod lab/pod that never restarts and has 20 s to end."""
    return {
        "uid": uid,
        "name": "pod",
        "namespace": "lab",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 20,
        "containers": list(containers),
    } | fields


def a_shim_container(folder: Path, *argv: str, name: str = "c", **fields: Any) -> Obj:
    """A container of an order; `folder`: its working directory."""
    return {
        "name": name,
        "argv": list(argv),
        "env": {"PATH": os.environ["PATH"]},
        "workingDir": str(folder),
    } | fields


def a_snapshot(*nodes: NodeState, **more: Any) -> Snapshot:
    return Snapshot(nodes={node.name: node for node in nodes}, **more)
