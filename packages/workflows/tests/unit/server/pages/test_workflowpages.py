"""The pages of workflows: who sees what, how the graph is folded, and what its buttons do."""

from __future__ import annotations

import base64
import html
import io
import json
import tarfile
from urllib.parse import urlencode

import msgspec
import pytest
from tests.workflowrecords import a_node_record, a_workflow_record

from moorage.model.argo import INSTANCE_LABEL, NODE_NAME_ANNOTATION, OUR_INSTANCE, WORKFLOW_LABEL, WORKFLOWS
from moorage.server.pages.jobpages import STOP_ASKING
from moorage.server.pages.refusals import SIGN_IN
from moorage_kube.clock import rfc3339
from moorage_kube.resources import NAMESPACES, PODS
from moorage_kube.testing.builders import a_pod, an_object, an_owner
from moorage_kube.testing.clock import NOON
from moorage_kube.testing.waiting import until
from moorage_testing.workflowplayer import Ends, Player
from moorage_workflows.model.workflow import (
    RESUME_ANNOTATION,
    RETRY_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    Artifact,
    NodePhase,
    Outputs,
)
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio
EVIL = "<script>alert(1)</script>"
TIMES = "When each step ran, in the order of their start"
STEP = {"name": "step", "container": {"image": "busybox"}}
ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}
STEPS = {"name": "main", "steps": [[{"name": "a", "template": "step"}], [{"name": "b", "template": "step"}]]}


class Reader:
    """ada, who may do everything with workflows of namespace team."""

    def __init__(self, site):
        self.site, self.api, self.store = site, site.api, site.service.context.part(LocalRecords)
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def get(self, path, **fields):
        return await self.site.ask(f"{path}?{urlencode(fields, doseq=True)}" if fields else path, **ADA)

    async def post(self, path, **form):
        headers = ADA["headers"] | {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)

    async def keep(self, *templates, name="train", table=None, live=True, plays=True, steps=None, **fields):
        """A workflow that was played to its end, or for so many steps; its records, and its object."""
        spec = {"entrypoint": "main", "templates": [STEP, *templates]}
        manifest = an_object(WORKFLOWS, name, namespace="team", spec=spec)
        player = Player(manifest, *([table] if table else []), name=name)
        if steps is None and plays:
            player.play(together=True)
        for _ in range(steps or 0):
            player.step()
        record = msgspec.structs.replace(
            player.workflow, uid=f"uid-{name}", namespace="team", owner="ada", created_at=rfc3339(NOON), **fields
        )
        await self.store.begin(record)
        await self.store.load(record.uid, "operator")
        await self.store.save(record.uid, "operator", tuple(player.nodes.values()), record)
        if live:
            made = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
            made["metadata"] = made["metadata"] | {"uid": record.uid, "creationTimestamp": rfc3339(NOON)}
            status = {"phase": record.phase, "progress": f"{record.done}/{record.total}"}
            self.api.put(WORKFLOWS, made | {"status": {key: value for key, value in status.items() if value}})
        return player

    async def live(self, name="train"):
        return await self.api.get(WORKFLOWS, name, "team")


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Reader(site)


def loop(count):
    return {
        "name": "main",
        "dag": {"tasks": [{"name": "fan", "template": "step", "withSequence": {"count": count}}]},
    }


def labelled(page):
    """Addresses of links by the words that a screen reader says of them."""
    return {link.attributes["aria-label"]: link.attributes["href"] for link in page.page.all("a[aria-label]")}


# -- the list


async def test_workflows_are_listed_with_those_that_are_gone(ada):
    await ada.keep(STEPS)
    await ada.keep(STEPS, name="older", live=False, gone_at=rfc3339(NOON))
    page = await ada.get("/workflows")
    assert page.status == 200
    rows = page.page.rows("Workflows with their owners: active ones first, then the newest")
    assert [(row["Workflow"], row["State"], row["Steps"]) for row in rows] == [
        ("train team", "Succeeded", "2 of 2"), ("older ada team", "Succeeded deleted", "2 of 2"),
    ]  # fmt: skip
    assert {(name, f"/workflows/team/{name}") for name in ("train", "older")} <= set(page.page.links("tbody"))
    assert page.page.texts('nav [aria-current="page"]') == ["Workflows"]
    assert (await ada.get("/workflows/live")).text in page.text


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"state": "Failed"}, ["bad"]),
        ({"state": "Running"}, []),
        ({"q": "go"}, ["good"]),
        ({"namespace": "team"}, ["bad", "good"]),
        ({"namespace": "other"}, []),
        ({"namespace": "no namespace"}, []),
    ],
)
async def test_the_list_is_filtered_by_state_text_and_namespace(ada, fields, names):
    await ada.keep(STEPS, name="good")
    await ada.keep(STEPS, name="bad", table=lambda _: Ends(exit_code=1))
    page = await ada.get("/workflows", **fields)
    assert sorted(page.page.texts("a.name")) == names


