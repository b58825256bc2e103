"""Events are counted, not repeated, and never disturb the work they are about."""

from __future__ import annotations

import pytest

from moorage_kube.errors import Forbidden
from moorage_kube.remote.events import EventRecorder
from moorage_kube.remote.objects import NOTE_MAX, event_name, make_event, make_object
from moorage_kube.resources import EVENTS, NODES, PODS, Obj
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

POD: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "lab", "uid": "u"}}


async def stored(api: FakeApi) -> list[Obj]:
    return (await api.list(EVENTS)).items


async def test_an_event_says_what_happened_to_what() -> None:
    api = FakeApi()
    await EventRecorder(api, component="op", clock=FakeClock()).record(POD, "Warning", "NodeLost", "gone")
    (event,) = await stored(api)
    assert event["metadata"]["namespace"] == "lab"
    assert event["metadata"]["name"].startswith("p.")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "namespace": "lab",
        "uid": "u",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Warning", "NodeLost", "gone", 1)


async def test_the_same_happening_is_counted_also_after_a_restart() -> None:
    api, clock = FakeApi(), FakeClock()
    recorder = EventRecorder(api, component="op", clock=clock)
    await recorder.record(POD, "Normal", "Restarted", "again")
    clock.advance(60)
    await recorder.record(POD, "Normal", "Restarted", "again")
    await EventRecorder(api, component="op", clock=clock).record(POD, "Normal", "Restarted", "again")
    (event,) = await stored(api)
    assert event["count"] == 3
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-11-21T12:00:00Z", "2026-11-21T12:01:00Z")


async def test_another_message_is_another_event() -> None:
    api = FakeApi()
    recorder = EventRecorder(api, component="op", clock=FakeClock())
    await recorder.record(POD, "Normal", "Restarted", "once")
    await recorder.record(POD, "Normal", "Restarted", "twice")
    assert sorted(event["message"] for event in await stored(api)) == ["once", "twice"]


async def test_an_event_that_was_collected_is_written_again() -> None:
    api = FakeApi()
    recorder = EventRecorder(api, component="op", clock=FakeClock())
    await recorder.record(POD, "Normal", "Restarted", "again")
    api.remove(EVENTS, (await stored(api))[0]["metadata"]["name"], "lab")
    await recorder.record(POD, "Normal", "Restarted", "again")
    assert [event["count"] for event in await stored(api)] == [1]


async def test_an_api_that_refuses_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.failing = Forbidden("no events for you")
    await EventRecorder(api, component="op", clock=FakeClock()).record(POD, "Normal", "Restarted", "again")
    assert [record.message for record in caplog.records] == ["cannot write an event"]


def test_events_about_the_whole_cluster_live_in_default() -> None:
    node = make_object(NODES, "n")
    event = make_event(node, type_="Normal", reason="R", message="x" * 5000, component="op", now=NOON)
    assert event["metadata"]["namespace"] == "default"
    assert len(event["message"]) == NOTE_MAX


def test_names_of_events_fit_whatever_the_object_is_called() -> None:
    pod = make_object(PODS, "x" * 253, "lab")
    assert len(event_name(pod, "Normal", "R", "m")) <= 253


def test_an_object_is_built_with_what_is_given() -> None:
    assert make_object(PODS, "p", "lab", labels={"a": "b"}, spec={}) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "lab", "labels": {"a": "b"}},
        "spec": {},
    }
