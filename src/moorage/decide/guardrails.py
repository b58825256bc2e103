"""What admission changes about a pod or a Job, what it refuses, and what it advises, by field path.

For runs (Jobs and pods that bear `moorage.dev/run`):

- R4: a container without a memory limit gets the tenant's default, so that its growth kills only itself.
- R5: requests equal limits for CPU and memory, so that its node never has to choose a victim.
- R6: no limit and no default? Then the Job must never be tried again: `backoffLimit: 0`, `restartPolicy: Never`.
- R7: pods without GPUs keep off GPU nodes, as long as there are others.

For every Job and pod before the webhook: the owner is who is asking, whatever the object says. Kubernetes' own
controllers and ours copy objects for others, so from them the owner in the object stands.

`admit` is total: it never raises for an object the API server let through.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.apimachinery.quantity import amount
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import is_gpu
from moorage.errors import QuantityError
from moorage.model.names import (
    ATTEMPT_LABEL,
    GPU_PRESENT_LABEL,
    GPU_TYPE_LABELS,
    MEMORY_DEFAULTED_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUN_NAME_MAX,
    SYSTEM_NAMESPACE,
    attempt_name,
    is_dns_label,
    label_value,
)
from moorage.model.tenant import TenantDefaults

GUARANTEED = ("cpu", "memory")  # the resources that decide the quality-of-service class

_COPYING_USERS = ("system:kube-controller-manager", "system:kube-scheduler", "system:apiserver")
_COPYING_PREFIXES = (
    "system:node:",  # mirror pods, and status
    "system:serviceaccount:kube-system:",  # where Kubernetes' own controllers live
    f"system:serviceaccount:{SYSTEM_NAMESPACE}:",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One admission request about a Job or a pod, and what of the cluster it is judged by."""

    kind: str  # Job or Pod
    operation: str  # CREATE or UPDATE
    user: str
    obj: Obj
    old: Obj | None = None  # on UPDATE: the object as stored
    defaults: TenantDefaults = field(default_factory=TenantDefaults)
    restart_limit_max: int | None = None  # the tenant's; None: no cap of its own
    has_gpu_free_nodes: bool = False  # whether keeping off GPU nodes leaves a place to run


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
        return RUN_LABEL in ((self.obj.get("metadata") or {}).get("labels") or {})


def admit(request: Request) -> Verdict:
    """Judge one request. Judging the patched object again gives no patch and the same refusals."""
    draft = _Draft(request, json.loads(json.dumps(request.obj)))
    draft.obj["metadata"] = draft.obj.get("metadata") or {}
    _stamp(draft)
    if request.operation == "CREATE":
        if draft.is_run:
            _guard_run(draft)
        elif not is_copying(request.user):
            _advise(draft)
    if draft.refusals:
        return Verdict((), tuple(draft.refusals), tuple(draft.warnings))
    return Verdict(_differences(request.obj, draft.obj, request.kind), (), tuple(draft.warnings))


def is_copying(user: str) -> bool:
    """Whether this user writes objects on behalf of others: the owner then stands in the object."""
    return user in _COPYING_USERS or user.startswith(_COPYING_PREFIXES)


# --- the owner


def _stamp(draft: _Draft) -> None:
    request = draft.request
    if request.operation == "UPDATE" and request.old is not None:
        if not is_copying(request.user):
            # neither given away nor taken: the owner stays who it was; the pod template of a Job cannot change
            old = request.old.get("metadata") or {}
            _put(draft.obj["metadata"], "labels", OWNER_LABEL, (old.get("labels") or {}).get(OWNER_LABEL))
            notes = old.get("annotations") or {}
            _put(draft.obj["metadata"], "annotations", OWNER_ANNOTATION, notes.get(OWNER_ANNOTATION))
        return
    if is_copying(request.user):
        return
    metas = [draft.obj["metadata"]]
    if request.kind == "Job":
        template = draft.obj.setdefault("spec", {}).setdefault("template", {})
        template["metadata"] = template.get("metadata") or {}
        metas.append(template["metadata"])
    for meta in metas:
        _put(meta, "labels", OWNER_LABEL, label_value(request.user))
        _put(meta, "annotations", OWNER_ANNOTATION, request.user)


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


