"""The progress of the rollout of our Deployments, and why pods do not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.model.secondscheduler import NAME as SECOND_SCHEDULER
from moorage_kube.meta import condition, is_deleting

PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
STARTING = frozenset({"ContainerCreating", "PodInitializing"})


class Rollout(Struct, frozen=True, kw_only=True):
    """One Deployment. `reasons`: why its pods are not ready, for display; empty if not known yet."""

    name: str
    done: bool
    ready: int
    wanted: int
    reasons: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()  # pods that no node takes: `explain` says more


def rollout(deployment: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> Rollout:
    """The progress of a rollout. `pods`: the pods of this Deployment; pods that are being deleted do not count.

    A rollout is done by the rule of `kubectl rollout status`: every replica has the newest template and is
    available.
    """
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    seen = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)
    updated, total = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    ready = min(int(status.get("availableReplicas") or 0), updated)
    reasons: list[str] = []
    unplaced: list[str] = []
    failure = condition(deployment, "ReplicaFailure")
    if failure is not None and failure.get("status") == "True":
        reasons.append(str(failure.get("message") or failure.get("reason") or "its pods cannot be created"))
    for pod in pods:
        if is_deleting(pod):
            continue
        placed = condition(pod, "PodScheduled")
        if placed is not None and placed.get("status") == "False":
            unplaced.append(str(pod["metadata"]["name"]))
            reasons.append(f"no node takes it: {placed.get('message') or placed.get('reason')}")
        reasons += _container_reasons(pod)
    return Rollout(
        name=str(deployment["metadata"]["name"]),
        done=seen and updated >= wanted and total <= updated and ready >= wanted,
        ready=ready,
        wanted=wanted,
        reasons=tuple(dict.fromkeys(reasons)),
        unplaced=tuple(unplaced),
    )


def _container_reasons(pod: Mapping[str, Any]) -> Iterable[str]:
    status = pod.get("status") or {}
    images = {each["name"]: each.get("image", "") for each in (pod.get("spec") or {}).get("containers") or ()}
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in PULL:
            yield f"image {images.get(container['name'], '')} cannot be pulled: {message or reason}"
        elif reason == "CrashLoopBackOff":
            last = (container.get("lastState") or {}).get("terminated") or {}
            ended = f"{last.get('reason') or 'Error'}, exit code {last.get('exitCode', 'unknown')}"
            yield f"{container['name']} ends again and again ({ended})"
        elif reason and reason not in STARTING:
            yield f"{container['name']} cannot start: {reason}" + (f": {message}" if message else "")


def hint_for(reasons: Iterable[str], namespace: str, name: str) -> str:
    """The action to take about it."""
    text = " ".join(reasons)
    if "cannot be pulled" in text:
        if name == SECOND_SCHEDULER:
            return (
                "set schedulerImage in --values FILE to an image that your nodes can pull, or use --scheduler none"
            )
        return "check --image; for a private registry, list imagePullSecrets in --values FILE"
    if "quota" in text:
        return f"raise the quota of namespace {namespace}, or lower `resources` in --values FILE"
    if "PersistentVolumeClaim" in text or "volume" in text:
        return "choose a class that exists with --storage-class: kubectl get storageclass"
    if "no node takes it" in text:
        return "make room on the nodes, or lower `resources` in --values FILE"
    return f"kubectl -n {namespace} describe pods -l app.kubernetes.io/name={name}"
