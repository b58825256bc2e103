"""Backups over HTTP: for administrators, whole, and restored by the server that runs."""

from __future__ import annotations

import msgspec
import pytest

from moorage.decide.maps.leasing import Policy
from moorage.queue.store import NewItem

pytestmark = pytest.mark.anyio

PATH = "/api/v1/backup"
ADA = {"authorization": "Bearer kube-token"}


async def make_map(site, name):
    def make(store):
        stored = store.create_map(
            namespace="lab", name=name, owner="ada", policy=Policy(), request=name, limits={}, priority=0, now=1
        )
        store.add_items(stored.map.id, [NewItem(msgspec.Raw(b"1"))])

    await site.service.queue.read(make)


async def names(site):
    return [stored.name for stored in await site.service.queue.read(lambda store: store.list_maps("lab"))]


async def test_only_administrators_make_and_restore_backups(site):
    async with site.running():
        for method in ("GET", "POST"):
            refused = await site.ask(PATH, method=method, headers=ADA, token=False)
            assert (refused.status, refused.json["code"]) == (403, "forbidden")
        assert (await site.ask(PATH)).status == 403  # the page's token stands for nobody


async def test_a_backup_is_downloaded_checked_and_restored(site):
    async with site.running():
        site.api.readers.add(("ada", None))  # may all, in this test
        await make_map(site, "before")
        made = await site.ask(PATH, headers=ADA, token=False)
        assert (made.status, made.headers["content-type"]) == (200, "application/gzip")
        assert int(made.headers["content-length"]) == len(made.body)
        await make_map(site, "after")

        async def post(query="", body=made.body):
            headers = ADA | {"content-type": "application/gzip"}
            return await site.ask(PATH + query, method="POST", headers=headers, body=body, token=False)

        looked = await post("?dryRun=true")
        assert (looked.status, looked.json["rows"]["maps"], looked.json["replaces"]) == (200, 1, {"maps": 2})
        full = await post()
        assert (full.status, full.json["code"]) == (409, "conflict")
        assert "the target is not empty: it has 2 rows of maps" in full.json["message"]
        broken = await post("?force=true", made.body[:-20])
        assert (broken.status, broken.json["code"]) == (422, "invalid")
        assert sorted(await names(site)) == ["after", "before"]
        done = await post("?force=true")
        assert (done.status, done.json["rows"]["items"]) == (200, 1)
        assert await names(site) == ["before"]
        assert list(site.folder.glob(".*")) == []
