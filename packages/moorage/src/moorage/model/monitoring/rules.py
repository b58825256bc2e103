"""The rules by which Prometheus records series and alerts.

Servers that share a database report the same cluster: a figure of the cluster is their `max`, not their sum.
https://prometheus.io/docs/practices/rules/ (names of recorded series: level:metric:operations)
"""

from __future__ import annotations

from msgspec import Struct

from moorage_kube.resources import Obj

EVERY_SECONDS = 30
FREE_SHARE = 0.25  # of the GPUs of no use together: alert
IDLE_SHARE = 0.25  # of the held GPUs with idle work whose owner did not put it off: alert
LONG_WAIT_SECONDS = 12 * 3600
EXPIRES_SECONDS = 7 * 86400
SLOW_REVIEW_SECONDS = 2  # the API server waits 5


class Recording(Struct, frozen=True, kw_only=True):
    """A recorded series, so that dashboards and alerts do not compute it each time."""

    record: str
    expr: str


class Alert(Struct, frozen=True, kw_only=True):
    """`wait`: how long the expression must hold before the alert fires. `severity`: critical, warning or info."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    description: str  # the action to take; may have Prometheus' templates


def _quantile(level: str, metric: str) -> Recording:
    """The 99th percentile of a time, over five minutes."""
    return Recording(
        record=f"{level}:{metric}:p99_5m",
        expr=f"histogram_quantile(0.99, sum by ({level}, le) (rate({metric}_bucket[5m])))",
    )


def _busy(level: str, by: str) -> Recording:
    """The mean utilisation of measured GPUs: the mean of each node, weighted by its number of measured GPUs."""
    count = 'max by (node, type) (moorage_node_gpus_measured{measured="yes"})'
    return Recording(
        record=f"{level}:moorage_gpu_utilisation:ratio",
        expr=f"sum{by} (max by (node, type) (moorage_node_gpu_utilisation_ratio) * on (node, type) {count})"
        f" / sum{by} ({count} > 0)",
    )


RECORDINGS = (
    Recording(record="state:moorage_cluster_gpus:max", expr="max by (state) (moorage_cluster_gpus)"),
    Recording(record="type_state:moorage_type_gpus:max", expr="max by (type, state) (moorage_type_gpus)"),
    Recording(
        record="cluster:moorage_gpus:used_ratio",
        expr='sum(max by (state) (moorage_cluster_gpus{state="used"}))'
        ' / (sum(max by (state) (moorage_cluster_gpus{state=~"free|used|reserved"})) > 0)',
    ),
    Recording(
        record="type:moorage_gpus:used_ratio",
        expr='sum by (type) (max by (type, state) (moorage_type_gpus{state="used"}))'
        ' / (sum by (type) (max by (type, state) (moorage_type_gpus{state=~"free|used|reserved"})) > 0)',
    ),
    Recording(
        record="node:moorage_gpus:used_ratio",
        expr='sum by (node) (max by (node, type, state) (moorage_gpus{state="used"}))'
        ' / (sum by (node) (max by (node, type, state) (moorage_gpus{state=~"free|used|reserved"})) > 0)',
    ),
    _busy("cluster", ""),
    _busy("type", " by (type)"),
    Recording(
        record="cluster:moorage_idle_gpus:ratio",
        expr='sum(max by (state, tenant) (moorage_idle_gpus{state=~"idle|warned|reminded"}))'
        " / (sum(max by (tenant, type) (moorage_tenant_gpus_held)) > 0)",
    ),
    Recording(record="user:moorage_gpus_held:max", expr="max by (user) (moorage_gpus_held)"),
    Recording(
        record="tenant:moorage_gpus_held:max",
        expr="sum by (tenant) (max by (tenant, type) (moorage_tenant_gpus_held))",
    ),
    Recording(
        record="reason:moorage_runs_waiting:max",
        expr="sum by (reason) (max by (reason, tenant) (moorage_runs_waiting))",
    ),
    _quantile("route", "moorage_http_request_duration_seconds"),
    _quantile("verb", "moorage_webhook_review_duration_seconds"),
    _quantile("verb", "moorage_extender_request_seconds"),
    _quantile("controller", "moorage_reconcile_duration_seconds"),
    _quantile("database", "moorage_sql_duration_seconds"),
    Recording(
        record="job:moorage_http_errors:ratio_5m",
        expr='(sum by (job) (rate(moorage_http_requests_total{code=~"5.."}[5m]))'
        " or 0 * sum by (job) (rate(moorage_http_requests_total[5m])))"
        " / sum by (job) (rate(moorage_http_requests_total[5m]))",
    ),
)


def _down(service: str, summary: str, severity: str) -> Alert:
    return Alert(
        name=f"Moorage{service.capitalize()}Down",
        expr=f'absent(up{{job="moorage-{service}"}} == 1)',
        wait="5m",
        severity=severity,
        summary=summary,
        description="kubectl -n moorage-system get pods; moor doctor install",
    )


ALERTS = (
    _down("server", "No server of Moorage answers: commands, pages and maps do not work.", "critical"),
    Alert(
        name="MoorageOperatorDown",
        expr="absent(moorage_operator_leads == 1)",
        wait="5m",
        severity="critical",
        summary="No operator of Moorage works: runs are not restarted, workspaces and maps do not start.",
        description="kubectl -n moorage-system get pods; moor doctor install",
    ),
    _down(
        "webhook",
        "No webhook of Moorage answers: pods get no limits, or are refused, as its failure policy says.",
        "critical",
    ),
    _down("extender", "No extender of Moorage answers: GPU pods are spread over the nodes.", "warning"),
    Alert(
        name="MoorageExtenderNotAsked",
        expr="time() - max(moorage_extender_last_request_timestamp_seconds) > 3600"
        " and on() sum(moorage_node_gpus) > 0",
        wait="10m",
        severity="warning",
        summary="The extender has had no request for an hour.",
        description="docs/howto/pack-gpus-with-kube-scheduler.md: pods may be placed by another scheduler",
    ),
    Alert(
        name="MoorageExtenderErrors",
        expr="sum(rate(moorage_extender_errors_total[5m])) > 0",
        wait="10m",
        severity="warning",
        summary="The extender refuses requests: a scheduler has a wrong token, or asks too early.",
        description="compare the scheduler's token with the Secret moorage-extender",
    ),
    Alert(
        name="MoorageReconcileErrors",
        expr="sum by (controller)"
        ' (increase(moorage_reconcile_duration_seconds_count{outcome=~"refused|failed"}[10m])) > 5',
        wait="10m",
        severity="warning",
        summary="The operator fails at the same work again and again.",
        description="{{ $labels.controller }}: kubectl -n moorage-system logs deployment/moorage-operator",
    ),
    Alert(
        name="MoorageReconcileQueueLong",
        expr="max by (controller) (moorage_reconcile_queue_depth) > 100",
        wait="15m",
        severity="warning",
        summary="The operator does not keep up: more than 100 objects wait for it.",
        description="controller {{ $labels.controller }}: see its times on the dashboard Moorage / Services",
    ),
    Alert(
        name="MoorageCopyBehind",
        expr="max by (job, resource) (moorage_informer_behind_seconds) > 120",
        wait="5m",
        severity="warning",
        summary="A service decides by an old copy of the cluster: it cannot list or watch a collection.",
        description="{{ $labels.job }} and {{ $labels.resource }}: its log says why; often rights are missing",
    ),
    Alert(
        name="MoorageDatabaseErrors",
        expr="sum by (database) (increase(moorage_sql_errors_total[10m])) > 0",
        wait="5m",
        severity="warning",
        summary="SQL statements of the server fail: history, maps or logins may not work.",
        description="database {{ $labels.database }}: kubectl -n moorage-system logs deployment/moorage-server",
    ),
    Alert(
        name="MoorageServerErrors",
        expr='sum(rate(moorage_http_requests_total{code=~"5.."}[5m]))'
        " / (sum(rate(moorage_http_requests_total[5m])) > 0) > 0.05",
        wait="10m",
        severity="warning",
        summary="More than 5 % of the requests to the server fail.",
        description="kubectl -n moorage-system logs deployment/moorage-server",
    ),
    Alert(
        name="MoorageReviewsFail",
        expr='sum(increase(moorage_webhook_review_duration_seconds_count{outcome="failed"}[15m])) > 0',
        wait="0m",
        severity="warning",
        summary="The webhook could not judge an object, and refused it.",
        description="kubectl -n moorage-system logs deployment/moorage-webhook has the object and the error",
    ),
    Alert(
        name="MoorageReviewsSlow",
        expr="histogram_quantile(0.99, sum by (le) (rate(moorage_webhook_review_duration_seconds_bucket[5m])))"
        f" > {SLOW_REVIEW_SECONDS}",
        wait="10m",
        severity="warning",
        summary="Admission reviews take more than 2 s; the API server waits 5 s.",
        description="give the webhook more replicas or more CPU",
    ),
    Alert(
        name="MoorageCertificateExpires",
        expr=f"min by (job) (moorage_certificate_expires_timestamp_seconds) - time() < {EXPIRES_SECONDS}",
        wait="1h",
        severity="warning",
        summary="The certificate of a service ends within 7 days, and was not renewed.",
        description="moor doctor install; with MOORAGE_WEBHOOK_CERTIFICATE=given its giver renews it",
    ),
    Alert(
        name="MoorageAuditRecordsLost",
        expr="increase(moorage_audit_records_lost_total[1h]) > 0",
        wait="0m",
        severity="warning",
        summary="Changes in the Kubernetes API are not in the audit log, because the server was away.",
        description="keep the server up, or run two",
    ),
    Alert(
        name="MoorageGpusFragmented",
        expr="sum(max by (type, kind) (moorage_gpus_free_of_little_use))"
        f' / sum(max by (state) (moorage_cluster_gpus{{state=~"free|used|reserved"}})) > {FREE_SHARE}',
        wait="1h",
        severity="info",
        summary="A quarter of the GPUs is free, and of little use: next to used ones, or without CPU and memory.",
        description="docs/howto/choose-a-packing-policy.md",
    ),
    Alert(
        name="MoorageGpusFreeWhileRunsWait",
        expr='sum(max by (reason, tenant) (moorage_runs_waiting{reason="gpus"})) > 0'
        ' and on() max(moorage_cluster_gpus{state="free"}) > 0',
        wait="30m",
        severity="info",
        summary="GPUs are free and runs wait for GPUs: the free ones are of another type, or on different nodes.",
        description="moor explain RUN shows why each of them waits; moor gpus shows the free ones",
    ),
    Alert(
        name="MoorageRunsWaitLong",
        expr=f"max by (tenant) (moorage_run_oldest_wait_seconds) > {LONG_WAIT_SECONDS}",
        wait="10m",
        severity="info",
        summary="A run has waited for more than 12 hours.",
        description="tenant {{ $labels.tenant }}: moor jobs -A --state waiting; moor explain RUN",
    ),
    Alert(
        name="MoorageIdleGpusHeld",
        expr=f"cluster:moorage_idle_gpus:ratio > {IDLE_SHARE}",
        wait="6h",
        severity="info",
        summary="For 6 hours, idle work that is not snoozed has held more than a quarter of the held GPUs.",
        description="moor idle -A lists it; docs/howto/reclaim-idle-gpus.md: let a policy suspend it",
    ),
    Alert(
        name="MoorageBudgetSpent",
        expr="max by (budget, kind, name) (moorage_budget_used_ratio) >= 1",
        wait="5m",
        severity="info",
        summary="A budget is used up.",
        description="{{ $labels.budget }} of {{ $labels.kind }} {{ $labels.name }}:"
        " moor budget show {{ $labels.budget }}",
    ),
    Alert(
        name="MoorageMapItemsFail",
        expr='sum by (tenant) (max by (tenant, state) (moorage_map_items{state="dead"}))'
        ' > 0.1 * sum by (tenant) (max by (tenant, state) (moorage_map_items{state=~"done|dead"}))',
        wait="30m",
        severity="info",
        summary="More than a tenth of the items of a tenant's maps failed for good.",
        description="tenant {{ $labels.tenant }}: moor map items NAME --failed",
    ),
)


def rule_groups() -> list[Obj]:
    """The rule groups in the format of a PrometheusRule and of a rule file."""
    recorded = [{"record": rule.record, "expr": rule.expr} for rule in RECORDINGS]
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.description},
        }
        for alert in ALERTS
    ]
    every = f"{EVERY_SECONDS}s"
    return [
        {"name": "moorage-recorded", "interval": every, "rules": recorded},
        {"name": "moorage", "interval": every, "rules": alerts},
    ]
