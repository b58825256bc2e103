"""Schedules over HTTP: created as the asker, read, suspended, run, backfilled, deleted."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage_kube.clock import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_workflows.model.workflow import WorkflowRecord
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

ALL, ONE = "/api/v1/crons", "/api/v1/crons/lab/nightly"
HOUR = timedelta(hours=1)
SLOT = int(NOON.timestamp())
MANIFEST = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "CronWorkflow",
    "metadata": {"name": "nightly"},
    "spec": {
        "schedules": ["0 * * * *"],
        "workflowSpec": {"entrypoint": "main", "templates": [{"name": "main", "suspend": {}}]},
    },
}


@pytest.fixture
def ask(site):
    site.api.with_token = lambda *_: site.api

    async def ask(method, path, body=None, key=None):
        headers = {"authorization": "Bearer kube-token", "content-type": "application/json"}
        if key is not None:
            headers["idempotency-key"] = key
        text = b"" if body is None else json.dumps(body).encode()
        answer = await site.ask(path, method=method, headers=headers, body=text, token=False)
        return answer.status, json.loads(answer.body) if answer.body else None

    return ask


async def test_a_schedule_from_its_beginning_to_its_end(site, ask):
    status, made = await ask("POST", ALL, {"manifest": MANIFEST, "namespace": "lab"}, key="k1")
    assert (status, made["name"], made["inWords"]) == (201, "nightly", ["At the start of every hour"])
    assert await ask("POST", ALL, {"manifest": MANIFEST, "namespace": "lab"}, key="k1") == (201, made)
    status, listed = await ask("GET", f"{ALL}?namespace=lab")
    assert [cron["name"] for cron in listed["crons"]] == ["nightly"]
    status, suspended = await ask("POST", f"{ONE}/suspend")
    assert (status, suspended["suspended"], "next" in suspended) == (200, True, False)
    status, resumed = await ask("POST", f"{ONE}/resume")
    assert "suspended" not in resumed
    status, run = await ask("POST", f"{ONE}/run", {"parameters": {}})
    assert (status, run["phase"]) == (201, "Pending")
    assert (await ask("GET", f"{ONE}/history"))[1]["runs"][0]["name"] == run["name"]
    assert (await ask("GET", ONE))[1]["active"] == [run["name"]]
    assert (await ask("DELETE", ONE))[0] == 204
    assert (await ask("GET", ONE))[0] == 404


async def test_a_backfill_passes_over_runs_whose_objects_are_gone(site, ask):
    created = rfc3339(NOON - 100 * HOUR)
    labels = {"workflows.argoproj.io/controller-instanceid": "moorage"}
    meta = {"name": "nightly", "namespace": "lab", "creationTimestamp": created, "labels": labels}
    site.api.put(CRON_WORKFLOWS, MANIFEST | {"metadata": meta})
    gone = f"nightly-{SLOT - 3600}"
    record = WorkflowRecord(uid="w1", namespace="lab", name=gone, document={}, cron="nightly", phase="Succeeded")
    await site.service.context.part(LocalRecords).begin(record)
    body = {"begin": rfc3339(NOON - 2 * HOUR), "end": rfc3339(NOON), "parallel": 2, "dryRun": True}
    status, answer = await ask("POST", f"{ONE}/backfill", body)
    assert (status, answer["skipped"]) == (200, [rfc3339(NOON - HOUR)])
    assert answer["slots"] == [rfc3339(NOON - 2 * HOUR), rfc3339(NOON)]
    status, answer = await ask("POST", f"{ONE}/backfill", body | {"dryRun": False})
    assert answer["id"]
    assert (await ask("POST", f"{ONE}/backfill", body | {"dryRun": False}))[0] == 409


async def test_an_invalid_schedule_is_refused_with_its_field(site, ask):
    spec = MANIFEST["spec"] | {"schedules": ["0 25 * * *"]}
    status, problem = await ask("POST", ALL, {"manifest": MANIFEST | {"spec": spec}, "namespace": "lab"})
    assert (status, problem["field"]) == (422, "spec.schedules")
    assert site.api._objects.get(WORKFLOWS, {}) == {}


async def test_a_schedule_is_replaced_and_keeps_what_it_remembers(site, ask):
    state = {"moorage.dev/cron-state": "{}"}
    await ask("POST", ALL, {"manifest": MANIFEST, "namespace": "lab"})
    await site.api.patch(CRON_WORKFLOWS, "nightly", {"metadata": {"annotations": state}}, "lab")
    labels = {"labels": {"team": "vision"}}
    meta, spec = MANIFEST["metadata"] | labels, MANIFEST["spec"] | {"schedules": ["5 * * * *"]}
    other = MANIFEST | {"metadata": meta, "spec": spec}
    status, changed = await ask("PUT", ONE, {"manifest": other, "namespace": "lab"})
    assert (status, changed["schedules"]) == (200, ["5 * * * *"])
    stored = await site.api.get(CRON_WORKFLOWS, "nightly", "lab")
    assert stored["metadata"]["annotations"] == state
    assert stored["metadata"]["labels"]["team"] == "vision"
    assert stored["spec"] == other["spec"]


@pytest.mark.parametrize(
    ("path", "namespace", "status"),
    [
        pytest.param(f"{ALL}/lab/weekly", "lab", 422, id="another name"),
        pytest.param(f"{ALL}/art/nightly", "lab", 422, id="another namespace"),
        pytest.param(f"{ALL}/lab/nightly", "lab", 404, id="none of this name"),
    ],
)
async def test_a_replacement_is_of_the_schedule_in_the_path(ask, path, namespace, status):
    answer, problem = await ask("PUT", path, {"manifest": MANIFEST, "namespace": namespace})
    assert (answer, problem["code"]) == (status, "invalid" if status == 422 else "not_found")
