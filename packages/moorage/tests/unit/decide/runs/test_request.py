"""What a line typed becomes: tables for each option, and properties of every Job that comes out."""

from __future__ import annotations

import base64
import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.interruptions import STOPPED
from moorage.decide.runs.code import Code, code_of
from moorage.decide.runs.deviceclaims import ClaimTemplates
from moorage.decide.runs.gputypes import gpu_types, matches_type
from moorage.decide.runs.job import ARCHIVE_LIMIT_BYTES, PASSED_ON, UNPACK_PATH, plan_run
from moorage.decide.runs.kueue import Queues
from moorage.decide.runs.names import base_name, generated_name, secret_name
from moorage.decide.runs.request import (
    Caller,
    CheckpointUse,
    ClusterFacts,
    Defaults,
    Problem,
    RunRequest,
    has_code,
    unexpanded,
)
from moorage.decide.runs.runfile import stored_request
from moorage.decide.runs.timelimit import format_seconds, parse_time
from moorage.model.names import RUN_NAME_MAX, is_dns_label
from moorage_kube.quantity import amount
from moorage_kube.scheduling import NodeInfo, PodInfo, Taint, parse_pod, refusal_by_labels, refusal_by_taints
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import keyed

GIB = 2**30
# renew: MOORAGE_RENEW_GOLDEN=1 pytest packages/moorage/tests/unit/decide/runs/test_request.py
GOLDEN = Path(__file__).parent / "golden" / "run.yaml"


def a_node(name: str, *, gpus: int = 0, kind: str = "NVIDIA-A100-SXM4-80GB", **more: Any) -> NodeInfo:
    labels = {"kubernetes.io/hostname": name}
    allocatable = {"cpu": 16000, "memory": 64 * GIB, "pods": 110}
    if gpus:
        labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": kind}
        allocatable["nvidia.com/gpu"] = gpus
    return NodeInfo(**{"name": name, "labels": labels, "allocatable": allocatable} | more)


def a_pod(node: str, gpus: int = 1, **more: Any) -> PodInfo:
    return PodInfo(namespace="default", name="other", node=node, requests={"nvidia.com/gpu": gpus}, **more)


A100 = a_node("gpu-a", gpus=4)
T4 = a_node("gpu-t", gpus=2, kind="Tesla-T4")
PLAIN = a_node("cpu-1")
REAL = ClusterFacts(
    nodes=(A100, T4, PLAIN), claims={"data": "10Gi", "code": "1Gi"}, server_url="http://server:8080"
)
LOCAL = ClusterFacts(
    nodes=(A100, T4), process_runtime=True, claims={"data": "10Gi"}, server_url="http://127.0.0.1:8080"
)


def local(*nodes: NodeInfo, **more: Any) -> ClusterFacts:
    """A cluster that runs commands as processes, with these nodes."""
    return ClusterFacts(nodes=nodes, process_runtime=True, **more)


ADA = Caller(
    user="ada@example.org",
    cwd="/home/ada/work",
    environment={"PATH": "/usr/bin", "SECRET": "s3cret", "WANDB": "key", "VIRTUAL_ENV": "/venv"},
    program="/usr/bin/python",
    salt="salt",
    token="token",
    runner="print('runner')\n",
)
SHIPPED = b"tar.gz"


def a_request(*command: str, **options: Any) -> RunRequest:
    return RunRequest(command=command or ("python", "train.py"), **options)


def planned(facts: ClusterFacts = LOCAL, caller: Caller = ADA, **options: Any) -> Any:
    plan = plan_run(a_request(**options), caller, facts)
    assert plan.problems == ()
    assert plan.job is not None
    return plan


def pod_spec(plan: Any) -> Any:
    return plan.job["spec"]["template"]["spec"]


def container(plan: Any) -> Any:
    [found] = pod_spec(plan)["containers"]
    return found


def annotations(plan: Any) -> Any:
    return plan.job["metadata"]["annotations"]


def problems(facts: ClusterFacts = LOCAL, caller: Caller = ADA, **options: Any) -> tuple[Problem, ...]:
    plan = plan_run(a_request(**options), caller, facts)
    if plan.problems:
        assert plan.job is plan.secret is None
        assert plan.claims == ()
    return plan.problems


# --- claims of devices

DEVICES = replace(REAL, claim_templates=ClaimTemplates(frozenset({"two-gpus"})))
OFFERED = replace(REAL, machines=frozenset({"gpu/small", "gpu/large"}), is_guarded=True)


def test_a_run_claims_gpus_by_a_template() -> None:
    plan = planned(DEVICES, gpu_claim="two-gpus", image="ours:1")
    spec = pod_spec(plan)
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}]
    assert container(plan)["resources"]["claims"] == [{"name": "gpu"}]
    assert "affinity" not in spec, "its devices choose the node"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


# --- machines


def test_a_run_on_a_machine_names_it_and_states_no_size() -> None:
    plan = planned(OFFERED, machine="gpu/small", image="ours:1")
    asked = keyed(machine_group="gpu", machine_type="small", machine_container="main")
    assert asked.items() <= plan.job["spec"]["template"]["metadata"]["labels"].items()
    assert not asked.keys() & plan.job["metadata"]["labels"].keys()
    assert container(plan)["resources"] == {}
    assert "affinity" not in pod_spec(plan)
    assert not any("memory" in note for note in plan.notes)
    assert "moorage.dev/memory-defaulted" not in annotations(plan)


