"""What the routes answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from datetime import timedelta

import pytest
from msgspec.structs import replace

from moorage.decide.usage.intervals import Interval, Open
from moorage.server.pages.clusterpages import Board
from moorage_kube.clock import rfc3339
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, PVCS, SUBJECTACCESSREVIEWS
from moorage_kube.testing.clock import NOON

HOUR = timedelta(hours=1)
GPU = "nvidia.com/gpu"

QUEUE = "Runs that wait, in the order in which the scheduler tries them"


@pytest.mark.anyio
async def test_gpus_shows_every_gpu_and_nothing_private(site):
    site.node()
    site.run(node="n1")
    async with site.running():
        answer = await site.ask("/api/v1/gpus")
    assert answer.status == 200
    assert answer.json["totals"] == {
        "total": 2,
        "used": 1,
        "free": 1,
        "unavailable": 0,
        "reserved": 0,
        "fragmented": 1,
        "stranded": 0,
        "together": 1,
    }
    assert answer.json["users"] == [{"user": "ada", "gpus": 1, "types": {"a100": 1}}]
    assert [(gpu["state"], gpu["owner"]) for gpu in answer.json["nodes"][0]["gpus"]] == [
        ("used", "ada"),
        ("free", ""),
    ]
    assert "secret.py" not in answer.text


@pytest.mark.anyio
async def test_jobs_shows_runs_without_their_commands_and_can_be_narrowed(site):
    site.node()
    site.run(
        "a", node="n1", notes={"moorage.dev/checkpoint": "c", "moorage.dev/checkpoint-at": "2026-11-21T11:00:00Z"}
    )
    site.run("b", owner="bob")
    async with site.running():
        answer = await site.ask("/api/v1/jobs")
        assert [(job["name"], job["state"], job["owner"]) for job in answer.json["jobs"]] == [
            ("a", "Running", "ada"),
            ("b", "Waiting", "bob"),
        ]
        assert answer.json["jobs"][0] == {
            "namespace": "lab",
            "name": "a",
            "owner": "ada",
            "state": "Running",
            "reason": "",
            "gpus": 1,
            "gpuType": "a100",
            "node": "n1",
            "created": rfc3339(NOON),
            "started": rfc3339(NOON),
            "ended": None,
            "attempts": 1,
            "restarts": 0,
            "restartLimit": 20,
            "retries": 0,
            "exitCode": None,
            "checkpoint": "c",
            "checkpointAt": "2026-11-21T11:00:00Z",
            "checkpointCheckedAt": None,
            "checkpointFrom": "",
            "idleSince": None,
            "idleNext": "",
            "idleNextAt": None,
        }
        assert "secret.py" not in answer.text
        for query, names in (("owner=bob", ["b"]), ("state=Running", ["a"]), ("namespace=x", [])):
            assert [job["name"] for job in (await site.ask(f"/api/v1/jobs?{query}")).json["jobs"]] == names
        wrong = await site.ask("/api/v1/jobs?state=Asleep")
        assert (wrong.status, wrong.json["field"]) == (400, "state")


def an_interval(uid, owner, hours, gpus=1):
    return Interval(
        pod_uid=uid,
        namespace="lab",
        pod=uid,
        run=uid,
        attempt=1,
        owner=owner,
        node="n1",
        gpu_type="a100",
        gpus=gpus,
        cpu_milli=1000,
        memory_bytes=2**30,
        started_at=NOON - hours * HOUR,
        ended_at=NOON,
        last_seen_at=NOON,
    )


@pytest.mark.anyio
async def test_top_sums_gpu_hours_in_the_window(site):
    async with site.running():
        site.service.usage.apply([Open(an_interval("u1", "ada", 30, 2)), Open(an_interval("u2", "bob", 3))])
        answer = await site.ask("/api/v1/top")
        assert answer.json["since"] == rfc3339(NOON - 24 * HOUR)
        assert [(row["name"], row["gpuHours"]) for row in answer.json["rows"]] == [("ada", 48.0), ("bob", 3.0)]
        answer = await site.ask("/api/v1/top?since=2h&by=run")
        assert [(row["name"], row["gpuHours"]) for row in answer.json["rows"]] == [
            ("lab/u1", 4.0),
            ("lab/u2", 2.0),
        ]
        window = f"since={rfc3339(NOON - 30 * HOUR)}&until={rfc3339(NOON - 29 * HOUR)}&by=type"
        assert [
            (row["name"], row["gpuHours"]) for row in (await site.ask(f"/api/v1/top?{window}")).json["rows"]
        ] == [("a100", 2.0)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=soon", "since"),
        ("by=colour", "by"),
        ("since=1h&until=2h", "since"),
        ("until=2026-01-32", "until"),
        ("until=2026-01-01", "since"),
        ("since=", "since"),
        ("since=999999999d", "since"),
    ],
)
async def test_top_names_the_parameter_that_is_wrong(site, query, field):
    async with site.running():
        answer = await site.ask(f"/api/v1/top?{query}")
        assert (answer.status, answer.json["field"]) == (400, field)


AS_ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}


@pytest.mark.anyio
async def test_explain_answers_for_a_run_a_job_and_a_pod(site):
    site.node(gpus=1)
    site.run("first", node="n1")
    site.run("second")
    async with site.running():
        for name in ("second", "second-x"):
            answer = await site.ask(f"/api/v1/explain/lab/{name}")
            assert (answer.status, answer.json["state"], answer.json["run"]) == (200, "waiting", "second")
            assert answer.json["heldBy"][0]["owner"] == "ada"
            assert answer.json["text"].startswith("run lab/second waits: needs 1 GPU; none is free")
        assert (await site.ask("/api/v1/explain/lab/first")).json["state"] == "running"
        gone = await site.ask("/api/v1/explain/lab/third")
        assert (gone.status, gone.json["code"]) == (404, "not_found")
        assert (await site.ask("/api/v1/explain/other/second")).status == 404


@pytest.mark.anyio
async def test_explain_judges_a_run_without_a_pod_by_the_pod_it_would_make(site):
    site.node(gpus=1)
    site.run("held", pod=False)
    site.api.readers.add(("ada", "lab"))
    said = 'pods "held-x" is forbidden: exceeded quota: team'
    site.api.put(
        EVENTS,
        {"metadata": {"namespace": "lab", "name": "e1"}, "involvedObject": {"name": "held"}, "message": said},
    )
    async with site.running():
        answer = await site.ask("/api/v1/explain/lab/held", **AS_ADA)
        assert (answer.json["state"], answer.json["quota"]) == ("waiting", said)
        everybody = (await site.ask("/api/v1/explain/lab/held")).json
        assert (everybody["public"], everybody["quota"]) == (True, "its namespace's quota is used up")


@pytest.mark.anyio
async def test_explain_names_the_volume_that_is_missing(site):
    site.node()
    site.api.put(PVCS, {"metadata": {"namespace": "lab", "name": "data"}})
    job = site.run("train", pod=False)
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in ("data", "gone")]
    job["spec"]["template"]["spec"]["volumes"] = volumes
    site.api.put(JOBS, job)
    site.api.readers.add(("ada", "lab"))
    async with site.running():
        answer = await site.ask("/api/v1/explain/lab/train", **AS_ADA)
        assert answer.json["missingClaims"] == ["gone"]
        assert "volume lab/gone does not exist" in answer.json["text"]


SECRETS = (
    "swordfish",
    "vault-claim",
    "hush-label",
    "hush-value",
    "hush-image",
    "hush-config",
    "7777m",
    "hush-zone",
)


def a_secretive_run(site):
    """A waiting run that holds a secret in every field that its owner may fill."""
    job = site.run("quiet", pod=False, owner="bob")
    template = job["spec"]["template"]
    template["metadata"]["labels"] |= {"hush-label": "hush-value"}
    template["metadata"]["annotations"] |= {"moorage.dev/command": "python swordfish.py"}
    main = template["spec"]["containers"][0]
    main |= {"command": ["swordfish"], "args": ["swordfish"], "image": "hush-image"}
    main["env"] = [{"name": "swordfish", "value": "swordfish"}]
    main["envFrom"] = [{"configMapRef": {"name": "hush-config"}}]
    main["resources"]["limits"]["cpu"] = "7777m"
    template["spec"]["nodeSelector"] = {"hush-zone": "hush-value"}
    template["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "vault-claim"}}]
    return site.api.put(JOBS, job)


@pytest.mark.anyio
@pytest.mark.parametrize("with_pod", [False, True])
@pytest.mark.parametrize("selector", [True, False])
@pytest.mark.parametrize("headers", [{}, {"headers": {"authorization": "Bearer kube-token"}, "token": False}])
async def test_others_are_told_nothing_but_public_facts(site, headers, with_pod, selector):
    site.node(gpus=2)
    site.run("first", node="n1", gpus=2)
    job = a_secretive_run(site)
    if not selector:
        del job["spec"]["template"]["spec"]["nodeSelector"]
        site.api.put(JOBS, job)
    said = 'persistentvolumeclaim "vault-claim" not found, swordfish'
    if with_pod:
        template = job["spec"]["template"]
        owner = {"controller": True, "uid": job["metadata"]["uid"], "kind": "Job", "name": "quiet"}
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        site.api.put(
            PODS,
            {
                "metadata": {
                    "namespace": "lab",
                    "name": "quiet-x",
                    "labels": template["metadata"]["labels"],
                    "annotations": template["metadata"]["annotations"],
                    "ownerReferences": [owner],
                },
                "spec": template["spec"] | {"schedulingGates": [{"name": "hush-value/gate"}]},
                "status": {"phase": "Pending", "conditions": [condition]},
            },
        )
    events = {"metadata": {"namespace": "lab", "name": "e"}, "reason": "FailedCreate", "message": said}
    site.api.put(EVENTS, events | {"involvedObject": {"name": "quiet"}})
    async with site.running():
        for path in (
            "/api/v1/explain/lab/quiet",
            "/api/v1/explain/lab/first",
            "/api/v1/gpus",
            "/api/v1/jobs",
            "/",
        ):
            answer = await site.ask(path, **headers)
            assert answer.status == 200
            assert [word for word in SECRETS if word in answer.text] == [], path
        assert (await site.ask("/api/v1/explain/lab/quiet", **headers)).json["public"] is True


@pytest.mark.anyio
async def test_who_may_read_the_pods_of_a_namespace_is_told_all(site):
    site.node()
    a_secretive_run(site)
    site.api.readers.add(("ada", "lab"))
    async with site.running():
        for _ in range(2):
            answer = await site.ask("/api/v1/explain/lab/quiet", **AS_ADA)
            assert (answer.json["public"], answer.json["asks"]["cpu"]) == (False, "7777m")
    reviews = [call.body["spec"] for call in site.api.calls if call.resource == SUBJECTACCESSREVIEWS.plural]
    attributes = {"verb": "get", "resource": "pods", "namespace": "lab"}
    assert reviews == [{"user": "ada", "groups": [], "resourceAttributes": attributes}]


@pytest.mark.anyio
async def test_a_pod_that_is_not_made_yet_is_explained(site):
    site.node(gpus=1)
    site.run("first", node="n1", notes={"moorage.dev/expected-seconds": "3600"})
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"metadata": {"namespace": "lab", "name": "new"}, "spec": {"containers": [container]}}
    async with site.running():

        async def post(body, raw=False):
            data = body if raw else json.dumps(body).encode()
            return await site.ask("/api/v1/explain", method="POST", body=data, **AS_ADA)

        answer = await post({"pod": pod})
        assert (answer.status, answer.json["state"], answer.json["public"]) == (200, "waiting", False)
        assert answer.json["earliest"]["after"]["run"] == "first"
        pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}]
        assert (await post({"pod": pod, "claims": []})).json["missingClaims"] == ["gone"]
        assert (await post({"pod": pod})).json["missingClaims"] == []
        refused = (await post({"pod": pod, "refused": "exceeded quota: team"})).json
        assert (refused["quota"], refused["short"]) == ("exceeded quota: team", "quota exceeded")
        for body, status in ((b"{", 400), (b"[]", 422), (b'{"pod": {"spec": 3}}', 422), (b" " * 4_000_000, 413)):
            assert (await post(body, raw=True)).status == status
        pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "many"
        assert (await post({"pod": pod})).status == 422


@pytest.mark.anyio
async def test_past_runs_tell_when_a_holder_is_usually_done(site):
    site.node(gpus=1)
    site.run("train-x7k2", node="n1")
    site.run("second")
    steps = []
    for at in range(10):
        start = NOON - timedelta(days=1, hours=at)
        steps.append(
            Open(
                Interval(
                    pod_uid=f"past-{at}",
                    namespace="lab",
                    pod=f"past-{at}",
                    run=f"train-{at}",
                    attempt=1,
                    owner="ada",
                    node="n1",
                    gpu_type="a100",
                    gpus=1,
                    cpu_milli=1000,
                    memory_bytes=2**30,
                    started_at=start,
                    ended_at=start + timedelta(minutes=10 * (at + 1)),
                    last_seen_at=start,
                )
            )
        )
    site.service.usage.apply(steps)
    async with site.running():
        answer = (await site.ask("/api/v1/explain/lab/second")).json
        [holder] = answer["heldBy"]
        assert holder["usual"] == {"seconds": 4800, "done": 8, "of": 10, "known": 10, "likeness": "name"}
        assert (holder["sure"], answer["earliest"]) == ("usual", None)
        assert answer["likely"]["at"] == rfc3339(NOON + timedelta(seconds=4800))
        assert "usually done by about 13:20 UTC (8 of 10 like it: same name)" in answer["text"]
        page = await site.ask("/")
        [row] = page.page.rows(QUEUE)
        likely = "usually starts by about 13:20 UTC (8 of 10 similar runs ended in time)"
        assert row["Why it waits"] == f"needs 1 GPU; none is free {likely}"


@pytest.mark.anyio
async def test_explain_goes_on_where_claims_and_events_may_not_be_read(site):
    site.node()
    site.run()
    async with site.running():
        site.api.failing = Forbidden("no")
        answer = await site.ask("/api/v1/explain/lab/train")
        site.api.failing = None
        assert (answer.status, answer.json["state"]) == (200, "fits")


# -- checkpoints -----------------------------------------------------------------------------------------

RUN_TOKEN = "the-runs-own-token"
PATH = "/api/v1/runs/lab/train/checkpoint"
SHA = {"moorage.dev/report-token-sha256": hashlib.sha256(RUN_TOKEN.encode()).hexdigest()}


def report(newest="2026-11-21T11:59:00Z", checked="2026-11-21T12:00:00Z", **more):
    return json.dumps({"newest": newest, "checked": checked} | more).encode()


async def tell(site, body, token=RUN_TOKEN, path=PATH):
    return await site.ask(
        path, method="POST", body=body, token=False, headers={"authorization": f"Bearer {token}"} if token else {}
    )


async def notes(site):
    return (await site.api.get(JOBS, "train", "lab"))["metadata"]["annotations"]


def patches(site):
    return [call for call in site.api.calls if call.verb == "patch"]


@pytest.mark.anyio
async def test_a_report_is_written_on_the_runs_first_job(site):
    site.run(notes=SHA)
    async with site.running():
        answer = await tell(site, report(files=3))
        assert (answer.status, answer.json) == (200, {"recorded": True})
        found = await notes(site)
        assert found["moorage.dev/checkpoint-at"] == "2026-11-21T11:59:00Z"
        assert found["moorage.dev/checkpoint-checked-at"] == "2026-11-21T12:00:00Z"
        assert found["moorage.dev/owner"] == "ada"
        assert (await tell(site, report(newest=None, checked="2026-11-21T14:00:30+02:00"))).status == 200
        found = await notes(site)
        assert "moorage.dev/checkpoint-at" not in found
        assert found["moorage.dev/checkpoint-checked-at"] == "2026-11-21T12:00:30Z"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "token", ["", "wrong", "the-page-token", "kube-token", SHA["moorage.dev/report-token-sha256"]]
)
async def test_only_the_runs_own_token_may_report(site, token):
    site.run(notes=SHA)
    site.run("tokenless")
    async with site.running():
        for path in (PATH, "/api/v1/runs/lab/none/checkpoint", "/api/v1/runs/lab/tokenless/checkpoint"):
            answer = await tell(site, report(), token=token, path=path)
            assert (answer.status, answer.json["code"]) == (401, "unauthorized")
        assert patches(site) == []


@pytest.mark.anyio
async def test_a_token_of_one_run_is_of_no_use_to_another(site):
    site.run("train", notes=SHA)
    site.run("other", notes={"moorage.dev/report-token-sha256": "0" * 64})
    async with site.running():
        assert (await tell(site, report(), path="/api/v1/runs/lab/other/checkpoint")).status == 401


@pytest.mark.anyio
async def test_reports_without_news_are_written_every_five_seconds_and_news_at_once(site):
    site.run(notes=SHA)
    async with site.running():
        recorded = []
        for seconds, newest in ((0, "a"), (1, "a"), (3, "a"), (0, "b"), (4, "b"), (1, "b"), (0, "b")):
            site.clock.advance(seconds)
            body = report(newest=f"2026-11-21T11:5{'ab'.index(newest)}:00Z")
            recorded.append((await tell(site, body)).json["recorded"])
        assert recorded == [True, False, False, True, False, True, False]
        assert len(patches(site)) == 3


@pytest.mark.anyio
async def test_a_report_that_could_not_be_written_is_tried_again(site):
    site.run(notes=SHA)
    async with site.running():
        site.api.failing = ServerError("away")
        answer = await tell(site, report())
        assert (answer.status, answer.json["code"]) == (503, "kubernetes_unavailable")
        site.api.failing = None
        assert (await tell(site, report())).json == {"recorded": True}


@pytest.mark.anyio
async def test_a_job_that_the_watch_has_not_brought_is_asked_for(site):
    site.run(notes=SHA)  # no informer runs
    assert (await tell(site, report())).status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, None),
        (b"{", 400, None),
        (b"\xff", 400, None),
        (b"{}", 422, None),
        (report(newest="yesterday"), 422, "newest"),
        (report(newest="2026-11-21T11:59:00"), 422, "newest"),
        (report(checked=None), 422, "checked"),
        (report(files=-1), 422, "files"),
        (report(files="3"), 422, "files"),
        (report(files=1, more="x" * 5000), 413, None),
    ],
)
async def test_a_report_that_is_none_is_refused_with_the_field(site, body, status, field):
    site.run(notes=SHA)
    async with site.running():
        answer = await tell(site, body)
        assert (answer.status, answer.json.get("field")) == (status, field)
        assert patches(site) == []


# -- metrics, events, page -------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_metrics_count_gpus_by_node_type_and_state(site):
    site.node()
    site.run(node="n1")
    async with site.running():
        site.service.usage.apply([Open(an_interval("u1", "ada", 2))])
        text = (await site.ask("/metrics")).text
    assert 'moorage_gpus{node="n1",state="used",type="a100"} 1.0' in text
    assert 'moorage_gpus{node="n1",state="free",type="a100"} 1.0' in text
    assert 'moorage_gpus{node="n1",state="unavailable",type="a100"} 0.0' in text
    assert 'moorage_gpus_held{user="ada"} 1.0' in text
    assert 'moorage_gpu_use_24h_seconds{user="ada"}' in text


@pytest.mark.anyio
async def test_metrics_count_requests_by_route_and_statements(site):
    site.node()
    async with site.running():
        await site.ask("/api/v1/gpus")
        text = (await site.ask("/metrics")).text
    assert 'moorage_http_requests_total{code="200",method="GET",route="/api/v1/gpus"} 1.0' in text
    assert 'moorage_http_request_duration_seconds_count{method="GET",route="/api/v1/gpus"} 1.0' in text
    assert 'moorage_sql_duration_seconds_count{database="usage",verb="read"}' in text
    assert 'moorage_informer_behind_seconds{resource="nodes"} 0.0' in text


async def next_event(chunks, name):
    """Data of the next event of that name."""
    async with asyncio.timeout(120):
        while True:
            text = (await chunks.get())["body"].decode()
            for block in text.split("\n\n"):
                lines = block.splitlines()
                if f"event: {name}" in lines:
                    return "\n".join(line[6:] for line in lines if line.startswith("data: "))


@pytest.mark.anyio
async def test_a_change_is_told_at_once_and_several_within_a_second_as_one(site):
    site.node()
    async with site.running(), site.stream("/events/gpus") as chunks:
        assert json.loads(await next_event(chunks, "change"))["free"] == 2
        await site.until(lambda: site.service.cluster._dirty.is_set() or site.service.cluster.version >= 1)
        version = site.service.cluster.version
        site.run("a", node="n1")
        site.run("b", node="n1")
        await site.until(lambda: len(site.service.cluster.pods) == 2 and len(site.service.cluster.jobs) == 2)
        assert site.service.cluster.version <= version + 1  # the clock stands still: one step at most
        site.clock.advance(1.1)
        await site.until(lambda: site.service.cluster.version > version)
        site.clock.advance(1.1)

        async def told():
            while json.loads(await next_event(chunks, "change"))["used"] != 2:
                site.clock.advance(1.1)
            return True

        assert await told()


@pytest.mark.anyio
async def test_heartbeats_of_nodes_and_foreign_pods_tell_nothing(site):
    node = site.node()
    async with site.running():
        await site.until(lambda: site.service.cluster.version >= 1)
        site.clock.advance(2)
        await site.until(lambda: not site.service.cluster._dirty.is_set())
        version = site.service.cluster.version
        node["status"]["conditions"][0]["lastHeartbeatTime"] = rfc3339(NOON + HOUR)
        beat = site.api.put(NODES, node)
        site.api.put(
            PODS, {"metadata": {"namespace": "x", "name": "web"}, "spec": {"containers": [{}]}, "status": {}}
        )
        await site.until(lambda: site.service.cluster.pods.get("web", "x"))
        await site.until(
            lambda: (
                site.service.cluster.nodes.get("n1")["metadata"]["resourceVersion"]
                == beat["metadata"]["resourceVersion"]
            )
        )
        assert not site.service.cluster._dirty.is_set()
        assert site.service.cluster.version == version


@pytest.mark.anyio
async def test_the_pages_stream_sends_every_part_and_then_only_what_changed(site):
    site.node()
    async with site.running(), site.stream("/events/page") as chunks:
        assert "2" in await next_event(chunks, "summary")
        site.run("train", node="n1", owner="<b>ada</b>")

        async def until_shown():
            while "train" not in (text := await next_event(chunks, "node-n1")):
                site.clock.advance(1.1)
            return text

        site.clock.advance(1.1)
        moving = asyncio.create_task(until_shown())
        await site.until(lambda: site.clock.advance(1.1) or moving.done())
        text = await moving
        assert "&lt;b&gt;ada&lt;/b&gt;" in text
        assert "<b>ada" not in text


def names_in(events):
    return [line.removeprefix("event: ") for line in events.decode().splitlines() if line.startswith("event: ")]


@pytest.mark.anyio
async def test_of_many_nodes_only_those_that_changed_are_sent(site):
    for at in range(20):
        site.node(f"n{at:02}", gpus=8)
    site.run("old", node="n01")
    async with site.running():
        board = Board(site.service.context)
        live = await board.parts()
        first = live.since("")
        assert {"gpus", "runs"} <= set(names_in(first))
        assert not [name for name in names_in(first) if name.startswith("node-")]
        mark = live.mark
        site.clock.advance(3600)  # ages go on in the browser
        assert set(names_in((await board.parts()).since(mark))) <= {"users"}
        version = site.service.cluster.version
        site.run("new", node="n03")
        await site.until(lambda: site.service.cluster.pods.get("new-x", "lab"))
        await site.until(lambda: site.clock.advance(3600) or site.service.cluster.version > version)
        events, mark = (await board.parts()).since(mark), live.mark
        assert [name for name in names_in(events) if name.startswith("node-")] == ["node-n03"]
        assert "gpus" not in names_in(events)
        assert len(events) < len(first) / 2
        version = site.service.cluster.version
        site.node("n90")
        await site.until(lambda: site.service.cluster.nodes.get("n90"))
        await site.until(lambda: site.clock.advance(3600) or site.service.cluster.version > version)
        events = (await board.parts()).since(mark)
        assert "gpus" in names_in(events)
        assert not [name for name in names_in(events) if name.startswith(("node-", "type-"))]


class HeldPast:
    """Past runs that are read as long as the test wants."""

    def __init__(self, past):
        self._past, self.may_end = past, asyncio.Event()
        self.may_end.set()

    async def history(self):
        await self.may_end.wait()
        return await self._past.history()


@pytest.mark.anyio
async def test_a_change_reaches_open_pages_while_what_takes_long_is_found_out(site):
    site.node()
    async with site.running():
        past = HeldPast(site.service.context.past)
        board = Board(replace(site.service.context, past=past))
        seen = []

        async def look():
            async for events in board.events(""):
                seen.append(events.decode())

        looking = asyncio.create_task(look())
        await site.until(lambda: seen)
        past.may_end.clear()
        site.run("train", node="n1")
        await site.until(lambda: site.clock.advance(3600) or "train" in "".join(seen[1:]))
        assert {"node-n1", "rows-runs"} & set(names_in("".join(seen[1:]).encode()))
        past.may_end.set()
        looking.cancel()


@pytest.mark.anyio
async def test_a_page_of_another_server_gets_every_part(site):
    site.node()
    async with site.running():
        live = await Board(site.service.context).parts()
        assert live.since(live.mark) == b""
        assert live.since("abcd-99") == live.since("") == live.since(f"{live.epoch}-x")


@pytest.mark.anyio
async def test_the_page_of_a_run_says_what_the_command_line_says(site):
    site.node(gpus=1)
    site.run("first", node="n1")
    site.run("second", owner="<i>bob</i>")
    async with site.running():
        answer = await site.ask("/explain/lab/second")
        assert answer.status == 200
        assert answer.page.heading == "Run lab/second waits: needs 1 GPU; none is free"
        assert answer.page.links() == [
            ("ada", "/jobs?owner=ada"), ("first", "/jobs/lab/first"), ("n1", "/nodes/n1"), ("n1", "/nodes/n1"),
            ("All GPUs and the queue", "/"),
        ]  # fmt: skip
        assert "<i>bob" not in answer.text
        assert (await site.ask("/explain/lab/none")).status == 404


@pytest.mark.anyio
async def test_streams_end_when_the_server_stops(site):
    async with site.stream("/events/gpus") as chunks:
        async with site.running():
            await next_event(chunks, "change")
        async with asyncio.timeout(120):
            while (await chunks.get()).get("more_body"):
                pass


@pytest.mark.anyio
async def test_the_page_shows_gpus_queue_runs_and_users(site):
    site.node(gpus=1)
    site.run("first", node="n1")
    site.run("second", owner="bob")
    site.run("podless", pod=False, owner="eve")
    async with site.running():
        site.service.usage.apply([Open(an_interval("u1", "cleo", 2))])
        page = (await site.ask("/")).page
    why = "needs 1 GPU; none is free"
    waiting = [(row["Run"], row["Why it waits"]) for row in page.rows(QUEUE)]
    assert waiting == [("podless eve lab", why), ("second bob lab", why)]
    runs = page.rows("Runs with their owners: those at work first, then those that ended, newest first")
    assert [row["Run"] for row in runs] == ["first ada lab", "podless eve lab", "second bob lab"]
    users = page.rows("GPU-hours of the last 7 days by person, most first")
    assert [row["User"] for row in users] == ["cleo"]
    assert page.texts('[sse-swap="spoken"]') == ["0 of 1 GPUs free, 2 runs wait."]


@pytest.mark.anyio
async def test_the_page_of_an_empty_cluster_says_what_to_do(site):
    async with site.running():
        page = (await site.ask("/")).page
    assert [text.partition(".")[0] for text in page.texts(".empty")] == [
        "No node of this cluster has GPUs", "Nothing waits for a GPU", "GPUs were not used in the last 7 days",
        "No run yet",
    ]  # fmt: skip


@pytest.mark.anyio
async def test_the_page_goes_on_when_the_history_cannot_be_read(site, tmp_path, caplog):
    site.node()
    async with site.running():
        with contextlib.closing(sqlite3.connect(tmp_path / "usage.db")) as database:
            database.execute("DROP TABLE intervals")
        assert (await site.ask("/")).status == 200
        answer = await site.ask("/api/v1/top")
        assert (answer.status, answer.json["code"]) == (503, "unavailable")
