from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.api.explain import Explanation
from moorage.decide.explain.explainer import explain
from moorage.decide.explain.nodeconstraints import wanted_types
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.explain.storage import storage_of
from moorage.present.explanation import explain_text, short_reason
from moorage.present.explanationanswer import make_explanation
from moorage_kube.scheduling import parse_pod
from moorage_kube.testing.examples import examples
from moorage_testing.builders import a_gpu_node, a_run_pod

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def a_pod(name="me", gpus=1, *, kind="", cpu="1", started="2026-01-05T10:00:00Z", node="", phase="", **more):
    made = {"created": "2026-01-05T11:00:00Z", "uid": f"uid-{name}", "user": "ada", "limits": {"cpu": cpu}}
    selector = {"nodeSelector": {"nvidia.com/gpu.product": kind}} if kind else {}
    spec = {"priority": more.pop("priority", 0)} | selector
    made |= {"gpus": gpus, "spec": spec, "phase": phase or ("Running" if node else "Pending"), "node": node}
    return a_run_pod(name, run=f"run-{name}", **made | ({"started": started} if node else {}) | more)


def ask(pod, nodes, pods=(), **more):
    return explain(pod, nodes=nodes, pods=pods, now=NOON, **more)


def test_a_pod_with_room_lands_on_the_fullest_node_that_fits():
    nodes = [a_gpu_node("n1", 4), a_gpu_node("n2", 4), a_gpu_node("cpu", 0)]
    found = ask(a_pod(), nodes, [a_pod("x", 2, node="n2")])
    assert (found.state, found.node, found.position) == ("fits", "n2", 1)
    assert explain_text(found).splitlines()[0] == "run lab/run-me would start now, on n2"
    assert ask(a_pod(gpus=0), nodes).node == "cpu"


def test_what_is_missing_who_holds_it_and_when_it_could_start():
    nodes = [a_gpu_node("n1", 2), a_gpu_node("n2", 2)]
    pods = [a_pod("x", 1, node="n1", user="bob", expected=3 * 3600), a_pod("y", 1, node="n2", user="eve")]
    found = ask(a_pod(gpus=2, kind="a100"), nodes, pods)
    assert found.state == "waiting"
    [missing] = found.missing
    assert (missing.resource, missing.asks, missing.most_free, missing.free_in_total) == (GPU, 2, 1, 2)
    assert [(one.holder.owner, one.node, one.amount, one.sure) for one in found.held_by] == [
        ("bob", "n1", 1, "limit"),
        ("eve", "n2", 1, "unknown"),
    ]
    assert found.earliest is not None
    assert (found.earliest.at, found.earliest.node) == (NOON + timedelta(hours=1), "n1")
    assert [(one.gpus, one.node) for one in found.smaller] == [(1, "n1")]
    assert (
        explain_text(found)
        == """\
run lab/run-me waits: needs 2 GPUs of type a100; one node has at most 1 free (2 in all)

Missing resources
  2 GPUs of type a100: most free on one node 1 (n1), in total 2

Current holders
  bob  run-x  1 GPU  n1  since 05 Jan 10:00 UTC (2h)  until 05 Jan 13:00 UTC at the latest (in 60m)
  eve  run-y  1 GPU  n2  since 05 Jan 10:00 UTC (2h)  end unknown

It could start at 05 Jan 13:00 UTC (in 60m) on n1, if all runs reach their time limits; earlier if one ends sooner
It would start now with 1 GPU, on n1 (`--gpus 1`)

Nodes
  n1  a100  too little nvidia.com/gpu (asked 2, free 1 of 2)
  n2  a100  too little nvidia.com/gpu (asked 2, free 1 of 2)"""
    )


def test_without_limits_nobody_knows_when():
    found = ask(a_pod(), [a_gpu_node(gpus=1)], [a_pod("x", node="n1")])
    assert found.earliest is None
    assert "not known" in explain_text(found)


