"""The objects that an uninstall removes and leaves, and the order, so that users' objects are never blocked.

Works the same with our services up or down: they are stopped before anything else is touched, and the work of
their finalizers is done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from moorage.decide.install.record import RECORD_CONFIGMAP, Ref
from moorage.decide.install.steps import REGISTRATIONS
from moorage.model.argo import ARTIFACT_FINALIZER, POD_FINALIZER
from moorage.model.argo import FINALIZER as WORKFLOW_FINALIZER
from moorage.model.dataset import DATASET_FINALIZER
from moorage.model.manifests import USAGE_CLAIM
from moorage.model.names import (
    BEATS_FINALIZER,
    CONTAINER_GATE,
    CRON_FINALIZER,
    MACHINE_GATE,
    MACHINE_POOL_ANNOTATION,
    MAP_FINALIZER,
    MEMORY_GATE,
    NODE_FINALIZER,
    RESERVATION_LABEL,
    SCHEDULER_NAME,
    SYSTEM_NAMESPACE,
)
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.resources import Obj

FINALIZERS = frozenset(
    {
        DATASET_FINALIZER,
        NODE_FINALIZER,
        MAP_FINALIZER,
        WORKFLOW_FINALIZER,
        POD_FINALIZER,
        ARTIFACT_FINALIZER,
        CRON_FINALIZER,
        BEATS_FINALIZER,
    }
)
LIFTED_GATES = frozenset({MACHINE_GATE, MEMORY_GATE})  # a container that was not started stays so
ADMIN_PREFIX = "moorage-admin-"  # ClusterRoleBindings of first users
_SHOWN = 5  # names in a line

# --- steps


class Delete(Struct, frozen=True):
    """Delete one object. The garbage collector deletes its dependents."""

    ref: Ref


class AwaitServices(Struct, frozen=True):
    """Wait until none of our pods runs: they would add the finalizers again."""


class LiftGates(Struct, frozen=True):
    """A pod waits for a deleted service; `left` are gates of others."""

    namespace: str
    name: str
    left: tuple[str, ...]


class Release(Struct, frozen=True):
    """Remove our finalizers from one of our objects or from a step's pod. `left`: the finalizers of others."""

    ref: Ref
    left: tuple[str, ...]


class CleanNode(Struct, frozen=True):
    """Remove our labels and taints from a node: its MachineNodePool is deleted."""

    name: str


Step = Delete | AwaitServices | LiftGates | Release | CleanNode


class Present(Struct, frozen=True, kw_only=True):
    """All data that an uninstall reads from the cluster."""

    written: Sequence[Ref]  # existing objects that installations write
    ours: Sequence[Obj] = ()  # objects of our kinds, with apiVersion and kind
    pods: Sequence[Obj] = ()
    nodes: Sequence[Obj] = ()
    shared: Sequence[Ref] = ()  # claims and volumes of datasets in the namespaces of readers
    class_users: Mapping[str, Sequence[str]]  # PriorityClass → objects with it in their template, "Job lab/train"
    admin_bindings: Sequence[Ref] = ()
    accounts: int = 0


class Removal(Struct, frozen=True, kw_only=True):
    """The steps of an uninstall, and lines for display."""

    steps: tuple[Step, ...]
    goes: tuple[str, ...]
    stays: tuple[str, ...]


def plan_removal(present: Present, *, delete_data: bool) -> Removal:
    """Safe to stop after any step: planning again on the rest finishes the removal."""
    removed = [ref for ref in present.written if not _is_kept(ref, present, delete_data)]
    return Removal(
        steps=(
            *(Delete(ref) for ref in removed if ref.kind in REGISTRATIONS),
            *(Delete(ref) for ref in removed if ref.kind == "Deployment"),
            AwaitServices(),
            *(Delete(_pod_ref(pod)) for pod in _replaceable(present)),
            *_lifted(present.pods),
            *_released((*present.ours, *present.pods)),
            *(_data(present) if delete_data else ()),
            *(Delete(_pod_ref(pod)) for pod in present.pods if _is_reservation(pod)),
            *_rest(removed),
        ),
        goes=tuple(_goes(present, removed, delete_data)),
        stays=tuple(_stays(present, delete_data)),
    )