def _guard_run(draft: _Draft) -> None:
    spec = draft.pod_spec
    _check_name(draft)
    forgone = _forgoes_memory(draft)
    for index, container in enumerate(spec.get("containers") or ()):
        where = f"{draft.prefix}.containers[{index}]"
        _fill_in(draft, container, fill_memory=not forgone)
        _equalise(draft, container, where)
    for index, container in enumerate(spec.get("initContainers") or ()):
        _equalise(draft, container, f"{draft.prefix}.initContainers[{index}]")
    _never_again_without_limit(draft)
    _keep_off_gpu_nodes(draft)
    _cap_restarts(draft)


def _check_name(draft: _Draft) -> None:
    if draft.request.kind != "Job":
        return
    meta = draft.obj["metadata"]
    run, number = meta["labels"][RUN_LABEL], meta["labels"].get(ATTEMPT_LABEL, "1")
    if not is_dns_label(run) or len(run) > RUN_NAME_MAX:
        allowed = f"at most {RUN_NAME_MAX} of a-z, 0-9 and '-', so that its attempts can be named after it"
        draft.refusals.append(Refusal(f"metadata.labels[{RUN_LABEL}]", repr(run), allowed))
    elif not number.isascii() or not number.isdigit() or int(number) < 1:
        said = "must be a whole number from 1"
        draft.refusals.append(Refusal(f"metadata.labels[{ATTEMPT_LABEL}]", repr(number), said))
    elif meta.get("name") != attempt_name(run, int(number)):
        said = f"attempt {number} of run {run} must be named {attempt_name(run, int(number))}"
        draft.refusals.append(Refusal("metadata.name", repr(meta.get("name") or meta.get("generateName")), said))


def _forgoes_memory(draft: _Draft) -> bool:
    """Whether going without a limit was chosen: never tried again, and never started again either."""
    notes = draft.obj["metadata"].get("annotations") or {}
    if draft.request.kind == "Pod":
        return True  # its Job was judged; a lone pod is judged below
    return notes.get(RESTART_LIMIT_ANNOTATION) == "0" and _is_never_tried_again(draft)


def _is_never_tried_again(draft: _Draft) -> bool:
    never = draft.pod_spec.get("restartPolicy") == "Never"
    return never and (draft.request.kind == "Pod" or draft.obj["spec"].get("backoffLimit") == 0)


def _fill_in(draft: _Draft, container: Obj, *, fill_memory: bool) -> None:
    """R4, and the CPU that R5 needs: the tenant's defaults where the container says nothing."""
    defaults = draft.request.defaults
    for resource, default in (("memory", defaults.memory if fill_memory else None), ("cpu", defaults.cpu)):
        resources = container.get("resources") or {}
        known = (resources.get("limits") or {}).get(resource) or (resources.get("requests") or {}).get(resource)
        if known is not None or default is None:
            continue
        _set_resource(container, "limits", resource, str(default))
        _set_resource(container, "requests", resource, str(default))
        if resource == "memory":
            _put(draft.obj["metadata"], "annotations", MEMORY_DEFAULTED_ANNOTATION, "true")
            draft.warnings.append(f"no memory limit given: limited to {default}, the tenant's default")


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
        elif request is None or not _same(resource, limit, request):
            _set_resource(container, "requests", resource, limit)
            if request is not None:
                was = f"raised from {request} to the limit, {limit}"
                draft.warnings.append(f"{where}.resources.requests.{resource}: {was}")


