"""CPU of the extender's answers against a null extender in the same server, and its memory, in one run.

    python benchmarks/extender_requests.py

- `prioritize`, and `filter` before it, at 500 and 5,000 names: CPU of the server per request, against a null
  extender there that only decodes ExtenderArgs and encodes a list of scores: ratio at most 2. Between requests one
  node changes, as in a cluster where each pod asked about is then bound. Taken in turn, minimum of ROUNDS.
- resident memory with 5,000 nodes and 20,000 pods cached: at most 300 MB.

Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NODES, PODS = 5000, 20000
ROUNDS, REQUESTS = 3, 12
RATIO_BAR = 2.0
MEMORY_BAR_MB = 300
POLICIES = ("pack", "fragmentation")
TYPES = ("a100", "h100", "t4")


def a_node(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"node-{number:05}",
            "resourceVersion": "1",
            "labels": {"nvidia.com/gpu.product": TYPES[number % 3], "kubernetes.io/hostname": f"node-{number:05}"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{at}": {} for at in range(40)}}],
        },
        "status": {
            "allocatable": {"cpu": "96", "memory": "384Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "images": [{"names": [f"registry.example.com/image-{at}@sha256:{at:064x}"]} for at in range(20)],
        },
    }


def a_pod(number: int, node: str = "") -> dict[str, Any]:
    cpu = str(4 + number % 7)
    return {
        "metadata": {
            "name": f"pod-{number:06}",
            "namespace": "lab",
            "uid": f"uid-{number}",
            "resourceVersion": "1",
            "labels": {"app": f"app-{number % 100}", "moorage.dev/run": f"run-{number}"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{at}": {} for at in range(40)}}],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/train:1",
                    "env": [{"name": f"VARIABLE_{at}", "value": f"value-{at}-{number}"} for at in range(15)],
                    "resources": {"limits": {"cpu": cpu, "memory": "32Gi", "nvidia.com/gpu": "1"}},
                }
            ],
            "tolerations": [{"key": f"key-{at}", "operator": "Exists"} for at in range(4)],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def memory_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def serve_extender(sock: socket.socket, policy: str, pipe: Connection) -> None:
    """One process: our extender at /scheduler, the null one at /null, and CPU and memory on request."""
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from moorage.extender.app import create_app
    from moorage.extender.cache import ExtenderCache
    from moorage.extender.policies import make_policy
    from moorage_kube.meta import Key
    from moorage_local.testing.fakeapi import FakeApi

    class Args(msgspec.Struct, rename={"pod": "Pod", "nodes": "Nodes", "names": "NodeNames"}):
        pod: dict[str, Any]
        names: list[str]
        nodes: Any = None

    class Score(msgspec.Struct, rename="pascal"):
        host: str
        score: int

    decoder, encoder = msgspec.json.Decoder(Args), msgspec.json.Encoder()
    cache = ExtenderCache(FakeApi(), policy=make_policy(policy))
    gc.set_threshold(10_000, 50, 100)  # as the service sets it
    for number in range(NODES):
        cache._nodes._put(Key("", f"node-{number:05}"), a_node(number))
    for informer, handler in ((cache._nodes, cache.node_changed), (cache._pods, cache.pod_changed)):
        informer.on_change(handler)
    for number in range(PODS):
        cache._pods._put(Key("lab", f"pod-{number:06}"), a_pod(number, f"node-{number * 7 % NODES:05}"))
    cache.synced.set()
    gc.collect()
    moved = [PODS]

    async def null(request: Request) -> Response:
        args = decoder.decode(await request.body())
        if request.path_params["verb"] == "filter":
            answer: Any = {"Nodes": None, "NodeNames": args.names, "FailedNodes": {}, "Error": ""}
        else:
            answer = [Score(name, 0) for name in args.names]
        return Response(encoder.encode(answer), media_type="application/json")

    async def figures(_: Request) -> Response:
        body: Mapping[str, float] = {"cpu": time.process_time(), "memory": memory_mb()}
        return Response(json.dumps(body), media_type="application/json")

    async def bind(request: Request) -> Response:
        number = moved[0] = moved[0] + 1
        cache._pods._put(Key("lab", f"pod-{number:06}"), a_pod(number, f"node-{number * 7 % NODES:05}"))
        return await figures(request)

    app = Starlette(
        routes=[
            Route("/null/{verb}", null, methods=["POST"]),
            Route("/figures", figures),
            Route("/bind", bind),
            Mount("/", create_app(cache)),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    pipe.send("ready")
    asyncio.run(server.serve(sockets=[sock]))


def measure(client: http.client.HTTPConnection, prefix: str, verbs: tuple[str, ...], names: list[str]) -> float:
    """CPU seconds of the server per pod asked about, less what reading the figures and binding cost."""

    def get(path: str) -> bytes:
        client.request("GET", path)
        return client.getresponse().read()

    asked = {"Nodes": None, "NodeNames": names}
    bodies = [json.dumps({"Pod": a_pod(900_000 + at), **asked}).encode() for at in range(REQUESTS)]
    spent = 0.0
    for body in bodies:
        before = json.loads(get("/bind"))["cpu"]
        for verb in verbs:
            client.request("POST", f"{prefix}/{verb}", body, {"Content-Type": "application/json"})
            response = client.getresponse()
            text = response.read()
            if response.status != 200:
                raise RuntimeError(text.decode())
        spent += json.loads(get("/figures"))["cpu"] - before
    return spent / len(bodies)


def main() -> int:
    kept = True
    for policy in POLICIES:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(16)
            context = multiprocessing.get_context("fork")
            here, there = context.Pipe()
            process = context.Process(target=serve_extender, args=(sock, policy, there), daemon=True)
            process.start()
            here.recv()
            client = http.client.HTTPConnection("127.0.0.1", sock.getsockname()[1])
            for count in (500, 5000):
                names = [f"node-{at:05}" for at in range(count)]
                for verbs in (("prioritize",), ("filter", "prioritize")):
                    measure(client, "/scheduler", verbs, names)  # warm
                    ours, null = [], []
                    for _ in range(ROUNDS):
                        null.append(measure(client, "/null", verbs, names))
                        ours.append(measure(client, "/scheduler", verbs, names))
                    ratio = min(ours) / min(null)
                    kept = kept and ratio <= RATIO_BAR
                    print(
                        f"{policy:14} {'+'.join(verbs):18} {count:5} names: {1000 * min(ours):6.2f} ms CPU, null "
                        f"{1000 * min(null):6.2f} ms, ratio {ratio:.2f} (bar: at most {RATIO_BAR:g})",
                        flush=True,
                    )
            client.request("GET", "/figures")
            memory = json.loads(client.getresponse().read())["memory"]
            kept = kept and memory <= MEMORY_BAR_MB
            print(
                f"{policy:14} memory, {NODES} nodes, {PODS} pods: {memory:.0f} MB (bar: at most {MEMORY_BAR_MB})"
            )
            client.close()
            process.terminate()
            process.join()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
