"""What pods use, over REST and on the page of a run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from moorage_kube.testing.clock import NOON
from moorage_testing.readings import a_reading

pytestmark = pytest.mark.anyio


@pytest.fixture
async def measured(site):
    """A run with an hour of readings of its pod."""
    async with site.running():
        site.node("n1")
        site.run("train", namespace="team", node="n1")
        cluster = site.service.cluster
        await site.until(lambda: cluster.pods_of_run("team", "train"))
        (pod,) = cluster.pods_of_run("team", "train")
        uid = pod["metadata"]["uid"]
        site.uid = uid
        for number in range(120):
            at = site.clock.now() - timedelta(hours=1) + number * timedelta(seconds=30)
            site.service.samples.add([a_reading(uid, at=at, use=(float(number % 100),))])
        yield site


async def test_a_run_has_a_series_for_each_pod(measured):
    use = (await measured.ask("/api/v1/jobs/team/train/use")).json
    assert use["stepSeconds"] == 30
    (pod,) = use["pods"]
    assert (pod["uid"], pod["attempt"], len(pod["points"])) == (measured.uid, 1, 120)
    assert pod["total"]["measuredSeconds"] == 3600
    assert pod["total"]["gpuPeakPercent"] == 99.0
    assert pod["points"][7] | {"start": ""} == {
        "start": "", "seconds": 30, "measuredSeconds": 30, "gpuPercent": 7.0, "gpuPeakPercent": 7.0,
        "gpuMemoryBytes": 2**30, "powerWatts": 200.0, "cpu": 1.5, "memoryBytes": 2**29, "memoryPeakBytes": 2**29,
    }  # fmt: skip
    few = (await measured.ask("/api/v1/jobs/team/train/use?points=20")).json
    assert (few["stepSeconds"], len(few["pods"][0]["points"])) == (300, 12)


async def test_no_more_of_a_life_is_measured_than_there_is(site):
    async with site.running():
        site.run("young", namespace="team", node="n1")
        await site.until(lambda: site.service.cluster.pods_of_run("team", "young"))
        (pod,) = site.service.cluster.pods_of_run("team", "young")
        site.service.samples.add([a_reading(pod["metadata"]["uid"], at=site.clock.now())])
        (series,) = (await site.ask("/api/v1/jobs/team/young/use")).json["pods"]
    assert (series["total"]["seconds"], series["total"]["measuredSeconds"]) == (30, 30)


@pytest.mark.parametrize("plural", ["jobs", "workspaces", "workflows"])
async def test_what_does_not_exist_has_no_use(site, plural):
    async with site.running():
        answer = await site.ask(f"/api/v1/{plural}/team/none/use")
    assert answer.status == 404
    assert "none" in answer.json["message"]


async def test_what_runs_now_is_listed_with_what_it_uses(measured):
    (pod,) = (await measured.ask("/api/v1/use")).json["pods"]
    assert (pod["title"], pod["kind"], pod["node"], pod["cpu"], pod["gpuPercent"]) == (
        "train",
        "run",
        "n1",
        1.5,
        19.0,
    )
    measured.clock.advance(timedelta(minutes=10))
    assert (await measured.ask("/api/v1/use")).json["pods"] == []  # what was read long ago is not now


async def test_the_page_of_a_run_has_charts(measured):
    page = (await measured.ask("/jobs/team/train")).page
    charts = ["use-gpu", "use-cpu", "use-memory"]
    for part in (page, (await measured.ask("/jobs/team/train/use")).page):
        assert [chart.attributes["id"] for chart in part.all("figure[data-chart]")] == charts
        assert part.texts("#use-gpu figcaption") == ["GPU utilisation"]
    assert "/static/charts.js" in [script.attributes["src"] for script in page.all("script[src]")]


async def test_what_nobody_measured_has_no_charts(site):
    async with site.running():
        site.node("n1")
        site.run("quiet", namespace="team", node="n1")
        await site.until(lambda: site.service.cluster.pods_of_run("team", "quiet"))
        assert (await site.ask("/api/v1/jobs/team/quiet/use")).json == {"stepSeconds": 30, "pods": []}
        assert (await site.ask("/jobs/team/quiet")).page.all("[data-chart]") == []
        assert (await site.ask("/jobs/team/quiet/use")).text == ""
        assert site.clock.now() == NOON


async def test_prometheus_sees_how_busy_held_gpus_are_while_readings_are_fresh(measured):
    measured.run("dark", namespace="team", node="n1")
    await measured.until(lambda: measured.service.cluster.pods_of_run("team", "dark"))
    text = (await measured.ask("/metrics")).text
    assert 'moorage_user_gpu_utilisation_ratio{user="ada"} 0.19\n' in text
    assert 'moorage_user_gpus_measured{measured="yes",user="ada"} 1.0' in text
    assert 'moorage_user_gpus_measured{measured="no",user="ada"} 1.0' in text
    measured.clock.advance(300)
    text = (await measured.ask("/metrics")).text
    assert "moorage_user_gpu_utilisation_ratio{" not in text
    assert 'moorage_user_gpus_measured{measured="no",user="ada"} 2.0' in text
