"""The page of one run, and the pages of nodes and GPU types: what each asker sees, and where names lead."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from moorage.decide.runs.state import PodView, view_run
from moorage.server.pages.jobboard import Fact, job_model
from moorage.server.pages.jobpages import LOG_BYTES, Tail
from moorage_kube.clock import rfc3339
from moorage_kube.errors import ServerError
from moorage_kube.resources import EVENTS, JOBS, NAMESPACES
from moorage_kube.testing.builders import a_condition
from moorage_kube.testing.clock import NOON

pytestmark = pytest.mark.anyio
RUNS = "Runs: those at work first, then those that ended"


async def logs(*_, **__):
    """What a pod has printed."""
    yield b"step 1 loss=2\nstep 2\n"


class Browser:
    """ada, who may read the namespace "team"."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team")}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})
        site.api.logs = logs

    async def get(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Browser(site)


async def known(site, name="train", namespace="team"):
    cluster = site.service.cluster
    await site.until(lambda: cluster.jobs_of_run(namespace, name) and cluster.pods_of_run(namespace, name))


def an_event(name, reason, count):
    return {
        "metadata": {"name": f"{name}.{reason}", "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": name},
        "reason": reason,
        "message": f"why {reason}",
        "count": count,
        "lastTimestamp": rfc3339(NOON),
    }


async def test_a_waiting_run_says_on_top_why_it_waits(ada):
    ada.site.node("n1", gpus=1)
    ada.site.run("train", namespace="team", gpus=4)
    await known(ada.site)
    page = (await ada.get("/jobs/team/train")).page
    headings = ["Status: Waiting", "Log train-x, its last lines", "Requested", "Times and use", "Attempts 1"]
    assert page.texts("h2") == headings
    live = (await ada.get("/jobs/team/train/live")).page
    for part in (page, live):
        assert part.texts(".why-line") == ["Run team/train cannot run on this cluster"]
        explained = ("Holders of its resources, and the queue before it", "/explain/team/train")
        assert explained in part.links(".state-card")


async def test_a_failed_run_says_how_it_ended_and_not_when_it_would_start(ada):
    job = ada.site.run("train", namespace="team", node="n1")
    await known(ada.site)
    message = "Job was active longer than specified deadline"
    failed = a_condition("Failed", reason="DeadlineExceeded", message=message, since=NOON)
    ada.api.put(JOBS, job | {"status": {"conditions": [failed], "failed": 1}})
    await ada.site.until(lambda: ada.site.service.cluster.runs()[0].state.ended)
    answer = await ada.get("/jobs/team/train/live")
    assert answer.status == 286
    assert answer.page.texts(".why-line") == ["Run team/train failed at 21 Nov 12:00 UTC (0s ago), after 0s on n1"]
    assert "It reached its time limit (--time), and was stopped" in answer.page.texts(".state-card p")
    assert "longer than" not in answer.text


async def test_a_running_run_has_its_facts_and_links(ada):
    ada.site.node("n1")
    ada.site.run("train", namespace="team", node="n1")
    ada.api.put(EVENTS, an_event("train-x", "Pulled", 3))
    await known(ada.site)
    await ada.site.until(lambda: ada.site.service.cluster.nodes.get("n1"))
    page = (await ada.get("/jobs/team/train")).page
    headings = ["Log train-x, its last lines", "Requested", "Times and use", "Attempts 1", "Events 1"]
    assert page.texts("h2") == ["Status: Running", *headings]
    assert page.links() == [
        ("team", "/jobs?whose=all&namespace=team"), ("Run again", "/jobs/new?from=team/train"),
        ("Cancel", "/jobs/team/train/cancel"), ("ada", "/jobs?owner=ada"),
        ("Download", "/api/v1/jobs/team/train/logs"), ("1 × a100", "/gpus/a100"), ("n1", "/nodes/n1"),
        ("train-x", "/jobs/team/train?pod=train-x#log"), ("n1", "/nodes/n1"),
    ]  # fmt: skip
    event = {"What": "Pulled why Pulled", "About": "pod train-x", "Count": "3", "Age": "0s"}
    for part in (page, (await ada.get("/jobs/team/train/events")).page):
        assert part.rows("Events of its Jobs and pods, newest first") == [event]
    assert (page.texts("#command"), page.texts("#log-text")) == (["python secret.py"], ["step 1 loss=2\nstep 2\n"])
    assert (await ada.get("/jobs/team/train/log?q=LOSS")).text == "step 1 loss=2\n"
    assert page.element("#download-log").attributes["download"] == "train.log"


async def test_who_may_not_get_its_job_sees_what_everybody_may(site):
    async with site.running():
        site.node("n1")
        site.run("train", namespace="team", node="n1")
        site.api.put(EVENTS, an_event("train-x", "Pulled", 3))
        await known(site)
        answer = await site.ask("/jobs/team/train")
        assert [word for word in ("secret.py", "Pulled", "/jobs/new") if word in answer.text] == []
        hidden = "Its command, limits and events are for its owner and the members of its namespace."
        assert answer.page.texts("p.quiet") == [hidden]
        assert ("n1", "/nodes/n1") in answer.page.links()


async def test_jobs_are_listed_by_owner_and_by_namespace(ada):
    ada.site.run("train", namespace="team", owner="ada")
    ada.site.run("other", namespace="lab", owner="bob")
    await known(ada.site)
    await known(ada.site, "other", "lab")
    for query, heading, runs in (
        ("", "Jobs", ["train ada team"]),
        ("?owner=bob", "Jobs of bob", ["other bob lab"]),
        ("?namespace=lab", "Jobs in namespace lab", ["other bob lab"]),
    ):
        page = (await ada.get(f"/jobs{query}")).page
        assert (page.heading, [row["Run"] for row in page.rows(RUNS)]) == (heading, runs)


async def test_jobs_are_listed_since_a_moment(ada):
    ada.site.run("train", namespace="team", owner="ada")
    await known(ada.site)
    day = (await ada.get("/jobs?since=24h")).page
    assert (day.heading, [row["Run"] for row in day.rows(RUNS)]) == ("Jobs of the last 24h", ["train ada team"])
    ada.site.clock.advance(48 * 3600)
    [empty] = (await ada.get("/jobs?since=24h")).page.texts(".empty")
    assert empty.startswith("You have no run of the last 24h. ")
    assert (await ada.get("/jobs?since=soon")).status == 400


async def test_a_node_and_a_gpu_type_have_pages_for_everybody(site):
    async with site.running():
        site.node("n1")
        site.run("train", node="n1")
        await known(site, namespace="lab")
        node = await site.ask("/nodes/n1")
        assert (node.status, node.page.facts["CPUs"]) == (200, "1 of 16 requested 6 %")
        train, ada, place = (
            ("train", "/jobs/lab/train"), ("ada", "/jobs?owner=ada"), ("lab", "/jobs?whose=all&namespace=lab"),
        )  # fmt: skip
        links = [("n1", "/nodes/n1"), ada, train, train, ada, place, ("n1", "/nodes/n1")]
        assert node.page.links() == [("a100", "/gpus/a100"), *links]
        assert (node.page.texts(".run"), node.page.texts(".who a")) == (["train"], ["ada"])
        assert (await site.ask("/gpus/a100")).page.links() == links
        assert (await site.ask("/nodes/n2")).status == (await site.ask("/gpus/h100")).status == 404
        assert (await site.ask("/nodes/n1/live")).page.links() == node.page.links()
        assert (await site.ask("/gpus/a100/live")).page.links() == links


async def test_a_page_opened_before_the_first_pod_gets_the_log_when_there_is_one(ada):
    ada.site.node("n1")
    ada.site.run("train", namespace="team", node="n1", pod=False)
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("team", "train"))
    log = (await ada.get("/jobs/team/train")).page.element("#log")
    assert log.attributes["hx-get"] == "/jobs/team/train/log/part"
    ada.site.run("train", namespace="team", node="n1")
    await known(ada.site)
    part = (await ada.get("/jobs/team/train/log/part")).page
    assert (part.texts("#log-text"), part.all("html")) == (["step 1 loss=2\nstep 2\n"], [])
    assert "hx-get" not in part.element("#log").attributes


