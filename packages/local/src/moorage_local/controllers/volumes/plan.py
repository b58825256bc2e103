"""Decide the next step of a claim or a volume: binding, a new folder, release, removal, growth.

https://kubernetes.io/docs/concepts/storage/persistent-volumes/

A binding takes three writes: the volume's `claimRef`, the claim's `volumeName`, the claim's status. Each starts
from the result of the last one, so a crash between them is finished by the next pass. A folder is created before
its volume is stored, and renamed before the volume is removed, so names never point to half a folder.

`volumeBindingMode: WaitForFirstConsumer`: a claim waits until a pod that is not gated names it. It does not wait
for that pod's node, as every node of the local cluster sees the same folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.quantity import format_bytes, parse_count
from moorage_kube.resources import Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.pods import is_finished

PROVISIONER = "localcluster.moorage.dev/folder"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
OLD_DEFAULT_CLASS = "storageclass.beta.kubernetes.io/is-default-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
CLAIM_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
OLD_CLAIM_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimObserved:
    """One claim, all volumes and classes, and the pods of its namespace that use it."""

    claim: Obj
    volumes: Sequence[Obj]
    classes: Sequence[Obj]
    pods: Sequence[Obj]
    folder: str  # where folders of volumes are made
    free_bytes: int | None = None  # on the disk of this folder; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeObserved:
    """One volume and the claim of its `claimRef`; None if that claim does not exist."""

    volume: Obj
    claim: Obj | None


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add (`present`) or remove a protection finalizer."""

    finalizer: str
    present: bool


@dataclass(frozen=True, slots=True)
class PatchClaim:
    patch: Obj


@dataclass(frozen=True, slots=True)
class SetClaimStatus:
    status: Obj


@dataclass(frozen=True, slots=True)
class PatchVolume:
    volume: Obj
    patch: Obj


