"""The dashboards are what Grafana imports, and ask for metrics that are there."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from moorage.model.monitoring.dashboards import COLUMNS, SCHEMA_VERSION, dashboards
from moorage.model.monitoring.rules import RECORDINGS

DOCS = Path(__file__).parents[6] / "docs"
# of Grafana's list of units: https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats
UNITS = {"short", "percentunit", "s", "h", "bytes", "ops", "reqps"}
KINDS = {"timeseries", "stat", "table", "bargauge"}

every_dashboard = pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: dashboard["uid"])


@every_dashboard
def test_a_dashboard_has_what_grafana_needs(dashboard):
    assert dashboard["schemaVersion"] == SCHEMA_VERSION
    assert re.fullmatch(r"[a-z0-9-]{1,40}", dashboard["uid"])
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    for panel in panels:
        assert panel["type"] in KINDS
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables[0] == "datasource"
    assert len(set(variables)) == len(variables)


@every_dashboard
def test_panels_are_on_the_grid_and_do_not_overlap(dashboard):
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        assert place["y"] >= 0
        assert place["h"] > 0
    for place, other in combinations(places, 2):
        apart = (
            place["x"] + place["w"] <= other["x"]
            or other["x"] + other["w"] <= place["x"]
            or place["y"] + place["h"] <= other["y"]
            or other["y"] + other["h"] <= place["y"]
        )
        assert apart, (place, other)


@every_dashboard
def test_panels_ask_for_what_is_there(dashboard):
    known = set(re.findall(r"(?m)^\| `(\w+)`", (DOCS / "reference" / "metrics.md").read_text()))
    recorded = {rule.record for rule in RECORDINGS}
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            assert set(re.findall(r"\$(\w+)", expression)) <= variables
            names = set(re.findall(r"[a-z_]+:\w+:\w+", expression))
            assert names <= recorded
            for name in names:
                expression = expression.replace(name, "")
            for name in re.findall(r"\b(?:moorage|argo_workflows)_\w+", expression):
                assert re.sub(r"_(bucket|count|sum)$", "", name) in known or name in known, name
