"""Each alert fires when it should and is silent when it should be, by Prometheus' own judge of rules."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from moorage.model.monitoring.rules import ALERTS, RECORDINGS, rule_groups

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on PATH: install prometheus"
)

DAY = 86400


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series as promtool writes them, a minute apart. `labels`: of the alert that fires, beside its severity."""

    fires: dict[str, str]
    quiet: dict[str, str]
    at: str = "3h"
    labels: dict[str, str] = field(default_factory=dict)


def _gauge(value: float) -> str:
    return f"{value:g}x200"


def _long(value: float) -> str:
    return f"{value:g}x500"


def _rises(by: float) -> str:
    return f"0+{by:g}x200"


def _down(service: str) -> Case:
    up = f'up{{job="moorage-{service}", instance="a"}}'
    return Case(fires={up: _gauge(0)}, quiet={up: _gauge(0), up.replace('"a"', '"b"'): _gauge(1)})


def _histogram(name: str, labels: str, buckets: dict[str, float]) -> dict[str, str]:
    return {f'{name}_bucket{{{labels}le="{bound}"}}': _rises(by) for bound, by in buckets.items()}


REVIEWS = "moorage_webhook_review_duration_seconds"
PASSES = "moorage_reconcile_duration_seconds_count"

CASES = {
    "MoorageServerDown": _down("server"),
    "MoorageWebhookDown": _down("webhook"),
    "MoorageExtenderDown": _down("extender"),
    "MoorageOperatorDown": Case(
        fires={
            'moorage_operator_leads{instance="a"}': _gauge(0),
            'moorage_operator_leads{instance="b"}': _gauge(0),
        },
        quiet={
            'moorage_operator_leads{instance="a"}': _gauge(0),
            'moorage_operator_leads{instance="b"}': _gauge(1),
        },
    ),
    "MoorageExtenderNotAsked": Case(
        fires={
            "moorage_extender_last_request_timestamp_seconds": _gauge(60),
            'moorage_node_gpus{node="n"}': _gauge(8),
        },
        quiet={
            "moorage_extender_last_request_timestamp_seconds": "0+60x200",
            'moorage_node_gpus{node="n"}': _gauge(8),
        },
    ),
    "MoorageExtenderErrors": Case(
        fires={'moorage_extender_errors_total{verb="filter"}': _rises(1)},
        quiet={'moorage_extender_errors_total{verb="filter"}': _gauge(7)},
    ),
    "MoorageReconcileErrors": Case(
        fires={f'{PASSES}{{controller="runs", outcome="failed"}}': _rises(1)},
        quiet={
            f'{PASSES}{{controller="runs", outcome="failed"}}': _gauge(3),
            f'{PASSES}{{controller="runs", outcome="done"}}': _rises(90),
            f'{PASSES}{{controller="runs", outcome="conflict"}}': _rises(90),
        },
        labels={"controller": "runs"},
    ),
    "MoorageReconcileQueueLong": Case(
        fires={'moorage_reconcile_queue_depth{controller="runs"}': _gauge(101)},
        quiet={'moorage_reconcile_queue_depth{controller="runs"}': _gauge(100)},
        labels={"controller": "runs"},
    ),
    "MoorageCopyBehind": Case(
        fires={'moorage_informer_behind_seconds{job="moorage-server", resource="pods"}': _rises(60)},
        quiet={'moorage_informer_behind_seconds{job="moorage-server", resource="pods"}': _gauge(20)},
        labels={"job": "moorage-server", "resource": "pods"},
    ),
    "MoorageDatabaseErrors": Case(
        fires={'moorage_sql_errors_total{database="usage", verb="write"}': _rises(1)},
        quiet={'moorage_sql_errors_total{database="usage", verb="write"}': _gauge(1)},
        labels={"database": "usage"},
    ),
    "MoorageServerErrors": Case(
        fires={
            'moorage_http_requests_total{code="200"}': _rises(90),
            'moorage_http_requests_total{code="500"}': _rises(10),
        },
        quiet={
            'moorage_http_requests_total{code="200"}': _rises(99),
            'moorage_http_requests_total{code="404"}': _rises(50),
            'moorage_http_requests_total{code="500"}': _rises(1),
        },
    ),
    "MoorageReviewsFail": Case(
        fires={f'{REVIEWS}_count{{outcome="failed"}}': _rises(1)},
        quiet={
            f'{REVIEWS}_count{{outcome="failed"}}': _gauge(1),
            f'{REVIEWS}_count{{outcome="refused"}}': _rises(9),
        },
    ),
    "MoorageReviewsSlow": Case(
        fires=_histogram(REVIEWS, "", {"1.0": 50, "2.5": 50, "5.0": 60, "+Inf": 60}),
        quiet=_histogram(REVIEWS, "", {"1.0": 60, "2.5": 60, "5.0": 60, "+Inf": 60}),
    ),
    "MoorageCertificateExpires": Case(
        fires={'moorage_certificate_expires_timestamp_seconds{job="moorage-webhook"}': _gauge(6 * DAY)},
        quiet={'moorage_certificate_expires_timestamp_seconds{job="moorage-webhook"}': _gauge(8 * DAY)},
        labels={"job": "moorage-webhook"},
    ),
    "MoorageAuditRecordsLost": Case(
        fires={"moorage_audit_records_lost_total": _rises(1)},
        quiet={"moorage_audit_records_lost_total": _gauge(4)},
    ),
    "MoorageGpusFragmented": Case(
        fires={
            'moorage_gpus_free_of_little_use{type="a", kind="fragmented"}': _gauge(3),
            'moorage_cluster_gpus{state="free", instance="a"}': _gauge(4),
            'moorage_cluster_gpus{state="used", instance="a"}': _gauge(6),
            'moorage_cluster_gpus{state="used", instance="b"}': _gauge(6),
        },
        quiet={
            'moorage_gpus_free_of_little_use{type="a", kind="fragmented", instance="a"}': _gauge(2),
            'moorage_gpus_free_of_little_use{type="a", kind="fragmented", instance="b"}': _gauge(2),
            'moorage_cluster_gpus{state="free"}': _gauge(4),
            'moorage_cluster_gpus{state="used"}': _gauge(6),
        },
    ),
    "MoorageGpusFreeWhileRunsWait": Case(
        fires={
            'moorage_runs_waiting{reason="gpus", tenant="v"}': _gauge(1),
            'moorage_cluster_gpus{state="free"}': _gauge(1),
        },
        quiet={
            'moorage_runs_waiting{reason="gpus", tenant="v"}': _gauge(1),
            'moorage_runs_waiting{reason="node", tenant="v"}': _gauge(1),
            'moorage_cluster_gpus{state="free"}': _gauge(0),
        },
    ),
    "MoorageRunsWaitLong": Case(
        fires={'moorage_run_oldest_wait_seconds{tenant="v"}': _gauge(13 * 3600)},
        quiet={'moorage_run_oldest_wait_seconds{tenant="v"}': _gauge(11 * 3600)},
        labels={"tenant": "v"},
    ),
    "MoorageIdleGpusHeld": Case(
        fires={
            'moorage_idle_gpus{state="idle", tenant="v", instance="a"}': _long(1),
            'moorage_idle_gpus{state="warned", tenant="w", instance="a"}': _long(2),
            'moorage_tenant_gpus_held{tenant="v", type="a", instance="a"}': _long(4),
            'moorage_tenant_gpus_held{tenant="w", type="a", instance="a"}': _long(6),
        },
        quiet={
            'moorage_idle_gpus{state="idle", tenant="v", instance="a"}': _long(2),
            'moorage_idle_gpus{state="idle", tenant="v", instance="b"}': _long(2),
            'moorage_idle_gpus{state="snoozed", tenant="v", instance="a"}': _long(4),
            'moorage_idle_gpus{state="suspended", tenant="v", instance="a"}': _long(9),
            'moorage_tenant_gpus_held{tenant="v", type="a", instance="a"}': _long(10),
        },
        at="7h",
    ),
    "MoorageBudgetSpent": Case(
        fires={
            'moorage_budget_used_ratio{budget="m", kind="user", name="ada"}': _gauge(1),
            'moorage_budget_used_ratio{budget="m", kind="user", name="ben"}': _gauge(0.5),
        },
        quiet={'moorage_budget_used_ratio{budget="m", kind="user", name="ada"}': _gauge(0.99)},
        labels={"budget": "m", "kind": "user", "name": "ada"},
    ),
    "MoorageMapItemsFail": Case(
        fires={
            'moorage_map_items{tenant="v", state="dead"}': _gauge(2),
            'moorage_map_items{tenant="v", state="done"}': _gauge(10),
        },
        quiet={
            'moorage_map_items{tenant="v", state="dead"}': _gauge(1),
            'moorage_map_items{tenant="v", state="done"}': _gauge(10),
        },
        labels={"tenant": "v"},
    ),
}


