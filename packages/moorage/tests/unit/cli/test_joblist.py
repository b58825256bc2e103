"""`moor jobs`, `show`, `logs`, `cancel`, `explain`, as a newcomer reads them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml

from moorage.api.explain import Explanation
from moorage_kube.clock import rfc3339
from moorage_kube.resources import EVENTS, JOBS, PODS, Obj
from moorage_kube.testing.builders import GPU, a_condition, a_container_status, an_object
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_testing.builders import a_run_job, a_run_pod, keyed


def ago(**span: float) -> str:
    return rfc3339(NOON - timedelta(**span))


DISRUPTED = {
    "end": "Failed",
    "reason": "PodFailurePolicy",
    "message": "Pod default/train-abc has condition DisruptionTarget matching FailJob rule at index 0",
}
EVICTED = a_condition("DisruptionTarget", reason="EvictionByEvictionAPI")


def a_job(name: str = "train", attempt: int = 1, *, notes: Obj | None = None, **job: Any) -> Obj:
    made: Obj = {"annotations": keyed(command="python train.py", **notes or {}), "created": ago(hours=1)}
    made |= {"requests": {"cpu": "4", "memory": "1Gi", GPU: "1"}, "finished": ago(minutes=1)}
    return a_run_job(name, attempt, namespace="default", user="ada", **made | job)


def a_pod(
    name: str = "train-abc",
    phase: str = "Running",
    *,
    attempt: int = 1,
    code: int | None = None,
    why: str = "Error",
    **pod: Any,
) -> Obj:
    ran = {"started": ago(minutes=30), "exit_code": code, "reason": why, "finished": ago(minutes=1)}
    made: Obj = {"namespace": "default", "created": ago(minutes=31), "started": ago(minutes=30)}
    made |= {"spec": {"activeDeadlineSeconds": 7200}, "requests": {"memory": "1Gi", GPU: "1"}}
    made |= {"limits": {"memory": "1Gi"}, "gpus": 1}
    if phase != "Pending":
        made |= {"node": "node-1", "statuses": [a_container_status(**ran)]}
    return a_run_pod(name, attempt=attempt, phase=phase, **made | pod)


def an_event(reason: str, message: str, **about: str) -> Obj:
    """Event of the pod train-abc, three minutes ago."""
    pod = {"kind": "Pod", "name": "train-abc"} | about
    said = {"reason": reason, "message": message, "lastTimestamp": ago(minutes=3)}
    return an_object(EVENTS, "e", namespace="default", involvedObject=pod, **said)


@pytest.fixture
def at_noon(moor):
    moor.clock = FakeClock()
    moor.node("node-1", gpus=2)
    moor.server.serves = moor.api
    return moor


def test_the_runs_are_listed_with_what_matters(at_noon):
    at_noon.api.put(JOBS, a_job(notes={"checkpoint": "digits", "checkpoint_at": ago(minutes=2)}))
    at_noon.api.put(PODS, a_pod())
    at_noon.api.put(JOBS, a_job("idle", end="Complete", status={"failed": 1, "succeeded": 1}))
    done = at_noon("jobs")
    assert (done.code, done.err) == (0, "")
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        "NAME OWNER STATE GPUS TYPE NODE AGE RAN TIME-LEFT RESTARTS RETRIES CHECKPOINT COMMAND",
        "idle ada Succeeded 1 - - 60m - - 0 1 - python train.py",
        "train ada Running 1 a100 node-1 60m 30m 90m 0 0 2m ago python train.py",
    ]


def test_runs_are_found_by_their_labels_and_show_them(at_noon):
    for name, labels in (("train", {"project": "vision", "stage": "dev"}), ("test", {"project": "vision"})):
        at_noon.api.put(JOBS, a_job(name, labels=labels))
    assert at_noon("jobs", "-l", "project=vision,stage!=dev", "-o", "name").out == "test\n"
    [listed] = json.loads(at_noon("jobs", "--selector", "stage", "-o", "json").out)
    assert listed["labels"] == {"project": "vision", "stage": "dev"}
    assert "labels      project=vision, stage=dev\n" in at_noon("show", "train").out
    assert json.loads(at_noon("show", "train", "-o", "json").out)["labels"] == listed["labels"]


def test_an_empty_listing_says_what_to_do_on_stderr(at_noon):
    done = at_noon("jobs")
    assert (done.code, done.out) == (0, "")
    assert done.err == "no runs in namespace default; start one: moor run -- python train.py\n"


def test_runs_are_chosen_by_when_they_were_created(at_noon):
    at_noon.api.put(JOBS, a_job())
    assert at_noon("jobs", "--since", "2h", "-o", "name").out == "train\n"
    assert at_noon("jobs", "--since", rfc3339(NOON)[:10], "-o", "name").out == "train\n"
    done = at_noon("jobs", "--since", "30m")
    assert (done.code, done.out, done.err) == (0, "", "no run in namespace default matches\n")


def test_a_listing_is_for_programs_too(at_noon):
    at_noon.api.put(JOBS, a_job(status={"failed": 2, "active": 1}))
    [listed] = json.loads(at_noon("jobs", "-o", "json").out)
    assert (listed["name"], listed["state"], listed["gpus"], listed["retries"]) == ("train", "Waiting", 1, 2)
    assert yaml.safe_load(at_noon("jobs", "-o", "yaml").out) == [listed]
    assert at_noon("jobs", "-o", "name").out == "train\n"
    assert json.loads(at_noon("jobs", "-n", "other", "-o", "json").out) == []


def test_runs_are_filtered_by_owner_and_by_whether_they_ended(at_noon):
    at_noon.api.put(JOBS, a_job("old", end="Complete"))
    at_noon.api.put(JOBS, a_job("new"))
    assert at_noon("jobs", "--active", "-o", "name").out == "new\n"
    assert at_noon("jobs", "--mine", "-o", "name").out == "new\nold\n"
    assert at_noon("jobs", "--owner", "bob", "-o", "name").out == ""


def test_show_prints_all_attempts_with_codes_and_reasons(at_noon):
    at_noon.api.put(JOBS, a_job(notes={"checkpoint": "digits", "checkpoint_at": ago(minutes=45)}, **DISRUPTED))
    at_noon.api.put(JOBS, a_job(attempt=2))
    at_noon.api.put(PODS, a_pod(phase="Failed", code=143, conditions=[EVICTED]))
    at_noon.api.put(PODS, a_pod("train-r2-xyz", attempt=2))
    at_noon.api.put(EVENTS, an_event("Evicted", "drained"))
    done = at_noon("show", "train")
    assert done.code == 0
    assert done.out == (
        "run         default/train\n"
        "state       Running\n"
        "owner       ada\n"
        "command     python train.py\n"
        "asks        1 GPU a100, 4 cpu, 1Gi memory\n"
        "node        node-1\n"
        "created     60m ago\n"
        "waited      30m\n"
        "ran         59m\n"
        "time limit  none; 1h30m left, until 2026-11-21T13:30:00Z\n"
        "restarts    1 of at most 20\n"
        "checkpoint  volume digits; newest 45m old\n"
        "\n"
        "warning: the newest checkpoint is 45m old; a restart would lose the work since then\n"
        "\n"
        "Attempts\n"
        "  ATTEMPT   POD            NODE     PHASE     REASON                                  RAN   MEMORY\n"
        "  1         train-abc      node-1   Failed    EvictionByEvictionAPI (exit code 143)   29m   limit 1Gi\n"
        "  2         train-r2-xyz   node-1   Running   -                                       30m   limit 1Gi\n"
        "\n"
        "Events\n"
        "      3m  Evicted              pod/train-abc: drained\n"
    )


def test_show_names_a_volume_that_cannot_be_mounted_with_a_hint(at_noon):
    at_noon.api.put(JOBS, a_job())
    at_noon.api.put(PODS, a_pod(phase="Pending", uid="u", node="node-1", started=ago(minutes=5)))
    message = 'MountVolume.SetUp failed for volume "data" : persistentvolumeclaim "images" not found'
    at_noon.api.put(EVENTS, an_event("FailedMount", message, uid="u"))
    lines = at_noon("show", "train", "-n", "default").out.splitlines()
    assert lines[lines.index("Events") - 3 :] == [
        '  it does not start on node-1: volume data cannot be mounted: persistentvolumeclaim "images" not found',
        "  hint: The volume images does not exist: create it with `moor volume create images -n default`; the pod"
        " then starts by itself",
        "",
        "Events",
        f"      3m  FailedMount          pod/train-abc: {message}",
        "",
        "moor explain train says why it waits",
    ]


def test_show_explains_a_kill_for_memory_with_limit_and_peak(at_noon):
    at_noon.api.put(JOBS, a_job(end="Failed", reason="BackoffLimitExceeded", message="it failed"))
    peak = {"localcluster.moorage.dev/peak-memory-bytes": str(1073741824 + 5 * 2**20)}
    at_noon.api.put(PODS, a_pod(phase="Failed", code=137, why="OOMKilled", annotations=peak))
    out = at_noon("show", "train").out
    assert "state       OOMKilled: killed for its memory" in out
    assert "peak 1.0Gi, limit 1Gi" in out or "peak 1Gi, limit 1Gi" in out
    assert (
        "killed for its memory: it grew beyond the limit of 1Gi; it had reached 1Gi when that was measured:"
        " a program can grow past its limit between two measurements\n"
    ) in out
    assert "hint: run it again with a higher --memory" in out


def test_a_run_that_is_not_there_is_one_error_with_near_names(at_noon):
    at_noon.api.put(JOBS, a_job())
    for command in ("show", "logs", "cancel", "explain"):
        done = at_noon(command, "trian")
        assert (done.code, done.out) == (1, "")
        assert done.err == "error: run 'trian' not found in namespace default\nhint: did you mean train?\n"


def test_a_member_is_hinted_at_the_lists_that_they_may_read(at_noon):
    for name in ("nope", "default/nope"):
        assert at_noon("show", name).err == (
            f"error: run {name!r} not found in namespace default\n"
            "hint: list the runs of your namespace: moor jobs -n default; for another one, give -n NAMESPACE\n"
        )


@pytest.mark.parametrize(
    ("job", "pod", "words", "err"),
    [
        (a_job(), a_pod(), (), "train has printed nothing yet: Running\n"),
        (a_job(end="Complete"), a_pod(phase="Succeeded", code=0), (), "train printed nothing: Succeeded\n"),
        (a_job(), a_pod(), ("--tail", "0"), ""),
    ],
)
def test_a_run_that_printed_nothing_says_so(moor, job, pod, words, err):
    moor.api.put(JOBS, job)
    moor.api.put(PODS, pod)
    moor.api.pod_logs["train-abc"] = []
    done = moor("logs", "train", *words)
    assert (done.code, done.out, done.err) == (0, "", err)


def test_logs_of_one_pod_are_printed_as_they_are(moor):
    moor.api.put(JOBS, a_job())
    moor.api.put(PODS, a_pod())
    moor.api.pod_logs["train-abc"] = ["one", "", "three  "]
    assert moor("logs", "train").out == "one\n\nthree  \n"
    assert moor("logs", "train", "--tail", "1").out == "three  \n"


def test_logs_of_several_pods_begin_with_the_pods_name(moor):
    moor.api.put(JOBS, a_job(end="Failed", reason="PodFailurePolicy"))
    moor.api.put(JOBS, a_job(attempt=2))
    moor.api.put(PODS, a_pod(phase="Failed", code=1))
    moor.api.put(PODS, a_pod("train-r2-x", attempt=2))
    moor.api.pod_logs = {"train-abc": ["a"], "train-r2-x": ["b"]}
    assert moor("logs", "train").out == "train-abc | a\ntrain-r2-x | b\n"
    assert moor("logs", "train", "--no-prefix").out == "a\nb\n"
    assert moor("logs", "train", "--attempt", "2").out == "b\n"
    assert moor("logs", "train", "--attempt", "3").err == (
        "error: run train has no attempt 3\nhint: it has 1 to 2\n"
    )


def test_a_run_without_logs_shows_its_state(moor):
    moor.api.put(JOBS, a_job())
    done = moor("logs", "train")
    assert (done.code, done.out, done.err) == (0, "", "train has no logs yet: Waiting\n")


def test_an_invalid_time_is_refused(moor):
    done = moor("logs", "train", "--since", "yesterday")
    assert done.code == 2
    assert done.err == "error: invalid --since 'yesterday'\nhint: use a time such as 10m, 2h or 1d\n"


def test_following_goes_on_over_attempts_and_ends_with_the_run(moor):
    """The first attempt is evicted once its log was read; the second one ends well."""
    api = moor.api
    api.put(JOBS, a_job())
    api.put(PODS, a_pod())
    api.pod_logs = {"train-abc": ["epoch 1", "ERROR", "epoch 2"], "train-r2-x": ["epoch 3"]}

    def scene(verb: str, plural: str, name: str) -> None:
        if verb != "logs":
            return
        if name == "train-abc" and "ERROR" not in api.pod_logs[name]:  # read again after the break
            api.put(PODS, a_pod(phase="Failed", code=143, conditions=[EVICTED]))
            api.put(JOBS, a_job(**DISRUPTED))
            api.put(JOBS, a_job(attempt=2))
            api.put(PODS, a_pod("train-r2-x", attempt=2))
        if name == "train-r2-x":
            api.put(PODS, a_pod("train-r2-x", "Succeeded", attempt=2, code=0, why="Completed"))
            api.put(JOBS, a_job(attempt=2, end="Complete"))

    api.on_call = scene
    done = moor("logs", "-f", "train")
    assert done.code == 0
    assert done.out == "epoch 1\nepoch 2\ntrain-r2-x | epoch 3\n"
    assert done.err == (
        "note: the connection to the cluster was lost; trying again\n"
        "--- attempt 2 on node-1 after EvictionByEvictionAPI: train-r2-x\n"
    )


def test_following_a_run_that_waits_prints_a_pod_that_started_and_ended_meanwhile(moor):
    api = moor.api
    api.put(JOBS, a_job())
    api.put(PODS, a_pod(phase="Pending", says="0/2"))
    api.pod_logs["train-abc"] = ["fast"]
    lists = []

    def scene(verb: str, plural: str, name: str) -> None:
        if (verb, plural) != ("list", "pods"):
            return
        lists.append(1)
        if len(lists) == 1:  # the watch of Jobs tells the end before the watch of pods does
            api.put(JOBS, a_job(end="Complete"))
        if len(lists) == 2:
            api.put(PODS, a_pod(phase="Succeeded", code=0, why="Completed"))

    api.on_call = scene
    done = moor("logs", "-f", "train")
    assert (done.code, done.out) == (0, "fast\n")


def test_cancelling_marks_the_run_first_and_stops_its_newest_attempt(moor):
    moor.api.put(JOBS, a_job(end="Failed", reason="PodFailurePolicy"))
    moor.api.put(JOBS, a_job(attempt=2))
    done = moor("cancel", "train")
    assert (done.code, done.out) == (0, "train cancelled\n")
    patched = [call.name for call in moor.api.calls if call.verb == "patch"]
    assert patched == ["train", "train-r2"]
    first, second = (moor.api.objects["jobs", "default", name] for name in ("train", "train-r2"))
    assert first["metadata"]["annotations"]["moorage.dev/ended"] == "Cancelled by ada"
    assert second["spec"]["suspend"] is True
    assert "suspend" not in first["spec"]


@pytest.mark.parametrize("end", [{"end": "Complete"}, {"end": "Failed", "reason": "BackoffLimitExceeded"}])
def test_a_run_that_has_ended_is_not_cancelled(moor, end):
    moor.api.put(JOBS, a_job(**end))
    done = moor("cancel", "train")
    assert (done.code, done.out) == (0, "train had ended already\n")
    assert not [call for call in moor.api.calls if call.verb == "patch"]


def test_deleting_frees_the_name_and_leaves_no_attempt(moor):
    moor.api.put(JOBS, a_job(end="Failed", reason="PodFailurePolicy"))
    moor.api.put(JOBS, a_job(attempt=2))
    assert moor("cancel", "--delete", "train").out == "train deleted\n"
    assert moor.api.named(JOBS) == []


def test_several_runs_are_cancelled_and_every_error_is_printed(moor):
    moor.api.put(JOBS, a_job("a"))
    done = moor("cancel", "a", "b", "c")
    assert done.code == 1
    assert done.out == "a cancelled\n"
    assert [line for line in done.err.splitlines() if line.startswith("error")] == [
        "error: run 'b' not found in namespace default",
        "error: run 'c' not found in namespace default",
    ]


def test_explain_asks_the_server(moor):
    answer = Explanation(namespace="lab", name="train", state="waiting", text="because")
    moor.server.answers["/api/v1/explain/lab/train"] = document = msgspec.to_builtins(answer)
    assert moor("explain", "-n", "lab", "train").out == "because\n"
    shown = json.loads(moor("explain", "-n", "lab", "train", "-o", "json").out)
    assert shown | {"text": "because"} == json.loads(msgspec.json.encode(document))


@pytest.mark.parametrize(
    ("words", "kubectl"),
    [
        (["jobs"], "kubectl get jobs -n default -l moorage.dev/run"),
        (["show", "train"], "kubectl describe jobs,pods -n default -l moorage.dev/run=train"),
        (["explain", "train"], "kubectl describe jobs,pods -n default -l moorage.dev/run=train"),
        (["explain", "nightly/fit"], "kubectl describe workflow nightly -n default"),
        (["gpus"], "kubectl describe nodes"),
        (["nodes"], "kubectl describe nodes"),
        (["budget", "list"], "kubectl describe budgets"),
    ],
)
def test_a_command_without_the_server_names_the_kubectl_command(moor, words, kubectl):
    done = moor(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"error: this cluster has no Moorage server\nhint: without Moorage's server: {kubectl}\n"
