"""Dashboards for Grafana as JSON for import. Each has a variable for the data source.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

SCHEMA_VERSION = 39  # Grafana 10.4; newer ones bring it up to date when they import it
COLUMNS = 24  # of Grafana's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "moorage"

LINES, STAT, TABLE, BARS = "timeseries", "stat", "table", "bargauge"
SIZES = {LINES: (12, 8), STAT: (4, 4), TABLE: (24, 9), BARS: (12, 8)}  # width and height


class Query(Struct, frozen=True, kw_only=True):
    """A query of a panel. `legend` may contain labels: {{user}}."""

    expr: str
    legend: str = ""


class Panel(Struct, frozen=True, kw_only=True):
    """A panel. `unit`: its name in Grafana. `wide`: the number of grid columns; None: the default of its kind."""

    title: str
    queries: tuple[Query, ...]
    kind: str = LINES
    unit: str = "short"
    stacked: bool = False
    wide: int | None = None
    text: str = ""  # its meaning


class Variable(Struct, frozen=True, kw_only=True):
    """A menu of a dashboard: the values of a label. At first all are selected."""

    name: str
    label: str
    metric: str


class Dashboard(Struct, frozen=True, kw_only=True):
    uid: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = field(default=())


def _q(expr: str, legend: str = "") -> Query:
    return Query(expr=expr, legend=legend)


def _stat(title: str, expr: str, unit: str = "short", text: str = "") -> Panel:
    return Panel(title=title, kind=STAT, queries=(_q(expr),), unit=unit, text=text)


TYPE = Variable(name="type", label="GPU type", metric="moorage_type_gpus")
NODE = Variable(name="node", label="Node", metric="moorage_gpus")
TENANT = Variable(name="tenant", label="Tenant", metric="moorage_runs")

CLUSTER = Dashboard(
    uid="moorage-cluster",
    title="Moorage / Cluster",
    text="Holders of GPUs, and free GPUs. All users may see it.",
    panels=(
        _stat("GPUs used", 'max(moorage_cluster_gpus{state="used"})'),
        _stat("GPUs free", 'max(moorage_cluster_gpus{state="free"})'),
        _stat("GPUs reserved", 'max(moorage_cluster_gpus{state="reserved"})'),
        _stat("GPUs unavailable", 'max(moorage_cluster_gpus{state="unavailable"})'),
        _stat("Share in use", "cluster:moorage_gpus:used_ratio", "percentunit"),
        _stat("Runs that wait", "sum(max by (reason, tenant) (moorage_runs_waiting)) or vector(0)"),
        Panel(
            title="Holders of GPUs",
            kind=TABLE,
            queries=(
                _q(
                    "max by (user, namespace, holder, type, node) (moorage_gpu_holdings)",
                ),
            ),
            text="GPUs held now, by user, run and node",
        ),
        Panel(
            title="GPUs by user",
            kind=LINES,
            stacked=True,
            queries=(_q("user:moorage_gpus_held:max", "{{user}}"),),
        ),
        Panel(
            title="GPUs by state",
            stacked=True,
            queries=(_q("state:moorage_cluster_gpus:max", "{{state}}"),),
        ),
        Panel(
            title="GPU-hours of the last 24 hours by user",
            kind=BARS,
            unit="h",
            queries=(_q("max by (user) (moorage_gpu_use_24h_seconds) / 3600", "{{user}}"),),
        ),
        Panel(
            title="GPUs by tenant",
            stacked=True,
            queries=(_q("tenant:moorage_gpus_held:max", "{{tenant}}"),),
        ),
        Panel(
            title="Held since",
            kind=TABLE,
            unit="s",
            queries=(
                _q(
                    "time() - min by (user, holder, node) (moorage_gpu_holding_start_timestamp_seconds)",
                ),
            ),
            text="For how long each holder has had its GPUs",
        ),
    ),
)

GPUS = Dashboard(
    uid="moorage-gpus",
    title="Moorage / GPUs by node and type",
    text="GPUs in use per node and per type, and how well they are packed.",
    variables=(TYPE, NODE),
    panels=(
        Panel(
            title="GPUs in use by node",
            stacked=True,
            queries=(
                _q(
                    'sum by (node) (max by (node, type) (moorage_gpus{state="used",node=~"$node",type=~"$type"}))',
                    "{{node}}",
                ),
            ),
        ),
        Panel(
            title="GPUs in use by type",
            stacked=True,
            queries=(
                _q('sum by (type) (max by (type) (moorage_type_gpus{state="used", type=~"$type"}))', "{{type}}"),
            ),
        ),
        Panel(
            title="Share in use by node",
            unit="percentunit",
            queries=(_q('node:moorage_gpus:used_ratio{node=~"$node"}', "{{node}}"),),
        ),
        Panel(
            title="Share in use by type",
            unit="percentunit",
            queries=(_q('type:moorage_gpus:used_ratio{type=~"$type"}', "{{type}}"),),
        ),
        Panel(
            title="Free GPUs by node",
            kind=BARS,
            queries=(
                _q(
                    'sum by (node) (max by (node, type) (moorage_gpus{state="free",node=~"$node",type=~"$type"}))',
                    "{{node}}",
                ),
            ),
        ),
        Panel(
            title="Free GPUs of little use",
            queries=(
                _q('max by (type, kind) (moorage_gpus_free_of_little_use{type=~"$type"})', "{{type}} {{kind}}"),
            ),
            text="On a node with used ones (fragmented), or without free CPU or memory (stranded)",
        ),
        Panel(
            title="Most free GPUs on one node",
            queries=(_q('max by (type) (moorage_gpus_free_together{type=~"$type"})', "{{type}}"),),
            text="The largest run that could start now without GPUs on several nodes",
        ),
        Panel(
            title="Fragmented and stranded by node",
            queries=(
                _q(
                    "sum by (node, kind) (max by (node, type, kind) (moorage_node_gpus_free_of_little_use"
                    '{node=~"$node", type=~"$type"}))',
                    "{{node}} {{kind}}",
                ),
            ),
        ),
    ),
)

_UNUSED = 'max by (tenant, kind, currency) (moorage_cost_24h{kind=~"unused|idle"})'

USE = Dashboard(
    uid="moorage-use",
    title="Moorage / Use, idle GPUs and cost",
    text="Use, idleness and cost of held GPUs.",
    panels=(
        _stat(
            "Utilisation of held GPUs",
            "cluster:moorage_gpu_utilisation:ratio",
            "percentunit",
            "The mean of those that are measured",
        ),
        _stat(
            "Held GPUs not measured",
            'sum(max by (tenant, measured) (moorage_tenant_gpus_measured{measured="no"}))',
            text="They are in no mean",
        ),
        _stat(
            "Held GPUs with idle work",
            "cluster:moorage_idle_gpus:ratio",
            "percentunit",
            "Of all held GPUs, without work that its owner snoozed",
        ),
        _stat("Money of the last 24 hours", "sum(max by (tenant, kind, currency) (moorage_cost_24h))"),
        _stat("Money of unused GPUs", f"sum({_UNUSED})", text="Unused, and without a pod, in 24 hours"),
        _stat(
            "Budgets used up", "count(max by (budget, kind, name) (moorage_budget_used_ratio) >= 1) or vector(0)"
        ),
        Panel(
            title="Utilisation by tenant",
            unit="percentunit",
            queries=(_q("max by (tenant) (moorage_tenant_gpu_utilisation_ratio)", "{{tenant}}"),),
        ),
        Panel(
            title="Utilisation by user",
            unit="percentunit",
            queries=(_q("max by (user) (moorage_user_gpu_utilisation_ratio)", "{{user}}"),),
        ),
        Panel(
            title="Utilisation by type",
            unit="percentunit",
            queries=(_q("type:moorage_gpu_utilisation:ratio", "{{type}}"),),
        ),
        Panel(
            title="Utilisation by node",
            unit="percentunit",
            queries=(_q("max by (node, type) (moorage_node_gpu_utilisation_ratio)", "{{node}} {{type}}"),),
        ),
        Panel(
            title="Held GPUs by whether they are measured",
            stacked=True,
            queries=(
                _q(
                    "sum by (measured) (max by (tenant, measured) (moorage_tenant_gpus_measured))",
                    "measured: {{measured}}",
                ),
            ),
        ),
        Panel(
            title="GPUs of idle work by state",
            stacked=True,
            queries=(_q("sum by (state) (max by (state, tenant) (moorage_idle_gpus))", "{{state}}"),),
            text="Suspended: the GPUs that the work held, and that others may have now",
        ),
        Panel(
            title="GPUs that idle work holds, by tenant",
            stacked=True,
            queries=(
                _q(
                    'sum by (tenant) (max by (state, tenant) (moorage_idle_gpus{state!="suspended"}))',
                    "{{tenant}}",
                ),
            ),
        ),
        Panel(
            title="Idle work by state",
            stacked=True,
            queries=(_q("sum by (state) (max by (state, kind, tenant) (moorage_idle_work))", "{{state}}"),),
        ),
        Panel(
            title="Budgets: share used",
            kind=BARS,
            unit="percentunit",
            queries=(
                _q("max by (budget, kind, name) (moorage_budget_used_ratio)", "{{budget}} {{kind}} {{name}}"),
            ),
        ),
        Panel(
            title="Money of the last 24 hours by tenant",
            stacked=True,
            queries=(
                _q(
                    "sum by (tenant, currency) (max by (tenant, kind, currency) (moorage_cost_24h))",
                    "{{tenant}} {{currency}}",
                ),
            ),
            text="- is without an owner, or in namespaces without a tenant",
        ),
        Panel(
            title="Money of the last 24 hours by kind of use",
            stacked=True,
            queries=(
                _q(
                    "sum by (kind, currency) (max by (tenant, kind, currency) (moorage_cost_24h))",
                    "{{kind}} {{currency}}",
                ),
            ),
        ),
    ),
)

QUEUE = Dashboard(
    uid="moorage-queue",
    title="Moorage / Queue and waits",
    text="Waiting work, with reasons and waiting times.",
    variables=(TENANT,),
    panels=(
        Panel(
            title="Waiting runs by reason",
            stacked=True,
            queries=(
                _q(
                    'sum by (reason) (max by (reason, tenant) (moorage_runs_waiting{tenant=~"$tenant"}))',
                    "{{reason}}",
                ),
            ),
        ),
        Panel(
            title="Longest wait",
            unit="s",
            queries=(_q('max by (tenant) (moorage_run_oldest_wait_seconds{tenant=~"$tenant"})', "{{tenant}}"),),
        ),
        Panel(
            title="GPUs that waiting runs ask for",
            stacked=True,
            queries=(
                _q(
                    'sum by (type) (max by (type, tenant) (moorage_runs_waiting_gpus{tenant=~"$tenant"}))',
                    "{{type}}",
                ),
            ),
        ),
        Panel(
            title="Runs by state",
            queries=(
                _q('sum by (state) (max by (state, tenant) (moorage_runs{tenant=~"$tenant"}))', "{{state}}"),
            ),
        ),
        Panel(
            title="Workspaces by phase",
            queries=(
                _q('sum by (phase) (max by (phase, tenant) (moorage_workspaces{tenant=~"$tenant"}))', "{{phase}}"),
            ),
        ),
    ),
)

MAPS = Dashboard(
    uid="moorage-maps",
    title="Moorage / Maps",
    text="Items and workers of maps.",
    variables=(TENANT,),
    panels=(
        Panel(
            title="Items by state",
            stacked=True,
            queries=(
                _q('sum by (state) (max by (state, tenant) (moorage_map_items{tenant=~"$tenant"}))', "{{state}}"),
            ),
        ),
        Panel(
            title="Items done per second",
            unit="ops",
            queries=(
                _q(
                    "sum by (tenant) (max by (tenant, state) (deriv(moorage_map_items"
                    '{state="done", tenant=~"$tenant"}[5m])))',
                    "{{tenant}}",
                ),
            ),
        ),
        Panel(
            title="Workers at work",
            queries=(_q('max by (tenant) (moorage_map_workers{tenant=~"$tenant"})', "{{tenant}}"),),
        ),
        Panel(
            title="Maps by state",
            queries=(
                _q('sum by (state) (max by (state, tenant) (moorage_maps{tenant=~"$tenant"}))', "{{state}}"),
            ),
        ),
        Panel(
            title="Items that failed for good",
            kind=BARS,
            queries=(_q('max by (tenant) (moorage_map_items{state="dead", tenant=~"$tenant"})', "{{tenant}}"),),
        ),
    ),
)

WORKFLOWS = Dashboard(
    uid="moorage-workflows",
    title="Moorage / Workflows",
    text="Workflows that Moorage runs, under the names of Argo's controller.",
    panels=(
        Panel(title="Workflows by phase", queries=(_q("max by (phase) (argo_workflows_gauge)", "{{phase}}"),)),
        Panel(
            title="Pods of steps by phase",
            queries=(_q("max by (phase) (argo_workflows_pods_gauge)", "{{phase}}"),),
        ),
        Panel(
            title="Workflows that entered a phase, per hour",
            queries=(
                _q(
                    "sum by (phase) (max by (phase, namespace) (increase(argo_workflows_total_count[1h])))",
                    "{{phase}}",
                ),
            ),
        ),
        Panel(
            title="Workflows by namespace",
            kind=BARS,
            queries=(
                _q("sum by (namespace) (max by (phase, namespace) (argo_workflows_total_count))", "{{namespace}}"),
            ),
        ),
    ),
)

_JOBS = 'job=~"moorage-.*"'

SERVICES = Dashboard(
    uid="moorage-services",
    title="Moorage / Services",
    text="Whether Moorage itself is well.",
    panels=(
        _stat("Servers up", 'sum(up{job="moorage-server"})'),
        _stat("Operators that lead", "sum(moorage_operator_leads)"),
        _stat("Webhooks up", 'sum(up{job="moorage-webhook"})'),
        _stat("Extenders up", 'sum(up{job="moorage-extender"})'),
        _stat("Certificate ends in", "min(moorage_certificate_expires_timestamp_seconds) - time()", "s"),
        _stat("SQL errors in an hour", "sum(increase(moorage_sql_errors_total[1h])) or vector(0)"),
        Panel(
            title="Requests per second by route",
            unit="reqps",
            queries=(_q("sum by (route) (rate(moorage_http_requests_total[5m]))", "{{route}}"),),
        ),
        Panel(
            title="Time of requests: 99 of 100 below",
            unit="s",
            queries=(_q("route:moorage_http_request_duration_seconds:p99_5m", "{{route}}"),),
        ),
        Panel(
            title="Requests by status code",
            unit="reqps",
            stacked=True,
            queries=(_q("sum by (code) (rate(moorage_http_requests_total[5m]))", "{{code}}"),),
        ),
        Panel(
            title="Admission reviews: 99 of 100 below",
            unit="s",
            queries=(_q("verb:moorage_webhook_review_duration_seconds:p99_5m", "{{verb}}"),),
        ),
        Panel(
            title="Reviews by outcome",
            unit="reqps",
            queries=(
                _q("sum by (outcome) (rate(moorage_webhook_review_duration_seconds_count[5m]))", "{{outcome}}"),
            ),
        ),
        Panel(
            title="Extender: 99 of 100 below",
            unit="s",
            queries=(_q("verb:moorage_extender_request_seconds:p99_5m", "{{verb}}"),),
        ),
        Panel(
            title="Passes of controllers: 99 of 100 below",
            unit="s",
            queries=(_q("controller:moorage_reconcile_duration_seconds:p99_5m", "{{controller}}"),),
        ),
        Panel(
            title="Passes by outcome",
            unit="ops",
            queries=(_q("sum by (outcome) (rate(moorage_reconcile_duration_seconds_count[5m]))", "{{outcome}}"),),
        ),
        Panel(
            title="Objects that wait for a pass",
            queries=(_q("max by (controller) (moorage_reconcile_queue_depth)", "{{controller}}"),),
        ),
        Panel(
            title="SQL statements: 99 of 100 below",
            unit="s",
            queries=(_q("database:moorage_sql_duration_seconds:p99_5m", "{{database}}"),),
        ),
        Panel(
            title="Copies of the cluster: behind",
            unit="s",
            queries=(_q("max by (job, resource) (moorage_informer_behind_seconds)", "{{job}} {{resource}}"),),
        ),
        Panel(
            title="Objects in copies",
            queries=(_q("max by (job, resource) (moorage_informer_objects)", "{{job}} {{resource}}"),),
        ),
        Panel(
            title="CPU by service",
            unit="percentunit",
            queries=(_q(f"rate(process_cpu_seconds_total{{{_JOBS}}}[5m])", "{{job}} {{instance}}"),),
        ),
        Panel(
            title="Memory by service",
            unit="bytes",
            queries=(_q(f"process_resident_memory_bytes{{{_JOBS}}}", "{{job}} {{instance}}"),),
        ),
        Panel(
            title="Stored logs on the disk", unit="bytes", queries=(_q("max(moorage_stored_log_bytes)", "logs"),)
        ),
        Panel(title="Versions", kind=TABLE, queries=(_q("max by (job, version) (moorage_build_info)"),), wide=12),
    ),
)

ALL = (CLUSTER, GPUS, USE, QUEUE, MAPS, WORKFLOWS, SERVICES)


def dashboards() -> list[dict[str, Any]]:
    """All dashboards in Grafana's JSON model."""
    return [_model(dashboard) for dashboard in ALL]


