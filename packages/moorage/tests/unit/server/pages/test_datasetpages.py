"""The form of a new dataset, and the page of one: its fill, its readers, who mounts it."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from moorage.model.dataset import DATASETS
from moorage_kube.resources import NAMESPACES
from moorage_testing.datasets import make_dataset

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


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Browser(site)


FORM = {"name": "images", "namespace": "team", "url": "s3://bucket/images", "size": "100Gi", "key": "k"}


async def test_a_dataset_is_checked_and_then_created_once_by_a_form(ada):
    assert (await ada.get("/datasets/new")).page.heading == "New dataset"
    checked = await ada.post("/datasets/new", **FORM, unpack="yes", do="check")
    line = "moor dataset create images -n team --source s3://bucket/images --size 100Gi --unpack"
    assert (checked.status, checked.page.element("#line").text) == (200, line)
    assert (await ada.api.list(DATASETS)).items == []
    first = await ada.post("/datasets/new", **FORM, readers="vision, audio")
    again = await ada.post("/datasets/new", **FORM, readers="vision, audio")
    assert first.status == again.status == 303
    assert first.headers["location"] == "/datasets/team/images?done=created&what=team%2Fimages"
    [dataset] = (await ada.api.list(DATASETS)).items
    assert dataset["spec"] == {
        "source": {"url": "s3://bucket/images"},
        "size": "100Gi",
        "readers": ["vision", "audio"],
    }


@pytest.mark.parametrize(
    ("form", "name", "problem"),
    [
        ({"name": "Images"}, "name",
         "Invalid name 'Images': use at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends."),
        ({"url": "volume:"}, "url",
         "Source.url: 'volume:' must be volume:NAME or volume:NAME/FOLDER, without .. in it."),
        ({"size": "0"}, "size", "Size: '0' must be more than zero."),
    ],
)  # fmt: skip
async def test_what_is_wrong_stands_beside_its_field(ada, form, name, problem):
    page = await ada.post("/datasets/new", **(FORM | form))
    assert (page.status, page.page.problem_at(name)) == (422, problem)
    assert (await ada.api.list(DATASETS)).items == []


async def test_a_dataset_has_a_page_with_its_progress_and_its_users(ada):
    obj = make_dataset("images", "team", url="s3://b/x")
    used = [{"namespace": "team", "name": "train", "active": True}, {"namespace": "lab", "name": "old"}]
    status = {"phase": "Filling", "progress": {"bytes": 512, "bytesTotal": 1024, "files": 2}, "usedBy": used}
    ada.api.put(DATASETS, obj | {"status": status})
    ada.site.run("train", namespace="team")
    await ada.site.until(lambda: ada.site.service.cluster.jobs_of_run("team", "train"))
    page, used = (await ada.get("/datasets/team/images")).page, ("train", "/jobs/team/train")
    assert page.texts(".part") == ["512 of 1Ki, 2 files · 50 %"]
    assert page.texts(".uses li") == ["train team", "old lab, ended"]
    places = [(name, f"/jobs?whose=all&namespace={name}") for name in ("team", "lab")]
    assert page.links(".uses") == [used, *places]
    assert {used, ("images", "/datasets/team/images")} <= set((await ada.get("/datasets")).page.links("tbody"))


async def test_a_failed_dataset_is_filled_again_and_shared_by_buttons(ada):
    obj = make_dataset("images", "team", url="s3://b/x")
    ada.api.put(DATASETS, obj | {"status": {"phase": "Failed"}})
    assert "Fill again" in (await ada.get("/datasets/team/images")).page.buttons()
    filled = await ada.post("/datasets/team/images/fill")
    assert filled.headers["location"] == "/datasets/team/images?done=filling&what=team%2Fimages"
    assert (await ada.post("/datasets/team/images/share", readers="vision")).status == 303
    assert (await ada.api.get(DATASETS, "images", "team"))["spec"]["readers"] == ["vision"]
    ada.api.put(DATASETS, obj | {"status": {"phase": "Ready"}})
    refused = await ada.post("/datasets/team/images/fill")
    note = "Dataset 'images' is ready and cannot change any more. Create another one: moor dataset create."
    assert (refused.status, refused.page.note) == (409, note)
    assert (await ada.get("/datasets/team/none")).status == 404
