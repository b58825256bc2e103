"""What a run decides: steps, DAGs, hooks, limits, suspension, shutdown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.workflowmanifests import NESTED_EXPORT, a_workflow

from moorage_testing.workflowplayer import Ends, Player, Table, always, by_node
from moorage_workflows.decide.workflows.graph.events import Controls, PodSeen
from moorage_workflows.decide.workflows.graph.naming import fnv1a
from moorage_workflows.decide.workflows.graph.rerun import nodes_to_forget
from moorage_workflows.model.workflow import NodePhase, Outputs, Resume, Retry


def play(text: str, table: Table = always) -> Player:
    return Player(a_workflow(text), table).play()


def test_a_failed_step_ends_the_steps_after_its_group() -> None:
    templates = """
        - name: main
          steps:
          - - {name: bad, template: say}
            - {name: good, template: say}
          - - {name: never, template: say}
"""
    player = play(templates, by_node(bad=Ends(exit_code=2), good=Ends(after=timedelta(seconds=5))))
    assert player.workflow.phase == "Failed"
    assert player.phases() == {
        "WF": "Steps Failed",
        "WF[0]": "StepGroup Failed",
        "WF[0].bad": "Pod Failed",
        "WF[0].good": "Pod Succeeded",
    }
    assert player.node("WF[0].bad").message == "Error (exit code 2)"


def test_a_failure_that_may_be_goes_on() -> None:
    templates = """
        - name: main
          steps:
          - - {name: bad, template: say, continueOn: {failed: true}}
          - - {name: then, template: say, arguments: {parameters: [{name: x, value: "{{steps.bad.exitCode}}"}]}}
"""
    player = play(templates, by_node(bad=Ends(exit_code=7)))
    assert player.workflow.phase == "Succeeded"
    assert player.created[-1].template["container"]["command"] == ["echo", "7"]


@pytest.mark.parametrize(
    ("depends", "bad", "phase"),
    [
        pytest.param("a", Ends(exit_code=1), "Skipped Omitted", id="a bare name wants success"),
        pytest.param("a.Failed", Ends(exit_code=1), "Pod Succeeded", id="failure is what was wanted"),
        pytest.param("a.Failed", Ends(), "Skipped Omitted", id="and did not come"),
        pytest.param("a.Errored", Ends(error="lost"), "Pod Succeeded", id="an error is no failure"),
        pytest.param("!a.Failed && a.Succeeded", Ends(), "Pod Succeeded", id="and, not"),
    ],
)
def test_depends(depends: str, bad: Ends, phase: str) -> None:
    templates = f"""
        - name: main
          dag:
            tasks:
            - {{name: a, template: say}}
            - {{name: b, template: say, depends: "{depends}"}}
"""
    player = play(templates, by_node(a=bad))
    assert player.phases()["WF.b"] == phase


def test_a_task_sees_only_what_comes_before_it() -> None:
    templates = """
        - name: main
          dag:
            tasks:
            - {name: a, template: print}
            - {name: b, template: say, arguments: {parameters: [{name: x, value: "{{tasks.a.outputs.result}}"}]}}
        - {name: print, script: {image: python, command: [python], source: "print(1)"}}
"""
    player = play(templates, by_node(a=Ends(result="1")))
    assert player.workflow.phase == "Error"
    assert "tasks.a.outputs.result" in player.node("WF.b").message


@pytest.mark.parametrize(
    ("templates", "commands"),
    [
        pytest.param("""
        - name: main
          script: {image: python, command: [cat, "{{inputs.parameters}}"], source: ""}
""", [["cat", "[]"]], id="all parameters of a template that has none"),
        pytest.param("""
        arguments: {parameters: [{name: flag, value: true}, {name: n, value: 50000}]}
        templates:
        - name: main
          inputs: {parameters: [{name: mem, value: "{{=asInt(workflow.parameters.n) > 9 ? '96Mi' : '48Mi'}}"}]}
          container:
            image: busybox
            command: [echo, "{{=workflow.parameters.flag == 'true' ? 'yes' : 'no'}}", "{{inputs.parameters.mem}}"]