@pytest.mark.parametrize(
    ("facts", "field", "options", "says", "hint"),
    [
        pytest.param(
            DEVICES, "gpuClaim", {"gpu_claim": "one"},
            "ResourceClaimTemplate 'one' not found in namespace default", "available: two-gpus",
            id="no such template",
        ),
        pytest.param(
            replace(REAL, claim_templates=ClaimTemplates(None)), "gpuClaim", {"gpu_claim": "two-gpus"},
            "GPU claim 'two-gpus' not possible: this cluster has no dynamic resource allocation",
            "ask for a number of GPUs instead, such as --gpus 1", id="as on the local cluster",
        ),
        pytest.param(
            DEVICES, "gpuClaim", {"gpu_claim": "two-gpus", "gpus": 1},
            "GPU claim 'two-gpus' together with a number of GPUs",
            "the claim says how many GPUs it takes: leave out the number", id="claim and number",
        ),
        pytest.param(
            DEVICES, "gpuClaim", {"gpu_claim": "two gpus"}, "invalid GPU claim 'two gpus'",
            "use the name of a ResourceClaimTemplate", id="invalid name of a template",
        ),
        pytest.param(
            OFFERED, "machine", {"machine": "gpu/huge"}, "machine 'gpu/huge' not found",
            "available: gpu/large, gpu/small", id="machine not offered",
        ),
        pytest.param(
            replace(OFFERED, machines=frozenset()), "machine", {"machine": "gpu/small"},
            "machine 'gpu/small' not found", "an administrator has to offer machines first",
            id="no machine offered",
        ),
        pytest.param(
            OFFERED, "machine", {"machine": "small"}, "invalid machine 'small': use GROUP/TYPE",
            "list them: moor machines", id="machine without group",
        ),
        pytest.param(
            OFFERED, "machine", {"machine": "gpu/small", "cpu": "2", "gpus": 1},
            "machine 'gpu/small' together with gpus, cpu", "a machine has its size: leave out gpus, cpu",
            id="machine and amounts",
        ),
        pytest.param(
            replace(OFFERED, is_guarded=False), "machine", {"machine": "gpu/small"},
            "machine 'gpu/small' not possible: namespace default is not guarded",
            "an administrator can label it: kubectl label namespace default moorage.dev/guard=enabled",
            id="namespace without guard",
        ),
    ],
)  # fmt: skip
def test_a_claim_or_machine_that_is_not_possible_is_refused(facts, field, options, says, hint):
    assert problems(facts, image="ours:1", **options) == (Problem(field, says, hint),)


def test_a_machine_is_asked_for_where_it_is_not_known_which_there_are() -> None:
    assert planned(replace(OFFERED, machines=None, is_guarded=None), machine="gpu/any", image="ours:1").job


# --- queues of Kueue

QUEUES = replace(LOCAL, queues=Queues(frozenset({"team-a"})))


@pytest.mark.parametrize(
    "options", [{"queue": "team-a"}, {"labels": ("kueue.x-k8s.io/queue-name=team-a",)}], ids=["option", "label"]
)
def test_a_run_waits_in_the_queue_that_it_names(options: dict[str, Any]) -> None:
    job = planned(QUEUES, **options).job
    labels = [job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]]
    assert [each["kueue.x-k8s.io/queue-name"] for each in labels] == ["team-a", "team-a"]
    [problem] = problems(QUEUES, queue="team-b")
    assert (problem.field, problem.hint) == ("queue", "available: team-a")


def test_a_run_without_a_queue_has_no_label_of_kueue() -> None:
    assert "kueue" not in repr(planned(QUEUES).job)


# --- what is refused


UNBOUNDED = "cannot be combined with memory none: retries without a limit could fill one node after another"
USER_HINT = "write UID or UID:GID, such as 1000 or 1000:100; `docker run IMAGE id` prints those of a user"