async def test_who_waits_for_a_gpu_is_named_by_links(site):
    async with site.running():
        site.node("n1", gpus=1)
        site.run("wide", gpus=4)
        await site.until(lambda: site.service.cluster.pods_of_run("lab", "wide"))
        links = (await site.ask("/")).page.links('section[aria-labelledby="h-queue"]')
        assert {("wide", "/jobs/lab/wide"), ("more than any node has", "/explain/lab/wide")} <= set(links)


def test_a_search_keeps_the_last_lines_that_match_in_any_case():
    tail = Tail("LOSS")
    for chunk in (b"step 1 lo", b"ss=2\nstep 2\n", b"Loss=1"):
        tail.add(chunk)
    assert tail.text() == "step 1 loss=2\nLoss=1"
    whole = Tail()
    whole.add(b"x" * (LOG_BYTES + 9))
    assert len(whole.text()) == LOG_BYTES


def test_facts_of_a_run_that_ended():
    created, started, ended = (rfc3339(NOON - timedelta(minutes=minutes)) for minutes in (60, 50, 10))
    labels = {"moorage.dev/run": "train", "project": "digits", "batch.kubernetes.io/job-name": "train"}
    job = {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "creationTimestamp": created,
            "labels": labels,
            "annotations": {"moorage.dev/owner": "ada", "moorage.dev/checkpoint": "ckpt"},
        },
        "spec": {
            "template": {
                "spec": {
                    "activeDeadlineSeconds": 7200,
                    "containers": [
                        {"image": "python:3.12", "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}
                    ],
                    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
                }
            }
        },
        "status": {"conditions": [{"type": "Complete", "status": "True"}], "completionTime": ended},
    }
    terminated = {"exitCode": 0, "startedAt": started, "finishedAt": ended, "reason": "Completed"}
    pod = {
        "metadata": {
            "name": "train-x",
            "namespace": "team",
            "creationTimestamp": created,
            "labels": {"moorage.dev/run": "train"},
            "annotations": {"localcluster.moorage.dev/peak-memory-bytes": str(2**30)},
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"memory": "4Gi"}}}]},
        "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": terminated}}]},
    }
    model = job_model(view_run([job], [pod]), job, NOON, private=True, chosen="train-x")
    assert model.asks == (
        Fact(name="GPUs", text="none"),
        Fact(name="Image", text="python:3.12"),
        Fact(name="CPU", text="2"),
        Fact(name="Memory limit", text="4Gi"),
        Fact(name="Time limit", text="2h"),
        Fact(name="Volume", text="data", href="/volumes/team/data"),
    )
    assert [(fact.name, fact.text or fact.when.words) for fact in model.times] == [
        ("Node", "n1"),
        ("Created", "1h"),
        ("Waited", "10m"),
        ("Started", "50m"),
        ("Ran for", "40m"),
        ("Peak memory", "1Gi"),
        ("Ended", "10m"),
        ("Checkpoints on", "ckpt"),
        ("Last checkpoint", "none yet"),
    ]
    assert model.labels == (("project", "digits"),)
    [attempt] = model.attempts
    [row] = attempt.pods
    assert (row.node, row.took, row.exit_code, row.memory, row.is_chosen) == ("n1", "40m", "0", "1Gi", True)
    public = job_model(view_run([job], [pod]), job, NOON, private=False)
    assert [fact.name for fact in (*public.asks, public.times[0])] == ["GPUs", "Node"]
    assert "Peak memory" not in [fact.name for fact in public.times]
    assert (public.labels, public.attempts[0].pods[0].memory) == ((), "")