@dataclass(frozen=True, slots=True)
class SetVolumePhase:
    phase: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Provision:
    """Create the folder, then the volume."""

    volume: Obj


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Remove the folder, then the volume, after the API has confirmed that the claim is deleted."""

    volume: Obj


@dataclass(frozen=True, slots=True)
class Tell:
    type: str
    reason: str
    message: str


ClaimAction = SetFinalizer | PatchClaim | SetClaimStatus | PatchVolume | Provision | Tell
VolumeAction = SetFinalizer | PatchVolume | SetVolumePhase | Reclaim | Tell


def plan_claim(seen: ClaimObserved) -> tuple[ClaimAction, ...]:
    """Return the next steps for a claim; none if it is settled or must wait."""
    claim = seen.claim
    protected = CLAIM_FINALIZER in (claim["metadata"].get("finalizers") or ())
    if is_deleting(claim):
        # a pod that has finished holds it too, as in Kubernetes; one without a node is never started with it
        in_use = any((pod.get("spec") or {}).get("nodeName") for pod in seen.pods)
        return (SetFinalizer(CLAIM_FINALIZER, False),) if protected and not in_use else ()
    if not protected:
        return (SetFinalizer(CLAIM_FINALIZER, True),)
    if claim["spec"].get("volumeName"):
        return _plan_named(seen)
    return _plan_unbound(seen)


def _plan_unbound(seen: ClaimObserved) -> tuple[ClaimAction, ...]:
    claim = seen.claim
    # a claim that names no class gets the default one, if there is one
    if claim["spec"].get("storageClassName") is None:
        name = default_class(seen.classes)
        if name is not None:
            return (PatchClaim({"spec": {"storageClassName": name}}),)
    # bind it to a volume that exists, once a pod needs it if its class says so
    wanted = class_of(claim)
    storage_class = next(
        (candidate for candidate in seen.classes if candidate["metadata"]["name"] == wanted), None
    )
    match = best_volume(claim, seen.volumes)
    reserved = match is not None and refers_to(match, claim)
    waits = storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
    if waits and not reserved and not _has_consumer(claim, seen.pods):
        return _pending(
            claim, "Normal", "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
        )
    if match is not None:
        return _bind(claim, match, by_controller=True)
    # no volume serves it: make one, or say why none is made
    if not wanted:
        return _pending(
            claim,
            "Normal",
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        )
    if storage_class is None:
        return _pending(
            claim, "Warning", "ProvisioningFailed", f'storageclass.storage.k8s.io "{wanted}" not found'
        )
    provisioner = storage_class.get("provisioner") or ""
    if provisioner != PROVISIONER:
        return _pending(
            claim,
            "Normal",
            "ExternalProvisioning",
            f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually"
            " by the system administrator.",
        )
    refusal = cannot_provision(claim, seen.free_bytes)
    if refusal:
        return _pending(claim, "Warning", "ProvisioningFailed", refusal)
    named = annotations_of(claim).get(CLAIM_PROVISIONER) == PROVISIONER
    mark = {CLAIM_PROVISIONER: PROVISIONER, OLD_CLAIM_PROVISIONER: PROVISIONER}
    before: tuple[ClaimAction, ...] = () if named else (PatchClaim({"metadata": {"annotations": mark}}),)
    volume = make_volume(claim, storage_class, seen.folder)
    message = f"Successfully provisioned volume {volume['metadata']['name']}"
    return (*before, Provision(volume), Tell("Normal", "ProvisioningSucceeded", message))


def _plan_named(seen: ClaimObserved) -> tuple[ClaimAction, ...]:
    claim = seen.claim
    name = claim["spec"]["volumeName"]
    volume = next((volume for volume in seen.volumes if volume["metadata"]["name"] == name), None)
    completed = BIND_COMPLETED in annotations_of(claim)
    if volume is None:
        if completed:
            return _lost(claim, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
        return _pending(claim, "Warning", "FailedBinding", f'volume "{name}" not found')
    ref = (volume.get("spec") or {}).get("claimRef")
    if ref and not refers_to(volume, claim):
        if completed:
            return _lost(claim, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        return _pending(claim, "Warning", "FailedBinding", f'volume "{name}" already bound to a different claim.')
    if not ref and completed:
        return _lost(claim, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
    if not completed:
        refusal = mismatch(claim, volume)
        if refusal:
            return _pending(
                claim, "Warning", "VolumeMismatch", f"Cannot bind to requested volume {name!r}: {refusal}"
            )
        return _bind(claim, volume, by_controller=False)
    return _settle(seen, volume)


def _settle(seen: ClaimObserved, volume: Obj) -> tuple[ClaimAction, ...]:
    """Return the steps for a bound claim: correct its status, and let it grow."""
    claim = seen.claim
    asked, has = request_of(claim), capacity_of(volume)
    grown = claim["spec"].get("resources", {}).get("requests", {}).get("storage")
    if asked > has:
        storage_class = next(
            (candidate for candidate in seen.classes if candidate["metadata"]["name"] == class_of(claim)), None
        )
        if annotations_of(volume).get(PROVISIONED_BY) == PROVISIONER and (storage_class or {}).get(
            "allowVolumeExpansion"
        ):
            if refusal := too_large(asked - has, seen.free_bytes):
                failed = Tell("Warning", "VolumeResizeFailed", f"Cannot resize to {grown}: {refusal}")
                return (*_bound_status(claim, volume), failed)
            bigger = {**volume["spec"]["capacity"], "storage": grown}
            changed = {**volume, "spec": {**volume["spec"], "capacity": bigger}}
            message = f"Resized to {grown}"
            return (
                PatchVolume(volume, {"spec": {"capacity": {"storage": grown}}}),
                *_bound_status(claim, changed),
                Tell("Normal", "VolumeResizeSuccessful", message),
            )
    return _bound_status(claim, volume)


def _bind(claim: Obj, volume: Obj, *, by_controller: bool) -> tuple[ClaimAction, ...]:
    """Bind the volume first, then the claim, then the claim's status; finished steps are left out."""
    actions: list[ClaimAction] = []
    meta = claim["metadata"]
    ref = volume["spec"].get("claimRef")
    if not ref or not ref.get("uid"):
        patch: Obj = {"spec": {"claimRef": reference_to(claim)}}
        if not ref:
            patch["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
        actions.append(PatchVolume(volume, patch))
    name = volume["metadata"]["name"]
    annotations = {BIND_COMPLETED: "yes"}
    if by_controller and not claim["spec"].get("volumeName"):
        annotations[BOUND_BY_CONTROLLER] = "yes"
    known = annotations_of(claim)
    if claim["spec"].get("volumeName") != name or any(
        known.get(annotation) != "yes" for annotation in annotations
    ):
        actions.append(
            PatchClaim(
                {
                    "metadata": {"uid": meta["uid"], "annotations": annotations},
                    "spec": {"volumeName": name},
                }
            )
        )
    return (*actions, *_bound_status(claim, volume))


def _bound_status(claim: Obj, volume: Obj) -> tuple[ClaimAction, ...]:
    status = claim.get("status") or {}
    wanted = {
        **{key: value for key, value in status.items() if key != "conditions"},
        "phase": "Bound",
        "accessModes": list(volume["spec"].get("accessModes") or ()),
        "capacity": dict(volume["spec"].get("capacity") or {}),
    }
    return (SetClaimStatus(wanted),) if status != wanted else ()


def _pending(claim: Obj, kind: str, reason: str, message: str) -> tuple[ClaimAction, ...]:
    status = claim.get("status") or {}
    event = Tell(kind, reason, message)
    if status.get("phase") == "Pending":
        return (event,)
    return (SetClaimStatus({"phase": "Pending"}), event)


def _lost(claim: Obj, message: str) -> tuple[ClaimAction, ...]:
    status = claim.get("status") or {}
    if status.get("phase") == "Lost":
        return ()
    return (SetClaimStatus({"phase": "Lost"}), Tell("Warning", "ClaimLost", message))


def _has_consumer(claim: Obj, pods: Iterable[Obj]) -> bool:
    if annotations_of(claim).get(SELECTED_NODE):
        return True
    return any(
        not is_finished(pod) and not is_deleting(pod) and not (pod.get("spec") or {}).get("schedulingGates")
        for pod in pods
    )


def plan_volume(seen: VolumeObserved) -> tuple[VolumeAction, ...]:
    """Return the next steps for a volume; none if it is settled."""
    volume, claim = seen.volume, seen.claim
    meta, spec = volume["metadata"], volume.get("spec") or {}
    phase = (volume.get("status") or {}).get("phase") or "Pending"
    protected = VOLUME_FINALIZER in (meta.get("finalizers") or ())
    ref = spec.get("claimRef")
    held = claim is not None and refers_to(volume, claim)
    bound = held and claim is not None and claim["spec"].get("volumeName") == meta["name"]
    if is_deleting(volume):
        return (SetFinalizer(VOLUME_FINALIZER, False),) if protected and not bound else ()
    if not protected:
        return (SetFinalizer(VOLUME_FINALIZER, True),)
    if not ref or not ref.get("uid"):
        return _phase(phase, "Available")
    if bound:
        return _phase(phase, "Bound")
    if held:
        return ()  # the claim's own pass continues the binding
    released = _phase(phase, "Released")
    policy = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    if policy == "Delete":
        if annotations_of(volume).get(PROVISIONED_BY) == PROVISIONER and "hostPath" in spec:
            return (*released, Reclaim(volume))
        if phase == "Failed":
            return ()
        message = f"volume was not provisioned by {PROVISIONER}: delete it by hand"
        return (SetVolumePhase("Failed", message), Tell("Warning", "VolumeFailedDelete", message))
    return released


def _phase(now: str, wanted: str) -> tuple[VolumeAction, ...]:
    return () if now == wanted else (SetVolumePhase(wanted),)


def default_class(classes: Iterable[Obj]) -> str | None:
    """Return the default class. Of several defaults the newest counts, then the first by name."""
    marked = [
        storage_class
        for storage_class in classes
        if "true"
        in (annotations_of(storage_class).get(DEFAULT_CLASS), annotations_of(storage_class).get(OLD_DEFAULT_CLASS))
    ]
    if not marked:
        return None
    newest = max(storage_class["metadata"].get("creationTimestamp") or "" for storage_class in marked)
    return min(
        str(storage_class["metadata"]["name"])
        for storage_class in marked
        if (storage_class["metadata"].get("creationTimestamp") or "") == newest
    )


def class_of(obj: Mapping[str, Any]) -> str:
    """Return the class of a claim or volume; "" if it has none."""
    old = annotations_of(obj).get("volume.beta.kubernetes.io/storage-class")
    return str(old if old is not None else (obj.get("spec") or {}).get("storageClassName") or "")


def request_of(claim: Mapping[str, Any]) -> int:
    """Return the bytes that the claim requests."""
    return parse_count(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or 0)


def capacity_of(volume: Mapping[str, Any]) -> int:
    """Return the capacity of the volume in bytes."""
    return parse_count((volume["spec"].get("capacity") or {}).get("storage") or 0)


def refers_to(volume: Mapping[str, Any], claim: Mapping[str, Any]) -> bool:
    """Whether the volume's `claimRef` refers to this claim; if it has no uid, the name is enough."""
    ref = (volume.get("spec") or {}).get("claimRef")
    if not ref:
        return False
    meta = claim["metadata"]
    if (ref.get("namespace"), ref.get("name")) != (meta.get("namespace"), meta["name"]):
        return False
    return not ref.get("uid") or ref["uid"] == meta["uid"]


def reference_to(claim: Mapping[str, Any]) -> Obj:
    meta = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "resourceVersion": meta.get("resourceVersion"),
    }


