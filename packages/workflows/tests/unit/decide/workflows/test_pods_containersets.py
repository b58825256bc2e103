"""The pod of a container set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflowrecords import a_node_record

from moorage_workflows.decide.workflows.pods import PodError, PodRequest, StepRuntime, make_pod

RUNTIME = StepRuntime(image="moorage:1", entrypoints={"known": (("/say",), ("hello",))})
MEMBER = ["/moorage/step/bin/busybox", "sh", "/moorage/step/member.sh", "/moorage/step"]
WRAPPER = ["/moorage/step/bin/busybox", "sh", "/moorage/step/wrapper.sh", "/moorage/step"]


def a_container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox", "command": ["true"], **more}


def a_pod(group: dict[str, Any], *, wants_result: bool = False, **template: Any) -> dict[str, Any]:
    record = a_node_record(template="main", pod_name="wf")
    workflow = {"metadata": {"name": "wf", "namespace": "lab", "uid": "7c1e"}, "spec": {"entrypoint": "main"}}
    request = PodRequest(
        record=record,
        workflow=workflow,
        template={"name": "main", "containerSet": group, **template},
        wants_result=wants_result,
    )
    return make_pod(request, RUNTIME)


def commands(pod: dict[str, Any]) -> dict[str, list[str]]:
    return {row["name"]: row["command"] for row in pod["spec"]["containers"]}


def test_containers_that_know_nothing_of_each_other_run_as_they_are() -> None:
    pod = a_pod({"containers": [a_container("a"), a_container("b")]})
    assert pod["spec"] == {"restartPolicy": "Never", "containers": [a_container("a"), a_container("b")]}
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "b"


def test_containers_with_dependencies_run_in_the_script_that_waits() -> None:
    group = {"containers": [a_container("a"), {"name": "b", "image": "known", "dependencies": ["a"]}]}
    pod = a_pod(group)
    assert commands(pod) == {
        "a": [*MEMBER, "a", "0", "0", "", "true"],
        "b": [*MEMBER, "b", "0", "0", "a", "/say", "hello"],
    }
    assert [row["name"] for row in pod["spec"]["initContainers"]] == ["init"]
    order = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])
    assert (order["set"], order["shell"], order["result"]) == (["a", "b"], True, False)


def test_the_retries_of_a_set_are_those_of_each_container() -> None:
    strategy = {"retries": "3", "duration": "1m30s"}
    pod = a_pod({"containers": [a_container("a")], "retryStrategy": strategy})
    assert commands(pod) == {"a": [*MEMBER, "a", "3", "90", "", "true"]}


def test_outputs_are_those_of_the_container_main() -> None:
    group = {
        "containers": [a_container("a"), a_container("main")],
        "volumeMounts": [{"name": "w", "mountPath": "/w"}],
    }
    outputs = {"parameters": [{"name": "out", "valueFrom": {"path": "/w/out"}}]}
    pod = a_pod(group, outputs=outputs, volumes=[{"name": "w", "emptyDir": {}}])
    assert commands(pod) == {
        "a": [*MEMBER, "a", "0", "0", "", "true"],
        "main": [*WRAPPER, *MEMBER, "main", "0", "0", "", "true"],
        "wait": ["python", "-m", "moorage_workflows.executor", "wait"],
    }
    for container in pod["spec"]["containers"][:2]:
        assert {"name": "w", "mountPath": "/w"} in container["volumeMounts"]


def test_the_result_is_that_of_main_and_a_set_without_it_has_none() -> None:
    assert commands(a_pod({"containers": [a_container("main")]}, wants_result=True))["main"][:4] == WRAPPER
    assert commands(a_pod({"containers": [a_container("a")]}, wants_result=True)) == {"a": ["true"]}


@pytest.mark.parametrize(
    ("group", "template", "path"),
    [
        pytest.param({"containers": []}, {}, "containerSet.containers", id="no container"),
        pytest.param({"containers": [{"name": "a"}]}, {}, "containerSet.containers[0].image", id="no image"),
        pytest.param({"containers": [a_container("wait")]}, {}, "containerSet.containers[0].name", id="our name"),
        pytest.param(
            {"containers": [a_container("a")]},
            {"outputs": {"artifacts": [{"name": "x", "path": "/x"}]}},
            "outputs",
            id="outputs without a container main",
        ),
        pytest.param(
            {"containers": [a_container("a", dependencies=["b"]), {"name": "b", "image": "odd"}]},
            {},
            "containerSet.containers[b].command",
            id="the command of an image that is not known",
        ),
        pytest.param(
            {"containers": [a_container("a")], "retryStrategy": {"retries": "many"}},
            {},
            "containerSet.retryStrategy.retries",
            id="retries that are no number",
        ),
        pytest.param(
            {"containers": [a_container("a")], "retryStrategy": {"retries": 1, "duration": "soon"}},
            {},
            "containerSet.retryStrategy.duration",
            id="a pause that is not a duration",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_field(group, template, path) -> None:
    with pytest.raises(PodError, match="template 'main'") as refused:
        a_pod(group, **template)
    assert f" {path} " in refused.value.message


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(*(st.sets(st.integers(0, max(i - 1, 0))) for i in range(n)))))
def test_every_container_is_there_once_and_waits_for_its_dependencies(graph: tuple[set[int], ...]) -> None:
    containers = [
        a_container(f"c{number}", dependencies=[f"c{other}" for other in sorted(needs) if other < number])
        for number, needs in enumerate(graph)
    ]
    made = commands(a_pod({"containers": containers}))
    assert list(made) == [container["name"] for container in containers]
    if any(container["dependencies"] for container in containers):
        waits = {name: command[7].split(",") if command[7] else [] for name, command in made.items()}
        assert waits == {container["name"]: container["dependencies"] for container in containers}
