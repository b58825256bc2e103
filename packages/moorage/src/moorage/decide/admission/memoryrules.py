"""The guardrails on memory and CPU: limits, requests, retries, and pods that move on after a kill for memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.decide.admission.amounts import can_set, is_more, is_quantity, same
from moorage.decide.admission.fields import at, mapping, or_none, sequence, shown_value
from moorage.decide.admission.findings import Filled, Finding, Subject
from moorage.decide.admission.templates import GUARANTEED
from moorage_kube.quantity import problem_of_bytes

KILLED = 137  # 128 + SIGKILL: how a container that was killed for its memory ends
_REPLACED_WHEN_FAILED = "Failed"  # podReplacementPolicy: a new pod only once the old one has ended


# --- the rules


def memory_limit(subject: Subject) -> Iterator[Finding]:
    for path in subject.template.unlimited():
        message = "is not set: without a limit, its growth can kill other pods on the node"
        yield Finding("memoryLimit", (*path, "resources", "limits", "memory"), "", message)
    for path, container in subject.template.containers:
        for table in ("limits", "requests"):
            value = at(container, ("resources", table, "memory"))
            if is_quantity(value) and (slip := problem_of_bytes(value)):
                yield Finding(
                    "memoryLimit", (*path, "resources", table, "memory"), shown_value(value), "; ".join(slip)
                )


def fill_memory_limit(subject: Subject) -> Iterator[Filled]:
    default = subject.settings.get("default")
    if subject.template.has_pod_limit("memory"):
        return
    for path, container in subject.template.sized:
        if subject.template.asked(container, "limits", "memory") is not None:
            continue
        asked = at(container, ("resources", "requests", "memory"))
        value = default if asked is None or is_more(default, asked) else asked
        if value is not None and can_set(container, "limits"):
            where = (*path, "resources", "limits", "memory")
            yield Filled(Finding("memoryLimit", where, "", f"set to {value}"), str(value))


def resource_requests(subject: Subject) -> Iterator[Finding]:
    for path, container in subject.template.sized:
        for resource in GUARANTEED:
            if at(subject.template.spec, ("resources", "requests", resource)) is not None:
                continue
            if subject.template.has_pod_limit(resource):
                continue
            if subject.template.asked(container, "requests", resource) is None:
                given = subject.settings.get(resource)
                message = "is not set: it is placed as if it needed none"
                message += f"; this cluster's default is {given}" if given is not None else ""
                yield Finding("resourceRequests", (*path, "resources", "requests", resource), "", message)


def fill_resource_requests(subject: Subject) -> Iterator[Filled]:
    for path, container in subject.template.sized:
        for resource in GUARANTEED:
            default = subject.settings.get(resource)
            if default is None or subject.template.has_pod_limit(resource):
                continue
            if at(subject.template.spec, ("resources", "requests", resource)) is not None:
                continue
            if subject.template.asked(container, "requests", resource) is None and can_set(container, "requests"):
                where = (*path, "resources", "requests", resource)
                yield Filled(Finding("resourceRequests", where, "", f"set to {default}"), str(default))


def guaranteed_qos(subject: Subject) -> Iterator[Finding]:
    template = subject.template
    if all(template.has_pod_limit(resource) for resource in GUARANTEED):
        return
    for path, container in template.sized:
        shown = []
        for resource in GUARANTEED:
            limit = template.asked(container, "limits", resource)
            request = template.asked(container, "requests", resource)
            if not same(resource, limit, request):
                shown.append(f"{resource}: request {or_none(request)}, limit {or_none(limit)}")
        if shown:
            message = (
                "CPU and memory requests must be set and equal limits, or its node may choose it for eviction"
            )
            yield Finding("guaranteedQos", (*path, "resources"), "; ".join(shown), message)


def fill_guaranteed_qos(subject: Subject) -> Iterator[Filled]:
    template = subject.template
    if all(template.has_pod_limit(resource) for resource in GUARANTEED):
        return
    for path, container in template.sized:
        for resource in GUARANTEED:
            limit = at(container, ("resources", "limits", resource))
            request = at(container, ("resources", "requests", resource))
            if request is None:
                continue
            if limit is None:
                if can_set(container, "limits"):
                    where, text = (*path, "resources", "limits", resource), f"set to the request, {request}"
                    yield Filled(Finding("guaranteedQos", where, "", text), str(request))
            elif is_quantity(limit) and not same(resource, limit, request) and can_set(container, "requests"):
                where, text = (*path, "resources", "requests", resource), f"set to the limit, {limit}"
                yield Filled(Finding("guaranteedQos", where, "", text), str(limit))


def retry_without_limit(subject: Subject) -> Iterator[Finding]:
    template = subject.template
    if template.job is None or not template.unlimited():
        return
    if template.job.get("backoffLimit") != 0:
        message = "must be 0 without a memory limit: retries can fill one node after another"
        value = shown_value(template.job.get("backoffLimit", 6))
        yield Finding("retryWithoutLimit", (*template.job_path, "backoffLimit"), value, message)
    if template.spec.get("restartPolicy") != "Never":
        message = "must be Never without a memory limit"
        value = shown_value(template.spec.get("restartPolicy") or "Always")
        yield Finding("retryWithoutLimit", (*template.path, "restartPolicy"), value, message)


def fill_retry_without_limit(subject: Subject) -> Iterator[Filled]:
    template = subject.template
    if template.job is None or not template.unlimited():
        return
    if template.job.get("backoffLimit") != 0:
        where = (*template.job_path, "backoffLimit")
        yield Filled(Finding("retryWithoutLimit", where, "", "set to 0, because there is no memory limit"), 0)
    if template.spec.get("restartPolicy") != "Never":
        where = (*template.path, "restartPolicy")
        yield Filled(
            Finding("retryWithoutLimit", where, "", "set to Never, because there is no memory limit"), "Never"
        )


def restart_bomb(subject: Subject) -> Iterator[Finding]:
    """Report pods that start again on another node, with the same memory, after a kill for memory.

    A container that exceeds its own limit restarts in place. There are two ways to another node: the kubelet
    evicts the pod for memory, or a Job replaces the killed pod. The kubelet never first evicts a pod that
    stays below its request.
    """
    template = subject.template
    policy = template.spec.get("restartPolicy")
    if template.job is not None and policy == "Never" and template.job.get("backoffLimit") == 0:
        return
    if template.kind == "Pod" and policy == "Never":
        return
    for path, container in template.sized:
        if template.has_pod_limit("memory"):
            break
        limit = template.asked(container, "limits", "memory")
        if not same("memory", limit, template.asked(container, "requests", "memory")):
            message = "memory request and limit must be set and equal: an evicted pod starts again elsewhere"
            yield Finding("restartBomb", (*path, "resources"), "", message)
            break  # one container is enough to name
    if _escalates(subject):
        return  # tried again with more memory, it does not wander
    if template.job is not None and policy == "Never" and not _fails_when_killed(template.job):
        message = f"must fail the Job on exit code {KILLED}: killed for memory, it is tried again on the next node"
        value = "none" if template.job.get("podFailurePolicy") is None else "no such rule"
        yield Finding("restartBomb", (*template.job_path, "podFailurePolicy"), value, message)


def fill_restart_bomb(subject: Subject) -> Iterator[Filled]:
    template = subject.template
    policy = template.spec.get("restartPolicy")
    once = template.job is not None and template.job.get("backoffLimit") == 0
    if policy == "Never" and (once or template.kind == "Pod"):
        return
    for path, container in template.sized:
        limit = at(container, ("resources", "limits", "memory"))
        request = at(container, ("resources", "requests", "memory"))
        if request is None or not is_quantity(limit) or same("memory", limit, request):
            continue
        if can_set(container, "requests"):
            where = (*path, "resources", "requests", "memory")
            yield Filled(Finding("restartBomb", where, "", f"set to the limit, {limit}"), str(limit))
    if _escalates(subject):
        return
    if template.job is not None and policy == "Never" and template.job.get("podFailurePolicy") is None:
        on_exit = {"operator": "In", "values": [KILLED]}
        where = (*template.job_path, "podFailurePolicy")
        text = f"exit code {KILLED} fails the Job"
        rules = {"rules": [{"action": "FailJob", "onExitCodes": on_exit}]}
        yield Filled(Finding("restartBomb", where, "", text), rules)
        # the API server sets defaults before it asks us, and this one is invalid with a podFailurePolicy
        if template.job.get("podReplacementPolicy") not in (None, _REPLACED_WHEN_FAILED):
            where = (*template.job_path, "podReplacementPolicy")
            text = f"set to {_REPLACED_WHEN_FAILED}, the only value allowed with a podFailurePolicy"
            yield Filled(Finding("restartBomb", where, "", text), _REPLACED_WHEN_FAILED)


def _escalates(subject: Subject) -> bool:
    return subject.settings.get("level") == "fill" and isinstance(subject.settings.get("escalation"), Mapping)


def _fails_when_killed(job: Mapping[str, Any]) -> bool:
    """Whether exit code 137 fails the Job (or its index) before any other rule starts a retry."""
    for rule in sequence(at(job, ("podFailurePolicy", "rules"))):
        codes = mapping(mapping(rule).get("onExitCodes"))
        if codes.get("containerName"):
            continue
        listed = KILLED in sequence(codes.get("values"))
        if codes and (listed if codes.get("operator") == "In" else not listed):
            return mapping(rule).get("action") in ("FailJob", "FailIndex")
    return False
