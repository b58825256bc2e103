"""The order in which an installation is written, and the objects it creates, changes and removes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from msgspec import Struct

from moorage.decide.install.changes import Change, changes
from moorage.decide.install.record import Ref
from moorage.decide.install.values import parse_version
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.access import Right
from moorage_kube.errors import NotReady
from moorage_kube.resources import Obj

FIELD_MANAGER = "moorage-install"
REGISTRATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
MINIMUM = (1, 30)  # of Kubernetes: match conditions of webhooks, and scheduling gates
# in an upgrade one after the other; the webhook first, because it must accept writes of the others
ROLLOUT = ("moorage-webhook", "moorage-extender", "moorage-operator", "moorage-server")
# objects with users' data are deleted by uninstall only, even if a newer version does not ship them
NEVER_PRUNED = frozenset({"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim", "Secret"})


class Phase(IntEnum):
    """The objects that are written together; each phase is complete before the next begins."""

    NAMESPACES = 0
    DEFINITIONS = 1
    RIGHTS = 2  # and all other objects that services need
    SERVICES = 3
    REGISTRATIONS = 4  # last: nothing is sent to a webhook that is not there


def phase_of(obj: Mapping[str, Any]) -> Phase:
    match obj["kind"]:
        case "Namespace":
            return Phase.NAMESPACES
        case "CustomResourceDefinition":
            return Phase.DEFINITIONS
        case "Deployment":
            return Phase.SERVICES
        case kind if kind in REGISTRATIONS:
            return Phase.REGISTRATIONS
        case _:
            return Phase.RIGHTS


def in_order(objects: Iterable[Obj]) -> list[Obj]:
    """Sort objects by phase, and Deployments by ROLLOUT."""
    names = {name: place for place, name in enumerate(ROLLOUT)}
    return sorted(objects, key=lambda obj: (phase_of(obj), names.get(obj["metadata"]["name"], len(names))))


def rollout_groups(services: Sequence[Obj], made: Collection[Ref], *, rolling: bool) -> list[list[Obj]]:
    """Groups of Deployments that are written and waited for together. `made`: those that do not exist yet.

    An upgrade rolls out one by one. Missing Deployments come first and together, because services wait for each
    other: the pods of the webhook start when the operator has made their Secret. An installation that was
    interrupted leaves such a cluster.
    """
    if not rolling:
        return [list(services)]
    absent = [obj for obj in services if Ref.of(obj) in made]
    groups = [absent] if absent else []
    return groups + [[obj] for obj in services if Ref.of(obj) not in made]


class InstallPlan(Struct, frozen=True, kw_only=True):
    """The writes of an installation. `write` is all that is applied, in order: unchanged objects are written
    again.
    """

    write: tuple[Obj, ...]
    made: tuple[Ref, ...]
    changed: Mapping[Ref, tuple[Change, ...]]
    same: tuple[Ref, ...]
    removed: tuple[Ref, ...]  # written by an earlier version, shipped by this one no more

    @property
    def is_empty(self) -> bool:
        return not (self.made or self.changed or self.removed)


def plan_install(
    wanted: Sequence[Obj], live: Mapping[Ref, Obj], tried: Mapping[Ref, Obj], written: Sequence[Ref] = ()
) -> InstallPlan:
    """`live`: the cluster's objects; `tried`: results of a dry run of the apply; missing means as wanted.

    `written`: all that earlier installations wrote.
    """
    made, same = [], []
    changed: dict[Ref, tuple[Change, ...]] = {}
    ordered = in_order(wanted)
    for obj in ordered:
        ref = Ref.of(obj)
        if (there := live.get(ref)) is None:
            made.append(ref)
        elif different := changes(there, tried.get(ref, there)):
            changed[ref] = tuple(different)
        else:
            same.append(ref)
    shipped = {Ref.of(obj) for obj in ordered}
    return InstallPlan(
        write=tuple(ordered),
        made=tuple(made),
        changed=changed,
        same=tuple(same),
        removed=tuple(
            sorted(ref for ref in set(written) - shipped if ref.kind not in NEVER_PRUNED and ref in live)
        ),
    )


def to_apply(wanted: Obj, live: Mapping[str, Any] | None, replicas: Mapping[str, int]) -> Obj:
    """The object to apply on the present one. `replicas`: those that an admin chose, by service.

    Registrations: the operator adds a token to each path and sets a certificate. The present path is sent again,
    so that an apply neither conflicts with it nor removes the token. Claims: their spec cannot change. Deployments
    that were scaled, by hand or by an autoscaler, retain their replicas.
    """
    if live is None:
        return wanted
    if wanted["kind"] in REGISTRATIONS:
        obj = copy.deepcopy(wanted)
        services = {str(webhook.get("name")): _service(webhook) for webhook in live.get("webhooks") or ()}
        for webhook in obj["webhooks"]:
            service = _service(webhook)
            path = str(services.get(webhook["name"], {}).get("path") or "")
            if service and path.startswith(f"{service.get('path')}/"):
                service["path"] = path
        return obj
    if wanted["kind"] == "Deployment":
        service = str(wanted["metadata"]["name"]).removeprefix("moorage-")
        there = (live.get("spec") or {}).get("replicas")
        if service in replicas or there is None or not _is_scaled(live):
            return wanted
        return wanted | {"spec": {**wanted["spec"], "replicas": there}}
    if wanted["kind"] == "PersistentVolumeClaim":
        spec = live.get("spec") or {}
        kept = {key: spec[key] for key in (*wanted["spec"], "storageClassName") if key in spec}
        return wanted | {"spec": kept}
    return wanted


def _is_scaled(deployment: Mapping[str, Any]) -> bool:
    """Whether another field manager has set the replicas."""
    return any(
        "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in deployment["metadata"].get("managedFields") or ()
        if entry.get("manager") != FIELD_MANAGER
    )


def _service(webhook: Mapping[str, Any]) -> Any:
    return (webhook.get("clientConfig") or {}).get("service") or {}


def check_kubernetes(version: str) -> None:
    """Raise NotReady if Kubernetes is too old. `version`: a `gitVersion` such as v1.36.2 or v1.31.5-gke.100."""
    if parse_version(version)[:2] < MINIMUM:
        lowest = ".".join(map(str, MINIMUM))
        raise NotReady(f"the cluster runs Kubernetes {version}; Moorage needs {lowest} or newer")


def needed_rights(
    objects: Iterable[Mapping[str, Any]], plurals: Mapping[str, str], *, removing: bool
) -> list[Right]:
    """The rights that an admin needs for these objects; `plurals`: by kind.

    Roles with more rights than one's own need `escalate` and `bind`.
    """
    verbs = ("get", "delete") if removing else ("get", "create", "patch")
    rights = set()
    for obj in objects:
        group = obj["apiVersion"].rpartition("/")[0]
        resource, namespace = plurals[obj["kind"]], obj["metadata"].get("namespace") or ""
        rights |= {Right(verb, group, resource, namespace) for verb in verbs}
        if not removing and obj["kind"] in ("ClusterRole", "Role"):
            rights.add(Right("escalate", group, resource, namespace))
        if not removing and obj["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            of = "clusterroles" if obj["roleRef"]["kind"] == "ClusterRole" else "roles"
            rights.add(Right("bind", group, of, namespace if of == "roles" else ""))
    if not removing:
        rights |= {Right(verb, "", "configmaps", SYSTEM_NAMESPACE) for verb in ("get", "create", "patch")}
        rights |= {Right(verb, "", "serviceaccounts", PEOPLE_NAMESPACE) for verb in ("list", "create")}
        rights.add(Right("list", "", "pods", SYSTEM_NAMESPACE))
    return sorted(rights)
