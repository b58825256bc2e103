"""Budgets: periods, what was used, notices, and what becomes of new work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.admission.budgets import asks_gpus
from moorage.decide.admission.order import admit
from moorage.decide.admission.review import OPERATOR, Request
from moorage.decide.budgets.use import due, gpu_hours, period_of, standings, uses_of
from moorage.model.budget import budgets_of, check_budget, parse_budget
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.machine import Fault
from moorage_testing.costs import HOUR, a_share

NOW = datetime(2026, 11, 25, 15, 30, tzinfo=UTC)  # a Wednesday; in Tokyo it is the 26th


def a_budget(name="month", *, used=None, end="2026-12-01T00:00:00Z", **spec):
    status = {}
    if used is not None:
        uses = [{"name": who, "used": str(amount), "percent": int(amount)} for who, amount in used.items()]
        status = {"start": "2026-11-01T00:00:00Z", "end": end, "uses": uses}
    return {
        "metadata": {"name": name, "resourceVersion": "1", "generation": 1},
        "spec": {"users": ["*"], "gpuHours": "100"} | spec,
        "status": status,
    }


def test_every_mistake_of_a_budget_is_named():
    assert check_budget(
        a_budget(tenants=["vision"], money="0", timeZone="Mars", notify=["command:rm", "https://ok.example.com/x"])
    ) == [
        Fault("spec", "", "must have users or tenants, and not both"),
        Fault("spec", "", "must have gpuHours or money, and not both"),
        Fault("spec.money", "0", "must be a number above 0, such as 500 or 12.5"),
        Fault("spec.timeZone", "Mars", "must be a time zone of the IANA database, such as Europe/Berlin"),
        Fault("spec.notify[0]", "", "must be https://… or mailto:ADDRESS"),
    ]
    assert check_budget(a_budget()) == []
    assert budgets_of([a_budget(gpuHours="none")]) == []


@pytest.mark.parametrize(
    ("period", "zone", "start", "end"),
    [
        ("day", "UTC", datetime(2026, 11, 25, tzinfo=UTC), datetime(2026, 11, 26, tzinfo=UTC)),
        ("day", "Asia/Tokyo", datetime(2026, 11, 25, 15, tzinfo=UTC), datetime(2026, 11, 26, 15, tzinfo=UTC)),
        ("week", "UTC", datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 30, tzinfo=UTC)),
        ("month", "UTC", datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        ("month", "Asia/Tokyo", datetime(2026, 10, 31, 15, tzinfo=UTC), datetime(2026, 11, 30, 15, tzinfo=UTC)),
    ],
)
def test_a_period_begins_by_the_clocks_of_its_time_zone(period, zone, start, end):
    assert period_of(NOW, period, zone) == (start, end)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)), st.sampled_from(["day", "week", "month"]),
       st.sampled_from(["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin"]))  # fmt: skip
def test_periods_follow_each_other_without_a_gap(moment, period, zone):
    now = moment.replace(tzinfo=UTC)
    start, end = period_of(now, period, zone)
    assert start <= now < end
    assert period_of(end.astimezone(UTC), period, zone)[0] == end
    before = period_of(start.astimezone(UTC) - timedelta(seconds=1), period, zone)
    assert before[1] == start


def test_gpu_hours_are_those_of_the_period_by_user_or_tenant():
    since = NOW - 10 * HOUR
    pods = [
        a_share("a", since=since - 5 * HOUR, hours=7, gpus=2),
        a_share("b", since=since, hours=None, gpus=1, owner="ben", namespace="speech"),
        a_share("c", since=since, hours=1, gpus=0),
        a_share("d", since=since, hours=1, gpus=1, owner="-", namespace="speech"),
    ]
    assert gpu_hours(pods, since=since, until=NOW, tenants=None) == {"ada": 4, "ben": 10}
    assert gpu_hours(pods, since=since, until=NOW, tenants={"speech": "ears"}) == {"ears": 11}


def test_a_notice_is_due_once_for_each_share_that_was_passed():
    budget, start = parse_budget(a_budget()), datetime(2026, 11, 1, tzinfo=UTC)
    uses = uses_of(budget, {"ada": Decimal("81.5"), "ben": Decimal(3), "cyd": Decimal(120)}, start=start)
    assert [(use.name, str(use.used), use.percent) for use in uses] == [
        ("cyd", "120.00", 120), ("ada", "81.50", 81), ("ben", "3.00", 3),
    ]  # fmt: skip
    marked, notices = due(budget, uses, start=start)
    assert [(notice.title, notice.key) for notice in notices] == [
        ("budget month: cyd has used 100 %", "budget/month/cyd/2026-11-01/100"),
        ("budget month: ada has used 80 %", "budget/month/ada/2026-11-01/80"),
    ]
    assert due(budget, marked, start=start) == (marked, ())
    later = replace(budget, uses=marked, start=start)
    assert [use.warned for use in uses_of(later, {"ada": Decimal(99)}, start=start)] == [80]
    december = datetime(2026, 12, 1, tzinfo=UTC)
    assert [use.warned for use in uses_of(later, {"ada": Decimal(99)}, start=december)] == [0]


def test_the_numbers_of_a_period_that_is_over_hold_for_nobody():
    budgets = budgets_of([a_budget(used={"ada": 120})])
    (now,) = standings(budgets, user="ada", tenant="", now=NOW)
    (later,) = standings(budgets, user="ada", tenant="", now=datetime(2026, 12, 1, tzinfo=UTC))
    assert (now.is_over, later.is_over) == (True, False)
    assert now.text == "budget month of ada: 120 of 100 GPU-hours used (120 %), until 2026-12-01"


# -- what becomes of new work ------------------------------------------------------------------------------


def a_job(gpus=1, **spec):
    resources = {"limits": {"memory": "1Gi", **({"nvidia.com/gpu": gpus} if gpus else {})}}
    pod = {"containers": [{"name": "main", "resources": resources}], "restartPolicy": "Never"} | spec
    return {"metadata": {"name": "train", "namespace": "lab"}, "spec": {"template": {"spec": pod}}}


def decide(obj, *budgets, user="ada", kind="Job", operation="CREATE", tenant="vision", old=None):
    return admit(
        Request(
            kind=kind,
            operation=operation,
            user=user,
            obj=obj,
            old=old,
            budgets=budgets_of(budgets),
            tenant={"metadata": {"name": tenant}},
            now=NOW,
            gpu_machines={"xlarge", "a100s"},
        )
    )


def class_of(verdict):
    values = [patch.get("value") for patch in verdict.patches]
    return "moorage-over-budget" in str(values)


OVER = {"ada": 120}
LARGER = [{"name": "main", "resources": {"limits": {"memory": "2Gi"}}}]


def at(job):
    """A pod as a Job's template has it."""
    return {"metadata": {"name": "p"}, "spec": job["spec"]["template"]["spec"]}


