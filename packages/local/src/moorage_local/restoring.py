"""Restore a store from a copy, and add the pods of this machine that are younger than the copy.

A copy is some minutes old and lacks later objects. Some of these are pods that still run, or have ended with
an exit code and logs. A restore does not end them: their objects, which the node agents wrote into the pods'
folders, are added to the store. They keep their owners as far as the copy knows them, so the owner's
controller counts them and starts no second one. A pod without its owner in the copy runs on, with the annotation
OWNER_ANNOTATION. Objects deleted after the copy exist again.

Revisions never decrease: all numbers that clients may have seen are skipped, as etcd does with `--bump-revision`.
https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from moorage_kube.resources import Obj
from moorage_local.apiserver.types.metadata import name_problems
from moorage_local.nodeagent.podfolder import Admission, PodFolder
from moorage_local.storage import Record

BUMP = 1_000_000  # revisions skipped; a quarter of an hour of writes is some hundred thousand at most
PODS_PREFIX = "core/pods/"
NAMESPACES_PREFIX = "core/namespaces/"
ADOPTED_ANNOTATION = "localcluster.moorage.dev/younger-than-copy"
OWNER_ANNOTATION = "localcluster.moorage.dev/lost-owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The new content of the store. `adopted` are the pods (namespace/name) that the copy did not know."""

    records: Sequence[Record]
    revision: int
    adopted: tuple[str, ...]


def pods_on_disk(nodes: Path) -> list[Obj]:
    """Return the pods in the folders of the node agents, as they were admitted."""
    pods = []
    for folder in sorted(nodes.glob("*/*")):
        admission = PodFolder(folder).admission() if folder.is_dir() else None
        pod = PodFolder(folder).recorded_pod() if admission is not None else None
        if admission is not None and pod is not None and _is_pod_of(pod, admission):
            pods.append(pod)
    return pods


class _Metadata(TypedDict):
    uid: str
    name: str
    namespace: str
    creationTimestamp: str
    labels: NotRequired[dict[str, str] | None]
    annotations: NotRequired[dict[str, str] | None]
    ownerReferences: NotRequired[list[dict[str, Any]] | None]


class _Pod(TypedDict):
    metadata: _Metadata
    spec: dict[str, Any]


def _is_pod_of(pod: Obj, admission: Admission) -> bool:
    """Whether an object has the form of a pod and is the pod that was admitted."""
    try:
        meta = msgspec.convert(pod, _Pod)["metadata"]
    except msgspec.ValidationError:
        return False
    return (
        (meta["uid"], meta["namespace"], meta["name"]) == (admission.uid, admission.namespace, admission.name)
        and not name_problems(meta["namespace"], "label")
        and not name_problems(meta["name"], "subdomain")
    )


def restore(records: Iterable[Record], *, revision: int, past: int, pods: Iterable[Obj], copied: str) -> Restored:
    """Add the pods that the copy lacks.

    `past`: the highest revision that was ever acknowledged, if it is known.

    A newer pod with the same name replaces the pod in the copy, because the older one has ended. `copied`:
    the name of the copy.
    """
    kept = {record.key: record for record in records}
    known = {uid for record in kept.values() if (uid := _uid(record))}
    revision = max(revision, past) + BUMP
    adopted = []
    for pod in pods:
        meta = pod["metadata"]
        if meta["uid"] in known:
            continue
        namespace = f"{NAMESPACES_PREFIX}{meta['namespace']}"
        if namespace not in kept:
            revision += 1
            made = _namespace(meta["namespace"], meta["creationTimestamp"], meta["uid"])
            kept[namespace] = Record(namespace, msgspec.json.encode(made), revision, revision)
        revision += 1
        key = f"{PODS_PREFIX}{meta['namespace']}/{meta['name']}"
        kept[key] = Record(key, msgspec.json.encode(_adopted(pod, known, copied)), revision, revision)
        adopted.append(f"{meta['namespace']}/{meta['name']}")
    return Restored(records=list(kept.values()), revision=revision, adopted=tuple(adopted))


def _uid(record: Record) -> str | None:
    meta = record.copy().get("metadata")
    return meta.get("uid") if isinstance(meta, dict) else None


def _adopted(pod: Obj, known: set[str], copied: str) -> Obj:
    pod = copy.deepcopy(pod)
    meta: dict[str, Any] = pod["metadata"]
    meta.pop("resourceVersion", None)
    owners = meta.pop("ownerReferences", None) or []
    lost = [owner for owner in owners if owner.get("uid") not in known]
    if kept := [owner for owner in owners if owner.get("uid") in known]:
        meta["ownerReferences"] = kept
    notes = {ADOPTED_ANNOTATION: copied}
    if lost:
        notes[OWNER_ANNOTATION] = ", ".join(f"{owner.get('kind')}/{owner.get('name')}" for owner in lost)
    meta["annotations"] = (meta.get("annotations") or {}) | notes
    return pod


def _namespace(name: str, created: str, seed: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {seed}")),
            "creationTimestamp": created,
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
