"""`moor status`: the local cluster on this machine, and the server of the login."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage import __version__
from moorage.cli import console
from moorage.cli.datafolder import DataFolder
from moorage.cli.up import data_option
from moorage.client.datafolder import default_folder, running_folders
from moorage.present.sizes import bytes_text
from moorage_kube.errors import MoorageError
from moorage_kube.quantity import counted
from moorage_kube.texts import as_lines

if TYPE_CHECKING:
    from moorage.client.logins import Saved

ANSWER_SECONDS = 10.0  # patience with the server of a login
PAGES = ("/jobs", "/maps", "/workspaces", "/volumes", "/datasets")  # of the web page


@console.command(
    examples={
        "moor status": "whether it runs, and where",
        "moor status -o json": "the same for a program",
    }
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@data_option
def status(output: str, data: Path | None) -> None:
    """Show the local cluster: addresses, processes, nodes, disk, and how to stop it; and where you are logged in.

    Where no local cluster runs, it shows the cluster of your kubeconfig too, and how its server is reached.

    Exits with 1 if there is no local cluster, no login, and no server by the kubeconfig.
    """
    # facts of the folder need no running cluster
    folder = DataFolder(data.absolute() if data else default_folder())
    folder.check_version()
    running = folder.exists() and folder.is_running()
    config = folder.load_config() if folder.exists() else None
    facts: dict[str, Any] = {"data": str(folder.path), "running": running, "version": __version__}
    if folder.exists():
        facts["disk"] = disk_facts(folder.path)
    # addresses and processes of a running cluster
    if running and config:
        import asyncio

        tokens = folder.tokens(config.user)
        facts["page"] = f"http://127.0.0.1:{config.ports['server']}/?token={tokens['page']}"
        facts["ingress"] = f"http://127.0.0.1:{config.ports['ingress']}"
        facts["kubeconfig"] = str(folder.kubeconfig)
        facts["logs"] = str(folder.log)
        processes = ("supervisor", "localcluster", "services", "admission", "ingress")
        pids = folder.pids(processes)
        facts["processes"] = {name: pids.get(name) for name in processes}
        # an API that does not answer is shown as a problem, next to the other facts
        try:
            facts |= asyncio.run(_cluster_facts(folder.kubeconfig))
        except MoorageError as error:
            facts["error"] = error.message
    # with --data only that folder counts
    if data is None:
        if login := login_facts():
            facts["login"] = login
        if not running and (cluster := kubeconfig_facts()):
            facts["cluster"] = cluster
        if others := [other for other in running_folders() if other != folder.path]:
            facts["others"] = [str(other) for other in others]
    if output == "json":
        console.show_text(json.dumps(facts, indent=2))
    else:
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        console.show_text(status_text(facts, option=option))
    # the exit code is for scripts
    elsewhere = [facts[name] for name in ("login", "cluster") if name in facts]
    if facts.get("error") if running else all(place.get("error") for place in elsewhere):
        raise SystemExit(1)


def kubeconfig_facts() -> dict[str, Any]:
    """The cluster of the kubeconfig and the address of its server; empty if there is no kubeconfig."""
    import asyncio

    from moorage.client.logins import logins_file
    from moorage_kube.remote.config import load_connection

    try:
        connection = load_connection()
    except MoorageError:
        return {}
    if connection.source == str(logins_file()):
        return {}
    facts: dict[str, Any] = {"kubernetes": connection.server, "kubeconfig": connection.source}
    if connection.context:
        facts["context"] = connection.context
    try:
        return facts | asyncio.run(_server_of_kubeconfig())
    except MoorageError as error:
        return facts | {"error": error.message} | ({"hint": error.hint} if error.hint else {})


async def _server_of_kubeconfig() -> dict[str, Any]:
    from moorage.client.cluster import open_cluster
    from moorage.client.target import Target
    from moorage_kube.remote.client import KubeClient

    async with open_cluster(Target()) as cluster:
        if isinstance(cluster.api, KubeClient):
            await cluster.api.raw("GET", "/version")  # an API server that is away is another thing to mend
        route = (await cluster.server.site()).route
        return {"server": route.url, "reachedBy": route.text} if route is not None else {}


def login_facts() -> dict[str, Any]:
    """Return the server of the last login, its user, their teams and runs; empty without a login."""
    from moorage.client.logins import Known

    known = Known.read()
    saved = known.logins.get(known.current)
    if saved is None:
        return {}
    facts: dict[str, Any] = {"server": saved.url, "user": saved.name, "namespace": saved.namespace}
    try:
        import asyncio

        return facts | asyncio.run(_facts_of_server(saved))
    except MoorageError as error:
        return facts | {"error": error.message, "hint": error.hint or f"log in again: moor login {saved.url}"}


async def _facts_of_server(saved: Saved) -> dict[str, Any]:
    from moorage.api.jobs import JobList
    from moorage.api.logins import Person
    from moorage.client.connection import Connection, Patience, at_url

    connection = Connection(
        at_url(saved.url, saved.token, ca=saved.ca), patience=Patience(answer_seconds=ANSWER_SECONDS, seconds=0.0)
    )
    try:
        person = await connection.ask(Person, "GET", "/api/v1/login")
        runs: dict[str, int] = {}
        if saved.namespace:
            params = {"namespace": saved.namespace}
            answer = await connection.ask(JobList, "GET", "/api/v1/jobs", params=params)
            for job in answer.jobs:
                runs[job.state] = runs.get(job.state, 0) + 1
    finally:
        await connection.close()
    return {
        "user": person.name,
        "teams": [{"name": team.name, "role": team.role, "namespace": team.namespace} for team in person.tenants],
        "runs": runs,
    }


def status_text(facts: Mapping[str, Any], *, option: str) -> str:
    """The status as text; `option` is the option that chooses the data folder in the commands it names."""
    disk = facts.get("disk")
    used = ""
    if disk:
        used = f"{bytes_text(disk['usedBytes'])} in the data folder, {bytes_text(disk['freeBytes'])} free"
    login = [*login_lines(facts.get("login") or {}), *cluster_lines(facts.get("cluster") or {})]
    others = [
        f"also        a cluster runs in {other}: export MOORAGE_DATA={shlex.quote(other)}"
        for other in facts.get("others", ())
    ]
    if not facts["running"]:
        line = f"not running ({facts['data']}); `moor up{option}` starts it"
        if login:
            line = f"local       no cluster runs in {facts['data']}; `moor up{option}` starts one"
        kept = [f"disk        {used}; remove it: moor down --erase{option}"] if used else []
        return as_lines([*login, line, *kept, *others])
    lines = [
        f"running     {facts['data']}, version {facts['version']}",
        f"web page    {facts['page']}",
        f"pages       {' '.join(PAGES)}",
        f"ingress     {facts['ingress']}",
        f"kubeconfig  {facts['kubeconfig']}",
    ]
    lines.append("processes   " + ", ".join(f"{name} {pid or '-'}" for name, pid in facts["processes"].items()))
    lines.append(f"logs        {facts['logs']}")
    if error := facts.get("error"):
        lines.append(f"problem     {error}")
    for node in facts.get("nodes", ()):
        gpus = f", {counted(node['gpus'], 'GPU')} {node['gpuType']}".rstrip() if node["gpus"] else ""
        state = node["state"].replace(",", ", ")
        lines.append(f"node        {node['name']}: {state}{gpus}, {counted(node['pods'], 'pod')}")
    if "pods" in facts:
        lines.append("pods        " + (", ".join(f"{n} {phase}" for phase, n in facts["pods"].items()) or "none"))
    if used:
        lines.append(f"disk        {used}")
    lines.append(f"stop        moor down{option}")
    return as_lines([*lines, *login, *others])


def cluster_lines(cluster: Mapping[str, Any]) -> list[str]:
    """Lines about the cluster of the kubeconfig and its server; empty without a kubeconfig."""
    if not cluster:
        return []
    context = f", context {cluster['context']}" if cluster.get("context") else ""
    lines = [f"cluster     {cluster['kubernetes']} by {cluster['kubeconfig']}{context}"]
    if error := cluster.get("error"):
        lines.append(f"problem     {error}" + (f"; {cluster['hint']}" if cluster.get("hint") else ""))
    elif cluster.get("server"):
        lines.append(f"server      {cluster['server']}, by {cluster['reachedBy']}")
    return lines


def login_lines(login: Mapping[str, Any]) -> list[str]:
    """Return lines on the login: server, user, and the commands to type; empty without a login."""
    if not login:
        return []
    lines = [f"logged in   {login['server']} as {login['user']}"]
    if error := login.get("error"):
        return [*lines, f"problem     {error}; {login['hint']}"]
    lines += [
        f"team        {team['name']}: {team['role']}, namespace {team['namespace']}" for team in login["teams"]
    ]
    if not login["namespace"]:
        return [*lines, f"team        none; ask an admin of a team: moor tenant add TEAM --user {login['user']}"]
    counts = ", ".join(f"{count} {state}" for state, count in sorted(login["runs"].items())) or "none"
    return [*lines, f"runs        {counts} in namespace {login['namespace']}; list them: moor jobs"]


def disk_facts(path: Path) -> dict[str, int]:
    """The disk space that a folder uses, and the free space of its disk, in bytes."""
    used = 0
    for parent, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it is removed meanwhile
                used += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return {"usedBytes": used, "freeBytes": shutil.disk_usage(path).free}


async def _cluster_facts(kubeconfig: Path) -> dict[str, Any]:
    from moorage.decide.usage.nodes import pressures_of
    from moorage.model.names import GPU_TYPE_LABELS
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.remote.config import load_connection
    from moorage_kube.resources import NODES, PODS
    from moorage_kube.scheduling import parse_node, parse_pod

    async with KubeClient(load_connection(kubeconfig)) as api:
        listed = (await api.list(NODES)).items
        pods = [parse_pod(obj) for obj in (await api.list(PODS)).items]
    nodes = [(parse_node(obj), pressures_of(obj)) for obj in listed]
    phases: dict[str, int] = {}
    for pod in pods:
        phases[pod.phase] = phases.get(pod.phase, 0) + 1
    return {
        "nodes": [
            {
                "name": node.name,
                "state": ",".join(
                    ["Ready" if node.ready else "NotReady", *["cordoned"] * node.unschedulable, *pressures]
                ),
                "gpus": node.gpus,
                "gpuType": next((node.labels[label] for label in GPU_TYPE_LABELS if label in node.labels), ""),
                "pods": sum(pod.node == node.name and not pod.finished for pod in pods),
            }
            for node, pressures in sorted(nodes, key=lambda row: row[0].name)
        ],
        "pods": phases,
    }
