"""One admission request, its verdict, and the draft between both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from moorage.decide.admission.fields import at, field_of
from moorage.decide.admission.gpufacts import Facts
from moorage.decide.admission.templates import is_guest, templates_of
from moorage.decide.runs.killanswer import Known
from moorage.model.argo import WORKFLOW_LABEL
from moorage.model.budget import Budget
from moorage.model.machine import Pool
from moorage.model.names import RUN_LABEL, SYSTEM_NAMESPACE
from moorage.model.policy import Policy
from moorage.model.tenant import TenantDefaults
from moorage_kube.resources import Obj

OPERATOR = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-operator"
SERVER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-server"
MASTERS = "system:masters"

_COPYING_USERS = (OPERATOR, "system:kube-controller-manager", "system:kube-scheduler", "system:apiserver")
NODE_USERS = "system:node:"  # they make mirror pods
_COPYING_PREFIXES = (
    NODE_USERS,
    "system:serviceaccount:kube-system:",  # where Kubernetes' own controllers live
)

_OF_WORKFLOW = ("metadata", "labels", WORKFLOW_LABEL)

# kind → path of the metadata of its templates; pods are created from these, or have its owner
TEMPLATES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Pod": (),
    "Job": (("spec", "template", "metadata"),),
    "CronJob": (("spec", "jobTemplate", "metadata"), ("spec", "jobTemplate", "spec", "template", "metadata")),
    "Deployment": (("spec", "template", "metadata"),),
    "ReplicaSet": (("spec", "template", "metadata"),),
    "StatefulSet": (("spec", "template", "metadata"),),
    "DaemonSet": (("spec", "template", "metadata"),),
    "ReplicationController": (("spec", "template", "metadata"),),
    "MapJob": (("spec", "template", "metadata"),),
    "Workspace": (),
    "Workflow": (),  # pods of its steps have its owner: the operator creates them
    "CronWorkflow": (),
    "Dataset": (),
    "VolumeBackup": (),
}


class Request(Struct, frozen=True, kw_only=True):
    """One admission request, and the state of the cluster that it is judged by."""

    kind: str  # one of TEMPLATES
    operation: str  # CREATE or UPDATE
    user: str
    groups: tuple[str, ...] = ()
    obj: Obj
    old: Obj | None = None  # on UPDATE: the object as stored
    defaults: TenantDefaults = field(default_factory=TenantDefaults)
    restart_limit_max: int | None = None  # the tenant's; None: it sets no cap
    away_from_gpus: tuple[Obj, ...] = ()  # see `away_from_gpus`; empty: there is no other place to run
    policy: Policy | None = None  # None: no GuardrailPolicy holds in the namespace
    facts: Facts | None = None  # of the cluster's GPUs
    known: Known | None = None  # kills for memory of the pods that this one may stand for; None: there are none
    pools: Mapping[str, Pool] | None = None  # the Machines, by group; None: not known, pods do not become guests
    gpu_machines: Collection[str] = ()  # names of the machine types, and groups of them, that have GPUs
    namespace: Mapping[str, Any] | None = None  # the Namespace; None: newer than the caller's copy
    tenant: Obj | None = None  # the Tenant whose namespace it is
    tenants: Sequence[Mapping[str, Any]] = ()  # all of them
    node_taints: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)  # node → key and value
    classes: Sequence[Mapping[str, Any]] = ()  # the PriorityClasses
    scheduler: str = ""  # the second scheduler's name; empty: there is none
    budgets: Sequence[Budget] = ()
    now: datetime | None = None  # for the budgets

    @property
    def is_copy(self) -> bool:
        """Whether this user writes on behalf of others: the owner is then read from the object.

        An administrator counts only for objects that have an owner reference: a control plane may use such a name.
        """
        if self.user in _COPYING_USERS or self.user.startswith(_COPYING_PREFIXES):
            return True
        return MASTERS in self.groups and bool((self.obj.get("metadata") or {}).get("ownerReferences"))

    @property
    def writes_marks(self) -> bool:
        """Whether this user may write our protected annotations.

        True for services, Kubernetes and administrators.
        """
        return self.is_copy or self.user == SERVER or MASTERS in self.groups

    @property
    def is_judged_already(self) -> bool:
        """Whether it comes from a Job that was judged before: its pods, and the next attempts of a run."""
        return self.is_copy and (self.kind == "Pod" or self.user == OPERATOR or MASTERS in self.groups)

    @property
    def is_mirror(self) -> bool:
        """Whether a node created it: a mirror pod from the configuration of the node."""
        return self.user.startswith(NODE_USERS)

    @property
    def is_step(self) -> bool:
        """Whether it is the pod of a workflow's step: its template was not judged before."""
        return self.kind == "Pod" and self.user == OPERATOR and at(self.obj, _OF_WORKFLOW) is not None


