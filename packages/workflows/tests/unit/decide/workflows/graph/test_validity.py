"""The operator is away when a deadline passes, or is killed at it: what had to end has ended when it is back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.workflowmanifests import a_workflow
from tests.workflowrecords import a_node_record, a_workflow_record

from moorage_testing.workflowplayer import NOON, TOO_LONG, Ends, Player, Table, by_node
from moorage_workflows.decide.workflows.graph.events import Controls, PodSeen
from moorage_workflows.decide.workflows.graph.outcomes import ended_by_itself
from moorage_workflows.decide.workflows.graph.validity import violations
from moorage_workflows.decide.workflows.graph.workflow import LEFT_OVER
from moorage_workflows.model.workflow import NodePhase, NodeType, Resume

LONG = Ends(after=timedelta(hours=1))
NEVER = Ends(after=None)
LATE = "Step exceeded its deadline"

# as Argo's examples/timeouts-workflow.yaml
WORKFLOW_DEADLINE = a_workflow("""
  activeDeadlineSeconds: 30
  templates:
  - name: main
    steps:
    - - {name: long, template: say, withItems: [1, 2, 3]}
      - {name: never, template: say, withItems: [1, 2, 3]}
    - - {name: after, template: say}
""")
# as Argo's examples/step-level-timeout.yaml
TIMEOUT = """
spec:
  entrypoint: main
  templates:
  - {name: main, steps: [[{name: long, template: say}]]}
  - {name: say, timeout: 10s, container: {image: busybox, command: [sleep]}}
