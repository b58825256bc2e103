"""`python -m moorage_local --data FOLDER …`: the whole control plane in one process.

Started by the supervisor of `moor up`, with the API's listening socket as an inherited descriptor.
SIGTERM stops it. Running pods continue (and are adopted at the next start), unless the data folder has the file
`run/stop-pods`: then they are asked to stop as at a node's shutdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage_kube.clock import SYSTEM
from moorage_kube.connections import raise_file_limit
from moorage_kube.databasefile import HINT
from moorage_kube.errors import AlreadyExists, DataFolderError, DocumentError, MoorageError, NotFound
from moorage_kube.images import ImageRule, parse_rules
from moorage_kube.informer import index_by_node
from moorage_kube.logs import set_up_logging
from moorage_kube.meta import key_of
from moorage_kube.parent import answer_parent, end_with_parent, tell_parent
from moorage_kube.resources import (
    ENDPOINTSLICES,
    INGRESSCLASSES,
    NODES,
    PODS,
    PVCS,
    PVS,
    STORAGECLASSES,
    Obj,
    Resource,
)
from moorage_kube.serving import serve
from moorage_local.ingress.table import INGRESS_CLASS
from moorage_local.nodeagent.addresses import HOST_IP

if TYPE_CHECKING:  # the rest is imported once it is known that the cluster is to run
    from moorage_local.apiserver.client import InProcessClient
    from moorage_local.apiserver.server import ApiServer
    from moorage_local.controllers.events import EventRecorder
    from moorage_local.nodeagent.agent import NodeAgent
    from moorage_local.nodeagent.launcher import Launcher
    from moorage_local.nodeagent.podstats import PodStats

log = logging.getLogger("moorage_local")

STORAGE_CLASS: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "local",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "localcluster.moorage.dev/folder",
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
    "allowVolumeExpansion": True,
}


async def run(data: Path, sock: socket.socket, ready_fd: int | None, alive_fd: int | None) -> None:
    """Run until SIGTERM or SIGINT."""
    from moorage_kube.hangs import HANG_RECORD, HangRecord
    from moorage_local.apiserver.pki import ensure_pki
    from moorage_local.apiserver.server import ApiServer
    from moorage_local.controllers.events import EventRecorder
    from moorage_local.copies import copy_now, keep_copies, make_copy
    from moorage_local.nodeagent.launcher import Launcher
    from moorage_local.nodeagent.podstats import PodStats
    from moorage_local.storage.sqlite import SqliteStorage

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config = _table(data / "config.json")
    pki = ensure_pki(data / "pki")
    server = ApiServer(
        SqliteStorage(data / "cluster.db"),
        tokens=_tokens(data),
        signing_key=pki.signing_key,
    )
    await server.start()
    answer_parent(alive_fd)  # earlier steps, such as reading the store, may take long
    launcher = Launcher()
    port = sock.getsockname()[1]
    address = f"https://127.0.0.1:{port}"
    try:
        async with asyncio.TaskGroup() as tasks:
            # the API, and the objects that every cluster has
            serving = serve(
                server.app, sock, certificate=pki.certificate, key=pki.key, client_ca=pki.ca, stop=stop
            )
            tasks.create_task(serving)
            manager_api = server.client("system:kube-controller-manager")
            await _create(manager_api, STORAGECLASSES, STORAGE_CLASS)
            await _create(manager_api, INGRESSCLASSES, INGRESS_CLASS)
            await _publish_api(manager_api, port)
            # the nodes
            events = EventRecorder(manager_api, "moorage")
            HANG_RECORD.set(HangRecord(data / "run" / "localcluster", partial(_set_aside, events)))
            agents = _make_agents(server, config["nodes"], data, address, launcher)
            await _remove_other_nodes(manager_api, set(agents))
            _connect_agents(server, agents)
            # controllers, ingress and scheduler
            pod_stats = PodStats(SYSTEM)
            exporter = await _serve_gpus(manager_api, agents, pod_stats, _metrics_token(data))
            parts = [
                *_make_controllers(
                    server, manager_api, data, pki.ca_pem, config["ports"]["ingress"], agents, pod_stats
                ),
                *(agent.run() for agent in agents.values()),
            ]
            running = [tasks.create_task(part) for part in parts]
            running.append(tasks.create_task(keep_copies(data, server.storage, clock=SYSTEM)))
            server.copy_source = functools.partial(make_copy, data, server.storage, clock=SYSTEM)
            for agent in agents.values():
                await agent.ready.wait()
            gc.collect()
            gc.freeze()
            if ready_fd is not None:
                tell_parent(ready_fd, "localcluster ready")
            log.info("ready", extra={"address": address, "nodes": len(agents)})
            await stop.wait()
            # the end
            exporter.close()
            if (data / "run" / "stop-pods").exists():
                await asyncio.gather(*(agent.shutdown(stop_pods=True) for agent in agents.values()))
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await copy_now(data, server.storage, clock=SYSTEM)
    finally:
        launcher.close()
        await server.stop()
    log.info("stopped")


async def _set_aside(events: EventRecorder, _resource: Resource, obj: Obj, message: str) -> Obj:
    events.event(obj, "Warning", "Quarantined", message)
    return obj


def _make_agents(
    server: ApiServer, nodes: list[dict[str, Any]], data: Path, address: str, launcher: Launcher
) -> dict[str, NodeAgent]:
    """Return an agent for each node, by the name of the node."""
    from moorage_kube.reserve import Reserve
    from moorage_local.controllers.events import EventRecorder
    from moorage_local.nodeagent.addresses import Addresses
    from moorage_local.nodeagent.agent import NodeAgent, NodeSpec

    addresses = Addresses()
    agents = {}
    images = _images(data / "images.json")
    for spec in [replace(_spec(NodeSpec, node), images=images) for node in nodes]:
        api = server.client(f"system:node:{spec.name}")
        agents[spec.name] = NodeAgent(
            api,
            spec,
            data / "nodes" / spec.name,
            recorder=EventRecorder(api, "kubelet"),
            server_url=address,
            addresses=addresses,
            launcher=launcher,
            hidden=data,
            reserve=Reserve(data),
        )
    return agents


def _images(file: Path) -> tuple[ImageRule, ...]:
    """Read the rules for images that nodes run as processes of this machine; none if the file is missing.

    Raises DataFolderError.
    """
    try:
        return parse_rules(file.read_bytes())
    except FileNotFoundError:
        return ()
    except DocumentError as error:
        raise DataFolderError(f"{file} cannot be read: {error.message}") from error


def _connect_agents(server: ApiServer, agents: Mapping[str, NodeAgent]) -> None:
    """Connect the API server to the node agents, which serve logs, commands and connections of their pods."""

    def agent_of(pod: dict[str, Any]) -> NodeAgent:
        node = pod["spec"].get("nodeName") or ""
        if node not in agents:
            raise NotFound(f"pod {pod['metadata']['name']} is not on a node of this machine")
        return agents[node]

    def log_source(pod: dict[str, Any], *args: Any, **options: Any) -> Any:
        return agent_of(pod).logs(pod, *args, **options)

    async def exec_source(pod: dict[str, Any], *args: Any, **options: Any) -> Any:
        return await agent_of(pod).execute(pod, *args, **options)

    async def port_source(pod: dict[str, Any], port: int) -> Any:
        return await agent_of(pod).connect(pod, port)

    server.log_source = log_source
    server.exec_source = exec_source
    server.port_source = port_source


async def _serve_gpus(
    api: Any, agents: Mapping[str, NodeAgent], pod_stats: PodStats, token: str
) -> asyncio.Server:
    """Serve GPU metrics as DCGM's exporter does, and publish the address, as its Service would."""
    from moorage_local.nodeagent.gpuexporter import exposition, read_driver, rows_of, serve

    async def page() -> str:
        running = {agent: agent.running() for agent in agents.values()}
        stats = await pod_stats.look(pod.uid for pods in running.values() for pod in pods)
        has_real = any(agent.spec.real_gpu_uuids for agent in running)
        real = await asyncio.to_thread(read_driver) if has_real else {}
        return exposition(row for agent, pods in running.items() for row in rows_of(agent.spec, pods, stats, real))

    exporter = await serve(page, token=token)
    port = exporter.sockets[0].getsockname()[1]
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "dcgm-exporter",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": "dcgm-exporter"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}],
        "ports": [{"name": "metrics", "port": port, "protocol": "TCP"}],
    }
    try:
        await api.create(ENDPOINTSLICES, endpoint_slice)
    except AlreadyExists:
        await api.patch(ENDPOINTSLICES, "dcgm-exporter", {"ports": endpoint_slice["ports"]}, "kube-system")
    return exporter


