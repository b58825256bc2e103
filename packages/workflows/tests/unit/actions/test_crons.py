"""Schedules before they are sent."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from moorage.actions.objects import InvalidObject
from moorage.model.argo import CRON_WORKFLOWS
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_workflows.actions import crons
from moorage_workflows.decide.workflows.controllers import Controller


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"metadata": 5},
        {"metadata": {"labels": 5}},
        {"metadata": {"name": 7, "annotations": ["a"]}},
        {"spec": 5},
        {"spec": {"schedules": 5, "workflowSpec": 3}},
    ],
)
def test_odd_manifests_are_refused_with_their_fields(parts: dict[str, Any]) -> None:
    document = {"apiVersion": CRON_WORKFLOWS.api_version, "kind": CRON_WORKFLOWS.kind} | parts
    with pytest.raises(InvalidObject):
        crons.plan_cron(document, "lab", Controller.MOORAGE)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("cursor", "missed", "since"),
    [
        pytest.param(None, None, None, id="the operator has not looked yet"),
        pytest.param(NOON, None, NOON, id="from where the operator looks on"),
        pytest.param(NOON - HOUR, None, NOON, id="no slot is due before it is created"),
        pytest.param(NOON + HOUR, NOON + HOUR, NOON + HOUR - timedelta(seconds=1), id="a missed slot counts"),
    ],
)
def test_slots_are_due_since_the_operator_looks(cursor, missed, since) -> None:
    moments = {"cursor": cursor, "missed": missed}
    state = json.dumps({key: int(at.timestamp()) for key, at in moments.items() if at is not None})
    meta = {"name": "n", "creationTimestamp": rfc3339(NOON), "annotations": {"moorage.dev/cron-state": state}}
    cron = crons.cron_of({"metadata": meta, "spec": {"schedules": ["0 * * * *"]}}, (), NOON + 2 * HOUR)
    assert (cron.created, cron.since) == (NOON, since)
