"""What is submitted: a manifest with what the person adds to it, and nothing else changed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, CRON_WORKFLOWS, WORKFLOW_TEMPLATES
from moorage.model.names import SERVICE_MARKS
from moorage_kube.errors import Conflict, UsageError
from moorage_workflows.decide.workflows.submission import (
    _OF_A_RUN,
    Additions,
    argo_limits,
    check_retry,
    named_by_mark,
    pairs_of,
    parameter_values,
    resubmitted,
    source_of,
    with_additions,
    workflow_from,
)
from moorage_workflows.model.cronworkflow import metadata_of_runs

INSTANCE = "workflows.argoproj.io/controller-instanceid"


def a_workflow(*parameters, **spec):
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "train-"},
        "spec": {"entrypoint": "main", "templates": [], "arguments": {"parameters": list(parameters)}} | spec,
    }


def sent(document, *, ours=True, declared=None, **additions):
    return with_additions(document, Additions(**additions), namespace="lab", ours=ours, declared=declared)


def test_nothing_is_changed_where_nothing_is_added():
    document = a_workflow({"name": "size", "value": 3}, unknownField={"x": 1})
    made = sent(document, ours=False)
    assert made == {**document, "metadata": {"generateName": "train-", "namespace": "lab"}}


def test_the_manifest_that_was_given_is_not_changed():
    document = a_workflow({"name": "size"})
    before = copy.deepcopy(document)
    sent(document, name="x", parameters=["size=3"], labels=["a=b"], host_env=True, priority=3)
    assert document == before


def test_what_is_added_stands_in_argos_fields():
    made = sent(
        a_workflow({"name": "size", "valueFrom": {"configMapKeyRef": {}}}),
        name="one-run",
        parameters=["size=a=b"],
        values={"size": "lost"},
        labels=["project=vision"],
        entrypoint="other",
        service_account="robot",
        priority=5,
        priority_class="high",
        host_env=True,
    )
    assert made["metadata"] == {
        "name": "one-run",
        "namespace": "lab",
        "labels": {INSTANCE: "moorage", "project": "vision"},
    }
    assert made["spec"] == {
        "entrypoint": "other",
        "templates": [],
        "arguments": {"parameters": [{"name": "size", "value": "a=b"}]},
        "serviceAccountName": "robot",
        "podPriorityClassName": "high",
        "priority": 5,
        "podMetadata": {"annotations": {"localcluster.moorage.dev/host-env": "true"}},
    }


def test_a_label_of_another_instance_is_kept():
    document = a_workflow()
    document["metadata"]["labels"] = {INSTANCE: "blue"}
    assert sent(document)["metadata"]["labels"] == {INSTANCE: "blue"}


REFERS = a_workflow(workflowTemplateRef={"name": "ml"})


@pytest.mark.parametrize(
    ("document", "additions", "field", "message"),
    [
        pytest.param(a_workflow({"name": "size"}), {"parameters": ["sice=3"]}, "spec.arguments.parameters.sice",
                     "has no parameter 'sice': it has size", id="a name that nothing declares"),
        pytest.param(a_workflow({"name": "size", "enum": ["s", "l"]}), {"parameters": ["size=m"]},
                     "spec.arguments.parameters.size", "invalid value 'm' of parameter 'size': use s, l",
                     id="a value outside its enum"),
        pytest.param(a_workflow(), {"parameters": ["size"]}, "parameters", "invalid parameter 'size'",
                     id="a parameter without a value"),
        pytest.param(a_workflow(), {"labels": ["a=b c"]}, "labels", "invalid label", id="a label of odd letters"),
        pytest.param(a_workflow(), {"name": "A_1"}, "metadata.name", "invalid workflow name", id="an odd name"),
        pytest.param(a_workflow(), {"name": "x" * 64}, "metadata.name", "at most 63", id="a long name"),
        pytest.param(a_workflow(), {"generate_name": "x" * 59}, "metadata.generateName", "at most 58",
                     id="a long beginning of a name"),
        pytest.param(a_workflow() | {"metadata": {}}, {}, "metadata.name", "has no name", id="no name"),
        pytest.param(a_workflow() | {"metadata": {"name": "x", "namespace": "other"}}, {}, "metadata.namespace",
                     "for namespace 'other'", id="a manifest for another namespace"),
    ],
)  # fmt: skip
def test_what_would_change_nothing_or_be_refused_later_is_refused(document, additions, field, message):
    with pytest.raises(UsageError, match=message) as refused:
        sent(document, **additions)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("document", "declared"),
    [
        pytest.param(a_workflow(templates=[{"args": "{{workflow.parameters.size}}"}]), {}, id="a tag names it"),
        pytest.param(REFERS, {}, id="its template cannot be read"),
        pytest.param(REFERS, {"size": {"name": "size"}}, id="its template declares it"),
    ],
)
def test_a_parameter_that_something_knows_is_added(document, declared):
    made = sent(document, parameters=["size=3"], declared=declared)
    assert made["spec"]["arguments"]["parameters"] == [{"name": "size", "value": "3"}]


def test_a_parameter_that_its_template_does_not_declare_is_refused():
    with pytest.raises(UsageError, match="it has size") as refused:
        sent(REFERS, parameters=["sixe=3"], declared={"size": {"name": "size"}})
    assert refused.value.hint == "did you mean size?"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("workflowtemplate/ml", (WORKFLOW_TEMPLATES, "ml"), id="a template"),
        pytest.param("cwft/ml", (CLUSTER_WORKFLOW_TEMPLATES, "ml"), id="kubectl's short name of a cluster's"),
        pytest.param("CronWorkflow/nightly", (CRON_WORKFLOWS, "nightly"), id="letters of any case"),
    ],
)
def test_a_source_is_a_kind_and_a_name(text, want):
    assert source_of(text) == want


@pytest.mark.parametrize("text", ["ml", "job/ml", "workflowtemplate/", ""])
def test_another_source_is_refused(text):
    with pytest.raises(UsageError, match="use workflowtemplate/NAME"):
        source_of(text)


def test_a_workflow_of_a_template_refers_to_it():
    made = workflow_from(CLUSTER_WORKFLOW_TEMPLATES, {"metadata": {"name": "ml"}, "spec": {"templates": []}})
    assert made["metadata"] == {
        "generateName": "ml-",
        "labels": {"workflows.argoproj.io/cluster-workflow-template": "ml"},
    }
    assert made["spec"] == {"workflowTemplateRef": {"name": "ml", "clusterScope": True}}


def test_a_workflow_of_a_schedule_has_its_spec_and_belongs_to_it():
    cron = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": {
            "name": "nightly",
            "uid": "c1",
            "labels": {"moorage.dev/owner": "ada", "other": "y"},
            "annotations": {"moorage.dev/owner": "ada", "note": "z"},
        },
        "spec": {
            "workflowSpec": {"entrypoint": "main"},
            "workflowMetadata": {"labels": {"team": "x", "moorage.dev/owner": "bob"}},
        },
    }
    made = workflow_from(CRON_WORKFLOWS, cron)
    assert made["spec"] == {"entrypoint": "main"}
    assert made["metadata"]["labels"] == {
        "team": "x",
        "workflows.argoproj.io/cron-workflow": "nightly",
        "moorage.dev/owner": "ada",
    }
    assert made["metadata"]["annotations"] == {"moorage.dev/owner": "ada"}
    assert [each["uid"] for each in made["metadata"]["ownerReferences"]] == ["c1"]


def test_a_run_of_a_schedule_sends_its_heartbeats():
    monitors = {"moorage.dev/monitor": "https://hc-ping.com/1", "moorage.dev/notify": "mailto:a@x"}
    meta = {"name": "nightly", "uid": "u", "annotations": monitors | {"moorage.dev/cron-state": "{}"}}
    cron = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": meta,
        "spec": {"workflowMetadata": {"annotations": {"note": "x"}}, "workflowSpec": {}},
    }
    assert workflow_from(CRON_WORKFLOWS, cron)["metadata"]["annotations"] == {"note": "x"} | monitors


def test_parameters_of_a_file_are_texts():
    assert parameter_values({"a": "x", "n": 3, "l": [1], "on": True, "none": None}) == {
        "a": "x",
        "n": "3",
        "l": "[1]",
        "on": "true",
    }
    assert parameter_values(None) == {}
    with pytest.raises(UsageError, match="use a mapping"):
        parameter_values(["a=b"])


def test_another_run_of_a_workflow_has_nothing_of_the_first():
    first = {
        "metadata": {
            "name": "train-x7k2p",
            "uid": "u",
            "labels": {INSTANCE: "moorage", "workflows.argoproj.io/phase": "Failed", "team": "x"},
            "annotations": {"moorage.dev/workflow-retry": "{}", "moorage.dev/beats": "{}", "note": "y"},
        },
        "spec": {"entrypoint": "main", "shutdown": "Stop", "suspend": True},
        "status": {"phase": "Failed"},
    }
    assert resubmitted(first) == {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "generateName": "train-",
            "labels": {"team": "x", "workflows.argoproj.io/resubmitted-from-workflow": "train-x7k2p"},
            "annotations": {"note": "y"},
        },
        "spec": {"entrypoint": "main"},
    }


def a_failed(phase="Failed", labels=None, **notes):
    labels = {INSTANCE: "moorage"} if labels is None else labels
    meta = {"name": "train-x7k2p", "uid": "u", "labels": labels, "annotations": notes}
    return {"metadata": meta, "spec": {"entrypoint": "main"}, "status": {"phase": phase}}


def test_a_memoized_run_names_the_run_that_it_takes_results_from():
    earlier = a_failed(**{"moorage.dev/workflow-takes-over": "an older one"})
    assert resubmitted(earlier, memoized=True)["metadata"]["annotations"] == {
        "moorage.dev/workflow-takes-over": "u"
    }
    assert resubmitted(earlier)["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        pytest.param(
            a_failed("Succeeded"), "is Succeeded: only results of a workflow that is Failed", id="succeeded"
        ),
        pytest.param(a_failed("Running"), "is Running", id="running"),
        pytest.param(a_failed(""), "is Pending", id="not begun"),
        pytest.param(a_failed(labels={}), "Argo ran workflow 'train-x7k2p'", id="of Argo"),
    ],
)
def test_nothing_is_taken_over_from_a_run_that_did_not_fail_or_is_not_ours(earlier, words):
    with pytest.raises(Conflict, match=words):
        resubmitted(earlier, memoized=True)


@pytest.mark.parametrize(
    ("phase", "restart", "selector", "error"),
    [
        pytest.param("Failed", False, "", None, id="failed: yes"),
        pytest.param("Error", False, "", None, id="error: yes"),
        pytest.param("Succeeded", True, "displayName=a", None, id="succeeded, from a chosen node: yes"),
        pytest.param("Succeeded", True, "", Conflict, id="succeeded, from nowhere: no"),
        pytest.param("Running", False, "", Conflict, id="running: no"),
        pytest.param("", False, "", Conflict, id="not begun: no"),
        pytest.param("Failed", False, "displayName=a", UsageError, id="a selector alone: no"),
    ],
)
def test_what_can_be_retried(phase, restart, selector, error):
    if error is None:
        check_retry(phase, "wf", restart_successful=restart, selector=selector)
        return
    with pytest.raises(error):
        check_retry(phase, "wf", restart_successful=restart, selector=selector)


def test_argos_limits_are_named_with_their_paths():
    task = {"name": "t"}
    document = a_workflow(templates=[{"dag": {"tasks": [task] * 201}}, *[{}] * 200])
    assert argo_limits(document) == (
        "spec.templates: 201 templates; Argo 4 allows 200",
        "spec.templates[0].dag.tasks: 201 tasks; Argo 4 allows 200",
    )
    assert argo_limits(a_workflow()) == ()
    assert argo_limits({"spec": {"arguments": None, "templates": [None]}}) == ()


def test_the_same_request_gives_the_same_name():
    document = sent(a_workflow())
    first, second = named_by_mark(document, "0123456789.abc"), named_by_mark(document, "0123456789.abc")
    assert first == second
    assert first["metadata"]["name"] == "train-01234"
    assert named_by_mark(document, "")["metadata"]["generateName"] == "train-"


@given(st.dictionaries(st.text("abc", min_size=1), st.text("ab=", max_size=4), max_size=4))
def test_pairs_are_read_as_they_are_written(pairs):
    assert dict(pairs_of([f"{name}={value}" for name, value in pairs.items()], "f", "n")) == pairs


def test_another_run_of_a_workflow_begins_without_the_marks_of_the_first():
    assert set(SERVICE_MARKS) <= set(_OF_A_RUN)


def test_a_run_of_a_schedule_bears_no_mark_of_ours():
    forged = {"annotations": {SERVICE_MARKS[0]: "lab/other", "team": "vision"}}
    schedule = {"metadata": {"name": "x"}, "spec": {"workflowMetadata": forged}}
    assert metadata_of_runs(schedule)[1] == {"team": "vision"}
