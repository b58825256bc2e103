"""Which values the nodes of a run give to its metrics, and when."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflowmanifests import a_workflow

from moorage_kube.clock import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.metrics import added, exposition
from moorage_workflows.model.workflow import MetricPoint, MetricSeries

COUNTED = "{name: ends, help: By status, labels: [{key: status, value: '{{status}}'}], counter: {value: '1'}}"

IN_RETRIES = a_workflow("""
    templates:
    - name: main
      steps: [[{name: a, template: again, continueOn: {failed: true}}]]
    - name: again
      retryStrategy: {limit: 2}
      metrics:
        prometheus:
        - name: exits
          help: Runs by exit code
          labels: [{key: code, value: "{{exitCode}}"}, {key: status, value: "{{status}}"}]
          counter: {value: "1"}
      container: {image: busybox, command: [sh]}
""")
IN_A_DAG = a_workflow(f"""
    templateDefaults: {{metrics: {{prometheus: [{COUNTED}]}}}}
    templates:
    - name: main
      dag: {{tasks: [{{name: a, template: say}}, {{name: b, template: say, depends: a}},
                    {{name: c, template: say, when: "1 == 2"}}]}}
""")
IN_REAL_TIME = a_workflow("""
    metrics:
      prometheus:
      - {name: seconds, help: How long, labels: [{key: of, value: all}],
         gauge: {realtime: true, value: "{{workflow.duration}}"}}
      - {name: phases, help: Ends, labels: [{key: status, value: "{{workflow.status}}"}], counter: {value: "1"}}
    templates:
    - name: main
      inputs: {parameters: [{name: tag, value: x}]}
      metrics:
        prometheus:
        - {name: seconds, help: How long, labels: [{key: of, value: "{{inputs.parameters.tag}}"}],
           gauge: {realtime: true, value: "{{duration}}"}}
        - {name: loss, help: Loss, when: "{{status}} == Succeeded",
           histogram: {buckets: [0.5, 2], value: "{{outputs.parameters.loss}}"}}
        - {name: never, help: Not this time, when: "{{status}} != Succeeded", counter: {value: "1"}}
      outputs: {parameters: [{name: loss, valueFrom: {path: /tmp/loss}}]}
      container: {image: busybox, command: [sh]}
""")


def kept(points: list[MetricPoint]) -> dict[str, float | tuple[int, ...]]:
    """The series that these values make: name and labels → value, or what is in the buckets."""
    series: dict[str, MetricSeries] = {}
    for point in points:
        key = point.name + "".join(f" {name}={value}" for name, value in sorted(point.labels.items()))
        series[key] = added(series.get(key), point, namespace="lab", uid="u1", other=None)
    return {key: one.counts or one.value for key, one in series.items()}


def test_each_attempt_counts_once_the_last_one_as_its_step() -> None:
    player = Player(IN_RETRIES, by_node(again=Ends(exit_code=1), a=Ends(exit_code=1))).play()
    assert kept(player.points) == {"exits code=1 status=Failed": 3.0}


def test_steps_tasks_and_dags_count_and_what_is_left_out_does_not() -> None:
    assert kept(Player(IN_A_DAG).play().points) == {"ends status=Succeeded": 3.0}


def test_values_in_real_time_begin_with_the_node_and_end_with_it() -> None:
    ends = Ends(after=timedelta(seconds=30), parameters={"loss": "1.5"})
    player = Player(IN_REAL_TIME, lambda _order: ends)
    player.decide()
    live = [(point.labels["of"], point.since) for point in player.points]
    assert live == [("all", "2026-03-01T12:00:00.000Z"), ("x", "2026-03-01T12:00:00.000Z")]
    player.play()
    assert player.workflow.metrics_error == ""
    assert kept(player.points) == {
        "seconds of=all": 30.0, "seconds of=x": 30.0, "loss": (0, 1, 0), "phases status=Succeeded": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("manifest", [IN_RETRIES, IN_A_DAG, IN_REAL_TIME], ids=["retries", "a DAG", "real time"])
@given(seed=st.integers(0, 2**32))
def test_restarts_count_nothing_twice(manifest, seed: int) -> None:
    def table(_order: object) -> Ends:
        return Ends(exit_code=1, parameters={"loss": "1"})

    calm, chance = Player(manifest, table).play(), random.Random(seed)
    player = Player(manifest, table)
    while player.step():
        if chance.random() < 0.4:
            player.restart()
    assert kept(player.points) == kept(calm.points)


@pytest.mark.parametrize(("metric", "why"), [
    ("{name: m, help: h, counter: {value: '{{outputs.parameters.none}}'}}", "outputs.parameters.none"),
    ("{name: m, help: h, counter: {value: many}}", "has the value 'many'"),
    ("{name: m, help: h, counter: {value: '-1'}}", "never decreases"),
    ("{name: m, help: h, gauge: {value: '1e999'}}", "has the value '1e999'"),
    ("{name: 'm-{{status}}', help: h, counter: {value: '1'}}", "has an invalid name"),
    ("{name: m, help: h, when: '{{status}} ==', counter: {value: '1'}}", "m"),
    ("{name: m, help: h, gauge: {realtime: true, value: '{{workflow.name}}'}}", "in real time"),
    ("{name: m, help: h, labels: [{key: workflow_namespace, value: other}], counter: {value: '1'}}", "is set by"),
])  # fmt: skip
def test_a_value_that_cannot_be_is_said_and_ends_nothing(metric: str, why: str) -> None:
    manifest = a_workflow(f"""
        - name: main
          metrics: {{prometheus: [{metric}]}}
          container: {{image: busybox, command: [echo]}}
    """)
    player = Player(manifest).play()
    assert (player.workflow.phase, kept(player.points)) == ("Succeeded", {})
    assert why in player.workflow.metrics_error


def test_prometheus_can_read_what_is_shown() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    point = MetricPoint(name="m", help="two\nlines \\", kind="counter", operation="Add", value=2)
    tricky = {"a": 'q"\\\n'}
    series = [
        added(None, point, namespace="lab", uid="u", other=None),
        added(
            None, MetricPoint(name="m", help="h", kind="gauge", labels=tricky), namespace="b", uid="u", other=None
        ),
        added(
            None, MetricPoint(name="h", help="h", kind="histogram", value=1.0, buckets=(1.0, 2.0)),
            namespace="lab", uid="u", other=None,
        ),
        added(
            None, MetricPoint(name="now", help="h", kind="gauge", since=rfc3339(NOON - timedelta(minutes=1))),
            namespace="lab", uid="u", other=None,
        ),
    ]  # fmt: skip
    families = {family.name: family for family in text_string_to_metric_families(exposition(series, NOON))}
    found = {
        (sample.name, sample.labels.get("le", ""), sample.labels["workflow_namespace"]): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert found == {
        ("argo_workflows_m", "", "lab"): 2.0,
        ("argo_workflows_m", "", "b"): 0.0,
        ("argo_workflows_h_bucket", "1.0", "lab"): 1.0,
        ("argo_workflows_h_bucket", "2.0", "lab"): 1.0,
        ("argo_workflows_h_bucket", "+Inf", "lab"): 1.0,
        ("argo_workflows_h_sum", "", "lab"): 1.0,
        ("argo_workflows_h_count", "", "lab"): 1.0,
        ("argo_workflows_now", "", "lab"): 60.0,
    }
    assert families["argo_workflows_m"].samples[1].labels["a"] == tricky["a"]
    assert families["argo_workflows_m"].type == "unknown"
