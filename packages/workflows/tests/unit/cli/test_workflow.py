"""`moor workflow` as typed, against a cluster in memory."""

from __future__ import annotations

import base64
import json

import pytest
import yaml

from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.clock import SYSTEM, rfc3339_micro
from moorage_kube.resources import EVENTS, LEASES, PODS
from moorage_kube.testing.builders import a_pod, an_object
from moorage_kube.testing.clock import FakeClock
from moorage_workflows.decide.workflows.views import argo_nodes
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType, Outputs

BEGAN = "2026-11-21T11:50:00Z"
YESTERDAY = "2026-11-20T11:50:00Z"
MANIFEST = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata:
  generateName: train-
spec:
  entrypoint: main
  arguments:
    parameters: [{name: size, value: s}]
  templates:
  - name: main
    container: {image: busybox, command: [echo, "{{workflow.parameters.size}}"]}
"""
TEMPLATE = """\
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: ml}
spec:
  entrypoint: main
  arguments: {parameters: [{name: size, value: s}]}
  templates: [{name: main, container: {image: busybox, command: ["true"]}}]
"""


@pytest.fixture
def manifest(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(MANIFEST)
    return file


def a_node(name, kind=NodeType.POD, phase=NodePhase.SUCCEEDED, *, boundary="train", **more):
    fields = {
        "id": f"id-{name}",
        "display_name": name.rpartition(".")[2],
        "boundary_id": f"id-{boundary}" if boundary else "",
        "started_at": BEGAN,
        "finished_at": "2026-11-21T11:51:00Z" if phase.is_fulfilled else "",
    }
    return NodeRecord(name=name, type=kind, phase=phase, **fields | more)


def stored(moor, phase="Running", *nodes, name="train", **spec):
    """A workflow on the cluster, whose nodes the server keeps."""
    moor.clock = FakeClock()
    labels = {"workflows.argoproj.io/controller-instanceid": "moorage"}
    status = {"phase": phase, "startedAt": BEGAN, "progress": "1/2"}
    meta = {
        "labels": labels,
        "annotations": {"moorage.dev/owner": "ada"},
        "created": BEGAN,
        "namespace": "default",
    }
    spec = {"entrypoint": "main"} | spec
    obj = moor.api.put(WORKFLOWS, an_object(WORKFLOWS, name, spec=spec, status=status, **meta))
    kept = obj | {"status": obj["status"] | {"nodes": argo_nodes(nodes)}}
    moor.server.answers[f"/api/v1/workflows/default/{name}"] = kept
    return obj


def workflows(moor):
    return [obj for (plural, _, _), obj in moor.api.objects.items() if plural == "workflows"]


def test_a_workflow_is_submitted_and_its_name_printed(moor, manifest):
    done = moor("workflow", "submit", str(manifest), "-p", "size=l", "--label", "team=x", "--host-env")
    [made] = workflows(moor)
    assert (done.code, done.out) == (0, f"{made['metadata']['name']}\n")
    assert f"moor workflow get {made['metadata']['name']}" in done.err
    assert made["metadata"]["labels"] == {"team": "x", "workflows.argoproj.io/controller-instanceid": "moorage"}
    assert made["spec"]["arguments"] == {"parameters": [{"name": "size", "value": "l"}]}
    assert made["spec"]["podMetadata"]["annotations"] == {"localcluster.moorage.dev/host-env": "true"}


def test_argo_gets_the_manifest_without_our_mark(moor, manifest):
    renewed = rfc3339_micro(SYSTEM.now())
    lease = {"holderIdentity": "a", "renewTime": renewed}
    moor.api.put(LEASES, {"metadata": {"name": "workflow-controller"}, "spec": lease}, "argo")
    done = moor("workflow", "submit", str(manifest))
    assert "Argo's controller runs workflows on this cluster" in done.err
    assert "labels" not in workflows(moor)[0]["metadata"]


def test_what_the_server_says_of_the_controller_counts(moor, manifest):
    moor.server.answers["/api/v1/info"] = {"controller": "argo"}
    moor("workflow", "submit", str(manifest))
    assert "labels" not in workflows(moor)[0]["metadata"]


def test_templates_of_the_file_come_first(moor, tmp_path):
    file = tmp_path / "all.yaml"
    refers = MANIFEST.partition("spec:")[0] + "spec: {workflowTemplateRef: {name: ml}}\n"
    file.write_text(f"{refers}---\n{TEMPLATE}")
    done = moor("workflow", "submit", str(file), "-p", "size=l")
    assert (done.code, "WorkflowTemplate ml: created" in done.err) == (0, True)
    assert len(workflows(moor)) == 1
    again = moor("workflow", "submit", str(file))
    assert "WorkflowTemplate ml" not in again.err  # unchanged


def test_a_parameter_file_gives_arguments_and_what_is_typed_wins(moor, manifest, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text("size: 3\n")
    moor("workflow", "submit", str(manifest), "--parameter-file", str(values), "--name", "one-run")
    moor("workflow", "submit", str(manifest), "--parameter-file", str(values), "-p", "size=4", "--name", "two")
    sizes = {
        obj["metadata"]["name"]: obj["spec"]["arguments"]["parameters"][0]["value"] for obj in workflows(moor)
    }
    assert sizes == {"one-run": "3", "two": "4"}


def test_a_dry_run_prints_the_manifest_and_creates_nothing(moor, manifest):
    done = moor("workflow", "submit", str(manifest), "--dry-run")
    assert (done.code, workflows(moor)) == (0, [])
    assert yaml.safe_load(done.out)["spec"]["entrypoint"] == "main"


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        pytest.param(MANIFEST, ["-p", "sice=3"], "no parameter 'sice': it has size", id="a parameter"),
        pytest.param("kind: [", [], "line 2", id="no YAML"),
        pytest.param("- a\n", [], "document 1 is not an object", id="a list"),
        pytest.param(MANIFEST.replace("entrypoint: main", "entrypoint: mian"), [], "spec.entrypoint", id="lint"),
        pytest.param(TEMPLATE, [], "the files have no Workflow", id="templates alone"),
        pytest.param(MANIFEST.replace("Workflow", "CronWorkflow"), [], "cannot submit", id="a schedule"),
        pytest.param(MANIFEST + "---\n" + MANIFEST, ["--watch"], "with only one", id="two of them, watched"),
        pytest.param(MANIFEST, ["--from", "workflowtemplate/x"], "not both", id="two sources"),
    ],
)
def test_what_cannot_be_submitted_is_said_before_anything_is_created(moor, tmp_path, text, words, message):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    done = moor("workflow", "submit", str(file), *words)
    assert done.code == 2
    assert message in done.err
    assert workflows(moor) == []


def test_a_source_is_needed(moor):
    done = moor("workflow", "submit")
    assert (done.code, "submit needs a FILE, or --from KIND/NAME" in done.err) == (2, True)


def test_a_workflow_is_shown_with_its_steps_as_a_tree(moor):
    stored(
        moor,
        "Failed",
        a_node("train", NodeType.STEPS, NodePhase.FAILED, boundary="", template="main"),
        a_node("train[0]", NodeType.STEP_GROUP),
        a_node("train[0].prepare", pod_name="train-prepare-1", template="prep"),
        a_node("train[1].fit", NodeType.POD, NodePhase.FAILED, message="exit code 1", pod_name="p2"),
        arguments={"parameters": [{"name": "size", "value": "l"}]},
    )
    done = moor("workflow", "get", "train")
    assert done.out == (
        "name:       train\n"
        "namespace:  default\n"
        "status:     Failed\n"
        "owner:      ada\n"
        "created:    10m ago\n"
        "duration:   10m\n"
        "progress:   1 of 2 pods have ended\n"
        "parameter:  size=l\n"
        "\n"
        "STEP        STATUS      DURATION   MESSAGE       TEMPLATE   POD\n"
        "train       Failed      60s        -             main       -\n"
        "├ prepare   Succeeded   60s        -             prep       train-prepare-1\n"
        "└ fit       Failed      60s        exit code 1   -          p2\n"
    )
    assert done.err == (
        "see its log: moor workflow logs train --step 'fit'\n"
        "run the failed steps again: moor workflow retry train\n"
    )


def test_items_of_a_large_loop_that_succeeded_are_counted(moor):
    items = [
        a_node(f"train.fan({at}:x)", phase=NodePhase.FAILED if at == 40 else NodePhase.SUCCEEDED,
               display_name=f"fan({at}:x)")
        for at in range(50)
    ]  # fmt: skip
    root = a_node("train", NodeType.DAG, boundary="")
    stored(moor, "Failed", root, a_node("train.fan", NodeType.TASK_GROUP), *items, a_node("train.last"))
    steps = [
        line.split("  ")[0].strip() for line in moor("workflow", "get", "train").out.split("\n\n")[1].splitlines()
    ]
    assert len(steps) == 1 + 3 + 3 + 1 + 1
    done = moor("workflow", "get", "train")
    assert "└ … 46 more" in done.out
    assert "see every step: moor workflow get train --whole\n" in done.err
    assert "fan(40:x)" in done.out
    assert "more" not in moor("workflow", "get", "train", "--whole").out


def test_a_step_that_waits_for_a_person_is_said_with_the_command(moor):
    stored(moor, "Running", a_node("train.approve", NodeType.SUSPEND, NodePhase.RUNNING))
    done = moor("workflow", "get", "@latest")
    assert "approve waits for a person: moor workflow resume train" in done.err
    assert "Waiting" in done.out


def test_a_step_whose_pod_waits_is_said_with_the_command(moor):
    stored(moor, "Running", a_node("train.fit", phase=NodePhase.PENDING, pod_name="train-fit-1"))
    assert moor("workflow", "get", "train").err == "see why fit waits: moor explain 'train/fit'\n"


@pytest.mark.parametrize(
    ("node_name", "reason", "told"),
    [
        pytest.param("n1", "FailedMount", True, id="a volume is missing"),
        pytest.param("", "FailedMount", False, id="it has no node"),
        pytest.param("n1", "Scheduled", False, id="nothing is wrong"),
    ],
)
def test_a_step_whose_volume_cannot_be_mounted_says_so_in_the_tree(moor, node_name, reason, told):
    stored(moor, "Running", a_node("train.fit", phase=NodePhase.PENDING, pod_name="train-fit-1"))
    pod = a_pod("train-fit-1", namespace="default", uid="u", node=node_name, phase="Pending")
    moor.api.put(PODS, pod)
    message = 'MountVolume.SetUp failed for volume "keys" : secret "s3" not found'
    about = {"kind": "Pod", "name": "train-fit-1", "uid": "u"}
    event = {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": BEGAN}
    moor.api.put(EVENTS, {"metadata": {"name": "e"}, **event})
    assert (f"FailedMount: {message}" in moor("workflow", "get", "train").out) == told


def test_programs_get_the_object(moor):
    stored(moor, "Running", a_node("train.a"))
    done = moor("workflow", "get", "train", "-o", "json")
    assert json.loads(done.out)["status"]["nodes"]["id-train.a"]["phase"] == "Succeeded"


def test_a_workflow_that_does_not_exist_is_said_with_names_like_it(moor):
    stored(moor)
    done = moor("workflow", "get", "trian")
    message = "error: workflow 'trian' not found in namespace default\nhint: did you mean train?\n"
    assert (done.code, done.err) == (1, message)


def test_workflows_are_listed_with_those_that_are_gone(moor):
    stored(moor)
    status = {"phase": "Failed", "goneAt": BEGAN, "message": "boom"}
    gone = an_object(WORKFLOWS, "old", namespace="default", uid="u9", created=YESTERDAY, status=status)
    moor.server.answers["/api/v1/workflows/default"] = {"items": [gone]}
    done = moor("workflow", "list")
    assert done.out.splitlines() == [
        "NAME    STATUS             AGE   DURATION   PROGRESS   CRON   OWNER   MESSAGE",
        "train   Running            10m   10m        1/2        -      ada     -",
        "old     Failed (deleted)   24h   -          0/0        -      -       boom",
    ]
    rows = json.loads(moor("workflow", "list", "-o", "json").out)
    want = [("train", "Running", False), ("old", "Failed", True)]
    assert [(row["name"], row["phase"], row["gone"]) for row in rows] == want


def test_a_workflow_that_was_deleted_before_its_end_does_not_run_on_in_the_list(moor):
    meta = {"name": "cut", "namespace": "default", "uid": "u8", "creationTimestamp": BEGAN}
    status = {"phase": "Running", "startedAt": BEGAN, "goneAt": "2026-11-21T11:51:00Z", "progress": "1/2"}
    moor.server.answers["/api/v1/workflows/default"] = {"items": [{"metadata": meta, "status": status}]}
    moor.clock = FakeClock()
    row = moor("workflow", "list").out.splitlines()[1].split()
    assert row[:5] == ["cut", "Deleted", "10m", "60s", "1/2"]


def test_a_list_is_chosen_from(moor):
    stored(moor, "Failed", name="a")
    stored(moor, "Running", name="b")
    names = lambda *words: moor("workflow", "list", "-o", "name", *words).out.split()  # noqa: E731
    assert names("--running") == ["b"]
    assert names("--completed") == ["a"]
    assert names("--status", "failed") == ["a"]
    assert names("--prefix", "b") == ["b"]
    assert moor("workflow", "list", "--prefix", "z").err == "no workflow in namespace default matches\n"
    assert moor("workflow", "list", "--running", "--completed").code == 2
    assert moor("workflow", "list", "--running", "--status", "Failed").code == 2


def put_pod(moor, name, node):
    labels = {"workflows.argoproj.io/workflow": "train"}
    meta = {"labels": labels, "annotations": {"workflows.argoproj.io/node-name": node}, "namespace": "default"}
    moor.api.put(PODS, a_pod(name, containers=["wait", "main"], phase="Succeeded", started=BEGAN, **meta))


def test_logs_of_all_steps_stand_after_their_names(moor):
    stored(moor, "Succeeded", a_node("train[0].a", pod_name="p1"), a_node("train[0].b", pod_name="gone"))
    put_pod(moor, "p1", "train[0].a")
    put_pod(moor, "p2", "train[0].fan(1:x)")
    moor.api.pod_logs |= {"p1": ["one", "two"], "p2": ["three"]}
    done = moor("workflow", "logs", "train")
    assert done.out == "a | one\na | two\nfan(1:x) | three\n"
    assert done.err == "note: b: the pod was deleted, and its log is not stored\n"


def test_an_item_in_the_name_of_a_step_forges_no_line_of_a_log(moor):
    stored(moor, "Succeeded", a_node("train[0].a", pod_name="p1"))
    put_pod(moor, "p1", "train[0].fan(0:x\n\x1b[31mb | forged)")
    moor.api.pod_logs |= {"p1": ["one"]}
    assert moor("workflow", "logs", "train", "--prefix").out == "fan(0:x\\n\\e[31mb | forged) | one\n"


def test_the_log_of_a_step_is_chosen_by_its_name(moor):
    stored(moor, "Succeeded", a_node("train[0].a", pod_name="p1"))
    put_pod(moor, "p1", "train[0].a")
    put_pod(moor, "p2", "train[0].fan(1:x)")
    moor.api.pod_logs |= {"p1": ["one"], "p2": ["three"]}
    assert moor("workflow", "logs", "train", "--step", "fan").out == "three\n"
    missing = moor("workflow", "logs", "train", "--step", "none")
    assert (missing.code, "has no step 'none'" in missing.err, "a, fan" in missing.err) == (1, True, True)


@pytest.mark.parametrize(
    ("printed", "out", "err"),
    [
        pytest.param("2026-11-21T12:00:00Z listens\n", "listens\n", "", id="kept"),
        pytest.param(
            "", "", "note: a: the pod was deleted, and the log of proxy is not stored\n", id="nothing is kept"
        ),
    ],
)
def test_the_kept_log_of_a_container_is_asked_for_when_its_pod_is_gone(moor, printed, out, err):
    stored(moor, "Succeeded", a_node("train[0].a", pod_name="p1"))
    facts = {"uid": "u1", "jobUid": "w", "namespace": "default", "run": "", "attempt": 1, "name": "p1"}
    path = "/api/v1/workflows/default/train/records"
    moor.server.answers[path] = {"pods": [facts | {"started": BEGAN}]}
    moor.server.answers[f"{path}/u1"] = {"lines": base64.b64encode(printed.encode()).decode()}
    done = moor("workflow", "logs", "train", "--container", "proxy", "--no-prefix")
    assert (done.out, done.err) == (out, err)
    (asked,) = (params for asked_path, params in moor.server.asked if asked_path == f"{path}/u1")
    assert asked["container"] == "proxy"


def test_logs_are_followed_until_the_end(moor):
    moor.clock = SYSTEM
    stored(moor, "Succeeded", a_node("train[0].a", pod_name="p1"))
    moor.clock = SYSTEM
    put_pod(moor, "p1", "train[0].a")
    moor.api.pod_logs |= {"p1": ["one", "two"]}
    assert moor("workflow", "logs", "train", "-f").out == "a | one\na | two\n"


@pytest.mark.parametrize(
    ("words", "out", "field"),
    [
        (("stop", "train"), "train is stopping\n", ("shutdown", "Stop")),
        (("terminate", "train"), "train is stopping\n", ("shutdown", "Terminate")),
        (("suspend", "train"), "train is suspended\n", ("suspend", True)),
    ],
)
def test_a_workflow_is_changed(moor, words, out, field):
    stored(moor)
    done = moor("workflow", *words)
    assert (done.code, done.out) == (0, out)
    assert workflows(moor)[0]["spec"][field[0]] == field[1]


def test_an_answer_for_a_step_that_waits_is_handed_to_the_operator(moor):
    stored(moor, "Running", a_node("train.approve", NodeType.SUSPEND, NodePhase.RUNNING))
    done = moor("workflow", "node", "set", "train", "--output-parameter", "ok=yes", "--message", "fine")
    assert (done.code, done.out) == (0, "train goes on\n")
    notes = workflows(moor)[0]["metadata"]["annotations"]
    assert json.loads(notes["moorage.dev/workflow-resume"]) == [{"parameters": {"ok": "yes"}, "message": "fine"}]


def test_a_retry_is_asked_for(moor):
    stored(moor, "Failed", a_node("train.a", phase=NodePhase.FAILED))
    assert moor("workflow", "retry", "train").out == "train runs again\n"
    assert "moorage.dev/workflow-retry" in workflows(moor)[0]["metadata"]["annotations"]


def test_several_that_cannot_be_changed_are_each_said(moor):
    stored(moor, "Failed", name="a")
    stored(moor, "Running", name="b")
    done = moor("workflow", "stop", "a", "b", "none")
    assert (done.code, done.out) == (1, "b is stopping\n")
    assert "workflow 'a' has ended: Failed" in done.err
    assert "workflow 'none' not found" in done.err


def test_a_workflow_is_submitted_again(moor):
    main = {"name": "main", "container": {"image": "busybox", "command": ["true"]}}
    stored(moor, "Succeeded", name="train-x7k2p", templates=[main])
    done = moor("workflow", "resubmit", "train-x7k2p")
    assert (done.code, len(workflows(moor))) == (0, 2)
    assert done.out.startswith("train-")


def test_a_workflow_that_failed_is_submitted_again_with_what_succeeded(moor):
    main = {"name": "main", "container": {"image": "busybox", "command": ["true"]}}
    stored(moor, "Failed", name="train-x7k2p", templates=[main])
    done = moor("workflow", "resubmit", "--memoized", "train-x7k2p")
    assert (done.code, done.err) == (0, done.err)
    [earlier, made] = sorted(workflows(moor), key=lambda obj: "takes-over" in str(obj))
    taken_from = made["metadata"]["annotations"]["moorage.dev/workflow-takes-over"]
    assert taken_from == earlier["metadata"]["uid"]
    stored(moor, "Succeeded", name="well", templates=[main])
    done = moor("workflow", "resubmit", "--memoized", "well")
    assert (done.code, "is Succeeded" in done.err) == (1, True)


def test_waiting_tells_how_it_ended(moor):
    stored(moor, "Failed")
    done = moor("workflow", "wait", "train")
    assert (done.code, done.out) == (1, "train Failed\n")
    stored(moor, "Succeeded")
    assert moor("workflow", "wait", "train").code == 0


def test_a_workflow_is_deleted(moor):
    stored(moor)
    assert moor("workflow", "delete", "train").out == "train deleted\n"
    assert workflows(moor) == []


def test_templates_are_stored_and_listed_and_deleted(moor, tmp_path):
    file = tmp_path / "ml.yaml"
    file.write_text(
        TEMPLATE + "---\n" + TEMPLATE.replace("kind: WorkflowTemplate", "kind: ClusterWorkflowTemplate")
    )
    assert moor("workflow", "template", "create", str(file)).out == "ml created\nml created\n"
    assert moor.api.named(WORKFLOW_TEMPLATES) == moor.api.named(CLUSTER_WORKFLOW_TEMPLATES) == ["ml"]
    taken = moor("workflow", "template", "create", str(file))
    assert (taken.code, "--replace" in taken.err) == (1, True)
    assert moor("workflow", "template", "create", str(file), "--replace").out == "ml unchanged\nml unchanged\n"
    listed = moor("workflow", "template", "list").out.splitlines()[1].split()
    assert listed[:4] == ["ml", "1", "main", "size"]
    assert yaml.safe_load(moor("workflow", "template", "get", "ml", "--cluster").out)["metadata"]["name"] == "ml"
    assert moor("workflow", "template", "delete", "ml", "--cluster").out == "ml deleted\n"
    assert moor.api.named(CLUSTER_WORKFLOW_TEMPLATES) == []


def test_artifacts_are_listed_by_step(moor):
    left = Outputs(artifacts=(Artifact(name="model", key="train/p1/model.tgz", size_bytes=2048),))
    stored(moor, "Succeeded", a_node("train[0].fit", pod_name="p1", outputs=left))
    done = moor("workflow", "artifacts", "list", "train")
    assert done.out.splitlines()[1].split() == ["fit/model", "2.0", "KiB", "train/p1/model.tgz", "-"]
    missing = moor("workflow", "artifacts", "get", "train", "fit/none")
    assert (missing.code, "it has: fit/model" in missing.err) == (1, True)
    assert moor("workflow", "artifacts", "get", "train", "model").code == 2
