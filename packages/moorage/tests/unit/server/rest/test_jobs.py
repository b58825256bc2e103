"""Runs over HTTP: made as the asker, as `moor run` does it; refused in one shape; shown, followed, cancelled."""

from __future__ import annotations

import asyncio
import json

import pytest

from moorage.model.tenant import TENANTS
from moorage_kube.errors import Forbidden, NotFound, ServerError
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, PVCS, SECRETS
from moorage_testing.readings import a_reading

pytestmark = pytest.mark.anyio

ALL = "/api/v1/jobs"
TRAIN = {"command": ["python", "train.py"], "namespace": "lab", "image": "python:3.12"}


class Asker:
    """ada, with a Kubernetes token; everything the server does for her is done with it."""

    def __init__(self, site):
        self.site, self.api, self.tokens, self.printed = site, site.api, [], {}

        def with_token(token, *_):
            self.tokens.append(token)
            return site.api

        site.api.with_token = with_token
        site.api.logs = self.logs

    async def __call__(self, method, path, body=None, key=None):
        headers = {"authorization": "Bearer kube-token", "content-type": "application/json"}
        if key is not None:
            headers["idempotency-key"] = key
        text = b"" if body is None else json.dumps(body).encode()
        return await self.site.ask(path, method=method, headers=headers, body=text, token=False)

    async def logs(self, pod, namespace, *, tail_lines=None, follow=False, **_):
        if pod not in self.printed:
            raise NotFound(f"pods {pod} not found")
        lines = self.printed[pod]
        if isinstance(lines, Exception):
            raise lines
        for at, line in enumerate(lines if tail_lines is None else lines[len(lines) - tail_lines :]):
            yield f"2026-11-21T12:00:{at:02}Z {line}\n".encode()
        if follow:
            self.end(pod, namespace)

    def end(self, pod, namespace, phase="Succeeded"):
        """The pod has ended, and its Job by it."""
        found = self.api._objects[PODS][namespace, pod]
        self.api.put(PODS, found | {"status": {"phase": phase}})
        job = self.api._objects[JOBS][namespace, found["metadata"]["ownerReferences"][0]["name"]]
        kind = "Complete" if phase == "Succeeded" else "Failed"
        self.api.put(JOBS, job | {"status": {"conditions": [{"type": kind, "status": "True"}]}})


@pytest.fixture
async def ada(site):
    async with site.running():
        site.node("n1", gpus=2, kind="NVIDIA-A100-SXM4-80GB")
        site.node("plain", gpus=0)
        await site.until(lambda: len(site.service.cluster.nodes.all()) == 2)
        yield Asker(site)


def a_process_node(site):
    for name in ("n1", "plain"):
        site.api.remove(NODES, name)
    node = site.node("host", gpus=1)
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": "process://0.1"}
    return site.api.put(NODES, node)


