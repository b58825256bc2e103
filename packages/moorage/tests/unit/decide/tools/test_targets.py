"""What other kinds of clusters refuse, set and bill, and what `--write` makes of it."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.storedrecords import StoredPod
from moorage.decide.admission.fields import at
from moorage.decide.tools.fixes import fixed_text
from moorage.decide.tools.lint import Report, lint
from moorage.decide.tools.peaks import peaks_of
from moorage.decide.tools.targetrules import CHECKS, Peaks
from moorage.decide.tools.targets import FARGATE, TARGETS, billed_size, parse_target
from moorage_kube.errors import UsageError
from moorage_kube.quantity import amount
from moorage_kube.yamldocuments import parse_yaml_documents

MIB = 2**20
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
INLINE = "spec.templates[0].steps[0][0].inline"
WHOLE = {"requests": {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "1Gi"}}


def a_job(*, container: dict[str, Any] | None = None, annotations: Any = None, **pod: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "x", "command": ["x"], "resources": copy.deepcopy(WHOLE)} | (container or {})
    template: dict[str, Any] = {"spec": {"restartPolicy": "Never", "containers": [main]} | pod}
    if annotations is not None:
        template["metadata"] = {"annotations": annotations}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "nightly"},
        "spec": {"template": template},
    }


def a_workflow(*templates: dict[str, Any], kind: str = "WorkflowTemplate", **spec: Any) -> dict[str, Any]:
    inner = {"entrypoint": "a", "templates": list(templates)} | spec
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "nightly"},
        "spec": {"workflowSpec": inner} if kind == "CronWorkflow" else inner,
    }


def judged(obj: Any, *targets: str, peaks: Peaks | None = None) -> Report:
    text = obj if isinstance(obj, str) else yaml.safe_dump(obj, sort_keys=False)
    places = [parse_target(target) for target in targets]
    return lint([("f", text)], places=places, peaks=peaks, has_guardrails=False)


def brief(report: Report) -> set[tuple[str, str, str]]:
    return {
        (finding.level, finding.rule, finding.field.rpartition("containers[0].")[2]) for finding in report.findings
    }


@pytest.mark.parametrize("target", TARGETS)
def test_every_rule_of_a_target_names_where_it_was_read(target):
    assert set(TARGETS[target].sources) - {""} <= set(CHECKS)
    assert all(address.startswith("https://") for address in TARGETS[target].sources.values())


def test_a_pod_that_states_all_has_no_findings():
    assert not judged(a_job(), "gke-autopilot").findings


@pytest.mark.parametrize(
    ("obj", "target", "want"),
    [
        pytest.param(
            a_job(container={"resources": {}}),
            "gke-autopilot",
            {("warn", "targetRequests", f"resources.requests.{name}") for name in ("cpu", "memory")}
            | {("warn", "targetRequests", "resources.requests.ephemeral-storage")},
            id="no requests: the target's own are billed",
        ),
        pytest.param(
            a_job(container={"resources": {"limits": WHOLE["requests"]}}),
            "gke-autopilot",
            set(),
            id="a limit is a request too",
        ),
        pytest.param(
            a_job(container={"resources": {"requests": WHOLE["requests"] | {"memory": "512Mi"}}}),
            "gke-autopilot",
            {("warn", "targetBounds", "resources.requests.memory")},
            id="less than 1 GiB for a vCPU",
        ),
        pytest.param(
            a_job(container={"resources": {"requests": WHOLE["requests"] | {"memory": "7Gi"}}}),
            "gke-autopilot",
            {("warn", "targetBounds", "resources.requests.cpu")},
            id="more than 6.5 GiB for a vCPU",
        ),
        pytest.param(
            a_job(container={"resources": {"requests": WHOLE["requests"] | {"cpu": "31", "memory": "64Gi"}}}),
            "gke-autopilot",
            {("deny", "targetBounds", "resources.requests.cpu")},
            id="more CPU than there is",
        ),
        pytest.param(
            a_job(
                container={"resources": {"requests": WHOLE["requests"] | {"cpu": "31", "memory": "64Gi"}}},
                nodeSelector={"cloud.google.com/compute-class": "Performance"},
            ),
            "gke-autopilot",
            set(),
            id="in another compute class other bounds hold",
        ),
        pytest.param(
            a_job(hostNetwork=True), "gke-autopilot",
            {("deny", "targetRights", "spec.template.spec.hostNetwork")}, id="the host's network",
        ),
        pytest.param(
            a_job(container={"securityContext": {"privileged": True}}),
            "eks-fargate",
            {
                ("deny", "targetRights", "securityContext.privileged"),
                ("fill", "targetBounds", "resources.requests"),
            },
            id="privileged",
        ),
        pytest.param(
            a_job(container={"securityContext": {"capabilities": {"add": ["SYS_PTRACE", "SYS_ADMIN"]}}}),
            "gke-autopilot",
            {("deny", "targetRights", "securityContext.capabilities.add[1]")},
            id="a capability beyond those allowed",
        ),
        pytest.param(
            a_job(container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
            "gke-autopilot",
            {("deny", "targetRights", "ports[0].hostPort")},
            id="a port of the host",
        ),
        pytest.param(
            a_job(volumes=[{"name": "v", "hostPath": {"path": "/data"}}]),
            "gke-autopilot",
            {("deny", "targetVolumes", "spec.template.spec.volumes[0].hostPath.path")},
            id="a path of the host",
        ),
        pytest.param(
            a_job(
                container={"volumeMounts": [{"name": "v", "mountPath": "/l", "readOnly": True}]},
                volumes=[{"name": "v", "hostPath": {"path": "/var/log"}}],
            ),
            "gke-autopilot",
            set(),
            id="logs of the host, only read",
        ),
        pytest.param(
            a_job(nodeSelector={"cloud.google.com/gke-nodepool": "big"}),
            "gke-autopilot",
            {("deny", "targetNodes", "spec.template.spec.nodeSelector[cloud.google.com/gke-nodepool]")},
            id="a node pool",
        ),
        pytest.param(
            a_job(nodeSelector={"team": "ml"}, tolerations=[{"key": "team", "operator": "Exists"}]),
            "gke-autopilot",
            set(),
            id="a label of one's own beside its toleration",
        ),
        pytest.param(
            a_job(nodeSelector={"team": "ml"}),
            "gke-autopilot",
            {("deny", "targetNodes", "spec.template.spec.nodeSelector.team")},
            id="a label of one's own alone",
        ),
        pytest.param(
            a_job(container={"resources": {"limits": WHOLE["requests"] | {"nvidia.com/gpu": 1}}}),
            "gke-autopilot",
            {("deny", "targetGpus", "resources.limits[nvidia.com/gpu]")},
            id="a GPU without its type",
        ),
        pytest.param(
            a_job(
                container={"resources": {"limits": WHOLE["requests"] | {"nvidia.com/gpu": 1}}},
                nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l4"},
            ),
            "gke-autopilot",
            set(),
            id="a GPU with its type",
        ),
        pytest.param(
            a_job(nodeSelector={"kubernetes.io/arch": "arm64"}),
            "gke-autopilot",
            {("warn", "targetArm", "spec.template.spec.nodeSelector[kubernetes.io/arch]")},
            id="Arm without a compute class",
        ),
        pytest.param(
            a_job(annotations={EVICT: "false"}),
            "gke-autopilot",
            {("warn", "targetEviction", f"spec.template.metadata.annotations[{EVICT}]")},
            id="safe-to-evict, on a recent version",
        ),
        pytest.param(
            a_job(annotations={EVICT: "false"}),
            "gke-autopilot:1.26",
            {("deny", "targetEviction", f"spec.template.metadata.annotations[{EVICT}]")},
            id="safe-to-evict, on an older version",
        ),
        pytest.param(
            a_job(annotations={EVICT: "false"}, nodeSelector={"cloud.google.com/gke-spot": "true"}),
            "gke-autopilot",
            {("deny", "targetEviction", f"spec.template.metadata.annotations[{EVICT}]")},
            id="safe-to-evict on Spot",
        ),
        pytest.param(
            a_job() | {"kind": "DaemonSet", "apiVersion": "apps/v1"},
            "eks-fargate",
            {("deny", "targetKind", "kind")},
            id="a DaemonSet where there are none",
        ),
        pytest.param(
            a_workflow({"name": "a", "container": {"image": "x", "resources": WHOLE}}),
            "gke-autopilot",
            {("warn", "targetCommand", "spec.templates[0].container.command")},
            id="a step that only saves files, without a command",
        ),
        pytest.param(
            a_workflow(
                {"name": "a", "script": {"image": "x", "command": ["sh"], "source": "y", "resources": WHOLE}},
                kind="CronWorkflow",
                hostNetwork=True,
            ),
            "gke-autopilot",
            {("deny", "targetRights", "spec.workflowSpec.hostNetwork")},
            id="fields of the whole workflow",
        ),
        pytest.param(
            a_workflow(
                {"name": "a", "container": {"image": "x", "command": ["x"]}},
                podSpecPatch="containers: [{name: main, resources: {requests: {cpu: 1, memory: 2Gi}}}]",
            ),
            "gke-autopilot",
            {("warn", "targetRequests", "spec.templates[0].container.resources.requests.ephemeral-storage")},
            id="amounts in a patch are not known here",
        ),
        pytest.param(
            a_workflow(
                {
                    "name": "a",
                    "steps": [[{"name": "s", "inline": {"container": {"image": "x", "command": ["x"]}}}]],
                }
            ),
            "gke-autopilot",
            {
                ("warn", "targetRequests", f"{INLINE}.container.resources.requests.{name}")
                for name in ("cpu", "memory", "ephemeral-storage")
            },
            id="a template inside of a step",
        ),
    ],
)  # fmt: skip
def test_what_a_target_says(obj, target, want):
    assert brief(judged(obj, target)) == want


@pytest.mark.parametrize(
    ("cpu", "mebibytes", "want"),
    [
        pytest.param(0, 0, (Fraction(1, 4), Fraction(1, 2)), id="nothing: the smallest"),
        pytest.param(250, 256, (Fraction(1, 4), Fraction(1, 2)), id="what it leaves of the smallest"),
        pytest.param(250, 257, (Fraction(1, 4), Fraction(1)), id="a little more"),
        pytest.param(1000, 4096, (Fraction(1), Fraction(5)), id="256 MiB are Fargate's own"),
        pytest.param(9000, 1000, (Fraction(16), Fraction(32)), id="CPU decides"),
        pytest.param(16001, 1, None, id="too much CPU"),
        pytest.param(1000, 121 * 1024, None, id="too much memory"),
    ],
)
def test_the_size_that_is_billed(cpu, mebibytes, want):
    assert billed_size(FARGATE, cpu, mebibytes * MIB) == want


@pytest.mark.parametrize("text", ["gke", "gke-autopilot:", "gke-autopilot:new", "", "EKS-FARGATE"])
def test_unknown_targets_are_refused(text):
    with pytest.raises(UsageError, match="unknown target"):
        parse_target(text)


# --- what earlier runs used


def a_pod(name: str, peak: int, labels: dict[str, str], owner: tuple[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "labels": labels,
        "annotations": {"localcluster.moorage.dev/peak-memory-bytes": str(peak)},
    }
    if owner:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1]}]
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Succeeded"}}


def test_peaks_are_found_by_the_names_of_manifests():
    wf = "workflows.argoproj.io/workflow"
    pods = [
        a_pod("nightly-29-x", 5, {"batch.kubernetes.io/job-name": "nightly-29"}),
        a_pod("etl-1700-query-123", 7, {wf: "etl-1700", "workflows.argoproj.io/cron-workflow": "etl"}),
        a_pod("web-77-a", 9, {}, ("ReplicaSet", "web-77")),
    ]
    kept = [
        StoredPod(
            uid="u", job_uid="j", namespace="default", run="train", attempt=0, name="p", peak_memory_bytes=11
        )
    ]
    assert peaks_of(pods, kept).bytes_by_pod == {
        ("Job", "nightly-29", ""): 5,
        ("CronJob", "nightly", ""): 5,
        ("Workflow", "etl-1700", "query"): 7,
        ("Workflow", "etl", "query"): 7,
        ("WorkflowTemplate", "etl", "query"): 7,
        ("ClusterWorkflowTemplate", "etl", "query"): 7,
        ("CronWorkflow", "etl", "query"): 7,
        ("ReplicaSet", "web-77", ""): 9,
        ("Deployment", "web", ""): 9,
        ("Job", "train", ""): 11,
    }


def test_a_step_that_used_more_than_the_default_is_denied_and_gets_more():
    obj = a_workflow({"name": "query", "container": {"image": "x", "command": ["x"]}}, kind="WorkflowTemplate")
    peaks = Peaks(bytes_by_pod={("WorkflowTemplate", "nightly", "query"): 3000 * MIB})
    report = judged(obj, "gke-autopilot", peaks=peaks)
    assert ("deny", "targetRequests", "spec.templates[0].container.resources.requests.memory") in brief(report)
    fixed = fixed_text(yaml.safe_dump(obj), report.findings)
    requests = at(parse_yaml_documents(fixed)[0], ("spec", "templates", 0, "container", "resources", "requests"))
    assert requests == {"cpu": "550m", "memory": "3600Mi", "ephemeral-storage": "1Gi"}


def test_a_limit_below_what_was_used_is_denied():
    obj = a_job(container={"resources": {"limits": WHOLE["requests"]}})
    report = judged(obj, "gke-autopilot", peaks=Peaks(bytes_by_pod={("Job", "nightly", ""): 5000 * MIB}))
    assert brief(report) == {("deny", "targetRequests", "resources.limits.memory")}


def test_files_of_runs_are_judged_by_their_options():
    report = judged("name: nightly\ncommand: python train.py\ncpu: 1\nmemory: 512Mi\n", "gke-autopilot")
    assert [(finding.line, finding.rule, finding.field) for finding in report.findings] == [
        (4, "targetBounds", "memory")
    ]


# --- writing


def test_comments_and_order_stay():
    text = """\