def test_those_ahead_in_line_take_their_turn_in_the_forecast():
    pods = [
        a_pod("x", node="n1", expected=2 * 3600 + 600),
        a_pod("old", created="2026-01-05T08:00:00Z", expected=1800),
        a_pod("vip", created="2026-01-05T11:30:00Z", priority=10, expected=600),
        a_pod("late", created="2026-01-05T11:59:00Z"),
        a_pod("gated", created="2026-01-05T08:00:00Z", gates=["moorage.dev/machine"]),
        a_pod("cpu only", 0, created="2026-01-05T08:00:00Z"),
    ]
    found = ask(a_pod(), [a_gpu_node(gpus=1)], pods)
    assert [one.pod for one in found.line] == ["vip", "old"]
    assert found.position == 3
    assert found.earliest is not None
    assert found.earliest.at == NOON + timedelta(minutes=10 + 10 + 30)


def test_the_line_counts_only_those_that_want_the_same_nodes():
    pods = [a_pod("x", node="n1"), a_pod("old", kind="h100", created="2026-01-05T08:00:00Z")]
    found = ask(
        a_pod(kind="a100"), [a_gpu_node(gpus=1), a_gpu_node("n2", 0), a_gpu_node("n3", 1, kind="h100")], pods
    )
    assert found.line == ()


