"""The guardrails of runs (Jobs and pods with the label `moorage.dev/run`), and the advice for other Jobs and pods.

- R4: a container without a memory limit gets the tenant's default, so that its growth kills only itself.
- R5: requests equal limits for CPU and memory, so that its node never has to choose a victim.
- R6: no limit and no default? Then the Job must never be retried: `backoffLimit: 0`, `restartPolicy: Never`.
- R7: pods without GPUs avoid GPU nodes, as long as there are others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.amounts import same
from moorage.decide.admission.fields import at, mapping
from moorage.decide.admission.gpurules import keeping_off
from moorage.decide.admission.ownership import put, table_at
from moorage.decide.admission.review import Draft, Refusal, Request, is_deleting, make_draft
from moorage.decide.admission.templates import GUARANTEED, wants_gpu
from moorage.model.names import (
    ATTEMPT_LABEL,
    EXPECTED_SECONDS_ANNOTATION,
    GPU_PRESENT_LABEL,
    GPU_TYPE_LABELS,
    MEMORY_DEFAULTED_ANNOTATION,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUN_NAME_MAX,
    TIME_LIMIT_ANNOTATION,
    attempt_name,
    is_dns_label,
)
from moorage_kube.integers import INT32_MAX, integer_or, is_digits
from moorage_kube.resources import Obj

# --- runs


def fill_in_amounts(draft: Draft) -> None:
    """Apply R4 and R5 to new runs and to steps that were not checked before.

    If a manifest sets requests and limits of a workflow step, both stay as they are: manifests of Argo run
    unchanged.
    """
    if not _is_new_work(draft) or (draft.request.is_judged_already and not draft.request.is_step):
        return
    forgone = _forgoes_memory(draft)
    for where, container in draft.sized():
        _fill_in(draft, container, fill_memory=not forgone)
        if draft.request.kind == "Job":
            _equalise(draft, container, where)


def limit_restarts(draft: Draft) -> None:
    """Apply the tenant's limits of time and restarts, and check a run (R6)."""
    request = draft.request
    if not draft.is_run or is_deleting(request.obj):
        return
    if request.operation == "CREATE" and not request.is_judged_already:
        _limit_time(draft)
        _cap_restarts(draft)
    elif request.operation == "UPDATE" and not request.is_copy:
        _cap_restarts(draft)
    check_run(draft)


def keep_off_gpu_nodes(draft: Draft) -> None:
    """R7, for new runs and steps. A pod that names GPU nodes in any way is left unchanged.

    A guest is sent to the node of its machine.
    """
    if not _is_new_work(draft) or draft.is_guest:
        return
    spec, away = draft.pod_spec, draft.request.away_from_gpus
    if not away or wants_gpu(container for _, container in draft.containers()) or _speaks_of_gpu_nodes(spec):
        return
    kept_off = keeping_off(at(spec, ("affinity", "nodeAffinity")), away)
    spec["affinity"] = {**mapping(spec.get("affinity")), "nodeAffinity": kept_off}


def _is_new_work(draft: Draft) -> bool:
    request = draft.request
    return request.operation == "CREATE" and (request.is_step or (draft.is_run and not is_deleting(request.obj)))


def check_run(draft: Draft) -> None:
    """Refuse a run that must not be stored."""
    request = draft.request
    if request.is_judged_already:
        return
    checked = Draft(request, draft.obj)
    _check_name(checked)
    _never_again_without_limit(checked)
    if request.operation == "UPDATE" and request.old is not None:
        before = make_draft(Request(kind=request.kind, operation="CREATE", user=request.user, obj=request.old))
        _check_name(before)
        _never_again_without_limit(before)
        known = {refusal.field for refusal in before.refusals}
        checked.refusals = [refusal for refusal in checked.refusals if refusal.field not in known]
    draft.refusals += checked.refusals


def _check_name(draft: Draft) -> None:
    meta = draft.obj["metadata"]
    labels = meta.get("labels") or {}
    if draft.request.kind != "Job" or RUN_LABEL not in labels:
        return
    run, number = labels[RUN_LABEL], labels.get(ATTEMPT_LABEL, "1")
    if not is_dns_label(run) or len(run) > RUN_NAME_MAX:
        allowed = f"at most {RUN_NAME_MAX} of a-z, 0-9 and '-', so that its attempts can be named after it"
        draft.refusals.append(Refusal(f"metadata.labels[{RUN_LABEL}]", repr(run), allowed))
    elif not is_digits(number) or not integer_or(number, 0, maximum=INT32_MAX):
        message = "must be a whole number from 1"
        draft.refusals.append(Refusal(f"metadata.labels[{ATTEMPT_LABEL}]", repr(number), message))
    elif meta.get("name") != attempt_name(run, int(number)):
        message = f"attempt {number} of run {run} must be named {attempt_name(run, int(number))}"
        draft.refusals.append(
            Refusal("metadata.name", repr(meta.get("name") or meta.get("generateName")), message)
        )


def _forgoes_memory(draft: Draft) -> bool:
    """Whether the author chose to have no memory limit (the run has no retries), or the pod itself has a limit."""
    if at(draft.pod_spec, ("resources", "limits", "memory")):
        return True
    notes = draft.obj["metadata"].get("annotations") or {}
    return (
        draft.request.kind == "Job" and notes.get(RESTART_LIMIT_ANNOTATION) == "0" and _is_never_tried_again(draft)
    )