""", [["echo", "yes", "96Mi"]], id="an expression over a boolean and a number"),
        pytest.param("""
        - name: main
          dag:
            tasks:
            - {name: a, template: say}
            - name: b
              template: say
              depends: a
              arguments: {artifacts: [{name: more, raw: {data: "{{tasks.b.outputs.result}}"}}]}
""", [["echo", "0"], ["echo", "0"]], id="an unused artifact with the task's own result"),
    ],
)  # fmt: skip
def test_values_that_argo_accepts_are_accepted(templates: str, commands: list[list[str]]) -> None:
    player = play(templates)
    assert player.workflow.phase == "Succeeded"
    mains = [order.template.get("container") or order.template["script"] for order in player.created]
    assert [main["command"] for main in mains] == commands


def test_parallelism_of_the_workflow_counts_pods() -> None:
    player = play("""
        parallelism: 3
        templates: [{name: main, steps: [[{name: fan, template: say, withSequence: {count: "9"}}]]}]
""")
    assert player.workflow.phase == "Succeeded"
    assert (len(player.created), player.most_at_once) == (9, 3)


def test_fail_fast_starts_no_more_children() -> None:
    templates = """
        - name: main
          parallelism: 1
          failFast: true
          steps: [[{name: fan, template: say, withSequence: {count: "5"}}]]
"""
    player = play(templates, by_node(fan=Ends(exit_code=1)))
    assert player.workflow.phase == "Failed"
    assert len(player.created) == 1


def test_the_exit_handler_knows_how_it_ended() -> None:
    text = """
        onExit: bye
        templates:
        - {name: main, container: {image: busybox, command: [false]}}
        - name: bye
          container: {image: busybox, command: [echo, "{{workflow.status}} {{workflow.failures}}"]}
"""
    player = play(text, by_node(wf=Ends(exit_code=1)))
    assert player.workflow.phase == "Failed"
    said = player.created[-1].template["container"]["command"][1]
    assert said.startswith('Failed "[{\\"displayName\\":\\"wf\\"')


def test_pods_that_nodes_take_away_do_not_count_against_a_limit() -> None:
    lost = Ends(exit_code=None, disrupted="PreemptionByScheduler")
    ends = iter([lost, lost, Ends(exit_code=1), Ends()])
    templates = """
        - name: main
          retryStrategy: {limit: 1}
          container: {image: busybox, command: [echo]}
"""
    player = play(templates, lambda order: next(ends))
    assert player.workflow.phase == "Succeeded"
    names = [order.record.pod_name for order in player.created]
    assert len(set(names)) == 4
    assert player.node("WF(0)").infrastructure_retries == 2


def test_a_pod_that_is_lost_again_and_again_fails() -> None:
    templates = """
        - {name: main, container: {image: busybox, command: [echo]}}
"""
    player = play(templates, lambda order: Ends(exit_code=None, disrupted="node lost"))
    assert player.workflow.phase == "Failed"
    assert len(player.created) == 4


def test_a_suspended_node_waits_for_its_outputs() -> None:
    player = play("""
        - name: main
          steps:
          - - {name: approve, template: wait}
          - - name: then
              template: say
              arguments: {parameters: [{name: x, value: "{{steps.approve.outputs.parameters.ok}}"}]}
        - name: wait
          suspend: {}
          outputs: {parameters: [{name: ok, valueFrom: {supplied: {}}}]}
""")
    assert not player.run.is_done
    player.run.resume(Resume(selector="displayName=other"))
    player.play()
    assert not player.run.is_done
    player.run.resume(Resume())
    player.play()
    assert player.node("WF[0].approve").message == "waits for output parameters: ok"
    player.run.resume(Resume(selector="displayName=approve", parameters={"ok": "yes"}))
    player.play()
    assert player.workflow.phase == "Succeeded"
    assert player.created[-1].template["container"]["command"] == ["echo", "yes"]


@pytest.mark.parametrize(("shutdown", "handlers"), [("Stop", 1), ("Terminate", 0)])
def test_shutdown_ends_pods_and_starts_nothing(shutdown: str, handlers: int) -> None:
    manifest = a_workflow("""
        onExit: say
        templates: [{name: main, steps: [[{name: a, template: say}], [{name: b, template: say}]]}]
