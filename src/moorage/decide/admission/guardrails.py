"""What admission changes about a pod or a Job, what it refuses, and what it advises, by field path.

For runs (Jobs and pods that bear `moorage.dev/run`):

- R4: a container without a memory limit gets the tenant's default, so that its growth kills only itself.
- R5: requests equal limits for CPU and memory, so that its node never has to choose a victim.
- R6: no limit and no default? Then the Job must never be tried again: `backoffLimit: 0`, `restartPolicy: Never`.
- R7: pods without GPUs keep off GPU nodes, as long as there are others.

For everything before the webhook: the owner is who is asking, whatever the object says, and stays who it was.
Kubernetes' own controllers and our operator write objects on behalf of others, from templates stamped here
before, so from them the owner in the object stands. That is why whatever holds a pod template is stamped too.

Where a GuardrailPolicy holds, its rules (`moorage.decide.admission.rulebook`) are applied besides, to every kind
with a pod template, when it is made and when its template changes. What Kubernetes' controllers make from a
workload is not judged again, but for the replacements of pods that were killed for memory
(`moorage.decide.runs.killanswer`).

`admit` is what the mutating webhook does, `judge` what the validating one does: it sees the object that is about
to be stored, also where others changed it after us. Both are total: they never raise for an object that the API
server let through.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moorage.apimachinery.integers import INT32_MAX, integer_or, is_digits
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import NodeInfo
from moorage.decide.admission.amounts import same
from moorage.decide.admission.fields import at, mapping
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.gpufacts import Facts
from moorage.decide.admission.gpurules import keeping_off
from moorage.decide.admission.rulebook import judge_workload
from moorage.decide.admission.templates import GUARANTEED, JOBS, WORKLOADS, wants_gpu
from moorage.decide.runs.killanswer import Hold, Known, Raise, answer, give_more, hold
from moorage.decide.runs.memorykills import is_gated, rule_of
from moorage.model.names import (
    ATTEMPT_LABEL,
    EXPECTED_SECONDS_ANNOTATION,
    GPU_PRESENT_LABEL,
    GPU_TYPE_LABELS,
    MACHINE_TYPE_LABEL,
    MEMORY_DEFAULTED_ANNOTATION,
    MEMORY_GATE,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUN_NAME_MAX,
    SYSTEM_NAMESPACE,
    TIME_LIMIT_ANNOTATION,
    attempt_name,
    is_dns_label,
    label_value,
)
from moorage.model.policy import Policy
from moorage.model.tenant import TenantDefaults

_CHANGED_OF_PODS = (
    "containers",
    "initContainers",
    "affinity",
    "activeDeadlineSeconds",
    "restartPolicy",
    "schedulingGates",
)
_CHANGED_OF_JOBS = ("backoffLimit", "podFailurePolicy")
_NOTHING: tuple[Any, ...] = (None, {}, [], "")

OPERATOR = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-operator"
MASTERS = "system:masters"

_COPYING_USERS = (OPERATOR, "system:kube-controller-manager", "system:kube-scheduler", "system:apiserver")
_COPYING_PREFIXES = (
    "system:node:",  # mirror pods
    "system:serviceaccount:kube-system:",  # where Kubernetes' own controllers live
)

# kind → where the metadata of its templates is; their pods are made from these, or bear its owner
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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One admission request, and what of the cluster it is judged by."""

    kind: str  # one of TEMPLATES
    operation: str  # CREATE or UPDATE
    user: str
    groups: tuple[str, ...] = ()
    obj: Obj
    old: Obj | None = None  # on UPDATE: the object as stored
    defaults: TenantDefaults = field(default_factory=TenantDefaults)
    restart_limit_max: int | None = None  # the tenant's; None: no cap of its own
    away_from_gpus: tuple[Obj, ...] = ()  # see `away_from_gpus`; empty: there is no other place to run
    policy: Policy | None = None  # None: no GuardrailPolicy holds in the namespace
    facts: Facts | None = None  # of the cluster's GPUs
    known: Known | None = None  # kills for memory of the pods that this one may stand for; None: there are none

    @property
    def is_copy(self) -> bool:
        """Whether this user writes on behalf of others: the owner then stands in the object.

        An administrator counts only with what another object owns: a control plane may run under such a name.
        """
        if self.user in _COPYING_USERS or self.user.startswith(_COPYING_PREFIXES):
            return True
        return MASTERS in self.groups and bool((self.obj.get("metadata") or {}).get("ownerReferences"))

    @property
    def is_judged_already(self) -> bool:
        """Whether it is made from a Job that stood here before: its pods, and the next attempts of a run."""
        return self.is_copy and (self.kind == "Pod" or self.user == OPERATOR or MASTERS in self.groups)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that must not stand. `value` is what was found, as text; empty: nothing was."""

    field: str
    value: str
    message: str

    def __str__(self) -> str:
        found = f" (found {self.value})" if self.value else ""
        return f"{self.field}: {self.message}{found}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every refusal at once; with none, `patches` (RFC 6902) make the object what it should be."""

    patches: tuple[Obj, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """The object in the making, and what is to be said about it."""

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
        """Whether the guardrails of runs hold for it; taking the label off does not take them off."""
        if self.request.kind not in ("Job", "Pod"):
            return False
        return any(at(one, ("metadata", "labels", RUN_LABEL)) is not None for one in (self.obj, self.request.old))

    def containers(self) -> Iterator[tuple[str, Obj]]:
        """Every container, with its field path."""
        for table in ("initContainers", "containers"):
            for index, container in enumerate(self.pod_spec.get(table) or ()):
                yield f"{self.prefix}.{table}[{index}]", container

    def unlimited(self) -> list[str]:
        """Field paths of the containers without a memory limit; none when the pod has one as a whole."""
        if at(self.pod_spec, ("resources", "limits", "memory")):
            return []
        return [path for path, one in self.containers() if not at(one, ("resources", "limits", "memory"))]


def admit(request: Request) -> Verdict:
    """Fill in, stamp, and refuse. Admitting the patched object again gives no patch and the same refusals."""
    draft = _draft(request)
    _stamp(draft)
    if draft.is_run and not _is_deleting(request.obj):
        if request.operation == "CREATE":
            _complete_run(draft)
        elif not request.is_copy:
            _cap_restarts(draft)
        _check_run(draft)
    elif request.operation == "CREATE" and not request.is_copy and request.policy is None:
        _advise(draft)
    _apply_policy(draft, fill=True)
    _answer_kills(draft)
    if draft.refusals:
        return Verdict((), tuple(draft.refusals), ())  # what would have been changed is of no interest then
    return Verdict(_differences(request.obj, draft.obj, request.kind), (), tuple(draft.warnings))


def judge(request: Request) -> Verdict:
    """Refuse what must not be stored; nothing is changed. What was wrong before an update does not hinder it."""
    draft = _draft(request)
    for path, where, table, key, wanted in _owners(request):
        found = at(draft.obj, (*path, table, key))
        if found is not None and found != wanted:
            said = "nobody's" if wanted is None else repr(wanted)
            allowed = f"must be {said}: the owner is who made the object, and is set by Moorage"
            draft.refusals.append(Refusal(f"{where}.{table}[{key}]", repr(found), allowed))
    if draft.is_run and not _is_deleting(request.obj):
        _check_run(draft)
    _apply_policy(draft, fill=False)
    return Verdict((), tuple(draft.refusals), ())


def away_from_gpus(nodes: Iterable[NodeInfo]) -> tuple[Obj, ...]:
    """The label expressions that keep a pod off nodes with GPUs and let it onto others; R7.

    Empty when there is no other place: a node that is cordoned or tainted by somebody is none for ordinary pods
    (taints of its own health, `node.kubernetes.io/…`, come and go and do not count).
    """
    known = list(nodes)
    with_gpus = [node for node in known if node.gpus]
    without = gpu_free(known)
    if not without:
        return ()
    expressions: list[Obj] = [{"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}]
    for key in GPU_TYPE_LABELS:
        if any(node.labels.get(key) for node in with_gpus) and not any(key in node.labels for node in without):
            expressions.append({"key": key, "operator": "DoesNotExist"})
    return tuple(expressions)


def gpu_free(nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """The nodes on which a pod that keeps off GPUs may run."""
    return [
        node
        for node in nodes
        if not node.gpus and not _is_shut(node) and node.labels.get(GPU_PRESENT_LABEL) != "true"
    ]


def _is_shut(node: NodeInfo) -> bool:
    return node.unschedulable or any(
        taint.effect in ("NoSchedule", "NoExecute") and not taint.key.startswith("node.kubernetes.io/")
        for taint in node.taints
    )


def _is_deleting(obj: Mapping[str, Any]) -> bool:
    """Its finalizers must be free to go, whatever else is wrong with it."""
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def _draft(request: Request) -> _Draft:
    draft = _Draft(request, msgspec.json.decode(msgspec.json.encode(request.obj)))
    draft.obj["metadata"] = draft.obj.get("metadata") or {}
    return draft


# --- the owner


def _owners(request: Request) -> Iterator[tuple[tuple[str, ...], str, str, str, str | None]]:
    """Where owners stand and who they must be: path of the metadata, its name, table, key, value (None: nobody).

    Nothing for those who write on behalf of others.
    """
    if request.is_copy:
        return
    for path in (("metadata",), *TEMPLATES.get(request.kind, ())):
        where = ".".join(path)
        for table, key, mine in (
            ("labels", OWNER_LABEL, label_value(request.user)),
            ("annotations", OWNER_ANNOTATION, request.user),
        ):
            if request.operation == "CREATE" or request.old is None:
                yield path, where, table, key, mine
            else:
                old = at(request.old, (*path, table, key))
                yield path, where, table, key, None if old is None else str(old)


def _stamp(draft: _Draft) -> None:
    """Neither given away nor taken: a new object is the asker's, and an old one stays whose it was."""
    told = False
    for path, where, table, key, wanted in _owners(draft.request):
        meta = draft.obj
        for step in path:
            meta = _table(meta, step)
        found = (meta.get(table) or {}).get(key)
        if found is not None and found != wanted and not told:
            told = True
            owner = "left as it was" if draft.request.operation == "UPDATE" else f"set to {draft.request.user}"
            draft.warnings.append(f"{where}.{table}[{key}]: {found!r} is not yours to give; {owner}")
        _put(meta, table, key, wanted)


def _put(meta: Obj, table: str, key: str, value: str | None) -> None:
    """Set or remove one label or annotation, leaving no empty table behind that was not there."""
    entries = dict(meta.get(table) or {})
    if value is None:
        if key not in entries:
            return
        del entries[key]
    else:
        entries[key] = value
    meta[table] = entries


# --- runs


def _complete_run(draft: _Draft) -> None:
    """R4, R5, R7 and the tenant's limits, for what was not judged before."""
    if not draft.request.is_judged_already:
        forgone = _forgoes_memory(draft)
        for where, container in draft.containers():
            _fill_in(draft, container, fill_memory=not forgone)
            if draft.request.kind == "Job":
                _equalise(draft, container, where)
        _limit_time(draft)
        _cap_restarts(draft)
    _keep_off_gpu_nodes(draft)


def _check_run(draft: _Draft) -> None:
    """What must hold of a run when it is stored."""
    request = draft.request
    if request.is_judged_already:
        return
    found = _Draft(request, draft.obj)
    _check_name(found)
    _never_again_without_limit(found)
    if request.operation == "UPDATE" and request.old is not None:
        before = _draft(Request(kind=request.kind, operation="CREATE", user=request.user, obj=request.old))
        _check_name(before)
        _never_again_without_limit(before)
        known = {one.field for one in before.refusals}
        found.refusals = [one for one in found.refusals if one.field not in known]
    draft.refusals += found.refusals


def _check_name(draft: _Draft) -> None:
    meta = draft.obj["metadata"]
    labels = meta.get("labels") or {}
    if draft.request.kind != "Job" or RUN_LABEL not in labels:
        return
    run, number = labels[RUN_LABEL], labels.get(ATTEMPT_LABEL, "1")
    if not is_dns_label(run) or len(run) > RUN_NAME_MAX:
        allowed = f"at most {RUN_NAME_MAX} of a-z, 0-9 and '-', so that its attempts can be named after it"
        draft.refusals.append(Refusal(f"metadata.labels[{RUN_LABEL}]", repr(run), allowed))
    elif not is_digits(number) or not integer_or(number, 0, maximum=INT32_MAX):
        said = "must be a whole number from 1"
        draft.refusals.append(Refusal(f"metadata.labels[{ATTEMPT_LABEL}]", repr(number), said))
    elif meta.get("name") != attempt_name(run, int(number)):
        said = f"attempt {number} of run {run} must be named {attempt_name(run, int(number))}"
        draft.refusals.append(Refusal("metadata.name", repr(meta.get("name") or meta.get("generateName")), said))


def _forgoes_memory(draft: _Draft) -> bool:
    """Whether going without a limit was chosen, by never being tried again; or the pod as a whole has one."""
    if at(draft.pod_spec, ("resources", "limits", "memory")):
        return True
    notes = draft.obj["metadata"].get("annotations") or {}
    return (
        draft.request.kind == "Job" and notes.get(RESTART_LIMIT_ANNOTATION) == "0" and _is_never_tried_again(draft)
    )


def _is_never_tried_again(draft: _Draft) -> bool:
    never = draft.pod_spec.get("restartPolicy") == "Never"
    return never and (draft.request.kind == "Pod" or draft.obj["spec"].get("backoffLimit") == 0)


def _fill_in(draft: _Draft, container: Obj, *, fill_memory: bool) -> None:
    """R4, and the CPU that R5 needs: the tenant's defaults (else a policy's) where nothing was asked for.

    A memory limit that `moor run` filled in for somebody who may not read Tenants gives way to the tenant's own.
    """
    defaults, whose = draft.request.defaults, "the tenant's"
    memory, cpu = defaults.memory, defaults.cpu
    if memory is None and (memory := _policy_default(draft.request, "memoryLimit", "default")) is not None:
        whose = "the policy's"
    if cpu is None:
        cpu = _policy_default(draft.request, "resourceRequests", "cpu")
    for resource, default in (("memory", memory if fill_memory else None), ("cpu", cpu)):
        if default is None:
            continue
        limit, request = (at(container, ("resources", table, resource)) for table in ("limits", "requests"))
        if limit is not None or request is not None:
            guessed = resource == "memory" and _memory_was_defaulted(draft)
            if not guessed or same(resource, limit, default):
                continue
        _set_resource(container, "limits", resource, str(default))
        _set_resource(container, "requests", resource, str(default))
        if resource == "memory":
            _put(draft.obj["metadata"], "annotations", MEMORY_DEFAULTED_ANNOTATION, "true")
            draft.warnings.append(f"no memory limit given: limited to {default}, {whose} default")


def _policy_default(request: Request, rule: str, parameter: str) -> str | None:
    """What a policy would fill in; a run gets it in its tenant's stead, before it is judged."""
    if request.policy is None or request.policy.level(rule, "off") != "fill":
        return None
    found = request.policy.rules[rule].get(parameter)
    return None if found is None else str(found)


def _memory_was_defaulted(draft: _Draft) -> bool:
    """The annotation speaks of the one container that `moor run` makes; among several it tells nothing of each."""
    notes = draft.obj["metadata"].get("annotations") or {}
    alone = sum(1 for _ in draft.containers()) == 1
    return draft.request.kind == "Job" and alone and notes.get(MEMORY_DEFAULTED_ANNOTATION) == "true"


def _equalise(draft: _Draft, container: Obj, where: str) -> None:
    """R5. A request below its limit is raised to it; a lone request becomes the limit too."""
    for resource in GUARANTEED:
        resources = container.get("resources") or {}
        limit = (resources.get("limits") or {}).get(resource)
        request = (resources.get("requests") or {}).get(resource)
        if limit is None and request is None:
            continue
        if limit is None:
            _set_resource(container, "limits", resource, request)
            draft.warnings.append(f"{where}.resources.limits.{resource}: set to the request, {request}")
        elif request is None or not same(resource, limit, request):
            _set_resource(container, "requests", resource, limit)
            if request is not None:
                was = f"raised from {request} to the limit, {limit}"
                draft.warnings.append(f"{where}.resources.requests.{resource}: {was}")


def _never_again_without_limit(draft: _Draft) -> None:
    """R6."""
    unlimited = draft.unlimited()
    if not unlimited or _is_never_tried_again(draft):
        return
    for path in unlimited:
        allowed = "a run needs a memory limit such as 8Gi, or backoffLimit 0 and restartPolicy Never"
        draft.refusals.append(Refusal(f"{path}.resources.limits.memory", "", allowed))
    policy = draft.pod_spec.get("restartPolicy")
    if policy != "Never":
        said = "must be Never for a run without a memory limit"
        draft.refusals.append(Refusal(f"{draft.prefix}.restartPolicy", str(policy or "Always"), said))
    if draft.request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
        said = "must be 0 for a run without a memory limit"
        draft.refusals.append(Refusal("spec.backoffLimit", str(draft.obj["spec"].get("backoffLimit", 6)), said))


def _keep_off_gpu_nodes(draft: _Draft) -> None:
    """R7. Left alone where the pod speaks of GPU nodes itself, in whatever way."""
    spec, away = draft.pod_spec, draft.request.away_from_gpus
    if not away or wants_gpu(one for _, one in draft.containers()) or _speaks_of_gpu_nodes(spec):
        return
    kept_off = keeping_off(at(spec, ("affinity", "nodeAffinity")), away)
    spec["affinity"] = {**mapping(spec.get("affinity")), "nodeAffinity": kept_off}


def _speaks_of_gpu_nodes(spec: Mapping[str, Any]) -> bool:
    if spec.get("nodeName"):
        return True
    keys = {GPU_PRESENT_LABEL, *GPU_TYPE_LABELS}
    if keys & set(spec.get("nodeSelector") or ()):
        return True
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return any(
        one.get("key") in keys
        for term in required.get("nodeSelectorTerms") or ()
        for one in term.get("matchExpressions") or ()
    )


def _limit_time(draft: _Draft) -> None:
    """The tenant's time limit, where the run has none."""
    seconds, spec = draft.request.defaults.time_seconds, draft.pod_spec
    if seconds is None or draft.request.kind != "Job" or spec.get("activeDeadlineSeconds"):
        return
    if draft.obj["spec"].get("activeDeadlineSeconds"):
        return
    spec["activeDeadlineSeconds"] = seconds
    for key in (TIME_LIMIT_ANNOTATION, EXPECTED_SECONDS_ANNOTATION):
        _put(draft.obj["metadata"], "annotations", key, str(seconds))
    draft.warnings.append(f"no time limit given: limited to {seconds} s, the tenant's default")


def _cap_restarts(draft: _Draft) -> None:
    """The tenant's limit of restarts, where the run names none or more; without a memory limit none (R6)."""
    if draft.request.kind != "Job":
        return
    unlimited = bool(draft.unlimited())
    most = 0 if unlimited else draft.request.restart_limit_max
    text = at(draft.obj, ("metadata", "annotations", RESTART_LIMIT_ANNOTATION))
    asked = integer_or(text, RESTART_LIMIT)
    if most is None or asked <= most:
        return
    _put(draft.obj["metadata"], "annotations", RESTART_LIMIT_ANNOTATION, str(most))
    if unlimited:
        draft.warnings.append("no memory limit given: this run is never started again, whatever ends it")
    else:
        draft.warnings.append(f"started again after disruptions at most {most} times, the tenant's limit")


# --- policies


def _apply_policy(draft: _Draft, *, fill: bool) -> None:
    """The rules of a GuardrailPolicy; an update is held to them where it changes a template, for what is new only.

    Templates of Pods and Jobs cannot change, and one that was not touched is left as it is: to fill it in would
    start every pod of it anew.
    """
    request = draft.request
    if request.policy is None or request.is_copy or _is_deleting(request.obj) or request.kind not in WORKLOADS:
        return
    known: set[tuple[str, str]] = set()
    if request.operation == "UPDATE" and request.old is not None:
        where = WORKLOADS[request.kind][:-1] if request.kind == "CronJob" else WORKLOADS[request.kind]
        if request.kind in ("Pod", "Job") or at(request.obj, where) == at(request.old, where):
            return
        before = judge_workload(
            request.kind, request.old, request.policy, facts=request.facts, away=request.away_from_gpus
        )
        known = {(one.rule, one.field) for one in before.denied}
    found = judge_workload(
        request.kind, draft.obj, request.policy, facts=request.facts, away=request.away_from_gpus, fill=fill
    )
    draft.obj = found.obj
    told = {one.field for one in draft.refusals}
    for one in found.denied:
        if (one.rule, one.field) not in known and one.field not in told:
            draft.refusals.append(_refusal(one))
    draft.warnings += [f"{one} ({one.rule})" for one in found.filled]
    draft.warnings += [f"{one} ({one.rule})" for one in found.warned]


def _answer_kills(draft: _Draft) -> None:
    """The replacement of a pod that was killed for memory gets more of it, or waits behind a gate."""
    request = draft.request
    if request.known is None or request.kind != "Pod" or request.operation != "CREATE" or is_gated(draft.obj):
        return
    # a machine's guest has what its machine has
    found = answer(draft.obj, request.known, rule_of(request.policy), may_raise=not _is_guest(draft.obj))
    match found:
        case Hold(kill):
            hold(draft.obj, kill)
            draft.warnings.append(f"held behind the gate {MEMORY_GATE}: {kill} (restartBomb)")
        case Raise():
            draft.warnings.append(f"{give_more(draft.obj, found)} (restartBomb)")


def _is_guest(pod: Mapping[str, Any]) -> bool:
    return MACHINE_TYPE_LABEL in ((pod.get("metadata") or {}).get("labels") or {})


def _refusal(one: Finding) -> Refusal:
    return Refusal(one.field, one.value, f"{one.message} (guardrail {one.rule})")


# --- everything else


def _advise(draft: _Draft) -> None:
    """For Jobs and pods that are no runs: nothing is refused, the risks are said (R4, R6)."""
    if draft.request.kind not in ("Job", "Pod"):
        return
    for path in draft.unlimited():
        where = f"{path}.resources.limits.memory"
        if draft.request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
            said = "is not set: growing without a limit, and tried again, this Job can take one node after another"
        else:
            said = "is not set: growing without a limit it can take its neighbours down with it"
        draft.warnings.append(f"{where} {said}")


# --- patches


def _differences(before: Obj, after: Obj, kind: str) -> tuple[Obj, ...]:
    """Whole tables are set where they differ; their parents exist in every object the API server admits."""
    paths: list[tuple[str, ...]] = [("metadata", "labels"), ("metadata", "annotations")]
    paths += TEMPLATES.get(kind, ())
    if kind in WORKLOADS:
        template = tuple(map(str, WORKLOADS[kind]))
        paths += [(*template, "spec", key) for key in _CHANGED_OF_PODS]
        if kind in JOBS:
            paths += [(*template[:-1], key) for key in _CHANGED_OF_JOBS]
    found = []
    for path in paths:
        old, new = at(before, path), at(after, path)
        if old != new and not (old in _NOTHING and new in _NOTHING):
            found.append({"op": "add", "path": "/" + "/".join(path), "value": new})
    return tuple(found)


def _table(obj: Obj, key: str) -> Obj:
    """The mapping at a key, made where it is missing or null."""
    if not obj.get(key):
        obj[key] = {}
    found: Obj = obj[key]
    return found


def _set_resource(container: Obj, table: str, resource: str, value: Any) -> None:
    _table(_table(container, "resources"), table)[resource] = value
