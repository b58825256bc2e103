"""Two webhooks under admission load: their certificate is renewed, and they are ended, without a failed review."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from moorage.cluster.certs import LIFETIME, RENEW_BEFORE, contents, ensure_certificate, service_names
from moorage_kube.clock import SYSTEM
from moorage_kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.pausing import pause
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import soon
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.cluster import Cluster, local_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.xdist_group("replicas")]

HOST = service_names()[0]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "main", "image": "busybox"}]},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "home", "--nodes", "1") as cluster:
        yield cluster


class Webhook:
    """A process of `moor webhook`, and the folder that its kubelet mounts."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        (self.port,) = free_ports(1)
        self._folder, self._cluster = folder, cluster
        folder.mkdir()
        self._versions = itertools.count()
        self.process: subprocess.Popen[bytes] | None = None

    def mount(self, data: dict[str, bytes]) -> None:
        """Bring the Secret as a kubelet does: a folder for each version, and a link that moves to it."""
        version = self._folder / f"..{next(self._versions)}"
        version.mkdir()
        for name, content in data.items():
            (version / name).write_bytes(content)
            if not (self._folder / name).is_symlink():
                (self._folder / name).symlink_to(f"..data/{name}")
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")

    def start(self) -> None:
        argv = [
            sys.executable,
            "-m",
            "moorage.cli.main",
            "webhook",
            "--port",
            str(self.port),
            "--host",
            "127.0.0.1",
        ]
        argv += ["--tls-cert", str(self._folder / "tls.crt"), "--tls-key", str(self._folder / "tls.key")]
        argv += ["--audit-token-file", str(self._folder / "audit-token")]
        argv += ["--kubeconfig", str(self._cluster.kubeconfig)]
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            env = os.environ | {"MOORAGE_DRAIN_SECONDS": "10"}
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class ApiServer:
    """Sends reviews to the webhooks that are ready, in turns, as the API server does by a Service.

    It trusts what the registration says at that moment, and keeps connections as Go's client does.
    """

    def __init__(self, api: FakeApi, webhooks: list[Webhook]) -> None:
        self.api, self.webhooks = api, webhooks
        self.ready: set[int] = set()
        self.reviews = 0
        self.open: list[asyncio.StreamWriter] = []
        self.failures: list[str] = []
        self.authorities: dict[int, set[bytes]] = {}  # certificates that each was seen to serve
        self._turn, self._chance = itertools.count(), random.Random(0)
        self.kept: dict[bytes, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def look(self) -> None:
        """Who is ready, as kubelets ask it: they check no certificate."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while True:
            for webhook in self.webhooks:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", webhook.port, ssl=context)
                    try:
                        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                        is_ready = b" 200 " in await reader.readline()
                        served = writer.get_extra_info("ssl_object").getpeercert(True)
                        self.authorities.setdefault(webhook.port, set()).add(served)
                    finally:
                        writer.transport.abort()
                except OSError:
                    is_ready = False
                (self.ready.add if is_ready else self.ready.discard)(webhook.port)
            await pause(self._chance, 0.1, 0.3)

    async def review_for_ever(self) -> None:
        while True:
            try:
                await self._review()
            except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            await pause(self._chance, 0.0, 0.02)

    async def _review(self) -> None:
        self.reviews += 1
        registration = await self.api.get(VALIDATING_WEBHOOKS, "moorage")
        bundle = base64.b64decode(registration["webhooks"][0]["clientConfig"]["caBundle"])
        kept = self.kept.setdefault(bundle, [])
        if kept:
            reader, writer = kept.pop()
        else:
            ports = sorted(self.ready)
            context = ssl.create_default_context(cadata=bundle.decode())
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", ports[next(self._turn) % len(ports)], ssl=context, server_hostname=HOST
            )
        self.open.append(writer)
        uid = f"review-{self.reviews}"
        request = {"uid": uid, "operation": "CREATE", "namespace": "default", "name": "p", "object": POD}
        request |= {"kind": {"group": "", "version": "v1", "kind": "Pod"}, "userInfo": {"username": "ada"}}
        request |= {"resource": {"group": "", "version": "v1", "resource": "pods"}}
        body = json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        ).encode()
        head = f"POST /validate HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer_head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer_head.partition("content-length:")[2].split()[0])
        answer = json.loads(await reader.readexactly(length))
        assert answer["response"]["uid"] == uid, answer
        assert answer["response"]["allowed"] is True, answer
        if "connection: close" in answer_head:
            writer.transport.abort()
        else:
            kept.append((reader, writer))


@contextlib.asynccontextmanager
async def under_load(api_server: ApiServer) -> AsyncIterator[None]:
    looking = asyncio.create_task(api_server.look())
    await soon("ready webhooks", lambda: len(api_server.ready) == len(api_server.webhooks))
    tasks = [looking, *(asyncio.create_task(api_server.review_for_ever()) for _ in range(4))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in api_server.open:
            writer.transport.abort()
        await asyncio.sleep(0)


async def secret(api: FakeApi) -> dict[str, bytes]:
    return contents(await api.get(SECRETS, "moorage-webhook-tls", "moorage-system"))


@pytest.fixture
async def api_server(tmp_path: Path, cluster: Cluster) -> AsyncIterator[ApiServer]:
    """Two webhooks with a certificate that is due to be renewed."""
    api = FakeApi()
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        webhooks = [{"name": "w", "clientConfig": {"service": {"name": "moorage-webhook"}}}]
        api.put(resource, {"metadata": {"name": "moorage"}, "webhooks": webhooks})
    long_ago = SYSTEM.now() - LIFETIME + RENEW_BEFORE - timedelta(hours=1)
    await ensure_certificate(api, clock=FakeClock(long_ago))
    pods = [Webhook(tmp_path / name, cluster) for name in ("first", "second")]
    for pod in pods:
        pod.mount(await secret(api))
        pod.start()
    yield ApiServer(api, pods)
    for pod in pods:
        pod.stop()


async def test_a_certificate_is_renewed_without_a_failed_review_or_a_restart(api_server: ApiServer) -> None:
    async with under_load(api_server):
        before = await secret(api_server.api)
        await soon("reviews", lambda: api_server.reviews > 50)
        await ensure_certificate(api_server.api, clock=FakeClock(SYSTEM.now()))
        after = await secret(api_server.api)
        assert after["tls.crt"] != before["tls.crt"]
        for webhook in api_server.webhooks:  # one kubelet is quicker than the other
            begun = api_server.reviews
            webhook.mount(after)
            await soon("another certificate", lambda port=webhook.port: len(api_server.authorities[port]) == 2)
            await soon("reviews", lambda begun=begun: api_server.reviews > begun + 50)
    assert api_server.failures == []


async def test_webhooks_are_ended_in_turns_without_a_failed_review(api_server: ApiServer) -> None:
    async with under_load(api_server):
        for webhook in api_server.webhooks:
            begun = api_server.reviews
            assert webhook.process is not None
            webhook.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(webhook.process.wait, 120)
            assert webhook.process.returncode == 0
            webhook.start()
            await soon("ready webhooks", lambda: len(api_server.ready) == 2)
            await soon("reviews", lambda begun=begun: api_server.reviews > begun + 50)
    assert api_server.failures == []
