"""CustomResourceDefinitions as objects: they are accepted and established as soon as they are created.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.meta import with_condition
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import name_date
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import IS_LABEL_1035, name_problems
from moorage_local.apiserver.types.structural import PRESERVE, compile_schema

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def _default(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")


def _prepare(obj: Obj) -> None:
    """Set the conditions of a new definition: accepted and established."""
    meta, spec = obj["metadata"], obj["spec"]
    now = meta["creationTimestamp"]
    obj["status"] = {
        "acceptedNames": dict(spec.get("names") or {}),
        "conditions": [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "storedVersions": [version["name"] for version in spec.get("versions") or () if version.get("storage")],
    }


def _is_pending(obj: Obj) -> bool:
    """A definition is never removed by the first request: its objects are deleted first."""
    return "deletionTimestamp" not in obj["metadata"]


def _mark_deleted(obj: Obj) -> None:
    """Add the finalizer that `CustomResources` removes once all objects of the definition are deleted."""
    meta = obj["metadata"]
    if CLEANUP not in (meta.get("finalizers") or ()):
        meta["finalizers"] = [*(meta.get("finalizers") or ()), CLEANUP]
        meta["generation"] -= 1  # unlike that of other kinds it does not count the deletion
    meta.pop("deletionGracePeriodSeconds", None)
    status = {**(obj.get("status") or {})}
    status["conditions"] = with_condition(
        status.get("conditions") or (),
        "Terminating",
        "True",
        now=meta["deletionTimestamp"],
        reason="InstanceDeletionPending",
        message="CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    )
    obj["status"] = status


def _prepare_update(new: Obj, old: Obj) -> None:
    status = {**(old.get("status") or {})}
    stored = list(status.get("storedVersions") or ())
    stored += [
        version["name"]
        for version in new["spec"].get("versions") or ()
        if version.get("storage") and version["name"] not in stored
    ]
    status["storedVersions"] = stored
    status["acceptedNames"] = dict(new["spec"].get("names") or {})
    new["status"] = status


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = obj.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group") or ""
    # the name must follow from plural and group, so that two definitions cannot serve the same path
    wanted = f"{names.get('plural')}.{group}"
    name = obj["metadata"].get("name") or ""
    if name != wanted:
        errors.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if not group:
        errors.required("spec.group")
    else:
        for problem in name_problems(group, "subdomain"):
            errors.invalid("spec.group", group, problem)
        if "." not in group:
            errors.invalid("spec.group", group, "should be a domain with at least one dot")
    # names, scope and conversion hold for all versions
    _validate_names(names, errors)
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        if not spec.get("scope"):
            errors.required("spec.scope")
        errors.unsupported("spec.scope", spec.get("scope", ""), ["Cluster", "Namespaced"])
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        errors.unsupported("spec.conversion.strategy", strategy, ["None"])
    # objects are stored in exactly one version
    versions = spec.get("versions") or ()
    storing = [version.get("name") for version in versions if version.get("storage")]
    if len(storing) != 1:
        errors.invalid(
            "spec.versions",
            [version.get("name") for version in versions],
            "must have exactly one version marked as storage version",
        )
    # each version has a name, which is part of the path, and a schema
    names_taken: set[str] = set()
    for at, version in enumerate(versions):
        path = f"spec.versions[{at}]"
        name = version.get("name", "")
        for problem in [] if IS_LABEL_1035.fullmatch(name) else ["must be a DNS-1035 label"]:
            errors.invalid(f"{path}.name", name, problem)
        if name in names_taken:
            errors.invalid(f"{path}.name", name, "must be unique")
        names_taken.add(name)
        _validate_version(version, path, errors, is_only=len(versions) == 1)


def _validate_names(names: Mapping[str, Any], errors: FieldErrors) -> None:
    for key in ("plural", "singular", "kind", "listKind"):
        value = names.get(key)
        if not value:
            errors.required(f"spec.names.{key}")
        elif not IS_LABEL_1035.fullmatch(value.lower()) or (
            key in ("plural", "singular") and value != value.lower()
        ):
            errors.invalid(f"spec.names.{key}", value, "must be a DNS-1035 label")


def _validate_version(version: Mapping[str, Any], path: str, errors: FieldErrors, *, is_only: bool) -> None:
    """Check the schema and scale of a version.

    The real server uses another path for the only version of a definition.
    """
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        errors.required(f"{path}.schema.openAPIV3Schema", "schemas are required")
        return
    where = "spec.validation.openAPIV3Schema" if is_only else f"{path}.schema.openAPIV3Schema"
    if not schema.get("type"):
        errors.required(f"{where}.type", "must not be empty at the root")
    elif schema["type"] != "object":
        errors.invalid(f"{where}.type", schema["type"], "must be object at the root")
    _validate_schema(schema, where, errors, root=True)
    try:
        compile_schema(schema)
    except ValueError as error:
        errors.invalid(where, "schema", str(error).splitlines()[0])
    paths = ((version.get("subresources") or {}).get("scale")) or None
    if paths is not None:
        for key in ("specReplicasPath", "statusReplicasPath"):
            if not paths.get(key):
                errors.required(f"{path}.subresources.scale.{key}")


def _validate_schema(schema: Any, path: str, errors: FieldErrors, *, root: bool = False) -> None:
    """Check that a schema is structural, as far as that changes how objects are read."""
    if not isinstance(schema, Mapping):
        return
    typed = any(schema.get(key) for key in ("type", "x-kubernetes-int-or-string", PRESERVE))
    if not typed and not root:
        errors.required(f"{path}.type", "must not be empty for specified object fields")
    if "$ref" in schema:
        errors.forbidden(f"{path}.$ref", "$ref is not supported")
    if schema.get("uniqueItems"):
        errors.forbidden(
            f"{path}.uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        )
    if schema.get("properties") and schema.get("additionalProperties"):
        errors.forbidden(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if schema.get("additionalProperties") is False:
        errors.forbidden(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
        errors.required(f"{path}.items", "must be specified")
    for name, subschema in (schema.get("properties") or {}).items():
        _validate_schema(subschema, f"{path}.properties[{name}]", errors)
    if isinstance(schema.get("items"), Mapping):
        _validate_schema(schema["items"], f"{path}.items", errors)
    if isinstance(schema.get("additionalProperties"), Mapping):
        _validate_schema(schema["additionalProperties"], f"{path}.additionalProperties", errors)


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    for key in ("group", "scope"):
        if new["spec"].get(key) != old["spec"].get(key):
            errors.invalid(f"spec.{key}", new["spec"].get(key), "field is immutable")
    for key in ("plural", "kind"):
        value, was = (new["spec"].get("names") or {}).get(key), (old["spec"].get("names") or {}).get(key)
        if value != was:
            errors.invalid(f"spec.names.{key}", value, "field is immutable")
    names = {version.get("name") for version in new["spec"].get("versions") or ()}
    for at, stored in enumerate((old.get("status") or {}).get("storedVersions") or ()):
        if stored not in names:
            errors.invalid(
                f"status.storedVersions[{at}]",
                stored,
                "missing from spec.versions; v was previously a storage version",
            )


RULES = {
    ("apiextensions.k8s.io", "customresourcedefinitions"): Rules(
        default=_default,
        prepare_create=_prepare,
        prepare_update=_prepare_update,
        validate=_validate,
        validate_update=_validate_update,
        generation=spec_changed,
        pending=_is_pending,
        on_deletion=_mark_deleted,
        unconditional_update=False,
        qualified_finalizers=False,
        cells=name_date,
    ),
}