@pytest.mark.parametrize(
    ("options", "field", "says", "hint"),
    [
        pytest.param(
            {"gpus": 1, "gpu_type": "h100"},
            "gpuType",
            "GPU type 'h100' not found on any node",
            "this cluster has NVIDIA-A100-SXM4-80GB (4 of 4 free), Tesla-T4 (2 of 2 free)",
            id="an unknown type, with those there are",
        ),
        pytest.param(
            {"gpu_type": "a100"},
            "gpuType",
            "GPU type 'a100' without GPUs",
            "give the number of GPUs too, such as --gpus 1",
            id="a type without a number",
        ),
        pytest.param(
            {"gpus": 5},
            "gpus",
            "5 GPUs asked for; the largest node with GPUs has 4 (gpu-a)",
            "ask for at most 4; `moor gpus` shows every node",
            id="more GPUs than any node has",
        ),
        pytest.param(
            {"gpus": 3, "gpu_type": "t4"},
            "gpus",
            "3 GPUs asked for; the largest node with GPUs of type t4 has 2 (gpu-t)",
            "ask for at most 2; `moor gpus` shows every node",
            id="more GPUs than any node of that type has",
        ),
        ({"gpus": -1}, "gpus", "invalid number of GPUs -1: use 0 or more", None),
        ({"memory": "lots"}, "memory", "invalid memory 'lots': use a quantity such as 512Mi, 8Gi or 1.5G", None),
        ({"memory": "8"}, "memory", "invalid memory '8': less than 1 MiB", "the unit may be missing: 8Gi"),
        ({"cpu": "0"}, "cpu", "invalid cpu '0': use more than zero", None),
        ({"cpu": "17"}, "cpu", "17 CPUs asked for; the largest node has 16 (gpu-t)", None),
        pytest.param(
            {"gpus": 1, "memory": "65Gi"},
            "memory",
            "65Gi memory asked for; the largest node with the GPUs asked for has 64Gi (gpu-t)",
            None,
            id="more memory than any GPU node has",
        ),
        pytest.param(
            {"memory": "none", "retries": 2},
            "retries",
            f"retries 2 {UNBOUNDED}",
            "give a memory limit, or leave out the retries",
            id="a wandering bomb by retries",
        ),
        pytest.param(
            {"memory": "none", "restart_limit": 1},
            "restartLimit",
            f"restart limit 1 {UNBOUNDED}",
            "give a memory limit, or leave out the restart limit",
            id="a wandering bomb by restarts",
        ),
        pytest.param(
            {"time": "soon"},
            "time",
            "invalid time limit 'soon': the range is 1s to 365d",
            "write it as 2h, 90m or 1d12h",
            id="no time",
        ),
        ({"volumes": ("dta:/data",)}, "volumes", "volume 'dta' not found in namespace default", "available: data"),
        pytest.param(
            {"volumes": ("data",)},
            "volumes",
            "invalid volume mount 'data'",
            "write VOLUME:/PATH or VOLUME:/PATH:ro",
            id="no mount path",
        ),
        pytest.param(
            {"volumes": ("data:/moorage/run",)},
            "volumes",
            "'data:/moorage/run' cannot be mounted at /moorage/run",
            "choose a path such as /data",
            id="over our own mounts",
        ),
        ({"volumes": ("data:/d", "data:/d/")}, "volumes", "two volumes are to be mounted at /d", None),
        pytest.param(
            {"env": ("NOT_THERE",)},
            "env",
            "variable NOT_THERE is not set in your environment",
            "write NOT_THERE=VALUE",
            id="a variable that the caller has not",
        ),
        pytest.param(
            {"env": ("1A=2",)},
            "env",
            "invalid variable name '1A'",
            "write NAME=VALUE, or NAME to pass your own value",
            id="no variable name",
        ),
        pytest.param(
            {"name": "Train"},
            "name",
            "invalid run name 'Train': use at most 52 of a-z, 0-9 and '-',"
            " beginning and ending with a letter or digit",
            None,
            id="no DNS label",
        ),
        pytest.param(
            {"name": "taken"},
            "name",
            "the name 'taken' is taken in namespace default",
            "choose another, or remove the old run: moor cancel --delete taken",
            id="a name that is taken",
        ),
        pytest.param(
            {"image": "python:3.12"},
            "image",
            "cannot pull image 'python:3.12': this cluster runs commands on this machine itself",
            "leave out the image, or run its command in this machine's environment: --host-env",
            id="an image where none is pulled",
        ),
        pytest.param(
            {"checkpoint": "Bad_Name"},
            "checkpoint",
            "invalid checkpoint volume 'Bad_Name': use at most 63 of a-z, 0-9 and '-'",
            "write NAME or NAME:20Gi",
            id="no volume name",
        ),
        pytest.param(
            {"grace_period_seconds": 0},
            "gracePeriodSeconds",
            "invalid grace period 0: use 1 to 86400 seconds",
            None,
            id="no grace",
        ),
        pytest.param(
            {"user": "ada"},
            "user",
            "invalid user 'ada': use numbers from 0 to 2147483647",
            USER_HINT,
            id="a user by name",
        ),
        pytest.param(
            {"user": "1000:2147483648"},
            "user",
            "invalid user '1000:2147483648': use numbers from 0 to 2147483647",
            USER_HINT,
            id="a group that no cluster knows",
        ),
        ({"priority_class": "high"}, "priorityClass", "PriorityClass 'high' not found", "available: low"),
        pytest.param(
            {"working_dir": "data"},
            "workingDir",
            "invalid working directory 'data'",
            "write VOLUME:PATH, such as code:project",
            id="no place on a volume",
        ),
        pytest.param(
            {"share": True},
            "share",
            "only a run with a checkpoint can share GPUs: add a checkpoint, or do not share",
            None,
            id="turns without a checkpoint",
        ),
        ({"restart_limit": 2000}, "restartLimit", "invalid restart limit 2000: use 0 to 998", None),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(options, field, says, hint):
    classes, taken = frozenset({"low"}), frozenset({"taken"})
    facts = local(A100, T4, claims={"data": "10Gi"}, taken=taken, priority_classes=classes)
    assert problems(facts, **options) == (Problem(field, says, hint),)


def test_every_problem_is_told_at_once():
    found = problems(gpus=9, memory="x", time="y", volumes=("none:/a",), name="-")
    assert [one.field for one in found] == ["name", "memory", "time", "gpus", "volumes"]


def test_a_real_cluster_needs_an_image_which_a_tenant_may_give():
    assert [problem.field for problem in problems(REAL)] == ["image"]
    facts = ClusterFacts(nodes=(PLAIN,), defaults=Defaults(image="ours:1"))
    assert container(planned(facts))["image"] == "ours:1"


NO_PROGRAM = Caller(user="ada", cwd="/", program=None)
LARGE = Caller(user="ada", cwd="/", archive=b"x" * (ARCHIVE_LIMIT_BYTES + 1))
UNKNOWN = ClusterFacts(nodes=None, process_runtime=True)


@pytest.mark.parametrize(
    ("facts", "caller", "options", "fields"),
    [
        pytest.param(LOCAL, NO_PROGRAM, {}, ["command"], id="no such command, which would run here"),
        pytest.param(REAL, NO_PROGRAM, {"image": "python:3.12"}, [], id="a command of an image"),
        pytest.param(REAL, LARGE, {"image": "python:3.12"}, ["workingDir"], id="a directory too large to ship"),
        pytest.param(REAL, ADA, {"image": "x", "live": True}, ["live"], id="the folder of another machine"),
        pytest.param(UNKNOWN, ADA, {"gpus": 1, "gpu_type": "a100"}, ["gpuType"], id="a type of unknown nodes"),
        pytest.param(UNKNOWN, ADA, {"gpus": 1}, [], id="GPUs of unknown nodes"),
    ],
)
def test_a_run_is_refused_for_the_fields_that_do_not_fit_its_cluster(facts, caller, options, fields):
    assert [problem.field for problem in problems(facts, caller, **options)] == fields


@pytest.mark.parametrize(
    ("program", "options", "fields"),
    [
        pytest.param("/envs/bin/python", {"volumes": ("data:/envs",)}, [], id="a program on a volume"),
        pytest.param("/bin/lost", {"volumes": ("data:/envs",)}, ["command"], id="a program of the machine"),
        pytest.param(
            "./train.sh", {"working_dir": "data:code"}, [], id="a script in the volume that it starts in"
        ),
        pytest.param("./train.sh", {}, ["command"], id="a script in this directory"),
        pytest.param("lost", {"working_dir": "data:code"}, ["command"], id="a name, which PATH lacks"),
    ],
)
def test_a_program_may_be_on_a_volume(program, options, fields):
    plan = plan_run(a_request(program, **options), NO_PROGRAM, LOCAL)
    assert [problem.field for problem in plan.problems] == fields


def test_a_team_with_nodes_of_its_own_is_judged_by_these():
    """Admission sends its runs there, and the taint keeps all others off."""
    taint = Taint("moorage.dev/tenant", "lab", "NoSchedule")
    own = a_node("own", labels={"pool": "lab"}, taints=(taint,), allocatable={"cpu": 64000, "memory": 512 * GIB})
    theirs = local(A100, own, own_nodes={"pool": "lab"})
    terms = pod_spec(planned(theirs, cpu="32"))["affinity"]["nodeAffinity"]
    assert "nvidia.com/gpu.present" in str(terms), "it has another place than GPU nodes"
    [found] = problems(theirs, cpu="65")
    assert found.message == "65 CPUs asked for; the largest node without GPUs has 64 (own)"
    only_gpus = local(A100, PLAIN, own_nodes={"kubernetes.io/hostname": "gpu-a"})
    assert "affinity" not in pod_spec(planned(only_gpus)), "its own nodes all have GPUs"


def test_gpus_on_a_cluster_without_any_are_refused():
    [found] = problems(local(PLAIN), gpus=1)
    assert found.message == "1 GPU asked for, but no node of this cluster has GPUs"


# --- what is made


def test_without_memory_the_default_is_filled_in_and_said():
    plan = planned()
    assert container(plan)["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert plan.notes[0] == "no memory given: limited to 2Gi, the default; a job that grows beyond it is killed"
    assert annotations(plan)["moorage.dev/memory-defaulted"] == "true"


def test_a_tenants_defaults_go_before_ours():
    plan = planned(local(A100, defaults=Defaults(cpu="2", memory="6Gi", origin="tenant lab's default")))
    assert container(plan)["resources"]["limits"] == {"cpu": "2", "memory": "6Gi"}
    assert "limited to 6Gi, tenant lab's default" in plan.notes[0]


def test_a_tenants_time_and_restart_limit_hold_for_its_runs():
    facts = local(A100, defaults=Defaults(seconds=3600, restart_limit=3, origin="tenant lab's default"))
    plan = planned(facts)
    assert pod_spec(plan)["activeDeadlineSeconds"] == 3600
    assert "no time limit given: stopped after 1h, tenant lab's default" in plan.notes
    assert annotations(plan)["moorage.dev/restart-limit"] == "3"
    assert pod_spec(planned(facts, time="2h"))["activeDeadlineSeconds"] == 7200
    over = Problem("restartLimit", "invalid restart limit 4: use 0 to 3", None)
    assert problems(facts, restart_limit=4) == (over,)


def test_labels_are_on_the_job_and_its_pod_template_beside_ours():
    job = planned(labels=("project=vision",)).job
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["project"] == "vision"
        assert labels["moorage.dev/attempt"] == "1"


def test_a_reserved_label_is_refused():
    [problem] = problems(labels=("moorage.dev/run=x",))
    assert (problem.field, problem.message) == ("labels", "label 'moorage.dev/run' is reserved")


def test_without_a_limit_a_run_is_never_started_again():
    plan = planned(memory="none")
    assert container(plan)["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    assert plan.job["spec"]["backoffLimit"] == 0
    assert annotations(plan)["moorage.dev/restart-limit"] == "0"
    assert "memory none: no limit, so this run is never restarted" in plan.notes


def test_retries_stop_at_a_kill_for_memory():
    spec = planned(retries=3).job["spec"]
    assert spec["backoffLimit"] == 3
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}},
    ]


def test_a_gpu_type_is_a_required_affinity_on_the_labels_of_the_nodes():
    spec = pod_spec(planned(gpus=2, gpu_type="a100"))
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [product]}]}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_a_word_that_means_several_types_allows_them_all_and_says_so():
    facts = local(A100, a_node("gpu-b", gpus=8, kind="NVIDIA-A100-PCIE-40GB"), T4)
    plan = planned(facts, gpus=8, gpu_type="A100")
    assert "GPU type A100 allows NVIDIA-A100-PCIE-40GB, NVIDIA-A100-SXM4-80GB" in plan.notes


