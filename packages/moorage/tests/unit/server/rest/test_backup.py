"""Backups over HTTP: for administrators, whole, and restored by the server that runs."""

from __future__ import annotations

import tarfile

import msgspec
import pytest

from moorage.decide.maps.leasing import Policy
from moorage.model.mapjob import MAPJOBS
from moorage.model.people import account_user, make_account
from moorage.queue.store import NewItem
from moorage.server.backup.mapjobs import read_mapjobs
from moorage_kube.errors import Forbidden
from moorage_kube.resources import NAMESPACES, SERVICEACCOUNTS
from moorage_kube.testing.clock import NOON

pytestmark = pytest.mark.anyio

NOON_MS = int(NOON.timestamp() * 1000)
PATH = "/api/v1/backup"
ADA = {"authorization": "Bearer kube-token"}


async def make_map(site, name, namespace="lab"):
    def make(store):
        stored = store.create_map(
            namespace=namespace, name=name, owner="ada", policy=Policy(), request=f"uid-{name}", limits={},
            priority=0, now=NOON_MS,
        )  # fmt: skip
        store.add_items(stored.map.id, [NewItem(msgspec.Raw(b"1"))])
        return stored.uid

    return await site.service.queue.read(make)


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


def put_mapjob(site, uid, name, namespace="lab", owner="ada", request="", **spec):
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": request or f"uid-{name}",
        "labels": {"team": "a"},
        "annotations": {"moorage.dev/owner": owner},
        "finalizers": ["moorage.dev/map"],
    }
    status = {"state": "running", "queue": {"uid": uid, "url": "http://s", "marks": ["first/1"]}}
    site.api.put(MAPJOBS, {"metadata": meta, "spec": {"parallelism": 2} | spec, "status": status})


async def test_a_restore_creates_the_mapjobs_of_its_maps_that_are_missing_as_their_owners(site):
    acted = []

    def acts(api, user):
        class Acting:
            async def create(self, resource, obj, namespace=None, **options):
                acted.append((user, obj["metadata"]["name"]))
                if obj["metadata"]["name"] == "refused":
                    raise Forbidden("mapjobs.moorage.dev is forbidden", status=403)
                return await api.create(resource, obj, namespace, **options)

        return Acting()

    site.api.as_user = lambda user: acts(site.api, user)
    site.api.with_token = lambda token, *_: acts(site.api, token)
    site.api.put(SERVICEACCOUNTS, make_account("ada", [], "local"))
    for namespace, created in (("lab", "2026-01-01T00:00:00Z"), ("new", "2099-01-01T00:00:00Z")):
        site.api.put(NAMESPACES, {"metadata": {"name": namespace, "creationTimestamp": created}})
    async with site.running():
        site.api.readers.add(("ada", None))
        maps = {
            "gone": ("lab", "ada"),
            "there": ("lab", "ada"),
            "refused": ("lab", "ada"),
            "others": ("lab", "system:admin"),
            "old": ("new", "ada"),
            "lost": ("nowhere", "ada"),
            "renewed": ("lab", "ada"),
        }
        for name, (namespace, owner) in maps.items():
            put_mapjob(site, await make_map(site, name, namespace), name, namespace, owner)
        put_mapjob(site, "", "not-accepted")
        made = await site.ask(PATH, headers=ADA, token=False)
        assert made.status == 200
        for name, (namespace, _) in maps.items():
            if name != "there":
                site.api.remove(MAPJOBS, name, namespace)
        put_mapjob(site, "another", "renewed", request="another")
        headers = ADA | {"content-type": "application/gzip"}
        done = await site.ask(PATH + "?force=true", method="POST", headers=headers, body=made.body, token=False)
        assert (done.status, done.json["withoutMapJob"]) == (
            200,
            [
                "lab/refused: mapjobs.moorage.dev is forbidden",
                "lab/renewed: another MapJob has its name",
                "new/old: namespace new is newer than the map, so it may be another team's",
                "nowhere/lost: namespace nowhere not found",
            ],
        )
        ada = account_user("ada")
        assert sorted(acted) == sorted(
            [(ada, "gone"), (ada, "there"), (ada, "refused"), (ada, "renewed"), ("kube-token", "others")]
        )
        restored = await site.api.get(MAPJOBS, "gone", "lab")
        assert restored["metadata"]["uid"] != "uid-gone"
        assert (restored["metadata"]["labels"], restored["spec"]) == ({"team": "a"}, {"parallelism": 2})
        assert restored["metadata"]["annotations"] == {
            "moorage.dev/owner": "ada",
            "moorage.dev/map-request": "uid-gone",
        }
        assert restored["status"]["queue"]["marks"] == ["first/1"]  # its notices are not sent again
        assert (await site.api.list(MAPJOBS, "new")).items == []


def test_a_backup_of_a_cluster_without_the_kind_has_no_mapjobs(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w"):
        pass
    assert read_mapjobs(tmp_path / "a.tar") == []