def _model(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "title": "Moorage", "tags": [TAG], "asDropdown": True, "keepTime": True},
        ],
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": []},
        "panels": _panels(dashboard.panels),
    }


def _source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,  # when the time range changes
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # also series without a value
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panels(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Place panels from left to right. A panel that does not fit starts a new row."""
    made, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        usual, height = SIZES[panel.kind]
        width = panel.wide or usual
        if x + width > COLUMNS:
            x, y, row = 0, y + row, 0
        made.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x, row = x + width, max(row, height)
    return made


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    is_table, is_now = panel.kind == TABLE, panel.kind in (TABLE, STAT, BARS)
    custom: dict[str, Any] = {}
    if panel.kind == LINES:
        custom = {"fillOpacity": 25 if panel.stacked else 0, "lineWidth": 1, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    model: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": is_now,
                "range": not is_now,
                "format": "table" if is_table else "time_series",
            }
            for at, query in enumerate(panel.queries)
        ],
    }
    if is_table:
        hidden = {"excludeByName": {"Time": True}, "renameByName": {"Value": panel.title}}
        model["transformations"] = [{"id": "organize", "options": hidden}]
    return model


def _options(kind: str) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == LINES:
        return {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == STAT:
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "none"}
    if kind == BARS:
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic"}
    return {"showHeader": True}
