"""What admission fills in, stamps and refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.gpunodes import away_from_gpus
from moorage.decide.admission.order import admit, judge
from moorage.decide.admission.review import OPERATOR, TEMPLATES, Request, Verdict
from moorage.decide.admission.rulebook import RULES
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, ClusterFacts, RunRequest
from moorage.model.argo import WORKFLOW_LABEL
from moorage.model.names import ATTEMPT_LABEL, RESTART_LIMIT_ANNOTATION, label_value
from moorage.model.policy import Policy
from moorage.model.tenant import TenantDefaults
from moorage_kube.scheduling import NodeInfo, Taint

JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
OWNER = "moorage.dev/owner"
RUN = {"moorage.dev/run": "train"}
AWAY = ({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},)
TENANT = TenantDefaults(cpu="2", memory="8Gi")
FULL = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}


def a_pod_spec(**fields: Any) -> dict[str, Any]:
    return {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {}}]} | fields


def a_container(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "resources": resources}


def a_job(*, labels: Any = RUN, annotations: Any = None, pod: Any = None, name: str = "train", **spec: Any) -> Any:
    meta: dict[str, Any] = {"name": name, "namespace": "lab"}
    if labels:
        meta["labels"] = dict(labels)
    if annotations:
        meta["annotations"] = dict(annotations)
    template = {
        "metadata": {"labels": dict(labels or {})},
        "spec": pod or a_pod_spec(containers=[a_container(**FULL)]),
    }
    return {"metadata": meta, "spec": {"backoffLimit": 0, "template": template} | spec}


def a_pod(*, labels: Any = RUN, annotations: Any = None, **spec: Any) -> Any:
    meta = {
        "name": "train-x",
        "namespace": "lab",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return {"metadata": meta, "spec": a_pod_spec(containers=[a_container(**FULL)]) | spec}


def asked(obj: Any, **fields: Any) -> Request:
    defaults = {"kind": "Job" if "template" in obj["spec"] else "Pod", "operation": "CREATE", "user": "ada"}
    return Request(**(defaults | {"obj": obj} | fields))


def patched(obj: Any, verdict: Verdict) -> Any:
    """RFC 6902, as far as it is used: "add" to a member of a mapping."""
    made = copy.deepcopy(obj)
    for patch in verdict.patches:
        assert patch["op"] == "add"
        *path, last = patch["path"].lstrip("/").split("/")
        target = made
        for step in path:
            target = target[step]
        target[last] = copy.deepcopy(patch["value"])
    return made


def admitted(obj: Any, **fields: Any) -> Any:
    verdict = admit(asked(obj, **fields))
    assert verdict.refusals == ()
    return patched(obj, verdict)


def owner(meta: Any) -> tuple[Any, Any]:
    return (meta.get("labels") or {}).get(OWNER), (meta.get("annotations") or {}).get(OWNER)


def fields_of(verdict: Verdict) -> list[str]:
    return [refusal.field for refusal in verdict.refusals]


# --- the owner


@pytest.mark.parametrize("user", ["ada", "ada@example.org", "system:serviceaccount:lab:ada"])
def test_a_new_object_is_the_askers_whatever_it_says(user):
    forged = {OWNER: "grace"}
    made = admitted(a_job(labels=RUN | forged, annotations=forged), user=user)
    assert owner(made["metadata"]) == (label_value(user), user)
    assert owner(made["spec"]["template"]["metadata"]) == (label_value(user), user)


def test_a_forged_owner_is_told_once():
    verdict = admit(asked(a_job(labels=RUN | {OWNER: "grace"})))
    assert verdict.warnings == ("metadata.labels[moorage.dev/owner]: cannot be set to 'grace'; set to ada",)


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        (JOB_CONTROLLER, ()),
        ("system:kube-controller-manager", ()),
        (OPERATOR, ()),
        pytest.param("admin", ("system:masters",), id="a control plane under an administrator's name"),
    ],
)
def test_who_writes_for_others_keeps_the_owner_of_the_template(user, groups):
    pod = a_pod(labels=RUN | {OWNER: "ada"}, annotations={OWNER: "ada"})
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "1", "controller": True}]
    assert owner(admitted(pod, user=user, groups=groups)["metadata"]) == ("ada", "ada")


def test_an_administrator_who_makes_an_object_is_its_owner():
    made = admitted(a_job(labels=RUN | {OWNER: "grace"}), user="root", groups=("system:masters",))
    assert owner(made["metadata"]) == ("root", "root")


def test_an_owner_reference_alone_lets_nobody_name_another_owner():
    pod = a_pod(labels=RUN | {OWNER: "grace"}, annotations={OWNER: "grace"})
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "1", "controller": True}]
    assert owner(admitted(pod)["metadata"]) == ("ada", "ada")


@pytest.mark.parametrize("service", ["moorage-webhook", "moorage-server", "default"])
def test_other_accounts_of_our_own_namespace_write_for_nobody(service):
    user = f"system:serviceaccount:moorage-system:{service}"
    made = admitted(a_pod(labels=RUN | {OWNER: "grace"}), user=user)
    assert owner(made["metadata"])[1] == user


def test_an_attempt_made_by_the_operator_stays_its_owners_and_is_not_judged_again():
    labels = RUN | {"moorage.dev/attempt": "2", OWNER: "ada"}
    unlimited = a_pod_spec(containers=[a_container()])
    job = a_job(name="train-r2", labels=labels, annotations={OWNER: "ada"}, pod=unlimited, backoffLimit=3)
    verdict = admit(asked(job, user=OPERATOR, defaults=TENANT, restart_limit_max=1))
    assert verdict == Verdict()
    assert judge(asked(job, user=OPERATOR)) == Verdict()


@pytest.mark.parametrize("kind", [kind for kind, paths in TEMPLATES.items() if paths and kind != "Job"])
def test_whatever_holds_a_pod_template_bears_the_owner_and_nothing_else_of_ours(kind):
    template = {"metadata": {"labels": {"app": "x", OWNER: "grace"}}, "spec": a_pod_spec()}
    spec = {"jobTemplate": {"spec": {"template": template}}} if kind == "CronJob" else {"template": template}
    workload = {"metadata": {"name": "x", "labels": {"app": "x"}}, "spec": spec}
    made = admitted(workload, kind=kind, defaults=TENANT, away_from_gpus=AWAY)
    job = made["spec"]["jobTemplate"] if kind == "CronJob" else made
    inner = job["spec"]["template"]
    assert owner(made["metadata"]) == owner(inner["metadata"]) == ("ada", "ada")
    assert owner(job["metadata"]) == ("ada", "ada")
    assert inner["metadata"]["labels"]["app"] == "x"
    assert inner["spec"] == template["spec"]


@pytest.mark.parametrize("change", ["removed", "changed", "unchanged"])
def test_an_update_leaves_the_owner_as_it_was(change):
    old = a_job(labels=RUN | {OWNER: "ada"}, annotations={OWNER: "ada"})
    new = copy.deepcopy(old)
    if change == "removed":
        del new["metadata"]["labels"][OWNER], new["metadata"]["annotations"]
    elif change == "changed":
        new["metadata"]["labels"][OWNER] = new["metadata"]["annotations"][OWNER] = "grace"
        new["spec"]["template"]["metadata"]["labels"][OWNER] = "grace"
    made = admitted(new, operation="UPDATE", old=old, user="grace")
    assert owner(made["metadata"]) == ("ada", "ada")
    assert owner(made["spec"]["template"]["metadata"]) == owner(old["spec"]["template"]["metadata"])


def test_an_object_from_before_the_guard_gets_no_owner_by_an_update():
    old = a_job(labels=None)
    new = a_job(labels={OWNER: "grace"})
    assert owner(admitted(new, operation="UPDATE", old=old)["metadata"]) == (None, None)


def test_the_validating_side_refuses_an_owner_that_was_changed_after_us():
    job = admitted(a_job())
    assert judge(asked(job)) == Verdict()
    job["metadata"]["labels"][OWNER] = "grace"
    job["spec"]["template"]["metadata"]["annotations"][OWNER] = "grace"
    verdict = judge(asked(job))
    assert fields_of(verdict) == [
        "metadata.labels[moorage.dev/owner]",
        "spec.template.metadata.annotations[moorage.dev/owner]",
    ]
    assert "must be 'ada'" in str(verdict.refusals[0])
    assert "found 'grace'" in str(verdict.refusals[0])


def test_the_validating_side_lets_an_object_without_owner_pass():
    """The mutating side was away, and its failure policy let work go on."""
    assert judge(asked(a_job())) == Verdict()


# --- R4: memory limits


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        pytest.param({}, {"cpu": "2", "memory": "8Gi"}, id="nothing: the tenant's defaults"),
        pytest.param({"limits": {"memory": "1Gi"}}, {"cpu": "2", "memory": "1Gi"}, id="a limit: kept"),
        pytest.param(
            {"requests": {"memory": "16Gi"}}, {"cpu": "2", "memory": "16Gi"}, id="a request: the limit too"
        ),
        pytest.param(FULL, {"cpu": "1", "memory": "1Gi"}, id="all: kept"),
    ],
)
def test_a_run_without_a_memory_limit_gets_the_tenants_default(resources, want):
    job = a_job(pod=a_pod_spec(containers=[a_container(**resources)]), backoffLimit=3)
    found = admitted(job, defaults=TENANT)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert found == {"limits": want, "requests": want}


def test_a_default_that_was_filled_in_is_said_and_noted():
    job = a_job(pod=a_pod_spec())
    verdict = admit(asked(job, defaults=TENANT))
    assert "no memory limit given: limited to 8Gi, the tenant's default" in verdict.warnings
    notes = patched(job, verdict)["metadata"]["annotations"]
    assert notes["moorage.dev/memory-defaulted"] == "true"


def test_init_containers_are_limited_too():
    job = a_job(pod=a_pod_spec(initContainers=[a_container()]))
    made = admitted(job, defaults=TENANT)["spec"]["template"]["spec"]
    assert made["initContainers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "8Gi"}


def test_a_limit_of_the_whole_pod_is_a_limit():
    job = a_job(pod=a_pod_spec(resources={"limits": {"memory": "4Gi"}}), backoffLimit=3)
    made = admitted(job, defaults=TENANT)["spec"]["template"]["spec"]
    assert "memory" not in made["containers"][0]["resources"].get("limits", {})


def test_what_moor_filled_in_without_knowing_the_tenant_gives_way_to_the_tenants_default():
    job = a_job(annotations={"moorage.dev/memory-defaulted": "true"})
    resources = admitted(job, defaults=TENANT)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"cpu": "1", "memory": "8Gi"}


def test_pods_that_controllers_make_from_a_judged_job_keep_their_resources():
    pod = a_pod(containers=[a_container()])
    assert admit(asked(pod, user=JOB_CONTROLLER, defaults=TENANT)) == Verdict()


def test_a_lone_pod_of_a_run_gets_the_default_or_must_never_restart():
    pod = a_pod(containers=[a_container()], restartPolicy="Always")
    made = admitted(pod, defaults=TENANT)
    assert made["spec"]["containers"][0]["resources"]["limits"]["memory"] == "8Gi"
    assert fields_of(admit(asked(pod))) == ["spec.containers[0].resources.limits.memory", "spec.restartPolicy"]
    assert fields_of(admit(asked(a_pod(containers=[a_container()])))) == []


# --- R5: requests equal limits


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        ({"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}, ("2", "2Gi")),
        ({"limits": {"cpu": "2", "memory": "2Gi"}}, ("2", "2Gi")),
        ({"requests": {"cpu": "2", "memory": "2Gi"}}, ("2", "2Gi")),
    ],
)
def test_requests_of_a_run_equal_its_limits(resources, want):
    job = a_job(pod=a_pod_spec(containers=[a_container(**resources)]))
    found = admitted(job)["spec"]["template"]["spec"]["containers"][0]["resources"]
    both = dict(zip(("cpu", "memory"), want, strict=True))
    assert found == {"limits": both, "requests": both}


def test_the_same_quantity_written_otherwise_is_left_alone():
    same = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}
    job = admitted(a_job(pod=a_pod_spec(containers=[a_container(**same)])))
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"] == same


# --- R6: without a limit, never again


@pytest.mark.parametrize(
    ("backoff", "policy", "want"),
    [
        (0, "Never", []),
        (3, "Never", ["spec.template.spec.containers[0].resources.limits.memory", "spec.backoffLimit"]),
        (
            0,
            "OnFailure",
            ["spec.template.spec.containers[0].resources.limits.memory", "spec.template.spec.restartPolicy"],
        ),
        (
            None,
            "OnFailure",
            [
                "spec.template.spec.containers[0].resources.limits.memory",
                "spec.template.spec.restartPolicy",
                "spec.backoffLimit",
            ],
        ),
    ],
)
@pytest.mark.parametrize("decide", [admit, judge])
def test_a_run_without_limit_and_default_must_never_be_tried_again(backoff, policy, want, decide):
    job = a_job(pod=a_pod_spec(restartPolicy=policy), backoffLimit=backoff)
    assert fields_of(decide(asked(job))) == want


def test_every_refusal_names_the_field_the_value_and_what_is_allowed():
    verdict = admit(asked(a_job(pod=a_pod_spec(), backoffLimit=6)))
    assert [str(refusal) for refusal in verdict.refusals] == [
        "spec.template.spec.containers[0].resources.limits.memory:"
        " a run needs a memory limit such as 8Gi, or backoffLimit 0 and restartPolicy Never",
        "spec.backoffLimit: must be 0 for a run without a memory limit (found 6)",
    ]
    assert verdict.patches == ()


def test_a_run_without_limit_is_not_started_again_by_the_operator_either():
    made = admitted(a_job(pod=a_pod_spec()))
    assert made["metadata"]["annotations"]["moorage.dev/restart-limit"] == "0"


def test_memory_none_stands_against_a_tenants_default():
    job = a_job(pod=a_pod_spec(), annotations={"moorage.dev/restart-limit": "0"})
    made = admitted(job, defaults=TENANT)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert made == {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}


@pytest.mark.parametrize("keep_label", [True, False])
@pytest.mark.parametrize("decide", [admit, judge])
def test_an_update_cannot_turn_an_unlimited_run_into_one_that_is_tried_again(keep_label, decide):
    old = a_job(pod=a_pod_spec())
    new = a_job(pod=a_pod_spec(), labels=RUN if keep_label else None, backoffLimit=5)
    assert "spec.backoffLimit" in fields_of(decide(asked(new, operation="UPDATE", old=old)))


def test_what_was_wrong_before_an_update_does_not_hinder_it():
    old = a_job(pod=a_pod_spec(), backoffLimit=5)
    new = a_job(pod=a_pod_spec(), backoffLimit=5, annotations={"note": "x"})
    assert judge(asked(new, operation="UPDATE", old=old)) == Verdict()


def test_finalizers_of_a_deleted_run_can_always_go():
    old = a_job(pod=a_pod_spec())
    new = a_job(pod=a_pod_spec(), backoffLimit=5)
    new["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert admit(asked(new, operation="UPDATE", old=old)).refusals == ()
    assert judge(asked(new, operation="UPDATE", old=old)) == Verdict()


# --- R7: off the GPU nodes


def required_of(pod: Any) -> Any:
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")


def test_a_run_without_gpus_keeps_off_gpu_nodes():
    made = admitted(a_job(), away_from_gpus=AWAY)
    assert required_of(made["spec"]["template"]["spec"]) == [{"matchExpressions": list(AWAY)}]


def test_each_alternative_of_a_runs_own_affinity_keeps_off_gpu_nodes():
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [zone]}, {"matchFields": [zone]}, {}]
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pod = a_pod_spec(containers=[a_container(**FULL)], affinity=own)
    made = admitted(a_job(pod=pod), away_from_gpus=AWAY)["spec"]["template"]["spec"]
    assert required_of(made) == [
        {"matchExpressions": [zone, *AWAY]},
        {"matchFields": [zone], "matchExpressions": list(AWAY)},
        {},
    ]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {"containers": [a_container(limits={"nvidia.com/gpu": "1", "memory": "1Gi"})]}, id="asks for GPUs"
        ),
        pytest.param({"nodeName": "gpu-1"}, id="is bound already"),
        pytest.param({"nodeSelector": {"nvidia.com/gpu.present": "true"}}, id="speaks of GPU nodes"),
    ],
)
def test_a_run_that_means_gpu_nodes_is_left_there(spec):
    pod = a_pod_spec(containers=[a_container(**FULL)]) | spec
    assert required_of(admitted(a_job(pod=pod), away_from_gpus=AWAY)["spec"]["template"]["spec"]) is None


def a_node(name: str, *, gpus: int = 0, **fields: Any) -> NodeInfo:
    return NodeInfo(name=name, allocatable={"cpu": 4000} | ({"nvidia.com/gpu": gpus} if gpus else {}), **fields)


GPU = a_node("gpu", gpus=4, labels={"accelerator": "a100"})


@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        pytest.param([], (), id="no node"),
        pytest.param([GPU], (), id="only GPU nodes"),
        pytest.param([GPU, a_node("cordoned", unschedulable=True)], (), id="the other is cordoned"),
        pytest.param(
            [GPU, a_node("master", taints=(Taint("cp", "", "NoSchedule"),))], (), id="the other is tainted"
        ),
        pytest.param(
            [GPU, a_node("sick", taints=(Taint("node.kubernetes.io/not-ready", "", "NoExecute"),))],
            (*AWAY, {"key": "accelerator", "operator": "DoesNotExist"}),
            id="the other is not ready just now",
        ),
        pytest.param([a_node("cpu")], AWAY, id="no GPU node yet: they may come"),
        pytest.param(
            [GPU, a_node("cpu", labels={"accelerator": "none"})],
            AWAY,
            id="the type label does not tell them apart",
        ),
        pytest.param(
            [GPU, a_node("odd", labels={"nvidia.com/gpu.present": "true"})], (), id="the mark is everywhere"
        ),
    ],
)
def test_gpu_nodes_are_kept_off_only_where_there_are_others(nodes, want):
    assert away_from_gpus(nodes) == want


# --- the tenant's limits


@pytest.mark.parametrize(
    ("asked_for", "most", "want"), [(None, 5, "5"), ("20", 5, "5"), ("3", 5, "3"), ("9", None, "9")]
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_restarts_are_capped_by_the_tenant(asked_for, most, want, operation):
    job = a_job(annotations={"moorage.dev/restart-limit": asked_for} if asked_for else None)
    made = admitted(job, restart_limit_max=most, operation=operation, old=a_job())
    assert made["metadata"]["annotations"]["moorage.dev/restart-limit"] == want


def test_a_run_without_a_time_limit_gets_the_tenants():
    made = admitted(a_job(), defaults=TenantDefaults(time_seconds=3600))
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 3600
    notes = made["metadata"]["annotations"]
    assert (notes["moorage.dev/time-limit-seconds"], notes["moorage.dev/expected-seconds"]) == ("3600", "3600")
    own = a_job(pod=a_pod_spec(containers=[a_container(**FULL)], activeDeadlineSeconds=60))
    made = admitted(own, defaults=TenantDefaults(time_seconds=3600))
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize(
    ("name", "labels", "want"),
    [
        ("train", RUN, []),
        ("train-r2", RUN | {"moorage.dev/attempt": "2"}, []),
        ("other", RUN, ["metadata.name"]),
        ("train", RUN | {"moorage.dev/attempt": "2"}, ["metadata.name"]),
        ("train", RUN | {"moorage.dev/attempt": "many"}, ["metadata.labels[moorage.dev/attempt]"]),
        ("x" * 60, {"moorage.dev/run": "x" * 60}, ["metadata.labels[moorage.dev/run]"]),
    ],
)
def test_a_runs_job_bears_the_name_of_its_attempt(name, labels, want):
    assert fields_of(admit(asked(a_job(name=name, labels=labels)))) == want


# --- everything else


def test_work_that_is_no_run_is_stamped_and_advised_but_neither_changed_nor_refused():
    job = a_job(labels=None, pod=a_pod_spec(restartPolicy="OnFailure"), backoffLimit=6)
    verdict = admit(asked(job, defaults=TENANT, away_from_gpus=AWAY))
    assert verdict.refusals == ()
    assert [patch["path"] for patch in verdict.patches] == [
        "/metadata/labels",
        "/metadata/annotations",
        "/spec/template/metadata/labels",
        "/spec/template/metadata/annotations",
    ]
    (said,) = verdict.warnings
    assert said.startswith("spec.template.spec.containers[0].resources.limits.memory is not set")


def test_what_moor_run_makes_passes_unchanged():
    nodes = (GPU, a_node("cpu", ready=True))
    request = RunRequest(command=("python", "train.py"), name="train", memory="1Gi", cpu="1", image="x")
    caller = Caller(user="ada", cwd="/w", program="/usr/bin/python")
    plan = plan_run(request, caller, ClusterFacts(nodes=nodes))
    assert plan.job is not None
    verdict = admit(asked(plan.job, away_from_gpus=away_from_gpus(nodes), restart_limit_max=20))
    assert verdict == Verdict()
    assert judge(asked(plan.job)) == Verdict()


QUANTITIES = st.sampled_from(["1", "500m", "2Gi", "1024Mi", "nonsense"])
TABLES = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), QUANTITIES, max_size=3)
CONTAINERS = st.builds(lambda limits, requests: a_container(limits=limits, requests=requests), TABLES, TABLES)
PODS = st.builds(
    lambda containers, policy, selector: a_pod_spec(
        containers=containers, restartPolicy=policy, nodeSelector=selector
    ),
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.sampled_from(["Never", "OnFailure"]),
    st.none() | st.just({"zone": "a"}),
)
JOBS = st.builds(
    lambda pod, labels, notes, backoff: a_job(pod=pod, labels=labels, annotations=notes, backoffLimit=backoff),
    PODS,
    st.dictionaries(st.sampled_from(["moorage.dev/run", OWNER]), st.sampled_from(["train", "grace"])),
    st.dictionaries(
        st.sampled_from(["moorage.dev/restart-limit", "moorage.dev/memory-defaulted", OWNER]),
        st.sampled_from(["0", "true", "7", "grace"]),
    ),
    st.sampled_from([None, 0, 3]),
)
USERS = st.sampled_from(["ada", JOB_CONTROLLER, OPERATOR])


@given(JOBS, USERS, st.sampled_from([TenantDefaults(), TENANT]), st.sampled_from([(), AWAY]))
def test_admitting_twice_changes_nothing_more_and_the_validating_side_agrees(job, user, defaults, away):
    before = json.dumps(job)
    request = asked(job, user=user, defaults=defaults, away_from_gpus=away, restart_limit_max=5)
    verdict = admit(request)
    assert json.dumps(job) == before  # not changed in place
    if verdict.refusals:
        assert verdict.patches == ()
        return
    made = patched(job, verdict)
    again = admit(asked(made, user=user, defaults=defaults, away_from_gpus=away, restart_limit_max=5))
    assert (again.patches, again.refusals) == ((), ())
    assert judge(asked(made, user=user)).refusals == ()
    if user == "ada":
        assert owner(made["metadata"]) == owner(made["spec"]["template"]["metadata"]) == ("ada", "ada")
        if "moorage.dev/run" in made["metadata"]["labels"]:
            pod = made["spec"]["template"]["spec"]
            limited = all(container["resources"]["limits"].get("memory") for container in pod["containers"])
            never = made["spec"]["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
            assert limited or (never and made["metadata"]["annotations"]["moorage.dev/restart-limit"] == "0")


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1_0", "٣"])
def test_odd_numbers_are_judged_and_never_a_defect(number: str) -> None:
    # a webhook that fails where its failure policy is Ignore lets the object through
    admit(asked(a_job(annotations={RESTART_LIMIT_ANNOTATION: number}), restart_limit_max=3))
    refusals = admit(asked(a_job(labels={**RUN, ATTEMPT_LABEL: number}))).refusals
    assert "must be a whole number from 1" in [refusal.message for refusal in refusals]


@pytest.mark.parametrize("kind", ["Workflow", "CronWorkflow"])
def test_a_workflow_bears_who_submitted_it(kind):
    workflow = {"metadata": {"name": "w", "namespace": "lab", "annotations": {OWNER: "another"}}, "spec": {}}
    verdict = admit(Request(kind=kind, operation="CREATE", user="ada", obj=workflow))
    assert verdict.patches == (
        {"op": "add", "path": "/metadata/annotations", "value": {OWNER: "ada"}},
        {"op": "add", "path": "/metadata/labels", "value": {OWNER: "ada"}},
    )
    assert "cannot be set to 'another'" in verdict.warnings[0]


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        pytest.param({WORKFLOW_LABEL: "w"}, True, id="a step's pod: no template of it was judged before"),
        pytest.param({}, False, id="a pod of a Job that was judged"),
    ],
)
def test_a_policy_holds_for_the_steps_that_the_operator_makes(labels, refused):
    pod = a_pod(labels=labels, annotations={OWNER: "ada"}, containers=[a_container()])
    policy = Policy({rule.name: {"level": "off"} for rule in RULES} | {"memoryLimit": {"level": "deny"}})
    request = Request(kind="Pod", operation="CREATE", user=OPERATOR, obj=pod, policy=policy)
    verdict = judge(request)
    assert bool(verdict.refusals) is refused


@pytest.mark.parametrize(
    ("labels", "limits"),
    [
        pytest.param({WORKFLOW_LABEL: "w"}, {"memory": "4Gi", "cpu": "2"}, id="a step: the tenant's defaults"),
        pytest.param({}, None, id="a pod of a Job that was judged"),
    ],
)
def test_a_step_without_limits_gets_the_tenants_defaults(labels, limits):
    pod = a_pod(labels=labels, annotations={OWNER: "ada"}, containers=[{"name": "main", "image": "x"}])
    defaults = TenantDefaults(memory="4Gi", cpu="2")
    request = Request(kind="Pod", operation="CREATE", user=OPERATOR, obj=pod, defaults=defaults)
    made = patched(pod, admit(request))
    resources = made["spec"]["containers"][0].get("resources") or {}
    assert (resources.get("limits"), resources.get("requests")) == (limits, limits)