def test_a_type_written_out_means_only_itself():
    nodes = [a_node("a", gpus=1, kind="a100"), a_node("b", gpus=1, kind="a100-80gb")]
    pod = parse_pod(pod_of_job(planned(local(*nodes), gpus=1, gpu_type="A100").job))
    assert [node.name for node in nodes if refusal_by_labels(pod, node) is None] == ["a"]


def test_types_under_different_labels_are_alternatives():
    allocatable = {"cpu": 9000, "memory": 64 * GIB, "nvidia.com/gpu": 1}
    gke = a_node("gke", labels={"cloud.google.com/gke-accelerator": "nvidia-a100"}, allocatable=allocatable)
    pod = parse_pod(pod_of_job(planned(local(A100, gke), gpus=1, gpu_type="a100").job))
    assert refusal_by_labels(pod, A100) is None
    assert refusal_by_labels(pod, gke) is None


def test_gpus_of_another_vendor_are_asked_for_by_their_own_name():
    amd = a_node("amd", labels={}, allocatable={"cpu": 9000, "memory": 64 * GIB, "amd.com/gpu": 8})
    spec = pod_spec(planned(local(amd), gpus=8))
    assert spec["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "8"
    assert spec["tolerations"][0]["key"] == "amd.com/gpu"


def test_without_gpus_a_run_is_kept_off_gpu_nodes_while_there_are_others():
    pod = parse_pod(pod_of_job(planned(REAL, image="x").job))
    assert refusal_by_labels(pod, A100) is not None
    assert refusal_by_labels(pod, PLAIN) is None


@pytest.mark.parametrize("closed", [{"unschedulable": True}, {"taints": (Taint("team", "b", "NoSchedule"),)}])
def test_a_cordoned_or_tainted_node_does_not_count_as_another(closed):
    plan = planned(local(A100, a_node("c", **closed)))
    assert "affinity" not in pod_spec(plan)
    assert not [note for note in plan.notes if "GPU" in note]  # users cannot change it


def test_nodes_that_may_not_be_listed_make_it_a_preference():
    affinity = pod_spec(planned(UNKNOWN))["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_the_time_limit_counts_from_the_pods_start():
    plan = planned(time="90m")
    assert pod_spec(plan)["activeDeadlineSeconds"] == 5400
    assert "activeDeadlineSeconds" not in plan.job["spec"]
    assert keyed(expected_seconds=5400, time_limit_seconds=5400).items() <= annotations(plan).items()


def test_on_this_machine_the_run_gets_the_callers_directory_and_five_of_its_variables():
    found = container(planned(env=("SEED=1", "WANDB")))
    assert found["workingDir"] == "/home/ada/work"
    assert found["image"] == "localhost/host"
    assert {one["name"]: one.get("value") or one["valueFrom"] for one in found["env"]} == {
        "PATH": "/usr/bin",
        "VIRTUAL_ENV": "/venv",
        "SEED": "1",
        "WANDB": "key",
        "MOORAGE_RUN": plan_run(a_request(), ADA, LOCAL).name,
        "POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
    }


def test_who_sets_the_variable_of_the_pods_address_has_its_own():
    found = container(planned(env=("POD_IP=127.0.0.1",)))
    assert [one for one in found["env"] if one["name"] == "POD_IP"] == [{"name": "POD_IP", "value": "127.0.0.1"}]


def test_a_token_in_a_variable_or_the_command_is_noted_without_its_value():
    token = "hf_" + "x1" * 17
    command = ("python", "train.py", f"--token={token}")
    plan = plan_run(RunRequest(command=command, env=(f"HF_TOKEN={token}", "EPOCHS=3")), ADA, LOCAL)
    read = "all users of the namespace can read it"
    how = "keep it in a secret: `moor secret create NAME KEY`, then `moor run --secret NAME`"
    assert [note for note in plan.notes if read in note] == [
        f"variable HF_TOKEN looks like a credential: {read}; {how}",
        f"the command holds a token of Hugging Face: {read}; {how}",
    ]
    assert token not in " ".join(plan.notes)


def test_on_a_real_cluster_nothing_of_the_callers_environment_goes_along():
    found = container(planned(REAL, image="x"))
    assert [one["name"] for one in found["env"]] == ["MOORAGE_RUN", "POD_IP"]
    assert "workingDir" not in found


def test_host_env_marks_the_pod_and_keeps_the_image_name():
    plan = planned(image="python:3.12", host_env=True)
    assert container(plan)["image"] == "python:3.12"
    annotations = plan.job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["localcluster.moorage.dev/host-env"] == "true"


@pytest.mark.parametrize(
    ("share", "options", "mark"),
    [(None, {}, None), (True, {"checkpoint": "digits"}, "true"), (False, {}, "false")],
)
def test_a_run_says_whether_it_takes_turns(share, options, mark):
    plan = planned(share=share, **options)
    assert annotations(plan).get("moorage.dev/share") == mark
    assert stored_request(plan.job).share is share


def test_a_checkpoint_makes_its_volume_when_absent_and_gives_time_to_write():
    plan = planned(checkpoint="digits:20Gi")
    [claim] = plan.claims
    assert (claim["metadata"]["name"], claim["spec"]["resources"]["requests"]) == ("digits", {"storage": "20Gi"})
    assert "ownerReferences" not in claim["metadata"]
    assert pod_spec(plan)["terminationGracePeriodSeconds"] == 120
    assert {"name": "MOORAGE_CHECKPOINT_DIR", "value": "/moorage/checkpoint"} in container(plan)["env"]
    assert annotations(plan)["moorage.dev/checkpoint"] == "digits"


@pytest.mark.parametrize(("default", "said"), [(True, False), (None, False), (False, True)])
def test_a_checkpoint_that_nothing_will_store_is_said(default, said):
    plan = planned(local(A100, has_default_class=default), checkpoint="digits")
    assert any("no default StorageClass" in note for note in plan.notes) is said


def test_a_checkpoint_volume_that_exists_is_used_as_it_is():
    busy = a_pod("gpu-a", labels={"moorage.dev/run": "older"}, claims=("data",), phase="Running")
    plan = planned(local(A100, claims={"data": "10Gi"}, pods=(busy,)), checkpoint="data:20Gi")
    assert plan.claims == ()
    assert plan.notes[-3:] == (
        "the volume data exists with 10Gi; it is not enlarged to 20Gi",
        "the volume data exists: its files are used as the checkpoint",
        "the checkpoint volume data is in use by older: two runs that write the same checkpoint corrupt it",
    )


def a_use(run: str, owner: str = ADA.user, *, at: datetime | None = None, has_ended: bool = True) -> CheckpointUse:
    return CheckpointUse(run=run, owner=owner, at=at, has_ended=has_ended)


WRITTEN = "on volume data (10Gi), written 2026-11-21T12:00:00Z"


@pytest.mark.parametrize(
    ("uses", "continued", "notes"),
    [
        pytest.param(
            [a_use("old", at=NOON), a_use("older", at=NOON - timedelta(hours=1)), a_use("new")],
            "old",
            [f"continues the checkpoint of your run old, {WRITTEN}"],
            id="the run that wrote last",
        ),
        pytest.param(
            [a_use("old"), a_use("new")],
            "new",
            [
                "uses the same checkpoint volume as your run new: volume data (10Gi);"
                " a checkpoint is not known there yet"
            ],
            id="the newest, where none wrote",
        ),
        pytest.param(
            [a_use("hers", "grace", at=NOON)],
            "hers",
            [
                f"continues the checkpoint of run hers of grace, {WRITTEN}",
                "the checkpoint on volume data is grace's: your run writes over it;"
                " to start from the beginning, use another name after --checkpoint",
            ],
            id="of another user",
        ),
        pytest.param(
            [a_use("busy", at=NOON, has_ended=False)],
            "busy",
            [
                f"continues the checkpoint of your run busy, {WRITTEN}",
                "the checkpoint volume data is in use by busy: two runs that write the same checkpoint corrupt it",
            ],
            id="of a run that still runs",
        ),
    ],
)
def test_a_run_names_the_run_of_the_checkpoint_it_continues(uses, continued, notes):
    plan = planned(local(A100, claims={"data": "10Gi"}, checkpoints={"data": tuple(uses)}), checkpoint="data")
    assert list(plan.notes[-len(notes) :]) == notes
    assert annotations(plan)["moorage.dev/checkpoint-from"] == continued


def test_the_runner_wraps_a_command_with_a_checkpoint_and_reports_under_the_runs_own_token():
    plan = planned(checkpoint="digits", name="train")
    assert container(plan)["command"] == [
        "python3",
        "/moorage/run/runner.py",
        "--report",
        "http://127.0.0.1:8080/api/v1/runs/default/train/checkpoint",
        "--token-file",
        "/moorage/run/token",
        "--",
        "python",
        "train.py",
    ]
    name = secret_name("train", "ada@example.org", "token")
    assert (plan.secret["metadata"]["name"], plan.secret["immutable"]) == (name, True)
    assert {"name": "moorage-run", "secret": {"secretName": name}} in pod_spec(plan)["volumes"]
    files = {key: base64.b64decode(value) for key, value in plan.secret["data"].items()}
    assert files == {"runner.py": b"print('runner')\n", "token": b"token"}
    digest = annotations(plan)["moorage.dev/report-token-sha256"]
    assert digest == "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0"


def test_a_plain_run_on_this_machine_is_not_wrapped():
    plan = planned()
    assert plan.secret is None
    assert container(plan)["command"] == ["python", "train.py"]


@pytest.mark.parametrize(("facts", "into"), [(REAL, UNPACK_PATH), (LOCAL, "code")])
def test_a_repository_is_cloned_by_the_runner_where_the_command_starts(facts, into):
    caller = Caller(user="ada", cwd="/x", program="/bin/x", runner="r", token="t", archive=SHIPPED)
    request = RunRequest(command=("./x",), image=None if facts is LOCAL else "i", git="https://h/a$(b)")
    assert [problem.field for problem in plan_run(request, caller, facts).problems] == ["git"]
    plan = plan_run(replace(request, git="git@h:o/r.git@main"), caller, facts)
    container = plan.job["spec"]["template"]["spec"]["containers"][0]
    report = [
        "--report",
        f"{facts.server_url}/api/v1/runs/default/{plan.name}/checkpoint",
        "--token-file",
        "/moorage/run/token",
    ]
    words = ["--git", "git@h:o/r.git", "--ref", "main", "--into", into, *report, "--", "./x"]
    assert container["command"][-12:] == words
    assert ("workingDir" in container, "work.tar.gz" in plan.secret["data"]) == (False, False)
    assert stored_request(plan.job).git == "git@h:o/r.git@main"


def test_a_shipped_directory_is_unpacked_by_the_runner_and_needs_no_volume_that_forbids_a_drain():
    caller = Caller(user="ada", cwd="/x", runner="r", token="t", archive=SHIPPED)
    plan = planned(REAL, caller, image="x")
    assert container(plan)["command"][:9] == [
        "python3",
        "/moorage/run/runner.py",
        "--peak-file",
        "/dev/termination-log",
        "--unpack",
        "/moorage/run/work.tar.gz",
        "--into",
        "/tmp/moorage-work",
        "--",
    ]
    assert [list(volume) for volume in pod_spec(plan)["volumes"]] == [["name", "secret"]]


HERE = Caller(
    user="ada",
    cwd="/home/ada/p",
    program="/usr/bin/python3",
    environment={"PYTHONPATH": "/home/ada/p/src:/opt/lib"},
    salt="0123456789",
    code=Code(digest="d1", files=2, bytes=30, commit="c0ffee", folder="/home/ada/p/.moorage/code/d1"),
)


def test_a_run_on_this_machine_starts_in_a_copy_of_its_code() -> None:
    plan = planned(LOCAL, HERE, name="train")
    copy = "/home/ada/p/.moorage/train.012345"
    words = ["/moorage/run/runner.py", "--copy", "/home/ada/p/.moorage/code/d1", "--into", copy]
    assert container(plan)["command"][1:] == [*words, "--", "python", "train.py"]
    assert code_of(plan.job) == replace(HERE.code, outputs=copy)
    env = {variable["name"]: variable.get("value") for variable in container(plan)["env"]}
    assert env["PYTHONPATH"] == f"{copy}/src:/opt/lib"
    again = planned(LOCAL, replace(HERE, salt="987654"), name="train")
    assert code_of(again.job).outputs.endswith("/train.987654"), "a new run of this name has other outputs"
    live = planned(LOCAL, HERE, live=True)
    assert (live.secret, code_of(live.job), container(live)["workingDir"]) == (None, None, "/home/ada/p")


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("../data/x", "a copy of the folder, where ../data/x is missing"),
        ("--data=..", "a copy of the folder, where .. is missing"),
        ("/home/ada/p/b.py", "/home/ada/p/b.py is the file itself, not its copy"),
        ("/home/ada/p/data", None),
        ("/home/ada/other.py", None),
        ("a/../b", None),
    ],
)
def test_words_of_the_command_that_name_no_file_of_the_copy_are_noted(word: str, note: str | None) -> None:
    notes = [text for text in plan_run(a_request("python", word), HERE, LOCAL).notes if "copy" in text]
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_a_working_directory_on_a_volume_ships_nothing():
    request = a_request(image="x", working_dir="code:proj/a")
    assert not has_code(request)
    plan = plan_run(request, ADA, REAL)
    assert container(plan)["workingDir"] == "/moorage/work/proj/a"
    assert plan.secret is None


