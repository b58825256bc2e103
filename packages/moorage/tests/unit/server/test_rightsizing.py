"""What runs should ask for, over HTTP and on pages: from what the stores hold to whom it is shown."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from moorage.api.storedrecords import StoredPod
from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.rightsizing import GIB
from moorage.decide.usage.samples import GpuReading, PodUse, Reading, added, tally_of
from moorage.server.rightsizing import past_of
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


def an_interval(uid, *, run="train-x7k2", owner="ada", namespace="team", hours=1.0, gpus=0, work="w", **more):
    ended = more.pop("ended", NOON)
    return Interval(
        **{
            "pod_uid": uid, "namespace": namespace, "pod": f"{run}-{uid}", "run": run, "attempt": 1,
            "owner": owner, "node": "n1", "gpu_type": "", "gpus": gpus, "cpu_milli": 4000,
            "memory_bytes": 16 * GIB,
            "started_at": ended - hours * HOUR, "ended_at": ended, "last_seen_at": ended, "work": work,
        } | more
    )  # fmt: skip


def a_kept_pod(uid, *, run="train-x7k2", peak=2 * GIB, code=0, reason="", limit=16 * GIB, namespace="team"):
    return StoredPod(
        uid=uid, job_uid=f"job-{uid}", namespace=namespace, run=run, attempt=1, name=run,
        exit_code=code, reason=reason, memory_limit_bytes=limit, peak_memory_bytes=peak, ended=NOON, gone=NOON,
    )  # fmt: skip


class Site:
    """A server with past runs of ada in the namespace team, and of bob in lab."""

    def __init__(self, site):
        self.site, self.service = site, site.service
        site.api.with_token = lambda *_: site.api
        for name in ("team", "lab"):
            site.api.put(NAMESPACES, {"metadata": {"name": name}})
        now = site.service.context.now()
        self.service.usage.apply(
            [
                *(Open(an_interval(f"a{at}", run=f"train-{at}", ended=now - at * HOUR)) for at in range(3)),
                Open(an_interval("b", run="other-1", owner="bob", namespace="lab", work="v", ended=now)),
                Open(an_interval("c", run="", work="u", ended=now)),
            ]
        )

    async def keep(self):
        rows = [a_kept_pod(f"a{at}", run=f"train-{at}") for at in range(3)]
        killed = a_kept_pod(
            "b", run="other-1", peak=None, code=137, reason="OOMKilled", namespace="lab", limit=GIB
        )
        await self.service._attempts.do(lambda store: store.write([], [*rows, killed]))

    async def ask(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)

    async def works(self, query=""):
        answer = await self.ask(f"/api/v1/rightsize{query}")
        assert answer.status == 200, answer.text
        return [
            (work["name"], work["runs"], [(each["kind"], each["option"]) for each in work["advice"]])
            for work in json.loads(answer.body)["works"]
        ]


@pytest.fixture
async def team(site):
    async with site.running():
        made = Site(site)
        await made.keep()
        yield made


LOWER = ("train-0", 3, [("lower-memory", "--memory 2560Mi")])


async def test_advice_is_for_those_who_ran_it_and_those_who_may_list_the_jobs(team):
    team.site.api.readers = {("ada", "team")}
    assert await team.works() == [LOWER]
    assert await team.works("?namespace=team") == [LOWER]
    assert await team.works("?namespace=team&run=train-2") == [LOWER]
    assert await team.works("?namespace=team&run=nothing") == []


async def test_whoever_may_list_the_jobs_of_all_namespaces_gets_advice_about_all(team):
    team.site.api.readers = {("ada", "team"), ("ada", "lab")}
    assert await team.works() == [("other-1", 1, [("raise-memory-killed", "--memory 1536Mi")]), LOWER]


async def test_the_overview_of_a_run_has_advice_where_it_is_wanted(team):
    team.site.api.readers = {("ada", "team")}
    team.site.run("train-2", namespace="team")
    path = "/api/v1/jobs/team/train-2/overview"
    wanted, not_wanted = [(await team.ask(f"{path}{query}")).json["advice"] for query in ("?advice=true", "")]
    assert ([each["option"] for each in wanted], not_wanted) == (["--memory 2560Mi"], [])


async def test_a_new_run_is_judged_by_what_it_asks_for(team):
    team.site.api.readers = {("ada", "team")}
    at = "?namespace=team&work=w&run=new"
    assert await team.works(f"{at}&memoryBytes={16 * GIB}") == [LOWER]
    assert await team.works(f"{at}&memoryBytes={3 * GIB}") == [("train-0", 3, [])]
    assert await team.works(f"{at}&memoryBytes={2 * GIB}") == [
        ("train-0", 3, [("raise-memory-near", "--memory 2560Mi")])
    ]
    assert await team.works("?namespace=team&work=unknown&run=new") == []


async def test_gpus_that_were_measured_and_never_used_are_seen(team):
    now, slot = team.service.context.now(), timedelta(seconds=30)
    idle = tuple(GpuReading(device=f"g{at}", utilisation=1.0) for at in range(4))
    for at in range(3):
        interval = an_interval(f"g{at}", run=f"tune-{at}", gpus=4, work="g", ended=now)
        team.service.usage.apply([Open(interval)])
        team.service.samples.add(
            Reading(pod_uid=f"g{at}", at=now - number * slot, cpu_milli=3900, gpus=idle) for number in range(1, 11)
        )
    team.site.api.readers = {("ada", "team")}
    works = await team.works("?namespace=team&run=tune-0")
    assert works == [("tune-2", 3, [("no-gpus", "--gpus 0")])]


async def test_the_pages_say_it(team):
    team.site.api.readers = {("ada", "team")}
    answer = await team.ask("/rightsize")
    caption = "Runs that ask for too much or too little, by the use of past runs of the same command"
    advice = "memory 16Gi → 2560Mi: 3 runs of 3.0 h together used 2Gi at most"
    rows = [tuple(row.values()) for row in answer.page.rows(caption)]
    assert rows == [("train-0 team", "ada", advice, "--memory 2560Mi")]
    assert "other-1" not in answer.text
    assert ("Right sizes", "/rightsize") in (await team.ask("/jobs")).page.links()


def test_a_past_pod_is_put_together_from_all_stores():
    gpus = (GpuReading(device="g0", utilisation=50.0), GpuReading(device="g1", utilisation=0.0))
    readings = [
        Reading(pod_uid="a", at=NOON, cpu_milli=cpu, memory_bytes=memory, gpus=gpus)
        for cpu, memory in ((1000, 3 * GIB), (2000, GIB))
    ]
    tally = added(tally_of(reading) for reading in readings)
    use = PodUse(pod_uid="a", first=NOON, last=NOON, owner="ada", namespace="team", tally=tally)
    past = past_of(an_interval("a", gpus=2), a_kept_pod("a", limit=8 * GIB), use)
    assert past is not None
    assert (past.asked.memory_bytes, past.asked.gpus, past.well, past.killed) == (8 * GIB, 2, True, False)
    assert (past.memory_peak, past.cpu_peak, past.cpu_mean) == (3 * GIB, 2000, 1500.0)
    assert (past.gpu_mean, past.gpu_seconds, past.gpus_measured, past.gpus_busy) == (25.0, 120, 2, 1)
    blank = past_of(an_interval("a"), None, None)
    assert blank is not None
    assert (blank.memory_peak, blank.cpu_peak, blank.gpu_mean, blank.well, blank.killed) == (
        None, None, None, False, False,
    )  # fmt: skip
    assert past_of(an_interval("a", ended_at=None), None, None) is None
