"""The record of an installation on the cluster: its values, its version, and the objects it has written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec import Struct

from moorage.model.manifests.parts import make_object
from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError, NotReady
from moorage_kube.resources import CONFIGMAPS, Obj

RECORD_CONFIGMAP = "moorage-install"  # in SYSTEM_NAMESPACE; shipped by nothing, so that no apply resets it
DONE, UNDER_WAY, REMOVED = "done", "under way", "removed"


class Ref(Struct, frozen=True, order=True):
    """One object by its name. `namespace` is empty for cluster-scoped kinds."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        meta = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], meta.get("namespace") or "", meta["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class InstallRecord(Struct, frozen=True, kw_only=True):
    """The last installation. `values`: in the form of the YAML file; `state`: DONE, UNDER_WAY or REMOVED."""

    values: Mapping[str, Any]
    version: str
    objects: tuple[Ref, ...]
    state: str = DONE


def make_record(record: InstallRecord) -> Obj:
    """The ConfigMap."""
    objects = [[ref.api_version, ref.kind, ref.namespace, ref.name] for ref in sorted(set(record.objects))]
    data = {
        "values": json.dumps(record.values, indent=2, sort_keys=True),  # JSON is YAML too
        "version": record.version,
        "state": record.state,
        "objects": "\n".join(json.dumps(each) for each in objects),
    }
    return make_object(CONFIGMAPS, RECORD_CONFIGMAP, SYSTEM_NAMESPACE, data=data)


def parse_record(obj: Mapping[str, Any]) -> InstallRecord:
    """Parse the record. Raises NotReady if it is invalid because it was changed by hand."""
    data = obj.get("data") or {}
    try:
        values = parse_json(data.get("values") or "{}")
        refs = tuple(Ref(*parse_json(line)) for line in (data.get("objects") or "").splitlines() if line.strip())
        if not isinstance(values, dict):
            raise TypeError("values is not a mapping")
    except (DocumentError, TypeError) as error:
        raise NotReady(
            f"ConfigMap {SYSTEM_NAMESPACE}/{RECORD_CONFIGMAP} cannot be read: {error}",
            hint="repair it, or delete it and give all options again",
        ) from error
    return InstallRecord(
        values=values, version=str(data.get("version") or ""), objects=refs, state=str(data.get("state") or DONE)
    )


def refs_of(objects: Iterable[Mapping[str, Any]]) -> tuple[Ref, ...]:
    return tuple(Ref.of(obj) for obj in objects)
