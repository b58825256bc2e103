"""The page of one volume: who mounts it, its backups, and the forms that make and restore them."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from moorage.model.volumebackup import BACKUPS
from moorage.model.workspace import WORKSPACES
from moorage_kube.resources import NAMESPACES, PODS, PVCS

pytestmark = pytest.mark.anyio


class Browser:
    """ada, whose form posts act with her Kubernetes token."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})
        asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        site.api.put(PVCS, {"metadata": {"name": "data", "namespace": "team"}, "spec": asked})

    async def get(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)

    async def post(self, path, **form):
        headers = {
            "authorization": "Bearer kube-token",
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Browser(site)


async def test_a_volume_has_a_page_that_names_who_mounts_it(ada):
    ada.site.run("train", namespace="team", pod=False)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    ada.api.put(
        PODS,
        {
            "metadata": {"name": "p", "namespace": "team", "labels": {"moorage.dev/run": "train"}},
            "spec": {"containers": [], "volumes": [volume]},
            "status": {"phase": "Running"},
        },
    )
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("team", "train"))
    page, mounted = (await ada.get("/volumes/team/data")).page, ("train", "/jobs/team/train")
    assert (page.facts["In use by"], page.links("dl")) == ("train", [mounted])
    assert page.texts(".empty")[0].startswith("No backup yet.")
    assert page.buttons() == ["Files", "Resize", "Delete", "Back up"]
    assert {mounted, ("data", "/volumes/team/data")} <= set((await ada.get("/volumes")).page.links("tbody"))


async def test_a_home_names_the_workspace_that_mounts_it(ada):
    ada.api.put(WORKSPACES, {"metadata": {"name": "lab", "namespace": "team"}, "spec": {"type": "jupyterlab"}})
    volume = {"name": "home", "persistentVolumeClaim": {"claimName": "data"}}
    labels = {"moorage.dev/workspace": "lab"}
    ada.api.put(
        PODS,
        {
            "metadata": {"name": "ws-lab-x", "namespace": "team", "labels": labels},
            "spec": {"containers": [], "volumes": [volume]},
            "status": {"phase": "Running"},
        },
    )
    service = ada.site.service
    await ada.site.until(lambda: service.cluster.pods.get("ws-lab-x", "team"))
    await ada.site.until(lambda: service.gateway.workspaces.get("lab", "team"))
    assert (await ada.get("/volumes/team/data")).page.links("dl") == [("ws-lab-x", "/workspaces/team/lab")]
    assert (await ada.get("/volumes/team/none")).status == 404


async def test_a_volume_is_backed_up_and_restored_by_forms(ada):
    made = await ada.post("/volumes/team/data/backup", to="s3://bucket/x", keep="3")
    assert (made.status, made.headers["location"]) == (303, "/volumes/team/data?done=backup&what=team%2Fdata")
    [backup] = (await ada.api.list(BACKUPS)).items
    assert (backup["spec"]["volume"], backup["spec"]["to"], backup["spec"]["keep"]) == ("data", "s3://bucket/x", 3)
    name = backup["metadata"]["name"]
    whole = [{"name": f"{name}-1", "files": 2, "bytes": 2048, "at": "2026-11-21T11:00:00Z"}]
    ada.api.put(BACKUPS, backup | {"status": {"phase": "Ready", "backups": whole}})
    page = (await ada.get("/volumes/team/data")).page
    assert [row["State"] for row in page.rows("Backups of this volume")] == ["2Ki, 2 files, whole"]
    assert page.buttons("tbody") == ["Restore onto data"]
    restored = await ada.post("/volumes/team/data/restore", backup=f"{name}-1", force="yes")
    assert restored.status == 303
    [backup] = (await ada.api.list(BACKUPS)).items
    assert backup["spec"]["restore"] | {"id": ""} == {
        "id": "",
        "backup": f"{name}-1",
        "volume": "data",
        "force": True,
    }


@pytest.mark.parametrize(
    ("path", "form", "status", "note"),
    [
        ("backup", {"to": "nowhere"}, 422, "To: 'nowhere' must be s3://BUCKET/PREFIX, "),
        ("backup", {"to": "s3://b/x", "schedule": "often"}, 422, "Schedule: 'often' must be five fields as cron "),
        ("restore", {"backup": "none"}, 404, "Backup 'none' not found in namespace team. "),
    ],
)
async def test_a_refused_backup_is_told_on_the_page(ada, path, form, status, note):
    answer = await ada.post(f"/volumes/team/data/{path}", **form)
    assert (answer.status, answer.page.note[: len(note)]) == (status, note)
