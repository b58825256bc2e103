"""The subresource `pods/eviction`: delete a pod if its disruption budgets allow it."""

from __future__ import annotations

from typing import Any

from moorage_kube.clock import rfc3339
from moorage_kube.errors import ApiError, TooManyRequests
from moorage_kube.meta import is_condition_true
from moorage_kube.resources import PDBS, Obj, Resource
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Call, DeleteOptions
from moorage_local.apiserver.subresources.admitting import admit
from moorage_local.apiserver.subresources.binding import with_condition_true
from moorage_local.apiserver.subresources.bodies import SUCCESS, read_named
from moorage_local.apiserver.wire.options import delete_options_of

EVICTION = BuiltinCodec("io.k8s.api.policy.v1.Eviction", Resource("policy", "v1", "evictions", "Eviction"))


async def evict(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """Delete a pod if its disruption budget allows it. Raises TooManyRequests if it does not."""
    eviction = read_named(body, name, EVICTION)
    options_body = eviction.get("deleteOptions") or {}
    options = delete_options_of(options_body, {})
    if options_body.get("dryRun"):
        call.dry_run = True
    await admit(core, call, "CREATE", eviction, namespace=namespace, name=name, subresource="eviction")
    pod = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    phase = (pod.get("status") or {}).get("phase")
    free = phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))
    if not free:
        await _spend_budget(core, call, pod, namespace)
    if not call.dry_run:
        now = rfc3339(core.clock.now())

        async def mark(current: Obj) -> Obj:
            if options.uid and options.uid != current["metadata"]["uid"]:
                return current
            status = current.setdefault("status", {})
            status["conditions"] = with_condition_true(
                status.get("conditions"),
                "DisruptionTarget",
                now,
                reason="EvictionByEvictionAPI",
                message="Eviction API: evicting",
            )
            return current

        await core.pipeline.write_raw(call, kind, name, namespace, mark)
        options = DeleteOptions(
            grace_period_seconds=options.grace_period_seconds, uid=options.uid, propagation=options.propagation
        )
    await core.pipeline.remove(call, kind, name, namespace, options, admit=False)  # as upstream: it was above
    return dict(SUCCESS)


async def _spend_budget(core: Core, call: Call, pod: Obj, namespace: str | None) -> None:
    budgets = core.kind_of(PDBS)
    labels = pod["metadata"].get("labels") or {}
    # a pod without a budget may be evicted; two budgets are an error, as in Kubernetes
    matching = [
        budget
        for budget in core.pipeline.every(budgets, namespace)
        if (budget.get("spec") or {}).get("selector") is not None
        and label_selector_of(budget["spec"]["selector"]).matches(labels)
    ]
    if not matching:
        return
    if len(matching) > 1:
        raise ApiError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            status=500,
            reason="InternalError",
        )
    # a pod that is not ready costs nothing, if the policy says so or enough others are healthy
    first = matching[0]
    if not is_condition_true(pod, "Ready"):
        status = first.get("status") or {}
        if (first["spec"].get("unhealthyPodEvictionPolicy")) == "AlwaysAllow":
            return
        wanted = status.get("desiredHealthy", 0)
        if wanted > 0 and status.get("currentHealthy", 0) >= wanted:
            return
    name = first["metadata"]["name"]
    now = rfc3339(core.clock.now())

    # two evictions at the same time must not use the same allowance: each write is compared
    async def spend(budget: Obj) -> Obj:
        status = budget.setdefault("status", {})
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise _too_many(f"The disruption budget {name} is still being processed by the server.", wait=10)
        if status.get("disruptionsAllowed", 0) <= 0:
            raise _too_many(
                f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has"
                f" {status.get('currentHealthy', 0)} currently"
            )
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: now}
        return budget

    await core.pipeline.write_raw(call, budgets, name, namespace, spend)


def _too_many(cause: str, wait: int = 0) -> TooManyRequests:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if wait:
        details["retryAfterSeconds"] = wait
    return TooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", details=details)