""")
    player = Player(manifest, by_node(a=Ends(after=timedelta(hours=1))))
    player.decide()
    player.run.control(Controls(shutdown=shutdown))
    player.play()
    assert player.workflow.phase == "Failed"
    assert player.node("WF[0].a").message == f"workflow shutdown with strategy: {shutdown}"
    assert len(player.created) == 1 + handlers


def test_a_suspended_workflow_starts_no_pod_until_it_goes_on() -> None:
    player = Player(a_workflow("entrypoint: say"))
    player.run.control(Controls(is_suspended=True))
    player.play()
    assert player.created == []
    player.run.control(Controls())
    player.play()
    assert player.workflow.phase == "Succeeded"


def test_the_deadline_of_a_workflow_ends_its_pods_and_not_its_exit_handler() -> None:
    text = """
        activeDeadlineSeconds: 60
        onExit: say
        templates: [{name: main, steps: [[{name: long, template: say}], [{name: never, template: say}]]}]
"""
    player = play(text, by_node(long=Ends(after=timedelta(hours=1))))
    assert player.workflow.phase == "Failed"
    assert player.node("WF[0].long").message == "Step exceeded its deadline"
    assert [order.record.display_name for order in player.created] == ["long", "wf.onExit"]


def test_a_pod_that_does_not_start_in_time_is_ended_and_one_that_runs_is_not() -> None:
    spec = {
        "entrypoint": "say",
        "templates": [{"name": "say", "pendingTimeout": "1m", "container": {"image": "busybox"}}],
    }
    player = Player({"spec": spec})
    (order,) = player.run.decide(player.now).create
    name, late = order.record.pod_name, player.now + timedelta(minutes=2)
    assert [end.pod for end in player.run.decide(late).end] == [name]
    player.run.pod_gone(name)
    (final,) = player.run.decide(late).nodes
    assert (final.phase, final.message) == ("Failed", "Step exceeded its deadline")
    running = Player({"spec": spec})
    (order,) = running.run.decide(running.now).create
    running.run.pod_seen(PodSeen(name=order.record.pod_name, is_running=True))
    assert running.run.decide(late).end == ()


def test_recursion_without_end_is_an_error() -> None:
    player = play("- {name: main, steps: [[{name: again, template: main}]]}")
    assert player.workflow.phase == "Failed"
    assert len(player.created) == 0
    assert any("at most 100 are allowed" in node.message for node in player.nodes.values())


def test_what_is_memoized_is_not_done_again() -> None:
    templates = """
        - {name: main, steps: [[{name: a, template: slow}], [{name: b, template: slow}]]}
        - name: slow
          memoize: {key: "k-1", cache: {configMap: {name: c}}}
          outputs: {parameters: [{name: y, valueFrom: {path: /y}}]}
          container: {image: busybox, command: [echo]}
"""
    player = play(templates, by_node(a=Ends(parameters={"y": "5"})))
    assert len(player.created) == 1
    assert player.node("WF[1].b").is_memoized
    assert player.node("WF[1].b").outputs == Outputs(parameters={"y": "5"}, exit_code="0")


def test_a_retry_runs_what_failed_and_what_comes_after_it() -> None:
    templates = """
        - name: main
          dag:
            tasks:
            - {name: a, template: say}
            - {name: b, template: say, depends: a}
            - {name: c, template: say, depends: b}
            - {name: d, template: say, depends: a}