def _is_never_tried_again(draft: Draft) -> bool:
    never = draft.pod_spec.get("restartPolicy") == "Never"
    return never and (draft.request.kind == "Pod" or draft.obj["spec"].get("backoffLimit") == 0)


def _fill_in(draft: Draft, container: Obj, *, fill_memory: bool) -> None:
    """R4, and the CPU for R5: the tenant's defaults (else a policy's) where the container sets none.

    `moor run` fills in a memory limit for a user who may not read Tenants: the tenant's own limit replaces it.
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
            put(draft.obj["metadata"], "annotations", MEMORY_DEFAULTED_ANNOTATION, "true")
            draft.warnings.append(f"no memory limit given: limited to {default}, {whose} default")


def _policy_default(request: Request, rule: str, parameter: str) -> str | None:
    """The value that a policy would fill in; a run without a tenant's default gets it before it is judged."""
    if request.policy is None or request.policy.level(rule, "off") != "fill":
        return None
    value = request.policy.rules[rule].get(parameter)
    return None if value is None else str(value)


def _memory_was_defaulted(draft: Draft) -> bool:
    """Whether `moor run` set the limit of the only container. With several, the annotation is ignored."""
    notes = draft.obj["metadata"].get("annotations") or {}
    alone = sum(1 for _ in draft.containers()) == 1
    return draft.request.kind == "Job" and alone and notes.get(MEMORY_DEFAULTED_ANNOTATION) == "true"


def _equalise(draft: Draft, container: Obj, where: str) -> None:
    """R5: raise a request to its limit. A request without a limit becomes the limit too."""
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


def _never_again_without_limit(draft: Draft) -> None:
    """R6."""
    unlimited = draft.unlimited()
    if not unlimited or _is_never_tried_again(draft):
        return
    for path in unlimited:
        allowed = "a run needs a memory limit such as 8Gi, or backoffLimit 0 and restartPolicy Never"
        draft.refusals.append(Refusal(f"{path}.resources.limits.memory", "", allowed))
    policy = draft.pod_spec.get("restartPolicy")
    if policy != "Never":
        message = "must be Never for a run without a memory limit"
        draft.refusals.append(Refusal(f"{draft.prefix}.restartPolicy", str(policy or "Always"), message))
    if draft.request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
        message = "must be 0 for a run without a memory limit"
        draft.refusals.append(Refusal("spec.backoffLimit", str(draft.obj["spec"].get("backoffLimit", 6)), message))


def _speaks_of_gpu_nodes(spec: Mapping[str, Any]) -> bool:
    if spec.get("nodeName"):
        return True
    keys = {GPU_PRESENT_LABEL, *GPU_TYPE_LABELS}
    if keys & set(spec.get("nodeSelector") or ()):
        return True
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return any(
        expression.get("key") in keys
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
    )


def _limit_time(draft: Draft) -> None:
    """Set the tenant's time limit if the run has none."""
    seconds, spec = draft.request.defaults.time_seconds, draft.pod_spec
    if seconds is None or draft.request.kind != "Job" or spec.get("activeDeadlineSeconds"):
        return
    if draft.obj["spec"].get("activeDeadlineSeconds"):
        return
    spec["activeDeadlineSeconds"] = seconds
    for key in (TIME_LIMIT_ANNOTATION, EXPECTED_SECONDS_ANNOTATION):
        put(draft.obj["metadata"], "annotations", key, str(seconds))
    draft.warnings.append(f"no time limit given: limited to {seconds} s, the tenant's default")


def _cap_restarts(draft: Draft) -> None:
    """Set the tenant's restart limit if the run has none or a higher one.

    A run without a memory limit gets no restarts (R6).
    """
    if draft.request.kind != "Job":
        return
    unlimited = bool(draft.unlimited())
    most = 0 if unlimited else draft.request.restart_limit_max
    text = at(draft.obj, ("metadata", "annotations", RESTART_LIMIT_ANNOTATION))
    asked = integer_or(text, RESTART_LIMIT)
    if most is None or asked <= most:
        return
    put(draft.obj["metadata"], "annotations", RESTART_LIMIT_ANNOTATION, str(most))
    if unlimited:
        draft.warnings.append("no memory limit given: this run is never restarted")
    else:
        draft.warnings.append(f"started again after disruptions at most {most} times, the tenant's limit")


# --- everything else


def advise_limits(draft: Draft) -> None:
    """Warn about the risks of Jobs and pods that are not runs (R4, R6). Nothing is refused."""
    request = draft.request
    is_judged = request.is_copy or request.policy is not None or draft.is_run
    if request.kind not in ("Job", "Pod") or is_judged:
        return
    for path in draft.unlimited():
        where = f"{path}.resources.limits.memory"
        if request.kind == "Job" and draft.obj["spec"].get("backoffLimit") != 0:
            message = "is not set: retries of a Job without a limit can fill one node after another"
        else:
            message = "is not set: without a limit, its growth can kill other pods on the node"
        draft.warnings.append(f"{where} {message}")


def _set_resource(container: Obj, table: str, resource: str, value: Any) -> None:
    table_at(table_at(container, "resources"), table)[resource] = value
