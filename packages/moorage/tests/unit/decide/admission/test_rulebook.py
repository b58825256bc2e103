"""The table of guardrails: what each rule finds, what it writes, and that it takes anything."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.decide.admission.fields import field_of
from moorage.decide.admission.gpufacts import Facts, facts_of
from moorage.decide.admission.order import admit, judge
from moorage.decide.admission.review import OPERATOR, Request
from moorage.decide.admission.rulebook import RULES, judge_workload
from moorage.decide.admission.shape import misshapen
from moorage.decide.admission.templates import WORKLOADS
from moorage.model.policy import GuardrailRules, Policy, gpu_cluster_policy, policy_for
from moorage_kube.scheduling import NodeInfo

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
AWAY = ({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},)
FACTS = facts_of(
    [
        NodeInfo(name="a", labels={PRODUCT: "a100"}, allocatable={GPU: 8}),
        NodeInfo(name="b", labels={PRODUCT: "t4"}, allocatable={GPU: 2}),
        NodeInfo(name="c", allocatable={"cpu": 4000}),
    ]
)
FULL = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}


def a_spec(resources: Any = FULL, /, **fields: Any) -> Any:
    container = {"name": "main", "command": ["true"], "resources": copy.deepcopy(resources)}
    return {"restartPolicy": "Never", "containers": [container]} | fields


def a_workload(kind: str, spec: Any | None = None, **job: Any) -> Any:
    template = {"metadata": {}, "spec": a_spec() if spec is None else spec}
    if kind == "Pod":
        return {"metadata": {"name": "x"}, "spec": template["spec"]}
    inner = (
        {"backoffLimit": 0, **job, "template": template} if kind in ("Job", "CronJob") else {"template": template}
    )
    if kind == "CronJob":
        inner = {"jobTemplate": {"metadata": {}, "spec": inner}}
    return {"metadata": {"name": "x"}, "spec": inner}


def only(rule: str, level: str, **parameters: Any) -> Policy:
    """A policy of one rule; all others are off."""
    off = {rule.name: {"level": "off"} for rule in RULES}
    return Policy(off | {rule: {"level": level} | parameters})


def found(rule: str, kind: str, obj: Any, **options: Any) -> list[str]:
    judged = judge_workload(kind, obj, only(rule, "deny"), facts=FACTS, away=AWAY, **options)
    assert judged.warned == ()
    return [f"{one.field}={one.value}" for one in judged.denied]


def filled(rule: str, kind: str, obj: Any, **parameters: Any) -> Any:
    before = copy.deepcopy(obj)
    judged = judge_workload(kind, obj, only(rule, "fill", **parameters), facts=FACTS, away=AWAY, fill=True)
    assert obj == before  # judged, not changed
    return judged.obj


def test_every_rule_is_a_field_of_the_policy_and_the_other_way_round():
    fields = {field.split("_")[0] + "".join(w.title() for w in field.split("_")[1:]) for field in
              GuardrailRules.__struct_fields__}  # fmt: skip
    assert fields == {rule.name for rule in RULES}
    assert set(gpu_cluster_policy()["spec"]["rules"]) <= fields


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_kind_with_a_pod_template_is_judged_at_its_own_path(kind):
    path = field_of((*WORKLOADS[kind], "spec", "containers", 0))
    assert found("memoryLimit", kind, a_workload(kind, a_spec({}))) == [f"{path}.resources.limits.memory="]
    made = filled("memoryLimit", kind, a_workload(kind, a_spec({})), default="2Gi")
    assert found("memoryLimit", kind, made) == []


R = "spec.containers[0].resources"


@pytest.mark.parametrize(
    ("rule", "spec", "want"),
    [
        ("memoryLimit", a_spec({}), [f"{R}.limits.memory="]),
        ("memoryLimit", a_spec({}, resources={"limits": {"memory": "1Gi"}}), []),
        ("memoryLimit", a_spec({"limits": {"memory": "400m"}}), [f"{R}.limits.memory=400m"]),
        ("memoryLimit", a_spec({"limits": {"memory": "1Gi"}, "requests": {"memory": "8"}}),
         [f"{R}.requests.memory=8"]),
        ("resourceRequests", a_spec({}), [f"{R}.requests.cpu=", f"{R}.requests.memory="]),
        ("resourceRequests", a_spec({"limits": {"cpu": "1", "memory": "1Gi"}}), []),
        ("guaranteedQos", a_spec({"limits": {"cpu": "1", "memory": "1Gi"}}), []),
        ("guaranteedQos", a_spec({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}),
         [f"{R}=cpu: request 500m, limit 1"]),
        ("gpuNodes", a_spec(nodeSelector={PRODUCT: "a100"}), [f"spec.nodeSelector[{PRODUCT}]=a100"]),
        ("gpuNodes", a_spec({"limits": {GPU: 1}}, nodeSelector={PRODUCT: "a100"}), []),
        ("gpuNodes", a_spec(FULL | {"claims": [{"name": "gpu"}]}), []),
        ("gpuNodes", a_spec(), ["spec.affinity.nodeAffinity="]),
        ("gpuType", a_spec({"limits": {GPU: 1}}, nodeSelector={PRODUCT: "h100"}),
         [f"spec.nodeSelector[{PRODUCT}]=h100"]),
        ("gpuType", a_spec({"limits": {GPU: 1}}, nodeSelector={PRODUCT: "t4"}), []),
        ("gpuCount", a_spec({"limits": {GPU: 9}}), [f"{R}.limits[{GPU}]=9"]),
        ("gpuCount", a_spec({"limits": {GPU: 8}}), []),
        ("gpuCount", a_spec({"limits": {GPU: 8}}, nodeSelector={PRODUCT: "t4"}), [f"{R}.limits[{GPU}]=8"]),
        ("gpuCount", a_spec({"limits": {"amd.com/gpu": 1}}), [f"{R}.limits[amd.com/gpu]=1"]),
        ("ephemeralStorage", a_spec(), [f"{R}.limits.ephemeral-storage="]),
        ("ephemeralStorage", a_spec({"limits": {"ephemeral-storage": "1Gi"}}), []),
        ("restartBomb", a_spec({}), []),
        ("restartBomb", a_spec({}, restartPolicy="Always"), [f"{R}="]),
        ("restartBomb", a_spec(restartPolicy="Always"), []),
        ("restartBomb", a_spec({"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}},
                               restartPolicy="Always"), [f"{R}="]),
        ("missingCommand", {"containers": [{"name": "x"}]}, []),
    ],
)  # fmt: skip
def test_what_a_rule_finds_in_a_pod(rule, spec, want):
    assert found(rule, "Pod", a_workload("Pod", spec)) == want


def fails_on(*values: int, action: str = "FailJob", operator: str = "In") -> Any:
    return {"rules": [{"action": action, "onExitCodes": {"operator": operator, "values": list(values)}}]}


@pytest.mark.parametrize(
    ("rule", "spec", "job", "want"),
    [
        ("retryWithoutLimit", a_spec({}), {}, []),
        ("retryWithoutLimit", a_spec(), {"backoffLimit": 6}, []),
        ("retryWithoutLimit", a_spec({}, restartPolicy="OnFailure"), {"backoffLimit": 6},
         ["spec.backoffLimit=6", "spec.template.spec.restartPolicy=OnFailure"]),
        ("restartBomb", a_spec(), {"backoffLimit": 0}, []),
        ("restartBomb", a_spec(), {"backoffLimit": 2}, ["spec.podFailurePolicy=none"]),
        ("restartBomb", a_spec(), {"backoffLimit": 2, "podFailurePolicy": fails_on(137)}, []),
        ("restartBomb", a_spec(), {"backoffLimit": 2, "podFailurePolicy": fails_on(0, operator="NotIn")}, []),
        ("restartBomb", a_spec(), {"backoffLimit": 2, "podFailurePolicy": fails_on(137, action="Ignore")},
         ["spec.podFailurePolicy=no such rule"]),
        ("restartBomb", a_spec(), {"backoffLimit": 2, "podFailurePolicy": fails_on(42)},
         ["spec.podFailurePolicy=no such rule"]),
        ("restartBomb", a_spec(restartPolicy="OnFailure"), {"backoffLimit": 2}, []),
        ("missingCommand", {"containers": [{"name": "x"}]}, {}, ["spec.template.spec.containers[0].command="]),
    ],
)  # fmt: skip
def test_what_a_rule_finds_in_a_job(rule, spec, job, want):
    assert found(rule, "Job", a_workload("Job", spec, **job)) == want


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "ReplicationController"])
def test_a_service_that_could_be_evicted_for_memory_is_a_bomb_until_its_request_is_its_limit(kind):
    loose = a_workload(kind, a_spec({"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}}))
    assert found("restartBomb", kind, loose) != []
    made = filled("restartBomb", kind, loose)
    assert found("restartBomb", kind, made) == []
    resources = made["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi"}}


def test_a_job_that_is_tried_again_learns_to_fail_when_it_is_killed():
    made = filled("restartBomb", "Job", a_workload("Job", backoffLimit=4))
    assert made["spec"]["podFailurePolicy"] == fails_on(137)
    assert found("restartBomb", "Job", made) == []


def test_a_daemonset_may_go_to_gpu_nodes():
    assert found("gpuNodes", "DaemonSet", a_workload("DaemonSet")) == []


def test_without_another_place_nothing_keeps_off_gpu_nodes():
    assert judge_workload("Pod", a_workload("Pod"), only("gpuNodes", "deny"), facts=FACTS).denied == ()


def test_offline_nothing_is_said_of_gpu_types_and_counts():
    spec = a_spec({"limits": {GPU: 99}}, nodeSelector={PRODUCT: "x"})
    for rule in ("gpuType", "gpuCount"):
        assert judge_workload("Pod", a_workload("Pod", spec), only(rule, "deny")).denied == ()


def test_alternatives_are_enough_when_one_of_them_exists():
    def wants(*types: str) -> Any:
        terms = [{"matchExpressions": [{"key": PRODUCT, "operator": "In", "values": [one]}]} for one in types]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return a_workload("Pod", a_spec({"limits": {GPU: 1}}, affinity={"nodeAffinity": required}))

    assert found("gpuType", "Pod", wants("h100", "a100")) == []
    assert len(found("gpuType", "Pod", wants("h100", "b200"))) == 1


@pytest.mark.parametrize(
    ("key", "extra", "is_found"),
    [
        ("scheduler.alpha.kubernetes.io/critical-pod", [], True),
        ("container.seccomp.security.alpha.kubernetes.io/main", [], True),
        ("prometheus.io/scrape", [], False),
        ("prometheus.io/scrape", ["prometheus.io/*"], True),
        ("a/b", ["a/b"], True),
        ("a/bc", ["a/b"], False),
    ],
)
def test_annotations_that_nothing_reads(key, extra, is_found):
    pod = a_workload("Pod") | {"metadata": {"annotations": {key: ""}}}
    judged = judge_workload("Pod", pod, only("unsupportedAnnotations", "deny", annotations=extra))
    assert bool(judged.denied) is is_found


@pytest.mark.parametrize(
    ("requests", "want"), [({}, "2Gi"), ({"memory": "1Gi"}, "2Gi"), ({"memory": "4Gi"}, "4Gi")]
)
def test_a_filled_limit_is_the_default_or_a_larger_request(requests, want):
    made = filled("memoryLimit", "Pod", a_workload("Pod", a_spec({"requests": requests})), default="2Gi")
    assert made["spec"]["containers"][0]["resources"]["limits"]["memory"] == want


# --- levels and policies


def test_fill_without_a_value_to_fill_in_is_a_warning():
    pod = a_workload("Pod", a_spec({}))
    judged = judge_workload("Pod", pod, only("memoryLimit", "fill"), fill=True)
    assert (len(judged.denied), len(judged.warned), judged.filled) == (0, 1, ())


def test_a_bare_off_which_yaml_reads_as_false_is_off():
    assert Policy({"memoryLimit": {"level": False}}).level("memoryLimit", "warn") == "off"


def a_policy(name: str, level: str, selector: Any = None, **more: Any) -> Any:
    spec = {"rules": {"memoryLimit": {"level": level} | more}}
    return {"metadata": {"name": name}, "spec": spec | ({"namespaceSelector": selector} if selector else {})}


@pytest.mark.parametrize(
    ("policies", "want"),
    [
        ([], None),
        ([a_policy("a", "deny", {"matchLabels": {"team": "y"}})], None),
        ([a_policy("a", "deny", {"matchLabels": {"team": "x"}})], "deny"),
        ([a_policy("a", "warn"), a_policy("b", "deny"), a_policy("c", "fill")], "deny"),
        ([a_policy("a", "warn", {"matchExpressions": [{"key": "team", "operator": "Odd"}]})], None),
    ],
)
def test_the_strictest_policy_that_selects_the_namespace_holds(policies, want):
    policy = policy_for({"team": "x"}, policies)
    assert (policy.level("memoryLimit", "off") if policy else None) == want


# --- admission


STRICT = Policy(gpu_cluster_policy()["spec"]["rules"] | {"ephemeralStorage": {"level": "deny"}})


def asked(kind: str, obj: Any, **fields: Any) -> Request:
    base = {"kind": kind, "operation": "CREATE", "user": "ada", "facts": FACTS, "away_from_gpus": AWAY}
    return Request(**(base | {"obj": obj, "policy": STRICT} | fields))


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("decide", [admit, judge])
def test_admission_tells_all_denials_at_once(kind, decide):
    bad = a_workload(kind, a_spec({"limits": {GPU: 9}}, nodeSelector={PRODUCT: "h100"}))
    prefix = field_of((*WORKLOADS[kind], "spec"))
    assert [refusal.field for refusal in decide(asked(kind, bad)).refusals] == [
        f"{prefix}.nodeSelector[{PRODUCT}]",
        f"{prefix}.containers[0].resources.limits[{GPU}]",
        f"{prefix}.containers[0].resources.limits.ephemeral-storage",
    ]


@pytest.mark.parametrize("user", [OPERATOR, "system:serviceaccount:kube-system:replicaset-controller"])
def test_what_controllers_make_from_a_judged_workload_is_not_judged_again(user):
    assert admit(asked("Pod", a_workload("Pod", a_spec({})), user=user)).refusals == ()


def test_an_update_that_leaves_the_template_alone_passes_and_changes_nothing():
    old = a_workload("Deployment", a_spec({}))
    new = copy.deepcopy(old)
    new["spec"]["replicas"] = 3
    verdict = admit(asked("Deployment", new, operation="UPDATE", old=old))
    assert (verdict.patches, verdict.refusals) == ((), ())
    assert judge(asked("Deployment", new, operation="UPDATE", old=old)).refusals == ()


def test_an_update_is_refused_for_what_it_makes_wrong_only():
    old = a_workload("Deployment", a_spec({}))
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["nodeSelector"] = {PRODUCT: "h100"}
    fields = [refusal.field for refusal in judge(asked("Deployment", new, operation="UPDATE", old=old)).refusals]
    assert fields == [f"spec.template.spec.nodeSelector[{PRODUCT}]"]


def test_a_run_without_a_limit_gets_the_policys_default_before_it_is_judged():
    run = a_workload("Job", a_spec({}), backoffLimit=3) | {
        "metadata": {"name": "x", "labels": {"moorage.dev/run": "x"}}
    }
    policy = Policy(gpu_cluster_policy()["spec"]["rules"])
    verdict = admit(asked("Job", run, policy=policy))
    assert verdict.refusals == ()
    assert "no memory limit given: limited to 2Gi, the policy's default" in verdict.warnings
    made = patched(run, verdict.patches)
    assert made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "2Gi",
    }
    assert "moorage.dev/restart-limit" not in made["metadata"]["annotations"]
    assert made["spec"]["backoffLimit"] == 3
    assert judge(asked("Job", made, policy=policy)).refusals == ()


def patched(obj: Any, patches: Any) -> Any:
    made = copy.deepcopy(obj)
    for patch in patches:
        *path, last = patch["path"].lstrip("/").split("/")
        target = made
        for step in path:
            target = target[step]
        target[last] = copy.deepcopy(patch["value"])
    return made


quantities = st.sampled_from(["500m", "1", "1Gi", "2Gi", "4Gi"])
tables = st.dictionaries(st.sampled_from(["cpu", "memory", GPU, "ephemeral-storage"]), quantities, max_size=3)
containers = st.fixed_dictionaries(
    {"name": st.just("c"), "resources": st.fixed_dictionaries({}, optional={"limits": tables, "requests": tables})}
)
specs = st.fixed_dictionaries(
    {
        "containers": st.lists(containers, min_size=1, max_size=3),
        "restartPolicy": st.sampled_from(["Never", "OnFailure", "Always"]),
    },
    optional={
        "initContainers": st.lists(containers, max_size=2),
        "nodeSelector": st.dictionaries(st.sampled_from([PRODUCT, "zone"]), st.sampled_from(["a100", "x"])),
    },
)
FILLING = Policy(
    {
        rule.name: {"level": "fill" if rule.fill else "off", "default": "2Gi", "cpu": "1", "memory": "2Gi"}
        for rule in RULES
    }
)


@given(kind=st.sampled_from(sorted(WORKLOADS)), spec=specs, backoff=st.integers(0, 3))
def test_what_was_filled_in_satisfies_the_rules_and_filling_again_changes_nothing(kind, spec, backoff):
    obj = a_workload(kind, spec, backoffLimit=backoff)
    request = asked(kind, obj, policy=FILLING)
    first = admit(request)
    made = patched(obj, first.patches)
    judged = judge_workload(kind, made, FILLING, facts=FACTS, away=AWAY)
    # what users choose is not overruled: GPU nodes, and memory of less than 1 MiB
    typed = [one for one in judged.warned if one.rule == "gpuNodes" or (one.rule == "memoryLimit" and one.value)]
    assert [str(one) for one in judged.warned if one not in typed] == []
    again = admit(asked(kind, made, policy=FILLING))
    assert again.patches == ()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(obj: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [path] if path else []
    if isinstance(obj, dict):
        out += [place for key, value in obj.items() for place in places(value, (*path, key))]
    elif isinstance(obj, list):
        out += [place for index, value in enumerate(obj) for place in places(value, (*path, index))]
    return out


def a_rich_workload(kind: str) -> Any:
    expression = {"key": PRODUCT, "operator": "In", "values": ["a100"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    spec = a_spec(
        {"limits": {GPU: 1, "memory": "1Gi"}, "requests": {"cpu": "1"}},
        initContainers=[{"name": "i", "resources": {}}],
        nodeSelector={PRODUCT: "a100"},
        tolerations=[{"operator": "Exists"}],
        volumes=[{"name": "v", "emptyDir": {}}],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    )
    return a_workload(kind, spec, backoffLimit=2, podFailurePolicy=fails_on(137))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(sorted(WORKLOADS)), value=junk)
def test_no_rule_falls_over_a_field_of_a_wrong_type(data, kind, value):
    obj = a_rich_workload(kind)
    *path, last = data.draw(st.sampled_from(places(obj)))
    target = obj
    for step in path:
        target = target[step]
    target[last] = value
    list(misshapen(kind, obj))
    everything = Policy({rule.name: {"level": "warn"} for rule in RULES})
    judge_workload(kind, obj, everything, facts=FACTS, away=AWAY)


def test_no_node_has_nothing_to_offer():
    assert facts_of([]) == Facts()


def test_nodes_that_an_autoscaler_may_add_are_judged_as_if_they_were_there():
    rules = {"gpuType": {"level": "deny"}, "gpuCount": {"level": "deny"}}
    coming = {"labels": {PRODUCT: "h100"}, "resources": {GPU: "16"}}
    policies = [
        {"metadata": {"name": "p"}, "spec": {"rules": rules, "expectedNodes": [coming, {"resources": {GPU: "x"}}]}}
    ]
    asks = {"limits": {GPU: "16"}}
    for kind, wanted in (("h100", 0), ("b200", 2)):
        obj = a_workload("Pod", a_spec(asks, nodeSelector={PRODUCT: kind}))
        with_coming, without = policy_for({}, policies), Policy(rules)
        assert with_coming is not None
        denied = judge_workload("Pod", obj, with_coming, facts=FACTS).denied
        assert len([one for one in denied if one.rule == "gpuType"]) == (1 if wanted else 0)
        assert len(denied) == (0 if not wanted else 1)
        assert judge_workload("Pod", obj, without, facts=FACTS).denied
        assert judge_workload("Pod", obj, with_coming).denied == ()  # no cluster was asked


def test_a_job_whose_replacement_gets_more_memory_may_be_tried_again():
    job = a_workload("Job", backoffLimit=3)
    rule = {"level": "fill", "escalation": {"max": "8Gi"}}
    found = judge_workload("Job", job, Policy({"restartBomb": rule}), fill=True)
    assert not [one for one in found.filled if one.rule == "restartBomb"]
    found = judge_workload("Job", job, Policy({"restartBomb": {"level": "fill"}}), fill=True)
    assert [one.field for one in found.filled if one.rule == "restartBomb"] == ["spec.podFailurePolicy"]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"template": {"spec": {"containers": [{"name": "c"}]}}}, "spec.template.spec.containers[0]"),
        (
            {"replicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "c"}]}}}}},
            "spec.replicaSpecs.Worker.template.spec.containers[0]",
        ),
        (
            {"groups": [1, {"template": {"spec": {"containers": [{"name": "c"}]}}}]},
            "spec.groups[1].template.spec.containers[0]",
        ),
        ({"containers": [{"name": "c"}]}, None),
        ({"template": {"spec": {"containers": ["c", 1]}}}, None),
    ],
)
def test_whatever_looks_like_a_pod_template_is_judged_in_kinds_of_others(spec, where):
    found = judge_workload("Notebook", {"spec": spec}, Policy({}))
    fields = [one.field for one in found.warned if one.rule == "memoryLimit"]
    assert fields == ([f"{where}.resources.limits.memory"] if where else [])


def a_guest(kind: str, *others: Any, **labels: str) -> Any:
    """A workload whose pods ask for a machine; `others` are containers beside the one that gets it."""
    labels = {"moorage.dev/machine-group": "g", "moorage.dev/machine-type": "small"} | labels
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}, *others]}
    obj = a_workload(kind, spec)
    at_path = obj
    for step in WORKLOADS[kind]:
        at_path = at_path[step]
    at_path["metadata"]["labels"] = labels
    return obj


GUESTS = [kind for kind in WORKLOADS if kind != "Pod"]


@pytest.mark.parametrize("kind", GUESTS)
def test_the_policy_that_we_ship_leaves_the_size_and_the_nodes_of_guests_to_their_machine(kind):
    obj = a_guest(kind)
    judged = judge_workload(kind, obj, policy_for({}, [gpu_cluster_policy()]), facts=FACTS, away=AWAY, fill=True)
    assert judged.obj == obj
    assert [finding.rule for finding in (*judged.denied, *judged.warned)] == ["ephemeralStorage"]


@pytest.mark.parametrize("kind", GUESTS)
def test_containers_beside_a_machines_own_need_limits(kind):
    bare = {"name": "side", "command": ["true"]}
    path = field_of((*WORKLOADS[kind], "spec", "containers"))
    assert found("memoryLimit", kind, a_guest(kind, bare)) == [f"{path}[1].resources.limits.memory="]
    chosen = a_guest(kind, bare, **{"moorage.dev/machine-container": "side"})
    assert found("memoryLimit", kind, chosen) == [f"{path}[0].resources.limits.memory="]


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_a_manifest_that_names_a_machine_is_judged_as_admission_will_make_it(kind):
    """`moor lint` sees it before admission gives it the machine's size and nodes."""
    obj = a_workload(kind, a_spec({}))
    meta = obj["metadata"] if kind == "Pod" else obj["spec"]["template"].setdefault("metadata", {})
    meta["labels"] = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "small"}
    policy = Policy({name: {"level": "deny"} for name in ("memoryLimit", "resourceRequests", "gpuNodes")})
    away = ({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},)
    assert judge_workload(kind, obj, policy, away=away).denied == ()