"""
    player = play(templates, by_node(b=Ends(exit_code=1)))
    forgotten = nodes_to_forget(player.nodes.values(), Retry())
    assert {player.nodes[identity].name for identity in forgotten} == {"wf", "wf.b", "wf.c"}
    again = nodes_to_forget(player.nodes.values(), Retry(restart_successful=True, selector="displayName=d"))
    assert {player.nodes[identity].name for identity in again} == {"wf", "wf.b", "wf.c", "wf.d"}


def test_global_outputs_are_there_for_later_steps_and_for_people() -> None:
    templates = """
        - name: main
          steps:
          - - {name: a, template: make}
          - - name: b
              template: say
              arguments: {parameters: [{name: x, value: "{{workflow.outputs.parameters.g}}"}]}
        - name: make
          outputs: {parameters: [{name: y, globalName: g, valueFrom: {path: /y}}]}
          container: {image: busybox, command: [echo]}
"""
    player = play(templates, by_node(a=Ends(parameters={"y": "5"})))
    assert player.workflow.parameters == {"g": "5"}
    assert player.created[-1].template["container"]["command"] == ["echo", "5"]


GLOBAL_NAMES = """
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: a, template: make, arguments: {parameters: [{name: to, value: left}]}}
    - - name: b
        template: make
        arguments: {parameters: [{name: to, value: "{{workflow.outputs.parameters.from-left}}"}]}
  - name: make
    inputs: {parameters: [{name: to}]}
    outputs: {parameters: [{name: y, globalName: "from-{{inputs.parameters.to}}", valueFrom: {path: /y}}]}
    container: {image: busybox, command: [echo]}
"""


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one operator", "an operator for each decision"])
def test_a_global_name_takes_inputs_of_its_template(is_restarted: bool) -> None:
    player = Player(GLOBAL_NAMES, by_node(a=Ends(parameters={"y": "5"}), b=Ends(parameters={"y": "6"})))
    while player.step():
        if is_restarted:
            player.restart()
    assert player.workflow.parameters == {"from-left": "5", "from-5": "6"}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one operator", "an operator for each decision"])
def test_a_global_output_of_an_inner_step_stays(is_restarted: bool) -> None:
    player = Player(NESTED_EXPORT, by_node(make=Ends(parameters={"y": "5"}, artifacts=("f",))))
    while player.step():
        if is_restarted:
            player.restart()
    assert player.workflow.parameters == {"g": "5"}
    assert [artifact.name for artifact in player.workflow.artifacts] == ["file"]
    assert player.created[-1].template["container"]["command"] == ["echo", "5"]


def test_a_loop_gives_a_list_of_what_its_items_gave() -> None:
    values = iter(["a", "b"])
    templates = """
        - name: main
          outputs: {parameters: [{name: all, valueFrom: {parameter: "{{steps.fan.outputs.parameters.y}}"}}]}
          steps: [[{name: fan, template: make, withItems: [1, 2]}]]
        - name: make
          outputs: {parameters: [{name: y, valueFrom: {path: /y}}]}
          container: {image: busybox, command: [echo]}
"""
    player = play(templates, lambda order: Ends(parameters={"y": next(values)}))
    assert player.node("WF").outputs == Outputs(parameters={"all": '["a","b"]'})
    assert player.node("WF").phase is NodePhase.SUCCEEDED


def test_a_shutdown_ends_the_wait_for_a_lock() -> None:
    manifest = a_workflow("""
        - {name: main, steps: [[{name: alone, template: alone}]]}
        - {name: alone, synchronization: {mutexes: [{name: m}]}, container: {image: busybox, command: [echo]}}
""")
    player = Player(manifest)
    player.has_locks = False
    player.play()
    assert not player.run.is_done
    assert player.node("WF[0].alone").message == "Waiting for default/Mutex/m lock"
    player.run.control(Controls(shutdown="Terminate"))
    player.play()
    assert player.workflow.phase == "Failed"
    assert player.node("WF[0].alone").phase is NodePhase.FAILED
    assert player.unlocked == [player.node("WF[0].alone").id]


def test_a_shutdown_ends_the_wait_for_another_attempt() -> None:
    manifest = a_workflow("""
        - name: main
          retryStrategy: {limit: 9, backoff: {duration: 26h}}
          container: {image: busybox, command: [echo]}