@pytest.mark.parametrize(
    ("when_over", "refused", "queued", "warned"),
    [("warn", False, False, True), ("queue", False, True, True), ("refuse", True, False, False)],
)
def test_new_work_of_who_is_over_is_warned_of_put_behind_or_refused(when_over, refused, queued, warned):
    verdict = decide(a_job(), a_budget(used=OVER, whenOver=when_over))
    over = "budget month of ada: 120 of 100 GPU-hours used (120 %), until 2026-12-01"
    assert [refusal.message.startswith(over) for refusal in verdict.refusals] == [True] * refused
    assert class_of(verdict) is queued
    assert any(warning.startswith(over) for warning in verdict.warnings) is warned


@pytest.mark.parametrize(
    ("obj", "more"),
    [
        pytest.param(a_job(gpus=0), {}, id="a budget of GPU-hours is not for work without GPUs"),
        pytest.param(a_job(), {"user": "ben"}, id="another user"),
        pytest.param(a_job(), {"operation": "UPDATE"}, id="what is there already"),
        pytest.param(a_job(), {"user": OPERATOR}, id="the next attempt of a run that is under way"),
        pytest.param(a_job(), {"user": "system:kube-controller-manager"}, id="what a controller makes"),
    ],
)
def test_a_budget_leaves_all_else_alone(obj, more):
    verdict = decide(obj, a_budget(used=OVER, whenOver="refuse"), **more)
    assert verdict.refusals == ()
    assert not any("budget" in warning for warning in verdict.warnings)


