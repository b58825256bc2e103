"""The alerts name metrics that are there, and the page names the alerts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moorage.model.manifests import ALL, make_service
from moorage.model.monitoring.monitors import make_monitoring
from moorage.model.monitoring.rules import ALERTS, RECORDINGS

DOCS = Path(__file__).parents[5] / "docs"
IDLE_STATES = {"idle", "warned", "reminded", "snoozed", "suspended"}
STATES = {"free", "used", "reserved", "unavailable"}


@pytest.mark.parametrize("rule", [*ALERTS, *RECORDINGS], ids=lambda rule: getattr(rule, "name", rule.expr[:40]))
def test_a_rule_asks_for_metrics_that_are_there(rule):
    known = set(re.findall(r"(?m)^\| `(\w+)`", (DOCS / "reference" / "metrics.md").read_text()))
    expression = rule.expr
    names = set(re.findall(r"\bmoorage_\w+", expression))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} <= known
    assert expression.count("(") == expression.count(")")
    for metric, states in re.findall(r'(\w+gpus)\{state=~"([^"]+)"', expression):
        assert set(states.split("|")) <= (IDLE_STATES if metric == "moorage_idle_gpus" else STATES)


def test_the_page_explains_every_alert():
    page = (DOCS / "howto" / "monitor-moorage.md").read_text()
    assert re.findall(r"(?m)^ *\| (Moorage\w+) \|", page) == [alert.name for alert in ALERTS]


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