def mismatch(claim: Mapping[str, Any], volume: Mapping[str, Any]) -> str | None:
    """Return why the volume does not fit the claim; None if it does."""
    spec = volume["spec"]
    if capacity_of(volume) < request_of(claim):
        return "requested PV is too small"
    if class_of(volume) != class_of(claim):
        return "storageClassName does not match"
    if (spec.get("volumeMode") or "Filesystem") != (claim["spec"].get("volumeMode") or "Filesystem"):
        return "incompatible volumeMode"
    if not set(claim["spec"].get("accessModes") or ()) <= set(spec.get("accessModes") or ()):
        return "incompatible accessMode"
    return None


def best_volume(claim: Mapping[str, Any], volumes: Iterable[Obj]) -> Obj | None:
    """Return the volume that is reserved for the claim, else the smallest free volume that fits."""
    selector = claim["spec"].get("selector")
    wanted = label_selector_of(selector) if selector else None
    fitting = []
    for volume in volumes:
        if is_deleting(volume) or mismatch(claim, volume):
            continue
        if refers_to(volume, claim):
            return volume
        if volume["spec"].get("claimRef"):
            continue
        if (volume.get("status") or {}).get("phase") not in ("Available", None):
            continue
        if wanted is None or wanted.matches(labels_of(volume)):
            fitting.append(volume)
    return min(fitting, key=lambda volume: (capacity_of(volume), volume["metadata"]["name"]), default=None)


