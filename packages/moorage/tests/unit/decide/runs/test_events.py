"""The events of a run as one list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.decide.runs.events import RunEvent, merge_events
from moorage_kube.moments import rfc3339

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def an_event(reason, *, minutes, message="text", name="train-abc", count=None, **more):
    at = rfc3339(NOON - timedelta(minutes=minutes))
    counted = {} if count is None else {"count": count}
    return {
        "metadata": {"name": f"{name}.{reason}", "creationTimestamp": rfc3339(NOON - timedelta(days=1))},
        "involvedObject": {"kind": "Pod", "name": name},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        **counted,
        **more,
    }


def test_events_that_say_the_same_are_counted_and_the_newest_comes_first():
    events = merge_events(
        [
            an_event("FailedScheduling", minutes=9, count=3, type="Warning"),
            an_event("Started", minutes=1),
            an_event("FailedScheduling", minutes=4, count=2, type="Warning"),
        ]
    )
    assert events == (
        RunEvent(
            at=NOON - timedelta(minutes=1),
            is_warning=False,
            reason="Started",
            message="text",
            about="pod train-abc",
            count=1,
        ),
        RunEvent(
            at=NOON - timedelta(minutes=4),
            is_warning=True,
            reason="FailedScheduling",
            message="text",
            about="pod train-abc",
            count=5,
        ),
    )


def test_a_series_counts_and_dates_an_event():
    series = {"count": 7, "lastObservedTime": rfc3339(NOON)}
    [event] = merge_events([an_event("Pulled", minutes=5, series=series)])
    assert (event.count, event.at) == (7, NOON)


def test_only_the_newest_are_kept():
    events = merge_events((an_event(f"R{minute}", minutes=minute) for minute in range(9)), most=2)
    assert [event.reason for event in events] == ["R0", "R1"]


def test_an_event_with_a_time_that_cannot_be_read_comes_last():
    events = merge_events([an_event("Odd", minutes=1, lastTimestamp="yesterday"), an_event("Good", minutes=5)])
    assert [(event.reason, event.at is None) for event in events] == [("Good", False), ("Odd", True)]