"""
TABLE = by_node(long=LONG, never=NEVER)


def begun(manifest: str | dict[str, Any], table: Table = TABLE) -> Player:
    """A run whose first pods are there."""
    player = Player(manifest, table)
    player.decide()
    while player.decide() == timedelta(0):
        pass
    return player


def checked(player: Player) -> Player:
    player.play()
    assert player.run.is_done
    assert violations(player.workflow, player.nodes.values()) == []
    assert player.left_running() == []
    assert LEFT_OVER not in {node.message for node in player.nodes.values()}
    return player


def test_a_workflow_whose_deadline_passed_unseen_ends_with_all_its_nodes() -> None:
    undisturbed = checked(begun(WORKFLOW_DEADLINE))
    player = begun(WORKFLOW_DEADLINE)
    player.restart(away=timedelta(minutes=2))
    checked(player)
    assert player.phases() == undisturbed.phases()
    assert player.workflow.phase == undisturbed.workflow.phase == "Failed"
    assert {player.node(f"WF[0].never({number}:{number + 1})").message for number in range(3)} == {LATE}


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_workflow_whose_operator_is_killed_at_its_deadline_ends_with_all_its_nodes(writes: int) -> None:
    undisturbed = checked(begun(WORKFLOW_DEADLINE))
    player = begun(WORKFLOW_DEADLINE)
    player.now += timedelta(seconds=30)
    player.decide(writes=writes)
    player.decide(writes=writes)
    checked(player)
    assert player.phases() == undisturbed.phases()
    assert {node.message for node in player.nodes.values() if node.type is NodeType.POD} == {LATE}


def test_a_timeout_that_passed_unseen_ends_the_pod() -> None:
    player = begun(TIMEOUT)
    player.restart(away=timedelta(hours=2))
    [pod] = player.pods.values()
    assert pod.is_ended, "nobody but the kubelet was there to end it"
    checked(player)
    assert player.phases() == checked(begun(TIMEOUT)).phases()
    assert player.node("WF[0].long").phase == "Failed"
    assert player.node("WF[0].long").finished_at < "2026-03-01T12:00:12"


def test_the_pods_own_limit_is_the_least_of_all_that_is_left() -> None:
    def seconds(**fields: object) -> int | None:
        template = {"name": "say", "container": {"image": "busybox"}} | fields.pop("template", {})  # type: ignore
        spec = {"entrypoint": "say", "templates": [template]} | fields
        return begun(yaml.safe_dump({"spec": spec})).created[0].deadline_seconds(NOON)

    assert seconds() is None
    assert seconds(template={"timeout": "1500ms"}) == 2  # never before the deadline
    assert seconds(template={"timeout": "1m", "activeDeadlineSeconds": 20}) == 20
    assert seconds(template={"timeout": "1m"}, activeDeadlineSeconds=30) == 30
    assert seconds(template={"timeout": "10s"}, activeDeadlineSeconds=30) == 10


def test_a_pod_that_is_created_late_has_what_is_left() -> None:
    """A quota held it back."""
    [order] = begun(TIMEOUT).created
    assert [order.deadline_seconds(NOON + timedelta(seconds=after)) for after in (0, 8, 9.5, 99)] == [10, 2, 1, 1]


@pytest.mark.parametrize("field", ["timeout", "pendingTimeout"])
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_an_operator_that_is_killed_while_it_ends_a_late_pod_leaves_the_same_record(field, writes) -> None:
    manifest = TIMEOUT.replace("timeout", field)
    table = by_node(long=LONG if field == "timeout" else NEVER)
    undisturbed = checked(begun(manifest, table))
    player = begun(manifest, table)
    player.now += timedelta(seconds=10)
    player.decide(writes=writes)
    player.restart(away=timedelta(seconds=5))
    checked(player)
    assert player.phases() == undisturbed.phases()
    assert undisturbed.node("WF[0].long").message == LATE
    assert player.node("WF[0].long").message in (LATE, TOO_LONG)


@pytest.mark.parametrize("limit", ["timeout: 10s", "pendingTimeout: 10s", "activeDeadlineSeconds: 10", "Stop"])
def test_a_step_whose_pod_is_refused_for_now_ends_in_time(limit: str) -> None:
    """A quota refuses it: no pod is there whose end could be seen."""
    in_template = limit if "imeout" in limit else ""
    in_spec = limit if "Seconds" in limit else ""
    player = Player(f"""
      spec:
        {in_spec}
        entrypoint: say
        templates:
        - name: say
          {in_template}
          container: {{image: busybox, command: [echo]}}
    """)
    decision = player.run.decide(player.now)
    [order] = decision.create
    player.run.pod_refused(order.record.pod_name, "exceeded quota", for_now=True)
    player.run.decide(player.now)
    assert player.run.records[order.record.id].message == "exceeded quota"
    if limit == "Stop":
        player.run.control(Controls(shutdown="Stop"))
    player.run.decide(player.now + timedelta(seconds=11))
    assert not player.run.waits_for(order.record.pod_name), "it is not tried again"
    assert player.run.records[order.record.id].phase == "Failed"
    assert player.run.is_done
    player.run.validate()


def test_a_late_pod_whose_clock_is_behind_has_been_late_all_the_same() -> None:
    """The times of pods are whole seconds, and of another clock."""
    player = begun(TIMEOUT)
    player.now += timedelta(seconds=10)
    player.decide()
    player.restart(away=timedelta(seconds=2))
    [(name, pod)] = player.pods.items()
    player.pods[name] = replace(pod, finished_at="2026-03-01T12:00:08Z")
    player.restart()
    checked(player)
    assert (player.node("WF[0].long").phase, player.node("WF[0].long").message) == ("Failed", LATE)


def test_a_pod_that_ended_in_time_keeps_its_end() -> None:
    """As with Argo: what a pod's end was seen late does not matter."""
    player = begun(WORKFLOW_DEADLINE, by_node(long=Ends(), never=Ends(), after=Ends()))
    player.restart(away=timedelta(minutes=2))
    checked(player)
    assert player.node("WF[0].long(0:1)").phase == "Succeeded"
    assert player.workflow.phase == "Failed"
    assert "WF[1].after" not in player.phases()


def test_a_pod_that_was_deleted_before_a_timeout_is_not_late() -> None:
    player = begun(TIMEOUT)
    [name] = player.pods
    player._delete(name)
    player.restart(away=timedelta(hours=2))
    checked(player)
    assert (player.node("WF[0].long").phase, player.node("WF[0].long").message) == ("Error", "pod deleted")


SHUTDOWNS = a_workflow("""
  onExit: bye
  templates:
  - name: main
    dag:
      tasks:
      - {name: long, template: say}
      - {name: never, template: say}
      - {name: again, template: again}
      - {name: gate, template: gate}
      - {name: inner, template: inner}
      - {name: after, template: say, depends: long}
  - {name: inner, steps: [[{name: daemon, template: daemon}], [{name: long, template: say}]]}
  - {name: daemon, daemon: true, container: {image: busybox, command: [sleep]}}
  - {name: gate, suspend: {duration: 2h}}
  - name: again
    retryStrategy: {limit: 3, backoff: {duration: 2h}}
    container: {image: busybox, command: [false]}
  - {name: bye, steps: [[{name: bye, template: say}]]}
""")


