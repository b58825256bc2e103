"""StatefulSets.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, spec_of, status_of, template_containers
from moorage_local.apiserver.kinds.common import born_with, own_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.workloads import default_selected, validate_selected
from moorage_local.apiserver.types.fields import FieldErrors

_MUTABLE = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    }
)


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    update = spec.setdefault("updateStrategy", {})
    if not update.get("type"):
        update["type"] = "RollingUpdate"
        update.setdefault("rollingUpdate", {})
    if update["type"] == "RollingUpdate" and "rollingUpdate" in update:
        update["rollingUpdate"].setdefault("partition", 0)
        update["rollingUpdate"].pop("maxUnavailable", None)  # dropped: its feature gate is off in 1.36
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    policy.setdefault("whenDeleted", "Retain")
    policy.setdefault("whenScaled", "Retain")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("serviceName", "")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {})["phase"] = "Pending"
    if spec["serviceName"] == "":
        del spec["serviceName"]
    default_selected(obj)


def _validate(obj: Obj, errors: FieldErrors) -> None:
    """Check the pods with a volume for each claim template: their containers mount it by its name."""
    spec = own_spec(obj)
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    claims = [
        {"name": claim["metadata"].get("name"), "emptyDir": {}} for claim in spec.get("volumeClaimTemplates") or ()
    ]
    names = {claim["name"] for claim in claims}  # a claim replaces a volume of its name
    volumes = [*claims, *(volume for volume in pod.get("volumes") or () if volume.get("name") not in names)]
    whole = {**spec, "template": {**template, "spec": {**pod, "volumes": volumes}}}
    validate_selected({**obj, "spec": whole if claims else spec}, errors)


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = own_spec(new), own_spec(old)
    changed = [key for key in {*spec, *had} if key not in _MUTABLE and spec.get(key) != had.get(key)]
    if changed:
        errors.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals',"
            " 'template', 'updateStrategy',"
            " 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        )


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return (obj["metadata"]["name"], ready, created(obj, now), *template_containers(spec.get("template")))


RULES = {
    ("apps", "statefulsets"): Rules(
        default=_default,
        prepare_create=born_with(replicas=0, availableReplicas=0),
        validate=_validate,
        validate_update=_validate_update,
        generation=spec_changed,
        cells=_cells,
    ),
}
