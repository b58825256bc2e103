"""The form of a new run: checked, refused beside its fields, started, and filled in from a run that exists."""

from __future__ import annotations

import base64
import io
import tarfile
from urllib.parse import urlencode

import pytest

from moorage.decide.runs.code import Code, code_of
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, ClusterFacts, RunRequest
from moorage.model.labels import user_labels
from moorage.model.names import GIT_ANNOTATION, SECRET_LABEL
from moorage.server.pages.jobform import given_of, missing_notes, read_job
from moorage_kube.meta import labels_of
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES, NODES, PVCS, SECRETS
from moorage_testing.multipart import CONTENT_TYPE, a_form

pytestmark = pytest.mark.anyio


class Browser:
    """ada, whose form posts act with her Kubernetes token."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def get(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)

    async def post(self, path, **form):
        headers = {
            "authorization": "Bearer kube-token",
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)

    async def upload(self, *files, **form):
        fields = [(name, None, text.encode()) for name, text in form.items()]
        body = a_form(*fields, *(("upload", name, content) for name, content in files))
        headers = {"authorization": "Bearer kube-token", "content-type": CONTENT_TYPE}
        return await self.site.ask("/jobs/new", method="POST", headers=headers, body=body, token=False)

    def jobs(self):
        return self.api.list(JOBS, "team")


@pytest.fixture
async def ada(site):
    async with site.running():
        site.node("n1", gpus=2)
        await site.until(lambda: site.service.cluster.nodes.get("n1"))
        yield Browser(site)


async def test_the_form_says_what_is_free_and_what_an_empty_field_means(ada):
    ada.api.put(PVCS, {"metadata": {"name": "data", "namespace": "team"}, "spec": {}})
    answer = await ada.get("/jobs/new")
    assert answer.status == 200
    assert [answer.page.texts(selector) for selector in (
        "#h-gpus", "#f-gpuType option", "#h-memory", "#h-volumes", "#f-namespace option",
    )] == [
        ["2 of 2 are free, at most 2 on one node."],
        ["any", "a100: 2 of 2 free, 2 on one node"],
        ["Its limit, such as 8Gi; 2Gi if empty (the default)."],
        ["NAME:/PATH or NAME:/PATH:ro, one on each line. There are data."],
        ["team"],
    ]  # fmt: skip


async def test_a_check_says_where_it_would_start_and_shows_the_command_and_creates_nothing(ada):
    form = {
        "command": "python train.py",
        "namespace": "team",
        "name": "train",
        "image": "python:3.12",
        "gpus": "1",
    }
    answer = await ada.post("/jobs/new", **form, do="check")
    page, line = answer.page, "moor run -n team --name train --gpus 1 --image python:3.12 -- python train.py"
    assert (answer.status, page.element("#line").text) == (200, line)
    assert page.texts("#verdict p") == ["Run team/train would start now, on n1."]
    assert form.items() <= page.form("/jobs/new").items()
    assert (await ada.jobs()).items == []


async def test_a_check_says_why_it_would_wait(ada):
    ada.site.run("other", node="n1", gpus=2)
    await ada.site.until(lambda: ada.site.service.cluster.pods_of_run("lab", "other"))
    form = {"command": "python train.py", "namespace": "team", "name": "train", "image": "x", "gpus": "1"}
    page = await ada.post("/jobs/new", **form, do="check")
    assert page.page.texts("#verdict p")[0] == "Run team/train waits: needs 1 GPU; none is free."


async def test_a_run_is_started_once_by_a_form_that_is_sent_twice(ada):
    form = {"command": "echo $HOME", "namespace": "team", "image": "python:3.12", "key": "k", "memory": "1Gi"}
    first = await ada.post("/jobs/new", **form)
    again = await ada.post("/jobs/new", **form)
    [job] = (await ada.jobs()).items
    name = job["metadata"]["name"]
    assert (first.status, first.headers["location"]) == (303, f"/jobs/team/{name}?done=started&what=team%2F{name}")
    assert again.headers["location"] == first.headers["location"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["sh", "-c", "echo $HOME"]


async def test_each_refusal_stands_beside_its_field_and_what_was_typed_stays(ada):
    form = {
        "command": "python train.py",
        "namespace": "team",
        "name": "Train",
        "memory": "much",
        "time": "soon",
        "image": "python:3.12",
        "retries": "3",
        "volumes": "data:/data",
    }
    answer = await ada.post("/jobs/new", **form)
    page = answer.page
    assert (answer.status, page.note) == (422, "4 fields need a change.")
    assert {element.attributes["id"]: element.text.partition(":")[0] for element in page.all("small.wrong")} == {
        "p-name": "Invalid run name 'Train'",
        "p-memory": "Invalid memory 'much'",
        "p-time": "Invalid time limit 'soon'",
        "p-volumes": "Volume 'data' not found in namespace team; create it first",
    }
    assert page.element("#more").attributes.keys() >= {"open"}
    assert form.items() <= page.form("/jobs/new").items()
    assert (await ada.jobs()).items == []


@pytest.mark.parametrize(
    ("form", "name", "says"),
    [
        ({"command": "  "}, "command", "No command given: write the command to run, such as python train.py."),
        ({"command": "python 'a"}, "command", "Invalid command: no closing quotation; close each quotation mark."),
        ({"gpus": "many"}, "gpus", "Number of GPUs must be a whole number from 0 to 2147483647, not 'many'."),
        ({"env": "A"}, "env", "Invalid variable 'A': use NAME=VALUE, one on each line."),
        ({"labels": "vision"}, "labels", "Invalid label 'vision': use KEY=VALUE, one on each line."),
        ({"labels": "moorage.dev/run=x"}, "labels",
         "Label 'moorage.dev/run' is reserved; use a key without a prefix, or one outside moorage.dev,"
         " kubernetes.io, k8s.io."),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_told_beside_its_field(ada, form, name, says):
    page = await ada.post("/jobs/new", **({"command": "true", "namespace": "team", "image": "x"} | form))
    assert (page.status, page.page.problem_at(name)) == (422, says)


async def test_a_run_has_the_labels_of_its_form(ada):
    form = {"command": "true", "namespace": "team", "image": "x", "labels": "project=vision\r\n\r\nstage=test\r\n"}
    check = await ada.post("/jobs/new", **form, do="check")
    line = "moor run -n team --image x --label project=vision --label stage=test -- true"
    assert check.page.element("#line").text == line
    await ada.post("/jobs/new", **form)
    [job] = (await ada.jobs()).items
    assert user_labels(labels_of(job)) == {"project": "vision", "stage": "test"}


async def test_run_again_fills_the_form_in(ada):
    ada.site.run("train", namespace="team", gpus=2)
    assert (await ada.get("/jobs/new?from=team/train")).page.form("/jobs/new")["gpus"] == "2"
    missing = await ada.get("/jobs/new?from=team/none")
    assert (missing.status, missing.json["message"]) == (404, "run 'none' not found in namespace team")


async def test_who_may_only_look_gets_no_form(site):
    async with site.running():
        answer = await site.ask("/jobs/new")
        assert answer.status == 403


REQUEST = RunRequest(
    command=("python", "train.py", "two words", "$(X)"),
    namespace="team",
    name="train",
    image="python:3.12",
    gpus=2,
    cpu="4",
    memory="8Gi",
    time="90m",
    checkpoint="ckpt",
    volumes=("data:/data:ro",),
    datasets=("images:/images",),
    env=("A=1",),
    labels=("stage=test", "project=vision"),
    working_dir="code:project",
    retries=2,
    restart_limit=3,
)


def test_the_form_of_a_run_asks_for_the_same_again():
    facts = ClusterFacts(
        nodes=None,
        claims={"data": "1Gi", "ckpt": "1Gi", "code": "1Gi"},
        datasets={"images": ("Ready", "dataset-images")},
    )
    plan = plan_run(REQUEST, Caller(user="ada", cwd=""), facts)
    assert plan.problems == ()
    given = given_of(plan.job)
    assert given == {
        "command": "python train.py 'two words' '$(X)'",
        "namespace": "team",
        "image": "python:3.12",
        "gpus": "2",
        "cpu": "4",
        "memory": "8Gi",
        "time": "1h30m",
        "checkpoint": "ckpt",
        "env": "A=1",
        "volumes": "data:/data:ro",
        "datasets": "images:/images",
        "workingDir": "code:project",
        "retries": "2",
        "restartLimit": "3",
        "labels": "project=vision\nstage=test",
    }
    assert read_job(given).volumes == ["data:/data:ro"]
    assert missing_notes(plan.job) == ()


async def test_a_run_that_is_started_again_uses_its_stored_code(ada, tmp_path):
    node = ada.site.node("n1")
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": "process://1"}
    ada.api.put(NODES, node)
    folder = tmp_path / ".moorage" / "code" / "d1"
    folder.mkdir(parents=True)
    caller = Caller(
        user="ada", cwd=str(tmp_path), program="/bin/true", salt="123456", token="t", runner="r",
        code=Code(digest="d1", files=1, bytes=1, folder=str(folder)),
    )  # fmt: skip
    request = RunRequest(command=("true",), name="train", namespace="team")
    ada.api.put(JOBS, plan_run(request, caller, ClusterFacts(nodes=None, process_runtime=True)).job)
    answer = await ada.get("/jobs/new?from=team/train")
    given = answer.page.form("/jobs/new")
    assert given["codeOf"] == "team/train"
    assert "It starts in a new copy of the code of that run." in answer.text
    again = await ada.post("/jobs/new", **given | {"name": "again"})
    assert again.status == 303, again.text
    [job] = [job for job in (await ada.jobs()).items if labels_of(job)["moorage.dev/run"] == "again"]
    assert code_of(job).folder == str(folder)
    assert code_of(job).outputs.startswith(f"{tmp_path}/.moorage/again.")
    folder.rmdir()
    refused = await ada.post("/jobs/new", **given | {"name": "third", "key": "other"})
    assert f"The code of that run was deleted: {folder}" in refused.text
    assert not (await ada.get("/jobs/new?from=team/train")).page.form("/jobs/new")["codeOf"]


def test_a_run_with_a_sent_folder_says_that_it_is_not_sent_again():
    caller = Caller(user="ada", cwd="/home/ada", archive=b"x", token="t", runner="r")
    plan = plan_run(RunRequest(command=("true",), image="x"), caller, ClusterFacts(nodes=None))
    assert missing_notes(plan.job) == ("The files that were sent with it are not sent again: choose them again.",)
    assert given_of(plan.job)["command"] == "true"


def test_git_and_names_of_secrets_are_filled_in_and_values_that_look_like_credentials_are_not():
    request = RunRequest(
        command=("python", "train.py"), namespace="team", image="python:3.12", git="git@host:team/code.git@main",
        env=("HF_TOKEN=hf_0123456789abcdef", "LR=0.1"), secrets=("git", "KEY=wandb:key"),
    )  # fmt: skip
    job = plan_run(request, Caller(user="ada", cwd="", token="t", runner="r"), ClusterFacts(nodes=None)).job
    given = given_of(job)
    assert given == {
        "command": "python train.py",
        "namespace": "team",
        "image": "python:3.12",
        "gpus": "0",
        "cpu": "1",
        "env": "LR=0.1",
        "git": "git@host:team/code.git@main",
        "secrets": "git\nKEY=wandb:key",
        "retries": "0",
    }
    job["metadata"]["annotations"][GIT_ANNOTATION] = "git@host:team/code.git@0123"
    assert given_of(job)["git"] == "git@host:team/code.git@0123"
    assert missing_notes(job)[0] == (
        "It uses the commit of that run, git@host:team/code.git@0123. For the newest, write a branch after the @."
    )
    del job["metadata"]["annotations"][GIT_ANNOTATION]
    body = read_job(given)
    assert (body.git, body.secrets) == (request.git, ["git", "KEY=wandb:key"])
    assert missing_notes(job) == (
        "Variables that look like credentials are not copied: HF_TOKEN. Use secrets for them.",
    )


async def test_a_run_takes_its_code_from_git_and_a_token_from_a_secret(ada):
    labels = {SECRET_LABEL: "git"}
    meta = {"name": "git.secret-keys", "namespace": "team", "labels": labels}
    ada.api.put(CONFIGMAPS, {"metadata": meta, "data": {"GIT_TOKEN": ""}})
    page = (await ada.get("/jobs/new?namespace=team")).page
    assert page.element("#h-secrets").text.endswith("There are git.")
    form = {
        "command": "python train.py",
        "namespace": "team",
        "image": "x",
        "git": "https://h/a@main",
        "secrets": "git",
    }
    check = await ada.post("/jobs/new", **form, do="check")
    line = "moor run -n team --git https://h/a@main --image x --secret git -- python train.py"
    assert check.page.element("#line").text == line
    refused = await ada.post("/jobs/new", **form | {"git": "https://me:tok@h/a", "secrets": "none"})
    assert (refused.status, refused.page.problem_at("secrets")) == (
        422, "Secret 'none' not found in namespace team; available: git.",
    )  # fmt: skip
    assert refused.page.problem_at("git").startswith("The git address contains a user or token")
    assert (await ada.post("/jobs/new", **form)).status == 303
    [job] = (await ada.jobs()).items
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert (container["envFrom"], "--git" in container["command"]) == ([{"secretRef": {"name": "git"}}], True)
    page = (await ada.get(f"/jobs/new?from=team/{job['metadata']['name']}")).page
    assert form.items() <= page.form("/jobs/new").items()


async def test_the_page_of_a_folder_fills_in_its_code_and_no_other_field(ada):
    ada.api.put(PVCS, {"metadata": {"name": "code", "namespace": "team"}, "spec": {}})
    given = (await ada.get("/jobs/new?namespace=team&workingDir=code:a%20b&command=true")).page.form("/jobs/new")
    assert (given["workingDir"], given["command"]) == ("code:a b", "")


async def test_a_run_without_code_needs_its_file_in_the_image(ada):
    form = {"command": "python train.py", "namespace": "team", "image": "python:3.12", "memory": "1Gi"}
    check = await ada.post("/jobs/new", **form, do="check")
    assert check.page.texts(".note") == ["The image must have the file train.py: the run has no code."]
    node = ada.site.node("n1")
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": "process://1"}
    ada.api.put(NODES, node)
    await ada.site.until(lambda: ada.site.service.cluster.on_processes())
    del form["image"]
    for do in ("check", "start"):
        answer = await ada.post("/jobs/new", **form, do=do)
        assert (answer.status, answer.page.problem_at("command")) == (
            422, "The file train.py is missing: the run has no code;"
            " upload it, give a git address or a folder of a volume, or write its full path.",
        )  # fmt: skip
    assert (await ada.jobs()).items == []


async def test_uploaded_files_are_checked_then_started_without_choosing_them_again(ada):
    form = {"command": "python train.py", "namespace": "team", "image": "x", "memory": "1Gi", "key": "k"}
    files = [("train.py", b"print(1)"), ("C:\\a\\run.sh", b"#!/bin/sh")]
    check = await ada.upload(*files, **form, do="check")
    assert (check.status, check.page.texts(".note")) == (
        200, ["2 files, 17 B are uploaded: choose files again only to replace them."],
    )  # fmt: skip
    given = check.page.form("/jobs/new")
    assert (await ada.upload(("other.py", b""), **given)).page.problem_at("upload") == (
        "The upload has no file train.py; choose files that have it, or change the command."
    )
    assert (await ada.upload(**given | {"git": "https://h/a"})).page.problem_at("git").startswith("Two places")
    started = await ada.upload(("", b""), **given)
    assert started.status == 303, started.text
    [job] = (await ada.jobs()).items
    assert (code_of(job).files, "--unpack" in job["spec"]["template"]["spec"]["containers"][0]["command"]) == (
        2,
        True,
    )
    [secret] = (await ada.api.list(SECRETS, "team")).items
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(secret["data"]["work.tar.gz"]))) as archive:
        modes = {member.name: oct(member.mode) for member in archive}
    assert modes == {"run.sh": "0o755", "train.py": "0o644"}
