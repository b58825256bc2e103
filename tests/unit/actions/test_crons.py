"""Schedules before they are sent."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.actions import crons
from moorage.actions.objects import InvalidObject
from moorage.decide.workflows.controllers import Controller
from moorage.model.workflow import CRON_WORKFLOWS


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
