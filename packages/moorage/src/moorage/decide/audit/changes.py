"""A request to the Kubernetes API as an action of the audit log: `cancel run default/a1`, `cordon node gpu-1`.

The words are those of our server's entries, so `moorage.present.audit` makes sentences of both. Only names of
objects and of fields are taken from an object: no value of a field but the size of a volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from moorage.decide.runs.state import CANCELLED
from moorage.model.argo import GROUP as ARGO
from moorage.model.names import ENDED_ANNOTATION, GROUP, RUN_LABEL, SYSTEM_NAMESPACE
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.resources import Obj

# Kubernetes' own parts and ours. Their requests follow from users' requests, which are recorded.
COMPONENTS = (
    "system:node:",
    "system:kube-",
    "system:apiserver",
    "system:serviceaccount:kube-system:",
    f"system:serviceaccount:{SYSTEM_NAMESPACE}:",
)
NOUNS: Mapping[tuple[str, str], str] = {  # group and plural → the name that users know; nothing else is recorded
    ("", "pods"): "pod",
    ("", "nodes"): "node",
    ("", "namespaces"): "namespace",
    ("", "persistentvolumeclaims"): "volume",
    ("", "replicationcontrollers"): "replication controller",
    ("batch", "jobs"): "job",
    ("batch", "cronjobs"): "cron job",
    ("apps", "deployments"): "deployment",
    ("apps", "replicasets"): "replica set",
    ("apps", "statefulsets"): "stateful set",
    ("apps", "daemonsets"): "daemon set",
    (GROUP, "datasets"): "dataset",
    (GROUP, "guardrailpolicies"): "guardrail policy",
    (GROUP, "idlepolicies"): "idle policy",
    (GROUP, "budgets"): "budget",
    (GROUP, "machinenodepools"): "machine node pool",
    (GROUP, "machines"): "machine",
    (GROUP, "mapjobs"): "map",
    (GROUP, "reservations"): "reservation",
    (GROUP, "tenants"): "tenant",
    (GROUP, "volumebackups"): "volume backup",
    (GROUP, "workspaces"): "workspace",
    (ARGO, "cronworkflows"): "schedule",
    (ARGO, "workflows"): "workflow",
}
SUBRESOURCES = {
    "attach": "attach to",
    "eviction": "request eviction of",  # a disruption budget may refuse it after us
    "exec": "run a command in",
    "portforward": "forward a port of",
}
FIELDS_MAX = 3  # names of changed fields in one entry
NAME_MAX = 253  # characters of a name
FIELD_MAX = 40  # characters of a field's name
CLIENT_MAX = 63


class Change(Struct, frozen=True, kw_only=True):
    """The recorded part of the API server's admission request. `operation`: CREATE, UPDATE, DELETE or CONNECT."""

    operation: str
    group: str
    plural: str
    version: str = "v1"
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    obj: Obj | None = None
    old: Obj | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def is_recorded(username: str) -> bool:
    """Whether requests of this user are recorded: those of people and programs, not of the cluster's own parts."""
    return not username.startswith(COMPONENTS)


def target_of(change: Change) -> str:
    """The changed object, such as `run default/a1`; empty if it is not recorded.

    All Jobs of a run are the run.
    """
    noun = NOUNS.get((change.group, change.plural))
    obj = change.obj or change.old or {}
    name = _name(change)
    if noun is None or not name:
        return ""
    if change.plural == "jobs" and (run := labels_of(obj).get(RUN_LABEL) if obj.get("metadata") else ""):
        noun, name = "run", str(run)[:NAME_MAX]
    is_in_namespace = change.namespace and noun != "namespace"
    return f"{noun} {change.namespace}/{name}" if is_in_namespace else f"{noun} {name}"