async def test_without_workflows_the_page_says_how_to_submit_one(ada):
    assert (await ada.get("/workflows")).page.texts(".empty code") == ["moor workflow submit FILE"]


@pytest.mark.parametrize("path", ["/workflows", "/workflows/live", "/workflows/team/train", "/crons"])
async def test_who_only_looks_is_sent_to_sign_in_and_strangers_see_nothing(ada, path):
    await ada.keep(STEPS)
    assert (await ada.site.ask(path)).status == 403
    assert (await ada.site.ask(path, token=False)).status == 401
    assert SIGN_IN[0] == "/login"


async def test_without_a_right_no_workflow_is_listed_and_no_button_shown(ada):
    await ada.keep(STEPS)
    ada.api.readers.clear()
    [empty] = (await ada.get("/workflows")).page.texts(".empty")
    assert empty.startswith("No workflow yet. ")
    assert (await ada.get("/workflows/team/train")).page.buttons() == []
    assert (await ada.site.ask("/workflows/team/train/delete", headers=ADA["headers"], token=False)).status == 403


# -- one workflow


async def test_a_workflow_shows_its_steps_after_each_other_and_when_they_ran(ada):
    await ada.keep(STEPS)
    page = await ada.get("/workflows/team/train")
    assert page.status == 200
    assert list(labelled(page)) == ["a: Succeeded, 1s", "b: Succeeded, 1s"]
    assert page.page.texts(".legend li") == ["2 done", "took 2s"]
    assert [list(row.values()) for row in page.page.rows(TIMES)] == [
        ["a Succeeded", "began after 0s", "1s"], ["b Succeeded", "began after 1s", "1s"],
    ]  # fmt: skip
    assert len(page.page.all(".line")) == 1


async def test_an_ended_workflow_is_asked_for_no_more(ada):
    await ada.keep(STEPS)
    assert "/workflows/team/train/live" not in (await ada.get("/workflows/team/train")).text
    assert (await ada.get("/workflows/team/train/live")).status == STOP_ASKING


async def test_a_workflow_that_goes_on_is_asked_for_each_second_with_the_boxes_that_are_open(ada):
    await ada.keep(loop(30), steps=3)
    page = await ada.get("/workflows/team/train", open="x", shut="y", at="train")
    asked = "/workflows/team/train/live?open=x&shut=y&at=train"
    assert [
        each.attributes["hx-get"] for each in page.page.all("[hx-get]") if "/live" in each.attributes["hx-get"]
    ] == [asked]
    part = await ada.site.ask(asked, **ADA)
    assert part.status == 200
    assert [each.attributes["id"] for each in part.page.all('div[hx-swap-oob="innerHTML"]')] == [
        "live-state", "live-graph", "live-step", "live-times",
    ]  # fmt: skip


async def test_the_bar_of_a_workflow_shows_how_many_steps_failed(ada):
    await ada.keep(loop(20), table=lambda order: Ends(exit_code=int("(3:" in order.record.name)))
    page = await ada.get("/workflows/team/train")
    bar = [(each.attributes["class"], each.attributes["width"]) for each in page.page.all(".summary svg.bar rect")]
    assert bar == [("b-free", "20"), ("b-dead", "1")]


