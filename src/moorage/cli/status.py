"""`moor status`: what runs on this machine, and where."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from moorage import __version__
from moorage.cli import console
from moorage.cli.datafolder import DataFolder
from moorage.cli.up import data_option
from moorage.client.datafolder import default_folder
from moorage.errors import MoorageError
from moorage.present.sizes import bytes_text

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
    """Show whether the local cluster runs: addresses, processes, nodes, disk, and how to stop it."""
    folder = DataFolder(data.absolute() if data else default_folder())
    folder.check_version()
    running = folder.exists() and folder.is_running()
    config = folder.load_config() if folder.exists() else None
    facts: dict[str, Any] = {"data": str(folder.path), "running": running, "version": __version__}
    if folder.exists():
        facts["disk"] = disk_facts(folder.path)
    if running and config:
        import asyncio

        tokens = folder.tokens(config.user)
        facts["page"] = f"http://127.0.0.1:{config.ports['server']}/?token={tokens['page']}"
        facts["ingress"] = f"http://127.0.0.1:{config.ports['ingress']}"
        facts["kubeconfig"] = str(folder.kubeconfig)
        facts["logs"] = str(folder.log)
        processes = ("supervisor", "localcluster", "services", "ingress")
        facts["processes"] = {name: folder.read_pid(name) for name in processes}
        try:
            facts |= asyncio.run(_cluster_facts(folder.kubeconfig))
        except MoorageError as error:
            facts["error"] = error.message
    if output == "json":
        console.show(json.dumps(facts, indent=2))
    else:
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        console.show(status_text(facts, option=option))
    if not running or facts.get("error"):
        raise SystemExit(1)


def status_text(facts: Mapping[str, Any], *, option: str) -> str:
    """The facts for a person; `option` chooses the data folder in the commands that it names."""
    disk = facts.get("disk")
    used = ""
    if disk:
        used = f"{bytes_text(disk['usedBytes'])} in the data folder, {bytes_text(disk['freeBytes'])} free"
    if not facts["running"]:
        line = f"not running ({facts['data']}); `moor up{option}` starts it"
        kept = f"\ndisk        {used}; remove it: moor down --erase{option}" if used else ""
        return line + kept
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
        gpus = f", {node['gpus']} GPUs {node['gpuType']}".rstrip() if node["gpus"] else ""
        lines.append(f"node        {node['name']}: {node['state']}{gpus}, {node['pods']} pods")
    if "pods" in facts:
        lines.append("pods        " + (", ".join(f"{n} {phase}" for phase, n in facts["pods"].items()) or "none"))
    if used:
        lines.append(f"disk        {used}")
    lines.append(f"stop        moor down{option}")
    return "\n".join(lines)


def disk_facts(path: Path) -> dict[str, int]:
    """Bytes that the files of a folder take on the disk, and that are free there."""
    used = 0
    for parent, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it is removed meanwhile
                used += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return {"usedBytes": used, "freeBytes": shutil.disk_usage(path).free}


async def _cluster_facts(kubeconfig: Path) -> dict[str, Any]:
    from moorage.apimachinery.resources import NODES, PODS
    from moorage.apimachinery.scheduling import parse_node, parse_pod
    from moorage.kube.client import KubeClient
    from moorage.kube.config import load_connection
    from moorage.model.names import GPU_TYPE_LABELS

    async with KubeClient(load_connection(kubeconfig)) as api:
        nodes = [parse_node(obj) for obj in (await api.list(NODES)).items]
        pods = [parse_pod(obj) for obj in (await api.list(PODS)).items]
    phases: dict[str, int] = {}
    for pod in pods:
        phases[pod.phase] = phases.get(pod.phase, 0) + 1
    return {
        "nodes": [
            {
                "name": node.name,
                "state": ("Ready" if node.ready else "NotReady") + (",cordoned" if node.unschedulable else ""),
                "gpus": node.gpus,
                "gpuType": next((node.labels[label] for label in GPU_TYPE_LABELS if label in node.labels), ""),
                "pods": sum(pod.node == node.name and not pod.finished for pod in pods),
            }
            for node in sorted(nodes, key=lambda node: node.name)
        ],
        "pods": phases,
    }