def test_a_claim_mounted_twice_is_one_volume_and_read_only_belongs_to_the_mount():
    plan = planned(volumes=("data:/in:ro", "data:/out"))
    assert pod_spec(plan)["volumes"] == [{"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}}]
    assert container(plan)["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/in", "readOnly": True},
        {"name": "volume-0", "mountPath": "/out"},
    ]


def test_the_owner_is_a_label_safe_form_and_an_annotation_in_full():
    plan = planned()
    for meta in (plan.job["metadata"], plan.job["spec"]["template"]["metadata"]):
        assert meta["annotations"]["moorage.dev/owner"] == "ada@example.org"
        assert meta["labels"]["moorage.dev/owner"].startswith("ada-example.org-")


# --- small readings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1d", 86400),
        ("1d12h", 129600),
        ("45", 45),
        ("45s", 45),
        ("1h30m", 5400),
        ("2H", 7200),
    ],
)
def test_a_time_is_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "h", "2x", "-1h", "0", "1.5h", "366d", "2h 3m"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError):
        parse_time(text)


@given(st.integers(1, 365 * 86400))
def test_a_time_said_is_read_back(seconds):
    assert parse_time(format_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("asked", "value", "means"),
    [
        ("a100", "NVIDIA-A100-SXM4-80GB", True),
        ("A100-SXM4", "NVIDIA-A100-SXM4-80GB", True),
        ("a10", "NVIDIA-A100-SXM4-80GB", False),
        ("a100", "NVIDIA-A100X", False),
        ("rtx4090", "NVIDIA-GeForce-RTX-4090", True),
        ("t4", "Tesla-T4", True),
        ("80gb", "NVIDIA-A100-SXM4-80GB", True),
        ("", "Tesla-T4", False),
        ("-", "Tesla-T4", False),
    ],
)
def test_a_type_is_meant_by_its_whole_words(asked, value, means):
    assert matches_type(asked, value) is means


