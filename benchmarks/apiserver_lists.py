"""What many large lists by one user cost the others at the local API server: seconds of a small read, and memory.

    python benchmarks/apiserver_lists.py [--lists 20] [--objects 119] [--bytes 900000]

A local cluster of its own, with that many ConfigMaps. A member lists them that often at once, while the
administrator reads one Namespace again and again. Exit code 1 where a read took more than a second longer than the
slowest beside none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from moorage.cli.datafolder import DataFolder
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, SERVICEACCOUNTS, Resource
from moorage_testing.cluster import local_cluster

BAR_SECONDS = 1.0
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False)


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1000


async def read_for(api: KubeClient, done: asyncio.Event) -> list[float]:
    """The seconds of each read of one Namespace, until `done`."""
    times = []
    while not done.is_set():
        began = time.monotonic()
        await api.get(NAMESPACES, "lab")
        times.append(time.monotonic() - began)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 0.05)
    return times


async def take(session: aiohttp.ClientSession, url: str, token: str) -> int:
    """List once, and again where the server asks to wait; bytes of the answer."""
    while True:
        async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
            if answer.status == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                continue
            answer.raise_for_status()
            return sum([len(chunk) async for chunk in answer.content.iter_any()])


async def measure(home: Path, lists: int, objects: int, size: int) -> bool:
    folder = DataFolder(home)
    pid = folder.pid("localcluster")
    assert pid is not None
    connection = load_connection(folder.kubeconfig)
    async with KubeClient(connection) as api:
        await api.create(NAMESPACES, {"metadata": {"name": "lab"}})
        for number in range(objects):
            meta = {"name": f"large-{number}", "namespace": "lab"}
            await api.create(CONFIGMAPS, {"metadata": meta, "data": {"x": "x" * size}})
        await api.create(SERVICEACCOUNTS, {"metadata": {"name": "member", "namespace": "lab"}})
        subject = {"kind": "ServiceAccount", "name": "member", "namespace": "lab"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        await api.create(BINDINGS, {"metadata": {"name": "member"}, "roleRef": role, "subjects": [subject]})
        made = await api.create_subresource(SERVICEACCOUNTS, "member", "token", {"spec": {}}, "lab")
        token = made["status"]["token"]
        alone = asyncio.Event()
        asyncio.get_running_loop().call_later(5.0, alone.set)
        before = await read_for(api, alone)
        memory = resident_mb(pid)
        done = asyncio.Event()
        reading = asyncio.create_task(read_for(api, done))
        context = ssl.create_default_context(cadata=connection.ca_pem.decode())
        connector = aiohttp.TCPConnector(limit=0, ssl=context)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            url = f"{connection.server}/api/v1/namespaces/lab/configmaps"
            began = time.monotonic()
            taken = await asyncio.gather(*(take(session, url, token) for _ in range(lists)))
            seconds = time.monotonic() - began
        done.set()
        beside = await reading
    print(f"{lists} lists of {taken[0] / 1e6:.0f} MB in {seconds:.1f} s")
    print(f"a read: at most {max(before):.3f} s beside none, at most {max(beside):.3f} s beside the lists")
    print(f"memory of the control plane: {memory:.0f} MB before, at most {resident_mb(pid, 'VmHWM'):.0f} MB")
    return max(beside) <= max(before) + BAR_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=20)
    parser.add_argument("--objects", type=int, default=119)
    parser.add_argument("--bytes", type=int, default=900_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="moor-lists-") as scratch,
        local_cluster(Path(scratch) / "d") as cluster,
    ):
        sys.exit(not asyncio.run(measure(cluster.home, options.lists, options.objects, options.bytes)))


if __name__ == "__main__":
    main()