def _is_kept(ref: Ref, present: Present, delete_data: bool) -> bool:
    if ref.kind == "PriorityClass":
        return bool(present.class_users.get(ref.name))
    if delete_data:
        return False
    return (
        ref.kind in ("CustomResourceDefinition", "Namespace", "PersistentVolumeClaim", "Secret")
        or ref.name == RECORD_CONFIGMAP
    )


def _lifted(pods: Iterable[Obj]) -> Iterator[LiftGates]:
    for pod in pods:
        gates = tuple(gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
        if LIFTED_GATES.intersection(gates) and not is_deleting(pod):
            left = tuple(gate for gate in gates if gate not in LIFTED_GATES)
            yield LiftGates(pod["metadata"]["namespace"], pod["metadata"]["name"], left)


def _unscheduled(present: Present) -> list[Obj]:
    """Pods that wait for the second scheduler, which is removed. The scheduler of a pod cannot be changed."""
    if not any(ref.kind == "Deployment" and ref.name == SCHEDULER_NAME for ref in present.written):
        return []
    return [
        pod
        for pod in present.pods
        if (pod.get("spec") or {}).get("schedulerName") == SCHEDULER_NAME
        and not pod["spec"].get("nodeName")
        and not is_deleting(pod)
        and not _is_reservation(pod)
    ]


def _replaceable(present: Present) -> list[Obj]:
    """Those that their controllers create again, for the cluster's own scheduler."""
    return [pod for pod in _unscheduled(present) if _has_controller(pod)]


def _has_controller(pod: Obj) -> bool:
    return any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or ())


def _released(objects: Iterable[Obj]) -> Iterator[Release]:
    for obj in objects:
        finalizers = obj["metadata"].get("finalizers") or ()
        if FINALIZERS.intersection(finalizers):
            yield Release(Ref.of(obj), tuple(name for name in finalizers if name not in FINALIZERS))


def _data(present: Present) -> Iterator[Step]:
    """Objects of our kinds, and the objects that they have created elsewhere."""
    yield from (CleanNode(node["metadata"]["name"]) for node in present.nodes if _is_marked(node))
    yield from (Delete(ref) for ref in present.shared)
    yield from (Delete(Ref.of(obj)) for obj in present.ours)
    yield from (Delete(ref) for ref in present.admin_bindings)


def _rest(removed: Sequence[Ref]) -> Iterator[Delete]:
    """Definitions and namespaces last, because they contain all others."""
    late = ("CustomResourceDefinition", "Namespace")
    done = (*REGISTRATIONS, "Deployment")
    yield from (Delete(ref) for ref in removed if ref.kind not in (*late, *done))
    yield from (Delete(ref) for kind in late for ref in removed if ref.kind == kind)


def _is_marked(node: Obj) -> bool:
    return MACHINE_POOL_ANNOTATION in annotations_of(node)


def _is_reservation(pod: Obj) -> bool:
    return pod["metadata"].get("namespace") == SYSTEM_NAMESPACE and RESERVATION_LABEL in labels_of(pod)


