"""The server of a cluster that is reached from outside: nothing but the Kubernetes API is there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import moorage
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, PODS
from moorage_kube.testing.ports import free_ports
from moorage_testing.cluster import Cluster, local_cluster
from moorage_testing.plugin import short_folder

pytestmark = pytest.mark.xdist_group("reach")

POD = "moorage-server-0"
INSIDE = "http://moorage-server.moorage-system.svc"
RELAY = """
import asyncio

async def carry(reader, writer):
    async def copy(source, target):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.write_eof()
    there = await asyncio.open_connection("127.0.0.1", {server})
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)
    for each in (there[1], writer):
        each.close()

async def main():
    async with await asyncio.start_server(carry, "0.0.0.0", {port}) as listening:
        await listening.serve_forever()

asyncio.run(main())
"""


def a_server_pod(server: int, port: int) -> dict:
    """What answers as the server's own pod would; the server itself is a process beside a local cluster."""
    container = {
        "name": "server",
        "image": "localhost/host",
        "command": [sys.executable, "-c", RELAY.format(server=server, port=port)],
        "ports": [{"name": "main", "containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"name": POD, "labels": {"app.kubernetes.io/name": "moorage-server"}},
        "spec": {
            "containers": [container],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }


@pytest.fixture(scope="module")
def outside() -> Iterator[Cluster]:
    """A cluster whose ConfigMap names an address that only pods resolve."""
    with short_folder() as folder, local_cluster(folder / "home", "--nodes", "1") as cluster:
        asyncio.run(hide(cluster))
        yield cluster


async def hide(cluster: Cluster) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        info = await api.get(CONFIGMAPS, "moorage", "moorage-system")
        server = int(info["data"]["serverUrl"].rpartition(":")[2])
        data = {"serverUrl": INSIDE, "publicUrl": ""}
        await api.patch(CONFIGMAPS, "moorage", {"data": data}, "moorage-system")
        made = await api.create(PODS, a_server_pod(server, free_ports(1)[0]), "moorage-system")
        version = made["metadata"]["resourceVersion"]
        async with asyncio.timeout(180):
            async for event in api.watch(PODS, "moorage-system", resource_version=version):
                if is_ready(event.object):
                    return


def is_ready(pod: dict) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def test_commands_reach_the_server_through_the_kubernetes_api(outside):
    listed = outside.moor("audit", "-o", "json")
    assert isinstance(json.loads(listed.stdout), list | dict)
    assert listed.stderr == ""
    done = outside.moor("explain", "none", check=False)
    assert "out of reach" not in done.stderr


def test_a_map_is_made_and_read_from_outside(outside, unique):
    outside.moor("map", "create", unique, "--range", "0:3", "--cpu", "1", "--", "true")
    items = outside.moor("map", "items", unique)
    assert (items.stdout.count(" ready "), items.stderr) == (3, "")  # its workers do not resolve the server's name
    outside.moor("map", "delete", unique)


def test_python_reaches_the_server_by_its_kubeconfig(outside):
    with moorage.Client(kubeconfig=outside.kubeconfig) as client:
        assert client.gpus() is not None


def test_a_docker_command_has_the_way_for_as_long_as_it_runs(outside, tmp_path):
    program = tmp_path / "docker"
    program.write_text(
        f"#!{sys.executable}\nimport os, urllib.request\n"
        "url = os.environ['DOCKER_HOST'].replace('tcp', 'http') + '/_ping'\n"
        "import json, pathlib\n"
        "headers = json.loads((pathlib.Path(os.environ['DOCKER_CONFIG']) / 'config.json').read_text())\n"
        "request = urllib.request.Request(url, headers=headers['HttpHeaders'])\n"
        "print(urllib.request.urlopen(request).read().decode())\n"
    )
    program.chmod(0o755)
    environment = outside.environment() | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", "docker", "--", "ps"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    refused = outside.moor("docker", "--env", check=False)
    assert refused.returncode == 1
    assert "the way to the server ends with this command" in refused.stderr


def test_who_may_not_port_forward_reads_what_is_missing(outside):
    refused = outside.moor("audit", "--as", "nobody", check=False)
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: the Moorage server of this cluster is out of reach from here: no right to port-forward to it: "
        "nobody may not list pods in namespace moorage-system\n"
        "hint: ask an administrator to set publicUrl in the ConfigMap moorage of namespace moorage-system to an "
        "address that you reach, or to let you port-forward: kubectl -n moorage-system create rolebinding "
        "moorage-forward-NAME --role moorage-forward --user USER\n",
    )


def test_the_status_says_how_the_server_is_reached(outside, tmp_path):
    folder = {"MOORAGE_DATA": str(tmp_path)}
    shown = outside.moor("status", env=folder).stdout.splitlines()
    assert shown[0].startswith("cluster     https://127.0.0.1:")
    assert shown[1].startswith("server      http://127.0.0.1:")
    assert shown[1].endswith(
        ", by a port-forward through the Kubernetes API, to pod moorage-system/moorage-server-0"
    )
    facts = json.loads(outside.moor("status", "-o", "json", env=folder).stdout)
    assert set(facts["cluster"]) == {"kubernetes", "kubeconfig", "context", "server", "reachedBy"}