@pytest.mark.parametrize("strategy", ["Stop", "Terminate"])
@pytest.mark.parametrize("after_seconds", [0, 30])
def test_a_shutdown_that_was_asked_for_while_nobody_was_there_ends_every_node(strategy, after_seconds) -> None:
    def a_player() -> Player:
        player = begun(SHUTDOWNS, by_node(long=LONG, never=NEVER, again=Ends(exit_code=1), daemon=LONG))
        while player.now == NOON:
            player.step()
        return player

    calm = a_player()
    calm.control(Controls(shutdown=strategy))
    checked(calm)
    player = a_player()
    player.controls = Controls(shutdown=strategy)
    player.restart(away=timedelta(seconds=after_seconds))
    checked(player)
    assert player.phases() == calm.phases()
    assert player.workflow.phase == "Failed"
    has_handler = "WF.onExit[0].bye" in player.phases()
    assert has_handler is (strategy == "Stop")


@pytest.mark.parametrize(
    ("entrypoint", "is_suspended"),
    [
        pytest.param("main", False, id="it waits for a place"),
        pytest.param("locked", True, id="the workflow is suspended"),
    ],
)
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_step_that_holds_its_lock_and_has_no_pod_yet_ends_at_a_shutdown(
    entrypoint: str, is_suspended: bool, is_seen: bool
) -> None:
    manifest = a_workflow(f"""
        parallelism: 1
        entrypoint: {entrypoint}
        templates:
        - {{name: main, steps: [[{{name: long, template: say}}, {{name: locked, template: locked}}]]}}
        - name: locked
          synchronization: {{mutexes: [{{name: m}}]}}
          container: {{image: busybox, command: [echo]}}
    """)
    player = Player(manifest, TABLE)
    player.control(Controls(is_suspended=is_suspended))
    while player.decide() == timedelta(0):
        pass
    player.controls = Controls(shutdown="Stop", is_suspended=is_suspended)
    if is_seen:
        player.run.control(player.controls)
    else:
        player.restart()
    checked(player)
    [locked] = [node for node in player.nodes.values() if node.template == "locked"]
    assert (locked.phase, locked.message) == ("Failed", "workflow shutdown with strategy: Stop")
    assert not locked.pod_name


@pytest.mark.parametrize("entrypoint", ["main", "locked"])
def test_what_holds_its_lock_by_its_record_does_not_ask_for_it_again(entrypoint: str) -> None:
    """An answer that is late, or is another one now, must not end what goes on below."""
    manifest = a_workflow(f"""
        entrypoint: {entrypoint}
        synchronization: {{mutexes: [{{name: whole}}]}}
        templates:
        - {{name: main, steps: [[{{name: locked, template: locked}}]]}}
        - {{name: locked, synchronization: {{mutexes: [{{name: m}}]}}, steps: [[{{name: long, template: say}}]]}}
    """)
    player = begun(manifest)
    [locked] = [node for node in player.nodes.values() if node.template == "locked"]
    assert (player.workflow.locks, locked.locks) == (("Mutex/default/whole",), ("Mutex/default/m",))
    asked = list(player.locks_asked)
    player.restart()
    player.decide()
    assert player.locks_asked == asked
    checked(player)
    assert set(player.unlocked) == {locked.id, player.workflow.name}


@pytest.mark.parametrize("handler", ["WF.onExit", "WF[0].a.onExit"])
@pytest.mark.parametrize(
    ("strategy", "ends"), [("", "Pod Succeeded"), ("Stop", "Pod Succeeded"), ("Terminate", "Pod Failed")]
)
def test_an_exit_handler_that_waits_for_its_lock_waits_on_after_a_stop(handler, strategy, ends) -> None:
    of_step, of_workflow = ("", "onExit: bye") if handler == "WF.onExit" else ("onExit: bye", "")
    manifest = a_workflow(f"""
        {of_workflow}
        templates:
        - {{name: main, steps: [[{{name: a, template: say, {of_step}}}]]}}
        - name: bye
          synchronization: {{mutexes: [{{name: m}}]}}
          container: {{image: busybox, command: [echo]}}
    """)
    player = Player(manifest)
    player.has_locks = False
    player.play()
    [asked] = player.locks_asked
    player.control(Controls(shutdown=strategy))
    player.decide()
    player.run.answer(asked, None)
    checked(player)
    assert player.phases()[handler] == ends