def _make_controllers(
    server: ApiServer,
    api: InProcessClient,
    data: Path,
    ca_pem: str,
    ingress_port: int,
    agents: Mapping[str, NodeAgent],
    pod_stats: PodStats,
) -> list[Coroutine[Any, Any, None]]:
    """Return the controllers, ingress and scheduler, which run with the API server.

    Set the server's `stats_source`.
    """
    from moorage_local.controllers.events import EventRecorder
    from moorage_local.controllers.manager import ControllerManager
    from moorage_local.informers import InformerSet
    from moorage_local.ingress.publisher import IngressPublisher
    from moorage_local.nodeagent.stats import VolumeStats, mounted
    from moorage_local.scheduler.extenders import parse_extenders
    from moorage_local.scheduler.scheduler import Scheduler

    # one set of informers for all parts: each collection is followed once
    informers = InformerSet(api)
    stats = VolumeStats(SYSTEM)
    pods_by_node = informers.of(PODS, node=index_by_node)
    all_claims, all_volumes = informers.of(PVCS), informers.of(PVS)

    # the API server serves /stats of a node, but only the agents know the usage
    async def stats_source(node: str) -> dict[str, Any]:
        claims = {key_of(claim): claim for claim in all_claims.all()}
        volumes = {volume["metadata"]["name"]: volume for volume in all_volumes.all()}
        running = {name: agent.running() for name, agent in agents.items()}
        use = await pod_stats.look(pod.uid for pods in running.values() for pod in pods)
        mounts = mounted(pods_by_node.by_index("node", node), claims, volumes)
        return await stats.summary(node, mounts, running.get(node, ()), use)

    server.stats_source = stats_source
    # the controllers read the API server's charges, so that a quota is counted exactly
    controllers = ControllerManager(
        api,
        volumes_folder=data / "volumes",
        ca_pem=ca_pem,
        informers=informers,
        quota_in_flight=server.quotas.in_flight,
    )
    ingress = IngressPublisher(api, informers, data / "run" / "ingress.json", ingress_port)
    # the scheduler has its own user, as on a real cluster, so that its writes can be recognised
    scheduler_api = server.client("system:kube-scheduler")
    scheduler_file = data / "scheduler.json"
    extenders = parse_extenders(json.loads(scheduler_file.read_text())) if scheduler_file.exists() else ()
    scheduler = Scheduler(
        scheduler_api,
        extenders=extenders,
        recorder=EventRecorder(scheduler_api, "default-scheduler"),
    )
    return [controllers.run(), ingress.run(), scheduler.run()]


