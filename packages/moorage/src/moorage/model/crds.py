"""CustomResourceDefinitions, generated from the kinds of this package, so that both always match.

`moor manifests --write deploy` updates the files.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from textwrap import dedent
from typing import Any

import msgspec
from msgspec import Struct

from moorage.model.budget import BUDGETS, BudgetObject
from moorage.model.dataset import DATASETS, Dataset
from moorage.model.idle import IDLE_POLICIES, IdlePolicy
from moorage.model.machine import MACHINES, NODE_POOLS, Machine, MachineNodePool
from moorage.model.mapjob import MAPJOBS, MapJob
from moorage.model.policy import POLICIES, GuardrailPolicy
from moorage.model.reservation import RESERVATIONS, Reservation
from moorage.model.tenant import TENANTS, Tenant
from moorage.model.volumebackup import BACKUPS, VolumeBackup
from moorage.model.workspace import WORKSPACES, Workspace
from moorage_kube.resources import Obj, Resource


class _Kind(Struct, frozen=True, kw_only=True):
    """One of our kinds, and its columns and names in kubectl."""

    resource: Resource
    struct: type[msgspec.Struct]
    short_names: tuple[str, ...] = ()
    columns: tuple[tuple[str, str, str], ...] = ()  # name, type, JSON path


KINDS = (
    _Kind(
        resource=DATASETS,
        struct=Dataset,
        columns=(
            ("Phase", "string", ".status.phase"),
            ("Files", "integer", ".status.files"),
            ("Bytes", "integer", ".status.bytes"),
            ("Source", "string", ".spec.source.url"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=BACKUPS,
        struct=VolumeBackup,
        columns=(
            ("Volume", "string", ".spec.volume"),
            ("Schedule", "string", ".spec.schedule"),
            ("To", "string", ".spec.to"),
            ("Phase", "string", ".status.phase"),
            ("Last", "string", ".status.lastSuccess"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=BUDGETS,
        struct=BudgetObject,
        columns=(
            ("GPU-Hours", "string", ".spec.gpuHours"),
            ("Money", "string", ".spec.money"),
            ("Period", "string", ".spec.period"),
            ("When-Over", "string", ".spec.whenOver"),
            ("Computed", "date", ".status.computedAt"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=IDLE_POLICIES,
        struct=IdlePolicy,
        short_names=("idle",),
        columns=(
            ("Warn", "string", ".spec.warnAfter"),
            ("Remind", "string", ".spec.remindAfter"),
            ("Suspend", "string", ".spec.suspendAfter"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=MACHINES,
        struct=Machine,
        columns=(
            ("Group", "string", ".metadata.labels.moorage\\.dev/machine-group"),
            ("Order", "string", ".spec.order"),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=NODE_POOLS,
        struct=MachineNodePool,
        columns=(
            ("Group", "string", ".spec.machineGroupName"),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=MAPJOBS,
        struct=MapJob,
        columns=(
            ("State", "string", ".status.state"),
            ("Total", "integer", ".status.items.total"),
            ("Done", "integer", ".status.items.done"),
            ("Dead", "integer", ".status.items.dead"),
            ("Workers", "integer", ".status.workers.ready"),
            ("Reason", "string", ".status.conditions[?(@.type=='Working')].reason"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=POLICIES,
        struct=GuardrailPolicy,
        short_names=("guardrails",),
        columns=(
            ("Memory", "string", ".spec.rules.memoryLimit.level"),
            ("Bombs", "string", ".spec.rules.restartBomb.level"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=RESERVATIONS,
        struct=Reservation,
        columns=(
            ("Machine", "string", ".spec.machineType"),
            ("Count", "integer", ".spec.count"),
            ("From", "string", ".spec.from"),
            ("To", "string", ".spec.to"),
            ("User", "string", ".spec.user"),
            ("Phase", "string", ".status.phase"),
            ("Held", "integer", ".status.held"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=TENANTS,
        struct=Tenant,
        columns=(
            ("Namespace", "string", ".spec.namespace"),
            ("People", "integer", ".status.people"),
            ("Nodes", "integer", ".status.nodes"),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Memory", "string", ".spec.defaults.memory"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
    _Kind(
        resource=WORKSPACES,
        struct=Workspace,
        short_names=("ws",),
        columns=(
            ("Type", "string", ".spec.type"),
            ("Phase", "string", ".status.phase"),
            ("Url", "string", ".status.url"),
            ("Waits for", "string", ".status.waitingFor.message"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
)

_DROPPED = frozenset({"title", "$defs", "$ref", "propertyNames"})  # the last: judged by us, CRDs cannot say it


def all_crds() -> list[Obj]:
    """All our CRDs, ready to create, sorted by name. Each call returns new objects."""
    crds: list[Obj] = msgspec.json.decode(_encoded_crds())
    return crds


@functools.cache  # reading the kinds takes a tenth of a second
def _encoded_crds() -> bytes:
    return msgspec.json.encode(
        sorted((_crd(kind) for kind in KINDS), key=lambda crd: str(crd["metadata"]["name"]))
    )


def structural(schema: Mapping[str, Any]) -> Obj:
    """Convert a JSON Schema of msgspec to the structural schema that CRDs require.

    References are inlined (recursion is not allowed), `X | None` becomes an optional X, `int | str` becomes
    x-kubernetes-int-or-string, and a free mapping preserves unknown fields. Raises ValueError for other unions.
    """
    return _structural(schema, schema.get("$defs") or {}, ())


def _crd(kind: _Kind) -> Obj:
    resource = kind.resource
    singular = resource.kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": singular,
                **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path} for name, type_, path in kind.columns
                    ],
                    "schema": {"openAPIV3Schema": _root(kind)},
                }
            ],
        },
    }


def _root(kind: _Kind) -> Obj:
    schema = structural(msgspec.json.schema(kind.struct))
    own = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    schema["properties"] = own | schema["properties"]
    return schema


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any], inside: Sequence[str]) -> Obj:
    # follow references: a CRD schema has none
    if ref := schema.get("$ref"):
        name = str(ref).rsplit("/", 1)[-1]
        if name in inside:
            raise ValueError(f"{name} holds itself; a CRD schema cannot say that")
        return _structural(definitions[name] | _besides(schema), definitions, (*inside, name))
    # of unions, only optional values and int-or-string can be expressed
    if union := schema.get("anyOf"):
        some = [branch for branch in union if branch.get("type") != "null"]
        if len(some) == 1:
            return _structural(some[0] | _besides(schema), definitions, inside)
        if {branch.get("type") for branch in some} == {"integer", "string"}:
            text = next(branch for branch in some if branch["type"] == "string")
            more = {key: text[key] for key in ("pattern", "description") if key in text}
            return more | {"x-kubernetes-int-or-string": True} | _besides(schema)
        raise ValueError(f"a CRD schema cannot say {union}")
    # copy the keywords, converted to OpenAPI 3.0 where it differs
    out: Obj = {}
    for key, value in schema.items():
        if key in _DROPPED:
            continue
        match key:
            case "properties":
                out[key] = {
                    name: _structural(field_schema, definitions, inside) for name, field_schema in value.items()
                }
            case "items" | "additionalProperties" if isinstance(value, Mapping):
                out[key] = _structural(value, definitions, inside)
            case "description":
                out[key] = _without_indent(value)
            case "default" if value in (None, "", 0, [], {}):
                continue  # absent says as much, and is not written into every object
            case "required" if not value:
                continue
            case "exclusiveMinimum" | "exclusiveMaximum" if not isinstance(value, bool):
                out[key.removeprefix("exclusive").lower()] = value  # in OpenAPI 3.0 it is a flag next to the bound
                out[key] = True
            case _:
                out[key] = value
    # formats and markers that the API server needs
    if out.get("type") == "integer":
        out.setdefault("format", "int64")
    if out.get("type") == "object" and "properties" not in out and "additionalProperties" not in out:
        out["x-kubernetes-preserve-unknown-fields"] = True
    return out


def _without_indent(text: str) -> str:
    """A docstring without its indentation, as in Python 3.13 and later.

    All versions generate the same manifests.
    """
    first, newline, rest = text.partition("\n")
    return first + newline + dedent(rest)


def _besides(schema: Mapping[str, Any]) -> Obj:
    """The keywords next to a reference or a union, such as a description of its use there."""
    return {
        key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "$defs", "title", "default")
    }