async def test_a_loop_of_thousands_is_one_box_that_opens_by_ranges_and_then_by_items(ada):
    await ada.keep(loop(1900), table=lambda order: Ends(exit_code=int("(77:" in order.record.display_name)))
    page = await ada.get("/workflows/team/train")
    assert list(labelled(page)) == ["fan: 1 failed, 1,899 done", "Open fan"]
    assert len(page.body) < 60_000
    opened = await ada.get(labelled(page)["Open fan"])
    assert "fan 50–99: 1 failed, 49 done" in labelled(opened)
    items = await ada.get(labelled(opened)["Open fan 50–99"])
    assert "fan(77:77): Failed, 1s" in labelled(items)
    closed = await ada.get(labelled(items)["Close fan"])
    assert labelled(closed).keys() == labelled(page).keys()


async def test_a_folded_loop_names_what_failed_first(ada):
    await ada.keep(loop(100), table=lambda order: Ends(exit_code=int("(77:" in order.record.display_name)))
    page = await ada.get("/workflows/team/train")
    panel = (await ada.get(labelled(page)["fan: 1 failed, 99 done"].partition("#")[0])).page
    assert panel.texts("h3") == ["Steps within"]
    assert panel.texts("#step li a")[:2] == ["fan(77:77)", "fan(0:0)"]
    assert "and 80 more" in panel.text


def a_node(name="a", **fields):
    times = {"started_at": "2026-03-01T11:00:00Z", "finished_at": "2026-03-01T11:01:00Z"}
    given = {"id": f"id-{name}", "phase": NodePhase.SUCCEEDED, "template": "step", "host": "n1"}
    return a_node_record(f"train[0].{name}", **given | times | {"pod_name": f"train-step-{name}"} | fields)


async def add(ada, *nodes):
    await ada.store.save("uid-train", "operator", nodes)


async def test_the_panel_of_a_step_tells_all_of_it_as_text(ada):
    await ada.keep(STEPS, plays=False)
    outputs = Outputs(
        parameters={"score": EVIL},
        result="0.9",
        exit_code="3",
        artifacts=(
            Artifact(name="model", key="train/pod/model.tgz", size_bytes=2048),
            Artifact(name="data", location={"s3": {"key": "x"}}),
            Artifact(name="old", key="k", is_deleted=True),
        ),
    )
    node = a_node(
        phase=NodePhase.FAILED,
        message=f"exit code 3 {EVIL}",
        inputs={"parameters": {"lr": "0.1"}},
        outputs=outputs,
    )
    await add(ada, node)
    answer = await ada.get("/workflows/team/train", at="id-a")
    assert ("exit code 3 &lt;script&gt;alert" in answer.text, "<script>alert" in answer.text) == (True, False)
    page = answer.page
    want = {"lr": "0.1", "score": EVIL, "Node": "n1", "Duration": "1m", "Exit code": "3"}
    assert want.items() <= page.facts.items()
    assert page.texts("#step li") == ["model 2Ki", "data stored by s3", "old deleted"]
    href = "/api/v1/workflows/team/train/artifacts/id-a/model?uid=uid-train"
    assert {("model", href), ("n1", "/nodes/n1")} <= set(page.links())
    assert [link.attributes["download"] for link in page.all("a[download]")] == ["model.tgz"]


async def test_the_log_of_a_step_is_that_of_its_pod_while_it_exists(ada):
    await ada.keep(STEPS, plays=False)
    await add(ada, a_node())
    gone = await ada.get("/workflows/team/train/log", at="id-a")
    assert (gone.status, gone.text) == (STOP_ASKING, "The pod was deleted, and its log is not stored.")
    kept = Outputs(artifacts=(Artifact(name="main-logs", key="k"),))
    await add(ada, a_node("b", outputs=kept))
    artifact = "The pod was deleted. Its log is the artifact main-logs of this step."
    assert (await ada.get("/workflows/team/train/log", at="id-b")).text == artifact
    ada.api.put(PODS, a_pod("train-step-a", namespace="team", phase="Succeeded"))

    async def lines(*_, **__):
        yield f"epoch 1 {EVIL}\n".encode()

    ada.api.logs = lines
    log = await ada.get("/workflows/team/train/log", at="id-a")
    assert (log.status, log.text) == (STOP_ASKING, f"epoch 1 {html.escape(EVIL)}\n")
    log = (await ada.get("/workflows/team/train", at="id-a")).page.element("#log-text")
    assert log.attributes["hx-get"] == "/workflows/team/train/log?at=id-a"


