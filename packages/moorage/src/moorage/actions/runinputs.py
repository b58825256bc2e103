"""The cluster's and the caller's side of a plan of a run or map: nodes, pods and the caller's machine."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from typing import Protocol, TypeVar

from moorage.actions.runfacts import ClusterNodes, or_none, runner_source
from moorage.api.gpus import Gpus
from moorage.api.jobs import NewJob
from moorage.decide.runs.request import Caller
from moorage.decide.usage.gpus import UNKNOWN_TYPE, GpuState
from moorage.model.names import GPU_TYPE_LABELS
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError
from moorage_kube.resources import NODES, PODS
from moorage_kube.scheduling import NodeInfo, PodInfo

T = TypeVar("T")


class Server(Protocol):
    """A client of Moorage's REST API."""

    async def ask(self, kind: type[T], method: str, path: str, *, params: Mapping[str, object] | None = None) -> T:
        """Send a request; return the answer as a Struct of `moorage.api`.

        Raises ApiError, NotReady without a server.
        """
        ...


def read_caller(command: tuple[str, ...], user: str) -> Caller:
    """The parts of a request that come from this machine. Files are not packed yet."""
    path = os.environ.get("PATH")
    return Caller(
        user=user,
        cwd=os.getcwd(),
        environment=dict(os.environ),
        program=shutil.which(command[0], path=path) if command and command[0] else None,
        python=shutil.which("python3", path=path) or sys.executable,
        salt=secrets.token_hex(8),
        token=secrets.token_urlsafe(32),
        runner=runner_source(),
    )


def remote_caller(user: str, body: NewJob, *, salt: str = "") -> Caller:
    """A caller on another machine: nothing of that machine becomes part of the run."""
    return Caller(
        user=user,
        cwd="",
        program=body.command[0],  # the node looks for it, in its own environment
        python=sys.executable,
        salt=salt or secrets.token_hex(8),
        token=secrets.token_urlsafe(32),
        runner=runner_source(),
    )


async def read_cluster_nodes(api: Api, server: Server, namespace: str) -> ClusterNodes:
    """Nodes and pods; for callers who may not list nodes, the view that Moorage's server gives to all users."""
    nodes, pods = await asyncio.gather(or_none(api.list(NODES)), or_none(api.list(PODS)))
    if nodes is None:
        return await _ask_server(server, namespace)
    return ClusterNodes(nodes=nodes.items, pods=pods.items if pods is not None else [])


async def _ask_server(server: Server, namespace: str) -> ClusterNodes:
    """GPU nodes, the GPUs in use on them and the tenant's defaults, for callers who may not list nodes."""
    try:
        answer = await server.ask(Gpus, "GET", "/api/v1/gpus", params={"namespace": namespace})
    except MoorageError:
        return ClusterNodes(nodes=None)
    nodes, held = [], []
    for node in answer.nodes:
        totals: dict[str, int] = {}
        used: dict[str, int] = {}
        for gpu in node.gpus:
            totals[gpu.resource] = totals.get(gpu.resource, 0) + 1
            if gpu.state != GpuState.FREE:
                used[gpu.resource] = used.get(gpu.resource, 0) + 1
        labels = {GPU_TYPE_LABELS[0]: node.type} if node.type != UNKNOWN_TYPE else {}
        nodes.append(
            NodeInfo(
                name=node.name,
                labels=labels,
                ready=node.ready,
                unschedulable=node.cordoned,
                allocatable=totals,
            )
        )
        held.append(PodInfo(namespace="", name="", node=node.name, requests=used))
    return ClusterNodes(
        nodes=None,
        gpu_nodes=tuple(nodes),
        held=tuple(held),
        on_processes=answer.process_runtime,
        tenants=(dict(answer.tenant),) if answer.tenant else (),
    )
