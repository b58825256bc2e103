"""CPU of the admission webhook per review, against a null webhook in the same server, in one run.

    python benchmarks/webhook_reviews.py [--without-policies]

The server is a process of its own: uvicorn, plain HTTP on the loopback, one connection kept open. The null webhook
decodes the same AdmissionReview and answers "allowed". The others are `/mutate` and `/validate` of the webhook,
its caches filled with 100 nodes and 50 namespaces: with no policy, and with the ready-made one. Reviews: a
Deployment of three containers, and a Job that is a run. Rounds are taken in turn; CPU seconds are the server's
own, the median of the rounds. `--without-policies` leaves policies out, to measure a version that has none.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS = 7
REVIEWS = 400  # per round and target
NODES, NAMESPACES_COUNT = 100, 50


def a_container(name: str) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{n}", "value": f"value-{n}"} for n in range(10)]
    mounts = [{"name": "data", "mountPath": "/data"}]
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return {
        "name": name,
        "image": "example.test/image:1",
        "env": env,
        "volumeMounts": mounts,
        "resources": resources,
    }


def a_review(kind: str) -> bytes:
    spec = {"restartPolicy": "Always" if kind == "Deployment" else "Never", "volumes": [{"name": "data"}]}
    names = ("main", "proxy", "logs") if kind == "Deployment" else ("main",)
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": spec | {"containers": [a_container(n) for n in names]},
    }
    meta: dict[str, Any] = {"name": "train", "namespace": "ns-1", "labels": {"app": "x"}}
    if kind == "Job":
        meta["labels"]["moorage.dev/run"] = "train"
    obj = {"metadata": meta, "spec": {"backoffLimit": 0, "template": template}}
    request = {
        "uid": "u", "kind": {"group": "apps", "version": "v1", "kind": kind}, "namespace": "ns-1", "name": "train",
        "operation": "CREATE", "userInfo": {"username": "ada", "groups": ["system:authenticated"]}, "object": obj,
    }  # fmt: skip
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


async def serve(port: int, *, policies: bool) -> None:
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Mount, Route

    from moorage.webhooks.app import Webhook, _Review
    from moorage_kube.resources import NAMESPACES
    from moorage_kube.resources import NODES as NODE_RESOURCE
    from moorage_local.testing.fakeapi import FakeApi

    def a_cluster(policy: bool) -> FakeApi:
        api = FakeApi()
        for number in range(NODES):
            gpus = {"nvidia.com/gpu": "8"} if number % 2 else {}
            labels = {"nvidia.com/gpu.product": f"type-{number % 5}"} if gpus else {}
            status = {"allocatable": {"cpu": "64", "memory": "256Gi"} | gpus, "conditions": []}
            api.put(NODE_RESOURCE, {"metadata": {"name": f"n{number}", "labels": labels}, "status": status})
        for number in range(NAMESPACES_COUNT):
            api.put(NAMESPACES, {"metadata": {"name": f"ns-{number}", "labels": {"moorage.dev/guard": "enabled"}}})
        if policy:
            from moorage.model.policy import POLICIES, gpu_cluster_policy

            api.put(POLICIES, gpu_cluster_policy())
        return api

    async def null(http_request: Request) -> Response:
        asked = msgspec.json.decode(await http_request.body(), type=_Review).request
        answer = {"uid": asked.uid, "allowed": True}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return Response(msgspec.json.encode(review), media_type="application/json")

    async def cpu(_: Request) -> Response:
        return PlainTextResponse(str(time.process_time()))

    webhooks = {"none": Webhook(a_cluster(False))} | ({"policy": Webhook(a_cluster(True))} if policies else {})
    routes: list[Any] = [Route("/null", null, methods=["POST"]), Route("/cpu", cpu)]
    routes += [Mount(f"/{name}", one.app) for name, one in webhooks.items()]
    following = [asyncio.create_task(one.run()) for one in webhooks.values()]
    for one in webhooks.values():
        await one.wait_synced()
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="error", ws="none")
    try:
        await uvicorn.Server(config).serve()
    finally:
        for task in following:
            task.cancel()


class Client:
    """One kept-open connection to the server."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port)
        deadline = time.monotonic() + 30
        while True:
            try:
                self._http.connect()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        self._http.request("GET" if body is None else "POST", path, body)
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {data[:200]!r}")
        return data

    def cpu_seconds(self, path: str, body: bytes) -> float:
        """CPU of the server per review of one round."""
        before = float(self.ask("/cpu"))
        for _ in range(REVIEWS):
            self.ask(path, body)
        return (float(self.ask("/cpu")) - before) / REVIEWS


def main() -> int:
    policies = "--without-policies" not in sys.argv
    if "--serve" in sys.argv:
        asyncio.run(serve(int(sys.argv[-1]), policies=policies))
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, __file__, *([] if policies else ["--without-policies"]), "--serve", str(port)]
    process = subprocess.Popen(argv, env=os.environ)
    try:
        client = Client(port)
        paths = ["/null", "/none/mutate", "/none/validate"]
        paths += ["/policy/mutate", "/policy/validate"] if policies else []
        for kind in ("Deployment", "Job"):
            body = a_review(kind)
            found: dict[str, list[float]] = {path: [] for path in paths}
            for path in paths:
                client.cpu_seconds(path, body)  # warm
            for _ in range(ROUNDS):
                for path in paths:
                    found[path].append(client.cpu_seconds(path, body))
            floor = statistics.median(found["/null"])
            print(f"{kind}, {len(body)} bytes, {ROUNDS} rounds of {REVIEWS}")
            for path, seconds in found.items():
                middle = statistics.median(seconds)
                spread = f"{min(seconds) * 1e6:.0f}-{max(seconds) * 1e6:.0f}"
                print(f"  {path:17} {middle * 1e6:6.0f} us ({spread})   {middle / floor:5.2f} x null")
    finally:
        process.terminate()
        process.wait(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
