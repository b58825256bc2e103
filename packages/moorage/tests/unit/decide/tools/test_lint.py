"""Manifests as text: lines, levels, and texts that are no manifests at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.linttext import report_json, report_text
from moorage.decide.admission.gpufacts import facts_of
from moorage.decide.admission.rulebook import RULES
from moorage.decide.tools.lint import Report, lint
from moorage.model.policy import Policy, gpu_cluster_policy

DENY = Policy({rule.name: {"level": "deny"} for rule in RULES})
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations:
    scheduler.alpha.kubernetes.io/critical-pod: ""
spec:
  restartPolicy: Never
  containers:
  - name: a
    resources:
      limits: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi}
  - name: b
    resources:
      limits:
        cpu: 1
        ephemeral-storage: 1Gi
"""


def told(report: Report) -> list[tuple[int, str, str, str]]:
    return [(finding.line, finding.level, finding.rule, finding.field) for finding in report.findings]


def of(text: str, policy: Policy | None = None, **options: Any) -> list[tuple[int, str, str, str]]:
    return told(lint([("f", text)], policy, **options))


def test_each_finding_stands_at_the_line_of_its_field_or_of_what_is_around_it():
    memory = "spec.containers[1].resources"
    assert (
        of(POD, DENY)
        == [
            (
                5,
                "deny",
                "unsupportedAnnotations",
                "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]",
            ),
            (14, "deny", "resourceRequests", f"{memory}.requests.memory"),
            (14, "deny", "guaranteedQos", memory),
            (15, "deny", "memoryLimit", f"{memory}.limits.memory"),
        ]
        or of(POD, DENY)[0][0] == 6
    )


def test_documents_lists_and_json_are_all_judged():
    json = (
        '{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{}]}}]}'
    )
    report = lint([("a", f"{POD}---\n---\n{POD}"), ("b", json), ("c", "apiVersion: v1\nkind: Service\n")], DENY)
    assert (report.judged, report.skipped) == (3, 1)
    assert {finding.file for finding in report.findings} == {"a", "b"}
    assert any(
        finding.field == "items[0].spec.containers[0].resources.limits.memory" for finding in report.findings
    )


def test_without_a_policy_the_defaults_warn():
    report = lint([("f", POD)])
    assert {finding.level for finding in report.findings} == {"warn"}
    assert not report.denied


def test_what_admission_would_write_is_told_as_fill():
    policy = Policy(gpu_cluster_policy()["spec"]["rules"])
    report = lint([("f", POD)], policy)
    assert [finding.message for finding in report.findings if finding.level == "fill"] == ["set to 2Gi"]


def test_facts_of_a_cluster_are_used_where_they_are_given():
    text = POD.replace("memory: 1Gi,", "memory: 1Gi, nvidia.com/gpu: 1,")
    assert any(rule == "gpuCount" for _, _, rule, _ in of(text, DENY, facts=facts_of([])))


def test_steps_of_a_workflow_are_judged_and_steps_without_a_container_are_not():
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: w-}
spec:
  templates:
  - name: all
    steps: [[{name: one, template: one}]]
  - name: one
    container: {image: x}
  - name: two
    script: {image: x, command: [sh], source: "true"}
    podSpecPatch: '{"containers":[{"name":"main","resources":{"limits":{"cpu":1,"memory":"1Gi"}}}]}'
"""
    rules = {(line, rule) for line, _, rule, _ in of(text)}
    assert rules == {(9, "memoryLimit"), (9, "resourceRequests"), (9, "guaranteedQos"), (9, "missingCommand")}


@pytest.mark.parametrize(
    ("amounts", "patch", "want"),
    [
        ("limits: {cpu: 1, memory: 1Gi}", "requests: {memory: 4Gi}", {"shape", "guaranteedQos"}),
        ("limits: {cpu: 1}", "requests: {memory: 4Gi}", {"memoryLimit", "guaranteedQos"}),
        ("limits: {cpu: 1, memory: 1Gi}", "limits: {memory: 4Gi}", set()),
        ("", "limits: {cpu: 1, memory: '{{workflow.parameters.size}}'}", set()),
    ],
)
@pytest.mark.parametrize("place", ["workflow", "template", "defaults"])
def test_amounts_of_a_patch_are_judged_as_those_of_the_pod(place, amounts, patch, want):
    field = "podSpecPatch: " + json.dumps(f"containers: [{{name: main, resources: {{{patch}}}}}]")
    manifest = f"""\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{generateName: w-}}
