"""The limit on the number of schedules of a CronWorkflow.

`moor lint` and the operator parse and check each schedule; admission only counts them.
"""

from __future__ import annotations

from moorage.decide.admission.fields import at
from moorage.decide.admission.review import Draft, Refusal

SCHEDULES = 100  # of one CronWorkflow


def judge_schedules(draft: Draft) -> None:
    """Refuse a CronWorkflow with too many schedules, unless an update does not change them."""
    path = ("spec", "schedules")
    schedules = at(draft.obj, path)
    if draft.request.kind != "CronWorkflow" or not isinstance(schedules, list) or len(schedules) <= SCHEDULES:
        return
    if schedules != at(draft.request.old, path):
        draft.refusals.append(
            Refusal("spec.schedules", f"{len(schedules):,} schedules", f"at most {SCHEDULES} are allowed")
        )
