"""A real Prometheus reads a cluster with all that the dashboards show, and every query has data."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

from moorage.model.budget import BUDGETS
from moorage.model.idle import IDLE_POLICIES
from moorage.model.monitoring.dashboards import dashboards
from moorage.model.monitoring.rules import ALERTS, RECORDINGS
from moorage_kube.remote.client import KubeClient
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import UNIFORM, Cluster, local_cluster
from moorage_testing.prometheus import Prometheus, running_prometheus

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("prometheus"),  # one cluster for all
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not on PATH: install prometheus"),
]

HOLD = "import time; time.sleep(3600)"
WORKFLOW = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: two}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: first, template: say}
    - - {name: second, template: say}
  - name: say
    container: {image: localhost/host, command: [sh, -c, "echo said"]}
"""
PRICES = """\
source: the invoice of the rack
date: 2026-11-01
currency: USD
owned:
- {name: rack, nodes: ["node-*"], purchase: 876000000, years: 1}
"""  # 100,000 an hour: seconds count
POLICIES = """\
apiVersion: moorage.dev/v1alpha1
kind: IdlePolicy
metadata: {name: soon}
spec: {warnAfter: 1m, idle: {window: 30s}}
---
apiVersion: moorage.dev/v1alpha1
kind: Budget
metadata: {name: tiny}
spec: {users: ["*"], period: month, gpuHours: "0.001"}
"""
OF_ARGO = "argo_workflows_"  # these bear the names of Argo's controller
SQUARES = ("--range", "1:40", "--parallelism", "1")


def fill(cluster: Cluster, folder: Path) -> None:
    """Runs that hold GPUs, wait and are over; a map, a workflow, a workspace, a tenant; prices, a budget."""
    (folder / "prices.yaml").write_text(PRICES)
    cluster.moor("cost", "prices", str(folder / "prices.yaml"))
    policy, budget = yaml.safe_load_all(POLICIES)

    async def create() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.create(IDLE_POLICIES, policy)
            await api.create(BUDGETS, budget)

    asyncio.run(create())
    cluster.moor("tenant", "create", "vision", "--admin", "ada")
    cluster.moor("run", "--name", "over", "--", "true")
    cluster.moor("run", "--name", "small", "--gpus", "1", "--time", "1h", "--", "python3", "-c", HOLD)
    cluster.moor("run", "--name", "large", "--gpus", "2", "--time", "1h", "--", "python3", "-c", HOLD)
    cluster.moor("run", "--name", "late", "--gpus", "2", "--time", "1h", "--", "python3", "-c", HOLD)
    cluster.moor("workspace", "create", "lab", "--type", "codeserver", "--stopped")
    cluster.moor("map", "create", "squares", *SQUARES, "--", "sh", "-c", "sleep 0.2")
    (folder / "workflow.yaml").write_text(WORKFLOW)
    cluster.moor("workflow", "submit", str(folder / "workflow.yaml"))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("prometheus")
    with local_cluster(folder / "up", *UNIFORM) as cluster:
        fill(cluster, folder)
        with running_prometheus(folder / "up" / "prometheus.yml", folder / "prometheus") as made:
            yield made


@pytest.fixture
def up(tmp_path_factory: pytest.TempPathFactory, prometheus: Prometheus) -> list[dict[str, object]]:
    """Targets, when each was read at least once."""

    def are_up():
        targets = prometheus.ask("targets")["activeTargets"]
        return targets if all(target["health"] == "up" for target in targets) else None

    return wait_until("each target to be up", are_up)


def test_each_service_is_read(up):
    assert {target["scrapePool"] for target in up} == {
        "moorage-server",
        "moorage-operator",
        "moorage-webhook",
        "moorage-extender",
    }


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        *(
            pytest.param(
                f"{dashboard['title']}: {panel['title']}", target["expr"], id=f"{dashboard['uid']} {panel['id']}"
            )
            for dashboard in dashboards()
            for panel in dashboard["panels"]
            for target in panel["targets"]
        ),
        *(pytest.param(rule.record, rule.record, id=rule.record) for rule in RECORDINGS),
    ],
)
@pytest.mark.usefixtures("up")
def test_a_query_has_data(prometheus, name, expression):
    for variable in ("type", "node", "tenant"):
        expression = expression.replace(f"${variable}", ".*")
    assert wait_until(f"data of {name}", lambda: prometheus.query(expression) or None)


@pytest.mark.usefixtures("up")
def test_idle_gpus_money_and_a_budget_are_seen_as_they_are(prometheus):
    """The runs that sleep are idle within minutes; the first of them has used the budget up by then."""
    held = 'sum(max by (state, tenant) (moorage_idle_gpus{state=~"idle|warned"})) > 0'
    assert wait_until("idle GPUs", lambda: prometheus.query(held) or None)
    assert wait_until("a budget", lambda: prometheus.query("max(moorage_budget_used_ratio) >= 1") or None)
    assert wait_until("money", lambda: prometheus.query('sum(moorage_cost_24h{currency="USD"}) > 0') or None)
    assert wait_until(
        "utilisation", lambda: prometheus.query("cluster:moorage_gpu_utilisation:ratio < 0.1") or None
    )


@pytest.mark.usefixtures("up")
def test_the_choices_of_each_variable_have_values(prometheus):
    for dashboard in dashboards():
        for variable in dashboard["templating"]["list"][1:]:
            metric = variable["query"]["query"].removeprefix("label_values(").partition(",")[0]

            def values(name=variable["name"], metric=metric):
                return prometheus.ask(f"label/{name}/values", **{"match[]": metric})

            wait_until(f"values of {variable['name']}", values)


@pytest.mark.usefixtures("up")
def test_no_alert_of_a_service_that_is_down_is_near(prometheus):
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    alerts = {rule["name"]: rule for rule in rules if rule["type"] == "alerting"}
    assert set(alerts) == {alert.name for alert in ALERTS}
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []

    def are_quiet() -> bool:
        """Before the first answers of all services they may be pending."""
        groups = prometheus.ask("rules")["groups"]
        down = [rule for group in groups for rule in group["rules"] if rule["name"].endswith("Down")]
        return {rule["state"] for rule in down} == {"inactive"}

    assert wait_until("quiet alerts", are_quiet)


@pytest.mark.usefixtures("prometheus")
def test_promtool_finds_nothing_wrong_on_a_page(tmp_path_factory, up):
    found = {}
    for target in up:
        config = yaml.safe_load(_configuration(tmp_path_factory).read_text())
        job = next(job for job in config["scrape_configs"] if job["job_name"] == target["scrapePool"])
        page = _page(target["scrapeUrl"], job)
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        for line in (checked.stdout + checked.stderr).decode().splitlines():
            if not line.startswith(OF_ARGO):
                found[target["scrapePool"], line] = checked.returncode
    assert found == {}


def _configuration(factory: pytest.TempPathFactory) -> Path:
    return max(factory.getbasetemp().glob("prometheus*/up/prometheus.yml"))


def _page(url: str, job: dict[str, dict[str, str]]) -> bytes:
    import ssl

    request = Request(url)
    if "authorization" in job:
        request.add_header("Authorization", f"Bearer {job['authorization']['credentials']}")
    context = None
    if "tls_config" in job:
        context = ssl.create_default_context(cafile=job["tls_config"]["ca_file"])
    with urlopen(request, context=context) as answer:
        return bytes(answer.read())


def test_the_dashboards_are_those_that_are_shipped():
    folder = Path(__file__).parents[4] / "deploy" / "optional" / "grafana"
    shipped = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert shipped == {dashboard["uid"]: dashboard for dashboard in dashboards()}
