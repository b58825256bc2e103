"""The alerts name metrics that are there, and the page names the alerts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moorage.model.manifests import ALL, make_service
from moorage.model.monitoring import ALERTS, make_monitoring

DOCS = Path(__file__).parents[3] / "docs"
STATES = {"free", "used", "reserved", "unavailable"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert[0])
def test_an_alert_asks_for_metrics_that_are_there(alert):
    known = set(re.findall(r"(?m)^\| `(\w+)`", (DOCS / "reference" / "metrics.md").read_text()))
    expression = alert[1]
    assert set(re.findall(r"\bmoorage_\w+", expression)) <= known
    assert expression.count("(") == expression.count(")")
    for states in re.findall(r'state=~"([^"]+)"', expression):
        assert set(states.split("|")) <= STATES


def test_the_page_explains_every_alert():
    page = (DOCS / "howto" / "monitor-moorage.md").read_text()
    assert re.findall(r"(?m)^ *\| (Moorage\w+) \|", page) == [alert[0] for alert in ALERTS]


def test_monitors_select_the_services_and_their_ports():
    services = {
        obj["metadata"]["name"]: obj
        for service in ALL
        for obj in make_service(service, version="0")
        if obj["kind"] == "Service"
    }
    monitors = [obj for obj in make_monitoring() if obj["kind"] == "ServiceMonitor"]
    assert {obj["metadata"]["name"] for obj in monitors} == {service.full_name for service in ALL}
    for monitor in monitors:
        service = services[monitor["metadata"]["name"]]
        labels = service["metadata"]["labels"].items()
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
