"""`podSpecPatch` of workflows and templates: a strategic merge patch of a pod's spec, as a JSON or YAML string.

https://argo-workflows.readthedocs.io/en/latest/pod-spec-patch/
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.documents import parse_document
from moorage_kube.errors import DocumentError, MoorageError
from moorage_kube.resources import Obj

MERGE_KEYS: Mapping[str, str] = {  # list in a PodSpec → the key of its entries; other lists are replaced
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
_DIRECTIVE, _RETAIN = "$patch", "$retainKeys"
_ORDER, _DELETE = "$setElementOrder/", "$deleteFromPrimitiveList/"


class PatchError(MoorageError):
    """A patch cannot be read or applied."""


def patched_spec(spec: Obj, text: str) -> Obj:
    """Return the pod's spec with the patch applied. The argument is not changed. Raises PatchError."""
    try:
        patch = parse_document(text)
    except DocumentError as error:
        raise PatchError(f"is neither valid JSON nor valid YAML: {error.message}") from error
    if not isinstance(patch, dict):
        raise PatchError("must be an object with fields of a pod's spec")
    return _merged(spec, patch)


def _merged(original: Mapping[str, Any], patch: Mapping[str, Any]) -> Obj:
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        replaced: Obj = _plain(patch)
        return replaced
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"has $patch: {directive!r}: use merge, replace or delete")
    merged = dict(original)
    if isinstance(retained := patch.get(_RETAIN), list):
        merged = {key: value for key, value in merged.items() if key in retained}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        current = merged.get(key)
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            if isinstance(merged.get(name), list) and isinstance(value, list):
                merged[name] = [item for item in merged[name] if item not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(current if isinstance(current, dict) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _merged_list(current if isinstance(current, list) else [], value, key)
        else:
            merged[key] = _plain(value)
    return merged


def _merged_list(original: list[Any], patch: list[Any], field: str) -> list[Any]:
    key = MERGE_KEYS[field]
    if any(
        isinstance(item, dict) and set(item) == {_DIRECTIVE} and item[_DIRECTIVE] == "replace" for item in patch
    ):
        return [_plain(item) for item in patch if not (isinstance(item, dict) and _DIRECTIVE in item)]
    merged = list(original)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"has an entry of {field} without {key}: entries are merged by it")
        places = [place for place, had in enumerate(merged) if isinstance(had, dict) and had.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            merged = [had for place, had in enumerate(merged) if place not in places]
        elif not places:
            merged.append(_merged({}, item))
        elif field == "volumes" and (set(item) - {key, _DIRECTIVE, _RETAIN}).isdisjoint(merged[places[0]]):
            merged[places[0]] = _plain(item)  # a volume has one source
        else:
            merged[places[0]] = _merged(merged[places[0]], item)
    return merged


def _plain(value: Any) -> Any:
    """Return the value without patch directives and nulls."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
