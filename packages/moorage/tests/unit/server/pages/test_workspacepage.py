"""The facts on the page of one workspace."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from moorage.actions.workspaces import plan_workspace, workspace_of
from moorage.api.workspaces import NewWorkspace
from moorage.server.pages.workspacepage import facts_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "text", "zone"),
    [
        ({"start": "0 8 * * 1-5", "stop": "0 18 * * *"}, "start 0 8 * * 1-5, stop 0 18 * * *", "UTC"),
        ({"stop": "0 18 * * *", "timeZone": "Europe/Berlin"}, "stop 0 18 * * *", "Europe/Berlin"),
    ],
)
def test_a_schedule_names_its_time_zone(schedule, text, zone):
    spec = {"type": "jupyterlab", "schedule": schedule}
    obj = plan_workspace(NewWorkspace(name="lab", namespace="vision", spec=spec))
    facts = {fact.name: fact for fact in facts_of(workspace_of(obj), NOW)}
    assert (facts["Schedule"].text, facts["Schedule"].note) == (text, zone)
