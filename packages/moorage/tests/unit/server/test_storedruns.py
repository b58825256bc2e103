"""What is kept of runs over HTTP and on the page: who gets it, in which order, and what is never given."""

from __future__ import annotations

import base64
import json

import pytest

from moorage.api.storedrecords import StoredPod
from moorage_kube.clock import rfc3339
from moorage_kube.errors import ServerError, StorageError
from moorage_kube.resources import JOBS, NAMESPACES, PODS
from moorage_kube.testing.clock import NOON
from moorage_kube.testing.waiting import until

pytestmark = pytest.mark.anyio

ONE = "/api/v1/jobs/lab/train"
PRINTED = b"2026-11-21T12:00:00.000000001Z one\n2026-11-21T12:00:01Z two\n"


class Asker:
    """ada, with a Kubernetes token."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda *_: site.api

    async def __call__(self, path, method="GET"):
        return await self.site.ask(
            path, method=method, headers={"authorization": "Bearer kube-token"}, token=False
        )

    async def keep(self, log=PRINTED, name="train"):
        """A run that ran on n1 and whose pod is gone; all that is known of it is kept."""
        job = self.site.run(name, pod=False)
        started = {"running": {"startedAt": rfc3339(NOON)}}
        self.pod = {
            "metadata": {
                "namespace": "lab",
                "name": f"{name}-x",
                "uid": "p1",
                "labels": job["metadata"]["labels"],
                "ownerReferences": [
                    {"controller": True, "uid": job["metadata"]["uid"], "kind": "Job", "name": name}
                ],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": started}]},
        }
        keeper = self.site.service.keeper
        self.api.put(PODS, self.pod)
        await self.row(lambda row: row.gone is None)
        keeper._folder.append("p1", log)
        self.api.remove(PODS, f"{name}-x", "lab")
        self.api.put(JOBS, job | {"spec": job["spec"] | {"suspend": True}})
        await self.row(lambda row: row.gone is not None)
        await self.site.until(lambda: self.site.service.cluster.jobs.all()[0]["spec"].get("suspend"))
        return "p1"

    async def row(self, check):
        """Wait until what is kept of the pod is as wanted."""

        async def is_wanted():
            kept = await self.site.service.keeper.read_run("lab", "train")
            return any(pod.uid == "p1" and check(pod) for pod in kept.pods)

        await until("the record of the pod", is_wanted)

    async def delete(self, name="train"):
        self.api.remove(JOBS, name, "lab")
        await self.site.until(lambda: not self.site.service.cluster.jobs_of_run("lab", name))


@pytest.fixture
async def stranger(site):
    """As ada, who may read nothing of the namespace."""
    async with site.running():
        yield Asker(site)


@pytest.fixture
async def ada(stranger):
    stranger.api.readers.add(("ada", "lab"))
    return stranger


async def test_facts_and_log_of_a_pod_that_is_gone_are_shown(ada):
    await ada.keep()
    shown = (await ada(ONE)).json
    (pod,) = shown["history"][0]["pods"]
    assert (pod["node"], pod["phase"], pod["reason"], pod["gone"]) == ("n1", "Failed", "Deleted", True)
    assert (await ada(f"{ONE}/logs")).text == "one\ntwo\n"
    assert (await ada(f"{ONE}/logs?tail=1&attempt=1")).text == "two\n"
    missing = await ada(f"{ONE}/logs?attempt=2")
    assert (missing.status, missing.json["hint"]) == (404, "it has only 1")
    page = (await ada("/jobs/lab/train")).page
    assert page.element("#log-text").text == "one\ntwo\n"
    [row] = page.rows("Its attempts with their pods, newest first")
    assert row["State"] == "Failed deleted Deleted"
    assert page.texts("p.more")[0].startswith("A pod marked deleted no longer exists.")
    assert page.texts("#log-title") == ["Log train-x, its last lines, kept after the pod was gone"]
    assert (await ada("/jobs/lab/train/log")).text == "one\ntwo\n"


async def test_lists_show_the_nodes_of_pods_that_are_gone_by_one_look_into_the_store(ada):
    site, keeper, lookups = ada.site, ada.site.service.keeper, []
    names = [f"run-{number:02}" for number in range(60)]
    jobs = [site.run(name, pod=False) for name in names]
    pods = [
        StoredPod(
            uid=f"pod-of-{name}",
            job_uid=job["metadata"]["uid"],
            namespace="lab",
            run=name,
            attempt=1,
            name=f"{name}-x",
            node=f"node-of-{name}",
            phase="Failed",
            started=NOON,
            exit_code=3,
            gone=NOON,
        )
        for name, job in zip(names, jobs, strict=True)
    ]
    for job in jobs:
        site.api.put(JOBS, job | {"spec": job["spec"] | {"suspend": True}})
    site.run("running", node="n1")
    await site.until(
        lambda: len([job for job in site.service.cluster.jobs.all() if job["spec"].get("suspend")]) == 60
    )
    await keeper._store.do(lambda store: store.write([], pods))
    whole = keeper.read_pods

    async def counted(uids):
        lookups.append(list(uids))
        return await whole(lookups[-1])

    keeper.read_pods = counted
    listed = (await ada("/api/v1/jobs?limit=61")).json["jobs"]
    assert {job["name"]: job["node"] for job in listed} == {name: f"node-of-{name}" for name in names} | {
        "running": "n1"
    }
    assert {(job["exitCode"], job["started"]) for job in listed if job["name"] in names} == {(3, rfc3339(NOON))}
    assert [len(uids) for uids in lookups] == [60]
    page = (await ada("/jobs?whose=all")).text
    assert page.count("/nodes/node-of-run-") == 50  # the rows of a page
    assert [len(uids) for uids in lookups] == [60, 50]
    assert (await ada("/api/v1/jobs?state=Running")).json["jobs"][0]["node"] == "n1"
    assert len(lookups) == 2  # where all pods are there the store is not asked


async def test_a_store_that_cannot_be_read_stands_in_the_way_of_no_list(ada):
    await ada.keep()
    assert [job["node"] for job in (await ada("/api/v1/jobs")).json["jobs"]] == ["n1"]

    async def broken(_):
        raise StorageError("the disk is gone")

    ada.site.service.keeper.read_pods = broken
    assert [job["node"] for job in (await ada("/api/v1/jobs")).json["jobs"]] == [""]


async def test_a_deleted_run_is_shown_as_it_stood(ada):
    await ada.keep()
    await ada.delete()
    shown = (await ada(ONE)).json
    assert (shown["state"], shown["command"], shown["node"]) == ("Deleted", "python secret.py", "n1")
    assert (await ada(f"{ONE}/logs")).text == (await ada(f"{ONE}/logs?follow=true")).text == "one\ntwo\n"
    assert (await ada("/jobs/lab/train")).status == 200
    assert (await ada("/api/v1/jobs/lab/other")).status == 404


async def test_where_the_beginning_is_cut_the_log_says_how_much_is_kept(ada):
    many = b"".join(b"2026-11-21T12:00:00Z %d a line of a long log\n" % at for at in range(60_000))
    await ada.keep(many)
    first, second = (await ada(f"{ONE}/logs")).text.splitlines()[:2]
    assert first == "--- earlier lines of train-x were dropped: the last 1Mi are stored"
    assert second.endswith("a line of a long log")
    assert "---" not in (await ada(f"{ONE}/logs?tail=5")).text
    assert "---" not in (await ada("/jobs/lab/train/log")).text  # as its end alone is shown there
    searched = (await ada("/jobs/lab/train/log?q=59999")).text
    mark = f'<span class="cut">{first.removeprefix("--- ")}</span>'
    assert searched == f"{mark}\n59999 a line of a long log\n"


async def test_the_page_marks_where_a_kept_log_begins(ada):
    few = b"".join(b"2026-11-21T12:00:00Z %d %s\n" % (at, b"<" * 6000) for at in range(300))
    await ada.keep(few)
    mark = '<span class="cut">earlier lines of train-x were dropped: the last 1Mi are stored</span>\n'
    first, second = (await ada("/jobs/lab/train/log")).text.split("\n")[:2]
    assert f"{first}\n" == mark
    assert second.endswith("&lt;")
    assert mark in (await ada("/jobs/lab/train")).text
    assert mark in (await ada("/jobs/lab/train/log?q=299")).text


async def test_who_may_not_read_logs_or_jobs_gets_nothing_that_is_kept(stranger):
    uid = await stranger.keep()
    for path in (f"{ONE}/logs", f"{ONE}/records", f"{ONE}/records/{uid}"):
        answer = await stranger(path)
        assert (answer.status, answer.json["code"]) == (403, "forbidden"), path
        assert "one" not in answer.text
    assert (await stranger(f"{ONE}/records", "DELETE")).status == 403
    shown = (await stranger(ONE)).json
    assert "secret.py" not in json.dumps(shown)
    assert shown["history"][0]["pods"][0]["node"] == "n1"  # public, as of a pod that is there
    looking = await stranger.site.ask(f"{ONE}/records/{uid}")  # the page's token
    assert looking.status == 403
    page = await stranger.site.ask("/jobs/lab/train")
    assert "one\ntwo" not in page.text


async def test_what_is_kept_is_given_by_run_and_not_by_uid_alone(ada):
    uid = await ada.keep()
    assert (await ada(f"/api/v1/jobs/lab/other/records/{uid}")).status == 404
    ada.api.readers.add(("ada", "home"))
    assert (await ada(f"/api/v1/jobs/home/train/records/{uid}")).status == 404
    kept = (await ada(f"{ONE}/records/{uid}")).json
    assert (base64.b64decode(kept["lines"]), kept["mostBytes"]) == (PRINTED, 2**20)
    assert [pod["uid"] for pod in (await ada(f"{ONE}/records")).json["pods"]] == [uid]


async def test_a_namespace_made_anew_shows_nothing_of_the_old_one(ada):
    uid = await ada.keep()
    await ada.delete()
    meta = {"name": "lab", "creationTimestamp": rfc3339(NOON)}
    ada.api.put(NAMESPACES, {"metadata": meta})
    assert (await ada(ONE)).json["state"] == "Deleted"
    meta["creationTimestamp"] = rfc3339(NOON.replace(hour=13))
    ada.api.put(NAMESPACES, {"metadata": meta})
    assert [(await ada(path)).status for path in (ONE, f"{ONE}/logs", f"{ONE}/records/{uid}")] == [404, 404, 404]


async def test_what_is_kept_is_erased_on_request(ada):
    uid = await ada.keep()
    await ada.delete()
    assert (await ada(f"{ONE}/records", "DELETE")).json == {"pods": 1}
    assert [(await ada(path)).status for path in (ONE, f"{ONE}/records/{uid}")] == [404, 404]
    assert not (ada.site.folder / "attempts" / uid).exists()


async def test_a_node_that_is_away_leaves_what_is_kept(ada):
    await ada.keep()

    async def away(*_, tail_lines=None, **__):
        if tail_lines != 0:
            raise ServerError("dial tcp: no route to host")
        yield b""

    ada.api.logs = away
    ada.api.put(PODS, ada.pod)
    await ada.site.until(lambda: ada.site.service.cluster.pods.all())
    assert (await ada(f"{ONE}/logs")).text == "one\ntwo\n"


async def test_kept_bytes_and_streams_are_counted(ada):
    text = (await ada.site.ask("/metrics")).text
    assert "moorage_stored_log_bytes 0.0" in text
    assert "moorage_log_streams 0.0" in text
