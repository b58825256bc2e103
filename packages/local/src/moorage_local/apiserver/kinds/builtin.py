"""The built-in kinds: the types in `builtin.json`, with the rules of each kind."""

from __future__ import annotations

from dataclasses import dataclass

from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.kinds.kind import DEFAULT_RULES, Column, Decoded, Kind, Subresource
from moorage_local.apiserver.kinds.registry import RULES
from moorage_local.apiserver.types import schema
from moorage_local.apiserver.types.fields import FieldErrors

DEPRECATED = {
    ("", "v1", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
}
SHARED_STORAGE = {("events.k8s.io", "events"): "core/events/"}
_ORDERS = {
    frozenset(order): order
    for order in (
        ("Always", "OnFailure", "Never"),
        ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    )
}
"""Enumerations that the real server does not list by the alphabet."""


def _shown_path(path: str) -> str:
    """Return the path that the real server reports for a value; it may differ from the value's own path."""
    if path.startswith("spec.accessModes["):
        return "spec.accessModes"
    return f"metadata.{path.removeprefix('spec.')}" if path.startswith("spec.taints[") else path


@dataclass(frozen=True, slots=True)
class BuiltinCodec:
    """Decodes objects by the Go type with this name."""

    type_name: str
    resource: Resource

    @property
    def patch_type(self) -> str | None:
        return self.type_name

    def decode(self, obj: Obj) -> Decoded:
        reading = schema.Reading()
        try:
            read = schema.read(self.type_name, obj, reading)
        except schema.WrongType as error:
            kind, version = self.resource.kind, self.resource.version
            raise BadRequest(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from None
        errors = FieldErrors()
        for path, value, allowed in reading.unsupported:
            if not path.startswith("status"):
                errors.unsupported(_shown_path(path), value, _ORDERS.get(frozenset(allowed), allowed))
        return Decoded(read, reading.unknown, errors)


def builtin_kinds() -> list[Kind]:
    """All built-in kinds."""
    return [_kind(entry) for entry in schema.builtin()["resources"]]


def _kind(entry: Obj) -> Kind:
    resource = Resource(entry["group"], entry["version"], entry["plural"], entry["kind"], entry["namespaced"])
    prefix = SHARED_STORAGE.get(
        (resource.group, resource.plural), f"{resource.group or 'core'}/{resource.plural}/"
    )
    return Kind(
        resource=resource,
        singular=entry["singular"],
        list_kind=f"{resource.kind}List",
        verbs=tuple(entry["verbs"]),
        codec=BuiltinCodec(entry["type"], resource),
        rules=RULES.get((resource.group, resource.plural), DEFAULT_RULES),
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        subresources={
            name: Subresource(
                name=name,
                kind=subresource["kind"],
                verbs=tuple(subresource["verbs"]),
                group=subresource.get("group"),
                version=subresource.get("version"),
                type_name=subresource.get("type"),
            )
            for name, subresource in (entry.get("subresources") or {}).items()
        },
        deprecated=DEPRECATED.get((resource.group, resource.version, resource.plural)),
        columns=tuple(Column(**column) for column in entry.get("columns", ())),
        prefix=prefix,
    )