def test_the_strictest_budget_that_is_over_decides_and_money_is_for_all_work():
    mild = a_budget("a", used=OVER)
    team = a_budget(
        "b", used={"vision": 100}, users=[], tenants=["vision"], gpuHours="", money="100", whenOver="refuse"
    )
    assert [refusal.field for refusal in decide(a_job(gpus=0), mild, team).refusals] == ["spec"]
    assert decide(a_job(gpus=0), mild, team, tenant="speech").refusals == ()


@pytest.mark.parametrize("name", ["urgent", "moorage-default", "standard"])
def test_no_class_that_its_author_names_leads_past_the_end_of_the_queue(name):
    verdict = decide(a_job(priorityClassName=name), a_budget(used=OVER, whenOver="queue"))
    assert class_of(verdict)


@pytest.mark.parametrize("when_over", ["queue", "refuse"])
def test_an_update_does_not_take_work_from_the_end_of_the_queue_while_the_budget_is_used_up(when_over):
    old, new = a_job(priorityClassName="moorage-over-budget"), a_job()
    for used, kept in ((OVER, True), ({"ada": 20}, False)):
        budget = a_budget(used=used, whenOver=when_over)
        verdict = decide(new, budget, kind="MapJob", operation="UPDATE", old=old)
        assert class_of(verdict) is kept
        assert verdict.refusals == ()
    over = a_budget(used=OVER, whenOver=when_over)
    assert decide(old, over, kind="MapJob", operation="UPDATE", old=old).patches == ()


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"gpus": 1}, True), ({"gpus": 0}, False), ({"resources": {"gpu": "2"}}, True), (None, False),
        ({"templates": [{"container": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}}]}, True),
        ({"templates": [{"container": {"image": "gpu"}}]}, False),
        ({"resourceClaims": [{"name": "gpu"}]}, True), ({"resources": {"gpuClaim": "two"}}, True),
        ({"machine": {"type": "xlarge"}}, True), ({"machine": {"type": "small"}}, False),
    ],
)  # fmt: skip
def test_gpus_are_seen_wherever_they_are_asked_for(spec, want):
    assert asks_gpus(spec, {"xlarge"}) is want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}', True, id="JSON"
        ),
        pytest.param("containers: [{name: main, resources: {limits: {amd.com/gpu: 1}}}]", True, id="YAML"),
        pytest.param("resourceClaims: [{name: gpu}]", True, id="a claim"),
        pytest.param("{{workflow.parameters.patch}}", True, id="not known before it runs"),
        pytest.param('{"containers": [{"name": "main", "resources": {"limits": {"cpu": 8}}}]}', False, id="CPUs"),
        pytest.param("{", False, id="invalid"),
    ],
)
def test_gpus_in_a_patch_of_the_pods_spec_count(text, want):
    assert asks_gpus({"templates": [{"name": "x", "podSpecPatch": text}]}) is want
    obj = {"metadata": {"name": "w"}, "spec": {"podSpecPatch": text}}
    refusing = a_budget(used={"ada": 100}, whenOver="refuse")
    assert bool(decide(obj, refusing, kind="Workflow").refusals) is want