async def keep_pod(ada, *, workflow="train", name="train-step-a", log=b""):
    """A pod of a step that ran on n1, whose log is kept, and which is gone."""
    notes = {
        NODE_NAME_ANNOTATION: f"{workflow}[0].a",
        "localcluster.moorage.dev/peak-memory-bytes": str(3 << 20),
    }
    pod = a_pod(
        name,
        namespace="team",
        uid=f"pod-{name}",
        labels={WORKFLOW_LABEL: workflow},
        annotations=notes,
        owner=an_owner("Workflow", workflow),
        node="n1",
        limits={"memory": "6Mi"},
        exit_code=1,
        started=NOON,
        finished=NOON,
    )
    keeper, uid = ada.site.service.keeper, pod["metadata"]["uid"]

    async def until_kept(check):
        async def is_wanted():
            return check(await keeper.read_pod(uid))

        await until("the record of the pod", is_wanted)

    ada.api.put(PODS, pod)
    await until_kept(lambda kept: kept is not None)
    keeper._folder.append(uid, log)
    ada.api.remove(PODS, name, "team")
    await until_kept(lambda kept: kept.gone is not None)
    return uid


async def test_the_log_and_the_memory_of_a_step_are_kept_when_its_pod_is_gone(ada):
    await ada.keep(STEPS, plays=False)
    await add(ada, a_node(phase=NodePhase.FAILED))
    uid = await keep_pod(ada, log=f"2026-03-01T11:00:00Z epoch 1 {EVIL}\n".encode())
    log = await ada.get("/workflows/team/train/log", at="id-a")
    assert (log.status, log.text) == (STOP_ASKING, f"epoch 1 {html.escape(EVIL)}\n")
    assert (await ada.get("/workflows/team/train", at="id-a")).page.facts["Peak memory"] == "3Mi 50 % of 6Mi"
    rows = (await ada.get("/api/v1/workflows/team/train/log")).text.splitlines()
    assert [json.loads(row)["result"] for row in rows] == [
        {"content": f"epoch 1 {EVIL}", "podName": "train-step-a", "step": "a"}
    ]
    (pod,) = (await ada.get("/api/v1/workflows/team/train/records")).json["pods"]
    assert (pod["uid"], pod["node"], pod["exitCode"], pod["peakMemoryBytes"]) == (uid, "n1", 1, 3 << 20)
    kept = (await ada.get(f"/api/v1/workflows/team/train/records/{uid}")).json
    assert base64.b64decode(kept["lines"]).endswith(f"{EVIL}\n".encode())


async def test_stored_logs_of_steps_are_those_of_their_own_workflow(ada):
    await ada.keep(STEPS, plays=False)
    await ada.keep(STEPS, plays=False, name="other")
    uid = await keep_pod(ada, log=b"2026-03-01T11:00:00Z secret\n")
    assert (await ada.get(f"/api/v1/workflows/team/other/records/{uid}")).status == 404
    assert (await ada.get("/api/v1/workflows/team/other/records", uid="uid-train")).json["pods"] == []


async def test_stored_logs_of_steps_are_for_those_who_may_read_logs(ada):
    await ada.keep(STEPS, plays=False)
    uid = await keep_pod(ada, log=b"2026-03-01T11:00:00Z secret\n")
    ada.api.readers -= {("ada", "team"), ("ada", None)}
    for path in (f"records/{uid}", "records"):
        assert (await ada.get(f"/api/v1/workflows/team/train/{path}")).status == 403, path
    log = (await ada.get("/api/v1/workflows/team/train/log")).text
    assert ("may not read the logs" in log, "secret" in log) == (True, False)


