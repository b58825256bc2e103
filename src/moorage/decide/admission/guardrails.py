"""What admission changes about a pod or a Job, what it refuses, and what it advises, by field path.

Every object is stamped with its owner (`ownership`), marks of our services stay as they are (`marks`), and runs
are held to their guardrails (`runrules`). Where a GuardrailPolicy holds, its rules
(`moorage.decide.admission.rulebook`) are applied besides, to every kind with a pod template, when it is created
and when its template changes. What Kubernetes' controllers create from a workload is not judged again, but for the
replacements of pods that were killed for memory (`moorage.decide.runs.killanswer`).

`admit` is what the mutating webhook does, `judge` what the validating one does: it sees the object that is about
to be stored, also where others changed it after us. Both are total: they never raise for an object that the API
server let through.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.decide.admission.budgets import POD_CLASS, apply_budgets, priority_place
from moorage.decide.admission.fields import at
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.marks import MORE_METADATA, judge_marks, keep_marks
from moorage.decide.admission.ownership import owners, stamp
from moorage.decide.admission.review import TEMPLATES, Draft, Refusal, Request, Verdict, is_deleting, make_draft
from moorage.decide.admission.rulebook import judge_workload
from moorage.decide.admission.runrules import advise, cap_restarts, check_run, complete_run, complete_step
from moorage.decide.admission.templates import JOBS, WORKLOADS
from moorage.decide.runs.killanswer import Hold, Raise, answer, behind_gate, with_more_memory
from moorage.decide.runs.memorykills import is_gated, rule_of
from moorage.model.budget import Budget
from moorage.model.names import MACHINE_TYPE_LABEL, MEMORY_GATE

_CHANGED_OF_PODS = (
    "containers",
    "initContainers",
    "affinity",
    "activeDeadlineSeconds",
    "restartPolicy",
    "schedulingGates",
)
_CHANGED_OF_JOBS = ("backoffLimit", "podFailurePolicy", "podReplacementPolicy")
_NOTHING: tuple[Any, ...] = (None, {}, [], "")


def admit(
    request: Request,
    *,
    budgets: Sequence[Budget] = (),
    tenant: str = "",
    now: datetime | None = None,
    gpu_machines: Collection[str] = (),
) -> Verdict:
    """Fill in, stamp, and refuse. Admitting the patched object again gives no patch and the same refusals.

    `budgets`, `tenant`, `now` and `gpu_machines` are for `apply_budgets`.
    """
    draft = make_draft(request)
    stamp(draft)
    keep_marks(draft)
    if draft.is_run and not is_deleting(request.obj):
        if request.operation == "CREATE":
            complete_run(draft)
        elif not request.is_copy:
            cap_restarts(draft)
        check_run(draft)
    elif request.operation == "CREATE" and request.is_step:
        complete_step(draft)
    elif request.operation == "CREATE" and not request.is_copy and request.policy is None:
        advise(draft)
    _apply_policy(draft, fill=True)
    _answer_kills(draft)
    if budgets and now is not None:
        apply_budgets(draft, budgets, user=request.user, tenant=tenant, now=now, gpu_machines=gpu_machines)
    if draft.refusals:
        return Verdict((), tuple(draft.refusals), ())  # a refused object is not changed
    return Verdict(_differences(request.obj, draft.obj, request.kind), (), tuple(draft.warnings))


def judge(request: Request) -> Verdict:
    """Refuse what must not be stored; nothing is changed. What was wrong before an update does not hinder it."""
    draft = make_draft(request)
    for path, where, table, key, wanted in owners(request):
        value = at(draft.obj, (*path, table, key))
        if value is not None and value != wanted:
            allowed = "must not be set" if wanted is None else f"must be {wanted!r}"
            message = f"{allowed}: the owner is who created the object, and is set by Moorage"
            draft.refusals.append(Refusal(f"{where}.{table}[{key}]", repr(value), message))
    judge_marks(draft)
    if draft.is_run and not is_deleting(request.obj):
        check_run(draft)
    _apply_policy(draft, fill=False)
    return Verdict((), tuple(draft.refusals), ())


# --- policies


def _apply_policy(draft: Draft, *, fill: bool) -> None:
    """The rules of a GuardrailPolicy; an update that changes a template is held to them for new findings only.

    Templates of Pods and Jobs cannot change, and one that was not touched is left as it is: to fill it in would
    start every pod of it again.
    """
    request = draft.request
    is_judged = request.is_copy and not request.is_step
    if request.policy is None or is_judged or is_deleting(request.obj) or request.kind not in WORKLOADS:
        return
    known: set[tuple[str, str]] = set()
    if request.operation == "UPDATE" and request.old is not None:
        where = WORKLOADS[request.kind][:-1] if request.kind == "CronJob" else WORKLOADS[request.kind]
        if request.kind in ("Pod", "Job") or at(request.obj, where) == at(request.old, where):
            return
        before = judge_workload(
            request.kind, request.old, request.policy, facts=request.facts, away=request.away_from_gpus
        )
        known = {(finding.rule, finding.field) for finding in before.denied}
    judgement = judge_workload(
        request.kind, draft.obj, request.policy, facts=request.facts, away=request.away_from_gpus, fill=fill
    )
    draft.obj = judgement.obj
    refused = {refusal.field for refusal in draft.refusals}
    for finding in judgement.denied:
        if (finding.rule, finding.field) not in known and finding.field not in refused:
            draft.refusals.append(_refusal(finding))
    draft.warnings += [f"{finding} ({finding.rule})" for finding in (*judgement.filled, *judgement.warned)]


def _answer_kills(draft: Draft) -> None:
    """The replacement of a pod that was killed for memory gets more of it, or waits behind a gate."""
    request = draft.request
    if request.known is None or request.kind != "Pod" or request.operation != "CREATE" or is_gated(draft.obj):
        return
    # a machine's guest has what its machine has
    decided = answer(draft.obj, request.known, rule_of(request.policy), may_raise=not _is_guest(draft.obj))
    match decided:
        case Hold(kill):
            draft.obj = behind_gate(draft.obj, kill)
            draft.warnings.append(f"held behind the gate {MEMORY_GATE}: {kill} (restartBomb)")
        case Raise():
            draft.obj, text = with_more_memory(draft.obj, decided)
            draft.warnings.append(f"{text} (restartBomb)")


def _is_guest(pod: Mapping[str, Any]) -> bool:
    return MACHINE_TYPE_LABEL in ((pod.get("metadata") or {}).get("labels") or {})


def _refusal(finding: Finding) -> Refusal:
    return Refusal(finding.field, finding.value, f"{finding.message} (guardrail {finding.rule})")


# --- patches


def _differences(before: Obj, after: Obj, kind: str) -> tuple[Obj, ...]:
    """Whole tables are set where they differ; their parents exist in every object the API server admits."""
    paths: list[tuple[str, ...]] = [("metadata", "labels"), ("metadata", "annotations")]
    paths += TEMPLATES.get(kind, ())
    paths += [(*path, "annotations") for path in MORE_METADATA.get(kind, ())]
    if kind in WORKLOADS:
        template = tuple(map(str, WORKLOADS[kind]))
        paths += [(*template, "spec", key) for key in _CHANGED_OF_PODS]
        if kind in JOBS:
            paths += [(*template[:-1], key) for key in _CHANGED_OF_JOBS]
    if (spec := priority_place(kind)) is not None:
        paths += [(*spec, key) for key in (POD_CLASS if kind == "Pod" else POD_CLASS[:1])]
    patches = []
    for path in paths:
        old, new = at(before, path), at(after, path)
        if old != new and not (old in _NOTHING and new in _NOTHING):
            patches.append({"op": "add", "path": "/" + "/".join(path), "value": new})
    return tuple(patches)