""")
    player = Player(manifest, by_node(wf=Ends(exit_code=1)))
    while not player.nodes or player.node("WF").message.startswith("Backoff") is False:
        assert player.step()
    player.run.control(Controls(shutdown="Stop"))
    player.decide()
    assert player.workflow.phase == "Failed"
    assert len(player.created) == 1


def test_tags_of_the_spec_itself_have_values_for_pods() -> None:
    manifest = a_workflow("""
        entrypoint: say
        arguments: {parameters: [{name: memory, value: 100Mi}]}
        podSpecPatch: '{"priority": "{{workflow.parameters.memory}}"}'
""")
    player = Player(manifest)
    assert player.run.document["spec"]["podSpecPatch"] == '{"priority": "100Mi"}'
    assert player.run.document["spec"]["templates"] == player.workflow.document["spec"]["templates"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        pytest.param("template: print", "a result of the loop is not JSON", id="results"),
        pytest.param('template: say, when: "{{item}} = = 1"', "= = 1", id="condition of an item"),
    ],
)
def test_a_loop_that_cannot_go_on_is_an_error_and_the_other_tasks_end_first(task: str, message: str) -> None:
    text = f"""
        entrypoint: inner
        templates:
        - name: main
          dag:
            tasks:
            - {{name: fan, withItems: [1, 2], {task}}}
            - {{name: slow, template: say}}
            - {{name: after, template: say, depends: fan}}
            - {{name: mend, template: say, depends: fan.Errored}}
        - {{name: inner, steps: [[{{name: main, template: main}}]]}}
        - name: print
          script: {{image: python, command: [python], source: "print()"}}
          outputs: {{parameters: [{{name: y, value: "{{{{outputs.result}}}}"}}]}}
"""
    player = play(text, by_node(fan=Ends(result="not JSON"), slow=Ends(after=timedelta(hours=1))))
    phases = player.phases()
    assert message in " ".join(node.message for node in player.nodes.values() if ".main.fan" in node.name)
    assert phases["WF[0].main.fan"] == "TaskGroup Error"
    assert phases["WF[0].main.slow"] == phases["WF[0].main.mend"] == "Pod Succeeded"
    assert phases["WF[0].main.after"] == "Skipped Omitted"
    assert all(pod.is_ended for pod in player.pods.values())
    assert player.workflow.phase == "Failed"


def test_a_workflow_whose_arguments_cannot_be_found_waits_for_its_hooks() -> None:
    text = """
        entrypoint: say
        hooks: {begun: {template: say, expression: 'workflow.status == "Running"'}}
        arguments: {artifacts: [{name: a, from: "{{workflow.outputs.artifacts.none}}"}]}
"""
    player = play(text, by_node(wf_hooks_begun=Ends(after=timedelta(hours=1))))
    assert player.workflow.phase == "Error"
    assert "was not made" in player.workflow.message
    assert len(player.pods) == 1
    assert all(pod.is_ended for pod in player.pods.values())


def test_a_hook_that_is_never_due_holds_up_nothing() -> None:
    manifest = a_workflow("""
        - name: main
          steps:
          - - name: server
              template: server
              hooks: {broken: {template: say, expression: 'steps.server.status == "Failed"'}}
          - - {name: then, template: say}
        - {name: server, daemon: true, container: {image: busybox, command: [server]}}
""")
    player = Player(manifest)
    player.decide()
    server = player.created[0].record.pod_name
    player.ends[server] = (player.now + timedelta(days=1), Ends())
    player.run.pod_seen(PodSeen(name=server, is_running=True, is_ready=True))
    player.play()
    assert player.workflow.phase == "Succeeded"
    assert len(player.created) == 2


def test_an_optional_artifact_that_was_not_made_is_no_fault_of_a_step_that_can_do_without() -> None:
    templates = """
        - name: main
          steps:
          - - {name: make, template: make}
          - - name: use
              template: use
              arguments: {artifacts: [{name: in, from: "{{steps.make.outputs.artifacts.out}}"}]}
        - name: make
          outputs: {artifacts: [{name: out, path: /out, optional: true}]}
          container: {image: busybox, command: [echo]}
        - name: use
          inputs: {artifacts: [{name: in, path: /in, optional: true}]}
          container: {image: busybox, command: [echo]}