@pytest.mark.parametrize(
    ("pod", "nodes", "code", "message", "hint"),
    [
        pytest.param(
            a_pod(kind="h200"),
            [a_gpu_node(), a_gpu_node("n2", 4, kind="t4")],
            "unknown_gpu_type",
            "run lab/run-me asks for GPU type h200; the cluster has none",
            "choose one of: a100 (up to 2 on a node), t4 (up to 4 on a node)",
            id="unknown type",
        ),
        pytest.param(
            a_pod(gpus=8),
            [a_gpu_node(), a_gpu_node("n2", 4)],
            "more_than_any_node",
            "run lab/run-me asks for 8 GPUs; the largest node has 4 (n2)",
            "ask for at most 4; run `moor gpus` to see each node's GPUs",
            id="more than any node",
        ),
        pytest.param(
            a_pod(gpus=4, kind="a100"),
            [a_gpu_node(), a_gpu_node("n2", 4, kind="t4")],
            "more_than_any_node",
            "run lab/run-me asks for 4 GPUs of type a100; the largest node has 2 (n1)",
            "ask for at most 2; run `moor gpus` to see each node's GPUs",
            id="more than any node of the type",
        ),
        pytest.param(
            a_pod(),
            [a_gpu_node("n1", 0)],
            "no_gpus",
            "run lab/run-me asks for 1 GPU; no node of this cluster has any",
            "run it without `--gpus`, or ask the admin for a node with GPUs",
            id="no GPUs at all",
        ),
        pytest.param(
            a_pod(gpus=0, cpu="17"),
            [a_gpu_node()],
            "more_than_any_node",
            "run lab/run-me asks for 17 cpu; the largest node has 16 (n1)",
            "ask for at most 16",
            id="too many cores",
        ),
        pytest.param(
            a_pod(),
            [a_gpu_node(taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])],
            "no_node_accepts",
            "run lab/run-me is repelled by taints of every suitable node: team=b:NoSchedule (1 node)",
            "the admin decides who may use those nodes: ask for a toleration",
            id="tainted",
        ),
        pytest.param(
            a_pod(),
            [a_gpu_node(taints=[{"key": "moorage.dev/machine-group", "value": "gpu", "effect": "NoSchedule"}])],
            "no_node_accepts",
            "run lab/run-me is repelled by taints of every suitable node:"
            " moorage.dev/machine-group=gpu:NoSchedule (1 node)",
            "those nodes are dedicated to guests of machines: list them with `moor machines`, and ask for one",
            id="kept for machines",
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_what_would_do(pod, nodes, code, message, hint):
    found = ask(pod, nodes)
    assert found.state == "never"
    assert [(refusal.code, refusal.message, refusal.hint) for refusal in found.refusals] == [(code, message, hint)]
    assert f"error: {message}\nhint: {hint}" in explain_text(found)


def test_a_cordon_or_a_node_in_trouble_is_no_never():
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    for node, why in (
        (a_gpu_node(cordoned=True), "cordoned"),
        (a_gpu_node(ready=False, taints=[lost]), "not Ready"),
    ):
        found = ask(a_pod(), [node])
        assert (found.state, found.earliest) == ("waiting", None)
        assert [one.most_free_node for one in found.missing] == [""]
        head = explain_text(found).splitlines()[0]
        assert head == f"run lab/run-me waits: node n1 is {why}"


def test_a_cordoned_node_that_could_never_serve_is_no_obstacle():
    cordoned = [a_gpu_node("small", 1, cordoned=True), a_gpu_node("other", 8, kind="t4", cordoned=True)]
    explanation = ask(a_pod(gpus=4, kind="a100"), [*cordoned, a_gpu_node("right", 4, cordoned=True)])
    assert explain_text(explanation).splitlines()[0] == "run lab/run-me waits: node right is cordoned"


def test_gates_missing_volumes_and_quota_are_told():
    gated = ask(a_pod(gates=["moorage.dev/machine"]), [a_gpu_node()])
    assert (gated.state, gated.gates, short_reason(gated)) == (
        "gated",
        ("moorage.dev/machine",),
        "held by gate moorage.dev/machine",
    )
    assert "It could start once the gate is lifted now, on n1" in explain_text(gated)
    claimless = ask(
        a_pod(claims=["data", "ckpt"]), [a_gpu_node()], storage=storage_of([{"metadata": {"name": "ckpt"}}])
    )
    assert (claimless.state, claimless.missing_claims, claimless.earliest) == ("waiting", ("data",), None)
    assert "volume lab/data does not exist; `moor volume create data` makes it" in explain_text(claimless)
    message = 'pods "x" is forbidden: exceeded quota: team, requested: nvidia.com/gpu=1'
    quota = ask(
        a_pod(), [a_gpu_node()], events=[{"reason": "FailedCreate", "message": message, "lastTimestamp": "t"}]
    )
    assert (quota.state, quota.quota, short_reason(quota)) == ("waiting", message, "quota exceeded")
    assert ask(a_pod(claims=["data"]), [a_gpu_node()]).missing_claims == ()


def quota_full(gpus=1, cpu=""):
    """The event of a Job whose pod asks for more than the quota has left."""
    more = f",requests.cpu={cpu}" if cpu else ""
    part = f"requests.{GPU}={{}}" + (more and ",requests.cpu={}")
    parts = [part.format(*amounts) for amounts in ((gpus, cpu), (3, "6500m"), (3, "8"))]
    message = 'pods "x" is forbidden: exceeded quota: team, requested: {}, used: {}, limited: {}'.format(*parts)
    return [{"reason": "FailedCreate", "message": message, "lastTimestamp": "t"}]


def test_a_full_quota_names_its_users_and_when_it_has_room():
    nodes = [a_gpu_node("n1", 8), a_gpu_node("n2", 8)]
    pods = [
        a_pod("late", 1, node="n1", user="bob", expected=7 * 3600),
        a_pod("early", 1, node="n2", user="eve", expected=3 * 3600),
        a_pod("waits", 1, user="kim"),
        a_pod("done", 1, node="n1", phase="Succeeded"),
        a_run_pod("elsewhere", run="r", namespace="other", gpus=1, node="n1"),
    ]
    one = ask(a_pod(), nodes, pods, events=quota_full())
    rows = [(held.holder.owner, held.holder.run, held.node, held.amount) for held in one.held_by]
    assert rows == [("eve", "run-early", "n2", 1), ("bob", "run-late", "n1", 1), ("kim", "run-waits", "", 1)]
    assert one.earliest.at == NOON + timedelta(hours=1)
    text = explain_text(one)
    assert "Users of the quota\n  eve  run-early  1 GPU" in text
    assert "kim  run-waits  1 GPU  " in text
    assert "waiting for a node" in text
    assert "13:00 UTC (in 60m), if all runs reach their time limits; earlier if one ends sooner" in text
    two = ask(a_pod(gpus=2), nodes, pods, events=quota_full(2))
    assert two.earliest.at == NOON + timedelta(hours=5)
    three = ask(a_pod(gpus=3), nodes, pods, events=quota_full(3))
    assert three.earliest is None
    assert "when is not known: not all have a `--time`" in explain_text(three)


def test_a_quota_of_several_resources_has_room_when_all_have():
    pods = [
        a_pod("a", 1, node="n1", expected=3 * 3600, cpu="500m"),
        a_pod("b", 0, node="n1", expected=7 * 3600, cpu="4"),
    ]
    both = ask(a_pod(), [a_gpu_node("n1", 8)], pods, events=quota_full(1, "4"))
    assert [(held.resource, held.holder.run, held.amount) for held in both.held_by] == [
        ("cpu", "run-a", 500),
        (GPU, "run-a", 1),
        ("cpu", "run-b", 4000),
    ]
    assert both.earliest.at == NOON + timedelta(hours=5)
    assert [held.resource for held in as_public(both).held_by] == [GPU]


def test_what_holds_the_replacement_of_a_pod_killed_for_memory_is_told_to_its_user_only():
    pod = a_pod(gates=["moorage.dev/memory"])
    pod["metadata"]["annotations"] = {"moorage.dev/memory-held": "held: pod x was killed for memory"}
    found = ask(pod, [a_gpu_node()])
    assert "held: pod x was killed for memory; give its template more memory to go on" in explain_text(found)
    assert as_public(found).killed == ""


def test_another_type_is_offered_when_it_is_free_now():
    nodes = [a_gpu_node(gpus=1), a_gpu_node("n2", 1, kind="t4")]
    found = ask(a_pod(kind="a100"), nodes, [a_pod("x", node="n1")])
    assert [(one.gpus, one.gpu_types, one.node_type) for one in found.smaller] == [(1, (), "t4")]
    assert "It would start now with 1 GPU of type t4, on n2" in explain_text(found)


def test_a_type_asked_through_affinity_is_seen():
    pod = a_pod()
    pod["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": key, "operator": "In", "values": ["a100", "h100"]}]}
                    for key in ("nvidia.com/gpu.product", "accelerator")
                ]
            }
        }
    }
    assert wanted_types(parse_pod(pod)) == ("a100", "h100")
    found = ask(pod, [a_gpu_node(gpus=1), a_gpu_node("n2", 1, kind="t4")], [a_pod("x", node="n1")])
    assert [one.node for one in found.smaller] == ["n2"]


