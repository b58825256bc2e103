"""Names for shell completion: of runs, nodes, volumes and other arguments of commands.

A shell waits for the answer at each press of the key. So the time is limited, a file caches answers for a few
seconds, and errors give an empty answer: a completion never prints an error.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage_kube.clock import SYSTEM

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from moorage.api.nodes import Node
    from moorage.client.cluster import Cluster
    from moorage_kube.resources import Resource

CACHE_SECONDS = 5.0  # names of this age are given again without asking
CACHE_FILE = "completion.json"

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def complete(kind: str) -> Completer:
    """A `shell_complete` function for an argument or option that takes the name of an object of this kind."""

    def completer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        taken = ctx.params.get(param.name or "") if param.nargs == -1 else ()
        names = names_for(kind, ctx.params)
        return [
            CompletionItem(name) for name in names if name.startswith(incomplete) and name not in (taken or ())
        ]

    return completer


def names_for(kind: str, params: Mapping[str, Any]) -> list[str]:
    """The names of this kind in the chosen cluster; empty if the request fails."""
    import asyncio
    import logging

    from moorage_kube.errors import MoorageError

    logging.getLogger("moorage").addHandler(logging.NullHandler())  # nothing but names reaches the shell
    target = {name: params.get(name) for name in ("namespace", "context", "kubeconfig", "as_user", "data")}
    key = json.dumps([kind, *map(str, target.values()), os.environ.get("KUBECONFIG"), _home()], default=str)
    cache = _read_cache()
    if key in cache:
        return [str(name) for name in cache[key][1]]
    try:
        names = sorted(set(_contexts(target) if kind == "contexts" else asyncio.run(_ask(kind, target))))
    except (MoorageError, OSError, TimeoutError, ValueError):
        return []
    _write_cache(cache | {key: (SYSTEM.now().timestamp(), names)})
    return names


async def _ask(kind: str, target: Mapping[str, Any]) -> list[str]:
    import asyncio

    from moorage.client.cluster import open_cluster
    from moorage.client.target import Target
    from moorage.settings import COMPLETION_SECONDS

    def ignore(text: str) -> None:
        del text

    async with (
        asyncio.timeout(COMPLETION_SECONDS.read(os.environ)),
        open_cluster(Target(**target), warned=ignore) as cluster,
    ):
        return await READERS[kind](cluster)


async def _runs(cluster: Cluster) -> list[str]:
    from moorage.model.names import RUN_LABEL
    from moorage_kube.resources import JOBS

    jobs = await cluster.api.list(JOBS, cluster.namespace, label_selector=RUN_LABEL)
    return [job["metadata"]["labels"][RUN_LABEL] for job in jobs.items]


async def _read_nodes(cluster: Cluster) -> tuple[Node, ...]:
    from moorage.api.nodes import Nodes

    return (await cluster.server.ask(Nodes, "GET", "/api/v1/nodes")).nodes


async def _nodes(cluster: Cluster) -> list[str]:
    return [node.name for node in await _read_nodes(cluster)]


async def _gpu_types(cluster: Cluster) -> list[str]:
    return [node.gpu_type for node in await _read_nodes(cluster) if node.gpu_type]


async def _machines(cluster: Cluster) -> list[str]:
    from moorage.model.machine import MACHINES, machine_names

    return machine_names((await cluster.api.list(MACHINES)).items)


async def _workspace_types(cluster: Cluster) -> list[str]:
    from moorage.model.names import SYSTEM_NAMESPACE, TEMPLATE_LABEL
    from moorage.model.workspace import templates_of
    from moorage_kube.errors import Forbidden
    from moorage_kube.resources import CONFIGMAPS

    try:
        templates = (await cluster.api.list(CONFIGMAPS, SYSTEM_NAMESPACE, label_selector=TEMPLATE_LABEL)).items
    except Forbidden:
        templates = []
    return list(templates_of(templates)[0])


async def _secrets(cluster: Cluster) -> list[str]:
    from moorage.actions.runfacts import read_secrets

    return list(await read_secrets(cluster.api, cluster.namespace) or ())


async def _users(cluster: Cluster) -> list[str]:
    from moorage.actions.people import list_accounts

    return [account.name for account in await list_accounts(cluster.api)]


def _objects(
    resource: Callable[[], Resource], *, namespaced: bool = True
) -> Callable[[Cluster], Awaitable[list[str]]]:
    async def read(cluster: Cluster) -> list[str]:
        listed = await cluster.api.list(resource(), cluster.namespace if namespaced else None)
        return [obj["metadata"]["name"] for obj in listed.items]

    return read


def _resource(module: str, name: str) -> Callable[[], Resource]:
    """One of Moorage's resources, imported at its first use: a completion imports as little as possible."""

    def load() -> Resource:
        from importlib import import_module

        resource: Resource = getattr(import_module(module), name)
        return resource

    return load


READERS: Mapping[str, Callable[[Any], Awaitable[list[str]]]] = {
    "runs": _runs,
    "nodes": _nodes,
    "gpu_types": _gpu_types,
    "machines": _machines,
    "workspace_types": _workspace_types,
    "secrets": _secrets,
    "users": _users,
    "workspaces": _objects(_resource("moorage.model.workspace", "WORKSPACES")),
    "volumes": _objects(_resource("moorage_kube.resources", "PVCS")),
    "datasets": _objects(_resource("moorage.model.dataset", "DATASETS")),
    "maps": _objects(_resource("moorage.model.mapjob", "MAPJOBS")),
    "crons": _objects(_resource("moorage.model.argo", "CRON_WORKFLOWS")),
    "workflows": _objects(_resource("moorage.model.argo", "WORKFLOWS")),
    "workflow_templates": _objects(_resource("moorage.model.argo", "WORKFLOW_TEMPLATES")),
    "tenants": _objects(_resource("moorage.model.tenant", "TENANTS"), namespaced=False),
    "idle_policies": _objects(_resource("moorage.model.idle", "IDLE_POLICIES"), namespaced=False),
    "budgets": _objects(_resource("moorage.model.budget", "BUDGETS"), namespaced=False),
    "reservations": _objects(_resource("moorage.model.reservation", "RESERVATIONS")),
    "namespaces": _objects(_resource("moorage_kube.resources", "NAMESPACES"), namespaced=False),
}


def _contexts(target: Mapping[str, Any]) -> list[str]:
    """The contexts of the kubeconfig files that kubectl uses."""
    import yaml

    from moorage_kube.remote.config import kubeconfig_files

    paths = [Path(target["kubeconfig"])] if target["kubeconfig"] else kubeconfig_files(os.environ)
    names = []
    for path in paths:
        with contextlib.suppress(OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            names += [str(entry["name"]) for entry in yaml.safe_load(path.read_text())["contexts"]]
    return names


def _home() -> str:
    from moorage.client.datafolder import default_folder

    return str(default_folder())


def _cache_file() -> Path:
    from moorage.client.logins import logins_file

    return logins_file().with_name(CACHE_FILE)


def _read_cache() -> dict[str, tuple[float, list[str]]]:
    """Return the cached answers; empty where the file is missing or damaged."""
    try:
        now, entries = SYSTEM.now().timestamp(), json.loads(_cache_file().read_bytes())
        return {key: (at, names) for key, (at, names) in entries.items() if 0 <= now - at < CACHE_SECONDS}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_cache(entries: Mapping[str, tuple[float, list[str]]]) -> None:
    """Write the cache, readable only by the user. A missing or full folder only makes completions slower."""
    path = _cache_file()
    new = path.with_name(f"{CACHE_FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(entries, file)
        os.replace(new, path)
