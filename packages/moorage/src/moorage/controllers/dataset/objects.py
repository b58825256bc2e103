"""Convert between a dataset's objects and its decision: the claim, the Jobs, and the claims of other tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.controllers.dataset.filler import Runtime, make_pod_spec
from moorage.controllers.dataset.plan import AttemptSeen, ClaimSeen
from moorage.model.dataset import (
    DATASET_LABEL,
    DATASET_OF_LABEL,
    DATASETS,
    DatasetView,
    clone_name,
    job_name,
    reader_claim_name,
    reader_volume_name,
)
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL
from moorage.model.storageclass import ROX
from moorage_kube.integers import integer_or
from moorage_kube.meta import (
    annotations_of,
    condition,
    controller_ref,
    is_condition_true,
    is_deleting,
    labels_of,
    owner_reference,
)
from moorage_kube.moments import moment
from moorage_kube.resources import JOBS, PVCS, PVS, Obj

ATTEMPT_ANNOTATION = "moorage.dev/dataset-attempt"
REVISION_ANNOTATION = "moorage.dev/dataset-revision"
ROOT, SOURCE = "/dataset", "/source"
ROOM = 0.97  # of a volume's size: file systems keep some of it
OWN_HANDLES = ("nfs.csi.k8s.io", "smb.csi.k8s.io")  # drivers that find the share by attributes, not by the handle


def make_claim(dataset_view: DatasetView, owner: Obj, mode: str) -> Obj:
    """The claim that the filler writes to."""
    spec: Obj = {"accessModes": [mode], "resources": {"requests": {"storage": str(dataset_view.spec.size)}}}
    if dataset_view.spec.storage_class:
        spec["storageClassName"] = dataset_view.spec.storage_class
    return _object(PVCS.api_version, PVCS.kind, dataset_view.claim, dataset_view, owner) | {"spec": spec}


def make_clone(dataset_view: DatasetView, owner: Obj, claim: Obj) -> Obj:
    """A read-only claim on a clone of the filled volume. The volume's driver creates the clone.

    https://kubernetes.io/docs/concepts/storage/volume-pvc-datasource/
    """
    filled = claim.get("spec") or {}
    spec: Obj = {
        "accessModes": [ROX],
        "resources": {
            "requests": {
                "storage": (claim.get("status") or {}).get("capacity", {}).get("storage") or dataset_view.spec.size
            }
        },
        "dataSource": {"kind": PVCS.kind, "name": dataset_view.claim},
    }
    if filled.get("storageClassName"):
        spec["storageClassName"] = filled["storageClassName"]
    return _object(PVCS.api_version, PVCS.kind, clone_name(dataset_view.name), dataset_view, owner) | {
        "spec": spec
    }


def make_job(
    dataset_view: DatasetView, owner: Obj, runtime: Runtime, *, number: int, revision: str, beside: Obj | None
) -> Obj:
    """The Job of one attempt to fill the dataset."""
    source = dataset_view.spec.source
    claims: dict[str, tuple[str, bool]] = {ROOT: (dataset_view.claim, False)}
    url = source.url
    if (on_volume := dataset_view.volume_source) is not None:
        claims[SOURCE] = (on_volume[0], True)
        url = f"folder:{SOURCE}/{on_volume[1]}".rstrip("/")
    args = ["fill", "--source", url, "--root", ROOT, "--revision", revision]
    args += ["--most-bytes", str(int(dataset_view.size_bytes * ROOM))]
    args += ["--unpack"] if source.unpack else []
    args += ["--anonymous"] if source.anonymous else []
    pod = make_pod_spec(
        runtime,
        [arg.replace("$(", "$$(") for arg in args],
        claims=claims,
        secret=source.secret,
        google=url.startswith("gs://"),
        beside=beside,
    )
    job = _object(JOBS.api_version, JOBS.kind, job_name(dataset_view.name, number), dataset_view, owner)
    job["metadata"]["annotations"] |= {ATTEMPT_ANNOTATION: str(number), REVISION_ANNOTATION: revision}
    labels = dict(job["metadata"]["labels"])
    return job | {
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {OWNER_ANNOTATION: dataset_view.owner} if dataset_view.owner else {},
                },
                "spec": pod,
            },
        }
    }


def _object(api_version: str, kind: str, name: str, dataset_view: DatasetView, owner: Obj) -> Obj:
    labels = {DATASET_LABEL: dataset_view.name} | (
        {OWNER_LABEL: dataset_view.owner_label} if dataset_view.owner_label else {}
    )
    typed = {"apiVersion": DATASETS.api_version, "kind": DATASETS.kind} | owner
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": dataset_view.namespace,
            "labels": labels,
            "annotations": {OWNER_ANNOTATION: dataset_view.owner} if dataset_view.owner else {},
            "ownerReferences": [owner_reference(typed)],
        },
    }


# --- other tenants


def shareable(volume: Mapping[str, Any] | None) -> str:
    """The reason why the volume cannot be mounted in other namespaces too; "" if it can.

    Sharing creates a second PersistentVolume for the same storage. Kubernetes identifies a CSI volume by its
    handle, and does not mount two PersistentVolumes with one handle on a node. So sharing works for folders
    and file shares, which have an address, and not for disks.
    """
    if volume is None:
        return "its volume is not known yet"
    spec = volume.get("spec") or {}
    if "hostPath" in spec or "nfs" in spec:
        return ""
    driver = (spec.get("csi") or {}).get("driver") or ""
    if any(driver == handle or driver.endswith(f".{handle}") for handle in OWN_HANDLES):
        return ""
    kind = driver or next((key for key in spec if isinstance(spec[key], dict) and key != "claimRef"), "this kind")
    return f"volumes of {kind} cannot be given to another namespace: make a dataset there, from the same source"


def make_reader_volume(dataset_view: DatasetView, reader: str, volume: Obj) -> Obj:
    """A read-only PersistentVolume for the same storage, reserved for one claim of the reading namespace."""
    base = volume["spec"]
    name = reader_volume_name(dataset_view.namespace, dataset_view.name, reader)
    kept = {
        key: base[key]
        for key in ("hostPath", "nfs", "csi", "mountOptions", "nodeAffinity", "volumeMode")
        if key in base
    }
    if "nfs" in kept:
        kept["nfs"] = kept["nfs"] | {"readOnly": True}
    if "csi" in kept:
        kept["csi"] = kept["csi"] | {"readOnly": True, "volumeHandle": f"{kept['csi']['volumeHandle']}#{name}"}
    claim = {"namespace": reader, "name": reader_claim_name(dataset_view.namespace, dataset_view.name)}
    return {
        "apiVersion": PVS.api_version,
        "kind": PVS.kind,
        "metadata": {"name": name, "labels": _reader_labels(dataset_view)},
        "spec": kept
        | {
            "capacity": dict(base.get("capacity") or {"storage": str(dataset_view.spec.size)}),
            "accessModes": [ROX],
            "persistentVolumeReclaimPolicy": "Retain",  # the storage is not this volume's to remove
            "storageClassName": "",
            "claimRef": {"apiVersion": "v1", "kind": PVCS.kind} | claim,
        },
    }


def make_reader_claim(dataset_view: DatasetView, reader: str, volume: Obj) -> Obj:
    """The claim through which the reading namespace mounts the dataset."""
    capacity = (volume["spec"].get("capacity") or {}).get("storage") or str(dataset_view.spec.size)
    return {
        "apiVersion": PVCS.api_version,
        "kind": PVCS.kind,
        "metadata": {
            "name": reader_claim_name(dataset_view.namespace, dataset_view.name),
            "namespace": reader,
            "labels": _reader_labels(dataset_view),
        },
        "spec": {
            "accessModes": [ROX],
            "storageClassName": "",
            "volumeName": reader_volume_name(dataset_view.namespace, dataset_view.name, reader),
            "resources": {"requests": {"storage": capacity}},
        },
    }


def _reader_labels(dataset_view: DatasetView) -> dict[str, str]:
    return {DATASET_LABEL: dataset_view.name, DATASET_OF_LABEL: dataset_view.namespace}


def is_reader_object(obj: Mapping[str, Any], dataset_view: DatasetView) -> bool:
    labels = labels_of(obj)
    return (labels.get(DATASET_LABEL), labels.get(DATASET_OF_LABEL)) == (dataset_view.name, dataset_view.namespace)


def is_reader_claim(claim: Mapping[str, Any], dataset_view: DatasetView) -> bool:
    """Whether `make_reader_claim` created this claim, and the claim has its volume or may still get it.

    Labels are not enough: members of any team can write them, and finalizers that prevent the deletion.
    """
    meta, (namespace, name) = claim["metadata"], (dataset_view.namespace, dataset_view.name)
    return (
        is_reader_object(claim, dataset_view)
        and meta["name"] == reader_claim_name(namespace, name)
        and claim["spec"].get("volumeName") == reader_volume_name(namespace, name, meta["namespace"])
        and (is_bound(claim) or not is_deleting(claim))
    )


def is_bound(claim: Mapping[str, Any]) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"


# --- reading


def is_owned(obj: Mapping[str, Any], dataset_view: DatasetView) -> bool:
    owner = controller_ref(obj)
    return owner is not None and owner.get("uid") == dataset_view.uid


def claim_seen(obj: Mapping[str, Any] | None, dataset_view: DatasetView) -> ClaimSeen | None:
    if obj is None:
        return None
    return ClaimSeen(
        phase=str((obj.get("status") or {}).get("phase") or "Pending"),
        ours=is_owned(obj, dataset_view),
        deleting=is_deleting(obj),
        modes=tuple((obj.get("spec") or {}).get("accessModes") or ()),
    )


def attempt_seen(
    job: Obj, dataset_view: DatasetView, result: Mapping[str, Any] | None, waiting: str
) -> AttemptSeen:
    number = annotations_of(job).get(ATTEMPT_ANNOTATION, "")
    succeeded, failed = is_condition_true(job, "Complete"), is_condition_true(job, "Failed")
    over = condition(job, "Complete" if succeeded else "Failed") or {}
    return AttemptSeen(
        number=integer_or(number, 0),
        name=job["metadata"]["name"],
        uid=job["metadata"]["uid"],
        revision=annotations_of(job).get(REVISION_ANNOTATION, ""),
        succeeded=succeeded,
        failed=failed,
        ended=moment(over.get("lastTransitionTime")) if over else None,
        ours=is_owned(job, dataset_view),
        deleting=is_deleting(job),
        result=result,
        waiting=waiting,
    )
