"""CronJobs and older spellings → workflows of today: what is kept, what changes, and that nothing is dropped."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.fields import at, mapping
from moorage_workflows.decide.workflows.argosubmit import NotConverted, Submit, parse_submit
from moorage_workflows.decide.workflows.changes import Converted, Outcome
from moorage_workflows.decide.workflows.convert import convert, convert_documents
from moorage_workflows.decide.workflows.cronjobs import BACKOFF

CONTAINER = {"name": "train", "image": "trainer:3", "command": ["python", "train.py"]}


def a_cronjob(
    *, cron: dict[str, Any] | None = None, job: dict[str, Any] | None = None, pod: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", "containers": [dict(CONTAINER)]} | (pod or {})
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "lab"},
        "spec": {"schedule": "0 19 * * *", "timeZone": "Asia/Tokyo", "startingDeadlineSeconds": 600}
        | (cron or {})
        | {"jobTemplate": {"spec": {"backoffLimit": 0} | (job or {}) | {"template": {"spec": spec}}}},
    }


def a_submitter(script: str, *, command: tuple[str, ...] = ("sh", "-euc")) -> dict[str, Any]:
    return a_cronjob(
        pod={"containers": [{"name": "main", "image": "cli:1", "command": [*command], "args": [script]}]}
    )


def spec_of(result: Converted) -> Any:
    assert result.document is not None, result.changes
    return result.document["spec"]


def leaf_of(result: Converted) -> Any:
    return spec_of(result)["workflowSpec"]["templates"][-1]


def outcomes(result: Converted) -> dict[str, set[Outcome]]:
    fields: dict[str, set[Outcome]] = {}
    for change in result.changes:
        fields.setdefault(change.field, set()).add(change.outcome)
    return fields


def test_a_plain_cronjob_becomes_one_template():
    result = convert(a_cronjob())
    assert result.document == {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": {"name": "nightly", "namespace": "lab"},
        "spec": {
            "schedules": ["0 19 * * *"],
            "timezone": "Asia/Tokyo",
            "startingDeadlineSeconds": 600,
            "workflowSpec": {
                "entrypoint": "main",
                "templates": [
                    {"name": "main", "container": {"image": "trainer:3", "command": ["python", "train.py"]}},
                ],
            },
        },
    }
    assert not [change for change in result.changes if change.outcome.is_loss]


@pytest.mark.parametrize(
    ("cron", "want"),
    [
        pytest.param({"concurrencyPolicy": "Replace"}, {"concurrencyPolicy": "Replace"}, id="the policy stays"),
        pytest.param({"suspend": True}, {"suspend": True}, id="a suspended one stays suspended"),
        pytest.param(
            {"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 10},
            {"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 10},
            id="history limits stay, also 0",
        ),
        pytest.param(
            {"schedule": "CRON_TZ=Europe/Berlin 5 4 * * *", "timeZone": None},
            {"schedules": ["5 4 * * *"], "timezone": "Europe/Berlin"},
            id="a zone inside of the schedule becomes the time zone",
        ),
    ],
)
def test_fields_of_the_schedule(cron, want):
    spec = spec_of(convert(a_cronjob(cron=cron)))
    assert {key: spec[key] for key in want} == want


@pytest.mark.parametrize(
    ("job", "pod", "want"),
    [
        pytest.param({"backoffLimit": 0}, {}, None, id="no retries: none is written"),
        pytest.param(
            {"backoffLimit": 3},
            {},
            {"limit": "3", "retryPolicy": "Always", "backoff": BACKOFF},
            id="retries, with the pauses of a Job",
        ),
        pytest.param(
            {"backoffLimit": None},
            {"restartPolicy": "OnFailure"},
            {"limit": "6", "retryPolicy": "Always", "backoff": BACKOFF},
            id="the default of a Job is written down",
        ),
        pytest.param(
            {
                "backoffLimit": 2,
                "podFailurePolicy": {
                    "rules": [
                        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42, 137]}},
                        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                    ],
                },
            },
            {},
            {
                "limit": "2",
                "retryPolicy": "Always",
                "backoff": BACKOFF,
                "expression": "!(asInt(lastRetry.exitCode) in [42, 137])",
            },
            id="exit codes that fail the Job are not tried again",
        ),
        pytest.param(
            {
                "backoffLimit": 2,
                "podFailurePolicy": {
                    "rules": [
                        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [3]}},
                        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}},
                    ],
                },
            },
            {},
            {
                "limit": "2",
                "retryPolicy": "Always",
                "backoff": BACKOFF,
                "expression": "(asInt(lastRetry.exitCode) in [3]) || (!(asInt(lastRetry.exitCode) not in [1]))",
            },
            id="the first rule that fits decides",
        ),
    ],
)
def test_retries(job, pod, want):
    assert leaf_of(convert(a_cronjob(job=job, pod=pod))).get("retryStrategy") == want


def test_a_container_that_restarted_in_its_pod_is_said_to_start_in_a_new_one():
    result = convert(a_cronjob(job={"backoffLimit": 1}, pod={"restartPolicy": "OnFailure"}))
    assert outcomes(result)["spec.jobTemplate.spec.template.spec.restartPolicy"] == {Outcome.CHANGED}


def test_what_ends_and_removes_a_job():
    result = convert(a_cronjob(job={"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5, "suspend": True}))
    spec = spec_of(result)["workflowSpec"]
    assert spec["activeDeadlineSeconds"] == 60
    assert spec["ttlStrategy"] == {"secondsAfterCompletion": 5}
    assert spec["suspend"] is True


def test_an_indexed_job_is_a_step_for_each_index():
    result = convert(a_cronjob(job={"completions": 5, "parallelism": 2, "completionMode": "Indexed"}))
    entry, leaf = spec_of(result)["workflowSpec"]["templates"]
    assert entry == {
        "name": "main",
        "parallelism": 2,
        "steps": [
            [
                {
                    "name": "pod",
                    "template": "pod",
                    "withSequence": {"count": "5"},
                    "arguments": {"parameters": [{"name": "index", "value": "{{item}}"}]},
                },
            ],
        ],
    }
    assert leaf["inputs"] == {"parameters": [{"name": "index"}]}
    assert leaf["container"]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "{{inputs.parameters.index}}"}]


def test_a_job_with_a_queue_of_its_own_is_said_to_differ():
    result = convert(a_cronjob(job={"parallelism": 3}))
    assert outcomes(result)["spec.jobTemplate.spec.parallelism"] >= {Outcome.CHANGED}
    assert spec_of(result)["workflowSpec"]["templates"][0]["steps"][0][0]["withSequence"] == {"count": "3"}


def test_fields_of_the_pod_find_their_places():
    pod = {
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "fast"},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 90,
        "initContainers": [
            {"name": "fetch", "image": "fetch:1"},
            {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
        ],
    }
    result = convert(a_cronjob(pod=pod))
    spec, leaf = spec_of(result)["workflowSpec"], leaf_of(result)
    assert spec["serviceAccountName"] == "trainer"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert leaf["nodeSelector"] == {"disk": "fast"}
    assert leaf["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert json.loads(leaf["podSpecPatch"]) == {"terminationGracePeriodSeconds": 90}
    assert leaf["initContainers"] == [{"name": "fetch", "image": "fetch:1"}]
    assert leaf["sidecars"] == [{"name": "proxy", "image": "proxy:1"}]


def test_several_containers_become_a_set_and_need_their_commands():
    two = [dict(CONTAINER), {"name": "upload", "image": "up:1", "command": ["up"]}]
    assert leaf_of(convert(a_cronjob(pod={"containers": two})))["containerSet"] == {"containers": two}
    del two[1]["command"]
    result = convert(a_cronjob(pod={"containers": two}))
    assert result.document is None
    assert outcomes(result)["spec.jobTemplate.spec.template.spec.containers[1].command"] == {Outcome.REFUSED}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"metadata": {"name": "n" * 53}}, "metadata.name", id="a name of 53 characters"),
        pytest.param({"metadata": {}}, "metadata.name", id="no name"),
        pytest.param({"spec": {"schedule": 5, "jobTemplate": None}}, "spec.jobTemplate", id="no Job"),
        pytest.param({"spec": {"schedule": "61 * * * *"}}, "spec.schedule", id="a schedule with minute 61"),
        pytest.param(
            {"spec": {"schedule": "0 1 * * *", "timeZone": "Mars/Base"}}, "spec.timeZone", id="an unknown zone"
        ),
        pytest.param({"spec": 3}, "spec", id="a spec that is a number"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_field(change, field):
    obj = a_cronjob()
    if isinstance(change.get("spec"), dict):
        change = {"spec": obj["spec"] | change["spec"]}
    result = convert(obj | change)
    assert result.is_refused
    assert Outcome.REFUSED in outcomes(result)[field]


@pytest.mark.parametrize(
    ("change", "field", "outcome"),
    [
        pytest.param({"timeZone": None}, "spec.timeZone", Outcome.CHANGED, id="not a time zone"),
        pytest.param(
            {"startingDeadlineSeconds": None}, "spec.startingDeadlineSeconds", Outcome.CHANGED, id="no deadline"
        ),
        pytest.param({"newField": 1}, "spec.newField", Outcome.LOST, id="a field that nobody knows"),
    ],
)
def test_what_a_person_must_know_is_said(change, field, outcome):
    assert outcomes(convert(a_cronjob(cron=change)))[field] == {outcome}


def test_texts_that_a_workflow_reads_differently_are_named():
    result = convert(a_cronjob(pod={"containers": [CONTAINER | {"args": ["{{item}}"]}]}))
    assert outcomes(result)["spec.jobTemplate.spec.template.spec.containers[0].args[0]"] == {Outcome.CHANGED}


# --- a CronJob that only submits a workflow, watched by Cronitor: the field report of a team that moved


def test_a_cronjob_that_submits_a_template_becomes_a_reference_to_it():
    script = "argo submit --wait\n--from workflowtemplates/nightly-training --name nightly-`date +%Y-%m-%d`"
    obj = a_submitter(script.replace("\n", " "), command=("cronitor", "exec", "a1B2", "sh", "-euc"))
    result = convert(obj)
    assert spec_of(result) == {
        "schedules": ["0 19 * * *"],
        "timezone": "Asia/Tokyo",
        "startingDeadlineSeconds": 600,
        "workflowSpec": {"workflowTemplateRef": {"name": "nightly-training"}},
    }
    messages = " ".join(change.message for change in result.changes)
    assert "moorage.dev/monitor" in messages
    assert "a1B2" in messages
    assert "the name nightly-$(date +%Y-%m-%d) is not used" in messages


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param(["python", "train.py"], None, id="another command"),
        pytest.param(
            ["argo", "submit", "--from", "workflowtemplate/t", "-p", "a=b=c", "--parameter=d=e"],
            Submit(template="t", parameters={"a": "b=c", "d": "e"}),
            id="without a shell",
        ),
        pytest.param(
            ["/bin/bash", "-c", "exec argo submit --wait --log --from=clusterworkflowtemplate/t --priority 5"],
            Submit(template="t", is_cluster=True, priority=5),
            id="a template of the cluster",
        ),
        pytest.param(
            ["sh", "-c", "set -e\nargo submit \\\n --from wftmpl/t -p day=$(date -u '+%F')"],
            Submit(
                template="t",
                parameters={
                    "day": "{{workflow.creationTimestamp.Y}}-{{workflow.creationTimestamp.m}}-"
                    "{{workflow.creationTimestamp.d}}"
                },
                has_dates=True,
            ),
            id="a date in a parameter",
        ),
        pytest.param(
            ["sh", "-c", "cronitor exec K argo submit --from workflowtemplate/t -l team=a,x=y"],
            Submit(template="t", labels={"team": "a", "x": "y"}, monitor="K"),
            id="watched inside of the script",
        ),
        pytest.param(
            ["sh", "-c", "argo submit --from workflowtemplate/t && echo done"],
            NotConverted("the script does more than submit one workflow"),
            id="two commands in one line",
        ),
        pytest.param(
            ["sh", "-c", "cd /tmp\nargo submit --from workflowtemplate/t"],
            NotConverted("the script has more than one command"),
            id="two lines",
        ),
        pytest.param(
            ["sh", "-c", "argo submit --from workflowtemplate/t -p a=$HOME"],
            NotConverted("-p has a variable of the shell: a=$HOME"),
            id="a variable",
        ),
        pytest.param(
            ["sh", "-c", "argo submit --from workflowtemplate/t -p a=$(hostname)"],
            NotConverted("-p has the output of a command: hostname"),
            id="the output of a command",
        ),
        pytest.param(
            ["argo", "submit", "wf.yaml"], NotConverted("it submits a file, not --from a template"), id="a file"
        ),
        pytest.param(
            ["argo", "submit", "--from", "cronworkflow/c"],
            NotConverted("--from cronworkflow/c is not a WorkflowTemplate"),
            id="from a CronWorkflow",
        ),
        pytest.param(
            ["argo", "submit", "-n", "other", "--from", "workflowtemplate/t"],
            NotConverted("it submits into the namespace 'other', which is not the CronJob's own"),
            id="into another namespace",
        ),
        pytest.param(
            ["argo", "submit", "--from", "workflowtemplate/t", "--kubeconfig", "x"],
            NotConverted("the option --kubeconfig cannot be converted"),
            id="an option without a counterpart",
        ),
    ],
)
def test_argo_submit_in_a_command(words, want):
    assert parse_submit(words, "lab") == want


def test_a_submit_that_cannot_be_read_stays_a_container():
    result = convert(a_submitter("argo submit --from workflowtemplate/t && touch /tmp/done"))
    assert leaf_of(result)["container"]["args"] == ["argo submit --from workflowtemplate/t && touch /tmp/done"]
    assert Outcome.ADVICE in outcomes(result)["spec.jobTemplate.spec.template.spec.containers[0]"]


# --- older spellings of Argo


def a_cron_workflow(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": {"name": "c"},
        "spec": spec | {"workflowSpec": {"entrypoint": "m", "templates": [{"name": "m", "suspend": {}}]}},
    }


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"schedule": "0 0 * * *"}, ["0 0 * * *"], id="one schedule becomes a list"),
        pytest.param({"schedules": ["@daily"]}, ["@daily"], id="a list stays"),
        pytest.param({"schedule": "a", "schedules": ["b"]}, ["a", "b"], id="both are joined"),
        pytest.param({"schedule": "b", "schedules": ["b"]}, ["b"], id="the same one is not doubled"),
    ],
)
def test_schedules_of_older_cron_workflows(spec, want):
    document = a_cron_workflow(**spec)
    result = convert(document)
    assert spec_of(result)["schedules"] == want
    assert "schedule" not in spec_of(result)
    assert result.is_changed == ("schedule" in spec)


def test_locks_of_older_workflows_become_lists_wherever_they_stand():
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "w-"},
        "spec": {
            "synchronization": {"mutex": {"name": "m"}},
            "templateDefaults": {"synchronization": {"mutex": {"name": "d"}, "mutexes": [{"name": "e"}]}},
            "templates": [{"name": "t", "synchronization": {"semaphore": {"configMapKeyRef": {"name": "s"}}}}],
        },
    }
    before = copy.deepcopy(document)
    spec = spec_of(convert(document))
    assert document == before
    assert spec["synchronization"] == {"mutexes": [{"name": "m"}]}
    assert spec["templateDefaults"]["synchronization"] == {"mutexes": [{"name": "d"}, {"name": "e"}]}
    assert spec["templates"][0]["synchronization"] == {"semaphores": [{"configMapKeyRef": {"name": "s"}}]}


def test_lists_are_opened_and_other_kinds_pass_through():
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    bundle = {"apiVersion": "v1", "kind": "List", "items": [a_cronjob(), config]}
    results = list(convert_documents([bundle, None, "text"]))
    assert [(result.kind, result.is_changed, result.is_refused) for result in results] == [
        ("CronJob", True, False),
        ("ConfigMap", False, False),
        ("", True, True),
    ]
    assert results[1].document == config


# --- properties

_names = st.text("abcxyz", min_size=1, max_size=6)
_resources = st.fixed_dictionaries(
    {}, optional={"requests": st.just({"cpu": "1", "memory": "2Gi"}), "limits": st.just({"nvidia.com/gpu": 1})}
)
_containers = st.fixed_dictionaries(
    {"name": _names, "image": _names, "command": st.lists(_names, min_size=1, max_size=3)},
    optional={
        "args": st.lists(_names, max_size=3),
        "env": st.lists(st.fixed_dictionaries({"name": _names, "value": _names}), max_size=3),
        "resources": _resources,
        "workingDir": _names,
    },
)
_jobs = st.fixed_dictionaries(
    {},
    optional={
        "backoffLimit": st.integers(0, 9),
        "completions": st.integers(1, 9),
        "parallelism": st.integers(0, 9),
        "completionMode": st.sampled_from(["Indexed", "NonIndexed"]),
        "activeDeadlineSeconds": st.integers(1, 99),
        "strange": st.integers(),
    },
)
_cronjobs = st.builds(
    lambda job, pod, cron: a_cronjob(job=job, pod=pod, cron=cron),
    _jobs,
    st.fixed_dictionaries(
        {"containers": st.lists(_containers, min_size=1, max_size=3, unique_by=lambda item: item["name"])},
        optional={
            "restartPolicy": st.sampled_from(["Never", "OnFailure"]),
            "hostname": _names,
            "nodeSelector": st.just({"a": "b"}),
            "strange": st.integers(),
        },
    ),
    st.fixed_dictionaries({}, optional={"suspend": st.booleans(), "strange": st.integers()}),
)


@given(_cronjobs)
def test_every_container_keeps_what_it_runs(obj):
    before = copy.deepcopy(obj)
    result = convert(obj)
    assert obj == before
    leaf = leaf_of(result)
    made = [leaf["container"]] if "container" in leaf else leaf["containerSet"]["containers"]
    given_containers = at(obj, ("spec", "jobTemplate", "spec", "template", "spec", "containers"))
    for container, now in zip(given_containers, made, strict=True):
        for key in ("image", "command", "args", "resources", "workingDir"):
            assert now.get(key) == container.get(key)
        env = [entry for entry in now.get("env") or [] if entry["name"] != "JOB_COMPLETION_INDEX"]
        assert env == (container.get("env") or [])


@given(_cronjobs)
def test_every_field_has_a_line(obj):
    lines = {change.path for change in convert(obj).changes}
    job: tuple[Any, ...] = ("spec", "jobTemplate", "spec")
    for path in ((), ("spec",), job, (*job, "template", "spec")):
        for key in mapping(at(obj, path)):
            where = (*path, key)
            if at(obj, where) is not None and key != "apiVersion":
                assert any(line[: len(where)] == where for line in lines), where


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(_cronjobs, st.data())
def test_no_document_makes_it_fail(obj, data):
    paths = list(_paths(obj, ()))
    path = data.draw(st.sampled_from(paths))
    parent = at(obj, path[:-1])
    parent[path[-1]] = data.draw(_junk)
    assert convert(obj).changes or convert(obj).is_changed is False


@given(_junk)
def test_no_value_at_all_makes_it_fail(value):
    list(convert_documents([value, {"kind": "CronJob", "apiVersion": "batch/v1", "spec": value}]))


@given(st.text(alphabet="argo submit-frm=/`$(){}'\"\\\n\x00p", max_size=60))
def test_no_script_makes_the_reader_fail(script):
    parse_submit(["sh", "-c", "argo submit " + script], "lab")


def _paths(value: Any, path: tuple[Any, ...]):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from _paths(inner, (*path, index))


@given(_cronjobs)
def test_what_comes_out_is_a_valid_workflow(obj):
    """It passes the checks of `moor workflow lint`, and Moorage runs it."""
    from moorage_workflows.decide.workflows.lint import check
    from moorage_workflows.decide.workflows.support import unsupported

    result = convert(obj)
    if result.document is None:  # an invalid quantity in the CronJob is invalid in a workflow
        refused = [change for change in result.changes if change.outcome is Outcome.REFUSED]
        assert any("must be a quantity" in change.message for change in refused)
        return
    assert [finding for finding in check(result.document) if finding.is_error] == []
    assert [finding for finding in unsupported(result.document) if finding.is_error] == []
    assert not any("of the result" in change.message for change in result.changes)