async def test_a_run_is_made_as_the_command_line_makes_it(ada):
    asked = TRAIN | {
        "name": "train",
        "gpus": 1,
        "gpuType": "a100",
        "memory": "8Gi",
        "time": "2h",
        "env": {"A": "1=2"},
    }
    made = await ada("POST", ALL, asked)
    assert made.status == 201
    assert (made.json["name"], made.json["state"], made.json["gpus"], made.json["owner"]) == (
        "train",
        "Waiting",
        1,
        "ada",
    )
    assert made.json["notes"] == []
    assert made.json["command"] == ""
    job = await ada.api.get(JOBS, "train", "lab")
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["command"], container["image"]) == (["python", "train.py"], "python:3.12")
    assert {"name": "A", "value": "1=2"} in container["env"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert (pod["activeDeadlineSeconds"], "workingDir" in container) == (7200, False)
    assert set(ada.tokens) == {"kube-token"}


async def test_a_checkpoint_makes_its_volume_and_a_secret_that_goes_with_the_run(ada):
    made = await ada("POST", ALL, TRAIN | {"checkpoint": "kept:1Gi"})
    assert made.status == 201
    assert "creating the checkpoint volume kept (1Gi)" in made.json["notes"]
    assert (await ada.api.get(PVCS, "kept", "lab"))["spec"]["resources"]["requests"]["storage"] == "1Gi"
    [secret] = (await ada.api.list(SECRETS, "lab")).items
    assert secret["metadata"]["name"].startswith(f"{made.json['name']}.of-")
    assert set(secret["data"]) == {"runner.py", "token"}
    assert secret["metadata"]["ownerReferences"][0]["name"] == made.json["name"]


async def test_a_request_with_the_same_key_makes_one_run_also_where_its_name_is_made_up(ada):
    both = await asyncio.gather(*(ada("POST", ALL, TRAIN | {"checkpoint": "kept"}, key="k") for _ in range(2)))
    assert [one.status for one in both] == [201, 201]
    assert both[0].json["name"] == both[1].json["name"]
    assert len((await ada.api.list(JOBS, "lab")).items) == 1
    other = await ada("POST", ALL, TRAIN | {"cpu": "2"}, key="k")
    assert (other.status, other.json["code"]) == (422, "key_reused")
    assert (await ada("POST", ALL, TRAIN)).json["name"] != both[0].json["name"]


async def test_a_request_that_died_half_way_is_taken_up_by_its_second_try(ada):
    before = ada.api.create

    async def dies(resource, *args, **options):
        if resource == JOBS:
            raise ServerError("killed")
        return await before(resource, *args, **options)

    ada.api.create = dies
    ada.api.delete, kept = None, ada.api.delete  # nobody is there any more to take anything back
    with pytest.raises(TypeError):
        await ada("POST", ALL, TRAIN | {"checkpoint": "kept"}, key="k")
    ada.api.create, ada.api.delete = before, kept
    assert (await ada("POST", ALL, TRAIN | {"checkpoint": "kept"}, key="k")).status == 201
    [job] = (await ada.api.list(JOBS, "lab")).items
    mounted = job["spec"]["template"]["spec"]["volumes"][-1]["secret"]["secretName"]
    assert (await ada.api.get(SECRETS, mounted, "lab"))["metadata"]["ownerReferences"]


async def test_a_dry_run_creates_nothing(ada):
    tried = await ada("POST", ALL, TRAIN | {"checkpoint": "kept", "dryRun": True}, key="k")
    assert (tried.status, tried.json["state"]) == (200, "Waiting")
    for resource in (JOBS, PVCS, SECRETS):
        assert (await ada.api.list(resource, "lab")).items == []


async def test_every_problem_is_in_the_answer_and_the_first_names_the_field(ada):
    body = {
        "command": ["x"],
        "namespace": "lab",
        "gpuType": "t4",
        "gpus": 1,
        "volumes": ["data"],
        "memory": "much",
    }
    refused = await ada("POST", ALL, body)
    assert (refused.status, refused.json["code"], refused.json["field"]) == (422, "invalid", "memory")
    said = refused.json["message"] + refused.json["hint"]
    for words in (
        "invalid memory 'much': use a quantity",
        "GPU type 't4' not found on any node",
        "invalid volume mount 'data'",
        "no image given",
    ):
        assert words in said
    assert "NVIDIA-A100-SXM4-80GB" in refused.json["hint"]


async def test_a_name_that_is_taken_is_a_conflict(ada):
    assert (await ada("POST", ALL, TRAIN | {"name": "train"})).status == 201
    refused = await ada("POST", ALL, TRAIN | {"name": "train"})
    assert (refused.status, refused.json["code"], refused.json["field"]) == (409, "exists", "name")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": "python"}, "command"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {"A\n": "c"}}, "env"),
        ({"env": {"MOORAGE_RUN": "c"}}, "env"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 3}, "gpus"),
        ({"gpuType": "a100"}, "gpuType"),
        ({"time": "soon"}, "time"),
        ({"retries": 1, "memory": "none"}, "retries"),
        ({"retries": 2**31}, "retries"),
        ({"restartLimit": 10000}, "restartLimit"),
        ({"gracePeriodSeconds": 0}, "gracePeriodSeconds"),
        ({"priorityClass": "none-such"}, "priorityClass"),
        ({"volumes": ["data:/data"]}, "volumes"),
        ({"datasets": ["photos:/data"]}, "datasets"),
        ({"workingDir": "code:x"}, "workingDir"),
        ({"checkpoint": "Ä"}, "checkpoint"),
        ({"name": "../x"}, "name"),
        ({"hostPath": "/etc"}, None),
        ({"namespace": "../kube-system"}, "namespace"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_field(ada, body, field):
    refused = await ada("POST", ALL, TRAIN | body)
    assert (refused.status, refused.json["code"], refused.json.get("field")) == (422, "invalid", field)
    assert (await ada.api.list(JOBS, "lab")).items == []


async def test_on_processes_the_node_looks_for_the_program_and_an_image_is_refused(ada):
    a_process_node(ada.site)
    await ada.site.until(
        lambda: [one["metadata"]["name"] for one in ada.site.service.cluster.nodes.all()] == ["host"]
    )
    refused = await ada("POST", ALL, TRAIN)
    assert (refused.status, refused.json["field"]) == (422, "image")
    assert "--host-env" in refused.json["hint"]
    assert (await ada("POST", ALL, TRAIN | {"hostEnv": True})).status == 201
    made = await ada("POST", ALL, {"command": ["no-such-program"], "namespace": "lab"})
    assert made.status == 201
    [container] = (await ada.api.get(JOBS, made.json["name"], "lab"))["spec"]["template"]["spec"]["containers"]
    assert "workingDir" not in container
    names = [one["name"] for one in container["env"]]
    assert names == ["MOORAGE_RUN", "POD_IP"], "nothing of the server's own environment"


async def test_what_the_asker_may_not_read_is_left_to_the_cluster(ada):
    """No claims, tenants or priority classes; but no run is made where no Jobs may be listed."""
    before, secret = ada.api.list, {PVCS, TENANTS}

    async def refuse(resource, *args, **options):
        if resource in secret:
            raise Forbidden(f"{resource} is forbidden")
        return await before(resource, *args, **options)

    ada.api.list = refuse
    assert (await ada("POST", ALL, TRAIN | {"volumes": ["data:/data"]})).status == 201
    secret.add(JOBS)
    refused = await ada("POST", ALL, TRAIN)
    assert (refused.status, refused.json["code"]) == (403, "forbidden")


async def test_who_may_only_look_makes_nothing_and_reads_no_log(ada):
    ada.site.run("train", node="n1")
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("lab", "train"))
    headers = {"content-type": "application/json"}
    body = json.dumps(TRAIN).encode()
    assert (await ada.site.ask(ALL, method="POST", headers=headers, body=body)).status == 403
    for method, path in (("DELETE", "lab/train"), ("GET", "lab/train/logs")):
        assert (await ada.site.ask(f"{ALL}/{path}", method=method)).status == 403
    shown = await ada.site.ask(f"{ALL}/lab/train")
    assert (shown.status, shown.json["history"][0]["pods"][0]["name"]) == (200, "train-x")
    assert "secret.py" not in shown.text


