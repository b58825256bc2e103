"""The pages of workspaces, volumes, datasets and runs: a form acts as its user, or its page says what is wrong."""

from __future__ import annotations

import base64
from urllib.parse import urlencode

import pytest

from moorage.model.dataset import DATASET_OF_LABEL, DATASETS
from moorage.model.names import OWNER_ANNOTATION, SYSTEM_NAMESPACE
from moorage.model.workspace import BUILT_IN, GATEWAY_SECRET, WORKSPACES, App, make_token
from moorage.server.pages.rows import OWN_TYPE, type_rows
from moorage_kube.errors import Forbidden
from moorage_kube.resources import NAMESPACES, PODS, PVCS, SECRETS, STORAGECLASSES
from moorage_testing.datasets import make_dataset

pytestmark = pytest.mark.anyio

WORKSPACE = {"metadata": {"name": "lab", "namespace": "team"}, "spec": {"type": "jupyterlab", "running": True}}


class Browser:
    """ada, whose form posts act with her Kubernetes token."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def get(self, path):
        headers = {"authorization": "Bearer kube-token", "accept": "text/html"}
        return await self.site.ask(path, headers=headers, token=False)

    async def post(self, path, **form):
        headers = {
            "authorization": "Bearer kube-token",
            "accept": "text/html",
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Browser(site)


def a_claim(name="data"):
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": asked}


def a_pod(claim):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    return {
        "metadata": {"name": "p", "namespace": "team", "labels": {"moorage.dev/run": "train"}},
        "spec": {"containers": [], "volumes": [volume]},
        "status": {"phase": "Running"},
    }


async def test_a_workspace_is_created_listed_stopped_and_deleted_by_forms(ada):
    created = await ada.post("/workspaces", name="lab", namespace="team", kind="jupyterlab", cpu="2")
    assert (created.status, created.headers["location"]) == (303, "/workspaces?done=created&what=team%2Flab")
    spec = (await ada.api.get(WORKSPACES, "lab", "team"))["spec"]
    assert (spec["type"], spec["running"], spec["resources"]) == ("jupyterlab", True, {"cpu": "2"})
    page = (await ada.get("/workspaces?done=created&what=team%2Flab")).page
    assert (page.notes, page.form("/workspaces/team/lab/stop")) == (["team/lab is created."], {})
    assert (await ada.post("/workspaces/team/lab/stop")).status == 303
    assert (await ada.get("/workspaces/live")).page.form("/workspaces/team/lab/start") == {}
    assert (await ada.get("/workspaces/team/lab/delete")).page.heading == "Delete workspace lab?"
    assert (await ada.post("/workspaces/team/lab/delete")).status == 303
    assert (await ada.api.list(WORKSPACES)).items == []


@pytest.mark.parametrize(
    ("form", "note"),
    [
        ({"name": "Lab"},
         "Invalid name 'Lab': use at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends."),
        ({"cpu": "much"}, "Resources.cpu: must be a quantity above zero, such as 500m, 2 or 8Gi."),
        ({"gpus": "many"}, "GPUs must be a whole number from 0 to 9999, not 'many'."),
        ({"kind": "jupiterlab"},
         "Type: 'jupiterlab' must be one of codeserver, jupyterlab (did you mean jupyterlab?)."),
        ({"namespace": "../x"}, "Expected str matching regex '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'."),
    ],
)  # fmt: skip
async def test_a_wrong_workspace_is_told_on_the_form_which_keeps_what_was_typed(ada, form, note):
    form = {"name": "lab", "namespace": "team", "kind": "jupyterlab", "memory": "3Gi"} | form
    answer = await ada.post("/workspaces", **form)
    assert (answer.status, answer.page.note) == (422, note)
    kept = answer.page.form("/workspaces")
    assert all(kept[name] == form[name] for name in ("name", "memory", "cpu", "gpus") if name in form)
    assert (await ada.api.list(WORKSPACES)).items == []


async def printed(pod, namespace, *, container, **_):
    """The log of the pod of `lab`."""
    assert (pod, namespace, container) == ("ws-lab-x", "team", "workspace")
    yield b"Traceback\nNo module named 'jupyter' <here>\n"


async def test_a_workspace_that_does_not_start_has_a_page_with_its_log(ada):
    ada.api.logs = printed
    waiting = {"reason": "Crashes", "message": "its application ended with exit code 1"}
    status = {"phase": "Failed", "waitingFor": waiting, "pod": "ws-lab-x", "node": "n1", "home": "lab-home"}
    ada.api.put(WORKSPACES, WORKSPACE | {"status": status})
    listed = (await ada.get("/workspaces")).page.links()
    assert {("lab", "/workspaces/team/lab"), ("Log of lab", "/workspaces/team/lab#log")} <= set(listed)
    page = await ada.get("/workspaces/team/lab")
    assert page.status == 200
    assert page.page.texts("main .note") == ["Its application ended with exit code 1"]
    escaped = "No module named &#x27;jupyter&#x27; &lt;here&gt;"
    assert escaped in page.text
    assert page.page.links("#live-workspace") == [
        ("Delete lab", "/workspaces/team/lab/delete"), ("n1", "/nodes/n1"), ("lab-home", "/volumes/team/lab-home"),
    ]  # fmt: skip
    assert (await ada.get("/workspaces/team/lab/live")).page.texts(".pill") == ["Failed"]
    assert (await ada.get("/workspaces/team/lab/log")).text == f"Traceback\n{escaped}\n"
    assert (await ada.get("/workspaces/team/none")).status == 404


async def test_the_types_of_workspaces_are_listed_with_what_they_give(ada):
    caption = "Types of workspaces with a description and the program or image"
    assert [tuple(row.values()) for row in (await ada.get("/workspaces")).page.rows(caption)] == [
        ("codeserver", "code-server: Visual Studio Code in the browser", "codercom/code-server:4.104.2"),
        ("jupyterlab", "JupyterLab: notebooks, a terminal and your files",
         "quay.io/jupyter/base-notebook:2025-08-25"),
    ]  # fmt: skip


def test_a_type_of_an_administrator_is_said_to_be_one():
    own = App(command=["rstudio", "--port=1", "x"], image="rstudio:1")
    apps = {**BUILT_IN, "codeserver": own, "rstudio": own}
    assert [(row.name, row.words == OWN_TYPE, row.runs) for row in type_rows(apps, on_processes=False)] == [
        ("codeserver", True, "rstudio:1"),
        ("jupyterlab", False, "quay.io/jupyter/base-notebook:2025-08-25"),
        ("rstudio", True, "rstudio:1"),
    ]
    assert [row.runs for row in type_rows(apps, on_processes=True)] == ["rstudio", "jupyter lab", "rstudio"]


async def test_a_workspace_opens_by_the_platforms_login_or_by_its_token(ada):
    ada.api.put(WORKSPACES, WORKSPACE)
    none = await ada.get("/workspaces/team/lab/open")
    why = "Workspace 'lab' has no address: this platform has no domain for workspaces."
    assert (none.status, none.page.note) == (409, why)
    status = {"url": "https://lab.apps.test/lab", "access": "token", "secret": "ws-lab"}
    ada.api.put(WORKSPACES, WORKSPACE | {"status": status})
    ada.api.put(SECRETS, {"metadata": {"name": "ws-lab", "namespace": "team"}, "data": {"token": "c2VjcmV0"}})
    opened = await ada.get("/workspaces/team/lab/open")
    assert (opened.status, opened.headers["location"]) == (303, "https://lab.apps.test/lab?token=secret")
    ada.api.put(WORKSPACES, WORKSPACE | {"status": status | {"access": "login"}})
    assert (await ada.get("/workspaces/team/lab/open")).headers["location"] == "/open/team/lab"


KEY = b"k" * 32
GATEWAY_KEY = {
    "metadata": {"name": GATEWAY_SECRET, "namespace": SYSTEM_NAMESPACE},
    "data": {"key": base64.b64encode(KEY).decode()},
}


class NoSecrets:
    """What a member of a team may do with its token: everything but to read Secrets."""

    def __init__(self, api):
        self._api = api

    def __getattr__(self, name):
        return getattr(self._api, name)

    async def get(self, resource, name, namespace=None):
        if resource == SECRETS:
            raise Forbidden("secrets is forbidden")
        return await self._api.get(resource, name, namespace)


@pytest.mark.parametrize(
    ("owner", "is_member", "is_let_in"),
    [
        pytest.param("ada", True, True, id="the owner"),
        pytest.param("eve", True, False, id="another member"),
        pytest.param("ada", False, False, id="an owner who left the team"),
    ],
)
async def test_the_owner_alone_gets_the_token_of_a_workspace_without_the_right_to_read_secrets(
    ada, owner, is_member, is_let_in
):
    ada.api.with_token = lambda token, *_: NoSecrets(ada.api)
    ada.api.put(SECRETS, GATEWAY_KEY)
    meta = WORKSPACE["metadata"] | {"annotations": {OWNER_ANNOTATION: owner}, "uid": "u"}
    status = {"url": "https://lab.apps.test/lab", "access": "token", "secret": "ws-lab"}
    ada.api.put(WORKSPACES, WORKSPACE | {"metadata": meta, "status": status})
    if not is_member:
        ada.api.readers.discard(("ada", "team"))
    page = await ada.get("/workspaces/team/lab/open")
    headers = {"authorization": "Bearer kube-token", "content-type": "application/json"}
    path = "/api/v1/workspaces/team/lab/open"
    answer = await ada.site.ask(path, method="POST", headers=headers, body=b"{}", token=False)
    if is_let_in:
        url = f"https://lab.apps.test/lab?token={make_token(KEY, 'u')}"
        assert (page.status, page.headers["location"]) == (303, url)
        assert (answer.status, answer.json["url"]) == (200, url)
    else:
        assert (page.status, answer.status) == (403, 403)
        assert "you may not read the token of workspace 'lab'" in answer.json["message"]


async def test_a_volume_is_created_resized_and_deleted_by_forms(ada):
    ada.api.put(STORAGECLASSES, {"metadata": {"name": "disks"}, "provisioner": "x", "allowVolumeExpansion": True})
    form = {"name": "data", "namespace": "team", "size": "1Gi", "storageClass": "disks"}
    assert (await ada.post("/volumes", **form)).status == 303
    taken = await ada.post("/volumes", **form)
    assert taken.status == 409
    assert taken.page.note.startswith("The name 'data' is taken: another volume in namespace team has it.")
    assert (await ada.get("/volumes/team/data/resize")).page.form("/volumes/team/data/resize") == {"size": "1Gi"}
    assert (await ada.post("/volumes/team/data/resize", size="2Gi")).status == 303
    smaller = await ada.post("/volumes/team/data/resize", size="1Gi")
    assert smaller.status == 409
    assert smaller.page.note.startswith("Cannot make volume 'data' smaller: it has 2Gi, 1Gi was asked for.")
    page = (await ada.get("/volumes")).page
    assert [row["Size"] for row in page.rows("Volumes with their use and actions")] == ["2Gi"]
    assert page.texts("#f-storageClass option") == ["the cluster's own", "disks"]
    ada.api.put(PODS, a_pod("data"))
    question = (await ada.get("/volumes/team/data/delete")).page.texts(".ask p")
    assert question[:2] == ["It is in namespace team. All that is on it is lost.", "In use by train: they break."]
    refused = await ada.post("/volumes/team/data/delete")
    assert refused.status == 409
    assert refused.page.note.startswith("Volume 'data' is in use by train. Cancel those first,")
    assert (await ada.post("/volumes/team/data/delete", force="yes")).status == 303
    assert (await ada.api.list(PVCS)).items == (await ada.api.list(PODS)).items == []


async def test_a_dataset_that_another_namespace_shares_is_listed_and_not_deleted(ada):
    ada.api.readers.discard(("ada", None))
    labels = {DATASET_OF_LABEL: "vision", "moorage.dev/dataset": "scans"}
    ada.api.put(PVCS, {"metadata": {"namespace": "team", "name": "c", "labels": labels}, "spec": {}})
    page = (await ada.get("/datasets")).page
    [row] = page.rows("Datasets with their progress and readers")
    assert (row["Dataset"], row["Filled"]) == ("scans vision", "shared by namespace vision")
    assert page.links("tbody") == [("vision", "/jobs?whose=all&namespace=vision")]


async def test_a_dataset_is_listed_and_deleted_by_forms(ada):
    obj = make_dataset("photos", "team", url="s3://b/x")
    ada.api.put(DATASETS, obj | {"status": {"phase": "Ready", "files": 3, "bytes": 2048}})
    [row] = (await ada.get("/datasets")).page.rows("Datasets with their progress and readers")
    assert (row["Filled"], row["Actions"]) == ("2Ki, 3 files from s3://b/x", "Delete photos")
    ada.api.put(PODS, a_pod("dataset-photos"))
    refused = await ada.post("/datasets/team/photos/delete")
    assert (refused.status, refused.page.note.partition(".")[0]) == (409, "Dataset 'photos' is in use by train")
    assert (await ada.post("/datasets/team/photos/delete", force="yes")).status == 303
    assert (await ada.api.list(DATASETS)).items == (await ada.api.list(PODS)).items == []


async def test_what_is_missing_is_told_by_a_page(ada):
    for kind in ("workspace", "volume", "dataset"):
        answer = await ada.get(f"/{kind}s/team/x/delete")
        why = f"{kind.capitalize()} 'x' not found in namespace team."
        assert (answer.status, answer.page.note) == (404, why)
        assert answer.headers["content-type"].startswith("text/html")


async def test_a_run_is_cancelled_and_then_deleted_by_forms(ada):
    ada.site.node("n1")
    ada.site.run("train", node="n1", namespace="team")
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("team", "train"))
    assert (await ada.get("/jobs/team/train/cancel")).page.heading == "Cancel run train?"
    answer = await ada.post("/jobs/team/train/cancel")
    assert answer.headers["location"] == "/jobs/team/train?done=cancelled&what=team%2Ftrain"
