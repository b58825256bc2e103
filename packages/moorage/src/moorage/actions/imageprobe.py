"""Check whether nodes can pull an image: create a pod that runs it once, then delete the pod."""

from __future__ import annotations

import secrets
from typing import Any

from moorage.decide.installcheck.facts import Probe
from moorage.decide.installcheck.services import STARTING, is_pull_error
from moorage.model.manifests import USER_ID
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.meta import condition
from moorage_kube.resources import PODS, Obj

PROBE_SECONDS = 180.0  # an image of 300 MB over a slow line
LOOK_SECONDS = 1.0
LABEL = {"app.kubernetes.io/part-of": "moorage", "app.kubernetes.io/component": "doctor"}


async def probe_image(
    api: Api, image: str, namespace: str, *, clock: Clock, pull_secrets: tuple[str, ...] = ()
) -> Probe:
    """Start a pod of the image, wait until the image is pulled or refused, and delete the pod.

    The pod meets the Pod Security standard `restricted`. Raises ApiError if the pod cannot be created.
    """
    name = f"moorage-doctor-{secrets.token_hex(4)}"
    pod = await api.create(PODS, probe_pod(name, image, pull_secrets), namespace)
    try:
        return await _watch(api, name, namespace, image, clock, pod)
    finally:
        try:
            await api.delete(PODS, name, namespace, grace_period_seconds=0)
        except NotFound:
            pass  # another caller created it first


def probe_pod(name: str, image: str, pull_secrets: tuple[str, ...] = ()) -> Obj:
    """A pod that prints the version and then ends."""
    resources = {"cpu": "10m", "memory": "64Mi"}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Always",  # an image that a node holds already proves nothing of the registry
        "args": ["--version"],
        "resources": {"requests": resources, "limits": {"cpu": "1", "memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Obj = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in pull_secrets]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(LABEL)}, "spec": spec}


async def _watch(api: Api, name: str, namespace: str, image: str, clock: Clock, pod: Obj) -> Probe:
    end = clock.monotonic() + PROBE_SECONDS
    while True:
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        error = pull_error(pod)
        if error is not None:
            return Probe(image=image, node=node, error=error)
        if clock.monotonic() >= end:
            return Probe(image=image, node=node, error=f"nothing within {PROBE_SECONDS:.0f} s; {_scheduled(pod)}")
        await clock.sleep(LOOK_SECONDS)
        try:
            pod = await api.get(PODS, name, namespace)
        except ApiError as error_of_api:
            return Probe(image=image, node=node, error=error_of_api.message)


def pull_error(pod: Obj) -> str | None:
    """The error of the image pull; "" after a success, None if it is not known yet."""
    statuses: list[dict[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and is_pull_error(waiting):
            return str(waiting.get("message") or waiting.get("reason"))
        if not waiting or (waiting.get("reason") or "") not in STARTING:
            return ""  # it started, or could not start for another reason
    return None


def _scheduled(pod: Obj) -> str:
    refused = condition(pod, "PodScheduled", status="False")
    return "the node is still pulling" if refused is None else str(refused.get("message") or refused.get("reason"))