spec:
  {field if place == "workflow" else "entrypoint: one"}
  templateDefaults: {{{field if place == "defaults" else ""}}}
  templates:
  - {field if place == "template" else "name: one"}
    container: {{image: x, command: [x], resources: {{{amounts}}}}}
"""
    assert {rule for _, _, rule, _ in of(manifest)} == want


def test_resources_of_a_steps_pod_as_a_whole_count():
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: w-}
spec:
  podResources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}
  templates:
  - name: one
    container: {image: x, command: [x]}
"""
    assert {rule for _, _, rule, _ in of(text)} <= {"guaranteedQos"}


def test_resources_that_a_workflow_gives_all_its_containers_count():
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: w}
spec:
  workflowSpec:
    templateDefaults: {container: {resources: {limits: {cpu: 1, memory: 1Gi}}}}
    templates:
    - name: one
      container: {image: x, command: [x]}
"""
    assert of(text) == []


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: [", 2, "is not valid YAML"),
        ("a: 1\n b: 2", 2, "is not valid YAML"),
        ("{{ .Values.x }}: 1\nb: }", 2, "is not valid YAML"),
        ("\x00", 1, "is not valid YAML"),
        ("a: &a [*a]", 1, "contains itself"),
        ("a: *b", 1, "is not valid YAML"),
        ("[" * 200 + "]" * 200, 1, "levels deep"),
        ("- a", 1, "is not a Kubernetes object but a list"),
        ("text", 1, "is not a Kubernetes object but a plain value"),
        ("kind: Pod", 1, "must be a string, and is needed"),
        ("apiVersion: v1\nkind: [Pod]", 2, "must be a string, and is needed"),
        ("apiVersion: v1\nkind: Pod\nspec: 3", 3, "must be a mapping"),
        ("apiVersion: v1\nkind: Pod", 1, "is missing"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: x}", 3, "must be a list"),
        (
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - resources: {limits: {memory: lots}}",
            5,
            "quantity",
        ),
        ("apiVersion: batch/v1beta1\nkind: CronJob\nspec: {}", 1, "is no longer served; write batch/v1"),
        ("apiVersion: v1\nkind: List\nitems: [1]", 3, "is not a Kubernetes object but a plain value"),
        ("? {a: 1}\n: 2", 1, "is not valid YAML"),
    ],
)
def test_what_is_no_manifest_is_denied_at_its_line(text, line, said):
    report = lint([("f", text)])
    assert report.denied
    assert any(finding.line == line and said in finding.message for finding in report.findings), report.findings


def test_aliases_that_multiply_beyond_measure_are_refused_at_once():
    text = "a0: &a0 [1,1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1},*a{n - 1}]\n" for n in range(1, 60))
    assert "aliases expand to more than 100,000 values" in lint([("f", text)]).findings[0].message


def test_a_key_that_stands_twice_is_told():
    report = lint([("f", POD + "kind: Pod\n")])
    assert (18, "warn", "yaml", "") in told(report)


def test_another_groups_kind_of_the_same_name_is_not_ours():
    report = lint([("f", "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: []")])
    assert (report.findings, report.skipped) == ((), 1)


def test_both_forms_of_the_report_hold_every_finding():
    report = lint([("f", POD)], DENY)
    lines = list(report_text(report))
    assert sum(not line.startswith(" ") for line in lines) == len(report.findings)
    assert lines[0].startswith("f:")
    assert len(report_json(report)["findings"]) == len(report.findings)
    assert report_json(report)["findings"][0]["fix"]


@given(st.text(max_size=60))
def test_any_text_is_taken(text):
    lint([("f", text)], DENY)


@given(st.data())
def test_a_manifest_with_a_piece_missing_or_doubled_is_taken(data):
    lines = POD.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[at])))
    lines[at] = data.draw(st.sampled_from([lines[at][:cut], lines[at][cut:], lines[at] + " x", "  " + lines[at]]))
    lint([("f", "\n".join(lines))], DENY)


def test_kinds_of_others_are_judged_where_they_hold_pod_templates():
    text = "apiVersion: kubeflow.org/v1\nkind: Notebook\nmetadata: {name: n}\nspec:\n  template:\n    spec:\n"
    report = lint([("f", text + "      containers:\n        - {name: c, image: i}\n"), ("g", text)])
    assert (report.judged, report.skipped) == (1, 1)
    assert {finding.line for finding in report.findings} == {8}
    assert {finding.kind for finding in report.findings} == {"Notebook"}


HOST = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: vision}
spec:
  template:
    spec:
      hostNetwork: true
      hostPID: true
      hostIPC: true
      volumes:
      - {name: scratch, emptyDir: {}}
      - name: disk
        hostPath: {path: /data}
      containers:
      - name: a
        image: x
        resources: {limits: {cpu: 1, memory: 1Gi}}
        ports:
        - containerPort: 80
          hostPort: 8080
        securityContext:
          privileged: true
          capabilities: {add: [CHOWN, SYS_ADMIN]}
"""


