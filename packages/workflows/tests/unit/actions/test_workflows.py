"""Verbs over workflows, against an API in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, NotFound, Problems, UsageError
from moorage_kube.moments import rfc3339, rfc3339_micro
from moorage_kube.resources import DEPLOYMENTS, LEASES
from moorage_kube.testing.builders import an_object, given
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflows import (
    Choice,
    delete_workflow,
    get_workflow,
    list_workflows,
    read_source,
    resubmit_workflow,
    resume_workflow,
    retry_workflow,
    stop_workflow,
    submit_workflow,
    suspend_workflow,
    wait_workflow,
)
from moorage_workflows.actions.workflowtemplates import Applied, apply_template, create_template, delete_template
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.submission import Additions
from moorage_workflows.decide.workflows.views import view_workflow
from moorage_workflows.model.workflow import Resume, Retry

pytestmark = pytest.mark.anyio

OURS = {"workflows.argoproj.io/controller-instanceid": "moorage"}


def a_manifest(name="", **spec):
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name} if name else {"generateName": "train-"},
        "spec": {"entrypoint": "main", "templates": [{"name": "main"}]} | spec,
    }


def a_stored(api, name="train", phase="", *, labels=OURS, age=0, nodes=None, **spec):
    created, status = NOON - timedelta(minutes=age), given(phase=phase, nodes=nodes)
    spec = a_manifest(name, **spec)["spec"]
    return api.put(WORKFLOWS, an_object(WORKFLOWS, name, labels=labels, created=created, spec=spec, status=status))


def a_suspended(name="approve", **more):
    return {"id": name, "name": name, "displayName": name, "type": "Suspend", "phase": "Running"} | more


def a_template(name="ml", kind="WorkflowTemplate", **spec):
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"templates": [], "arguments": {"parameters": [{"name": "size", "value": "s"}]}} | spec,
    }


class Records:
    """Records of runs, by name."""

    def __init__(self, *objects):
        self.objects = objects

    async def read(self, _namespace, name, live):
        uid = live["metadata"]["uid"] if live else None
        named = [obj for obj in self.objects if obj["metadata"]["name"] == name]
        return next((obj for obj in named if uid in (None, obj["metadata"]["uid"])), None)

    async def listed(self, _namespace, _choice):
        return self.objects


def a_kept(name, uid, phase, *, age=0, **status):
    created, status = NOON - timedelta(minutes=age), {"phase": phase} | status
    return an_object(WORKFLOWS, name, uid=uid, created=created, spec={"entrypoint": "main"}, status=status)


async def submit(api, document, *, controller=Controller.MOORAGE, additions=None, **more):
    return await submit_workflow(api, "lab", document, additions or Additions(), controller=controller, **more)


@pytest.mark.parametrize(
    ("controller", "labels"),
    [
        pytest.param(Controller.MOORAGE, OURS, id="Moorage runs it: marked as ours"),
        pytest.param(Controller.ARGO, {}, id="Argo runs it: without our mark"),
        pytest.param(Controller.UNKNOWN, {}, id="nobody knows: whoever runs workflows adopts it"),
    ],
)
async def test_a_workflow_is_created_for_who_runs_it(api, controller, labels):
    submitted = await submit(api, a_manifest(), controller=controller)
    stored = (await api.list(WORKFLOWS, "lab")).items
    assert stored == [submitted.workflow]
    assert stored[0]["metadata"].get("labels", {}) == labels
    assert stored[0]["metadata"]["name"].startswith("train-")


async def test_nothing_is_created_by_a_dry_run(api):
    await submit(api, a_manifest("x"), dry_run=True)
    assert (await api.list(WORKFLOWS)).items == []


async def test_the_same_request_twice_gives_one_workflow(api):
    first = await submit(api, a_manifest(), mark="0123456789.abc")
    second = await submit(api, a_manifest(), mark="0123456789.abc")
    assert first.workflow == second.workflow
    assert len((await api.list(WORKFLOWS)).items) == 1


async def test_a_taken_name_is_said_with_a_way_out(api):
    await submit(api, a_manifest("x"))
    with pytest.raises(AlreadyExists, match="another workflow in namespace lab") as refused:
        await submit(api, a_manifest("x"))
    assert "--generate-name x-" in refused.value.hint


async def test_what_argo_refuses_by_its_size_is_refused_before(api):
    large = a_manifest(templates=[{"name": f"t{number}"} for number in range(201)])
    with pytest.raises(Problems, match="201 templates; Argo 4 allows 200") as refused:
        await submit(api, large, controller=Controller.ARGO)
    assert refused.value.field == "spec.templates"
    await submit(api, large)  # Moorage has no such limit


async def test_a_check_refuses_before_anything_is_created(api):

    async def check(_document):
        raise Problems([("no", None)])

    with pytest.raises(Problems):
        await submit(api, a_manifest(), check=check)
    assert (await api.list(WORKFLOWS)).items == []


@pytest.mark.parametrize(
    ("kind", "hint"), [("CronWorkflow", "moor cron create"), ("WorkflowTemplate", "template create"), ("Pod", "")]
)
async def test_another_kind_is_refused_with_its_own_command(kind, hint):
    with pytest.raises(UsageError, match=f"cannot submit argoproj.io/v1alpha1/{kind}") as refused:
        await submit(FakeApi(), a_manifest() | {"kind": kind})
    assert hint in (refused.value.hint or "")


async def test_a_workflow_from_a_template_takes_the_parameters_that_it_declares(api):
    await create_template(api, "lab", a_template())
    document = await read_source(api, "lab", "workflowtemplate/ml")
    made = await submit(api, document, additions=Additions(parameters=["size=l"]))
    assert made.workflow["spec"] == {
        "workflowTemplateRef": {"name": "ml"},
        "arguments": {"parameters": [{"name": "size", "value": "l"}]},
    }
    with pytest.raises(UsageError, match="has no parameter 'sise'"):
        await submit(api, document, additions=Additions(parameters=["sise=l"]))


async def test_a_source_that_does_not_exist_is_said_with_names_like_it(api):
    await create_template(api, "lab", a_template("train"))
    with pytest.raises(NotFound, match="'trian' not found in namespace lab") as refused:
        await read_source(api, "lab", "workflowtemplate/trian")
    assert refused.value.hint == "did you mean train?"


async def test_the_list_has_those_that_are_gone_and_the_newest_first(api):
    live = a_stored(api, "b", "Running", age=2)
    kept = [
        a_kept("a", "gone", "Failed", age=9, goneAt=rfc3339(NOON)),
        a_kept("b", live["metadata"]["uid"], "Succeeded", age=2),
        a_kept("c", "gone-too", "Succeeded", age=1),
    ]
    views = await list_workflows(api, "lab", Choice(), Records(*kept))
    assert [(view.name, view.phase) for view in views] == [("c", "Succeeded"), ("b", "Succeeded"), ("a", "Failed")]


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        pytest.param(Choice(phases=("Failed",)), ["old"], id="by phase"),
        pytest.param(Choice(prefix="n"), ["new"], id="by the beginning of the name"),
        pytest.param(Choice(since=NOON - timedelta(minutes=5)), ["new"], id="by age"),
        pytest.param(Choice(selector="team=x"), ["old"], id="by label"),
        pytest.param(Choice(limit=1), ["new"], id="at most one"),
    ],
)
async def test_the_list_is_chosen_from(api, choice, want):
    a_stored(api, "old", "Failed", age=10, labels={"team": "x"})
    a_stored(api, "new", age=1)
    assert [view.name for view in await list_workflows(api, "lab", choice)] == want


@pytest.mark.parametrize("choice", [Choice(phases=("Done",)), Choice(selector="a b")])
async def test_an_odd_choice_is_refused(choice):
    with pytest.raises(UsageError):
        await list_workflows(FakeApi(), "lab", choice)


async def test_a_workflow_is_shown_with_what_is_kept_of_it(api):
    live = a_stored(api, "train", "Running")
    kept = a_kept("train", live["metadata"]["uid"], "Running", nodes={"n": {"name": "n"}})
    view = view_workflow(await get_workflow(api, "lab", "@latest", Records(kept)))
    assert [node.name for node in view.nodes] == ["n"]


async def test_the_nodes_of_a_workflow_of_argo_are_in_its_object(api):
    a_stored(api, "train", "Running", labels={}, nodes={"m": {"name": "m"}})
    view = view_workflow(await get_workflow(api, "lab", "train", Records()))
    assert [node.name for node in view.nodes] == ["m"]


async def test_a_workflow_that_is_gone_is_shown_from_its_record():
    shown = await get_workflow(FakeApi(), "lab", "train", Records(a_kept("train", "u", "Failed")))
    assert shown["status"]["phase"] == "Failed"
    with pytest.raises(NotFound):
        await get_workflow(FakeApi(), "lab", "train", Records())


async def test_stopping_lets_the_exit_handler_run_and_terminating_does_not(api):
    a_stored(api, "train", "Running")
    assert (await stop_workflow(api, "lab", "train"))["spec"]["shutdown"] == "Stop"
    assert (await stop_workflow(api, "lab", "train", terminate=True))["spec"]["shutdown"] == "Terminate"
    assert (await stop_workflow(api, "lab", "train"))["spec"]["shutdown"] == "Terminate"  # not less than before


async def test_what_has_ended_is_neither_stopped_nor_suspended(api):
    a_stored(api, "train", "Failed")
    for verb in (stop_workflow, suspend_workflow):
        with pytest.raises(Conflict, match="has ended: Failed") as refused:
            await verb(api, "lab", "train")
        assert "moor workflow retry train" in refused.value.hint


async def test_what_was_suspended_goes_on(api):
    a_stored(api, "train", "Running")
    assert (await suspend_workflow(api, "lab", "train"))["spec"]["suspend"] is True
    resumed = await resume_workflow(api, "lab", "train", Resume(), now=NOON)
    assert "suspend" not in resumed["spec"]


async def test_two_people_who_resume_nodes_are_both_heard(api):
    live = a_stored(api, "train", "Running")
    nodes = {"a": a_suspended("a"), "b": a_suspended("b")}
    kept = Records(a_kept("train", live["metadata"]["uid"], "Running", nodes=nodes))
    for selector in ("displayName=a", "displayName=b"):
        await resume_workflow(api, "lab", "train", Resume(selector=selector), now=NOON, records=kept)
    stored = await api.get(WORKFLOWS, "train", "lab")
    asked = json.loads(stored["metadata"]["annotations"]["moorage.dev/workflow-resume"])
    assert asked == [{"selector": "displayName=a"}, {"selector": "displayName=b"}]


async def test_a_selector_that_chooses_no_node_that_waits_is_refused(api):
    live = a_stored(api, "train", "Running")
    kept = Records(
        a_kept("train", live["metadata"]["uid"], "Running", nodes={"a": a_suspended(phase="Succeeded")})
    )
    with pytest.raises(Conflict, match="no node of workflow 'train' matches"):
        await resume_workflow(api, "lab", "train", Resume(selector="displayName=x"), now=NOON, records=kept)


async def test_a_node_that_argo_runs_is_changed_as_argos_own_client_does(api):
    outputs = {"parameters": [{"name": "ok", "valueFrom": {"supplied": {}}}]}
    a_stored(api, "train", "Running", labels={}, nodes={"a": a_suspended("a", outputs=outputs)})
    resumed = await resume_workflow(api, "lab", "train", Resume(parameters={"ok": "yes"}), now=NOON)
    node = resumed["status"]["nodes"]["a"]
    assert (node["phase"], node["finishedAt"]) == ("Succeeded", rfc3339(NOON))
    assert node["outputs"]["parameters"][0]["value"] == "yes"
    assert "annotations" not in resumed["metadata"]


async def test_a_retry_is_asked_of_the_operator_and_lifts_a_stop(api):
    a_stored(api, "train", "Failed", shutdown="Stop")
    asked = await retry_workflow(api, "lab", "train", Retry())
    assert json.loads(asked["metadata"]["annotations"]["moorage.dev/workflow-retry"]) == {}
    assert "shutdown" not in asked["spec"]


async def test_argos_workflows_are_retried_by_argo(api):
    a_stored(api, "train", "Failed", labels={}, nodes={"n": {"name": "n"}})
    with pytest.raises(Conflict, match="Argo runs workflow 'train'"):
        await retry_workflow(api, "lab", "train", Retry())


async def test_one_that_is_gone_is_resubmitted_and_not_retried():
    api, kept = FakeApi(), Records(a_kept("train-x7k2p", "u", "Failed"))
    with pytest.raises(Conflict, match="only its record exists"):
        await retry_workflow(api, "lab", "train-x7k2p", Retry(), records=kept)
    again = await resubmit_workflow(
        api, "lab", "train-x7k2p", Additions(), controller=Controller.MOORAGE, records=kept
    )
    assert again.workflow["metadata"]["name"].startswith("train-")
    assert again.workflow["spec"] == {"entrypoint": "main"}


async def test_a_memoized_resubmit_is_not_for_argo(api):
    a_stored(api, "train", "Failed")
    with pytest.raises(Conflict, match="Argo runs workflows here"):
        await resubmit_workflow(api, "lab", "train", Additions(), controller=Controller.ARGO, memoized=True)


async def test_it_is_waited_for_until_it_has_ended():
    api, clock, seen = FakeApi(), FakeClock(), []
    a_stored(api, "train", "Running")

    def saw(view):
        seen.append(view.phase)
        a_stored(api, "train", "Succeeded")

    waiting = asyncio.ensure_future(wait_workflow(api, "lab", "train", clock, seen=saw))
    while not waiting.done():
        clock.advance(1)
        await asyncio.sleep(0)
    view = await waiting
    assert (view.phase, seen) == ("Succeeded", ["Running", "Succeeded"])


async def test_a_workflow_is_deleted_by_name(api):
    a_stored(api, "train", "Running")
    assert await delete_workflow(api, "lab", "@latest") == "train"
    with pytest.raises(NotFound):
        await delete_workflow(api, "lab", "train")


async def test_a_template_is_applied(api):
    assert (await apply_template(api, "lab", a_template()))[1] is Applied.CREATED
    assert (await apply_template(api, "lab", a_template()))[1] is Applied.UNCHANGED
    changed, what = await apply_template(api, "lab", a_template(entrypoint="main"))
    assert (what, changed["spec"]["entrypoint"]) == (Applied.CHANGED, "main")
    await delete_template(api, "lab", "ml")
    assert (await api.list(WORKFLOW_TEMPLATES)).items == []


async def test_a_template_of_the_cluster_has_no_namespace(api):
    made = await create_template(api, "lab", a_template(kind="ClusterWorkflowTemplate"))
    assert "namespace" not in made["metadata"]
    assert len((await api.list(CLUSTER_WORKFLOW_TEMPLATES)).items) == 1


class Hidden(FakeApi):
    """An API that refuses lists of these kinds, in these namespaces."""

    hidden: tuple = ()

    async def list(self, resource, namespace=None, **more):
        if (resource, namespace) in self.hidden:
            raise Forbidden("no")
        return await super().list(resource, namespace, **more)


LEASE = {
    "metadata": {"name": "workflow-controller", "namespace": "argo"},
    "spec": {"holderIdentity": "x", "renewTime": rfc3339_micro(NOON), "leaseDurationSeconds": 15},
}
DEPLOYMENT = {"metadata": {"name": "workflow-controller", "namespace": "argo"}, "status": {"readyReplicas": 1}}
EVERYWHERE = ((LEASES, None), (DEPLOYMENTS, None))


@pytest.mark.parametrize(
    ("hidden", "objects", "want"),
    [
        pytest.param((), [(LEASES, LEASE)], Controller.ARGO, id="a live Lease"),
        pytest.param((), [], Controller.MOORAGE, id="no Lease in any namespace"),
        pytest.param(((LEASES, None),), [(DEPLOYMENTS, DEPLOYMENT)], Controller.ARGO, id="a Deployment"),
        pytest.param(EVERYWHERE, [(LEASES, LEASE)], Controller.ARGO, id="the Lease in Argo's namespace"),
        pytest.param(EVERYWHERE, [], Controller.UNKNOWN, id="Argo's namespace alone tells nothing of others"),
    ],
)
async def test_who_runs_workflows_is_known_as_far_as_may_be_read(hidden, objects, want):
    api = Hidden()
    api.hidden = hidden
    for resource, obj in objects:
        api.put(resource, obj)
    assert await controller_of(api, NOON) is want
