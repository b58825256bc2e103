"""The Job controller's decisions: tables for each rule, and a world that is cut off at any step."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.meta import condition
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples
from moorage_local.controllers.job.plan import (
    FINALIZER,
    Backoff,
    CreatePod,
    DeleteJob,
    DeletePod,
    Observed,
    ReleasePod,
    Tell,
    WriteStatus,
    plan,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def a_job(status=None, *, deleting=False, **spec):
    return builders.a_job(
        uid="job-1", resource_version=7, generation=1, pod_labels={"app": "x"}, deleting=deleting and NOON,
        spec={"parallelism": 1, "completions": 1, "backoffLimit": 6} | spec,
    ) | {"status": status or {}}  # fmt: skip


def a_pod(name, phase="Running", *, deleting=False, tracked=True, index=None, ended=NOON, code=None, **more):
    if phase in ("Succeeded", "Failed"):
        more |= {"finished": ended, "exit_code": int(phase == "Failed") if code is None else code}
    if index is not None:
        more["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    return builders.a_pod(
        name, uid=f"uid-{name}", resource_version=1, created=NOON - 60 * SECOND, deleting=deleting and NOON,
        owner=builders.an_owner("Job", "train", "job-1"), finalizers=[FINALIZER] if tracked else [],
        node="n1", phase=phase, **more,
    )  # fmt: skip


def decide(job, *pods, now=NOON, backoff=None):
    return plan(Observed(job=job, pods=pods, now=now, backoff=backoff))


def kinds(decided):
    return [type(action).__name__ for action in decided.actions]


def status_of(decided):
    statuses = [action.status for action in decided.actions if isinstance(action, WriteStatus)]
    assert len(statuses) <= 1
    return statuses[0] if statuses else None


def reasons(status):
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status.get("conditions", ())}


def test_a_new_job_gets_its_pods_with_labels_finalizer_and_owner():
    decided = decide(a_job(parallelism=2, completions=3))
    assert kinds(decided) == ["CreatePod", "CreatePod", "WriteStatus"]
    pod = decided.actions[0].pod
    assert pod["metadata"]["labels"] == {
        "app": "x",
        "batch.kubernetes.io/controller-uid": "job-1",
        "batch.kubernetes.io/job-name": "train",
        "controller-uid": "job-1",
        "job-name": "train",
    }
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-1"
    assert pod["metadata"]["name"].startswith("train-")
    assert status_of(decided) == {
        "startTime": rfc3339(NOON),
        "active": 2,
        "ready": 0,
        "terminating": 0,
        "uncountedTerminatedPods": {},
    }


def test_the_same_view_gives_the_same_names_and_another_view_gives_others():
    job = a_job()
    first = decide(job).actions[0].pod["metadata"]["name"]
    assert decide(job).actions[0].pod["metadata"]["name"] == first
    later = decide(job, a_pod("train-old1", "Failed", tracked=False), now=NOON + timedelta(hours=1))
    assert later.actions[0].pod["metadata"]["name"] != first


def test_a_running_job_is_left_alone():
    job = a_job(
        {"startTime": rfc3339(NOON), "active": 1, "ready": 1, "terminating": 0, "uncountedTerminatedPods": {}}
    )
    assert decide(job, a_pod("a", ready=True)).actions == ()


def test_a_success_is_written_down_then_released_then_counted():
    job = a_job(
        {"startTime": rfc3339(NOON), "active": 1, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
    )
    pod = a_pod("a", "Succeeded")
    first = decide(job, pod)
    assert kinds(first) == ["WriteStatus", "ReleasePod"]
    status = status_of(first)
    assert status["uncountedTerminatedPods"] == {"succeeded": ["uid-a"]}
    assert "succeeded" not in status
    assert reasons(status) == {"SuccessCriteriaMet": ("True", "CompletionsReached")}
    again = decide({**job, "status": status}, pod)
    assert kinds(again) == ["ReleasePod"]
    last = decide({**job, "status": status}, a_pod("a", "Succeeded", tracked=False))
    assert kinds(last) == ["WriteStatus", "Tell"]
    status = status_of(last)
    assert (status["succeeded"], status["uncountedTerminatedPods"]) == (1, {})
    assert reasons(status) == {
        "SuccessCriteriaMet": ("True", "CompletionsReached"),
        "Complete": ("True", "CompletionsReached"),
    }
    assert condition({"status": status}, "Complete")["message"] == "Reached expected number of succeeded pods"
    assert status["completionTime"] == rfc3339(NOON)
    assert last.actions[-1] == Tell("Normal", "Completed", "Job completed")
    assert decide({**job, "status": status}, a_pod("a", "Succeeded", tracked=False)).actions == ()


def test_without_completions_one_success_ends_it_and_no_new_pod_is_made():
    job = a_job(completions=None, parallelism=2)
    decided = decide(job, a_pod("a", "Succeeded"), a_pod("b"))
    assert "CreatePod" not in kinds(decided)
    assert reasons(status_of(decided)) == {}
    done = decide(job, a_pod("a", "Succeeded"), a_pod("b", "Failed"))
    assert reasons(status_of(done)) == {"SuccessCriteriaMet": ("True", "CompletionsReached")}


@pytest.mark.parametrize(
    ("failures", "ago", "want"),
    [
        pytest.param(0, 0, 0, id="no failure: at once"),
        pytest.param(1, 0, 10, id="10 s after the first"),
        pytest.param(2, 5, 15, id="20 s after the second, of which 5 are over"),
        pytest.param(3, 40, 0, id="40 s are over"),
        pytest.param(7, 0, 360, id="capped at six minutes"),
        pytest.param(5000, 0, 360, id="no overflow"),
    ],
)
def test_back_off_doubles_up_to_six_minutes(failures, ago, want):
    backoff = Backoff(failures, NOON - ago * SECOND if failures else None)
    assert backoff.remaining(NOON) == want * SECOND


def test_a_failed_pod_is_replaced_after_the_back_off():
    job = a_job(backoffLimit=3)
    failed = a_pod("a", "Failed", ended=NOON - 4 * SECOND)
    waiting = decide(job, failed)
    assert kinds(waiting) == ["WriteStatus", "ReleasePod"]
    assert waiting.look_again_in == 6 * SECOND
    assert waiting.backoff == Backoff(1, NOON - 4 * SECOND)
    status = status_of(waiting)
    counted = {**job, "status": status}
    released = a_pod("a", "Failed", tracked=False, ended=NOON - 4 * SECOND)
    then = decide(counted, released, now=NOON + 6 * SECOND, backoff=waiting.backoff)
    assert kinds(then) == ["CreatePod", "WriteStatus"]
    assert status_of(then)["failed"] == 1


def test_after_a_restart_the_back_off_follows_from_the_pods():
    decided = decide(
        a_job(parallelism=2, completions=9),
        a_pod("a", "Failed", tracked=False, ended=NOON - 50 * SECOND),
        a_pod("b", "Succeeded", tracked=False, ended=NOON - 40 * SECOND),
        a_pod("c", "Failed", tracked=False, ended=NOON - 30 * SECOND),
        a_pod("d", "Failed", tracked=False, ended=NOON - 5 * SECOND),
    )
    assert decided.backoff == Backoff(2, NOON - 5 * SECOND)
    assert decided.look_again_in == 15 * SECOND


def test_backoff_limit_zero_fails_at_the_first_failure():
    job = a_job(backoffLimit=0)
    first = decide(job, a_pod("a", "Failed"))
    status = status_of(first)
    assert reasons(status) == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    last = decide({**job, "status": status}, a_pod("a", "Failed", tracked=False))
    status = status_of(last)
    assert reasons(status)["Failed"] == ("True", "BackoffLimitExceeded")
    assert status["failed"] == 1
    assert last.actions[-1] == Tell(
        "Warning", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    )


@pytest.mark.parametrize(
    ("limit", "restarts", "fails"), [(0, 0, False), (0, 1, True), (3, 2, False), (3, 3, True)]
)
def test_restarts_within_pods_count_with_restart_policy_on_failure(limit, restarts, fails):
    job = a_job(backoffLimit=limit)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    pod = a_pod("a")
    pod["status"]["containerStatuses"] = [{"name": "main", "restartCount": restarts, "state": {"running": {}}}]
    assert ("FailureTarget" in reasons(status_of(decide(job, pod)) or {})) is fails


def test_the_deadline_ends_running_pods_and_waits_for_them():
    job = a_job({"startTime": rfc3339(NOON - 60 * SECOND)}, activeDeadlineSeconds=60)
    decided = decide(job, a_pod("a"))
    assert kinds(decided) == ["DeletePod", "WriteStatus", "ReleasePod"]
    assert not decided.actions[0].uncount
    status = status_of(decided)
    assert reasons(status) == {"FailureTarget": ("True", "DeadlineExceeded")}
    assert (status.get("active"), status["terminating"]) == (None, 1)
    assert status["uncountedTerminatedPods"] == {"failed": ["uid-a"]}
    going = decide({**job, "status": status}, a_pod("a", deleting=True, tracked=False))
    assert reasons(status_of(going)) == {"FailureTarget": ("True", "DeadlineExceeded")}
    gone = decide({**job, "status": status_of(going)})
    assert reasons(status_of(gone))["Failed"] == ("True", "DeadlineExceeded")
    assert condition({"status": status_of(gone)}, "Failed")["message"] == (
        "Job was active longer than specified deadline"
    )


def test_the_deadline_is_looked_at_again_in_time():
    job = a_job({"startTime": rfc3339(NOON - 20 * SECOND)}, activeDeadlineSeconds=60)
    assert decide(job, a_pod("a")).look_again_in == 40 * SECOND


def test_suspending_removes_pods_without_counting_them_and_resuming_starts_the_clock_anew():
    job = a_job({"startTime": rfc3339(NOON - 60 * SECOND)}, suspend=True, activeDeadlineSeconds=10)
    decided = decide(job, a_pod("a"))
    assert decided.actions[0] == DeletePod(a_pod("a"), uncount=True)
    status = status_of(decided)
    assert reasons(status) == {"Suspended": ("True", "JobSuspended")}
    assert status["uncountedTerminatedPods"] == {}
    resumed = decide(a_job(status, activeDeadlineSeconds=10))
    assert "CreatePod" not in kinds(resumed) or reasons(status_of(resumed)) == {
        "Suspended": ("False", "JobResumed")
    }


def test_resuming_creates_pods_again():
    suspended = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
    decided = decide(a_job({"conditions": [suspended]}))
    assert kinds(decided) == ["CreatePod", "WriteStatus", "Tell"]
    assert reasons(status_of(decided)) == {"Suspended": ("False", "JobResumed")}
    assert status_of(decided)["startTime"] == rfc3339(NOON)


def test_less_parallelism_removes_the_least_useful_pod_without_counting_it():
    decided = decide(a_job(completions=5, parallelism=1), a_pod("a", ready=True), a_pod("b", "Pending"))
    assert decided.actions[0] == DeletePod(a_pod("b", "Pending"), uncount=True)
    assert status_of(decided)["active"] == 1


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
POLICY = {
    "rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [137]}},
        {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]
}


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(
            a_pod("a", "Failed", conditions=[DISRUPTED]),
            "Pod lab/a has condition DisruptionTarget matching FailJob rule at index 0",
            id="disrupted",
        ),
        pytest.param(
            a_pod("a", "Failed", code=137),
            "Container main for pod lab/a failed with exit code 137 matching FailJob rule at index 2",
            id="killed",
        ),
        pytest.param(a_pod("a", "Failed", code=2), None, id="counted"),
        pytest.param(a_pod("a", "Failed", code=42), None, id="ignored"),
        pytest.param(a_pod("a", "Running", conditions=[DISRUPTED], deleting=True), None, id="not ended yet"),
    ],
)
def test_a_pod_failure_policy_fails_the_job_with_upstreams_words(pod, want):
    job = a_job(podFailurePolicy=POLICY)
    decided = decide(job, pod)
    target = condition({"status": status_of(decided)}, "FailureTarget")
    assert (target or {}).get("message") == want
    if want is None:
        return
    assert target["reason"] == "PodFailurePolicy"
    job["status"] = status_of(decided)
    gone = decide(job)
    failed = condition({"status": status_of(gone)}, "Failed")
    assert (failed["reason"], failed["message"]) == ("PodFailurePolicy", want)
    assert status_of(gone)["failed"] == 1


def test_an_ignored_failure_is_released_and_replaced_but_not_counted():
    job = a_job(podFailurePolicy=POLICY, backoffLimit=0)
    decided = decide(job, a_pod("a", "Failed", code=42))
    assert kinds(decided) == ["WriteStatus", "ReleasePod"]
    assert status_of(decided)["uncountedTerminatedPods"] == {}
    assert decided.look_again_in == 10 * SECOND


@pytest.mark.parametrize(
    ("policy", "replacement", "creates"),
    [
        pytest.param(None, None, True, id="plain: replaced while it ends"),
        pytest.param(None, "Failed", False, id="asked to wait"),
        pytest.param(POLICY, None, False, id="a failure policy waits"),
    ],
)
def test_when_a_terminating_pod_is_replaced(policy, replacement, creates):
    spec = {"podFailurePolicy": policy, "podReplacementPolicy": replacement}
    job = a_job(**{key: value for key, value in spec.items() if value})
    decided = decide(job, a_pod("a", deleting=True), now=NOON + timedelta(minutes=1), backoff=Backoff())
    later = decide(job, a_pod("a", deleting=True), now=NOON + timedelta(minutes=1))
    assert ("CreatePod" in kinds(decided)) is creates
    assert ("CreatePod" in kinds(later)) is creates
    counted = (status_of(decided) or {}).get("uncountedTerminatedPods")
    assert counted == ({"failed": ["uid-a"]} if creates else {})


@pytest.mark.parametrize(
    "spec",
    [
        {"backoffLimitPerIndex": 1},
        {"maxFailedIndexes": 2},
        {
            "podFailurePolicy": {
                "rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]
            }
        },
    ],
)
def test_what_is_not_supported_is_said(spec):
    status = status_of(decide(a_job(**spec)))
    assert reasons(status)["Failed"] == ("True", "NotSupported")


def test_an_indexed_job_gives_each_pod_an_index_it_lacks():
    job = a_job({"completedIndexes": "0,2"}, completionMode="Indexed", completions=6, parallelism=3)
    decided = decide(job, a_pod("x", index=1), a_pod("y", "Succeeded", tracked=False, index=0))
    created = [action.pod for action in decided.actions if isinstance(action, CreatePod)]
    assert [pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in created] == [
        "3",
        "4",
    ]
    pod = created[0]
    assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "3"
    assert pod["metadata"]["name"].startswith("train-3-")
    assert pod["spec"]["hostname"] == "train-3"
    env = pod["spec"]["containers"][0]["env"]
    assert env[0]["name"] == "JOB_COMPLETION_INDEX"
    assert job["spec"]["template"]["spec"]["containers"] == [{"name": "main"}]  # the template is not touched


def test_an_indexed_job_counts_indexes_not_pods():
    job = a_job(completionMode="Indexed", completions=3, parallelism=3)
    pods = [a_pod("a", "Succeeded", index=0), a_pod("b", "Succeeded", index=1), a_pod("c", "Succeeded", index=2)]
    pods += [a_pod("d", "Succeeded", index=2), a_pod("e", "Succeeded", index=9)]
    decided = decide(job, *pods)
    status = status_of(decided)
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")
    assert reasons(status)["Complete"] == ("True", "CompletionsReached")
    assert sum(isinstance(action, ReleasePod) for action in decided.actions) == 5


def test_twins_of_one_index_are_thinned_out():
    job = a_job(completionMode="Indexed", completions=3, parallelism=3)
    decided = decide(job, a_pod("a", index=0), a_pod("b", "Pending", index=0), a_pod("c", index=7))
    deleted = {action.pod["metadata"]["name"] for action in decided.actions if isinstance(action, DeletePod)}
    assert deleted == {"b", "c"}


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        ({"succeededIndexes": "0,2"}, True),
        ({"succeededIndexes": "0-2"}, False),
        ({"succeededCount": 2}, True),
        ({"succeededCount": 3}, False),
        ({"succeededIndexes": "0-2", "succeededCount": 2}, True),
    ],
)
def test_a_success_policy_ends_the_job_early(rule, met):
    job = a_job(completionMode="Indexed", completions=4, parallelism=4, successPolicy={"rules": [rule]})
    pods = [
        a_pod("a", "Succeeded", index=0),
        a_pod("b", index=1),
        a_pod("c", "Succeeded", index=2),
        a_pod("d", index=3),
    ]
    status = status_of(decide(job, *pods))
    assert ("SuccessCriteriaMet" in reasons(status)) is met
    if met:
        assert status["uncountedTerminatedPods"] == {}  # the pods that were not needed did not fail


@pytest.mark.parametrize(
    ("ago", "want", "again"),
    [(10, (), 20 * SECOND), (30, (DeleteJob(),), None), (99, (DeleteJob(),), None)],
)
def test_a_finished_job_goes_after_its_time(ago, want, again):
    ended = {"type": "Complete", "status": "True", "lastTransitionTime": rfc3339(NOON - ago * SECOND)}
    decided = decide(a_job({"conditions": [ended]}, ttlSecondsAfterFinished=30))
    assert (decided.actions, decided.look_again_in) == (want, again)


def test_a_finished_job_releases_what_it_still_holds():
    ended = {"type": "Failed", "status": "True", "lastTransitionTime": rfc3339(NOON)}
    decided = decide(a_job({"conditions": [ended]}), a_pod("a", "Failed"))
    assert decided.actions == (ReleasePod(a_pod("a", "Failed")),)


def test_a_job_that_is_being_deleted_releases_its_pods_and_makes_none():
    decided = decide(a_job(deleting=True, parallelism=2, completions=2), a_pod("a"))
    assert "CreatePod" not in kinds(decided)
    assert ReleasePod(a_pod("a")) in decided.actions


def test_a_job_managed_by_somebody_else_is_left_alone():
    assert decide(a_job(managedBy="kueue.x-k8s.io/multikueue")).actions == ()


# -- the world ----------------------------------------------------------------------------------------------------


class World:
    """An API server and a node agent, as simple as can be."""

    def __init__(self, job):
        self.job = job
        self.pods = {}
        self.now = NOON
        self.ended = {}  # uid → how the pod ended, for every pod that ever did
        self.made = 0

    def observe(self, backoff):
        pods = [copy.deepcopy(pod) for pod in self.pods.values()]
        return Observed(job=copy.deepcopy(self.job), pods=pods, now=self.now, backoff=backoff)

    def apply(self, action):
        match action:
            case CreatePod(pod):
                name = pod["metadata"]["name"]
                if name in self.pods:
                    return  # AlreadyExists, and ours
                self.made += 1
                meta = pod["metadata"] | {"uid": f"uid-{self.made}", "creationTimestamp": rfc3339(self.now)}
                self.pods[name] = pod | {"metadata": meta, "status": {"phase": "Pending"}}
            case DeletePod(pod, uncount):
                if uncount:
                    self.release(pod["metadata"]["name"])
                self.delete(pod["metadata"]["name"])
            case WriteStatus(status):
                version = str(int(self.job["metadata"]["resourceVersion"]) + 1)
                self.job = self.job | {
                    "status": copy.deepcopy(status),
                    "metadata": self.job["metadata"] | {"resourceVersion": version},
                }
            case ReleasePod(pod):
                self.release(pod["metadata"]["name"])

    def delete(self, name):
        pod = self.pods.get(name)
        if pod is not None:
            pod["metadata"].setdefault("deletionTimestamp", rfc3339(self.now))
            self.sweep(name)

    def release(self, name):
        if name in self.pods:
            self.pods[name]["metadata"]["finalizers"] = []
            self.sweep(name)

    def end(self, name, phase):
        pod = self.pods[name]
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        pod["status"] = {
            "phase": phase,
            "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": 1, "finishedAt": rfc3339(self.now)}}}
            ],
        }
        self.ended[pod["metadata"]["uid"]] = phase
        self.sweep(name)

    def sweep(self, name):
        pod = self.pods[name]
        over = pod["status"]["phase"] in ("Succeeded", "Failed")
        if pod["metadata"].get("deletionTimestamp") and over and not pod["metadata"].get("finalizers"):
            del self.pods[name]

    def finished(self):
        return {"Complete", "Failed"} & set(reasons(self.job["status"]))


specs = st.fixed_dictionaries(
    {
        "parallelism": st.integers(1, 4),
        "completions": st.integers(1, 6),
        "backoffLimit": st.integers(0, 4),
        "completionMode": st.sampled_from(["NonIndexed", "Indexed"]),
        "podReplacementPolicy": st.sampled_from(["TerminatingOrFailed", "Failed"]),
    }
)


@settings(max_examples=examples(37, full=150), deadline=None)
@given(spec=specs, seed=st.integers(0, 2**32 - 1))
def test_every_end_is_counted_exactly_once_wherever_the_controller_is_killed(spec, seed):
    rng = random.Random(seed)
    world = World(a_job(**spec))
    backoff = None
    disturbances = 0
    for _ in range(400):
        decided = plan(world.observe(backoff))
        cut = rng.randrange(len(decided.actions) + 1) if rng.random() < 0.4 else len(decided.actions)
        for action in decided.actions[:cut]:
            world.apply(action)
        killed = cut < len(decided.actions)
        backoff = None if killed else decided.backoff
        active = [
            pod
            for pod in world.pods.values()
            if pod["status"]["phase"] in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        ]
        assert len(active) <= min(spec["parallelism"], spec["completions"])
        for name, pod in list(world.pods.items()):
            if pod["metadata"].get("deletionTimestamp"):
                if rng.random() < 0.5:
                    world.end(name, "Failed")
            elif rng.random() < 0.3:
                world.end(name, rng.choice(["Succeeded", "Succeeded", "Failed"]))
            elif rng.random() < 0.05 and disturbances < 5:
                disturbances += 1
                world.delete(name)  # evicted
        world.now += timedelta(seconds=rng.choice([0, 1, 400]))
        if world.finished() and not decided.actions and not world.pods:
            break
        if world.finished() and not decided.actions:
            break
    status = world.job["status"]
    assert world.finished()
    # a pod that was asked to go without having ended counts as failed too, once the Job ends
    failed = sum(1 for how in world.ended.values() if how == "Failed")
    succeeded = sum(1 for how in world.ended.values() if how == "Succeeded")
    if spec["completionMode"] == "NonIndexed":
        assert status.get("succeeded", 0) == succeeded
    else:
        assert status.get("succeeded", 0) <= spec["completions"]
    assert status.get("failed", 0) == failed
    assert status["uncountedTerminatedPods"] == {}
    if "Complete" in reasons(status):
        assert status["succeeded"] >= spec["completions"]
    assert all(not pod["metadata"]["finalizers"] for pod in world.pods.values())


@given(spec=specs)
def test_a_settled_job_stays_settled(spec):
    world = World(a_job(**spec))
    for _ in range(3):
        decided = plan(world.observe(Backoff()))
        for action in decided.actions:
            world.apply(action)
    assert plan(world.observe(Backoff())).actions == ()
