"""Apply a GuardrailPolicy, and the memory kills of earlier pods, to an object at admission.

A policy's rules (`moorage.decide.admission.rulebook`) are applied to every kind with a pod template, when it is
created and when its template changes. Objects that Kubernetes' controllers create from a workload are not judged
again, except replacements of pods that were killed for memory (`moorage.decide.runs.killanswer`).
"""

from __future__ import annotations

from moorage.decide.admission.fields import at
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.review import Draft, Refusal, is_deleting
from moorage.decide.admission.rulebook import judge_workload
from moorage.decide.admission.templates import WORKLOADS
from moorage.decide.runs.killanswer import Hold, Raise, answer, behind_gate, with_more_memory
from moorage.decide.runs.memorykills import is_gated, rule_of
from moorage.model.names import MEMORY_GATE


def apply_policy(draft: Draft, *, fill: bool) -> None:
    """Apply the rules of the GuardrailPolicy. An update of a template is refused only for new findings.

    Templates of Pods and Jobs cannot change. A template that the update does not change is not filled in either:
    a change would restart all its pods.
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
    draft.refusals += [
        _refusal(finding) for finding in judgement.denied if (finding.rule, finding.field) not in known
    ]
    draft.warnings += [f"{finding} ({finding.rule})" for finding in (*judgement.filled, *judgement.warned)]


def answer_kills(draft: Draft) -> None:
    """Give more memory to the replacement of a pod that was killed for memory, or hold it behind a gate."""
    request = draft.request
    if request.known is None or request.kind != "Pod" or request.operation != "CREATE" or is_gated(draft.obj):
        return
    # a machine's guest has the resources of its machine
    decided = answer(draft.obj, request.known, rule_of(request.policy), may_raise=not draft.is_guest)
    match decided:
        case Hold(kill):
            draft.obj = behind_gate(draft.obj, kill)
            draft.warnings.append(f"held behind the gate {MEMORY_GATE}: {kill} (restartBomb)")
        case Raise():
            draft.obj, text = with_more_memory(draft.obj, decided)
            draft.warnings.append(f"{text} (restartBomb)")


def _refusal(finding: Finding) -> Refusal:
    return Refusal(finding.field, finding.value, f"{finding.message} (guardrail {finding.rule})")