MAKES = """
kind: Job
metadata: {{generateName: "a-{{{{workflow.name}}}}-"}}
spec:
  template:
    spec:
      containers:
      - name: {{{{inputs.parameters.name}}}}
        resources: {{limits: {limits}}}
"""


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(MAKES.format(limits="{nvidia.com/gpu: 1}"), True, id="a Job with GPUs"),
        pytest.param(MAKES.format(limits='{nvidia.com/gpu: "{{item.gpus}}"}'), True, id="their number"),
        pytest.param(MAKES.format(limits="{ {{inputs.parameters.what}}: 1}"), True, id="a resource by a tag"),
        pytest.param(MAKES.format(limits='{cpu: "{{inputs.parameters.cpu}}"}'), False, id="a Job without GPUs"),
        pytest.param("{{inputs.parameters.manifest}}", False, id="all of it a tag: it is judged when it is made"),
        pytest.param("[{{a}}: {nvidia.com/gpu: 1}", True, id="no YAML until its tags are replaced"),
    ],
)
def test_gpus_of_what_a_step_of_a_workflow_makes_count(text, want):
    assert asks_gpus({"templates": [{"name": "make", "resource": {"action": "create", "manifest": text}}]}) is want


def suspended(value, **labels):
    job = a_job()
    return {"metadata": job["metadata"] | {"labels": labels}, "spec": job["spec"] | {"suspend": value}}


def workload(gpus=0, *, replicas=1, field="replicas"):
    limits = {"memory": "1Gi"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    template = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    return {"metadata": {"name": "d"}, "spec": {field: replicas, "template": template}}


@pytest.mark.parametrize(
    ("kind", "old", "new", "want"),
    [
        pytest.param("Deployment", workload(), workload(1), True, id="GPUs are added"),
        pytest.param("Deployment", workload(1), workload(8), True, id="other GPUs"),
        pytest.param("Deployment", workload(1), workload(1, replicas=9), True, id="more replicas"),
        pytest.param("StatefulSet", workload(1), workload(1, replicas=2), True, id="of a StatefulSet"),
        pytest.param("ReplicaSet", workload(1), workload(1, replicas=2), True, id="of a ReplicaSet"),
        pytest.param(
            "Job",
            workload(1, field="parallelism"),
            workload(1, field="parallelism", replicas=2),
            True,
            id="of a Job",
        ),
        pytest.param("Deployment", workload(1, replicas=9), workload(1), False, id="fewer replicas"),
        pytest.param("Deployment", workload(1), workload(), False, id="no GPUs any more"),
        pytest.param("Deployment", workload(), workload(replicas=9), False, id="without GPUs"),
        pytest.param("Deployment", workload(1), workload(1), False, id="nothing of it"),
        pytest.param("Job", suspended(True), suspended(False), True, id="a Job is resumed"),
        pytest.param("Job", suspended(False), suspended(True), False, id="a Job is suspended"),
        pytest.param(
            "Job", *(suspended(each, **{QUEUE_LABEL: "a"}) for each in (True, False)), False, id="Kueue resumes it"
        ),
        pytest.param("Workflow", suspended(True), a_job(), True, id="a workflow is resumed"),
    ],
)
def test_an_update_that_asks_for_more_is_new_work(kind, old, new, want):
    refusing = a_budget(used={"ada": 100}, whenOver="refuse")
    assert bool(decide(new, refusing, kind=kind, operation="UPDATE", old=old).refusals) is want
    queueing = decide(new, a_budget(used={"ada": 100}, whenOver="queue"), kind=kind, operation="UPDATE", old=old)
    assert not queueing.refusals
    assert bool(queueing.warnings) is want


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        pytest.param("Deployment", a_job(0), a_job(0, containers=LARGER), id="memory of a Deployment"),
        pytest.param("Pod", *(at(each) for each in (a_job(0), a_job(0, containers=LARGER))), id="of a pod"),
        pytest.param(
            "Workspace",
            {"metadata": {}, "spec": {"resources": {"cpu": "1", "memory": "1Gi"}}},
            {"metadata": {}, "spec": {"resources": {"cpu": "2", "memory": "1Gi"}}},
            id="CPU of a workspace",
        ),
    ],
)
def test_more_cpu_or_memory_is_new_work_for_budgets_of_money_alone(kind, old, new):
    money = a_budget(gpuHours="", money="100", used=OVER, whenOver="refuse")
    assert decide(new, money, kind=kind, operation="UPDATE", old=old).refusals != ()
    assert decide(old, money, kind=kind, operation="UPDATE", old=new).refusals == ()
    assert (
        decide(new, a_budget(used=OVER, whenOver="refuse"), kind=kind, operation="UPDATE", old=old).refusals == ()
    )


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        pytest.param(
            "Workflow", {"templates": [{}]}, {"templates": [{"resources": {"gpu": "1"}}]}, id="a workflow"
        ),
        pytest.param("Workspace", {"resources": {"gpus": 0}}, {"resources": {"gpus": 1}}, id="a workspace"),
        pytest.param("Workspace", {"machine": {"type": "small"}}, {"machine": {"type": "xlarge"}}, id="a machine"),
        pytest.param(
            "Deployment",
            {"template": {"metadata": {"labels": {"moorage.dev/machine-type": "small"}}}},
            {"template": {"metadata": {"labels": {"moorage.dev/machine-type": "xlarge"}}}},
            id="a machine of a Deployment",
        ),
    ],
)
def test_gpus_that_an_update_adds_are_new_work_in_every_kind(kind, old, new):
    before, after = ({"metadata": {"name": "w"}, "spec": spec} for spec in (old, new))
    refusing = a_budget(used=OVER, whenOver="refuse")
    assert decide(after, refusing, kind=kind, operation="UPDATE", old=before).refusals != ()
    assert decide(before, refusing, kind=kind, operation="UPDATE", old=after).refusals == ()


