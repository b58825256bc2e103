from __future__ import annotations

from tests.workflowrecords import a_node_record

from moorage_workflows.controllers.workflow.pendingpods import LEAST, PendingPods
from moorage_workflows.decide.workflows.graph.events import CreatePod


def an_order(name: str, template: str = "train") -> CreatePod:
    record = a_node_record(name, template=template, pod_name=name)
    return CreatePod(
        record=record, template={}, artifacts={}, wants_result=False, longest=None, ends_by=None, excluded_hosts=()
    )


def orders(number: int, template: str = "train") -> list[CreatePod]:
    return [an_order(f"{template}-{at}", template) for at in range(number)]


def taken(line: PendingPods) -> list[str]:
    return [order.record.pod_name for order in line.take()]


def test_pods_are_created_in_their_order_until_many_wait_for_a_node():
    line = PendingPods()
    line.order(orders(LEAST + 50))
    assert taken(line) == [f"train-{at}" for at in range(LEAST)]
    assert taken(line) == []
    assert [line.has("train-0"), line.has(f"train-{LEAST}")] == [False, True]


def test_each_pod_that_gets_a_node_or_ends_makes_room_for_the_next():
    line = PendingPods()
    line.order(orders(LEAST + 50))
    line.take()
    line.seen("train-0", "train", has_node=True)
    assert taken(line) == [f"train-{LEAST}"]
    line.forget("train-1")
    assert taken(line) == [f"train-{LEAST + 1}"]


def test_as_many_may_wait_as_have_a_node():
    line = PendingPods()
    for at in range(3 * LEAST):
        line.seen(f"running-{at}", "train", has_node=True)
    line.order(orders(10 * LEAST))
    assert len(taken(line)) == 3 * LEAST


def test_pods_of_one_template_do_not_hold_up_those_of_another():
    line = PendingPods()
    line.order(orders(LEAST + 50))
    line.order(orders(2, "report"))
    assert taken(line)[-2:] == ["report-0", "report-1"]


def test_pods_that_an_earlier_operator_made_count():
    line = PendingPods()
    for at in range(LEAST - 1):
        line.seen(f"old-{at}", "train", has_node=False)
    line.order(orders(5))
    assert taken(line) == ["train-0"]


def test_an_order_that_is_taken_back_is_not_carried_out():
    line = PendingPods()
    line.order(orders(LEAST + 2))
    line.take()
    assert line.forget(f"train-{LEAST}")
    assert not line.forget("train-0")
    assert taken(line) == [f"train-{LEAST + 1}"]


def test_without_a_bound_every_pod_is_created_at_once():
    line = PendingPods(bounded=False)
    line.order(orders(10 * LEAST))
    assert len(taken(line)) == 10 * LEAST