def test_a_suspension_that_ended_while_nobody_was_there_goes_on_at_once() -> None:
    manifest = a_workflow("""
        - {name: main, steps: [[{name: gate, template: gate}], [{name: after, template: say}]]}
        - {name: gate, suspend: {duration: 1h}}
    """)
    player = begun(manifest)
    player.restart(away=timedelta(hours=3))
    player.decide()
    assert player.node("WF[0].gate").phase == "Succeeded"
    checked(player)
    assert player.workflow.phase == "Succeeded"


def test_a_resume_that_a_new_operator_is_told_of_first_is_not_lost() -> None:
    player = begun("spec: {entrypoint: gate, templates: [{name: gate, suspend: {}}]}")
    player.restart()
    player.run.resume(Resume())
    checked(player)
    assert player.workflow.phase == "Succeeded"


def test_values_that_were_supplied_one_by_one_are_kept_over_a_restart() -> None:
    manifest = a_workflow("""
        entrypoint: gate
        templates:
        - name: gate
          suspend: {}
          outputs:
            parameters: [{name: a, valueFrom: {supplied: {}}}, {name: b, valueFrom: {supplied: {}}}]
    """)
    player = begun(manifest)
    player.run.resume(Resume(parameters={"a": "1"}))
    player.decide()
    player.restart()
    player.decide()
    assert player.node("WF").message == "waits for output parameters: b"
    player.run.resume(Resume(parameters={"b": "2"}))
    checked(player)
    assert dict(player.node("WF").outputs.parameters) == {"a": "1", "b": "2"}


def test_retries_whose_longest_duration_passed_unseen_are_over() -> None:
    manifest = """
      spec:
        entrypoint: say
        templates:
        - name: say
          retryStrategy: {limit: 9, backoff: {duration: 1m, maxDuration: 10m}}
          container: {image: busybox, command: [echo]}
    """
    player = begun(manifest, lambda order: Ends(exit_code=1))
    player.restart(away=timedelta(hours=3))
    checked(player)
    assert player.node("WF").message == "Max duration limit exceeded"
    assert len(player.created) == 1


def test_a_daemon_that_died_unseen_does_not_fail_the_steps_after_it() -> None:
    """It was ready, and what comes after it began: its end is nobody's result."""

    def a_player() -> Player:
        manifest = a_workflow("""
            - {name: main, steps: [[{name: daemon, template: daemon}], [{name: long, template: say}]]}
            - {name: daemon, daemon: true, container: {image: busybox, command: [sleep]}}
        """)
        player = begun(manifest, by_node(daemon=Ends(exit_code=1, after=timedelta(minutes=1)), long=LONG))
        assert player.node("WF[0].daemon").is_daemon
        return player

    calm, player = checked(a_player()), a_player()
    player.restart(away=timedelta(minutes=5))
    checked(player)
    assert player.phases() == calm.phases()
    assert player.workflow.phase == "Succeeded"


def test_a_daemon_that_is_retried_ends_with_its_steps() -> None:
    manifest = a_workflow("""
            - {name: main, steps: [[{name: daemon, template: daemon}], [{name: after, template: say}]]}
            - {name: daemon, daemon: true, retryStrategy: {limit: 2}, container: {image: b, command: [sleep]}}
        """)
    player = checked(Player(manifest, by_node(daemon=LONG)))
    assert player.phases()["WF[0].daemon"] == "Retry Succeeded"
    assert player.phases()["WF[0].daemon(0)"] == "Pod Succeeded"


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_the_pod_of_a_daemon_whose_end_was_saved_is_deleted_by_the_next_operator(writes: int) -> None:
    manifest = a_workflow("""
        - {name: main, steps: [[{name: inner, template: inner}], [{name: after, template: say}]]}
        - {name: inner, steps: [[{name: daemon, template: daemon}], [{name: ok, template: say}]]}
        - {name: daemon, daemon: true, container: {image: busybox, command: [sleep]}}
    """)
    player = Player(manifest, by_node(daemon=LONG))
    while "WF[0].inner[1].ok" not in player.phases() or player.node("WF[0].inner[1].ok").phase != "Running":
        player.step()
    player.step()  # its pod has ended
    player.step(writes=writes)
    checked(player)


