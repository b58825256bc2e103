"""Marks of our services on objects of people: they stay as they are, whoever writes others."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.order import admit, judge
from moorage.decide.admission.review import OPERATOR, SERVER, Request
from moorage.model.names import ENDED_ANNOTATION, OVER_BUDGET_ANNOTATION, SERVICE_MARKS, SUSPENDED_ANNOTATION

FORGED = '{"state":"snoozed","snoozed_until":"2099-01-01T00:00:00Z"}'
KINDS = ("Job", "MapJob", "Workspace", "Workflow", "CronWorkflow", "CronJob", "Pod", "Dataset", "VolumeBackup")
OURS = [
    (OPERATOR, ()),
    (SERVER, ()),
    ("system:kube-controller-manager", ()),
    ("system:serviceaccount:kube-system:cronjob-controller", ()),
    ("root", ("system:masters",)),
]


def an_object(**annotations: str) -> Any:
    meta: dict[str, Any] = {"name": "x", "namespace": "lab"}
    return {"metadata": meta | ({"annotations": annotations} if annotations else {}), "spec": {}}


def asked(kind: str, obj: Any, old: Any = None, *, user: str = "ada", groups: tuple[str, ...] = ()) -> Request:
    operation = "CREATE" if old is None else "UPDATE"
    return Request(kind=kind, operation=operation, user=user, groups=groups, obj=obj, old=old)


def patched(request: Request) -> Any:
    made = copy.deepcopy(request.obj)
    for patch in admit(request).patches:
        *path, last = patch["path"].lstrip("/").split("/")
        target = made
        for step in path:
            target = target.setdefault(step, {})
        target[last] = patch["value"]
    return made


def marks_of(obj: Any) -> dict[str, str]:
    notes = obj["metadata"].get("annotations") or {}
    return {key: text for key, text in notes.items() if key in (*SERVICE_MARKS, SUSPENDED_ANNOTATION)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mark", SERVICE_MARKS)
def test_nobody_makes_an_object_that_bears_a_mark_of_ours(kind, mark):
    request = asked(kind, an_object(**{mark: FORGED}))
    assert marks_of(patched(request)) == {}
    assert any(mark in warning and "removed" in warning for warning in admit(request).warnings)
    [refusal] = judge(request).refusals
    assert refusal.field == f"metadata.annotations[{mark}]"
    assert refusal.message == "must not be set: Moorage writes it"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mark", SERVICE_MARKS)
@pytest.mark.parametrize("after", [None, FORGED])
def test_nobody_changes_or_removes_a_mark_of_ours(kind, mark, after):
    old = an_object(**{mark: "stored"})
    new = an_object(**({} if after is None else {mark: after}))
    request = asked(kind, new, old)
    assert marks_of(patched(request)) == {mark: "stored"}
    assert [refusal.field for refusal in judge(request).refusals] == [f"metadata.annotations[{mark}]"]
    assert judge(asked(kind, patched(request), old)).refusals == ()


@pytest.mark.parametrize("mark", SERVICE_MARKS)
@pytest.mark.parametrize(("user", "groups"), OURS)
def test_our_services_and_administrators_write_marks(mark, user, groups):
    for old in (None, an_object(**{mark: "stored"})):
        request = asked("Job", an_object(**{mark: "after"}), old, user=user, groups=groups)
        assert marks_of(patched(request)) == {mark: "after"}
        assert judge(request).refusals == ()


@pytest.mark.parametrize("user", ["ada", "system:serviceaccount:moorage-system:default", "moorage-server"])
def test_an_owner_reference_or_a_like_name_lets_nobody_write_marks(user):
    job = an_object(**{SERVICE_MARKS[0]: "lab/other"})
    job["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "y", "uid": "1", "controller": True}]
    assert judge(asked("Job", job, user=user)).refusals != ()


def test_a_schedule_makes_nothing_that_bears_a_mark():
    forged = {"annotations": {SERVICE_MARKS[0]: "lab/other", "team": "vision"}}
    cron = an_object()
    cron["spec"] = {"jobTemplate": {"metadata": forged, "spec": {"template": {"metadata": {}, "spec": {}}}}}
    made = patched(asked("CronJob", cron))
    assert made["spec"]["jobTemplate"]["metadata"]["annotations"].get("team") == "vision"
    assert SERVICE_MARKS[0] not in made["spec"]["jobTemplate"]["metadata"]["annotations"]
    assert len(judge(asked("CronJob", cron)).refusals) == 1
    schedule = an_object()
    schedule["spec"] = {"workflowMetadata": forged}
    made = patched(asked("CronWorkflow", schedule))
    assert made["spec"]["workflowMetadata"]["annotations"] == {"team": "vision"}


def test_who_suspends_a_run_does_it_in_their_own_name_and_anybody_who_may_resumes_it():
    mine, theirs = (an_object(**{SUSPENDED_ANNOTATION: json.dumps({"by": name})}) for name in ("ada", "grace"))
    assert judge(asked("Job", mine, an_object())).refusals == ()
    assert judge(asked("Job", an_object(), theirs)).refusals == ()
    [refusal] = judge(asked("Job", theirs, an_object())).refusals
    assert "users suspend a run in their own name only" in refusal.message
    assert marks_of(patched(asked("Job", theirs, an_object()))) == {}
    for text in ("", "no JSON", "{}", '{"by": 1}', "[]"):
        assert judge(asked("Job", an_object(**{SUSPENDED_ANNOTATION: text}), an_object())).refusals != ()


def test_people_cancel_a_run_and_let_no_run_that_has_ended_go_on():
    cancelled = an_object(**{ENDED_ANNOTATION: "Cancelled by ada"})
    ended = an_object(**{ENDED_ANNOTATION: "TooManyRestarts: 20"})
    for old in (an_object(), ended):
        assert judge(asked("Job", cancelled, old)).refusals == ()
    for old, new in (
        (cancelled, an_object()),
        (ended, an_object()),
        (an_object(), ended),
        (ended, an_object(**{ENDED_ANNOTATION: ""})),
    ):
        [refusal] = judge(asked("Job", new, old)).refusals
        assert "users can only cancel a run" in refusal.message


def test_a_guest_that_is_let_through_last_stays_so():
    last = an_object(**{OVER_BUDGET_ANNOTATION: "true"})
    assert judge(asked("Pod", last)).refusals == ()
    assert judge(asked("Pod", an_object(), last)).refusals != ()
    assert judge(asked("Pod", last, an_object())).refusals != ()


_NOTES = st.dictionaries(
    st.sampled_from([*SERVICE_MARKS, SUSPENDED_ANNOTATION, ENDED_ANNOTATION, OVER_BUDGET_ANNOTATION, "team"]),
    st.sampled_from(["", "a", "Cancelled by ada", '{"by":"ada"}', '{"by":"grace"}']),
)


@given(kind=st.sampled_from(KINDS), before=st.none() | _NOTES, after=_NOTES)
def test_what_the_mutating_side_leaves_the_validating_side_lets_pass(kind, before, after):
    old = None if before is None else an_object(**before)
    request = asked(kind, an_object(**after), old)
    made = patched(request)
    assert judge(asked(kind, made, old)).refusals == ()
    again = admit(asked(kind, made, old))
    assert again.patches == ()
    for mark in SERVICE_MARKS:
        assert marks_of(made).get(mark) == (before or {}).get(mark)
    assert ("team" in (made["metadata"].get("annotations") or {})) == ("team" in after)
