"""What becomes of new work of somebody whose budget is used up.

Judged is what a person creates: Jobs and other workloads, maps, workspaces, workflows. What controllers create
from it is not judged again, so runs that are under way go on, also over restarts. Budgets of GPU-hours hold for
work that asks for GPUs, budgets of money for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from moorage.apimachinery.scheduling import is_gpu
from moorage.decide.admission.fields import at
from moorage.decide.admission.review import OPERATOR, Draft, Refusal
from moorage.decide.admission.templates import WORKLOADS
from moorage.decide.budgets.use import standings, strictest
from moorage.model.budget import QUEUE, REFUSE, WARN, Budget
from moorage.model.names import OVER_BUDGET_PRIORITY

KINDS = (*WORKLOADS, "MapJob", "Workspace", "Workflow")
_MAP_TEMPLATE = ("spec", "template")


def apply_budgets(draft: Draft, budgets: Iterable[Budget], *, user: str, tenant: str, now: datetime) -> None:
    """Refuse, put behind others, or warn; nothing for what no budget holds for."""
    request = draft.request
    if request.is_copy or request.user == OPERATOR or request.kind not in KINDS:
        return
    if request.operation != "CREATE" and not _leaves_the_end(draft):
        return
    with_gpus = asks_gpus(draft.obj.get("spec"))
    held = [
        standing
        for standing in standings(budgets, user=user, tenant=tenant, now=now)
        if standing.budget.is_money or with_gpus
    ]
    over = strictest(held)
    if over is None:
        return
    if request.operation != "CREATE":
        if over.budget.when_over != WARN and _behind(draft):
            draft.warnings.append(f"{over.text}: it goes on waiting behind the work of others")
        return
    if over.budget.when_over == REFUSE:
        draft.refusals.append(
            Refusal("spec", "", f"{over.text}; new work is refused. Ask an administrator for more")
        )
        return
    if over.budget.when_over == QUEUE and _behind(draft):
        draft.warnings.append(f"{over.text}: it waits behind the work of others")
        return
    draft.warnings.append(over.text)


def asks_gpus(spec: Any) -> bool:
    """Whether GPUs are asked for anywhere in a spec, by a resource or by a field `gpus`."""
    if isinstance(spec, Mapping):
        return any(
            ((is_gpu(str(key)) or key in ("gpus", "gpu")) and value not in (None, 0, "0", "", {}, []))
            or asks_gpus(value)
            for key, value in spec.items()
        )
    if isinstance(spec, list):
        return any(asks_gpus(value) for value in spec)
    return False


def priority_place(kind: str) -> tuple[str, ...] | None:
    """Where the spec of the pods is that are made from a kind; None for one without a template of them.

    Of a pod itself the priority is set before webhooks are asked.
    """
    if kind == "MapJob":
        return (*_MAP_TEMPLATE, "spec")
    return (*map(str, WORKLOADS[kind]), "spec") if kind in WORKLOADS and kind != "Pod" else None


def _leaves_the_end(draft: Draft) -> bool:
    """Whether an update takes away the class of those who wait."""
    path = priority_place(draft.request.kind)
    if path is None or at(draft.request.old, (*path, "priorityClassName")) != OVER_BUDGET_PRIORITY:
        return False
    return bool(at(draft.obj, (*path, "priorityClassName")) != OVER_BUDGET_PRIORITY)


def _behind(draft: Draft) -> bool:
    """Name the class of those who wait, where pods are made from a template, whatever class its author named."""
    path = priority_place(draft.request.kind)
    spec = None if path is None else at(draft.obj, path)
    if not isinstance(spec, dict):
        return False
    spec["priorityClassName"] = OVER_BUDGET_PRIORITY
    return True