def action_of(change: Change) -> str:
    """The action, such as `cancel run default/a1`; empty if nothing changes that is recorded."""
    if not (target := target_of(change)):
        return ""
    if change.subresource:
        verb = SUBRESOURCES.get(change.subresource)
        return f"{verb} {target}" if verb else ""
    match change.operation:
        case "CREATE":
            return f"{'start' if target.startswith('run ') else 'create'} {target}"
        case "DELETE":
            return f"delete {target}"
        case "UPDATE" if change.obj is not None and change.old is not None:
            return _update(change.plural, change.old, change.obj, target)
    return ""


def path_of(change: Change) -> str:
    """The path of the object in the Kubernetes API, in any requested version."""
    root = f"/apis/{change.group}/{change.version}" if change.group else f"/api/{change.version}"
    is_in_namespace = change.namespace and change.plural != "namespaces"
    parts = [root, *(("namespaces", change.namespace) if is_in_namespace else ()), change.plural, _name(change)]
    return "/".join([*parts, change.subresource] if change.subresource else parts)


def client_of(change: Change) -> str:
    """The program as it names itself, such as `kubectl` or `moor`; empty where the request does not name it.

    A deletion never does: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/delete-options/
    """
    manager = str(change.options.get("fieldManager") or "") or _new_manager(change.old, change.obj)
    return "kubectl" if manager.startswith("kubectl") else manager[:CLIENT_MAX]


def _name(change: Change) -> str:
    if change.name:
        return change.name[:NAME_MAX]
    for obj in (change.obj, change.old):
        meta = (obj or {}).get("metadata") or {}
        if name := meta.get("name") or meta.get("generateName"):
            return str(name)[:NAME_MAX]
    return ""


def _update(plural: str, old: Obj, new: Obj, target: str) -> str:
    old_spec, new_spec = _mapping(old.get("spec")), _mapping(new.get("spec"))
    changed = [key for key in sorted({*old_spec, *new_spec}) if old_spec.get(key) != new_spec.get(key)]
    match plural:
        case "nodes" if bool(old_spec.get("unschedulable")) != bool(new_spec.get("unschedulable")):
            return f"{'cordon' if new_spec.get('unschedulable') else 'uncordon'} {target}"
        case "jobs" if (ended := annotations_of(new).get(ENDED_ANNOTATION)) and ended.startswith(CANCELLED):
            # the Jobs of a run that is cancelled are suspended one by one; the mark on the first is the deed
            is_new = annotations_of(old).get(ENDED_ANNOTATION) != ended
            return f"cancel {target}" if is_new else ""
        case "jobs" if bool(old_spec.get("suspend")) != bool(new_spec.get("suspend")):
            return f"{'suspend' if new_spec.get('suspend') else 'resume'} {target}"
        case "workspaces" if old_spec.get("running", True) != new_spec.get("running", True):
            return f"{'start' if new_spec.get('running', True) else 'stop'} {target}"
        case "persistentvolumeclaims" if (size := _size(new_spec)) != _size(old_spec):
            return f"resize {target} to {size}"
    for key, read in (("labels", labels_of), ("annotations", annotations_of)):
        if read(old) != read(new):
            changed.append(key)
    if not changed:
        return ""
    names = [key[:FIELD_MAX] for key in changed[:FIELDS_MAX]]
    more = len(changed) - len(names)
    return f"change {', '.join(names)}{f' and {more} more' if more else ''} of {target}"


def _size(claim: Mapping[str, Any]) -> str:
    return str(_mapping(_mapping(claim.get("resources")).get("requests")).get("storage", ""))[:NAME_MAX]


def _new_manager(old: Obj | None, new: Obj | None) -> str:
    """The last field manager in `metadata.managedFields`.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/
    """
    before = _managers(old)
    fresh = [entry for entry in _managers(new) if entry not in before and not entry.get("subresource")]
    newest = max(fresh, key=lambda entry: str(entry.get("time") or ""), default={})
    return str(newest.get("manager") or "")


def _managers(obj: Obj | None) -> list[Mapping[str, Any]]:
    entries = _mapping((obj or {}).get("metadata")).get("managedFields") or []
    return [entry for entry in entries if isinstance(entry, dict)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