@pytest.mark.parametrize("control", ["deadline", "Stop"])
def test_hooks_of_steps_do_not_start_after_the_end_of_their_workflow_was_asked_for(control: str) -> None:
    manifest = a_workflow("""
        activeDeadlineSeconds: 30
        templates:
        - name: main
          steps:
          - - name: long
              template: say
              hooks:
                failed: {template: say, expression: steps.long.status == "Failed"}
                exit: {template: say}
    """)
    player = begun(manifest, by_node(long=LONG))
    if control == "Stop":
        player.control(Controls(shutdown=control))
    checked(player)
    assert "WF[0].long.hooks.failed" not in player.phases()
    assert player.phases()["WF[0].long.onExit"] == "Pod Succeeded"


def test_a_hook_that_has_begun_is_followed_to_its_end() -> None:
    """Its condition held when it began, and need not hold any more."""

    def a_player() -> Player:
        manifest = a_workflow("""
            - name: main
              steps:
              - - name: a
                  template: say
                  hooks: {slow: {template: say, expression: steps.a.status == "Running"}}
        """)
        return begun(
            manifest, lambda order: LONG if ".hooks." in order.record.name else Ends(after=timedelta(minutes=1))
        )

    calm, player = checked(a_player()), a_player()
    player.restart(away=timedelta(minutes=5))
    checked(player)
    assert player.phases() == calm.phases()
    assert player.node("WF[0].a.hooks.slow").phase == "Succeeded"


def test_a_step_that_has_begun_is_not_taken_from_a_cache() -> None:
    manifest = """
      spec:
        entrypoint: say
        templates:
        - name: say
          memoize: {key: k, cache: {configMap: {name: c}}}
          container: {image: busybox, command: [echo]}
    """
    player = begun(manifest, lambda order: LONG)
    player.memos[("c", "k")] = Ends().parameters  # type: ignore[assignment]  # another workflow was faster
    player.restart()
    checked(player)
    assert not player.node("WF").is_memoized


def test_what_has_begun_goes_on_where_a_sibling_has_failed_fast() -> None:
    manifest = a_workflow("""
        - name: main
          failFast: true
          steps: [[{name: bad, template: say}, {name: long, template: say}]]
    """)
    table = by_node(bad=Ends(exit_code=1), long=LONG)
    calm, player = checked(begun(manifest, table)), begun(manifest, table)
    player.restart(away=timedelta(minutes=1))
    while player.decide() == timedelta(0):
        pass
    player.restart()
    checked(player)
    assert player.phases() == calm.phases()
    assert player.node("WF[0].long").phase == "Succeeded"


def test_what_has_begun_goes_on_while_the_workflow_is_suspended() -> None:
    player = begun(TIMEOUT, by_node(long=Ends()))
    player.controls = Controls(is_suspended=True)
    player.restart()
    checked(player)
    assert player.node("WF[0].long").phase == "Succeeded"


def test_a_node_that_waits_for_a_lock_ends_at_a_deadline_that_passed_unseen() -> None:
    manifest = """
      spec:
        activeDeadlineSeconds: 30
        entrypoint: main
        templates:
        - {name: main, steps: [[{name: a, template: say}]]}
        - {name: say, synchronization: {mutexes: [{name: m}]}, container: {image: busybox, command: [echo]}}
    """
    player = Player(manifest)
    player.has_locks = False
    while player.step():
        pass
    assert player.run.is_done, "its own deadline passes"
    calm = player
    player = Player(manifest)
    player.has_locks = False
    player.decide()
    player.restart(away=timedelta(minutes=1))
    checked(player)
    assert player.phases() == calm.phases()
    assert player.workflow.phase == "Failed"


def test_a_workflow_that_waits_for_its_lock_ends_at_a_deadline_that_passed_unseen() -> None:
    player = Player("""
      spec:
        activeDeadlineSeconds: 30
        entrypoint: say
        onExit: say
        synchronization: {mutexes: [{name: m}]}
        templates: [{name: say, container: {image: busybox, command: [echo]}}]
    """)
    player.has_locks = False
    player.decide()
    player.restart(away=timedelta(minutes=1))
    player.decide()
    assert player.workflow.locks == (), "another workflow holds it"
    checked(player)
    assert player.workflow.phase == "Failed"