def _pod_ref(pod: Obj) -> Ref:
    return Ref("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])


# --- words


def _goes(present: Present, removed: Sequence[Ref], delete_data: bool) -> Iterator[str]:
    kinds = {ref.kind for ref in removed}
    if kinds.intersection(REGISTRATIONS):
        yield "the webhook: pods and Jobs are no longer checked, and owners are no longer set"
    services = sorted(ref.name for ref in removed if ref.kind == "Deployment")
    if services:
        yield f"services: {', '.join(services)}"
    if kinds.intersection(("ClusterRole", "ClusterRoleBinding")):
        yield "rights of the services, and rights of tenants' members in their namespaces"
    others = [ref for ref in removed if ref.kind not in _NAMED_APART and not (delete_data and ref.kind in _DATA)]
    if others:
        yield f"{len(others)} objects that they need: accounts of services, configuration, network"
    if lifted := list(_lifted(present.pods)):
        pods = _named(f"{step.namespace}/{step.name}" for step in lifted)
        yield f"scheduling gates of {pods}: these pods may start"
    if replaceable := _replaceable(present):
        pods = _named(_pod_name(pod) for pod in replaceable)
        yield f"pods {pods}, which wait for the second scheduler: their controllers create them again"
    if released := list(_released((*present.ours, *present.pods))):
        yield f"our finalizers on {_named(f'{step.ref}' for step in released)}: later deletions are not blocked"
    if places := [pod for pod in present.pods if _is_reservation(pod)]:
        yield f"pods that hold places of machines: {len(places)}"
    if delete_data:
        yield from _data_goes(present, removed)


_NAMED_APART = frozenset({*REGISTRATIONS, "Deployment", "ClusterRole", "ClusterRoleBinding"})
_DATA = frozenset({"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim", "Secret"})


def _data_goes(present: Present, removed: Sequence[Ref]) -> Iterator[str]:
    counts = _counts(present.ours)
    if counts:
        yield f"DATA: {counts}, with the volumes of datasets"
    owning = [
        str((obj.get("spec") or {}).get("namespace") or obj["metadata"]["name"])
        for obj in present.ours
        if obj["kind"] == "Tenant" and (obj.get("spec") or {}).get("onDelete") == "Delete"
    ]
    if owning:
        yield f"DATA: namespaces of tenants with onDelete: Delete, and all in them: {_named(owning)}"
    if present.shared:
        yield f"DATA: {_named(map(str, present.shared))}, which share datasets"
    if present.accounts:
        yield f"DATA: accounts, with passwords and rights: {present.accounts}"
    if any(ref.name == USAGE_CLAIM for ref in removed):
        yield f"DATA: volume {SYSTEM_NAMESPACE}/{USAGE_CLAIM}: GPU history, stored logs, map results, audit log"
    if nodes := [node["metadata"]["name"] for node in present.nodes if _is_marked(node)]:
        yield f"labels and taints of machines on nodes {_named(nodes)}"


def _stays(present: Present, delete_data: bool) -> Iterator[str]:
    yield "runs, volumes and workspaces' homes of users; running pods are not touched"
    if not delete_data:
        counts = _counts(present.ours)
        yield "the kinds of moorage.dev" + (f": {counts}" if counts else "")
        yield f"accounts in {PEOPLE_NAMESPACE}: {present.accounts}; these users cannot log in meanwhile"
        if any(ref.name == USAGE_CLAIM for ref in present.written):
            yield f"volume {SYSTEM_NAMESPACE}/{USAGE_CLAIM}: GPU history, stored logs, map results, audit log"
        yield f"Secrets, templates and the values of this installation in {SYSTEM_NAMESPACE}"
        if nodes := [node["metadata"]["name"] for node in present.nodes if _is_marked(node)]:
            yield f"labels and taints of machines on nodes {_named(nodes)}"
    if stuck := [_pod_name(pod) for pod in _unscheduled(present) if not _has_controller(pod)]:
        yield f"pods {_named(stuck)}: they are not scheduled without the second scheduler; create them again"
    held = [
        _pod_name(pod)
        for pod in present.pods
        if any(gate["name"] == CONTAINER_GATE for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
    ]
    if held:
        yield f"containers that were created and not started: {_named(held)}; delete them with kubectl"
    for name, users in sorted(present.class_users.items()):
        if users:
            yield f"PriorityClass {name}: {_named(users)} could not create pods without it"


def _pod_name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _counts(objects: Iterable[Obj]) -> str:
    counts: dict[str, int] = {}
    for obj in objects:
        counts[obj["kind"]] = counts.get(obj["kind"], 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}"