class Refusal(Struct, frozen=True):
    """A field with a forbidden value. `value`: the present value as text; empty if there is none."""

    field: str
    value: str
    message: str

    def __str__(self) -> str:
        shown = f" (found {self.value})" if self.value else ""
        return f"{self.field}: {self.message}{shown}"


class Verdict(Struct, frozen=True):
    """All refusals at once. If there are none, `patches` (RFC 6902) make the changes of admission."""

    patches: tuple[Obj, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()


class Draft(Struct):
    """The object during admission, with the refusals and warnings collected so far."""

    request: Request
    obj: Obj
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        return "spec.template.spec" if self.request.kind == "Job" else "spec"

    @property
    def pod_spec(self) -> Obj:
        spec: Obj = self.obj.setdefault("spec", {})
        if self.request.kind == "Job":
            template: Obj = spec.setdefault("template", {})
            spec = template.setdefault("spec", {})
        return spec

    @property
    def is_run(self) -> bool:
        """Whether the guardrails of runs apply. They still apply after the run label was removed."""
        if self.request.kind not in ("Job", "Pod"):
            return False
        return any(at(obj, ("metadata", "labels", RUN_LABEL)) is not None for obj in (self.obj, self.request.old))

    @property
    def is_guest(self) -> bool:
        """Whether the object or its pods are guests of a Machine, which sets their size and their nodes."""
        return is_guest(at(self.obj, ("spec", "template")) or {} if self.request.kind == "Job" else self.obj)

    def sized(self) -> Iterator[tuple[str, Obj]]:
        """The containers whose amounts the author sets: all but the one that gets the machine's resources."""
        for template in templates_of(self.request.kind, self.obj):
            yield from ((field_of(path), container) for path, container in template.sized)

    def apply(self, patches: Iterable[Obj]) -> None:
        """Apply JSON patches (RFC 6902: add, replace and remove of members)."""
        for patch in patches:
            *path, last = (step.replace("~1", "/").replace("~0", "~") for step in patch["path"][1:].split("/"))
            table: Any = self.obj
            for step in path:
                table = table[int(step)] if isinstance(table, list) else table.setdefault(step, {})
            if patch["op"] == "remove":
                table.pop(last, None)
            else:
                table[last] = patch["value"]

    def containers(self) -> Iterator[tuple[str, Obj]]:
        """Every container with its field path."""
        for table in ("initContainers", "containers"):
            for index, container in enumerate(self.pod_spec.get(table) or ()):
                yield f"{self.prefix}.{table}[{index}]", container

    def unlimited(self) -> list[str]:
        """Field paths of the containers without a memory limit. Empty if the pod itself has a memory limit."""
        return [
            field_of(path)
            for template in templates_of(self.request.kind, self.obj)
            for path in template.unlimited()
        ]


def is_deleting(obj: Mapping[str, Any]) -> bool:
    """Whether the object is being deleted: its finalizers must be removable, whether it is valid or not."""
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def make_draft(request: Request) -> Draft:
    draft = Draft(request, msgspec.json.decode(msgspec.json.encode(request.obj)))
    draft.obj["metadata"] = draft.obj.get("metadata") or {}
    return draft