"""
    assert play(templates).workflow.phase == "Succeeded"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("activeDeadlineSeconds: soon", "spec.activeDeadlineSeconds must be a whole number, and is 'soon'"),
        ("parallelism: '{{workflow.name}}'", "spec.parallelism must be a whole number, and is 'wf'"),
        ("priority: high", "spec.priority must be a whole number, and is 'high'"),
    ],
)
def test_a_number_that_cannot_be_read_ends_the_workflow(spec: str, message: str) -> None:
    player = play(f"entrypoint: say\n{spec}")
    assert (player.workflow.phase, player.workflow.message) == ("Error", f"invalid spec: {message}")
    assert player.created == []


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("parallelism: '{{inputs.parameters.n}}'", "parallelism of template inner must be a whole number"),
        ("synchronization: {mutexes: [{name: '{{=1 +}}'}]}", "1 +"),
    ],
)
def test_a_number_of_a_template_that_cannot_be_read_ends_its_node(field: str, message: str) -> None:
    player = play(f"""
        - {{name: main, steps: [[{{name: inner, template: inner}}]]}}
        - name: inner
          inputs: {{parameters: [{{name: n, value: many}}]}}
          {field}
          steps: [[{{name: a, template: say}}]]
""")
    assert player.workflow.phase == "Failed"
    assert player.node("WF[0].inner").phase is NodePhase.ERROR
    assert message in player.node("WF[0].inner").message


def test_numbers_of_a_workflow_may_be_its_parameters() -> None:
    player = play("""
        parallelism: "{{workflow.parameters.most}}"
        arguments: {parameters: [{name: most, value: "2"}]}
        templates: [{name: main, steps: [[{name: fan, template: say, withSequence: {count: "4"}}]]}]
""")
    assert (player.workflow.phase, player.most_at_once) == ("Succeeded", 2)


def test_a_deadline_beyond_all_dates_is_none() -> None:
    player = play(f"entrypoint: say\nactiveDeadlineSeconds: {2**63 - 1}")
    assert player.workflow.phase == "Succeeded"


def test_the_place_of_an_input_artifact_may_be_named_by_an_input_parameter() -> None:
    player = play("""
        - name: main
          inputs:
            parameters: [{name: host, default: files.example}, {name: file, value: "{{inputs.parameters.host}}/a"}]
            artifacts: [{name: a, path: /in, http: {url: "https://{{inputs.parameters.file}}"}}]
          container: {image: busybox, command: [cat, /in]}
""")
    assert player.created[0].record.inputs["artifacts"]["a"]["location"] == {
        "http": {"url": "https://files.example/a"}
    }


@pytest.mark.parametrize("place", ['http: {url: ""}', "s3: {bucket: b}", 'git: {repo: ""}'])
@pytest.mark.parametrize("optional", [False, True])
def test_an_artifact_whose_place_has_no_address_was_not_supplied(place: str, optional: bool) -> None:
    player = play(f"""
        - {{name: main, steps: [[{{name: read, template: read}}]]}}
        - name: read
          inputs: {{artifacts: [{{name: a, path: /in, optional: {str(optional).lower()}, {place}}}]}}
          container: {{image: busybox, command: [ls]}}
""")
    node = player.node("WF[0].read")
    if optional:
        assert (node.phase, node.inputs) == ("Succeeded", {})
    else:
        assert (node.phase, player.created) == ("Error", [])
        assert "inputs.artifacts.a of template read was not supplied" in node.message


def test_a_part_of_an_artifact_that_an_absent_output_names_is_an_error() -> None:
    templates = """
        - name: main
          dag:
            tasks:
            - {name: make, template: make}
            - {name: where, template: where, when: "false"}
            - name: use
              template: use
              depends: make && where
              arguments:
                artifacts:
                - name: a
                  from: "{{tasks.make.outputs.artifacts.a}}"
                  subPath: "{{tasks.where.outputs.parameters.dir}}"
        - name: make
          outputs: {artifacts: [{name: a, path: /out}]}
          container: {image: busybox, command: [touch, /out]}
        - name: where
          outputs: {parameters: [{name: dir, valueFrom: {path: /dir}}]}
          container: {image: busybox, command: [touch, /dir]}
        - name: use
          inputs: {artifacts: [{name: a, path: /in}]}
          container: {image: busybox, command: [ls, /in]}
