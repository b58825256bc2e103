"""Changes that depend on what an object holds, while others write to it; over a fake API."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from moorage.actions import backups, datasets, tenants
from moorage.model.argo import CRON_WORKFLOWS, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage.model.dataset import DATASETS
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage.model.volumebackup import BACKUPS
from moorage.server.identity.sessions import KEYS_SECRET, load_keys, rotate_keys
from moorage_kube.changes import TRIES, change_as_read
from moorage_kube.errors import Conflict
from moorage_kube.meta import annotations_of
from moorage_kube.resources import CONFIGMAPS, PVCS, SECRETS
from moorage_kube.testing.clock import NOON
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.actions import crons
from moorage_workflows.actions.workflows import resume_workflow, retry_workflow
from moorage_workflows.actions.workflowtemplates import Applied, apply_template
from moorage_workflows.model.workflow import Resume, Retry

pytestmark = pytest.mark.anyio


class Api(FakeApi):
    """Another party writes to an object just before each of the first `overtakes` writes of ours."""

    def __init__(self, overtakes=1):
        super().__init__()
        self.overtakes = overtakes

    def overtake(self, resource, name, namespace):
        if self.overtakes:
            self.overtakes -= 1
            obj = self._stored(resource, name, namespace)
            self.put(resource, {**obj, "status": {**(obj.get("status") or {}), "written": self.overtakes}})

    async def patch(self, resource, name, patch, namespace=None, **options):
        self.overtake(resource, name, namespace)
        return await super().patch(resource, name, patch, namespace, **options)

    async def update(self, resource, obj, **options):
        self.overtake(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))
        return await super().update(resource, obj, **options)


class Hasty:
    """A clock on which no wait takes time; it counts them."""

    def __init__(self):
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)


@pytest.fixture
def api():
    return Api()


def stored(api, resource, name, namespace="lab", **fields):
    return api.put(resource, {"metadata": {"name": name, "namespace": namespace}} | fields)


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


async def test_a_workflow_is_resumed_and_retried_while_the_operator_writes_to_it(api):
    stored(api, WORKFLOWS, "train", spec={"suspend": True}, status={"phase": "Running"})
    assert "suspend" not in (await resume_workflow(api, "lab", "train", Resume(), now=NOON))["spec"]
    stored(api, WORKFLOWS, "train", spec={}, status={"phase": "Failed"})
    api.overtakes = 1
    assert "moorage.dev/workflow-retry" in annotations_of(await retry_workflow(api, "lab", "train", Retry()))


async def test_slots_run_again_while_the_operator_writes_to_their_schedule(api):
    stored(api, CRON_WORKFLOWS, "nightly", spec={"schedules": ["0 * * * *"], "workflowSpec": {}})
    answer = await crons.backfill_cron(api, "lab", "nightly", NOON - timedelta(hours=1), NOON, now=NOON)
    asked = json.loads(
        annotations_of(await api.get(CRON_WORKFLOWS, "nightly", "lab"))["moorage.dev/cron-backfill"]
    )
    assert (asked["id"], len(asked["slots"])) == (answer.id, 2)


async def test_a_template_is_applied_while_another_writes_to_it(api):
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "WorkflowTemplate",
        "metadata": {"name": "train"},
        "spec": {"entrypoint": "main"},
    }
    stored(api, WORKFLOW_TEMPLATES, "train", spec={"entrypoint": "old"})
    changed, applied = await apply_template(api, "lab", document)
    assert (changed["spec"], applied) == ({"entrypoint": "main"}, Applied.CHANGED)


async def test_keys_of_sessions_rotate_while_another_server_rotates_them(api):
    await load_keys(api)
    assert await rotate_keys(api) == 2
    assert len((await api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE))["data"]) == 2


async def test_an_object_that_always_changes_is_a_conflict():
    api, clock = Api(overtakes=TRIES), Hasty()
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
