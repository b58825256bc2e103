"""Read the input of a run's plan from the cluster, with the rights of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from moorage.api.errors import ErrorCode
from moorage.cluster.deviceclaims import read_claim_templates
from moorage.cluster.kueue import read_queues
from moorage.decide.admission.tenancy import own_selector
from moorage.decide.runs.deviceclaims import UNKNOWN_TEMPLATES
from moorage.decide.runs.kueue import UNKNOWN_QUEUES
from moorage.decide.runs.request import (
    DEFAULT_CPU,
    DEFAULT_MEMORY,
    CheckpointUse,
    ClusterFacts,
    Defaults,
    Problem,
    RunRequest,
)
from moorage.decide.runs.state import RunView, view_runs
from moorage.model.dataset import DATASETS
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.machine import MACHINES, machine_names
from moorage.model.names import GUARD_LABEL, PROCESS_RUNTIME, RUN_LABEL, SECRET_LABEL
from moorage.model.tenant import TENANTS, tenant_of
from moorage.model.tenant import defaults_of as tenant_defaults
from moorage_kube.api import Api
from moorage_kube.errors import Forbidden, NotFound, Problems, UsageError
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES, PRIORITYCLASSES, PVCS, STORAGECLASSES, Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, parse_node, parse_pod

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


T = TypeVar("T")


class ClusterNodes(Struct, frozen=True, kw_only=True):
    """Nodes and the pods on them, from the API server or from Moorage's server.

    `nodes` is None if they may not be listed; then `gpu_nodes` and `held` are the server's view for all users, or
    None and empty.
    """

    nodes: list[Obj] | None
    pods: list[Obj] = field(default_factory=list)
    gpu_nodes: tuple[NodeInfo, ...] | None = None
    held: tuple[PodInfo, ...] = ()
    on_processes: bool = False  # the server says that nodes run plain processes
    tenants: tuple[Obj, ...] = ()  # from the server, for users who may not list them


class RunFacts(Struct, frozen=True, kw_only=True):
    """The data for a plan, and the namespace objects from which it was read."""

    facts: ClusterFacts
    claims: list[Obj]
    jobs: list[Obj]


async def read_facts(
    api: Api, request: RunRequest, *, cluster_nodes: Awaitable[ClusterNodes], url: Awaitable[str]
) -> RunFacts:
    """Read everything at once. Values that `api` may not read are unknown, except Jobs. Raises ApiError."""
    # read only the objects that this request depends on, all at once
    namespace = request.namespace
    (
        (claims, priorities, tenants, storage),
        jobs,
        (datasets, secrets),
        engines,
        known,
        server,
    ) = await asyncio.gather(
        asyncio.gather(
            or_none(api.list(PVCS, namespace)),
            or_none(api.list(PRIORITYCLASSES)),
            or_none(api.list(TENANTS)),
            or_none(api.list(STORAGECLASSES)),
        ),
        api.list(JOBS, namespace),
        asyncio.gather(
            or_none(api.list(DATASETS, namespace)) if request.datasets else _nothing(),
            read_secrets(api, namespace) if request.secrets else _nothing(),
        ),
        asyncio.gather(
            read_queues(api, namespace) if _names_queue(request) else _nothing(),
            read_claim_templates(api, namespace) if request.gpu_claim is not None else _nothing(),
            or_none(api.list(MACHINES)) if request.machine is not None else _nothing(),
            or_none(api.get(NAMESPACES, namespace)) if request.machine is not None else _nothing(),
        ),
        cluster_nodes,
        url,
    )
    # the caller may not see all tenants and nodes: the server's view replaces them
    queues, templates, machines, own_namespace = engines
    nodes = known.nodes or []
    every_tenant = tenants.items if tenants is not None else list(known.tenants)
    claim_objs = claims.items if claims is not None else []
    # None stands for a list that the caller may not read
    facts = ClusterFacts(
        gpu_nodes=known.gpu_nodes,
        nodes=None if known.nodes is None else tuple(parse_node(obj) for obj in nodes),
        pods=tuple(parse_pod(obj) for obj in known.pods) + known.held,
        process_runtime=known.on_processes or any(_runtime(obj).startswith(PROCESS_RUNTIME) for obj in nodes),
        defaults=defaults_of(namespace, every_tenant),
        own_nodes=own_selector(tenant_of(namespace, every_tenant)),
        claims=None if claims is None else {obj["metadata"]["name"]: _size(obj) for obj in claim_objs},
        checkpoints=checkpoint_uses(view_runs(jobs.items, ())) if request.checkpoint else {},
        datasets=None if datasets is None else {obj["metadata"]["name"]: _dataset(obj) for obj in datasets.items},
        secrets=secrets,
        taken=frozenset(
            name for job in jobs.items for name in (job["metadata"]["name"], labels_of(job).get(RUN_LABEL)) if name
        ),
        priority_classes=None
        if priorities is None
        else frozenset(obj["metadata"]["name"] for obj in priorities.items),
        queues=queues or UNKNOWN_QUEUES,
        claim_templates=templates or UNKNOWN_TEMPLATES,
        machines=None if machines is None else frozenset(machine_names(machines.items)),
        is_guarded=None if own_namespace is None else labels_of(own_namespace).get(GUARD_LABEL) == "enabled",
        has_default_class=None
        if storage is None
        else any(annotations_of(obj).get(DEFAULT_CLASS) == "true" for obj in storage.items),
        server_url=server,
    )
    return RunFacts(facts=facts, claims=claim_objs, jobs=jobs.items)


def defaults_of(namespace: str, tenants: list[Obj]) -> Defaults:
    """The defaults of the tenant with this namespace; the built-in values if there is none or it sets none."""
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


def checkpoint_uses(runs: Sequence[RunView]) -> dict[str, tuple[CheckpointUse, ...]]:
    """The runs that store checkpoints on each claim; `runs`: newest first."""
    uses: dict[str, tuple[CheckpointUse, ...]] = {}
    for run in reversed(runs):
        if run.checkpoint:
            use = CheckpointUse(run=run.name, owner=run.owner, at=run.checkpoint_at, has_ended=run.state.ended)
            uses[run.checkpoint] = (*uses.get(run.checkpoint, ()), use)
    return uses


async def read_secrets(api: Api, namespace: str) -> dict[str, tuple[str, ...]] | None:
    """Name → keys of the secrets in a namespace. None if the caller may not list them."""
    listed = await or_none(api.list(CONFIGMAPS, namespace, label_selector=SECRET_LABEL))
    if listed is None:
        return None
    return {labels_of(obj)[SECRET_LABEL]: tuple(obj.get("data") or ()) for obj in listed.items}


def runner_source() -> str:
    """The program that runs the command of a run that saves checkpoints, or unpacks a directory."""
    return (Path(str(files("moorage"))) / "worker" / "runner.py").read_text(encoding="utf-8")


async def or_none(read: Awaitable[T]) -> T | None:
    """The value read; None if the user may not read it, or the cluster has no such kind."""
    try:
        return await read
    except (Forbidden, NotFound):
        return None


async def _nothing() -> None:
    return None


def _names_queue(request: RunRequest) -> bool:
    return request.queue is not None or any(text.startswith(f"{QUEUE_LABEL}=") for text in request.labels)


def _dataset(obj: Obj) -> tuple[str, str]:
    status = obj.get("status") or {}
    return str(status.get("phase") or ""), str(status.get("claim") or "")


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def _size(claim: Obj) -> str:
    """The actual size of a claim, else the requested size."""
    has = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    asks = (((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage")
    return str(has or asks or "")


def env_words(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of a client's request, each as NAME=VALUE. Raises UsageError for an invalid name."""
    for name in env:
        if "=" in name:
            raise UsageError(f"invalid variable name {name!r}", code=ErrorCode.INVALID, field="env")
    return tuple(f"{name}={value}" for name, value in env.items())


def check_problems(problems: Sequence[Problem], name: str, facts: ClusterFacts) -> None:
    """Raise Problems with all problems of a plan; `name` is the name of the run or map."""
    if not problems:
        return
    fields = [problem.field for problem in problems]
    is_taken = fields == ["name"] and name in facts.taken
    raise Problems(
        [(problem.message, problem.hint) for problem in problems],
        code=ErrorCode.EXISTS if is_taken else ErrorCode.INVALID,
        field=fields[0],
        fields=fields,
    )