@pytest.mark.parametrize(
    ("pod", "ran"),
    [
        pytest.param({"phase": "Running", "started": NOON - timedelta(minutes=9)}, "9m", id="running: until now"),
        pytest.param(
            {"phase": "Failed", "started": NOON - timedelta(minutes=9), "ended": NOON - timedelta(minutes=4)},
            "5m",
            id="ended",
        ),
        pytest.param({"phase": "Pending"}, "", id="not begun"),
        pytest.param({"phase": "Failed", "gone": True}, "", id="gone before it had a node"),
        pytest.param({"phase": "Failed", "gone": True, "node": "n1"}, "unknown", id="gone: nobody saw it begin"),
        pytest.param(
            {"phase": "Failed", "gone": True, "node": "n1", "started": NOON - timedelta(days=9)},
            "unknown",
            id="lost with its node",
        ),
    ],
)
def test_how_long_a_pod_ran_is_unknown_where_nobody_saw_its_end(pod, ran):
    run = view_run([{"metadata": {"name": "train"}, "spec": {"template": {"spec": {}}}}], [])
    attempt = replace(run.attempts[0], pods=(PodView(name="train-x", attempt=1, **pod),))
    model = job_model(replace(run, attempts=(attempt,)), {}, NOON, private=True)
    [row] = model.attempts[0].pods
    assert (row.took, row.is_gone, model.has_gone_pods) == (ran, "gone" in pod, "gone" in pod)


async def test_a_log_of_a_node_that_is_away_cannot_be_read_now(ada):
    async def away(*_, **__):
        raise ServerError("dial tcp 10.0.0.7:10250: connect: no route to host")
        yield b""

    ada.api.logs = away
    ada.site.node("n1")
    ada.site.run("train", namespace="team", node="n1")
    await known(ada.site)
    page = (await ada.get("/jobs/team/train")).page
    assert page.note == "Dial tcp 10.0.0.7:10250: connect: no route to host. Try again in a moment."
    assert page.texts("#log .empty") == ["The log cannot be read now."]


async def test_a_run_that_was_created_just_now_has_its_page(ada, monkeypatch):
    ada.site.run("train", namespace="team", pod=False)
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("team", "train"))
    monkeypatch.setattr(ada.site.service.cluster, "jobs_of_run", lambda *_: [])  # not seen yet
    page = await ada.get("/jobs/team/train")
    assert (page.status, page.page.texts("#command")) == (200, ["python secret.py"])