"""
    player = play(templates, by_node(make=Ends(artifacts=("a",))))
    assert player.workflow.phase == "Error"
    assert player.phases()["WF.use"] == "Skipped Error"
    assert "tasks.where.outputs.parameters.dir" in player.node("WF.use").message
    assert len(player.created) == 1


NEVER = """
        - name: never
          outputs: {parameters: [{name: x, valueFrom: {path: /x}}]}
          container: {image: busybox, command: [touch, /x]}
"""


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        pytest.param("steps: [[{name: never, template: never, when: 'false'}], [STEP]]", "steps", id="steps"),
        pytest.param("dag: {tasks: [{name: never, template: never, when: 'false'}, STEP]}", "tasks", id="a DAG"),
    ],
)
@pytest.mark.parametrize(
    ("loop", "when", "node"),
    [
        pytest.param("", "", "use", id="an argument"),
        pytest.param("withItems: [1],", "", "use(0:1)", id="an argument in a loop"),
        pytest.param("", "when: \"{{=(TAG ?? 'none') == 'none'}}\",", "use", id="a condition"),
        pytest.param("withParam: \"{{=TAG ?? '[1]'}}\",", "", "use(0:1)", id="the items of a loop"),
    ],
)
def test_an_expression_may_fall_back_where_a_step_was_skipped(kind, prefix, loop, when, node) -> None:
    depends = "depends: never.Skipped," if prefix == "tasks" else ""
    argument = "{{=TAG ?? 'fallback'}}"
    step = f"{{name: use, template: say, {depends} {loop} {when} arguments: ARGUMENTS}}"
    step = step.replace("ARGUMENTS", f'{{parameters: [{{name: x, value: "{argument}"}}]}}')
    step = step.replace("TAG", f"{prefix}.never.outputs.parameters.x")
    player = play(f"{NEVER}\n        - {{name: main, {kind.replace('STEP', step)}}}\n")
    assert player.workflow.phase == "Succeeded"
    place = "WF[1]." if prefix == "steps" else "WF."
    assert player.node(place + node).inputs == {"parameters": {"x": "fallback"}}


def test_a_hook_falls_back_where_a_step_was_skipped() -> None:
    templates = """
        - name: main
          steps:
          - - {name: never, template: never, when: "false"}
          - - name: work
              template: say
              hooks:
                exit:
                  template: two
                  arguments:
                    parameters:
                    - {name: a, value: "{{steps.never.outputs.parameters.x}}"}
                    - {name: b, value: "{{=steps.never.outputs.parameters.x ?? 'fallback'}}"}
        - name: two
          inputs: {parameters: [{name: a, default: own}, {name: b}]}
          container: {image: busybox, command: [echo, "{{inputs.parameters.a}}"]}
"""
    player = play(NEVER + templates)
    assert player.node("WF[1].work.onExit").inputs == {"parameters": {"a": "own", "b": "fallback"}}


def test_after_a_loop_of_steps_its_group_is_seen_and_after_a_retry_its_last_attempt() -> None:
    ends = iter([Ends(), Ends(), Ends(exit_code=1), Ends(), Ends()])
    templates = """
        - name: main
          steps:
          - - {name: fan, template: say, withItems: [1, 2], continueOn: {failed: true}}
          - - {name: again, template: again}
          - - name: tell
              template: say
              arguments:
                parameters: [{name: x, value: "{{steps.fan.id}} {{steps.fan.status}} {{steps.again.id}}"}]
        - name: again
          retryStrategy: {limit: 1}
          container: {image: busybox, command: [echo]}