# why this Job is here
apiVersion: batch/v1
kind: Job
metadata: {name: nightly}  # every night
spec:
  template:
    metadata:
      annotations:
        cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
        owner: ada  # asks for it
    spec:
      containers:
      # the only container
      - name: main
        image: x
        command: [x]  # nothing else
      restartPolicy: Never
"""
    fixed = fixed_text(text, judged(text, "gke-autopilot:1.26").findings)
    assert fixed == text.replace('        cluster-autoscaler.kubernetes.io/safe-to-evict: "false"\n', "").replace(
        "# nothing else\n",
        "# nothing else\n        resources:\n          requests:\n            cpu: 500m\n            memory: 2Gi\n"
        "            ephemeral-storage: 1Gi\n",
    )


def test_items_of_a_list_are_written_in_their_places():
    bundle = {"apiVersion": "v1", "kind": "List", "items": [a_job(), a_job(container={"resources": {}})]}
    text = yaml.safe_dump(bundle, sort_keys=False)
    fixed = parse_yaml_documents(fixed_text(text, judged(text, "gke-autopilot").findings))[0]
    place = ("spec", "template", "spec", "containers", 0, "resources", "requests")
    assert [at(item, place) for item in fixed["items"]] == [
        WHOLE["requests"],
        {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"},
    ]


def test_a_file_with_a_document_that_cannot_be_read_stays_as_it_is():
    text = yaml.safe_dump(a_job(container={"resources": {}})) + "---\nwhen: !strange 5\n"
    report = judged(text, "gke-autopilot")
    assert any(finding.rule == "yaml" for finding in report.findings)
    assert fixed_text(text, report.findings) == text


def test_shared_parts_are_not_written_and_not_called_fixable():
    text = yaml.safe_dump(a_job(container={"resources": {}})).replace("resources: {}", "resources: &r {}")
    report = judged(text + "\nother: *r\n".replace("\n\n", "\n"), "gke-autopilot")
    assert report.findings
    assert not any(finding.edit for finding in report.findings)


_amounts = st.sampled_from(["100m", "1", 2, "3500m", "1Gi", "900Mi", "{{inputs.parameters.x}}", "odd", None])
_tables = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), _amounts, max_size=3)
_resources = st.none() | st.dictionaries(st.sampled_from(["requests", "limits"]), st.none() | _tables, max_size=2)
_containers = st.builds(
    lambda extra: {"name": "c", "image": "x", "command": ["x"]} | extra,
    st.fixed_dictionaries({}, optional={"resources": _resources, "args": st.just(["a\nb\n"])}),
)
_annotations = st.none() | st.dictionaries(st.sampled_from([EVICT, "a"]), st.sampled_from(["false", "true"]))
_jobs = st.builds(
    lambda containers, first, annotations: a_job(
        annotations=annotations, containers=containers, initContainers=first
    ),
    st.lists(_containers, min_size=1, max_size=3),
    st.lists(_containers, max_size=2),
    _annotations,
)
_workflows = st.builds(
    lambda containers, kind: a_workflow(
        *({"name": f"t{index}", "container": container} for index, container in enumerate(containers)), kind=kind
    ),
    st.lists(_containers, min_size=1, max_size=3),
    st.sampled_from(["Workflow", "WorkflowTemplate", "CronWorkflow"]),
)
_targets = st.lists(
    st.sampled_from(["gke-autopilot", "gke-autopilot:1.25", "eks-fargate"]), min_size=1, max_size=2, unique=True
)


@given(st.lists(_jobs | _workflows, min_size=1, max_size=3), _targets, st.booleans(), st.integers(0, 9000))
def test_writing_twice_changes_nothing_and_leaves_nothing_to_fix(objects, targets, flow, mebibytes):
    text = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=flow)
    peaks = Peaks(
        bytes_by_pod={
            (kind, "nightly", part): mebibytes * MIB
            for kind, part in (("Job", ""), ("Workflow", "t0"), ("CronWorkflow", "t1"))
        }
    )
    fixed = fixed_text(text, judged(text, *targets, peaks=peaks).findings)
    again = judged(fixed, *targets, peaks=peaks)
    assert [finding for finding in again.findings if finding.edit] == []
    assert fixed_text(fixed, again.findings) == fixed
    for before, after in zip(parse_yaml_documents(text), parse_yaml_documents(fixed), strict=True):
        assert without_what_is_written(after, before) == before


def without_what_is_written(after: Any, before: Any) -> Any:
    """The document after, without requests that are new, and with annotations that are gone."""
    if isinstance(after, dict) and isinstance(before, dict):
        merged = {
            key: without_what_is_written(value, before[key]) for key, value in after.items() if key in before
        }
        return merged | {key: value for key, value in before.items() if key == EVICT}
    if isinstance(after, list) and isinstance(before, list):
        return [without_what_is_written(left, right) for left, right in zip(after, before, strict=True)]
    return before if before is None and isinstance(after, dict) else after


@given(_jobs, st.sampled_from(["gke-autopilot", "eks-fargate"]))
def test_what_is_written_is_a_quantity_within_the_ratio(obj, target):
    text = yaml.safe_dump(obj)
    for finding in judged(text, target).findings:
        if finding.edit is not None and hasattr(finding.edit, "values"):
            for name, value in finding.edit.values.items():
                assert amount(name, value) > 0


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(_jobs | _workflows, st.data())
def test_no_document_makes_it_fail(obj, data):
    obj = copy.deepcopy(obj)
    path = data.draw(st.sampled_from(list(_paths(obj, ()))))
    at(obj, path[:-1])[path[-1]] = data.draw(_junk)
    text = yaml.safe_dump(obj)
    fixed_text(text, judged(text, "gke-autopilot", "eks-fargate").findings)


def _paths(value: Any, path: tuple[Any, ...]):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from _paths(inner, (*path, index))
