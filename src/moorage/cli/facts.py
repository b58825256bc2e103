"""Read of the cluster, and of this machine, what a run's plan depends on."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.resources import JOBS, NODES, PODS, PRIORITYCLASSES, PVCS, STORAGECLASSES, Obj
from moorage.apimachinery.scheduling import NodeInfo, PodInfo, parse_node, parse_pod
from moorage.cli.session import Session, server_url
from moorage.decide.gpus import UNKNOWN_TYPE
from moorage.decide.runs import DEFAULT_CPU, DEFAULT_MEMORY, Caller, ClusterFacts, Defaults, RunRequest
from moorage.errors import Forbidden, MoorageError, NotFound
from moorage.model.dataset import DATASETS
from moorage.model.names import GPU_TYPE_LABELS, PROCESS_RUNTIME, RUN_LABEL
from moorage.model.tenant import TENANTS, tenant_of
from moorage.model.tenant import defaults_of as tenant_defaults

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The facts, and the objects they were read from, for the explanation of a dry run."""

    facts: ClusterFacts
    nodes: list[Obj]
    pods: list[Obj]
    claims: list[Obj]


async def read_cluster(session: Session, request: RunRequest) -> Seen:
    """Everything at once. What the user may not read is left unknown; a cluster that does not answer raises."""
    api, namespace = session.api, request.namespace
    (nodes, pods, claims, priorities, tenants), storage, jobs, datasets, url = await asyncio.gather(
        asyncio.gather(
            _or_none(api.list(NODES)),
            _or_none(api.list(PODS)),
            _or_none(api.list(PVCS, namespace)),
            _or_none(api.list(PRIORITYCLASSES)),
            _or_none(api.list(TENANTS)),
        ),
        _or_none(api.list(STORAGECLASSES)),
        api.list(JOBS, namespace),
        _or_none(api.list(DATASETS, namespace)) if request.datasets else _nothing(),
        server_url(api),
    )
    node_objs = nodes.items if nodes is not None else []
    pod_objs = pods.items if pods is not None else []
    claim_objs = claims.items if claims is not None else []
    told = Told() if nodes is not None else await _ask_server(session)
    facts = ClusterFacts(
        gpu_nodes=told.gpu_nodes,
        nodes=None if nodes is None else tuple(parse_node(obj) for obj in node_objs),
        pods=tuple(parse_pod(obj) for obj in pod_objs) + told.held,
        process_runtime=told.on_processes or any(_runtime(obj).startswith(PROCESS_RUNTIME) for obj in node_objs),
        defaults=defaults_of(namespace, tenants.items if tenants is not None else []),
        claims=None if claims is None else {obj["metadata"]["name"]: _size(obj) for obj in claim_objs},
        datasets=None if datasets is None else {obj["metadata"]["name"]: _dataset(obj) for obj in datasets.items},
        taken=frozenset(
            name for job in jobs.items for name in (job["metadata"]["name"], labels_of(job).get(RUN_LABEL)) if name
        ),
        priority_classes=None
        if priorities is None
        else frozenset(obj["metadata"]["name"] for obj in priorities.items),
        has_default_class=None
        if storage is None
        else any(annotations_of(obj).get(DEFAULT_CLASS) == "true" for obj in storage.items),
        server_url=url,
    )
    return Seen(facts=facts, nodes=node_objs, pods=pod_objs, claims=claim_objs)


async def _nothing() -> None:
    return None


def _dataset(obj: Obj) -> tuple[str, str]:
    status = obj.get("status") or {}
    return str(status.get("phase") or ""), str(status.get("claim") or "")


def defaults_of(namespace: str, tenants: list[Obj]) -> Defaults:
    """What the tenant whose namespace this is fills in; the built-in values where no tenant says otherwise."""
    tenant = tenant_of(namespace, tenants)
    if tenant is None:
        return Defaults()
    given = tenant_defaults(tenant)
    return Defaults(
        cpu=str(given.cpu or DEFAULT_CPU),
        memory=str(given.memory or DEFAULT_MEMORY),
        image=given.image,
        seconds=given.time_seconds,
        restart_limit=(tenant.get("spec") or {}).get("restartLimit"),
        origin=f"tenant {tenant['metadata']['name']}'s default" if given.memory else "the default",
    )


def read_caller(command: tuple[str, ...], user: str) -> Caller:
    """This machine's side of the request. Nothing is packed yet."""
    path = os.environ.get("PATH")
    return Caller(
        user=user,
        cwd=os.getcwd(),
        environment=dict(os.environ),
        program=shutil.which(command[0], path=path) if command and command[0] else None,
        python=shutil.which("python3", path=path) or sys.executable,
        salt=secrets.token_hex(8),
        token=secrets.token_urlsafe(32),
        runner=(Path(str(files("moorage"))) / "worker" / "runner.py").read_text(encoding="utf-8"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the server tells everybody. `gpu_nodes` None: it was not asked, or does not answer."""

    gpu_nodes: tuple[NodeInfo, ...] | None = None
    held: tuple[PodInfo, ...] = ()
    on_processes: bool = False


async def _ask_server(session: Session) -> Told:
    """GPU nodes, and what is held on them, for who may not list nodes."""
    try:
        body = await session.server.get("/api/v1/gpus")
    except MoorageError:
        return Told()
    nodes, held = [], []
    for node in body["nodes"]:
        totals: dict[str, int] = {}
        used: dict[str, int] = {}
        for gpu in node["gpus"]:
            totals[gpu["resource"]] = totals.get(gpu["resource"], 0) + 1
            if gpu["state"] != "free":
                used[gpu["resource"]] = used.get(gpu["resource"], 0) + 1
        labels = {GPU_TYPE_LABELS[0]: node["type"]} if node["type"] != UNKNOWN_TYPE else {}
        nodes.append(
            NodeInfo(
                name=node["name"],
                labels=labels,
                ready=node["ready"],
                unschedulable=node["cordoned"],
                allocatable=totals,
            )
        )
        held.append(PodInfo(namespace="", name="", node=node["name"], requests=used))
    return Told(gpu_nodes=tuple(nodes), held=tuple(held), on_processes=body.get("processRuntime") is True)


async def _or_none(read: Awaitable[T]) -> T | None:
    """What was read, or None when the user may not, or when the cluster has no such kind."""
    try:
        return await read
    except (Forbidden, NotFound):
        return None


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def _size(claim: Obj) -> str:
    """The size a claim has, else the one it asks for."""
    has = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    asks = (((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage")
    return str(has or asks or "")
