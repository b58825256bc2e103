"""What the steps of a workflow wait for: of workflows that are played to the moment that is asked about."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace
from tests.workflowrecords import a_node_record

from moorage.api.explain import LockHolder
from moorage.decide.explain.explainer import explain
from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_LABEL
from moorage_kube.moments import rfc3339
from moorage_kube.testing.builders import a_node, a_pod
from moorage_kube.testing.clock import NOON
from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.graph.events import Controls
from moorage_workflows.decide.workflows.graph.locks import LIMITS_CONFIGMAP, lock_name
from moorage_workflows.decide.workflows.views import view_workflow, workflow_object
from moorage_workflows.decide.workflows.waiting import MANY_PENDING, RunningStep, WaitKind, saving_note, waits_of
from moorage_workflows.model.workflow import NodePhase
from moorage_workflows.present.workflowwaits import Explained, make_workflow_explanation
from moorage_workflows.server.pages.workflowboard import WaitRow, wait_rows

STEP = {"name": "fit", "container": {"image": "x", "command": ["x"]}}


OF_FIT = {
    "namespace": "default",
    "labels": {WORKFLOW_LABEL: "wf"},
    "annotations": {NODE_NAME_ANNOTATION: "wf[0].fit"},
}


def steps(*groups):
    return {
        "name": "main",
        "steps": [[{"name": name, "template": template} for name, template in group.items()] for group in groups],
    }


def begun(*templates, table=None, plays=3, locks=True, **spec):
    """A workflow, played for so many steps, with nobody who gives locks where `locks` is False."""
    manifest = {"spec": {"entrypoint": "main", "templates": [STEP, *templates], **spec}}
    player = Player(manifest, *([table] if table else []))
    player.has_locks = locks
    for _ in range(plays):
        player.step()
    player.decide()
    return player


def seen(player, *, live=None):
    record = player.workflow
    obj = workflow_object(
        record, player.nodes.values(), {"metadata": {}, "spec": record.document["spec"], **(live or {})}
    )
    return view_workflow(obj), obj["spec"]


def waits(player, step="", **more):
    view, spec = seen(player, **more)
    found = waits_of(view, spec, step)
    return [(str(wait.kind), wait.steps, wait.message) for wait in found.waits]


def pending(player, pod, message):
    """The pod of a step does not run."""
    node = player.run.node_of_pod(pod)
    player.nodes[node.id] = msgspec.structs.replace(node, phase=NodePhase.PENDING, message=message)


def test_steps_whose_pods_have_no_place_are_named_with_the_pod_of_the_first():
    loop = {"name": "main", "steps": [[{"name": "fit", "template": "fit", "withSequence": {"count": 7}}]]}
    player = begun(loop, plays=1)
    for name in [*player.pods][1:]:
        pending(player, name, "Unschedulable: 0/1 nodes are available")
    view, spec = seen(player)
    found = waits_of(view, spec)
    assert [running.step for running in found.running] == ["fit(0:0)"]
    (wait,) = found.waits
    assert (wait.kind, wait.count, wait.pod) == (WaitKind.POD, 6, player.node("WF[0].fit(1:1)").pod_name)
    assert wait.steps == ("fit(1:1)", "fit(2:2)", "fit(3:3)", "fit(4:4)", "fit(5:5)")
    alone = waits_of(view, spec, "fit(3:3)")
    assert (alone.running, alone.waits[0].pod) == ((), player.node("WF[0].fit(3:3)").pod_name)


def test_a_pod_that_a_quota_refuses_is_told_with_its_words():
    player = begun(steps({"fit": "fit"}), plays=1)
    pending(player, *player.pods, "pods wf-1 is forbidden: exceeded quota: gpus")
    ((kind, steps_, message),) = waits(player)
    assert (kind, steps_) == ("refused", ("fit",))
    assert message == "its pod is not created yet: pods wf-1 is forbidden: exceeded quota: gpus"


def test_a_pod_that_is_made_later_is_told_with_the_reason():
    player = begun(steps({"fit": "fit"}), plays=1)
    pending(player, *player.pods, MANY_PENDING)
    ((kind, steps_, message),) = waits(player)
    assert (kind, steps_) == ("refused", ("fit",))
    assert message == "its pod is not created yet: many pods of this template wait for a node already"


@pytest.mark.parametrize(
    ("synchronization", "named", "lock"),
    [
        ({"mutexes": [{"name": "gpu"}]}, "the mutex default/gpu", "Mutex/default/gpu"),
        (
            {"semaphores": [{"configMapKeyRef": {"name": "limits", "key": "fit"}}]},
            "the semaphore default/limits/fit",
            "Semaphore/default/limits/fit",
        ),
    ],
)
def test_a_lock_is_named_with_who_holds_it(synchronization, named, lock):
    locked = {**STEP, "name": "locked", "synchronization": synchronization}
    player = begun(steps({"a": "locked"}), locked, locks=False)
    assert waits(player) == [("lock", ("a",), f"it waits for {named}")]
    view, spec = seen(player)
    found = waits_of(view, spec)
    assert found.waits[0].locks == (lock,)
    holder = LockHolder(lock=lock, namespace="default", workflow="other", step="fit")
    explained = [Explained(wait=found.waits[0], holders=[holder, LockHolder(lock=lock)])]
    text = make_workflow_explanation(view, found, explained, step="", now=player.now).text
    assert text.splitlines() == [
        f"workflow default/wf waits: it waits for {named}",
        "",
        "Waiting",
        f"  a: it waits for {named}",
        "    held by step fit of workflow default/other",
        "    held by a workflow that you may not read",
    ]


def test_a_lock_of_the_whole_workflow_is_told_before_any_step_begins():
    player = begun(steps({"a": "fit"}), locks=False, synchronization={"mutexes": [{"name": "one"}]})
    assert waits(player) == [("lock", (), "it waits for the mutex default/one")]


def test_a_pause_before_the_next_attempt_has_its_end():
    again = {**STEP, "name": "again", "retryStrategy": {"limit": 3, "backoff": {"duration": "10m"}}}
    player = begun(steps({"a": "again"}), again, table=by_node(a=Ends(exit_code=1)), plays=2)
    view, spec = seen(player)
    (wait,) = waits_of(view, spec).waits
    assert (wait.kind, wait.steps) == (WaitKind.BACKOFF, ("a",))
    assert wait.until == player.now + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("suspend", "message", "minutes"),
    [
        ({}, "it waits for a person", None),
        ({"duration": "5m"}, "it continues after its duration, or when a person resumes it", 5),
    ],
)
def test_a_step_that_waits_for_a_person_says_how_it_goes_on(suspend, message, minutes):
    player = begun(steps({"approve": "gate"}), {"name": "gate", "suspend": suspend}, plays=0)
    view, spec = seen(player)
    (wait,) = waits_of(view, spec).waits
    assert (wait.kind, wait.steps, wait.message) == (WaitKind.PERSON, ("approve",), message)
    assert wait.until == (None if minutes is None else player.now + timedelta(minutes=minutes))
    assert wait.hint == "resume it: moor workflow resume wf --node-field-selector displayName=approve"


def test_a_suspended_workflow_says_so_beside_what_still_runs():
    player = begun(steps({"a": "fit"}, {"b": "fit"}), plays=1)
    player.run.control(Controls(is_suspended=True))
    live = {"spec": {**player.workflow.document["spec"], "suspend": True}}
    assert waits(player, live=live) == [("suspended", (), "the workflow is suspended: further steps do not begin")]


def test_limits_of_parallelism_are_named_when_they_are_reached():
    step = {"name": "fit", "template": "fit", "withSequence": {"count": 7}}
    loop = {"name": "main", "parallelism": 2, "steps": [[step]]}
    until = "further steps of wf wait until one ends"
    of_template = f"at most 2 steps of the template main run at once (parallelism): {until}"
    assert waits(begun(loop, plays=1)) == [("parallelism", (), of_template)]
    del loop["parallelism"]
    limit = "at most 3 pods of the workflow exist at once (spec.parallelism), and 3 do"
    message = f"{limit}: further steps wait until one ends"
    assert waits(begun(loop, plays=1, parallelism=3)) == [("parallelism", (), message)]
    assert waits(begun(loop, plays=1, parallelism=8)) == []


@pytest.mark.parametrize(
    ("main", "step", "want"),
    [
        (steps({"a": "fit"}, {"b": "fit"}), "b", [("earlier", ("b",), "it comes after a")]),
        (
            {
                "name": "main",
                "dag": {
                    "tasks": [
                        {"name": "a", "template": "fit"},
                        {"name": "b", "template": "fit", "dependencies": ["a"]},
                        {"name": "c", "template": "fit", "depends": "a && b.Succeeded"},
                    ],
                },
            },
            "c",
            [("earlier", ("c",), "it comes after a, b")],
        ),
        (steps({"a": "fit"}), "nix", None),
    ],
)
def test_a_step_that_has_not_begun_names_what_it_comes_after(main, step, want):
    view, spec = seen(begun(main, plays=1))
    found = waits_of(view, spec, step)
    shown = None if found is None else [(str(wait.kind), wait.steps, wait.message) for wait in found.waits]
    assert shown == want


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "it has no controller yet"),
        ({"workflows.argoproj.io/controller-instanceid": "moorage"}, "the operator has not begun it yet"),
        (
            {"workflows.argoproj.io/controller-instanceid": "argo-2"},
            "it belongs to the controller with the instance id 'argo-2'",
        ),
    ],
)
def test_a_workflow_that_nobody_has_begun_says_whose_it_is(labels, message):
    view = view_workflow({"metadata": {"name": "wf", "namespace": "lab", "labels": labels}, "spec": {}})
    assert [wait.message for wait in waits_of(view, {}).waits] == [message]


def test_a_workflow_that_has_ended_waits_for_nothing_and_says_how_it_ended():
    player = begun(steps({"a": "fit"}), table=by_node(a=Ends(exit_code=1)))
    player.play()
    view, spec = seen(player)
    found = waits_of(view, spec)
    assert (found.running, found.waits) == ((), ())
    answer = make_workflow_explanation(view, found, [], step="", now=player.now)
    assert (answer.phase, answer.short) == ("Failed", "")
    assert answer.text.splitlines()[0] == "workflow default/wf has ended: Failed"
    of_step = waits_of(view, spec, "a")
    answer = make_workflow_explanation(view, of_step, [], step="a", now=player.now)
    assert answer.text.splitlines()[0] == "step a of workflow default/wf has ended: Failed"


def test_a_step_that_waits_for_gpus_is_explained_as_a_run_is():
    player = begun(steps({"fit": "fit"}), plays=1)
    (name,) = player.pods
    pending(player, name, "Unschedulable")
    view, spec = seen(player)
    found = waits_of(view, spec, "fit")
    pod = a_pod(name, gpus=1, phase="Pending", **OF_FIT)
    node = a_node("n1", gpus=1, gpu_type="a100", pods="10")
    labels = {"moorage.dev/run": "train"}
    other = a_pod("train", namespace="default", uid="1", labels=labels, gpus=1, node="n1", phase="Running")
    explanation = explain(pod, nodes=[node], pods=[other], now=player.now)
    answer = make_workflow_explanation(
        view, found, [Explained(wait=found.waits[0], explanation=explanation)], step="fit", now=player.now
    )
    assert (answer.short, answer.waits[0].explanation.step) == ("fit: needs 1 GPU; none is free", "wf/fit")
    lines = answer.text.splitlines()
    assert lines[0] == "step fit of workflow default/wf waits: needs 1 GPU; none is free"
    assert "Current holders" in lines


def test_a_step_whose_volume_cannot_be_mounted_says_why_and_what_to_do():
    player = begun(steps({"fit": "fit"}), plays=1)
    (name,) = player.pods
    pending(player, name, "")
    view, spec = seen(player)
    found = waits_of(view, spec)
    volumes = {"volumes": [{"name": "keys", "secret": {"secretName": "s3"}}]}
    pod = a_pod(name, uid="u", node="n1", phase="Pending", spec=volumes, **OF_FIT)
    event = {
        "involvedObject": {"kind": "Pod", "name": name, "uid": "u"},
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "keys" : secret "s3" not found',
        "lastTimestamp": "2026-11-21T11:50:00Z",
    }
    explanation = explain(pod, nodes=(), pods=(), now=player.now, events=[event])
    explained = [Explained(wait=found.waits[0], explanation=explanation)]
    answer = make_workflow_explanation(view, found, explained, step="", now=player.now)
    why = 'its pod does not start on n1: volume keys (Secret s3) cannot be mounted: secret "s3" not found'
    way = (
        "The Secret s3 does not exist: create it with `moor secret create s3 KEY -n default`;"
        " the pod then starts by itself"
    )
    assert answer.text.splitlines() == [
        f"workflow default/wf waits: {why}",
        "",
        "Waiting",
        f"  fit: {why}",
        f"    {way}",
        "",
        "see more of its pod: moor explain 'wf/fit'",
    ]
    (wait,) = answer.waits
    assert (wait.message, wait.hint) == (why, way)
    assert wait_rows(explained, "default", player.now) == (
        WaitRow(text=f"fit: {why}", more=(way.replace("`", ""),), href=f"/explain/default/{name}"),
    )


@pytest.mark.parametrize(
    "lock",
    [
        "Mutex/lab/gpu",
        "Semaphore/lab/limits/fit",
        "DatabaseMutex/lab/gpu",
        f"Semaphore/lab/{LIMITS_CONFIGMAP}/fit",
    ],
)
def test_a_lock_is_read_back_from_the_message_of_a_node(lock):
    node = a_node_record("wf.a", id="wf-1", message=f"Waiting for {lock_name(lock)} lock")
    view = replace(view_workflow({"metadata": {"name": "wf"}}), nodes=(node,))
    assert [wait.locks for wait in waits_of(view, {}).waits] == [(lock,)]


@pytest.mark.parametrize("is_whole", [True, False], ids=["of the workflow", "of a step"])
def test_a_lock_that_nobody_can_have_says_why(is_whole):
    synchronization = {"semaphores": [{"configMapKeyRef": {"name": "limits", "key": "train"}}]}
    locked = {**STEP, "name": "locked"} | ({} if is_whole else {"synchronization": synchronization})
    player = begun(
        steps({"a": "locked"}), locked, locks=False, **({"synchronization": synchronization} if is_whole else {})
    )
    (asked,) = player.locks_asked
    player.run.lock_waits(asked, "the ConfigMap limits does not exist")
    player.decide()
    (wait,) = waits_of(*seen(player)).waits
    assert wait.message == ("it waits for the semaphore default/limits/train: the ConfigMap limits does not exist")
    assert wait.hint


@pytest.mark.parametrize(
    ("seconds", "saver", "want"),
    [
        pytest.param(
            90, "running", "its command ended with 0 90s ago, and its outputs are not saved yet", id="long"
        ),
        pytest.param(5, "running", "", id="as every step"),
        pytest.param(90, "terminated", "", id="saved"),
    ],
)
def test_a_step_whose_outputs_are_not_saved_says_where_to_look(seconds, saver, want):
    running = RunningStep(step="fit", pod="p", node="n", since=NOON)
    main = {"exitCode": 0, "finishedAt": rfc3339(NOON - timedelta(seconds=seconds))}
    states = [{"name": "main", "state": {"terminated": main}}, {"name": "wait", "state": {saver: {"exitCode": 0}}}]
    note = saving_note(running, {"status": {"containerStatuses": states}}, "train", NOON)
    assert note.startswith(want)
    assert bool(note) == bool(want)
    assert note.endswith("moor workflow logs train --step 'fit' --container wait" if want else "")
