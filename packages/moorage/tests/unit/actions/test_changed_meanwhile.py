"""Changes that depend on what an object holds, while others write to it; over a fake API."""

from __future__ import annotations

import pytest

from moorage.actions import backups, datasets, tenants
from moorage.model.dataset import DATASETS
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage.model.volumebackup import BACKUPS
from moorage.server.identity.sessions import KEYS_SECRET, load_keys, rotate_keys
from moorage_kube.changes import TRIES, change_as_read
from moorage_kube.errors import Conflict
from moorage_kube.resources import CONFIGMAPS, PVCS, SECRETS
from moorage_testing.concurrentwrites import ConcurrentWriterApi, stored
from moorage_testing.concurrentwrites import api as api

pytestmark = pytest.mark.anyio


class Hasty:
    """A clock on which no wait takes time; it counts them."""

    def __init__(self):
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)


async def test_a_person_is_added_to_a_tenant_that_the_operator_writes_to(api):
    api.put(TENANTS, tenants.plan_tenant("vision", {"members": {"people": ["ada"]}}))
    await tenants.add_to_tenant(api, "vision", "member", {"people": ["ben"]})
    obj = await tenants.get_tenant(api, "vision")
    assert (obj["spec"]["members"], obj["status"]) == ({"people": ["ada", "ben"]}, {"written": 0})


async def test_a_person_is_removed_from_a_tenant_that_the_operator_writes_to(api):
    api.put(TENANTS, tenants.plan_tenant("vision", {"members": {"people": ["ada", "ben"]}}))
    await tenants.remove_from_tenant(api, "vision", "member", {"people": ["ada"]})
    assert (await tenants.get_tenant(api, "vision"))["spec"]["members"] == {"people": ["ben"]}


async def test_two_people_who_are_added_at_the_same_moment_both_stay(api):
    api.put(TENANTS, tenants.plan_tenant("vision", {}))
    patch = api.patch

    async def after_another(*args, **options):
        api.patch = patch
        await tenants.add_to_tenant(api, "vision", "member", {"people": ["eve"]})
        return await patch(*args, **options)

    api.patch = after_another
    await tenants.add_to_tenant(api, "vision", "member", {"people": ["ben"]})
    assert (await tenants.get_tenant(api, "vision"))["spec"]["members"] == {"people": ["eve", "ben"]}


async def test_readers_of_a_dataset_are_changed_while_it_fills(api):
    stored(api, DATASETS, "scans", spec={"source": {"url": "s3://scans"}, "size": "1Gi", "readers": ["vision"]})
    assert await datasets.change_readers(api, "lab", "scans", add=["speech"]) == ("vision", "speech")
    api.overtakes = 1
    dataset = await datasets.set_readers(api, "lab", "scans", ["maps"])
    assert [reader.tenant for reader in dataset.readers] == ["maps"]


async def test_a_restore_begins_while_the_operator_writes_to_its_backups(api):
    stored(api, PVCS, "data", spec={})
    stored(api, BACKUPS, "nightly", spec={"volume": "data"}, status={"backups": [{"name": "b1"}]})
    name, identity = await backups.restore_backup(api, "lab", "b1", "data", force=False)
    assert name == "nightly"
    assert (await api.get(BACKUPS, "nightly", "lab"))["spec"]["restore"]["id"] == identity


async def test_keys_of_sessions_rotate_while_another_server_rotates_them(api):
    await load_keys(api)
    assert await rotate_keys(api) == 2
    assert len((await api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE))["data"]) == 2


async def test_an_object_that_always_changes_is_a_conflict():
    api, clock = ConcurrentWriterApi(overtakes=TRIES), Hasty()
    stored(api, CONFIGMAPS, "busy", data={})

    async def read():
        return await api.get(CONFIGMAPS, "busy", "lab"), {"data": {"x": "1"}}

    with pytest.raises(Conflict):
        await change_as_read(api, CONFIGMAPS, read, clock=clock)
    assert (api.overtakes, clock.slept) == (0, [0.02, 0.04, 0.08, 0.16, 0.32])


async def test_a_refusal_is_not_tried_again(api):
    reads = []

    async def read():
        reads.append(1)
        raise Conflict("it has ended")

    with pytest.raises(Conflict, match="it has ended"):
        await change_as_read(api, CONFIGMAPS, read, clock=Hasty())
    assert reads == [1]
