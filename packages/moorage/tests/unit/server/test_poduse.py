"""Who may see what is used, what it costs and what is idle, and who may put off, suspend and resume it."""

from __future__ import annotations

import json

import pytest

from moorage.decide.idle.states import Record, State, write_record
from moorage.decide.usage.intervals import Open
from moorage.decide.usage.nodelives import Begin
from moorage.model.argo import WORKFLOWS
from moorage.model.budget import BUDGETS
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import IDLE_ANNOTATION, PRICES_CONFIGMAP, SUSPENDED_ANNOTATION, SYSTEM_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import Forbidden
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES
from moorage_kube.testing.clock import NOON
from moorage_testing.costs import HOUR, MONTH_SHEET, a_life, a_share

pytestmark = pytest.mark.anyio

OF_OTHERS = {"jobs": JOBS, "workspaces": WORKSPACES, "maps": MAPJOBS, "workflows": WORKFLOWS}
READS = ("use", "cost", "cost/daily", "cost/prices", "rightsize", "idle", "budgets", "jobs/speech/x/use")
CHANGES = (
    *(f"{plural}/speech/x/snooze" for plural in OF_OTHERS),
    "jobs/speech/x/suspend",
    "jobs/speech/x/resume",
)
IDLE = write_record(Record(state=State.WARNED, since=NOON - HOUR, why="GPU below 5 %", gpus=1))
AS_ADA = {"authorization": "Bearer kube-token"}


class Acting:
    """The Kubernetes API as a person: `reads` lets them get and list, nothing lets them change anything."""

    def __init__(self, api, *, reads):
        self._api, self._reads = api, reads

    def __getattr__(self, name):
        if name in ("get", "list") and self._reads:
            return getattr(self._api, name)

        async def refuse(*_, **__):
            raise Forbidden(f"ada may not {name} this")

        return refuse


@pytest.fixture
async def speech(site):
    """ben's work in the namespace speech, a tenant that ada is no member of, and ada's own pod in team."""
    site.api.put(NAMESPACES, {"metadata": {"name": "speech"}})
    spec = {"namespace": "speech", "members": {"people": ["ben"]}}
    site.api.put(TENANTS, {"metadata": {"name": "ears"}, "spec": spec})
    budget = {"period": "month", "gpuHours": "5"}
    site.api.put(BUDGETS, {"metadata": {"name": "bens"}, "spec": budget | {"users": ["ben"]}})
    site.api.put(BUDGETS, {"metadata": {"name": "ears"}, "spec": budget | {"tenants": ["ears"]}})
    prices = {"prices.yaml": json.dumps(MONTH_SHEET, default=str)}
    site.api.put(
        CONFIGMAPS, {"metadata": {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}, "data": prices}
    )
    async with site.running():
        for resource in (WORKSPACES, MAPJOBS, WORKFLOWS):
            meta = {"name": "x", "namespace": "speech", "annotations": {IDLE_ANNOTATION: IDLE}}
            site.api.put(resource, {"metadata": meta, "spec": {"type": "jupyterlab", "running": True}})
        site.run("x", namespace="speech", owner="ben", notes={IDLE_ANNOTATION: IDLE})
        await site.until(lambda: site.service.cluster.jobs_of_run("speech", "x"))
        since, store = NOON - 10 * HOUR, site.service.usage
        store.apply_nodes([Begin(a_life(since=since, hours=10))], now=since)
        store.apply(
            Open(pod)
            for pod in (
                a_share("a", since=since, hours=5, gpus=1, run="mine"),
                a_share("b", since=since, hours=2, gpus=1, owner="ben", namespace="speech", run="secret-tune"),
            )
        )
        yield site


async def post(site, path, **options):
    body = json.dumps({"time": "1h"} if path.endswith("snooze") else {}).encode()
    headers = {"content-type": "application/json"} | options.pop("headers", {})
    return await site.ask(f"/api/v1/{path}", method="POST", headers=headers, body=body, **options)


async def marks(site):
    objects = [await site.api.get(resource, "x", "speech") for resource in OF_OTHERS.values()]
    return [obj["metadata"]["annotations"][IDLE_ANNOTATION] for obj in objects]


@pytest.mark.parametrize("path", READS)
async def test_strangers_read_nothing(speech, path):
    answer = await speech.ask(f"/api/v1/{path}", token=False)
    assert answer.status == 401
    assert "ben" not in answer.text


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("who", ["nobody", "the page's token", "a member of another tenant", "who may only read"])
async def test_work_of_others_is_not_put_off_suspended_or_resumed(speech, path, who):
    speech.api.with_token = lambda *_: Acting(speech.api, reads=who == "who may only read")
    if path.endswith("resume"):
        notes = {SUSPENDED_ANNOTATION: '{"by":"ben"}'}
        await speech.api.patch(
            JOBS, "x", {"metadata": {"annotations": notes}, "spec": {"suspend": True}}, "speech"
        )
    before = await speech.api.get(JOBS, "x", "speech")
    if who == "nobody":
        answer = await post(speech, path, token=False)
    elif who == "the page's token":
        answer = await post(speech, path)
    else:
        answer = await post(speech, path, token=False, headers=AS_ADA)
    assert answer.status == (401 if who == "nobody" else 403), answer.text
    assert await marks(speech) == [IDLE] * len(OF_OTHERS)
    assert await speech.api.get(JOBS, "x", "speech") == before


@pytest.mark.parametrize("headers", [AS_ADA, {}], ids=["a member of another tenant", "the page's token"])
async def test_money_advice_and_budgets_of_others_are_not_shown_by_name(speech, headers):
    by_run = [f"cost?by={by}&since={(NOON - 10 * HOUR).isoformat()[:19]}Z" for by in ("run", "user", "namespace")]
    for path in (*by_run, "cost/daily?by=user", "rightsize", "rightsize?namespace=speech", "budgets"):
        answer = await speech.ask(f"/api/v1/{path}", headers=headers, token=not headers)
        assert answer.status == 200, answer.text
        assert "secret-tune" not in answer.text, path
        assert '"ben"' not in answer.text, path
        assert "ears" not in answer.text, path
    speech.api.readers |= {("ada", "speech"), ("ada", None)}
    speech.clock.advance(61)
    shown = await speech.ask(f"/api/v1/{by_run[0]}", headers=AS_ADA, token=False)
    assert "secret-tune" in shown.text  # what the answers above had to hide


@pytest.mark.parametrize("headers", [AS_ADA, {}], ids=["a member of another tenant", "the page's token"])
async def test_bills_of_everybody_are_compared_by_those_who_list_all_pods(speech, headers):
    sent = {"content-type": "application/json", **headers}
    answer = await speech.ask("/api/v1/cost/compare", method="POST", body=b"{}", headers=sent, token=not headers)
    assert (answer.status, "secret-tune" in answer.text) == (403, False), answer.text


async def test_nothing_of_a_command_stands_in_lists_that_everybody_sees(speech):
    for path in ("use", "idle", "jobs/speech/x/use"):
        answer = await speech.ask(f"/api/v1/{path}", headers=AS_ADA, token=False)
        assert answer.status == 200
        assert "secret.py" not in answer.text
