"""`artifactGC`: which artifacts of a run are deleted, when, and pods that delete those in users' buckets.
Pure.

Only outputs of this run's steps are deleted: inputs, memoized outputs and newer artifacts under the same key stay.
https://argo-workflows.readthedocs.io/en/latest/walk-through/artifacts/#artifact-garbage-collection
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.manifests import USER_ID, container_security
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, PRIVATE_ROOT_ANNOTATION
from moorage_kube.resources import PODS, Obj
from moorage_workflows.decide.workflows.executororders import numbered_secrets
from moorage_workflows.decide.workflows.podpatch import PatchError, patched_spec
from moorage_workflows.decide.workflows.repository import REPOSITORY
from moorage_workflows.decide.workflows.templates import STORED
from moorage_workflows.model.workflow import (
    ORDER_ANNOTATION,
    Artifact,
    ArtifactName,
    NodeRecord,
    NodeType,
    Outputs,
)

ON_COMPLETION, ON_DELETION, NEVER = "OnWorkflowCompletion", "OnWorkflowDeletion", "Never"
DELETABLE = ("s3", "gcs")  # stores in which artifacts can be deleted by a pod
COMPONENT_LABEL, COMPONENT = "workflows.argoproj.io/component", "artifact-gc"
POD_ARTIFACTS = 200  # of one pod
POD_BYTES = 100 * 1024  # of its order, which is an annotation
MESSAGE_LENGTH = 1000
_SHORT = {ON_COMPLETION: "wfcomp", ON_DELETION: "wfdel"}
_RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
_FOLDER, _ORDER = "moorage-step", "moorage-order"
FOLDER_PATH, ORDER_PATH = "/moorage/step", "/moorage/order"


class Doomed(Struct, frozen=True, kw_only=True):
    """An artifact that must be deleted now."""

    node: str
    artifact: Artifact
    strategy: str

    @property
    def name(self) -> ArtifactName:
        return ArtifactName(node=self.node, name=self.artifact.name)


class Deleter(Struct, frozen=True):
    """A pod that deletes artifacts, and the artifacts that it deletes."""

    name: str
    doomed: tuple[Doomed, ...]
    service_account: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def with_collection(
    template: Mapping[str, Any], spec: Mapping[str, Any], outputs: Outputs | None
) -> Outputs | None:
    """The outputs of a step, each artifact with the `artifactGC` that its template or the workflow gives it.

    An `artifactGC` in the report of the step's pod does not count.
    """
    if outputs is None or not outputs.artifacts:
        return outputs
    declared = {
        str(entry.get("name")): entry.get("artifactGC") or {}
        for entry in (template.get("outputs") or {}).get("artifacts") or ()
    }
    artifacts = []
    for artifact in outputs.artifacts:
        own = dict(declared.get(artifact.name) or {})
        strategy = own.get("strategy") or (spec.get("artifactGC") or {}).get("strategy") or ""
        kept = own | {"strategy": strategy} if strategy and strategy != NEVER else {}
        artifacts.append(msgspec.structs.replace(artifact, collection=kept))
    return msgspec.structs.replace(outputs, artifacts=tuple(artifacts))


def collects(document: Mapping[str, Any]) -> bool:
    """Whether a run of this stored document may create artifacts with a deletion strategy."""
    spec = document.get("spec") or {}
    usual = (spec.get("artifactGC") or {}).get("strategy") or ""
    stored = [template for listed in (document.get(STORED) or {}).values() for template in listed]
    templates = [*(spec.get("templates") or ()), *stored]
    if usual not in ("", NEVER) and _archives_logs(document, templates):
        return True
    return any(
        ((entry.get("artifactGC") or {}).get("strategy") or usual) not in ("", NEVER)
        for entry in _output_artifacts(templates)
    )


def _archives_logs(document: Mapping[str, Any], templates: Sequence[Any]) -> bool:
    return bool(
        (document.get("spec") or {}).get("archiveLogs")
        or (document.get(REPOSITORY) or {}).get("archiveLogs")
        or any(((each or {}).get("archiveLocation") or {}).get("archiveLogs") for each in templates)
    )


def _output_artifacts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the output artifacts of templates, including inline templates."""
    if isinstance(value, Mapping):
        outputs = value.get("outputs")
        if isinstance(outputs, Mapping):
            yield from (entry for entry in outputs.get("artifacts") or () if isinstance(entry, Mapping))
        for name in ("steps", "dag", "tasks", "inline"):
            yield from _output_artifacts(value.get(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _output_artifacts(inner)


def doomed(nodes: Iterable[NodeRecord], *, is_deleting: bool) -> list[Doomed]:
    """The artifacts to delete now, of a run that has ended or has an object with a deletion timestamp; in a
    fixed order.
    """
    ready = {ON_COMPLETION, ON_DELETION} if is_deleting else {ON_COMPLETION}
    return [each for each in left(nodes) if each.strategy in ready]


def left(nodes: Iterable[NodeRecord]) -> list[Doomed]:
    """Return the artifacts with a deletion strategy that are not deleted yet."""
    return [
        Doomed(node=node.id, artifact=artifact, strategy=str(artifact.collection["strategy"]))
        for node in sorted(nodes, key=lambda node: node.id)
        if node.type is NodeType.POD and not node.is_memoized and node.outputs is not None
        for artifact in node.outputs.artifacts
        if not artifact.is_deleted and artifact.collection.get("strategy") in _SHORT
    ]


def is_own(artifact: Artifact) -> bool:
    """Whether the artifact is in Moorage's own store. The server deletes such artifacts itself."""
    return not artifact.location


def deleters(spec: Mapping[str, Any], workflow: str, chosen: Iterable[Doomed]) -> list[Deleter]:
    """The pods for artifacts in users' buckets: one per strategy, service account, metadata and batch.

    The same artifacts give the same names.
    """
    usual = spec.get("artifactGC") or {}
    groups: dict[tuple[str, str, str], list[Doomed]] = {}
    for each in chosen:
        own = each.artifact.collection
        account = str(own.get("serviceAccountName") or usual.get("serviceAccountName") or "")
        given, base = own.get("podMetadata") or {}, usual.get("podMetadata") or {}
        metadata = {key: {**(base.get(key) or {}), **(given.get(key) or {})} for key in ("labels", "annotations")}
        groups.setdefault((each.strategy, account, json.dumps(metadata, sort_keys=True)), []).append(each)
    made = []
    for (strategy, account, metadata_text), members in sorted(groups.items()):
        for batch in _batches(members):
            names = json.dumps([account, metadata_text, [(each.node, each.artifact.name) for each in batch]])
            digest = hashlib.sha256(names.encode()).hexdigest()[:10]
            made.append(
                Deleter(f"{workflow}-artgc-{_SHORT[strategy]}-{digest}", batch, account, json.loads(metadata_text))
            )
    return made


def _batches(members: Sequence[Doomed]) -> Iterator[tuple[Doomed, ...]]:
    batch: list[Doomed] = []
    size = 0
    for each in members:
        bytes_of_one = len(json.dumps(dict(each.artifact.location))) + 300
        if batch and (len(batch) == POD_ARTIFACTS or size + bytes_of_one > POD_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(each)
        size += bytes_of_one
    if batch:
        yield tuple(batch)


def make_deleter_pod(
    deleter: Deleter, document: Mapping[str, Any], *, image: str, python: str, on_processes: bool
) -> Obj:
    """The pod, ready to be created. Raises PatchError for a `podSpecPatch` that cannot be applied.

    It needs no token: its termination message names the artifacts that could not be deleted.
    """
    # the order: one entry for each artifact, with secrets by number
    meta, spec = document["metadata"], document.get("spec") or {}
    secrets: list[Mapping[str, Any]] = []
    entries = [
        {
            "node": each.node,
            "name": each.artifact.name,
            "version": each.artifact.version,
            **({"files": each.artifact.files} if each.artifact.files else {}),
            "location": numbered_secrets(dict(each.artifact.location), secrets),
        }
        for each in deleter.doomed
    ]
    # secrets reach the executor as variables, so that the order has none
    env: list[Obj] = [{"name": "HOME", "value": FOLDER_PATH}, {"name": "TMPDIR", "value": FOLDER_PATH}]
    env += [
        {"name": f"MOORAGE_SECRET_{number}", "valueFrom": {"secretKeyRef": dict(selector)}}
        for number, selector in enumerate(secrets)
    ]
    # the pod runs without root and without privileges
    security = container_security() | {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    field_path = {"fieldPath": f"metadata.annotations['{ORDER_ANNOTATION}']"}
    item = {"path": "order.json", "fieldRef": field_path, "mode": 0o444}
    pod_spec: Obj = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": image,
                "command": [python, "-m", "moorage_workflows.executor", "delete"],
                "args": ["--step", FOLDER_PATH, "--order", f"{ORDER_PATH}/order.json"],
                "env": env,
                "resources": copy.deepcopy(_RESOURCES),
                "securityContext": security,
                "volumeMounts": [
                    {"name": _FOLDER, "mountPath": FOLDER_PATH},
                    {"name": _ORDER, "mountPath": ORDER_PATH, "readOnly": True},
                ],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [
            {"name": _FOLDER, "emptyDir": {}},
            {"name": _ORDER, "downwardAPI": {"items": [item]}},
        ],
    }
    # the user's account and patch, which may not remove the container
    if deleter.service_account:
        pod_spec["serviceAccountName"] = deleter.service_account
    if patch := (spec.get("artifactGC") or {}).get("podSpecPatch"):
        pod_spec = patched_spec(pod_spec, str(patch))
        if not any(container.get("name") == "main" for container in pod_spec.get("containers") or ()):
            raise PatchError("removes the container main")
        pod_spec["restartPolicy"] = "Never"
    # metadata of the user, then ours: the owner always comes from the workflow
    labels = {**(deleter.metadata.get("labels") or {})}
    annotations = {**(deleter.metadata.get("annotations") or {})}
    labels |= {WORKFLOW_LABEL: str(meta["name"]), COMPONENT_LABEL: COMPONENT}
    annotations[ORDER_ANNOTATION] = json.dumps({"delete": entries}, ensure_ascii=False, sort_keys=True)
    if on_processes:
        annotations[PRIVATE_ROOT_ANNOTATION] = "true"
    for table, given, key in (
        (labels, meta.get("labels") or {}, OWNER_LABEL),
        (annotations, meta.get("annotations") or {}, OWNER_ANNOTATION),
    ):
        table.pop(key, None)
        if given.get(key):
            table[key] = given[key]
    owner = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": deleter.name,
            "namespace": meta.get("namespace") or "default",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": pod_spec,
    }


class Deletion(Struct, frozen=True):
    """The result of a pod that has ended. `failure`: why some artifacts stay; empty: all are deleted."""

    deleted: tuple[ArtifactName, ...]
    failure: str = ""


def deletion_of(pod: Mapping[str, Any]) -> Deletion | None:
    """The result of a deleter pod; None while it runs. The artifacts are those in the pod's own order."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    text = ((pod["metadata"].get("annotations") or {}).get(ORDER_ANNOTATION)) or "{}"
    try:
        entries = [
            ArtifactName(node=str(row["node"]), name=str(row["name"])) for row in json.loads(text)["delete"]
        ]
    except (ValueError, KeyError, TypeError):
        return Deletion((), f"pod {pod['metadata']['name']} has lost its order")
    if status["phase"] == "Succeeded":
        return Deletion(tuple(entries))
    rows = status.get("containerStatuses") or ()
    ended = next(
        (((row.get("state") or {}).get("terminated") or {}) for row in rows if row.get("name") == "main"), {}
    )
    message = str(ended.get("message") or status.get("message") or "").strip()
    why = f"pod {pod['metadata']['name']}: {message or 'it failed'}"[-MESSAGE_LENGTH:]
    first, _, words = message.splitlines()[-1].partition(" ") if message else ("", "", "")
    if not first.startswith("left="):
        return Deletion((), why)
    numbers = {int(number) for number in first.removeprefix("left=").split(",") if number.isdigit()}
    deleted = tuple(entry for number, entry in enumerate(entries) if number not in numbers)
    return Deletion(deleted, f"pod {pod['metadata']['name']}: {words}"[:MESSAGE_LENGTH])