def test_what_takes_rights_over_the_host_is_denied_at_each_field_as_admission_says_it():
    report = lint([("f", HOST)])
    spec = "spec.template.spec"
    security = [finding for finding in report.findings if finding.rule == "podSecurity"]
    assert report.denied
    assert [(finding.line, finding.field, finding.value) for finding in security] == [
        (7, f"{spec}.hostNetwork", "True"),
        (8, f"{spec}.hostPID", "True"),
        (9, f"{spec}.hostIPC", "True"),
        (13, f"{spec}.volumes[1].hostPath", ""),
        (20, f"{spec}.containers[0].ports[0].hostPort", "8080"),
        (22, f"{spec}.containers[0].securityContext.privileged", "True"),
        (23, f"{spec}.containers[0].securityContext.capabilities.add[1]", "SYS_ADMIN"),
    ]
    assert security[3].message.startswith("a tenant's namespace refuses it: ")
    assert security[3].message.endswith('violates PodSecurity "baseline:latest": hostPath volumes (volume "disk")')
    assert all(finding.level == "deny" and finding.fix for finding in security)


@pytest.mark.parametrize(
    ("old", "new"),
    [("namespace: vision", "namespace: kube-system"), ("namespace: vision", "namespace: moorage-system")],
)
def test_namespaces_that_are_never_a_tenants_may_use_the_host(old, new):
    assert not lint([("f", HOST.replace(old, new))]).denied


def test_the_level_of_the_namespace_can_be_chosen():
    assert not lint([("f", HOST)], pod_security="privileged").denied
    rules = of(POD, pod_security="restricted")
    assert ("deny", "podSecurity", "spec") in {(level, rule, field) for _, level, rule, field in rules}
    assert not lint([("f", POD)]).denied


def test_a_workflow_is_held_to_its_own_fields_and_those_of_its_steps():
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
spec:
  hostNetwork: true
  volumes: [{name: d, hostPath: {path: /}}]
  templates:
  - name: step
    container: {image: x, command: [x], securityContext: {privileged: true}}
"""
    fields = [field for _, _, rule, field in of(text) if rule == "podSecurity"]
    assert fields == [
        "spec.hostNetwork",
        "spec.templates[0]",
        "spec.templates[0].container.securityContext.privileged",
    ]


@given(st.data())
def test_a_field_of_any_type_in_a_security_context_is_taken(data):
    junk = data.draw(st.sampled_from(["1", "x", "[1]", "{a: 1}", "null", ".inf", "[[1]]", "[{a: [1]}]"]))
    old = data.draw(
        st.sampled_from(
            ["true", "8080", "{path: /data}", "[CHOWN, SYS_ADMIN]", "SYS_ADMIN", "{add: [CHOWN, SYS_ADMIN]}"]
        )
    )
    lint([("f", HOST.replace(old, junk))])


K04 = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  containers: [{name: c, command: [sleep], resources: RESOURCES}]
"""


@pytest.mark.parametrize(
    ("resources", "findings"),
    [
        ('{limits: {nvidia.com/gpu: "0.5"}}', [("limits[nvidia.com/gpu]", "must be an integer")]),
        (
            "{requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}",
            [("requests[nvidia.com/gpu]", "must be equal to nvidia.com/gpu limit of 2")],
        ),
        (
            "{requests: {amd.com/gpu: 1}}",
            [("requests[amd.com/gpu]", "needs an equal limit of amd.com/gpu")],
        ),
        ("{limits: {nvidia.com/gpu: 1000m}}", []),
    ],
)
def test_requests_of_gpus_that_the_api_server_refuses_are_denied(resources, findings):
    """Case k04."""
    report = lint([("f", K04.replace("RESOURCES", resources))])
    denied = [(finding.field, finding.message) for finding in report.findings if finding.level == "deny"]
    assert denied == [(f"spec.containers[0].resources.{field}", message) for field, message in findings]