async def test_the_metrics_of_argos_controller_are_there_under_its_names(ada):
    await ada.keep(STEPS, name="train")
    await ada.keep(STEPS, name="other", steps=1)
    notes, owner = {NODE_NAME_ANNOTATION: "train[0].a"}, an_owner("Workflow", "train")
    meta = {"namespace": "team", "uid": "p", "labels": {WORKFLOW_LABEL: "train"}, "annotations": notes}
    ada.api.put(PODS, a_pod("p", phase="Running", owner=owner, **meta))
    ada.api.put(PODS, a_pod("other", namespace="team", phase="Running"))
    await ada.site.until(lambda: len(ada.site.service.cluster.pods.all()) == 2)
    lines = (await ada.site.ask("/metrics")).text.splitlines()
    for line in (
        "# TYPE argo_workflows_gauge gauge",
        'argo_workflows_gauge{phase="Succeeded"} 1.0',
        'argo_workflows_gauge{phase="Running"} 1.0',
        'argo_workflows_gauge{phase="Error"} 0.0',
        "# TYPE argo_workflows_total_count counter",
        'argo_workflows_total_count{namespace="team",phase="Succeeded"} 1.0',
        'argo_workflows_pods_gauge{phase="Running"} 1.0',
    ):
        assert line in lines, line


async def test_a_folder_of_files_is_downloaded_as_one_tar_file(ada):
    await ada.keep(STEPS, plays=False)
    files = {"a.txt": b"1", "deep/b.txt": b"2" * 1000}

    async def stream(data):
        yield data

    for name, data in files.items():
        await ada.site.service.context.part(Artifacts).put(stream(data), f"team/train/p/dir/{name}", name="dir")
    folder = Artifact(name="dir", key="train/p/dir", archive="none", files=2, size_bytes=1001)
    await add(ada, a_node(outputs=Outputs(artifacts=(folder,))))
    page = (await ada.get("/workflows/team/train", at="id-a")).page
    assert [link.attributes["download"] for link in page.all("a[download]")] == ["dir.tar"]
    answer = await ada.get("/api/v1/workflows/team/train/artifacts/id-a/dir")
    assert "dir.tar" in answer.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar} == files
    shown = (await ada.get("/api/v1/workflows/team/train")).json["status"]["nodes"]["id-a"]["outputs"]["artifacts"]
    assert [(each["name"], each["files"]) for each in shown] == [("dir", 2)]


async def test_a_step_without_a_pod_has_no_log(ada):
    await ada.keep(STEPS, steps=1)
    assert (await ada.get("/workflows/team/train/log", at="none")).text == ""
    assert (await ada.get("/workflows/team/train", at="train")).page.all("#log-text") == []


async def test_what_is_not_there_is_not_found(ada):
    await ada.keep(STEPS)
    assert (await ada.get("/workflows/team/none")).status == 404
    page = await ada.get("/workflows/team/train", at="none", open="none", shut="none")
    assert (page.status, page.page.all("#h-step")) == (200, [])


async def test_a_deleted_workflow_shows_what_is_kept_and_can_only_be_submitted_again(ada):
    await ada.keep(STEPS, live=False, gone_at=rfc3339(NOON), table=lambda _: Ends(exit_code=1))
    page = (await ada.get("/workflows/team/train", at="train")).page
    deleted, *_ = page.texts("main .note")
    assert deleted == "This workflow was deleted. Its record is shown; it can be submitted again."
    assert page.buttons() == ["Submit again", "Submit again, reuse successful steps"]


async def test_nodes_of_argos_own_controller_are_read_from_the_object(ada):
    node = {"id": "theirs", "name": "theirs", "displayName": "theirs", "type": "Pod", "phase": "Running"}
    meta = {"name": "theirs", "namespace": "team", "uid": "u"}
    ada.api.put(
        WORKFLOWS, {"metadata": meta, "spec": {}, "status": {"phase": "Running", "nodes": {"theirs": node}}}
    )
    assert list(labelled(await ada.get("/workflows/team/theirs"))) == ["theirs: Running"]


# -- what its buttons do


@pytest.mark.parametrize(
    ("verb", "spec", "note"),
    [
        ("suspend", {"suspend": True}, "is suspended: running steps end, and no other begins."),
        ("stop", {"shutdown": "Stop"}, "is being stopped."),
        ("terminate", {"shutdown": "Terminate"}, "is being stopped."),
    ],
)
async def test_a_workflow_that_goes_on_is_suspended_stopped_and_terminated(ada, verb, spec, note):
    await ada.keep(STEPS, steps=2)
    buttons = ["Suspend", "Stop", "Terminate", "Submit again", "Delete"]
    assert (await ada.get("/workflows/team/train")).page.buttons() == buttons
    answer = await ada.post(f"/workflows/team/train/{verb}")
    assert answer.status == 303
    assert answer.headers["location"].startswith("/workflows/team/train?done=")
    assert spec.items() <= (await ada.live())["spec"].items()
    assert (await ada.get(answer.headers["location"])).page.note == f"team/train {note}"


