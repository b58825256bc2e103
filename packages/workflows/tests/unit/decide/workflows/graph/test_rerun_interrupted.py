"""A run that is made anew from its records at any moment ends as one that was left alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflowmanifests import a_workflow

from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.graph.events import CreatePod

MANIFESTS = {
    "steps with a loop": a_workflow("""
        - name: main
          steps:
          - - {name: make, template: print}
          - - {name: fan, template: say, arguments: {parameters: [{name: x, value: "{{item}}"}]},
               withParam: "{{steps.make.outputs.result}}"}
          - - name: last
              template: say
              arguments: {parameters: [{name: x, value: "{{steps.fan.outputs.parameters.y}}"}]}
        - name: print
          script: {image: python, command: [python], source: "print([1, 2, 3])"}
        - name: say
          inputs: {parameters: [{name: x}]}
          outputs: {parameters: [{name: y, valueFrom: {path: /tmp/y}}]}
          container: {image: busybox, command: [echo, "{{inputs.parameters.x}}"]}
    """),
    "global outputs of a step in another": a_workflow("""
        onExit: use
        templates:
        - {name: main, steps: [[{name: inner, template: inner}], [{name: use, template: use}]]}
        - {name: inner, steps: [[{name: make, template: make}]]}
        - name: make
          container: {image: busybox, command: [echo]}
          outputs:
            parameters: [{name: y, globalName: why, valueFrom: {path: /y}}]
            artifacts: [{name: f, globalName: file, path: /f}]
        - name: use
          steps:
          - - name: fan
              template: say
              arguments:
                parameters: [{name: x, value: "{{workflow.outputs.parameters.why}}"}]
                artifacts: [{name: f, from: "{{workflow.outputs.artifacts.file}}"}]
        - name: say
          inputs: {parameters: [{name: x}], artifacts: [{name: f, path: /f}]}
          container: {image: busybox, command: [echo, "{{inputs.parameters.x}}"]}
    """),
    "a DAG whose branch fails": a_workflow("""
        onExit: bye
        templates:
        - name: main
          dag:
            tasks:
            - {name: a, template: say}
            - {name: b, template: say, depends: a}
            - {name: broken, template: say, depends: a}
            - {name: d, template: say, depends: "b && (broken.Succeeded || broken.Failed)"}
            - {name: e, template: say, depends: broken}
            - {name: f, template: say, depends: "e.Omitted"}
        - name: bye
          steps: [[{name: sad, template: say, when: "{{workflow.status}} != Succeeded"}]]
    """),
    "global outputs of inner steps": a_workflow("""
        onExit: bye
        templates:
        - name: main
          steps:
          - - {name: all, template: inner, arguments: {parameters: [{name: to, value: left}]}}
          - - {name: next, template: inner, arguments: {parameters: [{name: to, value: right}]}}
        - name: inner
          inputs: {parameters: [{name: to}]}
          dag:
            tasks:
            - name: fan
              template: export
              arguments: {parameters: [{name: to, value: "{{inputs.parameters.to}}"}]}
        - name: export
          inputs: {parameters: [{name: to}]}
          outputs:
            parameters: [{name: y, globalName: "from-{{inputs.parameters.to}}", valueFrom: {path: /y}}]
          container: {image: busybox, command: [echo]}
        - name: bye
          container: {image: busybox, command: [echo, "{{workflow.outputs.parameters.from-left}}"]}
    """),
    "retries with a limit": a_workflow("""
        parallelism: 2
        templates:
        - name: main
          steps:
          - - {name: broken, template: again, continueOn: {failed: true}}
            - {name: well, template: again}
          - - {name: last, template: again, hooks: {exit: {template: plain}}}
        - name: again
          retryStrategy: {limit: 2, backoff: {duration: 10s, factor: 2}}
          container: {image: busybox, command: [echo]}
        - name: plain
          container: {image: busybox, command: [echo]}
    """),
}
TABLE = by_node(
    make=Ends(result="[1, 2, 3]", parameters={"y": "why"}, artifacts=("f",)),
    broken=Ends(exit_code=3),
    fan=Ends(parameters={"y": "why"}),
)


def by_name(player: Player) -> list[CreatePod]:
    return sorted(player.created, key=lambda order: order.record.name)


def undisturbed(manifest: str) -> Player:
    return Player(manifest, TABLE).play()


@pytest.mark.parametrize("name", MANIFESTS)
@given(seed=st.integers(0, 2**32))
def test_restarts_change_nothing(name: str, seed: int) -> None:
    chance = random.Random(seed)
    calm = undisturbed(MANIFESTS[name])
    player = Player(MANIFESTS[name], TABLE)
    for _ in range(10_000):
        if chance.random() < 0.3:
            player.restart()
        if not player.step():
            break
    player.restart()
    assert player.run.is_done
    assert player.workflow.phase == calm.workflow.phase
    assert player.phases() == calm.phases()
    assert (player.workflow.parameters, player.workflow.artifacts) == (
        calm.workflow.parameters,
        calm.workflow.artifacts,
    )
    assert [(order.record.name, order.artifacts) for order in by_name(player)] == [
        (order.record.name, order.artifacts) for order in by_name(calm)
    ]
    names = [order.record.name for order in player.created]
    assert sorted(names) == sorted(order.record.name for order in calm.created)
    assert len(set(names)) == len(names)
    assert player.created[-1].template == calm.created[-1].template


def test_a_dag_ends_as_its_leaves_say() -> None:
    player = undisturbed(MANIFESTS["a DAG whose branch fails"])
    assert player.workflow.phase == "Succeeded"
    assert player.phases()["WF.e"] == "Skipped Omitted"
    assert player.phases()["WF.f"] == "Pod Succeeded"


def test_a_limit_of_two_is_three_attempts_with_waits() -> None:
    player = undisturbed(MANIFESTS["retries with a limit"])
    attempts = [order.record.name for order in player.created if "broken" in order.record.name]
    assert attempts == ["wf[0].broken(0)", "wf[0].broken(1)", "wf[0].broken(2)"]
    assert player.node("WF[0].broken").message == "No more retries left"
    starts = [player.node(f"WF[0].broken({number})").started_at for number in range(3)]
    assert starts == sorted(starts)
    assert player.most_at_once <= 2
