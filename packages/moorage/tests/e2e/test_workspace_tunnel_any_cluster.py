"""`moor workspace open --tunnel` as a member types it: a browser on this machine, a workspace on the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from moorage.actions import people
from moorage.model.manifests import ROLEBINDINGS
from moorage.model.people import subjects_of
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("scheduler", "controllers", "kubelet")]

PASSWORD = "correct horse battery"
PATIENCE = 180.0  # seconds; only bounds a hang
APP = """
import base64, hashlib, http.server, os, struct

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo()
        body = f"{self.path} of {os.environ['MOORAGE_WORKSPACE']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + guid).encode()).digest())
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            kind, length = head[0] & 15, head[1] & 127
            if length == 126:
                length = struct.unpack("!H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length)))
            if kind == 8:
                return
            if kind == 1:
                size = bytes([len(data)]) if len(data) < 126 else b"\\x7e" + struct.pack("!H", len(data))
                self.wfile.write(b"\\x81" + size + data[::-1])

port = int(os.environ["MOORAGE_PORT"])
http.server.ThreadingHTTPServer((os.environ["POD_IP"], port), Handler).serve_forever()
"""


@pytest.fixture
async def ada(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A person with a password, who may edit in the namespace of the test's name, where the workspace is."""
    person = f"ada-{unique}"
    cluster.moor("user", "create", person, "--password-stdin", stdin=PASSWORD + "\n")
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    bound: Any = {"metadata": {"name": "ada"}, "subjects": subjects_of(person), "roleRef": role}
    await api.create(ROLEBINDINGS, bound, unique)
    image = {} if cluster.kind == "local" else {"image": cluster.image}
    spec = {
        "app": {"command": [cluster.python, "-c", APP], "ready": "/"},
        "resources": {"cpu": "100m", "memory": "128Mi"},
        **image,
    }
    typed = {"apiVersion": WORKSPACES.api_version, "kind": WORKSPACES.kind}
    await api.create(WORKSPACES, typed | {"metadata": {"name": "lab"}, "spec": spec}, unique)
    yield person
    await api.delete(NAMESPACES, unique)
    with contextlib.suppress(NotFound):
        await people.delete_account(api, person)


@contextlib.contextmanager
def opened(cluster: Cluster, env: dict[str, str], *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that the command prints, while it runs."""
    typed = [sys.executable, "-m", "moorage.cli.main", "workspace", "open", "lab", "--print", *options]
    child = subprocess.Popen(
        typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment() | env,
    )
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline().strip()
        if not line:
            raise AssertionError(f"no address was printed: {child.stderr.read()}")
        yield line, child
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("plain", [pytest.param(False, id="a login"), pytest.param(True, id="a kubeconfig alone")])
async def test_a_member_opens_a_workspace_through_a_tunnel(
    cluster: Cluster, login_server: str, ada: str, unique: str, tmp_path: Path, plain: bool
) -> None:
    login = {"MOORAGE_CONFIG": str(tmp_path / "config"), "MOORAGE_KUBECONFIG": str(tmp_path / "none")}
    cluster.moor("login", login_server, "--username", ada, "--password-stdin", stdin=PASSWORD + "\n", env=login)
    kubeconfig = tmp_path / "kubeconfig"
    cluster.moor("kubeconfig", "-n", unique, "-o", str(kubeconfig), *(["--plain"] if plain else []), env=login)
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"MOORAGE_KUBECONFIG": str(kubeconfig), "PATH": scripts, "MOORAGE_CONFIG": login["MOORAGE_CONFIG"]}
    if plain:
        env["MOORAGE_CONFIG"] = str(tmp_path / "empty")
    with opened(cluster, env, "--tunnel") as (url, child):
        address = urlsplit(url)
        host = f"lab--{unique}.tunnel.localhost:{address.port}"
        assert address.netloc == host
        here = f"http://127.0.0.1:{address.port}"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as browser:
            stranger = await browser.get(f"{here}/", headers={"Host": host})
            assert stranger.status == 401
            entered = await browser.get(
                f"{here}{address.path}?{address.query}", headers={"Host": host}, allow_redirects=False
            )
            assert entered.status == 303, await entered.text()
            (cookie,) = entered.cookies.values()
            shown = {"Host": host, "Cookie": f"{cookie.key}={cookie.value}"}
            page = await browser.get(f"{here}/page?x=1", headers=shown)
            assert await page.text() == "/page?x=1 of lab"
            async with browser.ws_connect(f"{here}/kernel", headers=shown | {"Origin": f"http://{host}"}) as ws:
                await ws.send_str("print(6 * 7)" * 100)
                assert await ws.receive_str() == ("print(6 * 7)" * 100)[::-1]
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await browser.ws_connect(f"{here}/kernel", headers=shown | {"Origin": "http://evil.test"})
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 0
        with pytest.raises(OSError, match="Connect call failed"):
            async with aiohttp.ClientSession() as browser:
                await browser.get(f"{here}/", headers={"Host": host})
    audit = cluster.moor("audit", "-o", "json").stdout
    entries = [entry for entry in json.loads(audit) if entry.get("what") == f"open workspace {unique}/lab"]
    assert {entry["person"] for entry in entries} == {ada}
    assert not [entry for entry in json.loads(audit) if str(entry.get("path", "")).endswith("/tunnel")]


async def test_a_tunnel_that_waits_for_its_workspace_starts_it_and_a_taken_port_is_said(
    cluster: Cluster, ada: str, unique: str
) -> None:
    cluster.moor("workspace", "stop", "lab", "-n", unique, "--wait")
    with opened(cluster, {}, "--tunnel", "-n", unique) as (url, _):
        port = str(urlsplit(url).port)
        wait_until(
            "it runs",
            lambda: json.loads(cluster.moor("workspace", "show", "lab", "-n", unique, "-o", "json").stdout)[
                "ready"
            ],
            patience=PATIENCE,
        )
        done = cluster.moor("workspace", "open", "lab", "-n", unique, "--print", "--port", port, check=False)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