@pytest.mark.parametrize("holder", ["workflow", "template"])
def test_pods_that_run_keep_their_places_when_the_operator_is_back(holder: str) -> None:
    """`parallelism` counts them before what waits for a place."""
    at_once = {holder: "parallelism: 2"}
    manifest = a_workflow(f"""
        {at_once.get("workflow", "")}
        templates:
        - name: main
          {at_once.get("template", "")}
          dag:
            tasks:
            - {{name: first, template: say, depends: b}}
            - {{name: second, template: say, depends: b}}
            - {{name: third, template: say}}
            - {{name: a, template: say}}
            - {{name: b, template: say}}
    """)
    table = by_node(first=LONG, second=LONG, third=LONG, b=Ends(after=timedelta(seconds=2)))
    for at in range(30):
        player = Player(manifest, table)
        for _ in range(at):
            player.step()
        player.restart()
        checked(player)
        assert player.most_at_once <= 2


# --- whatever happens

MANIFESTS = {
    "the workflow's deadline": {"spec": {**WORKFLOW_DEADLINE["spec"], "onExit": "say"}},
    "timeouts of steps": a_workflow("""
        - name: main
          dag:
            tasks:
            - {name: long, template: short}
            - {name: never, template: pends}
            - {name: ok, template: short}
            - {name: set, template: set}
            - {name: after, template: short, depends: "long.Failed && never.Failed"}
        - {name: short, timeout: 20s, container: {image: busybox, command: [sleep]}}
        - {name: pends, pendingTimeout: 10s, container: {image: busybox, command: [sleep]}}
        - name: set
          activeDeadlineSeconds: 30
          containerSet: {containers: [{name: main, image: busybox, command: [sleep]}]}
    """),
    "retries, gates and daemons": a_workflow("""
        activeDeadlineSeconds: 100
        onExit: bye
        parallelism: 3
        templates:
        - name: main
          dag:
            tasks:
            - {name: again, template: again}
            - {name: gate, template: gate}
            - {name: inner, template: inner, withItems: [1, 2], depends: gate}
            - name: hooked
              template: say
              hooks: {exit: {template: say}, due: {template: say, expression: tasks.hooked.status == "Running"}}
            - {name: long, template: locked, depends: hooked}
        - {name: inner, steps: [[{name: daemon, template: daemon}], [{name: ok, template: say}]]}
        - {name: daemon, daemon: true, container: {image: busybox, command: [sleep]}}
        - {name: gate, suspend: {duration: 15s}}
        - name: again
          retryStrategy: {limit: 5, backoff: {duration: 5s, factor: 2, maxDuration: 1m}}
          container: {image: busybox, command: [false]}
        - name: locked
          synchronization: {mutexes: [{name: m}]}
          container: {image: busybox, command: [echo]}
        - {name: bye, activeDeadlineSeconds: 5, container: {image: busybox, command: [sleep]}}
    """),
    "locks": a_workflow("""
        activeDeadlineSeconds: 100
        onExit: bye
        parallelism: 2
        synchronization: {mutexes: [{name: whole}]}
        templates:
        - name: main
          synchronization: {mutexes: [{name: main}]}
          steps:
          - - {name: long, template: locked, withItems: [1, 2]}
            - {name: again, template: again}
            - {name: gate, template: gate}
          - - {name: ok, template: locked}
        - {name: gate, synchronization: {mutexes: [{name: g}]}, suspend: {duration: 15s}}
        - {name: bye, synchronization: {mutexes: [{name: b}]}, container: {image: busybox, command: [echo]}}
        - name: again
          retryStrategy: {limit: 2, backoff: {duration: 5s}}
          synchronization: {mutexes: [{name: a}]}
          container: {image: busybox, command: [false]}
        - name: locked
          synchronization: {semaphores: [{configMapKeyRef: {name: c, key: k}}]}
          containerSet: {containers: [{name: main, image: busybox, command: [sleep]}]}
    """),
}
FATES = by_node(
    long=LONG, never=NEVER, again=Ends(exit_code=1), daemon=LONG, ok=Ends(after=timedelta(seconds=3)), bye=LONG
)


