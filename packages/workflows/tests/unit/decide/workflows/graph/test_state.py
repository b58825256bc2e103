"""Moves of nodes: a run makes each one of the table. `State.save` refuses all others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from moorage.model.moves import IllegalMove
from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.graph.events import Controls
from moorage_workflows.model.workflow import NODE_MOVES, NodePhase

PAGE = Path(__file__).parents[7] / "docs/explanation/workflows.md"
MANIFEST = """
spec:
  entrypoint: main
  templates:
  - name: main
    dag:
      failFast: false
      tasks:
      - {name: good, template: say}
      - {name: again, template: say, dependencies: [good]}
      - {name: quick, template: say2}
      - {name: bad, template: fails}
      - {name: broken, template: say2}
      - {name: lost, template: retries}
      - {name: omitted, template: fails, depends: bad.Succeeded}
      - {name: skipped, template: fails, when: "1 == 2"}
      - {name: unreadable, template: fails, when: "1 =="}
      - {name: refused, template: locks}
      - {name: slow, template: waits}
  - name: say
    memoize: {key: k, cache: {configMap: {name: c}}}
    container: {image: busybox, command: [echo]}
    outputs: {parameters: [{name: p, valueFrom: {path: /p, default: "1"}}]}
  - {name: fails, container: {image: busybox, command: [echo]}}
  - {name: say2, container: {image: busybox, command: [echo]}}
  - {name: retries, container: {image: busybox, command: [echo]}}
  - {name: locks, synchronization: {mutexes: [{name: m}]}, container: {image: busybox, command: [echo]}}
  - {name: waits, activeDeadlineSeconds: 5, container: {image: busybox, command: [echo]}}
"""


def test_a_run_makes_every_move_of_the_table() -> None:
    table = by_node(
        bad=Ends(exit_code=1),
        broken=Ends(error="no output"),
        lost=Ends(disrupted="Evicted"),
        refused=Ends(after=None),
        slow=Ends(after=None),
    )
    player = Player(MANIFEST, table)
    while not player.created:
        player.decide()
    player.restart(away=timedelta(minutes=1))  # the pod of `quick` ends, and nobody has seen it run
    for _ in range(60):
        player.step()
    player.run.pod_refused(player.node("WF.refused").pod_name, "the namespace is full", for_now=False)
    player.step()
    player.control(Controls(shutdown="Terminate"))
    player.play()
    assert {(before, after) for before, after in player.moves if before is not after} == set(NODE_MOVES)


def test_a_final_phase_is_left_by_no_move() -> None:
    assert [phase for phase in NodePhase if not phase.is_fulfilled] == [NodePhase.PENDING, NodePhase.RUNNING]
    with pytest.raises(IllegalMove, match="a node cannot go from Failed to Running"):
        NODE_MOVES.check(NodePhase.FAILED, NodePhase.RUNNING)


def test_the_page_draws_the_moves_of_the_table() -> None:
    assert f"```mermaid\n{NODE_MOVES.diagram()}\n```" in PAGE.read_text()