def test_the_shortage_of_something_else_than_gpus_is_named():
    found = ask(a_pod(cpu="12"), [a_gpu_node()], [a_pod("x", 1, node="n1", cpu="8", expected=3 * 3600)])
    assert [(one.resource, one.asks, one.most_free) for one in found.missing] == [("cpu", 12000, 8000)]
    assert "12 cpu: most free on one node 8 (n1)" in explain_text(found)
    assert found.earliest is not None
    assert found.earliest.at == NOON + timedelta(hours=1)


def test_shortages_that_differ_by_node_are_all_named():
    nodes = [a_gpu_node("n1", 1, cpu="16"), a_gpu_node("n2", 1, cpu="16")]
    pods = [a_pod("x", 1, node="n1"), a_pod("y", 0, node="n2", cpu="15")]
    assert [one.resource for one in ask(a_pod(cpu="8"), nodes, pods).missing] == [GPU, "cpu"]


def test_the_pod_itself_and_finished_pods_hold_nothing():
    me = a_pod()
    found = ask(me, [a_gpu_node(gpus=1)], [me, a_pod("x", node="n1", phase="Succeeded")])
    assert (found.state, found.line) == ("fits", ())


@pytest.mark.parametrize(
    ("pod", "state", "head"),
    [
        (a_pod(node="n1", started=None), "running", "run lab/run-me is running on n1"),
        (a_pod(node="n1", phase="Failed"), "finished", "run lab/run-me has ended (on n1)"),
    ],
)
def test_what_runs_or_is_over_waits_for_nothing(pod, state, head):
    found = ask(pod, [a_gpu_node()])
    assert (found.state, short_reason(found)) == (state, "")
    assert explain_text(found) == head


def test_a_job_is_judged_by_the_pod_it_would_make():
    job = {
        "metadata": {"namespace": "lab", "name": "train", "labels": {"moorage.dev/run": "train"}},
        "spec": {"template": {"spec": a_pod(gpus=8)["spec"]}},
    }
    found = ask(pod_of_job(job), [a_gpu_node()])
    assert (found.name, found.run, found.state, found.gpus) == ("train", "train", "never", 8)


def test_the_scheduler_is_quoted_when_no_node_fits():
    found = ask(a_pod(says="0/1 nodes are available"), [a_gpu_node(gpus=1)], [a_pod("x", node="n1")])
    assert explain_text(found).endswith("The scheduler says: 0/1 nodes are available")


def test_a_pod_of_another_scheduler_has_no_forecast():
    pod = a_pod()
    pod["spec"]["schedulerName"] = "volcano"
    explanation = ask(pod, [a_gpu_node()])
    assert (explanation.state, explanation.earliest) == ("waiting", None)
    assert short_reason(explanation).startswith("its scheduler 'volcano' has not placed it")