@pytest.mark.parametrize("verb", ["stop", "terminate", "delete", "resubmit"])
async def test_it_asks_before_something_ends_or_begins(ada, verb):
    await ada.keep(STEPS, steps=2)
    page = await ada.get(f"/workflows/team/train/{verb}")
    assert page.status == 200
    assert page.page.form(f"/workflows/team/train/{verb}").keys() <= {"key"}


async def test_a_suspended_workflow_is_resumed(ada):
    await ada.keep(STEPS, steps=2)
    await ada.post("/workflows/team/train/suspend")
    page = (await ada.get("/workflows/team/train")).page
    assert (page.texts(".summary .pill"), page.form("/workflows/team/train/resume")) == (["Suspended"], {})
    assert (await ada.post("/workflows/team/train/resume")).status == 303
    assert not (await ada.live())["spec"].get("suspend")


APPROVE = {
    "name": "approve",
    "suspend": {},
    "outputs": {"parameters": [{"name": "answer", "valueFrom": {"supplied": {}, "default": "yes"}}]},
}


@pytest.mark.parametrize(("verdict", "is_failure"), [("go", False), ("fail", True)])
async def test_a_step_that_waits_is_let_go_on_or_failed_with_what_its_form_supplies(ada, verdict, is_failure):
    main = {"name": "main", "steps": [[{"name": "ask", "template": "approve"}]]}
    player = await ada.keep(main, APPROVE, steps=2)
    node = player.node("WF[0].ask")
    page = (await ada.get("/workflows/team/train", at=node.id)).page
    assert page.form("/workflows/team/train/resume") == {"at": node.id, "p-answer": "yes", "message": ""}
    assert page.buttons()[-2:] == ["Let it go on", "Fail it"]
    assert page.texts("main .note") == ["A step waits for approval. Choose it to resume it."]
    form = {"at": node.id, "p-answer": "no", "message": "seen", "verdict": verdict}
    answer = await ada.post("/workflows/team/train/resume", **form)
    assert answer.status == 303
    assert f"at={node.id}" in answer.headers["location"]
    [wish] = json.loads((await ada.live())["metadata"]["annotations"][RESUME_ANNOTATION])
    want = {"selector": f"id={node.id}", "parameters": {"answer": "no"}, "message": "seen"}
    assert wish == want | ({"isFailure": True} if is_failure else {})


async def test_failed_steps_run_again_and_a_step_from_here(ada):
    player = await ada.keep(STEPS, table=lambda _: Ends(exit_code=1))
    assert "Retry failed steps" in (await ada.get("/workflows/team/train")).page.buttons()
    await ada.post("/workflows/team/train/retry")
    assert json.loads((await ada.live())["metadata"]["annotations"][RETRY_ANNOTATION]) == {}
    node = player.node("WF[0].a")
    assert "Retry from here" in (await ada.get("/workflows/team/train", at=node.id)).page.buttons()
    await ada.post("/workflows/team/train/retry", at=node.id)
    wish = json.loads((await ada.live())["metadata"]["annotations"][RETRY_ANNOTATION])
    assert wish == {"selector": f"id={node.id}", "restartSuccessful": True}


async def test_a_workflow_is_submitted_again_once_for_a_form_that_is_sent_twice(ada):
    await ada.keep(STEPS, live=False, gone_at=rfc3339(NOON))
    form = {"key": "one form"}
    first, again = [await ada.post("/workflows/team/train/resubmit", **form) for _ in range(2)]
    assert first.status == again.status == 303, first.text
    assert first.headers["location"] == again.headers["location"]
    [made] = (await ada.api.list(WORKFLOWS, "team")).items
    assert first.headers["location"].startswith(f"/workflows/team/{made['metadata']['name']}?done=started")