"""
    player = play(templates, lambda order: next(ends))
    group, attempt = player.node("WF[0]"), player.node("WF[1].again(1)")
    assert player.node("WF[2].tell").inputs == {"parameters": {"x": f"{group.id} Succeeded {attempt.id}"}}


@pytest.mark.parametrize(
    ("step", "name"),
    [
        pytest.param(
            "{name: bad, template: say, when: 'a < 1', continueOn: {error: true}}", "bad", id="a condition"
        ),
        pytest.param(
            "{name: bad, template: say, when: '{{item}} < 1', withItems: [a]}", "bad(0:a)", id="in a loop"
        ),
        pytest.param(
            "{name: bad, template: two, continueOn: {error: true}}", "bad", id="an input that is missing"
        ),
    ],
)
def test_a_step_that_cannot_be_carried_out_ends_its_group_in_error(step: str, name: str) -> None:
    player = play(f"""
        - {{name: main, steps: [[{step}], [{{name: never, template: say}}]]}}
        - name: two
          inputs: {{parameters: [{{name: a}}]}}
          container: {{image: busybox, command: [echo]}}
""")
    assert player.phases() == {"WF": "Steps Failed", "WF[0]": "StepGroup Error", f"WF[0].{name}": "Skipped Error"}
    assert player.node(f"WF[0].{name}").message in player.node("WF[0]").message


def test_a_task_of_a_loop_whose_condition_cannot_be_read_is_in_error() -> None:
    player = play("""
        - name: main
          dag: {tasks: [{name: fan, template: say, when: "{{item}} < 2", withItems: [1, a]}]}
""")
    assert player.phases() == {
        "WF": "DAG Error",
        "WF.fan": "TaskGroup Error",
        "WF.fan(0:1)": "Pod Succeeded",
        "WF.fan(1:a)": "Skipped Error",
    }


@pytest.mark.parametrize(
    ("supplied", "phases"),
    [
        pytest.param("{supplied: {}}", ("Suspend Error", "StepGroup Error"), id="none was given"),
        pytest.param("{supplied: {}, default: x}", ("Suspend Succeeded", "StepGroup Succeeded"), id="a default"),
    ],
)
def test_a_suspended_node_whose_time_is_over_needs_its_outputs(supplied: str, phases: tuple[str, str]) -> None:
    player = play(f"""
        - {{name: main, steps: [[{{name: approve, template: wait}}]]}}
        - name: wait
          suspend: {{duration: 5s}}
          outputs: {{parameters: [{{name: ok, valueFrom: {supplied}}}]}}
""")
    assert (player.phases()["WF[0].approve"], player.phases()["WF[0]"]) == phases
    assert player.run.is_done


@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        pytest.param("dag: {tasks: [STEP]}", {"WF": "DAG Error", "WF.fan": "Skipped Error"}, id="a DAG"),
        pytest.param("steps: [[STEP]]", {"WF": "Steps Failed", "WF[0]": "StepGroup Error"}, id="steps"),
    ],
)
def test_a_loop_with_an_item_that_lacks_a_value_starts_no_item(kind: str, phases: dict[str, str]) -> None:
    argument = "arguments: {parameters: [{name: x, value: '{{item.a}}'}]}"
    step = f"{{name: fan, template: say, withItems: [{{a: 1}}, {{b: 2}}], {argument}}}"
    player = play(f"\n        - {{name: main, {kind.replace('STEP', step)}}}\n")
    assert player.phases() == phases
    assert player.created == []


def test_items_whose_names_have_the_same_hash_are_two_nodes_with_two_pods() -> None:
    manifest = a_workflow('- {name: main, steps: [[{name: a, template: say, withItems: ["870696", "d582ac"]}]]}')
    first, second = "wf[0].a(0:870696)", "wf[0].a(1:d582ac)"
    assert fnv1a(first) == fnv1a(second)
    player = Player(manifest)
    player.decide()
    player.restart()
    player.play()
    assert player.workflow.phase == "Succeeded"
    pods = {record.name: record.pod_name for record in player.run.records.values() if record.pod_name}
    assert set(pods) == {first, second}
    assert len(set(pods.values())) == 2
    assert {order.record.pod_name for order in player.created} == set(pods.values())