def a_pod(gpus=1, *, owner="ada", maker=None, labels=None, **spec):
    """A pod of a person's, or of a controller's with its owner on it."""
    resources = {"limits": {"memory": "1Gi", **({"nvidia.com/gpu": gpus} if gpus else {})}}
    meta = {"name": "p", "namespace": "lab", "annotations": {"moorage.dev/owner": owner}}
    if maker is not None:
        meta["ownerReferences"] = [{"kind": maker, "name": "x", "uid": "1", "controller": True}]
    if labels:
        meta["labels"] = labels
    kubernetes = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "resources": resources}]} | kubernetes | spec,
    }


def after(obj, verdict):
    """The class of a pod as it is stored."""
    values = {patch["path"].rpartition("/")[2]: patch["value"] for patch in verdict.patches}
    keys = ("priorityClassName", "priority", "preemptionPolicy")
    return tuple(values.get(key, obj["spec"].get(key)) for key in keys)


BEHIND = ("moorage-over-budget", -5, "Never")
KUBERNETES = "system:kube-controller-manager"


@pytest.mark.parametrize("name", [None, "urgent", "moorage-default"])
def test_a_pod_of_who_is_over_gets_the_class_and_all_that_kubernetes_takes_from_it(name):
    pod = a_pod(**({"priorityClassName": name} if name else {}))
    verdict = decide(pod, a_budget(used=OVER, whenOver="queue"), kind="Pod")
    assert after(pod, verdict) == BEHIND
    assert [text.partition("), ")[2] for text in verdict.warnings if "budget" in text] == [
        "until 2026-12-01: it waits behind the work of others"
    ]
    stored = pod | {
        "spec": pod["spec"] | dict(zip(("priorityClassName", "priority", "preemptionPolicy"), BEHIND, strict=True))
    }
    assert after(stored, decide(stored, a_budget(used=OVER, whenOver="queue"), kind="Pod")) == BEHIND