def test_each_alert_has_a_case():
    assert set(CASES) == {alert.name for alert in ALERTS}


@promtool
def test_the_rules_are_valid(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": rule_groups()}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (
        f"{len(RECORDINGS)} rules found" in checked.stdout
        or f"{len(RECORDINGS) + len(ALERTS)} rules found" in (checked.stdout)
    )


def a_test(name: str, case: Case, *, fires: bool) -> dict[str, object]:
    """What promtool is to do for one alert."""
    alert = next(alert for alert in ALERTS if alert.name == name)
    labels = case.labels
    described = alert.description
    for key, value in labels.items():
        described = described.replace(f"{{{{ $labels.{key} }}}}", value)
    fired = {
        "exp_labels": labels | {"severity": alert.severity},
        "exp_annotations": {"summary": alert.summary, "description": described},
    }
    series = case.fires if fires else case.quiet
    return {
        "name": f"{name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": [fired] if fires else []}],
    }


def judged(folder: Path, cases: dict[str, list[dict[str, object]]]) -> subprocess.CompletedProcess[str]:
    """What promtool says of cases by alert; it computes all rules that it is given: each gets its own alone."""
    recorded, alerts = rule_groups()
    for name, tests in cases.items():
        (rule,) = (rule for rule in alerts["rules"] if rule["alert"] == name)
        used = [other for other in recorded["rules"] if other["record"] in rule["expr"]]
        groups = [recorded | {"rules": used}, alerts | {"rules": [rule]}]
        (folder / f"{name}-rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        told = {"rule_files": [f"{name}-rules.yaml"], "evaluation_interval": "1m", "tests": tests}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(told))
    command = ["promtool", "test", "rules", *(f"{name}.yaml" for name in cases)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@promtool
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
def test_each_alert_fires_or_is_quiet(tmp_path, fires):
    tested = judged(tmp_path, {name: [a_test(name, case, fires=fires)] for name, case in CASES.items()})
    assert tested.returncode == 0, tested.stdout + tested.stderr


@promtool
def test_a_wrong_expectation_is_noticed(tmp_path):
    name, case = next(iter(CASES.items()))
    wrong = a_test(name, Case(fires=case.quiet, quiet=case.fires, labels=case.labels), fires=True)
    tested = judged(tmp_path, {name: [wrong]})
    assert tested.returncode
    assert "exp:" in tested.stderr