async def test_one_that_failed_is_submitted_again_with_what_succeeded(ada):
    await ada.keep(STEPS, table=lambda _: Ends(exit_code=1))
    ours = {"metadata": {"labels": {INSTANCE_LABEL: OUR_INSTANCE}}}
    await ada.api.patch(WORKFLOWS, "train", ours, "team")
    path = "/workflows/team/train/resubmit?memoized=1"
    button = ("Submit again, reuse successful steps", path)
    assert button in (await ada.get("/workflows/team/train")).page.links()
    page = (await ada.get(path)).page
    does = "A new workflow of the same spec takes over the successful steps, and runs the others."
    assert page.texts(".ask p")[0] == does
    assert page.form(path).keys() == {"key"}
    answer = await ada.post(path)
    assert answer.status == 303, answer.text
    earlier = await ada.live()
    [made] = [each for each in (await ada.api.list(WORKFLOWS, "team")).items if each != earlier]
    assert made["metadata"]["annotations"][TAKE_OVER_ANNOTATION] == earlier["metadata"]["uid"]


async def test_one_that_succeeded_has_no_such_button(ada):
    await ada.keep(STEPS)
    assert "memoized=1" not in (await ada.get("/workflows/team/train")).text


async def test_a_workflow_is_deleted_and_its_record_stays(ada):
    await ada.keep(STEPS)
    answer = await ada.post("/workflows/team/train/delete")
    assert answer.headers["location"] == "/workflows?done=deleted&what=team%2Ftrain"
    assert (await ada.api.list(WORKFLOWS, "team")).items == []
    assert (await ada.get("/workflows/team/train")).status == 200


async def test_what_cannot_be_done_is_said_with_the_reason(ada):
    await ada.keep(STEPS)
    answer = await ada.post("/workflows/team/train/stop")
    note = "Workflow 'train' has ended: Succeeded. Run it again: moor workflow resubmit train."
    assert (answer.status, answer.page.note) == (409, note)


# -- why it waits


LOCKED = {"name": "step", "container": {"image": "busybox"}, "synchronization": {"mutexes": [{"name": "gpu"}]}}


async def test_a_workflow_that_waits_says_why_on_its_page_and_over_rest(ada):
    await ada.keep(LOCKED, STEPS, name="holds", plays=False)
    waiting = a_node_record("train[0].a", id="train-1", message="Waiting for team/Mutex/gpu lock")
    await ada.keep(LOCKED, STEPS, plays=False)
    await ada.store.save("uid-train", "operator", [waiting])
    held = msgspec.structs.replace(waiting, id="holds-9", name="holds[0].a", message="", locks=("Mutex/team/gpu",))
    await ada.store.save("uid-holds", "operator", [held])
    page = (await ada.get("/workflows/team/train")).page
    assert page.texts(".why-card h2") == ["Why is it waiting?"]
    why = "a: it waits for the mutex team/gpu held by step a of workflow team/holds"
    assert page.texts(".why-card li") == [why]
    answer = (await ada.get("/api/v1/workflows/team/train/explain", step="a")).json
    (wait,) = answer["waits"]
    assert (wait["kind"], wait["steps"], wait["holders"]) == (
        "lock",
        ["a"],
        [{"lock": "Mutex/team/gpu", "namespace": "team", "workflow": "holds", "step": "a", "since": None}],
    )
    missing = await ada.get("/api/v1/workflows/team/train/explain", step="x")
    assert (missing.status, missing.json["code"]) == (404, "not_found")


async def test_holders_in_namespaces_that_the_user_may_not_read_have_no_name(ada):
    holder = a_node_record("other.a", id="other-1", phase=NodePhase.RUNNING, locks=("Mutex/team/gpu",))
    record = a_workflow_record("uid-other", "other", namespace="secret", phase="Running")
    await ada.store.begin(record)
    await ada.store.load("uid-other", "operator")
    await ada.store.save("uid-other", "operator", [holder])
    ada.site.api.readers = {("ada", "team"), ("ada", None)}
    await ada.keep(LOCKED, STEPS, plays=False)
    waiting = a_node_record("train[0].a", id="train-1", message="Waiting for team/Mutex/gpu lock")
    await ada.store.save("uid-train", "operator", [waiting])
    answer = (await ada.get("/api/v1/workflows/team/train/explain")).json
    assert answer["waits"][0]["holders"] == [
        {"lock": "Mutex/team/gpu", "namespace": "", "workflow": "", "step": "", "since": None}
    ]
