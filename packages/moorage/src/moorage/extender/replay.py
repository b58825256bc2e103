"""The extender's own handler, called in process as kube-scheduler calls it: ExtenderArgs in, answer bytes out.

`moor simulate --handler` answers from here. Events of the API server are passed to its cache
directly, so a replay needs no event loop: the handler waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, cast

import msgspec

from moorage.decide.packing.policies import WHOLE
from moorage.extender.app import create_app
from moorage.extender.cache import ExtenderCache
from moorage.extender.policies import make_policy
from moorage.extender.simulation import TraceNode, TracePod
from moorage.model.names import GPU_TYPE_LABELS
from moorage_kube.api import Api
from moorage_kube.errors import UsageError
from moorage_kube.resources import Obj

_TYPE = GPU_TYPE_LABELS[0]
_encoder = msgspec.json.Encoder()


class Score(msgspec.Struct, rename={"host": "Host", "score": "Score"}):
    """HostPriority."""

    host: str
    score: int


_decoder = msgspec.json.Decoder(list[Score])


class Handler:
    """An extender for the cluster of a trace. Pods are known by uid from `created` to `gone`."""

    def __init__(self, nodes: Sequence[TraceNode], policy: str) -> None:
        self._cache = ExtenderCache(cast(Api, None), policy=make_policy(policy))
        self._app = create_app(self._cache)
        self._pods: dict[str, Obj] = {}
        for node in nodes:
            self._cache.node_changed(None, make_node(node))
        self._cache.synced.set()

    def created(self, uid: str, pod: TracePod) -> None:
        """Handle the creation of a pod. Raises UsageError for a fraction of a GPU."""
        known = self._pods[uid] = make_pod(uid, pod)
        self._cache.pod_changed(None, known)

    def asked(self, uid: str, names: Sequence[str]) -> list[int]:
        """The scores of the nodes in this order.

        A node that is missing in the answer gets 0, as in kube-scheduler.
        """
        body = _encoder.encode({"Pod": self._pods[uid], "NodeNames": names})
        status, answer = self.post("/scheduler/prioritize", body)
        if status != 200:
            raise UsageError(f"the extender answered {status}: {answer.decode(errors='replace')}")
        points = {host_priority.host: host_priority.score for host_priority in _decoder.decode(answer)}
        if not points.keys() <= set(names):
            raise UsageError("the extender answered for other nodes than it was asked about")
        return [points.get(name, 0) for name in names]

    def bound(self, uid: str, node: str) -> None:
        """Handle that the scheduler bound the pod to the node."""
        before = self._pods[uid]
        after = self._pods[uid] = before | {"spec": before["spec"] | {"nodeName": node}}
        self._cache.pod_changed(before, after)

    def gone(self, uid: str) -> None:
        """Handle the deletion of the pod."""
        self._cache.pod_changed(self._pods.pop(uid), None)

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request to the ASGI application. Returns (status, response body)."""
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        asked = self._app(scope, receive, send)
        try:
            asked.__await__().send(None)
        except StopIteration:
            return sent[0]["status"], sent[1]["body"]
        raise AssertionError("the handler waits for something")


def make_node(node: TraceNode) -> Obj:
    """The `v1.Node` for a node of a trace."""
    offered = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "1000"}
    return {
        "metadata": {"name": node.name, "labels": {_TYPE: node.kind} if node.kind else {}},
        "spec": {},
        "status": {"allocatable": offered | ({node.resource: str(node.gpus)} if node.gpus else {})},
    }


def make_pod(uid: str, pod: TracePod) -> Obj:
    """The `v1.Pod` for a pod of a trace.

    Raises UsageError for a fraction of a GPU: Kubernetes has no such requests.
    """
    if pod.ask.milli != WHOLE:
        raise UsageError(
            f"{pod.name} asks for a share of a GPU, which no Kubernetes resource expresses",
            hint="use --whole-gpus",
        )
    wanted: Mapping[str, str] = {
        "cpu": f"{pod.ask.cpu}m",
        "memory": f"{pod.memory}Mi",
        **{name: str(count) for name, count in pod.ask.gpus},
    }
    term = {"matchExpressions": [{"key": _TYPE, "operator": "In", "values": list(pod.ask.kinds)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {
        "metadata": {"name": uid, "namespace": "trace", "uid": uid},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": dict(wanted)}}],
            **({"affinity": {"nodeAffinity": required}} if pod.ask.kinds else {}),
        },
        "status": {},
    }