@pytest.mark.parametrize("name", MANIFESTS)
@given(seed=st.integers(0, 2**32))
def test_killed_before_any_write_a_run_ends_as_if_nothing_had_happened(name: str, seed: int) -> None:
    chance = random.Random(seed)
    calm = checked(Player(MANIFESTS[name], FATES))
    player = Player(MANIFESTS[name], FATES)
    for _ in range(2_000):
        if not player.step(writes=chance.randrange(8) if chance.random() < 0.5 else None):
            break
    checked(player)
    assert player.phases() == calm.phases()
    assert player.workflow.phase == calm.workflow.phase
    assert {node.name: node.message for node in player.nodes.values()} == {
        node.name: node.message for node in calm.nodes.values()
    }
    assert sorted(order.record.name for order in player.created) == sorted(
        order.record.name for order in calm.created
    )


@pytest.mark.parametrize("name", MANIFESTS)
@given(seed=st.integers(0, 2**32))
@example(seed=3809938680)  # a shutdown is seen after a restart, while a step that holds its lock has no pod
def test_away_or_killed_at_any_moment_a_run_ends_whole_and_in_time(name: str, seed: int) -> None:
    """Whatever passes meanwhile: deadlines, the ends of pods, a shutdown, a suspension."""
    chance = random.Random(seed)
    player = Player(MANIFESTS[name], FATES)
    end = NOON + timedelta(seconds=100)  # later by each absence before the start, or beyond this moment
    for _ in range(2_000):
        if player.workflow.finished_at:  # the operator makes no run of it any more
            break
        if chance.random() < 0.2:
            if chance.random() < 0.1:
                shutdown = chance.choice(["Stop", "Terminate"])
                player.controls = Controls(shutdown=shutdown, is_suspended=chance.random() < 0.3)
            away = timedelta(seconds=chance.choice([0, 1, 7, 40]))
            player.restart(away=away)
            if not player.workflow.started_at or player.now > end:
                end += away
        if not player.step(writes=chance.randrange(8) if chance.random() < 0.3 else None):
            break
    if player.controls is not None and player.controls.is_suspended:
        end = max(end, player.now)
        player.control(Controls(shutdown=player.controls.shutdown))
    checked(player)
    assert all(at <= end + timedelta(seconds=5 + 5) for at, _ in player.ends.values())


def test_open_nodes_of_a_run_that_has_ended_are_found() -> None:
    ended = a_workflow_record("u", "wf", phase="Failed", locks=("Mutex/d/m",))
    inner = a_node_record("wf.b", id="b", phase=NodePhase.RUNNING, boundary_id="a", pod_name="p")
    outer = a_node_record("wf", NodeType.DAG, NodePhase.FAILED, id="a", pod_name="p")
    assert violations(ended, [outer, inner]) == [
        "workflow wf is Failed, and has no time of its end",
        "workflow wf is Failed, and holds Mutex/d/m",
        "node wf is Failed, and has no time of its end",
        "nodes wf and wf.b both have the pod p",
        "node wf.b is Running, and its workflow is Failed",
    ]
    running = a_workflow_record("u", "wf", phase="Running")
    assert violations(running, [outer, inner])[-1] == "node wf.b is Running, and wf, around it, is Failed"


DUE = datetime(2026, 1, 1, 12, 0, 30, 400_000, tzinfo=UTC)


@pytest.mark.parametrize(("finished", "exit_code", "is_deleted", "by_itself"), [
    pytest.param("12:00:25Z", 137, True, True, id="deleted by somebody else, well before"),
    pytest.param("12:00:26Z", 137, True, False, id="deleted shortly before, by a clock that may be wrong"),
    pytest.param("12:00:30Z", 0, True, True, id="succeeded in time"),
    pytest.param("12:00:31Z", 0, True, False, id="succeeded later, while it was being ended"),
    pytest.param("12:00:40Z", 1, False, True, id="nobody has ended it"),
])  # fmt: skip
def test_a_pod_that_fails_about_the_time_of_its_deadline_is_late(
    finished: str, exit_code: int, is_deleted: bool, by_itself: bool
) -> None:
    pod = PodSeen(
        name="p", is_ended=True, is_deleted=is_deleted, exit_code=exit_code, finished_at=f"2026-01-01T{finished}"
    )
    assert ended_by_itself(pod, DUE) == by_itself