counts = st.integers(0, 4)
worlds = st.tuples(
    st.lists(st.tuples(counts, st.sampled_from(["a100", "t4"]), st.booleans(), st.booleans()), max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), counts, st.sampled_from([None, 1800, 7200, 20000]), st.integers(0, 2)),
        max_size=6,
    ),
    st.lists(st.tuples(counts, st.sampled_from(["", "a100"]), st.integers(-1, 1)), max_size=4),
    st.tuples(st.integers(0, 5), st.sampled_from(["", "a100", "h100"])),
)


def built(world):
    nodes, running, waiting, (gpus, kind) = world
    return (
        a_pod(gpus=gpus, kind=kind),
        [
            a_gpu_node(f"n{at}", many, kind=what, ready=ready, cordoned=cordoned)
            for at, (many, what, ready, cordoned) in enumerate(nodes)
        ],
        [
            a_pod(f"r{at}", many, node=f"n{node}", expected=expected, cpu=str(cpu))
            for at, (node, many, expected, cpu) in enumerate(running)
        ]
        + [
            a_pod(f"w{at}", many, kind=what, priority=priority, expected=600, created="2026-01-05T09:00:00Z")
            for at, (many, what, priority) in enumerate(waiting)
        ],
    )


@settings(max_examples=examples(37, full=150))
@given(worlds)
def test_an_explanation_is_never_at_odds_with_itself(world):
    pod, nodes, pods = built(world)
    found = ask(pod, nodes, pods)
    assert [verdict.node for verdict in found.verdicts] == [node["metadata"]["name"] for node in nodes]
    assert (found.state == "never") == bool(found.refusals)
    if found.state == "fits":
        assert any(verdict.node == found.node and verdict.fits for verdict in found.verdicts)
        assert found.earliest is not None
        assert found.earliest.at == NOON
    if found.state == "waiting":
        assert found.missing or found.line
    if found.fits:
        assert not found.missing
        assert not found.refusals
    if found.earliest is not None:
        assert found.earliest.at >= NOON
        assert found.earliest.node in {verdict.node for verdict in found.verdicts}
        if found.earliest.at == NOON and not found.fits:
            # only a holder past its limit frees something at once
            assert any(one.holder.expected_until and one.holder.expected_until <= NOON for one in found.held_by)
    for one in found.held_by:
        assert one.amount > 0
    answer = make_explanation(found)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Explanation) == answer
    text = explain_text(found)
    assert not text.endswith((".", "\n", " "))
    assert all(line == line.rstrip() for line in text.splitlines())


@settings(max_examples=examples(20, full=80))
@given(worlds)
def test_a_smaller_wish_that_is_offered_would_indeed_fit(world):
    pod, nodes, pods = built(world)
    for small in ask(pod, nodes, pods).smaller:
        kind = small.gpu_types[0] if small.gpu_types else ""
        again = ask(a_pod(gpus=small.gpus, kind=kind), nodes, pods)
        assert any(verdict.node == small.node and verdict.fits for verdict in again.verdicts)


def test_steps_of_workflows_stand_in_the_same_line_as_runs():
    def a_step(number, created):
        step = a_pod(f"fit-{number}", created=created)
        step["metadata"]["labels"] = {"workflows.argoproj.io/workflow": "w"}
        step["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = f"w[0].fit({number}:secret)"
        return step

    busy = a_pod("busy", 2, node="n1")
    steps = [a_step(number, "2026-01-05T11:10:00Z") for number in range(100)]
    early, late = a_pod("early", created="2026-01-05T11:00:00Z"), a_pod("late", created="2026-01-05T11:20:00Z")
    urgent = a_pod("urgent", created="2026-01-05T11:30:00Z", priority=10)
    pods = [busy, *steps, early, late, urgent]
    places = {
        pod["metadata"]["name"]: explain(pod, nodes=[a_gpu_node()], pods=pods, now=NOON).position
        for pod in (urgent, early, steps[0], late)
    }
    assert places == {"urgent": 1, "early": 2, "fit-0": 3, "late": 103}
    line = explain(late, nodes=[a_gpu_node()], pods=pods, now=NOON).line
    assert {waiter.title for waiter in line if waiter.step} == {"w/fit"}