@pytest.mark.parametrize("when_over", ["queue", "refuse"])
@pytest.mark.parametrize(
    ("maker", "user", "want"),
    [
        pytest.param("ReplicaSet", KUBERNETES, BEHIND, id="of a workspace or a Deployment"),
        pytest.param("StatefulSet", KUBERNETES, BEHIND, id="of a StatefulSet"),
        pytest.param("Workflow", OPERATOR, BEHIND, id="of a step"),
        pytest.param(
            "Job", KUBERNETES, (None, 0, "PreemptLowerPriority"), id="of a run: its template has the class"
        ),
        pytest.param("Job", OPERATOR, (None, 0, "PreemptLowerPriority"), id="of a map's Job"),
        pytest.param(None, "system:node:gpu-1", (None, 0, "PreemptLowerPriority"), id="of the node itself"),
    ],
)
def test_pods_that_controllers_make_of_who_is_over_are_put_behind_and_never_refused(when_over, maker, user, want):
    pod = a_pod(maker=maker)
    verdict = decide(pod, a_budget(used=OVER, whenOver=when_over), kind="Pod", user=user)
    assert (after(pod, verdict), verdict.refusals) == (want, ())
    for others in (a_pod(maker=maker, owner="ben"), a_pod(0, maker=maker)):
        verdict = decide(others, a_budget(used=OVER, whenOver=when_over), kind="Pod", user=user)
        assert after(others, verdict) == (None, 0, "PreemptLowerPriority")


@pytest.mark.parametrize(
    ("used", "when_over", "marked"),
    [
        pytest.param(OVER, "refuse", True, id="a budget refuses"),
        pytest.param(OVER, "queue", False, id="a budget that queues"),
        pytest.param({"ada": 20}, "refuse", False, id="not used up"),
    ],
)
def test_a_workflow_that_begins_without_gpus_while_they_are_refused_is_marked(used, when_over, marked):
    obj = {"metadata": {"name": "w"}, "spec": {"workflowTemplateRef": {"name": "train"}}}
    verdict = decide(obj, a_budget(used=used, whenOver=when_over), kind="Workflow")
    assert verdict.refusals == ()
    notes = [patch["value"] for patch in verdict.patches if patch["path"] == "/metadata/annotations"]
    assert any(note.get("moorage.dev/over-budget") == "no-gpus" for note in notes) is marked


def test_steps_with_gpus_of_a_workflow_that_began_without_them_are_refused():
    def a_step(gpus):
        pod = a_pod(gpus, maker="Workflow")
        pod["metadata"]["annotations"]["moorage.dev/over-budget"] = "no-gpus"
        return pod

    refusing = a_budget(used=OVER, whenOver="refuse")
    (refusal,) = decide(a_step(1), refusing, kind="Pod", user=OPERATOR).refusals
    assert "120 of 100 GPU-hours used" in refusal.message
    assert decide(a_step(0), refusing, kind="Pod", user=OPERATOR).refusals == ()
    ended = a_budget(used={"ada": 20}, whenOver="refuse")
    assert decide(a_step(1), ended, kind="Pod", user=OPERATOR).refusals == ()


def test_a_budget_that_only_warns_puts_no_pod_behind():
    pod = a_pod(maker="ReplicaSet")
    verdict = decide(pod, a_budget(used=OVER), kind="Pod", user=KUBERNETES)
    assert after(pod, verdict) == (None, 0, "PreemptLowerPriority")


def owned(obj, maker):
    meta = obj["metadata"] | {
        "annotations": {"moorage.dev/owner": "ada"},
        "ownerReferences": [{"kind": maker, "name": "nightly", "uid": "1", "controller": True}],
    }
    return obj | {"metadata": meta}