def cannot_provision(claim: Mapping[str, Any], free_bytes: int | None = None) -> str | None:
    """Return the reason why a folder cannot serve the claim; None if it can. `free_bytes`: on its disk."""
    if refusal := too_large(request_of(claim), free_bytes):
        return refusal
    if claim["spec"].get("volumeMode") == "Block":
        return "a folder cannot serve volumeMode Block; use Filesystem"
    if claim["spec"].get("selector"):
        return "claim.spec.selector is not supported for dynamic provisioning"
    return None


def too_large(asked_bytes: int, free_bytes: int | None) -> str | None:
    """Return the reason why the disk has no room for this much more; None if it has, or its space is not known."""
    if free_bytes is None or asked_bytes <= free_bytes:
        return None
    asked = format_bytes(asked_bytes)
    return f"the volume asks for {asked}; the disk has {free_bytes >> 20}Mi free: ask for less, or free space"


def volume_name(claim: Mapping[str, Any]) -> str:
    """Return a name computed from the claim, so that a second provisioning finds the first volume."""
    return f"pvc-{claim['metadata']['uid']}"


def make_volume(claim: Mapping[str, Any], storage_class: Mapping[str, Any], folder: str) -> Obj:
    """Return the volume for a claim; its folder has the name of the volume."""
    name = volume_name(claim)
    options = list(storage_class.get("mountOptions") or ())
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "finalizers": [VOLUME_FINALIZER],
        },
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": list(claim["spec"].get("accessModes") or ()),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
            "storageClassName": storage_class["metadata"]["name"],
            "volumeMode": "Filesystem",
            **({"mountOptions": options} if options else {}),
            "hostPath": {"path": f"{folder.rstrip('/')}/{name}", "type": "DirectoryOrCreate"},
            "claimRef": reference_to(claim),
        },
    }
