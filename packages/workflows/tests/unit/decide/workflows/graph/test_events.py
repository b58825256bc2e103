"""Nodes of HTTP templates: as Argo shows them, with retries, results and hooks."""

from __future__ import annotations

from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.model.workflow import NodePhase, Outputs

CHAIN = """
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: ask, template: call}
    - - name: use
        template: call
        arguments: {parameters: [{name: text, value: "{{steps.ask.outputs.result}}"}]}
  - name: call
    inputs: {parameters: [{name: text, default: ""}]}
    retryStrategy: {limit: 1}
    http: {url: "http://x/{{inputs.parameters.text}}"}
"""


def test_the_body_is_the_result_and_no_exit_code_is_there() -> None:
    player = Player(CHAIN, by_node(ask=Ends(result="hello"))).play()
    assert player.workflow.phase == "Succeeded"
    node = player.node("WF[0].ask(0)")
    assert (str(node.type), node.phase, node.outputs) == ("HTTP", NodePhase.SUCCEEDED, Outputs(result="hello"))
    assert [order.template["http"]["url"] for order in player.created] == ["http://x/", "http://x/hello"]
    assert (player.workflow.done, player.workflow.total) == (2, 2)


def test_a_request_that_failed_is_tried_again_and_says_why() -> None:
    error = "received non-2xx response code: 503"
    player = Player(CHAIN, by_node(ask=Ends(exit_code=1, result="busy", error=error))).play()
    attempts = [player.node(f"WF[0].ask({number})") for number in (0, 1)]
    assert [(node.phase, node.message) for node in attempts] == [(NodePhase.FAILED, error)] * 2
    assert attempts[0].outputs == Outputs(result="busy")
    assert player.workflow.phase == "Failed"


def test_a_request_that_was_answered_is_not_sent_again_though_its_pod_is_lost() -> None:
    player = Player(CHAIN, by_node(ask=Ends(exit_code=None, result="x", disrupted="DeletionByPodGC"))).play()
    assert len(player.created) == 2
    assert player.workflow.phase == "Succeeded"


def test_a_pod_that_was_lost_before_the_answer_is_made_again() -> None:
    lost = [True]

    def table(order):  # type: ignore[no-untyped-def]
        return Ends(exit_code=None, disrupted="TerminationByKubelet") if lost and lost.pop() else Ends(result="x")

    player = Player(CHAIN, table).play()
    assert len(player.created) == 3
    assert player.workflow.phase == "Succeeded"


HOOKS = """
spec:
  entrypoint: main
  hooks:
    exit: {template: call}
    running: {template: call, expression: workflow.status == "Running"}
  templates:
  - name: main
    steps:
    - - name: one
        template: work
        hooks:
          done: {template: call, expression: steps.one.status == "Succeeded"}
  - name: work
    container: {image: busybox, command: ["true"]}
  - name: call
    http: {url: "http://x/"}
"""


def test_hooks_and_exit_handlers_are_requests_too() -> None:
    player = Player(HOOKS).play()
    assert player.workflow.phase == "Succeeded"
    assert {name: kind for name, kind in player.phases().items() if kind.startswith("HTTP")} == {
        "WF.hooks.running": "HTTP Succeeded",
        "WF[0].one.hooks.done": "HTTP Succeeded",
        "WF.onExit": "HTTP Succeeded",
    }
