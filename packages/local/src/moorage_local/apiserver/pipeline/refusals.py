"""The errors that all kinds share, with the real server's messages."""

from __future__ import annotations

from collections.abc import Sequence

from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, MethodNotAllowed, NotFound
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.pipeline.calls import DeleteOptions


def details_of(resource: Resource, name: str) -> Obj:
    out: Obj = {"name": name, "kind": resource.plural}
    if resource.group:
        out["group"] = resource.group
    return out


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(f'{resource} "{name}" not found', details=details_of(resource, name))


def already_exists(resource: Resource, name: str, standing: Obj | None) -> AlreadyExists:
    going = standing is not None and standing["metadata"].get("deletionTimestamp")
    text = f'{resource} "{name}" already exists'
    return AlreadyExists(f"object is being deleted: {text}" if going else text, details=details_of(resource, name))


def forbidden(resource: Resource, name: str, why: str, causes: Sequence[Obj] = ()) -> Forbidden:
    name = name or "Unknown"
    details = details_of(resource, name)
    if causes:
        details["causes"] = list(causes)
    return Forbidden(f'{resource} "{name}" is forbidden: {why}', details=details)


def modified(resource: Resource, name: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified;'
        " please apply your changes"
        " to the latest version and try again",
        details=details_of(resource, name),
    )


def not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed("the server does not allow this method on the requested resource", details={})


def check_preconditions(resource: Resource, name: str, obj: Obj, options: DeleteOptions) -> None:
    meta = obj["metadata"]
    why = ""
    if options.uid and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']})."
            " The object might have been deleted and then recreated"
        )
    elif options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not"
            " match the ResourceVersion"
            f" in record ({meta['resourceVersion']}). The object might have been modified"
        )
    if why:
        kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
        details = details_of(resource, name) | {"kind": resource.kind}
        raise Conflict(f'Operation cannot be fulfilled on {kind} "{name}": {why}', details=details)
