"""`moor lint` and `moor doctor nodes`, as typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from moorage.cli.main import main
from moorage.model.policy import POLICIES, gpu_cluster_policy
from moorage_kube.errors import Forbidden
from moorage_kube.resources import NAMESPACES, PODS
from moorage_kube.testing.builders import a_pod, an_object

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: c, image: x}\n"
DENY = """\
apiVersion: moorage.dev/v1alpha1
kind: GuardrailPolicy
metadata: {name: strict}
spec:
  rules:
    memoryLimit: {level: deny}
    guaranteedQos: {level: off}
"""


def test_the_exit_code_says_whether_a_deny_rule_is_broken(tmp_path, capsys):
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "strict.policy").write_text(DENY)
    assert main(["lint", str(tmp_path)]) == 0
    assert "pod.yaml:6: warn memoryLimit: spec.containers[0].resources.limits.memory" in capsys.readouterr().out
    assert main(["lint", str(tmp_path), "--policy", str(tmp_path / "strict.policy")]) == 1
    captured = capsys.readouterr()
    assert "pod.yaml:6: deny memoryLimit" in captured.out
    assert "guaranteedQos" not in captured.out
    assert captured.err.startswith("1 with pods judged, 0 others skipped, 1 deny")
    assert main(["lint", str(tmp_path), "--policy", "gpu-cluster"]) == 0


def test_a_privileged_container_fails_the_lint_of_a_tenants_manifest(tmp_path, capsys):
    (tmp_path / "pod.yaml").write_text(POD.replace("image: x", "image: x, securityContext: {privileged: true}"))
    assert main(["lint", str(tmp_path)]) == 1
    field = "spec.containers[0].securityContext.privileged"
    assert f"pod.yaml:6: deny podSecurity: {field}: a tenant's namespace" in capsys.readouterr().out
    assert main(["lint", str(tmp_path), "--pod-security", "privileged"]) == 0


def test_stdin_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert main(["lint", "-", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first = document["findings"][0]
    assert (first["file"], first["line"], first["kind"], first["name"]) == ("-", 6, "Pod", "p")
    assert document["judged"] == 1


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("", "does not have exactly one GuardrailPolicy"),
        ("a: [", "is not valid YAML: line 2"),
        (POD, "does not have exactly one GuardrailPolicy"),
        (DENY.replace("memoryLimit", "memorylimit"), "has unknown rules: memorylimit"),
        (DENY.replace("deny", "strict"), "Expected `str` matching regex"),
        (DENY.replace("spec:", "spec: []\nother:"), "Expected `object`"),
    ],
)
def test_an_invalid_policy_is_wrong_usage(tmp_path, capsys, policy, message):
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "p").write_text(policy)
    assert main(["lint", str(tmp_path / "pod.yaml"), "--policy", str(tmp_path / "p")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing.yaml", "empty", "binary.yaml"])
def test_files_that_cannot_be_read_are_wrong_usage(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert main(["lint", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err


def test_the_ready_made_policy_of_deploy_is_the_one_of_the_command_line():
    text = (Path(__file__).parents[5] / "deploy" / "optional" / "gpu-cluster-policy.yaml").read_text()
    assert yaml.safe_load(text) == gpu_cluster_policy()


def test_doctor_names_pod_rule_and_cure(moor):
    moor.node("gpu-1", gpus=2)
    moor.node("gpu-2", gpus=2)
    moor.api.put(PODS, a_pod("lone", namespace="default", node="gpu-1"))
    done = moor("doctor", "nodes", "gpu-1")
    assert done.code == 0
    assert "pod default/lone: no-controller" in done.out
    assert "gpu-2" not in done.out
    reports = json.loads(moor("doctor", "nodes", "-o", "json").out)
    assert [(report["node"], report["mayGo"]) for report in reports] == [("gpu-1", False), ("gpu-2", True)]


def test_doctor_names_the_nodes_and_the_budgets_that_it_could_not_read(moor):
    moor.node("gpu-1")
    moor.api.refuse["list", "poddisruptionbudgets"] = Forbidden("no")
    done = moor("doctor", "nodes", "nope")
    assert done.code == 1
    assert "there are: gpu-1" in done.err
    assert "disruption budgets cannot be read" in done.err


def test_lint_asks_the_cluster_for_its_gpus_and_policies(moor, tmp_path):
    moor.node("gpu-1", gpus=2)
    moor.api.put(NAMESPACES, an_object(NAMESPACES, "default", labels={"a": "b"}))
    moor.api.put(POLICIES, an_object(POLICIES, "p", spec={"rules": {"gpuCount": {"level": "deny"}}}))
    pod = POD.replace("image: x", 'image: x, resources: {limits: {"nvidia.com/gpu": 3}}')
    (tmp_path / "pod.yaml").write_text(pod)
    done = moor("lint", "--cluster", str(tmp_path))
    assert done.code == 1
    assert "deny gpuCount" in done.out
    assert "the largest node has 2" in done.out


# --- targets

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: nightly}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: x
        command: [x]  # alone
"""


def test_a_target_is_checked_instead_of_the_guardrails(tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["lint", str(file), "--target", "gke-autopilot"]) == 0
    out = capsys.readouterr().out
    assert "job.yaml:9: warn targetRequests: spec.template.spec.containers[0].resources.requests.memory" in out
    assert "sets and bills 2Gi" in out
    assert "memoryLimit" not in out
    assert main(["lint", str(file), "--target", "gke-autopilot", "--policy", "gpu-cluster"]) == 0
    assert "memoryLimit" in capsys.readouterr().out
    assert main(["lint", str(file), "--target", "eks-fargate", "-o", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["target"] for finding in findings} == {"eks-fargate"}
    assert [finding["fixable"] for finding in findings if finding["rule"] == "targetRequests"] == [True, True]


def test_write_changes_the_file_and_shows_how(tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    assert main(["lint", str(file), "--target", "gke-autopilot", "--write"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "+            memory: 2Gi" in captured.err
    written = file.read_bytes()
    assert written.startswith(b"\xef\xbb\xbfapiVersion")
    assert b"command: [x]  # alone\r\n        resources:\r\n" in written
    assert b"\n" not in written.replace(b"\r\n", b"")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
    assert main(["lint", str(file), "--target", "gke-autopilot", "--write"]) == 0
    assert file.read_bytes() == written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--write", "x.yaml"], "--write needs --target", id="write without a target"),
        pytest.param(["--history", "x.yaml"], "--history needs --target", id="history without a target"),
        pytest.param(["--target", "gke-autopilot", "--write", "-"], "--write needs files", id="write to stdin"),
        pytest.param(["--target", "mainframe", "x.yaml"], "unknown target 'mainframe'", id="an unknown target"),
    ],
)
def test_options_of_targets_that_do_not_fit(options, message, capsys):
    assert main(["lint", *options]) == 2
    assert message in capsys.readouterr().err


def test_history_asks_the_cluster_for_memory(tmp_path, moor):
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    peak = {"localcluster.moorage.dev/peak-memory-bytes": str(3 * 2**30)}
    made = {"labels": {"batch.kubernetes.io/job-name": "nightly"}, "annotations": peak, "phase": "Succeeded"}
    moor.api.put(PODS, a_pod("nightly-x", namespace="default", **made))
    done = moor("lint", str(file), "--target", "gke-autopilot", "--history")
    assert done.code == 1
    assert "earlier runs used up to 3Gi: they would be killed with the default" in done.out
