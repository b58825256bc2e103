"""What a new pod of a guarded namespace gets besides its guardrails, and what who creates a run is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.resources import Obj
from moorage.decide.admission.fields import at, mapping
from moorage.decide.admission.injection import is_guest
from moorage.decide.admission.priority import stand_in
from moorage.decide.admission.restricted import (
    NO_ROOT,
    advice,
    is_ours,
    is_restricted,
    names_user,
    secure,
    user_of,
)
from moorage.decide.admission.scheduler import choose_scheduler
from moorage.decide.admission.tenancy import inject


def complete_pod(
    pod: Obj,
    *,
    namespace: Mapping[str, Any] | None,
    tenant: Obj | None,
    classes: Iterable[Mapping[str, Any]],
    scheduler: str,
    is_behind: bool = False,
) -> tuple[Obj, ...]:
    """JSON patches: the team's nodes, a class that does not preempt, a scheduler, and what `restricted` asks for.

    `namespace` None: newer than the caller's copy. `scheduler`: empty where there is no second one. `is_behind`: a
    budget has given it its class.
    """
    patches: tuple[Obj, ...] = ()
    if not is_guest(pod):
        stand_ins = () if is_behind else stand_in(pod, tenant=tenant, classes=classes)
        patches = (*inject(pod, tenant), *stand_ins)
    patches = (*patches, *choose_scheduler(pod, scheduler))
    if namespace is not None and is_ours(labels_of(pod)) and is_restricted(labels_of(namespace)):
        patches = (*patches, *secure(pod, user=user_of(labels_of(pod), annotations_of(namespace))))
    return patches


def advise_job(job: Obj, namespace: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Warnings for who creates a run in a namespace of Pod Security `restricted`: names no user, or root."""
    if namespace is None or not is_ours(labels_of(job)) or not is_restricted(labels_of(namespace)):
        return ()
    spec = mapping(at(job, ("spec", "template", "spec")))
    if mapping(spec.get("securityContext")).get("runAsUser") == 0:
        return (NO_ROOT,)
    if names_user(spec):
        return ()
    return (advice(user_of(labels_of(job), annotations_of(namespace))),)