def _never_again_without_limit(draft: _Draft) -> None:
    """R6."""
    unlimited = [
        index
        for index, container in enumerate(draft.pod_spec.get("containers") or ())
        if not ((container.get("resources") or {}).get("limits") or {}).get("memory")
    ]
    if not unlimited or _is_never_tried_again(draft):
        return
    for index in unlimited:
        where = f"{draft.prefix}.containers[{index}].resources.limits.memory"
        draft.refusals.append(
            Refusal(where, "", "a run needs a memory limit, or backoffLimit 0 and restartPolicy Never")
        )
    policy = draft.pod_spec.get("restartPolicy")
    if policy != "Never":
        said = "must be Never for a run without a memory limit"
        draft.refusals.append(Refusal(f"{draft.prefix}.restartPolicy", str(policy), said))
    if draft.request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
        said = "must be 0 for a run without a memory limit"
        draft.refusals.append(Refusal("spec.backoffLimit", str(draft.obj["spec"].get("backoffLimit", 6)), said))


def _keep_off_gpu_nodes(draft: _Draft) -> None:
    """R7. Left alone where the pod speaks of GPU nodes itself, in whatever way."""
    spec = draft.pod_spec
    if not draft.request.has_gpu_free_nodes or _wants_gpu(spec) or _speaks_of_gpu_nodes(spec):
        return
    node = _table(_table(spec, "affinity"), "nodeAffinity")
    required = _table(node, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = required["nodeSelectorTerms"] = required.get("nodeSelectorTerms") or [{}]
    for term in terms:  # terms are alternatives: each must keep off
        away = {"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}
        term["matchExpressions"] = [*(term.get("matchExpressions") or ()), away]


def _wants_gpu(spec: Mapping[str, Any]) -> bool:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        if any(is_gpu(name) for table in ("limits", "requests") for name in resources.get(table) or ()):
            return True
    return False


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


def _cap_restarts(draft: _Draft) -> None:
    """The tenant's limit of restarts, where the run names none or a higher one."""
    most = draft.request.restart_limit_max
    if most is None or draft.request.kind != "Job":
        return
    text = (draft.obj["metadata"].get("annotations") or {}).get(RESTART_LIMIT_ANNOTATION)
    asked = int(text) if text is not None and text.isascii() and text.isdigit() else RESTART_LIMIT
    if asked > most:
        _put(draft.obj["metadata"], "annotations", RESTART_LIMIT_ANNOTATION, str(most))
        draft.warnings.append(f"started again after disruptions at most {most} times, the tenant's limit")


# --- everything else


def _advise(draft: _Draft) -> None:
    """For Jobs and pods that are no runs: nothing is refused, the risks are said (R4, R6)."""
    for index, container in enumerate(draft.pod_spec.get("containers") or ()):
        if ((container.get("resources") or {}).get("limits") or {}).get("memory"):
            continue
        where = f"{draft.prefix}.containers[{index}].resources.limits.memory"
        if draft.request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
            said = "is not set: growing without a limit, and tried again, this Job can take one node after another"
        else:
            said = "is not set: growing without a limit it can take its neighbours down with it"
        draft.warnings.append(f"{where} {said}")


# --- patches


def _differences(before: Obj, after: Obj, kind: str) -> tuple[Obj, ...]:
    """Whole tables are set where they differ; their parents exist in every object the API server admits."""
    paths: list[tuple[str, ...]] = [("metadata", "labels"), ("metadata", "annotations")]
    if kind == "Job":
        paths += [("spec", "template", "metadata")]
    pod = ("spec", "template", "spec") if kind == "Job" else ("spec",)
    paths += [(*pod, "containers"), (*pod, "initContainers"), (*pod, "affinity")]
    found = []
    for path in paths:
        old, new = _at(before, path), _at(after, path)
        if old != new:
            found.append({"op": "add", "path": "/" + "/".join(path), "value": new})
    return tuple(found)


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def _table(obj: Obj, key: str) -> Obj:
    """The mapping at a key, made where it is missing or null."""
    if not obj.get(key):
        obj[key] = {}
    found: Obj = obj[key]
    return found


def _set_resource(container: Obj, table: str, resource: str, value: Any) -> None:
    _table(_table(container, "resources"), table)[resource] = value


def _same(resource: str, one: Any, other: Any) -> bool:
    try:
        return amount(resource, one) == amount(resource, other)
    except QuantityError:
        return False  # the API server refuses it with a better message than ours
