"""Steps for new pods of a guarded namespace, other than guardrails, and warnings for the creator of a run.

Mirror pods are left unchanged: a kubelet creates them from the configuration of its node.
"""

from __future__ import annotations

from moorage.decide.admission.fields import at, mapping
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
from moorage.decide.admission.review import Draft
from moorage.decide.admission.scheduler import choose_scheduler
from moorage.decide.admission.tenancy import inject
from moorage_kube.meta import annotations_of, labels_of


def choose_own_nodes(draft: Draft) -> None:
    """Send a pod without GPUs to its tenant's nodes. A guest is sent to the node of its machine instead."""
    if not draft.is_guest and not draft.request.is_mirror:
        draft.apply(inject(draft.obj, draft.request.tenant))


def choose_class(draft: Draft) -> None:
    """Replace a priority class that preempts by a class of the same value that does not."""
    if not draft.request.is_mirror:
        draft.apply(stand_in(draft.obj, tenant=draft.request.tenant, classes=draft.request.classes))


def name_scheduler(draft: Draft) -> None:
    """Send a pod with GPUs to the second scheduler if it is installed."""
    if not draft.request.is_mirror:
        draft.apply(choose_scheduler(draft.obj, draft.request.scheduler))


def meet_restricted(draft: Draft) -> None:
    """Give a pod of ours the fields that Pod Security `restricted` requires, where its namespace enforces that."""
    namespace, labels = draft.request.namespace, labels_of(draft.obj)
    if namespace is None or draft.request.is_mirror or not is_restricted(labels_of(namespace)):
        return
    if is_ours(labels):
        draft.apply(secure(draft.obj, user=user_of(labels, annotations_of(namespace))))


def advise_users(draft: Draft) -> None:
    """Warn the creator of a run in a namespace of Pod Security `restricted` that sets no user, or root."""
    job, namespace = draft.obj, draft.request.namespace
    if namespace is None or not is_ours(labels_of(job)) or not is_restricted(labels_of(namespace)):
        return
    spec = mapping(at(job, ("spec", "template", "spec")))
    if mapping(spec.get("securityContext")).get("runAsUser") == 0:
        draft.warnings.append(NO_ROOT)
    elif not names_user(spec):
        draft.warnings.append(advice(user_of(labels_of(job), annotations_of(namespace))))