@pytest.mark.parametrize(
    ("kind", "maker", "user"), [("Job", "CronJob", KUBERNETES), ("Workflow", "CronWorkflow", OPERATOR)]
)
def test_what_a_schedule_makes_is_new_work_of_its_owner(kind, maker, user):
    made = owned(a_job(), maker)
    refused = decide(made, a_budget(used=OVER, whenOver="refuse"), kind=kind, user=user)
    assert [refusal.field for refusal in refused.refusals] == ["spec"]
    queued = decide(made, a_budget(used=OVER, whenOver="queue"), kind=kind, user=user)
    assert class_of(queued) is (kind == "Job")  # pods of a workflow get it one by one
    assert decide(made, a_budget(used={"ben": 300}, whenOver="refuse"), kind=kind, user=user).refusals == ()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "CronJob", "Workspace", "Workflow"])
def test_work_without_an_end_is_not_marked_itself_so_that_it_is_free_again_in_the_next_period(kind):
    spec = a_job()["spec"]
    obj = a_job() | {"spec": {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec}
    verdict = decide(obj, a_budget(used=OVER, whenOver="queue"), kind=kind)
    assert not class_of(verdict)
    assert any(text.endswith(": its pods wait behind the work of others") for text in verdict.warnings)


def test_a_stopped_workspace_that_is_started_is_new_work():
    def a_workspace(**spec):
        return {"metadata": {"name": "w", "namespace": "lab"}, "spec": {"resources": {"gpus": 1}} | spec}

    stopped, budget = a_workspace(running=False), a_budget(used=OVER, whenOver="refuse")
    for spec in ({"running": True}, {}):
        started = decide(a_workspace(**spec), budget, kind="Workspace", operation="UPDATE", old=stopped)
        assert [refusal.field for refusal in started.refusals] == ["spec"]
    for old, new in ((stopped, stopped), (a_workspace(), a_workspace(image="x")), (a_workspace(), stopped)):
        assert decide(new, budget, kind="Workspace", operation="UPDATE", old=old).refusals == ()


@pytest.mark.parametrize(
    "labels", [{"moorage.dev/machine-type": "xlarge"}, {"moorage.dev/machine-group": "a100s"}]
)
def test_a_machine_with_gpus_is_work_with_gpus_and_its_guest_is_let_through_last(labels):
    guest = a_pod(0, labels=labels, priorityClassName="moorage-guest")
    verdict = decide(guest, a_budget(used=OVER, whenOver="queue"), kind="Pod")
    assert after(guest, verdict) == ("moorage-guest", 0, "PreemptLowerPriority")
    (notes,) = [patch["value"] for patch in verdict.patches if patch["path"] == "/metadata/annotations"]
    assert notes["moorage.dev/over-budget"] == "true"
    job = a_job(gpus=0)
    job["spec"]["template"]["metadata"] = {"labels": labels}
    assert decide(job, a_budget(used=OVER, whenOver="refuse")).refusals != ()
    others = a_pod(0, labels={"moorage.dev/machine-type": "small"})
    assert "over-budget" not in str(decide(others, a_budget(used=OVER, whenOver="queue"), kind="Pod").patches)


def test_a_budget_smaller_than_a_hundredth_is_used_up_too():
    budget = parse_budget(a_budget(gpuHours="0.001"))
    (use,) = uses_of(budget, {"ada": Decimal("0.002")}, start=datetime(2026, 11, 1, tzinfo=UTC))
    assert (str(use.used), use.percent) == ("0.00", 200)
    (standing,) = standings(
        [replace(budget, uses=(use,), end=datetime(2026, 12, 1, tzinfo=UTC))], user="ada", tenant="", now=NOW
    )
    assert standing.is_over


def test_a_resource_whose_name_is_a_tag_may_be_gpus():
    limits = {"resources": {"limits": {"{{workflow.parameters.kind}}": "1"}}}
    assert asks_gpus({"templates": [{"container": limits}]})
    assert not asks_gpus({"templates": [{"container": {"args": ["{{workflow.parameters.kind}}"]}}]})