@given(st.text(min_size=1))
def test_a_type_always_means_itself_in_any_case(text):
    value = f"x-{text}-T4"
    assert matches_type(value.upper(), value) or value.upper().lower() != value.lower()


def test_gpus_of_a_cordoned_node_are_not_free():
    nodes = (a_node("a", gpus=4), a_node("b", gpus=4, unschedulable=True))
    assert [str(one) for one in gpu_types(nodes, [a_pod("a", 3)])] == ["NVIDIA-A100-SXM4-80GB (1 of 8 free)"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["python3.12", "-u", "src/Train_Model.py", "--lr", "1"], "train-model"),
        (["python", "-m", "pkg.tool"], "tool"),
        (["python", "-c", "print()"], "python"),
        (["./run.sh"], "run"),
        (["bash", "-c", "echo"], "bash"),
        (["torchrun", "--nproc", "2", "train.py"], "train"),
        (["???"], "run"),
    ],
)
def test_a_name_is_made_from_the_command(command, name):
    assert base_name(command) == name


@given(st.lists(st.text(), max_size=4), st.text())
def test_a_generated_name_is_always_a_run_name_that_is_free(command, salt):
    first = generated_name(command, salt, frozenset())
    second = generated_name(command, salt, frozenset({first}))
    assert first != second
    for name in (first, second):
        assert is_dns_label(name)
        assert len(name) <= RUN_NAME_MAX


