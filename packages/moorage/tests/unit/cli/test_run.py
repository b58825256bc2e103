"""`moor run` against a cluster in memory: what is created, in which order, and what is left when it fails."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile

import pytest
import yaml

from moorage.model.tenant import TENANTS
from moorage_kube.errors import Forbidden, Invalid
from moorage_kube.resources import CONFIGMAPS, JOBS, PODS, PVCS, SECRETS
from moorage_kube.testing.builders import a_condition, a_container_status, an_object
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_pod, a_tenant


@pytest.fixture
def local(moor):
    moor.node("node-1", gpus=2)
    moor.node("node-2", gpus=2)
    data = {"serverUrl": "http://s:1"}
    moor.api.put(CONFIGMAPS, an_object(CONFIGMAPS, "moorage", namespace="moorage-system", data=data))
    return moor


@pytest.fixture
def real(moor, tmp_path, monkeypatch):
    moor.node("gpu-1", gpus=8, runtime="containerd://2.1")
    moor.node("cpu-1", runtime="containerd://2.1")
    monkeypatch.chdir(tmp_path)
    return moor


def job_of(moor, name="train"):
    return moor.api.objects["jobs", "default", name]


def pod_of(moor, name="train"):
    return job_of(moor, name)["spec"]["template"]["spec"]


def container_of(moor, name="train"):
    [container] = pod_of(moor, name)["containers"]
    return container


def own_command(moor, name="train"):
    """The command of a run, without our runner."""
    command = container_of(moor, name)["command"]
    return command[command.index("--") + 1 :]


def test_a_run_prints_its_name_and_nothing_else_on_stdout(local):
    done = local("run", "--gpus", "1", "--memory", "1Gi", "--name", "train", "--", "python3", "-c", "1")
    assert (done.code, done.out) == (0, "train\n")
    assert done.err.splitlines()[-1] == "submitted; follow it with: moor logs -f train"
    assert job_of(local)["metadata"]["labels"]["moorage.dev/owner"] == "ada"
    assert own_command(local) == ["python3", "-c", "1"]


def test_a_default_is_noted(local):
    done = local("run", "--", "true")
    assert done.err.splitlines()[1] == (
        "note: no memory given: limited to 2Gi, the default; a job that grows beyond it is killed"
    )


def test_a_tenants_default_is_taken(local):
    local.api.put(TENANTS, a_tenant("lab", "default", defaults={"memory": "6Gi"}))
    done = local("run", "--name", "a", "--", "true")
    assert "limited to 6Gi, tenant lab's default" in done.err


def test_options_after_the_command_are_the_commands_own(local):
    done = local("run", "--name", "a", "ls", "--name", "b", "-n", "x")
    assert done.out == "a\n"
    assert own_command(local, "a") == ["ls", "--name", "b", "-n", "x"]


def test_all_errors_are_printed_at_once_and_nothing_is_created(local):
    done = local("run", "--gpus", "9", "--gpu-type", "h100", "--memory", "x", "--volume", "no:/x", "--", "nonsuch")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: invalid memory 'x': use a quantity such as 512Mi, 8Gi or 1.5G\n"
        "error: GPU type 'h100' not found on any node\n"
        "hint: this cluster has a100 (4 of 4 free)\n"
        "error: volume 'no' not found in namespace default\n"
        "hint: create it first: moor volume create no --size 10Gi\n"
        "error: the command 'nonsuch' does not exist on this machine\n"
        "hint: check its spelling, or give its path; on this cluster commands run with your own PATH\n"
    )
    assert not local.api.named(JOBS)


def test_a_script_that_is_typed_without_its_interpreter_is_hinted_at_it(local):
    done = local("run", "--", "train-me.py")
    hint = "hint: name the program that runs it: moor run -- python train-me.py"
    assert (done.code, done.err.splitlines()[-1]) == (2, hint)


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (
            ("python3", "train.py", "--name", "x", "--gpus=1"),
            "note: after the command, --name and --gpus=1 is passed to python3, not to moor; options of moor run",
        ),
        (("--", "python3", "train.py", "--name", "x"), ""),
        (("python3", "train.py", "--epochs", "3"), ""),
    ],
)
def test_options_behind_the_command_are_noted(local, words, noted):
    done = local("run", "--dry-run", *words)
    assert done.code == 0
    assert (noted in done.err) if noted else ("after the command" not in done.err)


def test_a_checkpoint_creates_volume_secret_and_job_in_this_order_and_the_job_owns_the_secret(local):
    assert local("run", "--checkpoint", "digits", "--name", "train", "--", "true").code == 0
    made = [(call.resource, call.name) for call in local.api.calls if call.verb == "create"]
    [name] = local.api.named(SECRETS)
    assert made == [("persistentvolumeclaims", "digits"), ("secrets", name), ("jobs", "train")]
    [owner] = local.api.objects["secrets", "default", name]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job_of(local)["metadata"]["uid"])
    assert "ownerReferences" not in local.api.objects["persistentvolumeclaims", "default", "digits"]["metadata"]
    assert "http://s:1/api/v1/runs/default/train/checkpoint" in container_of(local)["command"]


@pytest.mark.parametrize(
    "error", [Invalid("spec.x: no"), Forbidden('jobs is forbidden: User "ada"')], ids=["invalid", "forbidden"]
)
def test_a_job_that_is_refused_leaves_nothing_behind(local, error):
    local.api.refuse["create", "jobs"] = error
    done = local("run", "--checkpoint", "digits", "--name", "train", "--", "true")
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"error: {error.message}"
    assert local.api.named(SECRETS) == local.api.named(PVCS) == local.api.named(JOBS) == []


def test_a_checkpoint_volume_that_was_there_survives_a_refusal(local):
    local.api.put(PVCS, an_object(PVCS, "digits", namespace="default"))
    local.api.refuse["create", "jobs"] = Invalid("no")
    local("run", "--checkpoint", "digits", "--", "true")
    assert local.api.named(PVCS) == ["digits"]


def test_a_name_that_is_taken_meanwhile_is_an_error(local):
    local.api.on_call = lambda verb, plural, name: (
        local.api.put(JOBS, {"metadata": {"name": "train"}}) if (verb, plural) == ("create", "secrets") else None
    )
    done = local("run", "--checkpoint", "digits", "--name", "train", "--", "true")
    assert done.code == 2
    assert "error: the name 'train' is taken in namespace default\n" in done.err
    assert local.api.named(SECRETS) == []


def test_a_user_who_may_only_create_and_replace_secrets_runs_and_leaves_none_behind(local):
    for verb in ("get", "patch", "delete"):
        local.api.refuse[verb, "secrets"] = Forbidden('secrets "x" is forbidden: User "ada"')
    assert local("run", "--checkpoint", "digits", "--name", "train", "--", "true").code == 0
    [secret] = local.api.named(SECRETS)
    assert local.api.objects["secrets", "default", secret]["metadata"]["ownerReferences"][0]["kind"] == "Job"
    local.api.refuse["create", "jobs"] = Invalid("spec.x: no")
    assert local("run", "--checkpoint", "digits", "--name", "other", "--", "true").code == 1
    [other] = set(local.api.named(SECRETS)) - {secret}
    [owner] = local.api.objects["secrets", "default", other]["metadata"]["ownerReferences"]
    assert owner["uid"] != job_of(local)["metadata"]["uid"], (
        "an owner that does not exist: the garbage collector deletes it"
    )


def test_a_dry_run_prints_the_manifest_and_where_it_would_land_and_makes_nothing(local):
    local.server.serves = local.api
    options = ("--gpus", "1", "--memory", "1Gi", "--checkpoint", "c", "--name", "train")
    done = local("run", "--dry-run", *options, "--", "true")
    assert done.code == 0
    documents = list(yaml.safe_load_all(done.out))
    assert [document["kind"] for document in documents] == ["PersistentVolumeClaim", "Secret", "Job"]
    assert set(documents[1]["data"].values()) == {""}  # the token is not shown
    assert "node-1" in done.err
    assert "would" in done.err
    assert local.api.named(JOBS) == local.api.named(SECRETS) == local.api.named(PVCS) == []


def test_a_dry_run_without_the_server_says_so(local):
    done = local("run", "--dry-run", "--name", "train", "--", "true")
    assert done.code == 0
    assert done.err.splitlines()[-1] == "where it would land is not known: this cluster has no Moorage server"


def test_a_dry_run_lets_the_api_server_judge(local):
    local.api.refuse["create", "jobs"] = Invalid("the webhook says no")
    done = local("run", "--dry-run", "--name", "train", "--", "true")
    assert (done.code, done.out) == (1, "")
    assert "error: the webhook says no" in done.err


def test_a_user_who_may_not_list_nodes_can_still_run(local):
    local.api.refuse["list", "nodes"] = Forbidden("no")
    local.api.refuse["list", "pods"] = Forbidden("no")
    done = local("run", "--image", "python:3.12", "--name", "a", "--working-dir", "code:x", "--", "true")
    assert done.code == 2  # the claim is missing, but nothing else is wrong
    errors = [line for line in done.err.splitlines() if line.startswith("error")]
    assert errors == ["error: volume 'code' not found in namespace default"]


def test_a_user_who_may_not_list_nodes_asks_the_server_for_gpu_types(real):
    gpu = {"index": 0, "resource": "nvidia.com/gpu", "state": "free"}
    node = {"name": "gke-1", "type": "nvidia-a100", "ready": True, "cordoned": False}
    nodes = [node | {"gpus": [gpu, gpu | {"state": "used"}]}]
    real.server.answers["/api/v1/gpus"] = {"now": "2026-01-05T12:00:00Z", "nodes": nodes}
    real.api.refuse["list", "nodes"] = Forbidden("no")
    done = real("run", "--image", "x", "--gpus", "1", "--gpu-type", "h100", "--", "true")
    assert "hint: this cluster has nvidia-a100 (1 of 2 free)" in done.err
    done = real("run", "--image", "x", "--gpus", "2", "--gpu-type", "a100", "--name", "a", "--", "true")
    assert done.code == 0, done.err
    affinity = pod_of(real, "a")["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {term["matchExpressions"][0]["key"] for term in terms} > {"cloud.google.com/gke-accelerator"}
    assert {term["matchExpressions"][0]["values"][0] for term in terms} == {"nvidia-a100"}


def test_a_user_who_may_not_list_tenants_gets_the_defaults_from_the_server(real):
    tenant = a_tenant("team", "default", defaults={"cpu": 3, "memory": "5Gi", "image": "team:1"})
    real.server.answers["/api/v1/gpus"] = {"now": "2026-01-05T12:00:00Z", "tenant": tenant}
    for kind in ("nodes", "tenants"):
        real.api.refuse["list", kind] = Forbidden("no")
    done = real("run", "--name", "a", "--", "true")
    assert done.code == 0, done.err
    container = container_of(real, "a")
    assert (container["image"], container["resources"]["limits"]) == ("team:1", {"cpu": "3", "memory": "5Gi"})
    assert ("/api/v1/gpus", {"namespace": "default"}) in real.server.asked


def test_on_a_real_cluster_the_directory_goes_along(real, tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("secret")
    done = real("run", "--image", "python:3.12", "--name", "train", "--", "python", "train.py")
    assert done.code == 0, done.err
    assert f"{tmp_path} is sent along: 1 file, 8 B" in done.err
    [name] = real.api.named(SECRETS)
    secret = real.api.objects["secrets", "default", name]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(secret["data"]["work.tar.gz"]))) as tar:
        assert tar.getnames() == ["train.py"]
    runner = base64.b64decode(secret["data"]["runner.py"]).decode()
    compile(runner, "runner.py", "exec")


def test_from_an_empty_folder_the_command_starts_in_the_working_directory_of_its_image(real, tmp_path):
    done = real("run", "--image", "registry.example.com/train", "--name", "train", "--", "python", "train.py")
    assert done.code == 0, done.err
    note = f"note: {tmp_path} has no files to send: the command starts in the image's working directory"
    assert note in done.err
    assert container_of(real)["command"] == ["python", "train.py"]
    assert "workingDir" not in container_of(real)
    assert real.api.named(SECRETS) == []


def test_credentials_are_not_sent_and_a_note_says_how_to_send_one(real, tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / ".config" / "moorage").mkdir(parents=True)
    (tmp_path / ".config" / "moorage" / "logins.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    done = real("run", "--image", "python:3.12", "--", "python", "train.py")
    assert done.code == 0, done.err
    assert (
        "note: not sent, as credentials are not: .config/moorage/ (credentials), notes.txt (a private key);"
        " to send one, write !PATH in .moorageignore\n"
    ) in done.err
    assert "is sent along: 1 file, 8 B" in done.err


def test_a_home_folder_is_refused(real, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = real("run", "--image", "python:3.12", "--", "true")
    assert done.code == 2
    assert done.err.splitlines()[-2:] == [
        f"error: cannot send the folder {tmp_path}: home folders and folders of the system are not sent",
        "hint: put the needed files into a separate folder, and run the command there",
    ]
    assert real.api.named(SECRETS) == real.api.named(JOBS) == []


def test_errors_are_printed_before_the_directory_is_packed(real, tmp_path):
    (tmp_path / "big.bin").write_bytes(os.urandom(2_000_000))
    done = real("run", "--", "true")
    assert done.err.startswith("error: no image given, and this cluster needs one")
    done = real("run", "--image", "x", "--", "true")
    assert done.code == 2
    assert "at most 900Ki can be sent; the largest files are big.bin (1.9Mi)" in done.err
    assert real.api.named(SECRETS) == []


@pytest.mark.parametrize(("code", "condition"), [(0, "Complete"), (7, "Failed")])
def test_following_prints_the_logs_and_ends_with_the_jobs_own_code(local, code, condition):
    """The pod runs when its log is first asked for, and ends with it."""
    made = {"name": "train-abc", "namespace": "default", "node": "node-1"}

    def scene(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("list", "pods") and ("jobs", "default", "train") in local.api.objects:
            local.api.pod_logs["train-abc"] = ["one", "two"]
            if ("pods", "default", "train-abc") not in local.api.objects:
                local.api.put(PODS, a_run_pod(attempt=1, **made, statuses=[a_container_status(started=NOON)]))
        if verb == "logs":
            local.api.put(PODS, a_run_pod(attempt=1, **made, exit_code=code, phase=""))
            ended = a_condition(condition, reason="BackoffLimitExceeded" if code else "")
            local.api.put(JOBS, job_of(local) | {"status": {"conditions": [ended]}})

    local.api.on_call = scene
    done = local("run", "--follow", "--memory", "1Gi", "--name", "train", "--", "true")
    assert (done.code, done.out) == (code, "one\ntwo\n")
    lines = done.err.splitlines()
    assert lines[-2] == "submitted train; Ctrl-C detaches; the run continues"
    assert lines[-1] == ("train: Succeeded" if not code else "train: Failed (exit code 7); see moor show train")


def test_impersonation_is_passed_on(local):
    local("run", "--as", "eve", "-n", "lab", "--name", "a", "--", "true")
    assert (local.targets[-1].as_user, local.targets[-1].namespace) == ("eve", "lab")
    assert ("jobs", "lab", "a") in local.api.objects


def test_only_five_variables_of_the_caller_are_passed_on(local, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-value")
    local("run", "--name", "a", "--", "true")
    assert "s3cret-value" not in json.dumps(job_of(local, "a"))
