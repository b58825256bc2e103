"""Apply a patch to an object, and restore the fields that an update must not change. Pure."""

from __future__ import annotations

from typing import Any

from moorage_kube.api import PatchKind
from moorage_kube.errors import BadRequest, Invalid
from moorage_kube.mergepatch import merge_patch
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.bodies import meta_of
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.wire import patch


def patched(kind: Kind, current: Obj, body: Any, patch_kind: PatchKind) -> Obj:
    """Return the object with a patch applied. Raises BadRequest and Invalid if the patch cannot be applied."""
    match patch_kind:
        case "merge":
            if not isinstance(body, dict):
                raise BadRequest(
                    f"error decoding patch: json: cannot unmarshal {patch.json_kind(body)} into Go value"
                    " of type map[string]interface {}"
                )
            wanted = merge_patch(current, body)
        case "json":
            wanted = patch.json_patch(current, body)
        case "strategic":
            wanted = patch.strategic_merge(current, body, kind.codec.patch_type)
        case "apply":
            wanted = patch.apply_merge(current, body, kind.codec.patch_type, kind.schema)
    if not isinstance(wanted, dict):
        raise BadRequest("the result of the patch is not an object")
    if not wanted.get("metadata"):
        raise BadRequest("the patch would remove the object's metadata")
    meta = meta_of(wanted)
    for key in ("name", "namespace"):
        was = current["metadata"].get(key)
        if meta.get(key) != was:
            raise BadRequest(
                f"the {key} of the object ({meta.get(key)}) does not match the {key} on the URL ({was})"
            )
    for key in ("kind", "apiVersion"):
        if wanted.get(key) != current[key]:
            raise Invalid(f"a patch cannot change {key} from {current[key]} to {wanted.get(key)}")
    made: Obj = wanted
    return made


def with_manager(obj: Obj, call: Call, kind: Kind, subresource: str | None, now: str) -> Obj:
    """Return the object with the field manager of an apply added to `metadata.managedFields`."""
    entry: Obj = {
        "manager": call.field_manager,
        "operation": "Apply",
        "apiVersion": kind.resource.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": {},
    }
    if subresource:
        entry["subresource"] = subresource
    had = obj["metadata"].get("managedFields") or []
    for item in had:
        if {key: value for key, value in item.items() if key != "time"} == entry:
            return obj
    entry["time"] = now
    return {**obj, "metadata": {**obj["metadata"], "managedFields": [*had, entry]}}


def keep_other_side(kind: Kind, new: Obj, old: Obj, subresource: str | None) -> None:
    """Restore the part that a request may not change: the status, or with /status everything except the status."""
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key not in ("status", "metadata")}
        status = new.get("status")
        meta = old["metadata"] if kind.custom else new["metadata"]
        new.clear()
        new.update(kept)
        new["metadata"] = {**meta}
        if status is not None:
            new["status"] = status
        kind.rules.prepare_status(new, old)
        return
    if kind.has_status:
        if "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
    kind.rules.prepare_update(new, old)
