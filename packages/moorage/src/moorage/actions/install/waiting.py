"""Waiting for the objects written: definitions, Deployments, the webhook."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Sequence

from moorage.actions.explain import explain_pod
from moorage.actions.install.cluster import InstallApi
from moorage.decide.install.rollout import Rollout, hint_for, rollout
from moorage.model.names import SYSTEM_NAMESPACE, WEBHOOK_CONFIGURATION, WEBHOOK_SERVICE
from moorage.present.explanation import short_reason
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, MoorageError, NotFound, NotReady
from moorage_kube.meta import is_condition_true
from moorage_kube.resources import CRDS, DEPLOYMENTS, MUTATING_WEBHOOKS, PODS, SERVICES, VALIDATING_WEBHOOKS

Progress = Callable[[str], None]
LOOK_SECONDS = 1.0


async def wait_for_definitions(api: Api, names: Iterable[str], *, clock: Clock, timeout: float) -> None:
    """Wait until the API server serves every kind. Raises NotReady."""
    left, deadline = list(names), clock.monotonic() + timeout
    while True:
        left = [name for name in left if not await _is_established(api, name)]
        if not left:
            return
        if clock.monotonic() >= deadline:
            raise NotReady(
                f"these kinds are not served after {timeout:.0f} s: {', '.join(left)}",
                hint=f"kubectl get crd {left[0]} -o yaml says why, below `status`",
            )
        await clock.sleep(LOOK_SECONDS)


async def _is_established(api: Api, name: str) -> bool:
    try:
        return is_condition_true(await api.get(CRDS, name), "Established")
    except NotFound:
        return False


async def wait_for_rollouts(
    api: Api, names: Sequence[str], *, clock: Clock, timeout: float, progress: Progress
) -> None:
    """Return when all replicas are new and available. Raises NotReady with the reasons of the others."""
    left, deadline = list(names), clock.monotonic() + timeout
    shown: set[tuple[str, str]] = set()
    while True:
        states = [await _rollout(api, name) for name in left]
        for state in states:
            if state.done:
                progress(f"{state.name} is available ({state.ready}/{state.wanted})")
            elif state.reasons and (cause := (state.name, state.reasons[0].partition(": ")[0])) not in shown:
                shown.add(cause)  # kubelets say one cause in turn in several ways
                progress(f"{state.name} waits ({state.ready}/{state.wanted}): {state.reasons[0]}")
        left = [state.name for state in states if not state.done]
        if not left:
            return
        if clock.monotonic() >= deadline:
            raise await _not_up(api, [state for state in states if not state.done], clock=clock, timeout=timeout)
        await clock.sleep(LOOK_SECONDS)


async def _rollout(api: Api, name: str) -> Rollout:
    deployment = await api.get(DEPLOYMENTS, name, SYSTEM_NAMESPACE)
    pods = await api.list(PODS, SYSTEM_NAMESPACE, label_selector=f"app.kubernetes.io/name={name}")
    return rollout(deployment, pods.items)


async def _not_up(api: Api, states: Sequence[Rollout], *, clock: Clock, timeout: float) -> NotReady:
    sentences, hint = [], ""
    for state in states:
        reasons = list(state.reasons)
        for pod in state.unplaced[:1]:
            with contextlib.suppress(MoorageError):  # then the scheduler's last message remains
                why = short_reason(await explain_pod(api, SYSTEM_NAMESPACE, pod, clock.now()))
                reasons += [why] if why else []
        hint = hint or hint_for(reasons, SYSTEM_NAMESPACE, state.name)
        why = "; ".join(dict.fromkeys(reasons)) or "its pods start, and are not ready yet"
        sentences.append(f"{state.name} has {state.ready} of {state.wanted} replicas: {why}")
    return NotReady(
        f"not up after {timeout:.0f} s: {'. '.join(sentences)}",
        hint=f"{hint}. Then run the command again: it continues where it stopped",
    )


async def wait_for_webhook(api: InstallApi, *, clock: Clock, timeout: float) -> None:
    """Wait until the webhook registrations trust its certificate and it answers through the API server's proxy."""
    deadline = clock.monotonic() + timeout
    while True:
        missing = await _missing_of_webhook(api)
        if not missing:
            return
        if clock.monotonic() >= deadline:
            raise NotReady(
                f"the webhook does not answer after {timeout:.0f} s: {missing}",
                hint=f"kubectl -n {SYSTEM_NAMESPACE} logs -l app.kubernetes.io/name={WEBHOOK_SERVICE} --tail 20",
            )
        await clock.sleep(LOOK_SECONDS)


async def _missing_of_webhook(api: InstallApi) -> str:
    """The missing condition of the webhook; "" if it is ready."""
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        registration = await api.get(resource, WEBHOOK_CONFIGURATION)
        for webhook in registration.get("webhooks") or ():
            if not base64.b64decode(webhook["clientConfig"].get("caBundle") or ""):
                return f"{resource.kind} {WEBHOOK_CONFIGURATION} has no certificate authority yet"
    path = SERVICES.path(namespace=SYSTEM_NAMESPACE, name=f"https:{WEBHOOK_SERVICE}:443", subresource="proxy")
    # the name has colons, which are part of the path here
    path = path.replace("%3A", ":")
    try:
        await api.raw("GET", f"{path}/readyz")
    except ApiError as error:
        if error.status == 403:
            return ""  # without the right to use the proxy, the Deployment decides, and it is available
        return f"the API server does not reach it: {error.message}"
    return ""