async def test_the_command_of_a_run_is_told_to_who_may_read_its_job(ada):
    ada.site.run("train", node="n1")
    await ada.site.until(lambda: ada.site.service.cluster.pods_of_run("lab", "train"))
    assert (await ada("GET", f"{ALL}/lab/train")).json["command"] == ""
    ada.site.clock.advance(3600)
    ada.api.readers.add(("ada", "lab"))
    shown = (await ada("GET", f"{ALL}/lab/train")).json
    assert (shown["command"], shown["history"][0]["job"]) == ("python secret.py", "train")
    assert shown["node"] == "n1"
    assert (shown["attempts"], shown["gpuType"]) == (1, "NVIDIA-A100-SXM4-80GB")


async def test_an_overview_has_all_that_is_shown_of_a_run(ada):
    ada.site.run("train", node="n1")
    await ada.site.until(lambda: ada.site.service.cluster.pods_of_run("lab", "train"))
    ada.api.readers.add(("ada", "lab"))
    (pod,) = ada.site.service.cluster.pods_of_run("lab", "train")
    ada.site.service.samples.add([a_reading(pod["metadata"]["uid"], at=ada.site.clock.now())])
    about = {"kind": "Pod", "name": "train-x"}
    for number, stamp in enumerate(("2026-11-21T12:00:02Z", "2026-11-21T12:00:01Z")):
        event = {"involvedObject": about, "reason": f"R{number}", "message": "m", "count": 2}
        meta = {"name": f"e{number}", "namespace": "lab"}
        ada.api.put(EVENTS, {"metadata": meta, "lastTimestamp": stamp} | event)
    overview = (await ada("GET", f"{ALL}/lab/train/overview?advice=true")).json
    job, use = [(await ada("GET", f"{ALL}/lab/train{part}")).json for part in ("", "/use")]
    assert job["command"]
    assert use["pods"]
    event = {"message": "m", "about": "pod/train-x", "count": 2}
    assert overview == {
        "job": job,
        "use": use,
        "events": [
            {"at": "2026-11-21T12:00:01Z", "reason": "R1"} | event,
            {"at": "2026-11-21T12:00:02Z", "reason": "R0"} | event,
        ],
        "advice": [],
        "idle": "",
        "checkpointWarning": "",
        "stopping": [],
        "mountProblem": "",
        "mountHint": "",
    }


async def test_an_overview_is_for_those_who_may_list_jobs(ada):
    ada.site.run("train", node="n1")
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("lab", "train"))
    assert (await ada.site.ask(f"{ALL}/lab/train/overview")).status == 403


