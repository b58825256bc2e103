"""Workspaces while the control plane is killed: each is one process from its start on, and is still led to."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from moorage.model.names import WORKSPACE_LABEL
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, Obj
from moorage_testing.killing import EVERYTHING, Trouble, until_so
from scenes.outcome import Outcome

NAMESPACE = "many"
VICTIMS = ("localcluster",) * 3 + ("services",) * 3 + (EVERYTHING, "supervisor") + ("ingress",) * 3
PAUSE_SECONDS = (0.0, 3.0)  # between a restart and the next kill
PATIENCE_SECONDS = 240.0  # bounds a hang
APP = """
import http.server, os, sys
with open(sys.argv[1], "a") as log:
    log.write(f"{sys.argv[2]} {os.getpid()}\\n")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{sys.argv[2]} {os.getpid()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer((os.environ["POD_IP"], int(os.environ["MOORAGE_PORT"])), Answer).serve_forever()
"""


def a_workspace(name: str, script: Path, log: Path) -> Obj:
    serve = f"exec {sys.executable} {script} {log} {name}"
    return {
        "apiVersion": WORKSPACES.api_version,
        "kind": WORKSPACES.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "resources": {"cpu": "10m", "memory": "64Mi"},
            "app": {"command": ["sh", "-c", serve], "ready": "/"},
        },
    }


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """So many workspaces, made and then half of them deleted, under so many kills."""
    folder = trouble.cluster.home.parent
    script, log = folder / "app.py", folder / "log"
    script.write_text(APP)
    names = [f"ws-{number:02}" for number in range(objects)]
    async with KubeClient.from_kubeconfig(trouble.cluster.kubeconfig) as api:
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name in names:
            await api.create(WORKSPACES, a_workspace(name, script, log), NAMESPACE)
        stays, goes = names[: (objects + 1) // 2], names[(objects + 1) // 2 :]
        deleting = asyncio.create_task(_delete(api, trouble, goes, kills))
        await trouble.strike_again_and_again(
            kills, *VICTIMS, pause=PAUSE_SECONDS, seen=lambda: f"{len(_lines(log))} starts"
        )
        await deleting
        phases = await _phases(api, stays)
        starts: dict[str, list[str]] = {}
        for line in _lines(log):
            name, pid = line.split()
            starts.setdefault(name, []).append(pid)
        for name in stays:
            if phases.get(name) != "Running":
                outcome.stuck.append(f"{name} is {phases.get(name)}")
            elif answer := await _unlike(api, name, f"{name} {starts[name][0]}"):
                outcome.lost.append(f"{name} answers {answer!r}; its process is {starts[name][0]}")
    outcome.stuck += [f"{name} is {phases[name]}, should be gone" for name in goes if name in phases]
    outcome.doubled += [
        f"{name} was started as {', '.join(pids)}" for name, pids in starts.items() if len(pids) > 1
    ]
    outcome.objects = objects


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def _delete(api: KubeClient, trouble: Trouble, names: list[str], kills: int) -> None:
    """Delete them one after the other in the second half of the kills."""
    for at, name in enumerate(names):
        await until_so(lambda at=at: trouble.total >= kills / 2 + at * kills / 2 / len(names))
        while True:
            try:
                await api.delete(WORKSPACES, name, NAMESPACE)
            except NotFound:
                break
            except ApiError:
                await asyncio.sleep(0.2)


async def _phases(api: KubeClient, stays: list[str]) -> dict[str, str]:
    """Phase by name, once it is as it should be, or does not get there."""
    ends, phases = time.monotonic() + PATIENCE_SECONDS, dict[str, str]()
    while time.monotonic() < ends:
        with contextlib.suppress(ApiError):
            listed = await api.list(WORKSPACES, NAMESPACE)
            phases = {obj["metadata"]["name"]: (obj.get("status") or {}).get("phase", "") for obj in listed.items}
            if phases == dict.fromkeys(stays, "Running"):
                break
        await asyncio.sleep(0.5)
    return phases


async def _unlike(api: KubeClient, name: str, wanted: str) -> str:
    """What is answered, unless it is what is wanted: its pod answers itself, and the ingress asks for a login."""
    answer, ends = "it has no pod", time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        try:
            workspace = await api.get(WORKSPACES, name, NAMESPACE)
            pods = await api.list(PODS, NAMESPACE, label_selector=f"{WORKSPACE_LABEL}={name}")
            for pod in pods.items:
                port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
                _, answer = await asyncio.to_thread(_get, f"http://{pod['status']['podIP']}:{port}/")
            if answer == wanted:
                url = urlsplit(workspace["status"]["url"])
                code, text = await asyncio.to_thread(_get, f"http://127.0.0.1:{url.port}/", url.netloc)
                if code in (200, 302, 303, 401):
                    return ""
                answer = f"{code} by the ingress: {text[:200]}"
        except (OSError, KeyError, ApiError) as error:
            answer = repr(error)
        await asyncio.sleep(0.5)
    return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _get(url: str, host: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