def _tokens(data: Path) -> dict[str, dict[str, Any]]:
    table = _table(data / "tokens.json")
    return {token: entry for token, entry in table.items() if entry["user"]}


def _metrics_token(data: Path) -> str:
    """The token that reads GPU metrics; it is not a login of the API. Empty if there is none."""
    table = _table(data / "tokens.json")
    return next((token for token, entry in table.items() if entry.get("role") == "metrics"), "")


def _table(file: Path) -> dict[str, Any]:
    """Read a small JSON object of the data folder, already checked by `moor up`. Raises DataFolderError."""
    try:
        table = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataFolderError(f"{file} cannot be read: {error}", hint=HINT) from error
    if not isinstance(table, dict):
        raise DataFolderError(f"{file} holds no table", hint=HINT)
    return table


def _spec(kind: Any, node: dict[str, Any]) -> Any:
    if node.get("real"):
        from moorage_local.nodeagent.machine import this_machine

        return this_machine()
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in node.items() if name in known})


async def _create(api: Any, resource: Resource, obj: dict[str, Any]) -> None:
    with contextlib.suppress(AlreadyExists):
        await api.create(resource, obj)


async def _publish_api(api: Any, port: int) -> None:
    """Point the Service `kubernetes` to this server, as all API servers do."""
    labels = {"kubernetes.io/service-name": "kubernetes"}
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    try:
        await api.create(ENDPOINTSLICES, endpoint_slice)
    except AlreadyExists:
        await api.patch(ENDPOINTSLICES, "kubernetes", {"ports": endpoint_slice["ports"]}, "default")


async def _remove_other_nodes(api: Any, names: set[str]) -> None:
    """Remove nodes of an earlier `moor up` with other options: their pods are lost and started on other nodes."""
    for node in (await api.list(NODES)).items:
        if node["metadata"]["name"] not in names:
            with contextlib.suppress(NotFound):
                await api.delete(NODES, node["metadata"]["name"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fds", type=json.loads, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--alive-fd", type=int)
    options = parser.parse_args()
    end_with_parent()
    os.umask(0o077)  # of containers and commands in them it is 0o022: the shim sets it
    set_up_logging()
    gc.set_threshold(10_000, 50, 100)  # with Python's own, half of a large decode is spent in the collector
    for name, fd in options.fds.items():
        if name != "api":
            os.close(fd)
    sock = socket.socket(fileno=options.fds["api"])
    sock.setblocking(False)
    raise_file_limit()  # pods inherit it, as they have more than the usual soft limit on other clusters, too
    try:
        asyncio.run(run(options.data, sock, options.ready_fd, options.alive_fd))
    except MoorageError as error:
        log.error("stopped by an error", extra={"error": error.message, "hint": error.hint})
        if options.ready_fd is not None:
            tell_parent(options.ready_fd, f"localcluster {error.message}")
        sys.exit(1)


if __name__ == "__main__":
    main()
