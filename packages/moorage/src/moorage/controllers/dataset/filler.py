"""Pods that move data: image, command and security context of the containers of `moorage.filler`.

On a cluster they run Moorage's image: $MOORAGE_IMAGE, or the image of the services' pods.
On nodes that run pods as processes of this machine they run in the operator's environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, cast

from msgspec import Struct

from moorage.model.manifests import container_security, pod_security
from moorage.model.names import HOST_IMAGE, MACHINE_GROUP_LABEL, PROCESS_RUNTIME, SYSTEM_NAMESPACE
from moorage.model.storageclass import RWO
from moorage.settings import IMAGE
from moorage_kube.api import Api
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, UsageError
from moorage_kube.meta import condition, labels_of
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.scheduling import parse_pod

MEMORY = "1Gi"  # 16 files of at most 8 MiB at once, and the interpreter
CPU = "1"
_SERVICES = "app.kubernetes.io/name in (moorage-operator,moorage-server)"


class Runtime(Struct, frozen=True):
    """Image and Python of the containers. `image` is empty if it is unknown."""

    image: str
    python: str = "python"
    on_processes: bool = False


async def find_runtime(api: Api) -> Runtime:
    """Find the runtime from the nodes, then from the pods of our services.

    Raises ApiError if nodes cannot be read.
    """
    nodes = (await api.list(NODES)).items
    runtimes = [
        str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion")) for node in nodes
    ]
    if any(runtime.startswith(PROCESS_RUNTIME) for runtime in runtimes):
        return Runtime(HOST_IMAGE, sys.executable, on_processes=True)
    if image := IMAGE.read(os.environ):
        return Runtime(image)
    try:
        pods = (await api.list(PODS, SYSTEM_NAMESPACE, label_selector=_SERVICES)).items
    except ApiError:
        return Runtime("")
    return Runtime(image_of(pods, os.environ.get("HOSTNAME") or socket.gethostname()))


def image_of(pods: Sequence[Obj], host: str) -> str:
    """Moorage's image: that of the pod with this name, else of any service; empty if there is none."""
    images: dict[str, str] = {}
    for pod in pods:
        containers = sorted(
            (pod.get("spec") or {}).get("containers") or (),
            key=lambda container: container.get("name") not in ("operator", "server"),  # before those of a mesh
        )
        images[str(pod["metadata"]["name"])] = str(containers[0].get("image") or "") if containers else ""
    return images.get(host) or next((image for _, image in sorted(images.items()) if image), "")


def make_pod_spec(
    runtime: Runtime,
    args: Sequence[str],
    *,
    claims: Mapping[str, tuple[str, bool]],
    secret: str = "",
    google: bool = False,
    host_folder: str = "",
    beside: Mapping[str, Any] | None = None,
    grace_seconds: int = 10,
) -> Obj:
    """The pod spec of a filler process. `claims`: mount path → (claim, whether it is read-only).

    `secret`: its keys become environment variables. `google`: its key.json is placed where Google's packages look.
    `host_folder`: a folder of the node, mounted under its own path. `beside`: a pod that uses the same volume. The
    process runs on that pod's node, and has its tolerations: nodes with GPUs are often tainted.
    """
    # volumes to read from and write to
    volumes: list[Obj] = []
    mounts: list[Obj] = []
    for at, (path, (claim, read_only)) in enumerate(claims.items()):
        source: Obj = {"claimName": claim} | ({"readOnly": True} if read_only else {})
        volumes.append({"name": f"volume-{at}", "persistentVolumeClaim": source})
        mounts.append({"name": f"volume-{at}", "mountPath": path} | ({"readOnly": True} if read_only else {}))
    # after an error, the end of the log becomes the termination message, and so the result
    container: Obj = {
        "name": "filler",
        "image": runtime.image,
        "command": [runtime.python, "-m", "moorage.filler", *args],
        "resources": {"requests": {"cpu": CPU, "memory": MEMORY}, "limits": {"cpu": CPU, "memory": MEMORY}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, {"name": "HOME", "value": "/tmp"}],
        "securityContext": container_security(),
    }
    # credentials of the source or target
    if secret:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
        if google:
            volumes.append({"name": "secret", "secret": {"secretName": secret}})
            mounts.append({"name": "secret", "mountPath": "/secret", "readOnly": True})
            container["env"].append({"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/secret/key.json"})
    # a folder of the node, for local clusters
    if host_folder:
        volumes.append({"name": "host", "hostPath": {"path": host_folder, "type": "DirectoryOrCreate"}})
        mounts.append({"name": "host", "mountPath": host_folder})
    container["volumeMounts"] = mounts
    spec: Obj = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": pod_security() | {"fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
        "volumes": volumes,
    }
    # a ReadWriteOnce volume is usable only on the node that already mounts it
    if beside is not None:
        node = beside["spec"]["nodeName"]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": affinity}
        if tolerations := beside["spec"].get("tolerations"):
            spec["tolerations"] = tolerations
    return spec


def pod_beside(claim: Mapping[str, Any], pods: Sequence[Obj]) -> Obj | None:
    """A running pod that uses a claim which only one node may mount; None if any node is possible.

    Raises UsageError if that node is reserved for machines: admission allows only their guests there.
    """
    modes = (claim.get("spec") or {}).get("accessModes") or []
    if not modes or any(mode not in (RWO, "ReadWriteOncePod") for mode in modes):
        return None
    for obj in pods:
        pod = parse_pod(obj)
        if not pod.node or pod.finished or claim["metadata"]["name"] not in pod.claims:
            continue
        tolerated = {toleration.get("key") for toleration in obj["spec"].get("tolerations") or ()}
        if (group := labels_of(obj).get(MACHINE_GROUP_LABEL)) and MACHINE_GROUP_LABEL in tolerated:
            raise UsageError(
                f"volume {claim['metadata']['name']} is in use by pod {pod.name} on node {pod.node}, "
                f"which is reserved for the machines of {group}: other pods cannot use it there",
                hint="wait for the end of that pod, or use a volume that many nodes may mount (ReadWriteMany)",
            )
        return obj
    return None


def last_result(lines: bytes) -> dict[str, Any] | None:
    """The last line of a filler's log that is a JSON object with a key for the phase."""
    for line in reversed(lines.split(b"\n")):
        if line.startswith(b"{"):
            try:
                result = parse_json(line)
            except ValueError:
                continue
            if isinstance(result, dict) and result.get("phase"):
                return result
    return None


def why_waiting(pod: Mapping[str, Any]) -> str:
    """A short reason why a pod does not start; "" if all seems well."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return ""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")
    if (refused := condition(pod, "PodScheduled", status="False")) is not None:
        return str(refused.get("message") or refused.get("reason") or "it has no node yet")
    return ""


class _Logs(Protocol):
    def logs(self, pod: str, namespace: str, *, tail_lines: int | None = None) -> AsyncIterator[bytes]: ...


async def result_of(api: Api, pod: Obj | None) -> dict[str, Any] | None:
    """The last result of such a process: its container's termination message, or the end of its log."""
    if pod is None or (pod.get("status") or {}).get("phase") not in ("Running", "Succeeded", "Failed"):
        return None
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        over = (status.get("state") or {}).get("terminated") or {}
        if (result := last_result(str(over.get("message") or "").encode())) is not None:
            return result
    if not hasattr(api, "logs"):
        return None
    text, meta = b"", pod["metadata"]
    with contextlib.suppress(ApiError):
        async for chunk in cast(_Logs, api).logs(meta["name"], meta["namespace"], tail_lines=5):
            text += chunk
    return last_result(text)
