"""The order in which admission changes and judges an object: one list, which the webhooks follow.

A step that reads a part of the object comes after every step that sets it, so that each rule sees the final value.
Steps that read and set the same part run in the order of the list.

`admit` is for the mutating webhook. `judge` is for the validating one: it sees the object that is about to be
stored, also where others changed it after us; it changes nothing, so its order does not matter. Both are total:
they never raise for an object that the API server accepted.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any

from msgspec import Struct

from moorage.decide.admission.budgets import apply_budgets
from moorage.decide.admission.guardednodes import judge_nodes
from moorage.decide.admission.guardrails import answer_kills, apply_policy
from moorage.decide.admission.injection import make_guest
from moorage.decide.admission.newpods import (
    advise_users,
    choose_class,
    choose_own_nodes,
    meet_restricted,
    name_scheduler,
)
from moorage.decide.admission.ownership import judge_owner, stamp
from moorage.decide.admission.protectedannotations import judge_protected, restore_protected
from moorage.decide.admission.queues import leave_queue
from moorage.decide.admission.review import TEMPLATES, Draft, Refusal, Request, Verdict, is_deleting, make_draft
from moorage.decide.admission.runrules import (
    advise_limits,
    check_run,
    fill_in_amounts,
    keep_off_gpu_nodes,
    limit_restarts,
)
from moorage.decide.admission.schedules import judge_schedules
from moorage.decide.admission.secrets import judge_secrets
from moorage_kube.resources import Obj


class Part(Enum):
    """A part of the object that admission steps read and set: of a pod, a pod template or a workload."""

    OWNER = auto()
    MARKS = auto()  # annotations of our services
    GPUS = auto()  # of the containers
    AMOUNTS = auto()  # CPU, memory and disk of the containers
    NODES = auto()  # nodeName, nodeSelector, affinity
    TOLERATIONS = auto()
    GATES = auto()
    PRIORITY = auto()
    RETRIES = auto()  # backoffLimit, restartPolicy, limits of time and restarts
    SCHEDULER = auto()
    SECURITY = auto()
    QUEUE = auto()


class Step(Struct, frozen=True, kw_only=True):
    """A step of admission. `reads` and `sets`: parts, without the fields that are not set by any step."""

    name: str
    apply: Callable[[Draft], None]
    reads: frozenset[Part] = frozenset()
    sets: frozenset[Part] = frozenset()
    kinds: Collection[str] = tuple(TEMPLATES)
    operations: Collection[str] = ("CREATE", "UPDATE")


def _parts(*parts: Part) -> frozenset[Part]:
    return frozenset(parts)


_NEW: dict[str, Any] = {"operations": ("CREATE",)}
_NEW_POD: dict[str, Any] = _NEW | {"kinds": ("Pod",)}
_NEW_JOB: dict[str, Any] = _NEW | {"kinds": ("Job",)}

STEPS: tuple[Step, ...] = (
    # identity
    Step(name="owner", apply=stamp, sets=_parts(Part.OWNER)),
    Step(name="marks of services", apply=restore_protected, sets=_parts(Part.MARKS)),
    # fields to fill in
    Step(
        name="machine",
        apply=make_guest,
        reads=_parts(Part.AMOUNTS, Part.GPUS, Part.NODES, Part.TOLERATIONS, Part.GATES, Part.PRIORITY, Part.MARKS),
        sets=_parts(Part.AMOUNTS, Part.GPUS, Part.NODES, Part.TOLERATIONS, Part.GATES, Part.PRIORITY, Part.MARKS),
        **_NEW_POD,
    ),
    Step(
        name="defaults of CPU and memory",
        apply=fill_in_amounts,  # where it reads retries, it means the author's value
        reads=_parts(Part.AMOUNTS, Part.MARKS),
        sets=_parts(Part.AMOUNTS, Part.MARKS),
        **_NEW,
    ),
    # where it runs
    Step(
        name="own nodes of the tenant",
        apply=choose_own_nodes,
        reads=_parts(Part.GPUS, Part.NODES, Part.TOLERATIONS),
        sets=_parts(Part.NODES, Part.TOLERATIONS),
        **_NEW_POD,
    ),
    Step(
        name="away from GPU nodes",
        apply=keep_off_gpu_nodes,
        reads=_parts(Part.GPUS, Part.NODES),
        sets=_parts(Part.NODES),
        **_NEW,
    ),
    # requirements
    Step(
        name="guardrails of the policy",
        apply=partial(apply_policy, fill=True),
        reads=_parts(Part.GPUS, Part.AMOUNTS, Part.NODES, Part.RETRIES),
        sets=_parts(Part.AMOUNTS, Part.NODES, Part.RETRIES),
    ),
    Step(
        name="kills for memory",
        apply=answer_kills,
        reads=_parts(Part.AMOUNTS, Part.GATES),
        sets=_parts(Part.AMOUNTS, Part.GATES, Part.MARKS),
        **_NEW_POD,
    ),
    Step(
        name="restarts",
        apply=limit_restarts,
        reads=_parts(Part.AMOUNTS, Part.RETRIES),
        sets=_parts(Part.RETRIES, Part.MARKS),
    ),
    Step(name="advice on limits", apply=advise_limits, reads=_parts(Part.AMOUNTS, Part.RETRIES), **_NEW),
    Step(name="nodes of others", apply=judge_nodes, reads=_parts(Part.NODES, Part.TOLERATIONS), kinds=("Pod",)),
    # when it runs
    Step(
        name="budgets",
        apply=apply_budgets,
        reads=_parts(Part.GPUS, Part.OWNER, Part.PRIORITY),
        sets=_parts(Part.PRIORITY, Part.MARKS),
    ),
    Step(
        name="class that does not preempt",
        apply=choose_class,
        reads=_parts(Part.PRIORITY),
        sets=_parts(Part.PRIORITY),
        **_NEW_POD,
    ),
    Step(
        name="scheduler",
        apply=name_scheduler,
        reads=_parts(Part.GPUS, Part.SCHEDULER),
        sets=_parts(Part.SCHEDULER),
        **_NEW_POD,
    ),
    Step(name="Pod Security", apply=meet_restricted, sets=_parts(Part.SECURITY), **_NEW_POD),
    Step(name="advice on users", apply=advise_users, reads=_parts(Part.SECURITY), **_NEW_JOB),
    Step(
        name="queue of Kueue",
        apply=lambda draft: draft.apply(leave_queue(draft.request)),
        sets=_parts(Part.QUEUE),
        **_NEW_JOB,
    ),
)


def admit(request: Request) -> Verdict:
    """Run all admission steps: fill in defaults, set the owner, and refuse.

    Admission of the patched object gives no more patches and the same refusals.
    """
    draft = make_draft(request)
    for step in STEPS:
        if request.kind in step.kinds and request.operation in step.operations:
            step.apply(draft)
    if draft.refusals:
        return Verdict((), _one_for_each_field(draft), ())  # a refused object is not changed
    return Verdict(tuple(_differences(request.obj, draft.obj)), (), tuple(draft.warnings))


def judge(request: Request) -> Verdict:
    """Refuse an invalid object; nothing is changed. Faults that existed before an update do not block it."""
    draft = make_draft(request)
    judge_owner(draft)
    judge_protected(draft)
    if draft.is_run and not is_deleting(request.obj):
        check_run(draft)
    apply_policy(draft, fill=False)
    judge_nodes(draft)
    judge_schedules(draft)
    draft.refusals += judge_secrets(request)
    return Verdict((), _one_for_each_field(draft), ())


def judge_growth(request: Request) -> Verdict:
    """Judge an update through a subresource, `scale` or `resize`, by the growth it asks for; for budgets."""
    draft = make_draft(request)
    apply_budgets(draft)
    return Verdict((), _one_for_each_field(draft), tuple(draft.warnings))


def _one_for_each_field(draft: Draft) -> tuple[Refusal, ...]:
    return tuple({refusal.field: refusal for refusal in reversed(draft.refusals)}.values())[::-1]


# --- patches

_INTO = frozenset(
    {"metadata", "spec", "template", "jobTemplate", "workflowMetadata"}
)  # other tables are set whole
_NOTHING: tuple[Any, ...] = (None, {}, [], "")


def _differences(before: Obj, after: Obj, path: str = "") -> Iterator[Obj]:
    """The patches (RFC 6902) from one object to another; an empty table counts as a missing one."""
    for key in {**before, **after}:
        old, new, where = before.get(key), after.get(key), f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if key in _INTO and isinstance(new, dict) and (old is None or isinstance(old, dict)):
            if inner := list(_differences(old or {}, new, where)):
                yield from inner if old is not None else ({"op": "add", "path": where, "value": new},)
        elif old != new and not (old in _NOTHING and new in _NOTHING):
            yield {"op": "remove", "path": where} if new is None else {"op": "add", "path": where, "value": new}