def kubelet_expands(text: str, env: dict[str, str]) -> str:
    """What a kubelet makes of `$(NAME)` and `$$`: k8s.io/kubernetes/third_party/forked/golang/expansion."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) > 0:
            name = text[at + 2 : end]
            out, at = out + env.get(name, f"$({name})"), end + 1
        elif text[at + 1] == "(":
            out, at = out + "$(", at + 2
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(st.text(alphabet="$()Aab "))
def test_no_word_of_the_command_is_changed_by_the_kubelet(text):
    assert kubelet_expands(unexpanded(text), {"A": "x", "": "y"}) == text


# --- every plan

quantities = st.sampled_from([None, "500m", "1", "4", "16"])
requests = st.builds(
    RunRequest,
    command=st.lists(st.sampled_from(["python", "train.py", "--lr", "$(X)", "a b"]), min_size=1).map(tuple),
    name=st.sampled_from([None, "train", "a", "x" * 52]),
    gpus=st.integers(0, 5),
    gpu_type=st.sampled_from([None, "a100", "t4", "h100"]),
    cpu=quantities,
    memory=st.sampled_from([None, "none", "1Gi", "60Gi", "100Gi", "x"]),
    time=st.sampled_from([None, "1h", "90", "x"]),
    volumes=st.lists(st.sampled_from(["data:/data", "data:/x:ro", "no:/y"]), max_size=2).map(tuple),
    env=st.lists(st.sampled_from(["A=1", "WANDB", "PATH=/x"]), max_size=3).map(tuple),
    checkpoint=st.sampled_from([None, "data", "fresh", "fresh:1Gi"]),
    grace_period_seconds=st.sampled_from([None, 1, 600]),
    retries=st.integers(0, 3),
    restart_limit=st.sampled_from([None, 0, 5]),
    image=st.sampled_from([None, "python:3.12"]),
    host_env=st.booleans(),
    working_dir=st.sampled_from([None, "data:sub"]),
)
some_nodes = st.lists(
    st.sampled_from([A100, T4, PLAIN, a_node("shut", unschedulable=True)]), unique_by=lambda n: n.name
).map(tuple)
worlds = st.builds(
    ClusterFacts,
    nodes=st.none() | some_nodes,
    process_runtime=st.booleans(),
    claims=st.just({"data": "10Gi"}),
    taken=st.sampled_from([frozenset(), frozenset({"train"})]),
    server_url=st.sampled_from(["", "http://server"]),
)


@given(requests, worlds, st.sampled_from([None, SHIPPED]))
def test_every_job_that_comes_out_is_guarded(request, facts, archive):
    caller = Caller(
        user="ada",
        cwd="/w",
        environment=ADA.environment,
        program="/p",
        salt="s",
        token="t",
        runner="r",
        archive=archive,
    )
    plan = plan_run(request, caller, facts)
    assert plan == plan_run(request, caller, facts)
    if plan.problems:
        assert (plan.job, plan.secret, plan.claims) == (None, None, ())
        return
    job = plan.job
    assert job is not None
    json.dumps(job)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [only] = pod["containers"]
    resources = only["resources"]
    # R5: requests equal limits; R4: a memory limit, unless it was waived in words
    assert resources["requests"] == resources["limits"]
    assert "cpu" in resources["limits"]
    assert ("memory" in resources["limits"]) == (request.memory != "none")
    # R6: what has no limit is never tried again
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (request.retries, "Never")
    if request.memory == "none":
        assert spec["backoffLimit"] == 0
        assert job["metadata"]["annotations"]["moorage.dev/restart-limit"] == "0"
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = [STOPPED] * (plan.secret is not None) + [137] * bool(request.retries)
    assert [rule["onExitCodes"]["values"] for rule in rules[1:]] == ([codes] if codes else [])
    assert spec["podReplacementPolicy"] == "Failed"
    # R7, R8: off the GPU nodes, or on those of the type
    info = parse_pod(pod_of_job(job))
    assert info.gpus == request.gpus
    if facts.nodes is not None:
        allowed = [n for n in facts.nodes if not refusal_by_labels(info, n) and not refusal_by_taints(info, n)]
        fitting = [n for n in allowed if all(n.allocatable.get(r, 0) >= v for r, v in info.requests.items())]
        if not request.gpus and PLAIN in facts.nodes:
            assert allowed == [PLAIN]
        if request.gpu_type:
            assert {n.name for n in allowed} <= {"gpu-a" if request.gpu_type == "a100" else "gpu-t"}
        if facts.nodes and any(not n.unschedulable for n in facts.nodes):
            assert fitting  # it can run somewhere, once there is room
    # names and owners
    assert is_dns_label(plan.name)
    assert job["metadata"]["labels"]["moorage.dev/run"] == plan.name
    assert spec["template"]["metadata"]["labels"]["moorage.dev/attempt"] == "1"
    # nothing of the environment but what is on the list, and what was asked for
    names = {one["name"] for one in only["env"]} - {"MOORAGE_RUN", "MOORAGE_CHECKPOINT_DIR", "POD_IP"}
    assert names <= set(PASSED_ON) | {text.partition("=")[0] for text in request.env}
    # the command as typed, once the kubelet has read it
    words = [kubelet_expands(word, {"X": "no"}) for word in only["command"]]
    if plan.secret is not None:
        assert words[words.index("--") + 1 :] == list(request.command)
    else:
        assert words == list(request.command)
    # each mount has its volume
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    assert {mount["name"] for mount in only.get("volumeMounts", ())} == volumes
    assert not any("emptyDir" in volume for volume in pod.get("volumes", ()))
    for value in resources["limits"].items():
        assert amount(*value) > 0


def test_the_manifest_of_a_full_line_is_the_golden_one():
    plan = planned(
        gpus=1,
        gpu_type="a100",
        cpu="4",
        memory="8Gi",
        time="2h",
        volumes=("data:/data",),
        env=("K=V",),
        checkpoint="digits",
        name="train",
    )
    text = yaml.safe_dump_all([*plan.claims, plan.secret, plan.job], sort_keys=False)
    if os.environ.get("MOORAGE_RENEW_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


MIG, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("asked", "resource", "tolerated"),
    [
        (MIG, MIG, [MIG, "nvidia.com/gpu"]),
        ("mig-1g.10gb", MIG, [MIG, "nvidia.com/gpu"]),
        (SHARED, SHARED, [SHARED, "nvidia.com/gpu"]),
        ("gpu", "nvidia.com/gpu", ["nvidia.com/gpu"]),
        (None, "nvidia.com/gpu", ["nvidia.com/gpu"]),
    ],
)
def test_a_slice_of_a_gpu_is_asked_for_by_its_resource(asked, resource, tolerated):
    nodes = [
        a_node(name, allocatable={"cpu": 16000, "memory": 64 * GIB, name: 4})
        for name in ("nvidia.com/gpu", MIG, SHARED)
    ]
    plan = planned(local(*nodes), gpus=2, gpu_resource=asked)
    limits = container(plan)["resources"]["limits"]
    assert limits == {"cpu": "1", "memory": "2Gi", resource: "2"}
    assert [toleration["key"] for toleration in pod_spec(plan)["tolerations"]] == tolerated


def test_a_gpu_resource_that_no_node_offers_is_refused_with_those_there_are():
    [problem] = problems(gpus=1, gpu_resource="mig-9g")
    says, hint = "GPU resource 'mig-9g' not found on any node", "available: nvidia.com/gpu"
    assert problem == Problem("gpuResource", says, hint)


AUTOSCALERS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


@pytest.mark.parametrize(
    ("checkpoint", "keeps"),
    [
        pytest.param(None, True, id="without a checkpoint it would begin again from its start"),
        pytest.param("digits", False, id="with one, autoscalers may move it"),
    ],
)
def test_autoscalers_empty_no_node_of_a_run_that_would_lose_all(checkpoint: str | None, keeps: bool) -> None:
    plan = planned(REAL, image="x", checkpoint=checkpoint)
    notes = plan.job["spec"]["template"]["metadata"]["annotations"]
    assert {key: notes[key] for key in AUTOSCALERS if key in notes} == (AUTOSCALERS if keeps else {})


NAMED = {"HOME": "/tmp", "USER": "moorage", "LOGNAME": "moorage"}
USER_1000 = {"runAsUser": 1000, "runAsNonRoot": True}
ON_VOLUMES = USER_1000 | {"fsGroupChangePolicy": "OnRootMismatch"}


@pytest.mark.parametrize(
    ("user", "security", "home"),
    [
        pytest.param("1000:100", ON_VOLUMES | {"runAsGroup": 100, "fsGroup": 100}, NAMED, id="user and group"),
        pytest.param("1000", ON_VOLUMES | {"runAsGroup": 1000, "fsGroup": 1000}, NAMED, id="its own group"),
        pytest.param("1000:0", USER_1000 | {"runAsGroup": 0}, NAMED, id="root's group has volumes anyway"),
        pytest.param("0", {"runAsUser": 0, "runAsGroup": 0}, {}, id="root"),
    ],
)
def test_a_run_has_the_user_that_is_asked_for(user, security, home):
    plan = planned(REAL, image="i", user=user)
    assert pod_spec(plan)["securityContext"] == security
    env = {entry["name"]: entry.get("value") for entry in container(plan)["env"]}
    assert {name: env[name] for name in env if name in NAMED} == home
    own = planned(REAL, image="i", user=user, env=("HOME=/work",))
    assert {"name": "HOME", "value": "/work"} in container(own)["env"]
    assert stored_request(plan.job).user == user


def test_a_user_is_said_to_have_no_effect_where_commands_are_processes_of_this_machine():
    plan = planned(LOCAL, user="1000")
    assert "securityContext" not in pod_spec(plan)
    assert "user has no effect on this cluster: commands run as the user who started it" in plan.notes