async def test_labels_are_shown_and_found_by_who_may_read_jobs(ada):
    job = ada.site.run("train", node="n1")
    job["metadata"]["labels"] |= {"project": "vision"}
    ada.api.put(JOBS, job)
    ada.site.run("other", node="n1")
    await ada.site.until(lambda: ada.site.service.cluster.run_names("lab") >= {"train", "other"})
    path = f"{ALL}?selector=project%3Dvision"
    assert (await ada("GET", path)).json["jobs"] == []
    assert (await ada("GET", f"{ALL}/lab/train")).json["labels"] == {}
    ada.site.clock.advance(3600)
    ada.api.readers.add(("ada", "lab"))
    assert [found["name"] for found in (await ada("GET", path)).json["jobs"]] == ["train"]
    assert [found["name"] for found in (await ada("GET", f"{path}&namespace=lab")).json["jobs"]] == ["train"]
    assert (await ada("GET", f"{path}&namespace=elsewhere")).json["jobs"] == []
    assert (await ada("GET", f"{ALL}/lab/train")).json["labels"] == {"project": "vision"}


async def test_a_run_that_is_not_there_is_not_found(ada):
    for method, path in (
        ("GET", "lab/none"),
        ("DELETE", "lab/none"),
        ("GET", "lab/none/logs"),
        ("GET", "lab/A,b/logs"),
    ):
        answer = await ada(method, f"{ALL}/{path}")
        assert (answer.status, answer.json["code"]) == (404, "not_found")


async def test_what_runs_is_cancelled_and_what_has_ended_is_deleted(ada):
    ada.site.run("train", node="n1")
    cancelled = await ada("DELETE", f"{ALL}/lab/train?delete=false")
    assert (cancelled.status, cancelled.json["state"], cancelled.json["reason"]) == (
        200,
        "Cancelled",
        "Cancelled by ada",
    )
    assert (await ada.api.get(JOBS, "train", "lab"))["spec"]["suspend"] is True
    assert (await ada("DELETE", f"{ALL}/lab/train?delete=false")).status == 200
    assert (await ada("DELETE", f"{ALL}/lab/train")).status == 204
    assert (await ada("DELETE", f"{ALL}/lab/train")).status == 404
    ada.site.run("other", node="n1")
    assert (await ada("DELETE", f"{ALL}/lab/other?delete=true")).status == 204
    assert (await ada("DELETE", f"{ALL}/lab/other?delete=perhaps")).status == 400


async def test_a_log_is_what_was_printed_and_its_end_on_request(ada):
    ada.site.run("train", node="n1")
    ada.printed["train-x"] = ["one", "two", "three"]
    path = f"{ALL}/lab/train/logs"
    whole = await ada("GET", path)
    assert (whole.status, whole.text) == (200, "one\ntwo\nthree\n")
    assert whole.headers["content-type"].startswith("text/plain")
    assert (await ada("GET", f"{path}?tail=1")).text == "three\n"
    assert (await ada("GET", f"{path}?tail=-1")).status == 400
    assert (await ada("GET", f"{path}?follow=maybe")).status == 400
    ada.printed["train-x"] = Forbidden("pods/log is forbidden")
    assert (await ada("GET", path)).status == 403
    assert (await ada("GET", f"{path}?follow=true")).status == 403
    ada.site.run("waits")
    assert (await ada("GET", f"{ALL}/lab/waits/logs")).text == ""


async def test_a_log_is_followed_through_the_next_attempt_to_the_runs_end(ada):
    ada.site.run("train")
    ada.printed["train-x"] = ["one", "two"]
    asked = asyncio.create_task(ada("GET", f"{ALL}/lab/train/logs?follow=true"))
    await ada.site.until(
        lambda: any((one.verb, one.resource, one.namespace) == ("list", "pods", "lab") for one in ada.api.calls)
    )
    assert not asked.done()
    ada.site.run("train", node="n1")  # its pod begins, and ends with its log
    answer = await ada.site.until(lambda: asked.done() and asked.result() or ada.site.clock.advance(1))
    assert (answer.status, answer.text) == (200, "one\ntwo\n")


async def test_a_log_that_is_followed_ends_when_the_run_is_deleted(ada):
    ada.site.run("train")
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("lab", "train"))
    asked = asyncio.create_task(ada("GET", f"{ALL}/lab/train/logs?follow=true"))
    await ada.site.until(
        lambda: any((one.verb, one.resource, one.namespace) == ("list", "pods", "lab") for one in ada.api.calls)
    )
    ada.api.remove(JOBS, "train", "lab")
    answer = await ada.site.until(lambda: asked.done() and asked.result() or ada.site.clock.advance(1))
    assert (answer.status, answer.text) == (200, "")
