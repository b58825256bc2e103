"""The network of the local cluster, with kubectl and as our own client meets it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moorage_kube.errors import NotFound, ServerError
from moorage_kube.meta import is_condition_true
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.exec import STDOUT
from moorage_kube.resources import DEPLOYMENTS, ENDPOINTSLICES, INGRESSES, PODS, SERVICES, Obj
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("kubelet", "scheduler", "controllers")]

PATIENCE_SECONDS = 180.0  # bounds a hang
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SERVE = (
    "import http.server, os; http.server.ThreadingHTTPServer((os.environ['POD_IP'], 8000),"
    " http.server.SimpleHTTPRequestHandler).serve_forever()"
)


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[KubeClient]:
    if cluster.kind != "local":
        pytest.skip("what only the local cluster has: processes as containers, and an ingress of its own")
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        yield client


def is_alive(pid: bytes) -> bool:
    return Path(f"/proc/{pid.decode().strip()}").exists()


def a_pod(*command: str, **container: Any) -> Obj:
    one = {"name": "c", "image": "localhost/host", "command": list(command), "env": [POD_IP]} | container
    return {"terminationGracePeriodSeconds": 1, "containers": [one]}


async def a_running_pod(api: KubeClient, namespace: str, *command: str, **container: Any) -> Obj:
    spec = a_pod(*(command or ("sleep", "1000")), **container)
    await api.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace)

    async def ready() -> Obj | None:
        found = await api.get(PODS, "p", namespace)
        return found if is_condition_true(found, "Ready") else None

    found: Obj = await until("the pod", ready)
    return found


def kubectl(cluster: Cluster, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    return subprocess.run(
        [program, "--kubeconfig", str(cluster.kubeconfig), *args],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


# kubectl logs this of the empty first message of a stream where it comes before kubectl has made the stream; API
# servers send it too. See readDemuxLoop in client-go's tools/remotecommand/websocket.go
_EARLY = "Unknown stream id 1, discarding message"


async def test_kubectl_runs_a_command_in_the_pods_environment_and_tells_its_exit_code(cluster, api, namespace):
    pod = await a_running_pod(api, namespace, env=[POD_IP, {"name": "COLOUR", "value": "blue"}])
    script = "echo $COLOUR $POD_IP; echo no >&2; exit 3"
    done = await asyncio.to_thread(kubectl, cluster, "-n", namespace, "exec", "p", "--", "sh", "-c", script)
    assert done.returncode == 3
    assert done.stdout.decode() == f"blue {pod['status']['podIP']}\n"
    lines = [line for line in done.stderr.decode().splitlines() if _EARLY not in line]
    assert lines == ["no", "command terminated with exit code 3"]
    missing = await asyncio.to_thread(kubectl, cluster, "-n", namespace, "exec", "p", "--", "no-such-program")
    assert missing.returncode == 127
    assert b'exec: "no-such-program": executable file not found in $PATH' in missing.stderr


async def test_kubectl_sends_and_receives_every_byte(cluster, api, namespace):
    await a_running_pod(api, namespace)
    data = bytes(range(256)) * 20_000
    done = await asyncio.to_thread(kubectl, cluster, "-n", namespace, "exec", "-i", "p", "--", "cat", stdin=data)
    assert (done.returncode, done.stdout == data) == (0, True)


async def test_a_terminal_has_a_size_and_one_stream(api, namespace):
    await a_running_pod(api, namespace)
    async with await api.exec("p", namespace, ["sh"], stdin=True, tty=True) as process:
        await process.resize(99, 22)
        await process.write(b"stty size; echo error >&2; exit 7\n")
        code, out, err = await process.output()
    assert (code, err) == (7, b"")
    assert b"22 99" in out
    assert b"error" in out


async def test_our_own_client_reads_streams_apart_and_ends_the_input(api, namespace):
    await a_running_pod(api, namespace)
    data = bytes(range(256)) * 20_000
    async with await api.exec("p", namespace, ["sh", "-c", "cat; echo end >&2"], stdin=data) as process:
        code, out, err = await process.output()
    assert (code, out == data, err) == (0, True, b"end\n")


async def test_a_command_ends_with_its_pod(api, namespace):
    await a_running_pod(api, namespace)
    script = "echo $$; exec sleep 1000"
    async with await api.exec("p", namespace, ["sh", "-c", script]) as process:
        said = aiter(process)
        stream, pid = await anext(said)
        assert stream == STDOUT
        await api.delete(PODS, "p", namespace)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [one async for one in said] == []
        assert process.exit_code == 137
    assert not is_alive(pid)


async def test_a_command_ends_when_whoever_asked_for_it_has_gone(api, namespace):
    await a_running_pod(api, namespace)
    async with await api.exec("p", namespace, ["sh", "-c", "echo $$; exec sleep 1000"]) as process:
        _, pid = await anext(aiter(process))

    async def gone() -> bool:
        return not is_alive(pid)

    await until("the command to end", gone)


async def test_a_container_that_does_not_run_takes_no_command(api, namespace):
    spec = a_pod("true") | {"restartPolicy": "Never"}
    await api.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace)

    async def over() -> bool:
        return (await api.get(PODS, "p", namespace))["status"].get("phase") == "Succeeded"

    await until("the pod's end", over)
    with pytest.raises((NotFound, ServerError)) as caught:
        await api.exec("p", namespace, ["true"])
    assert 'container not found ("c")' in caught.value.message


async def test_kubectl_attach_shows_what_is_written(cluster, api, namespace):
    await a_running_pod(api, namespace, "sh", "-c", "while true; do echo hello; sleep 0.2; done")
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    process = await asyncio.create_subprocess_exec(
        *(program, "--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "attach", "p"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.stdout.readline() == b"hello\n"
            assert await process.stdout.readline() == b"hello\n"
    finally:
        process.kill()
        await process.wait()


async def test_kubectl_forwards_a_port_to_the_pods_own_address_and_to_its_localhost(cluster, api, namespace):
    (port,) = free_ports(1)
    both = (  # ready once it listens on both
        "import http.server, threading; local = http.server.ThreadingHTTPServer("
        f"('127.0.0.1', {port}), http.server.SimpleHTTPRequestHandler);"
        f" threading.Thread(target=local.serve_forever).start(); {SERVE}"
    )
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    await a_running_pod(api, namespace, sys.executable, "-c", both, readinessProbe=probe)
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    process = await asyncio.create_subprocess_exec(
        *(program, "--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "port-forward", "p"),
        *("--address", "127.0.0.1", ":8000", f":{port}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as http:
            for _ in range(2):
                line = (await process.stdout.readline()).decode()
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                assert found is not None, line

                async def ask(port: str) -> int:
                    async with http.get(f"http://127.0.0.1:{port}/") as answer:
                        await answer.read()
                        return answer.status

                assert await asyncio.gather(*(ask(found[1]) for _ in range(5))) == [200] * 5
    finally:
        process.kill()
        await process.wait()


async def a_web(api: KubeClient, namespace: str, replicas: int = 2) -> None:
    spec = a_pod(
        *(sys.executable, "-c", SERVE),
        ports=[{"name": "http", "containerPort": 8000}],
        readinessProbe={"httpGet": {"port": "http"}, "periodSeconds": 1},
    )
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    selector = {"matchLabels": {"app": "web"}}
    made = {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }
    await api.create(DEPLOYMENTS, made, namespace)
    port = {"port": 80, "targetPort": "http"}
    await api.create(
        SERVICES, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [port]}}, namespace
    )


async def test_an_ingress_leads_to_the_pods_that_are_ready(cluster, api, namespace):
    await a_web(api, namespace)
    host = f"{namespace}.localhost"
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    made = await api.create(INGRESSES, {"metadata": {"name": "web"}, "spec": {"rules": [rule]}}, namespace)
    assert made["spec"]["ingressClassName"] == "moorage-local", "the default class"

    async def address() -> Any:
        status = (await api.get(INGRESSES, "web", namespace))["status"]
        return status["loadBalancer"].get("ingress")

    (where,) = await until("the Ingress's address", address)
    port = where["ports"][0]["port"]
    assert (where["ip"], port) == (
        "127.0.0.1",
        json.loads((cluster.home / "config.json").read_text())["ports"]["ingress"],
    )

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers={"Host": host}) as http:

        async def ask(wanted: int, said: str = "") -> bool:
            async with http.get("/") as answer:
                text = await answer.text()
                return answer.status == wanted and said in text

        await until("the pods behind the Ingress", lambda: ask(200))

        async def both_known() -> bool:
            (one,) = (await api.list(ENDPOINTSLICES, namespace)).items
            return len({endpoint["addresses"][0] for endpoint in one["endpoints"]}) == 2

        await until("an address for each pod", both_known)
        await api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, namespace)
        await until("the pods to be gone", lambda: ask(503, f"no pod behind Service {namespace}/web is ready"))
        await api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, namespace)
        await until("a pod to be back", lambda: ask(200))
        await api.delete(SERVICES, "web", namespace)
        await until("the Service to be missed", lambda: ask(503, f"Service {namespace}/web, which"))
        await api.delete(INGRESSES, "web", namespace)
        await until("the route to be gone", lambda: ask(404, host))
