"""The pod of a step: whole pods for typical templates, and any template that is not refused makes a valid one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.podsecurity import violations
from moorage_kube.resources import NAMESPACES, PODS
from moorage_local.apiserver.auth.users import service_user
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage import MemoryStorage
from moorage_workflows.decide.workflows.executororders import make_order
from moorage_workflows.decide.workflows.pods import (
    PodError,
    PodRequest,
    StepRuntime,
    make_pod,
    needs_executor,
    reports,
)
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType

RUNTIME = StepRuntime(image="registry.example.org/moorage:1", server_url="http://moorage.moorage-system:8080")
META = {
    "name": "wf",
    "namespace": "lab",
    "uid": "7c1e",
    "labels": {"moorage.dev/owner": "ada"},
    "annotations": {"moorage.dev/owner": "ada"},
}
HELLO = {"name": "hello", "container": {"image": "busybox", "command": ["echo", "hello"]}}


def a_record(name: str = "wf[0].hello", template: str = "hello") -> NodeRecord:
    return NodeRecord(
        id="wf-1",
        name=name,
        display_name="hello",
        type=NodeType.POD,
        phase=NodePhase.PENDING,
        template=template,
        pod_name="wf-hello-1",
    )


def a_request(
    template: Mapping[str, Any] = HELLO,
    *,
    spec: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] = META,
    **more: Any,
) -> PodRequest:
    workflow = {"metadata": meta, "spec": {"entrypoint": "hello", **(spec or {})}}
    return PodRequest(record=a_record(), workflow=workflow, template=template, secret="wf-token", **more)


def a_pod(template: Mapping[str, Any] = HELLO, **more: Any) -> dict[str, Any]:
    runtime = more.pop("runtime", RUNTIME)
    return make_pod(a_request(template, **more), runtime)


def container_of(pod: Mapping[str, Any], name: str) -> dict[str, Any]:
    spec = pod["spec"]
    (named,) = (each for each in (*spec.get("initContainers", ()), *spec["containers"]) if each["name"] == name)
    return named


def order_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])
    return order


def test_a_step_without_outputs_is_a_plain_pod() -> None:
    assert a_pod() == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "wf-hello-1",
            "namespace": "lab",
            "labels": {
                "workflows.argoproj.io/workflow": "wf",
                "workflows.argoproj.io/completed": "false",
                "moorage.dev/owner": "ada",
            },
            "annotations": {
                "kubectl.kubernetes.io/default-container": "main",
                "workflows.argoproj.io/node-id": "wf-1",
                "workflows.argoproj.io/node-name": "wf[0].hello",
                "moorage.dev/owner": "ada",
            },
            "finalizers": ["moorage.dev/workflow"],
            "ownerReferences": [
                {
                    "apiVersion": "argoproj.io/v1alpha1",
                    "kind": "Workflow",
                    "name": "wf",
                    "uid": "7c1e",
                    "controller": True,
                    "blockOwnerDeletion": True,
                },
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"image": "busybox", "command": ["echo", "hello"], "name": "main"}],
        },
    }


def test_a_step_without_a_command_keeps_that_of_its_image() -> None:
    pod = a_pod({"name": "hello", "container": {"image": "argoproj/argosay:v2", "args": ["echo", "x"]}})
    assert pod["spec"]["containers"] == [{"image": "argoproj/argosay:v2", "args": ["echo", "x"], "name": "main"}]


def test_the_source_of_a_script_is_an_executable_file_and_the_last_argument() -> None:
    script = {"image": "python:3", "command": ["python"], "args": ["-u"], "source": "print('{}')"}
    pod = a_pod({"name": "hello", "script": script})
    main = container_of(pod, "main")
    assert main["command"] == ["python"]
    assert main["args"] == ["-u", "/moorage/script/source"]
    assert pod["metadata"]["annotations"]["moorage.dev/workflow-source"] == "print('{}')"
    (volume,) = pod["spec"]["volumes"]
    (item,) = volume["downwardAPI"]["items"]
    assert item["mode"] == 0o755
    assert item["fieldRef"] == {"fieldPath": "metadata.annotations['moorage.dev/workflow-source']"}


def test_an_empty_source_adds_no_argument() -> None:
    pod = a_pod({"name": "hello", "script": {"image": "busybox", "command": ["true"], "source": ""}})
    assert pod["spec"] == {
        "restartPolicy": "Never",
        "containers": [{"image": "busybox", "command": ["true"], "name": "main"}],
    }


WITH_OUTPUTS = {
    **HELLO,
    "outputs": {
        "parameters": [{"name": "p", "valueFrom": {"path": "/tmp/p", "default": 3}}],
        "artifacts": [{"name": "a", "path": "/tmp/a", "optional": True, "archive": {"none": {}}}],
    },
}


def test_outputs_wrap_the_command_and_bring_init_and_wait() -> None:
    pod = a_pod(WITH_OUTPUTS, wants_result=True)
    main, init, wait = (container_of(pod, name) for name in ("main", "init", "wait"))
    assert main["command"] == [
        "/moorage/step/bin/busybox",
        "sh",
        "/moorage/step/wrapper.sh",
        "/moorage/step",
        "echo",
        "hello",
    ]
    assert "args" not in main
    assert [init["command"][-1], wait["command"][-1]] == ["init", "wait"]
    assert order_of(pod) == {
        "workflow": "7c1e",
        "pod": "wf-hello-1",
        "inputs": [],
        "parameters": [{"name": "p", "path": "/tmp/p", "default": "3"}],
        "artifacts": [
            {"name": "a", "path": "/tmp/a", "archive": "none", "location": {}, "kept": {}, "optional": True},
        ],
        "result": True,
        "logs": False,
        "shell": True,
    }


def test_helpers_are_restricted_limited_and_without_the_service_accounts_token() -> None:
    pod = a_pod(WITH_OUTPUTS)
    for name in ("init", "wait"):
        helper = container_of(pod, name)
        assert helper["resources"]["limits"].keys() == helper["resources"]["requests"].keys() == {"cpu", "memory"}
        security = helper["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["runAsNonRoot"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        (hidden,) = (mount for mount in helper["volumeMounts"] if "serviceaccount" in mount["mountPath"])
        assert {"name": hidden["name"], "emptyDir": {}} in pod["spec"]["volumes"]
        token = {"secretKeyRef": {"name": "wf-token", "key": "token"}}
        assert {"name": "MOORAGE_STEP_TOKEN", "valueFrom": token} in helper["env"]


def test_a_namespace_of_restricted_pods_takes_steps_that_are_restricted_themselves() -> None:
    security = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {**HELLO["container"], "securityContext": security}
    pod = a_pod({**WITH_OUTPUTS, "container": container})
    assert violations("restricted", pod["metadata"], pod["spec"]) == []


def test_inputs_alone_bring_init_and_leave_the_command_alone() -> None:
    template = {**HELLO, "inputs": {"artifacts": [{"name": "data", "path": "/data/in", "mode": 0o600}]}}
    pod = a_pod(template, artifacts={"data": Artifact(name="data", key="wf/p/data.tgz")})
    assert [each["name"] for each in pod["spec"]["containers"]] == ["main"]
    main = container_of(pod, "main")
    assert main["command"] == ["echo", "hello"]
    assert main["volumeMounts"] == [{"name": "moorage-step", "mountPath": "/data/in", "subPath": "in/0"}]
    (fetched,) = order_of(pod)["inputs"]
    assert fetched == {
        "name": "data",
        "location": {"key": "wf/p/data.tgz"},
        "archive": "tar",
        "below": None,
        "mode": 0o600,
    }


def test_an_input_in_a_volume_of_main_is_put_into_the_volume() -> None:
    container = {**HELLO["container"], "volumeMounts": [{"name": "work", "mountPath": "/work", "subPath": "x"}]}
    inputs = {"artifacts": [{"name": "data", "path": "/work/in/a", "raw": {"data": "hi"}}]}
    pod = a_pod(
        {"name": "hello", "container": container, "inputs": inputs},
        spec={"volumes": [{"name": "work", "emptyDir": {}}]},
    )
    assert container_of(pod, "main")["volumeMounts"] == container["volumeMounts"]
    place = {"name": "work", "subPath": "x", "mountPath": "/moorage/volumes/0"}
    assert place in container_of(pod, "init")["volumeMounts"]
    (fetched,) = order_of(pod)["inputs"]
    assert (fetched["below"], fetched["location"]) == ("in/a", {"raw": {"data": "hi"}})


@pytest.mark.parametrize("place", [{}, {"http": {"url": ""}}, {"s3": {"bucket": "", "key": ""}}])
def test_an_optional_input_that_is_not_there_leaves_no_trace(place: dict[str, Any]) -> None:
    inputs = {"artifacts": [{"name": "data", "path": "/data", "optional": True, **place}]}
    assert a_pod({**HELLO, "inputs": inputs}) == a_pod()


def test_secrets_of_stores_become_variables_of_the_helper_that_needs_them() -> None:
    store = {
        "bucket": "b",
        "accessKeySecret": {"name": "s3", "key": "id"},
        "secretKeySecret": {"name": "s3", "key": "secret"},
    }
    template = {
        **HELLO,
        "inputs": {"artifacts": [{"name": "in", "path": "/in", "s3": {**store, "key": "k"}}]},
        "outputs": {"artifacts": [{"name": "out", "path": "/out", "s3": store}]},
    }
    pod = a_pod(template)
    for name in ("init", "wait"):
        values = {entry["name"]: entry.get("valueFrom") for entry in container_of(pod, name)["env"]}
        assert values["MOORAGE_SECRET_0"] == {"secretKeyRef": {"name": "s3", "key": "id"}}
        assert values["MOORAGE_SECRET_1"] == {"secretKeyRef": {"name": "s3", "key": "secret"}}
    order = order_of(pod)
    (fetched,), (saved,) = order["inputs"], order["artifacts"]
    assert fetched["location"]["s3"]["accessKeySecret"] == {"secret": 0}
    assert saved["location"]["s3"]["key"] == "wf/wf-hello-1/out.tgz"
    assert saved["kept"]["s3"]["accessKeySecret"] == {"name": "s3", "key": "id"}


def test_a_key_without_a_bucket_is_one_of_our_own_store() -> None:
    template = {
        **HELLO,
        "inputs": {"artifacts": [{"name": "in", "path": "/in", "s3": {"key": "some/in"}}]},
        "outputs": {"artifacts": [{"name": "out", "path": "/out", "gcs": {"key": "some/out"}}]},
    }
    order = order_of(a_pod(template))
    (fetched,), (saved,) = order["inputs"], order["artifacts"]
    assert (fetched["location"], fetched["archive"]) == ({"key": "some/in"}, "")
    assert (saved["location"], saved["key"], saved["kept"]) == ({}, "some/out", {})


def test_the_template_wins_over_the_workflow() -> None:
    spec = {
        "nodeSelector": {"a": "b"},
        "serviceAccountName": "of-workflow",
        "podPriorityClassName": "low",
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["x"]}],
        "imagePullSecrets": [{"name": "pull"}],
        "podMetadata": {"labels": {"team": "a", "x": "y"}},
    }
    template = {
        **HELLO,
        "nodeSelector": {"c": "d"},
        "serviceAccountName": "of-template",
        "metadata": {"labels": {"team": "b"}},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    pod = a_pod(template, spec=spec)
    got = pod["spec"]
    assert got["nodeSelector"] == {"c": "d"}
    assert got["serviceAccountName"] == "of-template"
    assert got["priorityClassName"] == "low"
    assert got["hostAliases"] == spec["hostAliases"]
    assert got["imagePullSecrets"] == spec["imagePullSecrets"]
    assert got["tolerations"] == template["tolerations"]
    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["labels"]["x"]) == ("b", "y")


def test_nobody_gives_a_step_to_another_owner() -> None:
    metadata = {"labels": {"moorage.dev/owner": "eve"}, "annotations": {"moorage.dev/owner": "eve"}}
    pod = a_pod({**HELLO, "metadata": metadata})
    assert pod["metadata"]["labels"]["moorage.dev/owner"] == "ada"
    assert pod["metadata"]["annotations"]["moorage.dev/owner"] == "ada"


@pytest.mark.parametrize("marked", [True, False])
def test_the_mark_of_a_workflow_without_gpus_is_on_its_steps(marked: bool) -> None:
    mark = {"moorage.dev/over-budget": "no-gpus"}
    own = {**HELLO, "metadata": {"annotations": {"moorage.dev/over-budget": "true"}}}
    meta = {**META, "annotations": {**META["annotations"], **(mark if marked else {})}}
    annotations = a_pod(own, meta=meta)["metadata"]["annotations"]
    assert annotations.get("moorage.dev/over-budget") == ("no-gpus" if marked else None)


def test_a_step_is_of_no_run_map_or_workspace_whatever_its_manifest_says() -> None:
    kinds = ("run", "attempt", "map", "workspace", "container")
    pod = a_pod({**HELLO, "metadata": {"labels": {f"moorage.dev/{kind}": "1" for kind in kinds}}})
    assert sorted(pod["metadata"]["labels"]) == [
        "moorage.dev/owner",
        "workflows.argoproj.io/completed",
        "workflows.argoproj.io/workflow",
    ]


def test_sidecars_end_with_main_and_mirror_its_volumes() -> None:
    mount = {"name": "work", "mountPath": "/work"}
    template = {
        "name": "hello",
        "container": {**HELLO["container"], "volumeMounts": [mount]},
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}],
        "initContainers": [
            {"name": "before", "image": "busybox", "command": ["true"], "mirrorVolumeMounts": True}
        ],
        "sidecars": [{"name": "db", "image": "redis"}],
    }
    pod = a_pod(template)
    before, sidecar = pod["spec"]["initContainers"]
    assert before["volumeMounts"] == [mount]
    assert "mirrorVolumeMounts" not in before
    assert sidecar == {"name": "db", "image": "redis", "restartPolicy": "Always"}
    assert pod["spec"]["volumes"] == [{"name": "work", "emptyDir": {}}]


def test_claims_of_the_workflow_are_volumes() -> None:
    container = {**HELLO["container"], "volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    pod = a_pod({"name": "hello", "container": container}, volumes={"work": "wf-work"})
    assert pod["spec"]["volumes"] == [{"name": "work", "persistentVolumeClaim": {"claimName": "wf-work"}}]


def test_a_budget_of_the_pod_is_shared_by_the_helpers_and_the_templates_wins() -> None:
    small, large = {"limits": {"cpu": "1"}}, {"limits": {"cpu": "2", "memory": "1Gi"}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "large"}]
    template = {**WITH_OUTPUTS, "podResources": large, "resourceClaims": claims}
    of_workflow = {
        "podResources": small,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "small"}],
    }
    spec = a_pod(template, spec=of_workflow)["spec"]
    assert (spec["resources"], spec["resourceClaims"]) == (large, claims)
    assert [container_of({"spec": spec}, name)["resources"] for name in ("init", "wait")] == [{}, {}]
    assert a_pod(spec=of_workflow)["spec"]["resources"] == small


def test_a_retry_stays_away_from_hosts_that_failed() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, {}]}}
    template = {**HELLO, "affinity": {"nodeAffinity": node}}
    pod = a_pod(template, excluded_hosts=("node-2", "node-1"))
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1", "node-2"]}
    wanted = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert wanted["nodeSelectorTerms"] == [
        {"matchExpressions": [*term["matchExpressions"], away]},
        {"matchExpressions": [away]},
    ]


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        pytest.param(30, 30, id="as given"),
        pytest.param(0, 1, id="never none"),
        pytest.param(-5, 1, id="never less"),
    ],
)
def test_the_deadline_is_the_pods(seconds: int, want: int) -> None:
    assert a_pod(deadline_seconds=seconds)["spec"]["activeDeadlineSeconds"] == want


def test_patches_of_workflow_and_template_come_one_after_the_other_before_the_wrapping() -> None:
    of_workflow = '{"terminationGracePeriodSeconds": 5, "containers": [{"name": "main", "tty": true}]}'
    of_template = "terminationGracePeriodSeconds: 7\ncontainers:\n- name: main\n  command: [cat]\n"
    pod = a_pod({**WITH_OUTPUTS, "podSpecPatch": of_template}, spec={"podSpecPatch": of_workflow})
    main = container_of(pod, "main")
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7
    assert main["tty"] is True
    assert main["command"][-1] == "cat"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["main", "wait"]


def test_a_patch_reaches_sidecars() -> None:
    patch = "containers: [{name: db, resources: {limits: {memory: 1Gi}}}]"
    pod = a_pod({**HELLO, "sidecars": [{"name": "db", "image": "redis"}], "podSpecPatch": patch})
    assert pod["spec"]["initContainers"] == [
        {"name": "db", "image": "redis", "resources": {"limits": {"memory": "1Gi"}}, "restartPolicy": "Always"}
    ]


def test_a_container_that_a_patch_adds_ends_with_main() -> None:
    patch = "containers: [{name: main}, {name: proxy, image: envoy, command: [sleep, 1d]}]"
    pod = a_pod({**HELLO, "podSpecPatch": patch})
    assert [each["name"] for each in pod["spec"]["containers"]] == ["main"]
    assert pod["spec"]["initContainers"] == [
        {"name": "proxy", "image": "envoy", "command": ["sleep", "1d"], "restartPolicy": "Always"}
    ]


@pytest.mark.parametrize(
    ("patched", "want"),
    [
        ({"requests": {"memory": "2Gi"}}, {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}),
        ({"limits": {"cpu": "50m"}}, {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}),
        ({"requests": {"cpu": "500m"}}, {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}),
        (
            {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}},
            {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}},
        ),
        ({"requests": {"memory": "much"}}, {"requests": {"memory": "much"}}),
    ],
)
@pytest.mark.parametrize(("name", "group"), [("init", "initContainers"), ("wait", "containers")])
def test_one_amount_that_a_patch_sets_does_not_conflict_with_our_own(name, group, patched, want) -> None:
    patch = json.dumps({group: [{"name": name, "resources": patched}]})
    resources = container_of(a_pod({**WITH_OUTPUTS, "podSpecPatch": patch}), name)["resources"]
    own = container_of(a_pod(WITH_OUTPUTS), name)["resources"]
    assert resources == {table: own[table] | want.get(table, {}) for table in own}


@pytest.mark.parametrize("name", ["wait", "supervisor"])
def test_what_a_patch_says_of_a_container_of_argos_is_left_out_where_there_is_none(name: str) -> None:
    limits = {"limits": {"cpu": "101m"}}
    patch = {
        "containers": [{"name": name, "resources": limits}],
        "initContainers": [{"name": "init", "resources": limits}],
    }
    assert a_pod({**HELLO, "podSpecPatch": json.dumps(patch)})["spec"] == a_pod(HELLO)["spec"]
    with_outputs = a_pod({**WITH_OUTPUTS, "podSpecPatch": json.dumps(patch)})
    assert [each["name"] for each in with_outputs["spec"]["containers"]] == ["main", "wait"]
    assert container_of(with_outputs, "init")["resources"]["limits"]["cpu"] == "101m"


def test_gpus_are_mains_alone() -> None:
    gpus = {"limits": {"nvidia.com/gpu": 2}}
    pod = a_pod({**WITH_OUTPUTS, "container": {**HELLO["container"], "resources": gpus}})
    assert container_of(pod, "main")["resources"] == gpus
    assert "nvidia.com/gpu" not in str(container_of(pod, "wait")) + str(container_of(pod, "init"))


def test_beside_the_local_cluster_the_shell_is_the_machines_and_the_root_is_private() -> None:
    pod = a_pod(WITH_OUTPUTS, runtime=StepRuntime(image="localhost/host", python="/py", on_processes=True))
    assert container_of(pod, "main")["command"][:3] == ["/bin/sh", "/moorage/step/wrapper.sh", "/moorage/step"]
    assert container_of(pod, "wait")["command"][0] == "/py"
    assert pod["metadata"]["annotations"]["localcluster.moorage.dev/private-root"] == "true"


def test_the_command_of_a_known_image_is_wrapped() -> None:
    runtime = StepRuntime(image="m", entrypoints={"say": (("/say",), ("hello",))})
    for container, want in (
        ({"image": "say"}, ["/say", "hello"]),
        ({"image": "say", "args": ["x"]}, ["/say", "x"]),
        ({"image": "say", "command": ["other"]}, ["other"]),
    ):
        pod = a_pod({**WITH_OUTPUTS, "container": container}, runtime=runtime)
        assert container_of(pod, "main")["command"][4:] == want


@pytest.mark.parametrize(
    ("template", "words"),
    [
        pytest.param({"name": "hello"}, ["container", "missing"], id="no container"),
        pytest.param({"name": "h", "container": {"command": ["x"]}}, ["container.image"], id="no image"),
        pytest.param(
            {**WITH_OUTPUTS, "container": {"image": "say"}},
            ["'say'", "set `command`"],
            id="outputs without a command",
        ),
        pytest.param(
            {"name": "h", "script": {"image": "x", "command": ["sh"], "source": "x" * 204_801}},
            ["script.source", "204801", "204800"],
            id="a script that is too long",
        ),
        pytest.param(
            {**HELLO, "inputs": {"artifacts": [{"name": "data", "path": "/data"}]}},
            ["inputs.artifacts[0]", "'data'", "not supplied"],
            id="an input that nobody supplied",
        ),
        pytest.param(
            {**HELLO, "inputs": {"artifacts": [{"name": "d", "path": "/a/../b", "raw": {"data": "x"}}]}},
            ["inputs.artifacts[0].path", "'/a/../b'"],
            id="a path with two dots",
        ),
        pytest.param(
            {**HELLO, "outputs": {"artifacts": [{"name": "d", "path": "/"}]}},
            ["outputs.artifacts[0].path"],
            id="the root as an output",
        ),
        pytest.param(
            {**HELLO, "outputs": {"artifacts": [{"name": "d", "path": "/d", "oss": {"bucket": "b"}}]}},
            ["outputs.artifacts[0].oss", "not supported"],
            id="a store that is not supported",
        ),
        pytest.param(
            {**HELLO, "outputs": {"artifacts": [{"name": "d", "path": "/d", "git": {"repo": "b"}}]}},
            ["outputs.artifacts[0].git", "cannot be written"],
            id="an output to git",
        ),
        pytest.param(
            {"name": "h", "container": {"image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}},
            ["'v'", "volumeClaimTemplates"],
            id="a volume that does not exist",
        ),
        pytest.param({**HELLO, "podSpecPatch": "[1]"}, ["podSpecPatch", "object"], id="a patch that is a list"),
        pytest.param({**HELLO, "podSpecPatch": "{"}, ["podSpecPatch", "YAML"], id="a patch that is no YAML"),
        pytest.param(
            {**HELLO, "podSpecPatch": "containers: [{name: main, $patch: delete}]"},
            ["podSpecPatch", "main"],
            id="a patch that removes main",
        ),
        pytest.param(
            {**HELLO, "sidecars": [{"name": "wait", "image": "x"}]},
            ["sidecars[0].name"],
            id="a sidecar named wait",
        ),
        pytest.param(
            {**HELLO, "inputs": {"artifacts": [{"name": "d", "path": "/d", "raw": {"data": "x" * 270_000}}]}},
            ["annotations", "262144"],
            id="raw artifacts that are too long",
        ),
    ],
)
def test_what_cannot_be_a_pod_is_refused_with_its_template_and_field(template, words) -> None:
    with pytest.raises(PodError) as refused:
        a_pod(template)
    for word in ("template 'hello'", *words):
        assert word in refused.value.message


def test_who_reports_and_who_needs_the_executor() -> None:
    workflow = {"spec": {}}
    assert not needs_executor(workflow, HELLO, wants_result=False)
    assert needs_executor(workflow, HELLO, wants_result=True)
    assert reports({"spec": {"archiveLogs": True}}, HELLO, wants_result=False)
    fetching = {**HELLO, "inputs": {"artifacts": [{"name": "a", "path": "/a"}]}}
    assert needs_executor(workflow, fetching, wants_result=False)
    assert not reports(workflow, fetching, wants_result=False)


# any template that is not refused makes a pod that the API server takes

names = st.sampled_from(["a", "b", "work", "x1"])
paths = st.sampled_from(["/a", "/work", "/work/b", "/tmp/x y", "/tmp/x/", "/a//b", "relative", "/", "/..", "/ä"])
mounts = st.lists(
    st.fixed_dictionaries({"name": names, "mountPath": st.sampled_from(["/work", "/v", "/a"])}),
    max_size=2,
    unique_by=lambda mount: mount["mountPath"],
)
words = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), max_size=3)
containers = st.fixed_dictionaries(
    {"image": st.sampled_from(["busybox", "say"])},
    optional={
        "command": words,
        "args": words,
        "volumeMounts": mounts,
        "resources": st.just({"limits": {"nvidia.com/gpu": "1"}}),
        "env": st.just([{"name": "A", "value": "$(B)"}]),
    },
)
scripts = st.builds(lambda container, source: {**container, "source": source}, containers, st.text(max_size=10))
archives = st.sampled_from([{"none": {}}, {"tar": {"compressionLevel": 1}}, {"zip": {}}])
stores = st.sampled_from(
    [
        {},
        {"s3": {"bucket": "b", "key": "k", "accessKeySecret": {"name": "s", "key": "k"}}},
        {"http": {"url": "https://example.org/x"}},
        {"git": {"repo": "https://example.org/x.git"}},
        {"raw": {"data": "text"}},
    ]
)
artifacts = st.lists(
    st.builds(
        lambda entry, store: {**entry, **store},
        st.fixed_dictionaries(
            {"name": names, "path": paths},
            optional={"archive": archives, "optional": st.booleans(), "mode": st.just(0o644)},
        ),
        stores,
    ),
    max_size=3,
    unique_by=lambda entry: entry["name"],
)
out_parameters = st.lists(
    st.builds(lambda name, path: {"name": name, "valueFrom": {"path": path}}, names, paths), max_size=2
)
extra_containers = st.lists(
    st.builds(
        lambda container, name, mirrors: {**container, "name": name, "mirrorVolumeMounts": mirrors},
        containers,
        st.sampled_from(["one", "two", "wait"]),
        st.booleans(),
    ),
    max_size=2,
    unique_by=lambda container: container["name"],
)
templates = st.builds(
    lambda body, more: {"name": "hello", **body, **more},
    st.one_of(containers.map(lambda body: {"container": body}), scripts.map(lambda body: {"script": body})),
    st.fixed_dictionaries(
        {},
        optional={
            "inputs": artifacts.map(lambda found: {"artifacts": found}),
            "outputs": st.builds(lambda p, a: {"parameters": p, "artifacts": a}, out_parameters, artifacts),
            "volumes": st.just([{"name": "work", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
            "initContainers": extra_containers,
            "sidecars": extra_containers,
            "nodeSelector": st.just({"disk": "fast"}),
            "securityContext": st.just({"runAsUser": 1000}),
            "podSpecPatch": st.sampled_from(
                ["terminationGracePeriodSeconds: 3", "containers: [{name: main, tty: true}]"]
            ),
        },
    ),
)


class Server:
    """Our own API server in memory, which refuses fields it does not know."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = ApiServer(MemoryStorage(), tokens={}, signing_key=b"k" * 32)
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        await self.server.start()
        await self.server.client().create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
        )

    def take(self, pod: dict[str, Any]) -> dict[str, Any]:
        call = Call(user=service_user("system:masters-client"), dry_run=True, field_validation="Strict")
        kind = self.server.kind_of(PODS)
        taken: dict[str, Any] = self.loop.run_until_complete(self.server.create(call, kind, pod, "lab"))
        return taken

    def close(self) -> None:
        self.loop.run_until_complete(self.server.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def api_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@given(templates, st.booleans(), st.booleans())
def test_any_template_is_refused_in_our_words_or_makes_a_pod_that_the_api_server_takes(
    api_server: Server, template: dict[str, Any], wants_result: bool, on_processes: bool
) -> None:
    runtime = StepRuntime(image="m", on_processes=on_processes, entrypoints={"say": (("/say",), ())})
    supplied = {"a": Artifact(name="a", key="k"), "b": Artifact(name="b", location={"raw": {"data": "x"}})}
    before = json.dumps(template)
    request = a_request(template, wants_result=wants_result, artifacts=supplied)
    refusal = "template 'hello': "
    try:
        pod = make_pod(request, runtime)
    except PodError as error:
        refusal = error.message
        pod = None
    assert json.dumps(template) == before
    assert refusal.startswith("template 'hello': ")
    if pod is None:
        return
    taken = api_server.take(json.loads(json.dumps(pod)))
    main = container_of(taken, "main")
    is_wrapped = "/moorage/step/wrapper.sh" in main.get("command", ())
    assert is_wrapped == reports({"spec": {}}, template, wants_result=wants_result)
    assert is_wrapped == any(each["name"] == "wait" for each in taken["spec"]["containers"])


RESOURCE = {
    "name": "hello",
    "resource": {
        "action": "create",
        "setOwnerReference": True,
        "successCondition": "status.succeeded > 0",
        "flags": ["--validate=false"],
        "manifest": "kind: Job",
    },
}


def test_a_resource_step_runs_our_image_with_the_token_of_the_pods_account() -> None:
    pod = a_pod({**RESOURCE, "outputs": {"parameters": [{"name": "n", "valueFrom": {"jsonPath": "{.kind}"}}]}})
    main = container_of(pod, "main")
    assert main["command"][:2] == ["/moorage/step/bin/busybox", "sh"]
    assert main["command"][4:] == [
        *("python", "-m", "moorage_workflows.executor", "resource"),
        *("--order", "/moorage/order/order.json", "--account", "/moorage/account"),
    ]
    assert main["image"] == RUNTIME.image
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    sources = volumes["moorage-account"]["projected"]["sources"]
    assert [next(iter(source)) for source in sources] == ["serviceAccountToken", "configMap"]
    holders = [
        container["name"]
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
        if any(mount["name"] == "moorage-account" for mount in container["volumeMounts"])
    ]
    assert holders == ["main"]  # init and wait have no token of the account
    order = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])
    assert order["resource"] == {
        "action": "create",
        "namespace": "lab",
        "mark": "7c1e/wf-1/0",
        "manifest": "/moorage/script/source",
        "mergeStrategy": "strategic",
        "flags": ["--validate=false"],
        "owner": {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "name": "wf",
            "uid": "7c1e",
            "controller": True,
            "blockOwnerDeletion": True,
        },
        "success": "status.succeeded > 0",
        "failure": "",
        "outputs": [{"name": "n", "path": "/moorage/answers/0", "jsonPath": "{.kind}"}],
    }
    assert order["parameters"] == [{"name": "n", "path": "/moorage/answers/0"}]
    assert pod["metadata"]["annotations"]["moorage.dev/workflow-source"] == "kind: Job"


def test_a_resource_step_without_outputs_is_one_container() -> None:
    pod = a_pod(RESOURCE, wants_result=True)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["main"]
    assert "initContainers" not in pod["spec"]
    assert not reports({}, RESOURCE, wants_result=True)
    assert violations("restricted", pod["metadata"], pod["spec"]) == []


def test_a_manifest_from_an_artifact_is_read_where_the_artifact_is() -> None:
    artifact = {"name": "m", "path": "/tmp/m.yaml", "raw": {"data": "kind: Job"}}
    resource = {"action": "create", "manifestFrom": {"artifact": {"name": "m"}}}
    pod = a_pod({"name": "hello", "resource": resource, "inputs": {"artifacts": [artifact]}})
    order = json.loads(pod["metadata"]["annotations"]["moorage.dev/workflow-order"])
    assert order["resource"]["manifest"] == "/tmp/m.yaml"
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["init"]


@pytest.mark.parametrize(
    ("template", "spec", "account"),
    [
        ({}, {"serviceAccountName": "a"}, "a"),
        ({}, {"serviceAccountName": "a", "executor": {"serviceAccountName": "b"}}, "b"),
        ({"executor": {"serviceAccountName": "c"}}, {"executor": {"serviceAccountName": "b"}}, "c"),
    ],
)
def test_a_resource_step_has_the_account_of_the_executor(template, spec, account) -> None:
    assert a_pod({**RESOURCE, **template}, spec=spec)["spec"]["serviceAccountName"] == account


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"action": "explode"}, "resource.action is 'explode'"),
        ({"mergeStrategy": "best"}, "resource.mergeStrategy is 'best'"),
        ({"flags": ["--kubeconfig=x"]}, "resource.flags flag '--kubeconfig=x' cannot be used"),
        ({"successCondition": "a ="}, None),
        ({"failureCondition": "a > b"}, "resource.failureCondition"),
        ({"manifest": "x" * 300_000}, "resource.manifest has 300000 bytes"),
        ({"manifest": "", "manifestFrom": {"artifact": {"name": "m"}}}, "there is no input artifact of this name"),
    ],
)
def test_a_resource_that_cannot_be_carried_out_makes_no_pod(fields: dict[str, Any], why: str | None) -> None:
    template = {**RESOURCE, "resource": {**RESOURCE["resource"], **fields}}  # type: ignore[dict-item]
    if why is None:
        assert a_pod(template)
        return
    with pytest.raises(PodError, match=why):
        a_pod(template)


@pytest.mark.parametrize(
    ("artifact", "location"),
    [
        pytest.param(Artifact(name="a", key="wf/p/a", digest="sha256:1"), {"key": "wf/p/a", "digest": "sha256:1"}),
        pytest.param(Artifact(name="a", key="wf/p/a", digest="sha256:1", files=3), {"key": "wf/p/a/"}),
        pytest.param(
            Artifact(name="a", key="d", archive="none", files=3, location={"s3": {"bucket": "b", "key": "d"}}),
            {"s3": {"bucket": "b", "key": "d/"}},
        ),
    ],
    ids=["a file", "a folder of files", "a folder in a bucket"],
)
def test_an_input_is_read_as_it_was_stored(artifact: Artifact, location: dict[str, object]) -> None:
    template = {"name": "t", "inputs": {"artifacts": [{"name": "a", "path": "/tmp/a"}]}}
    ordered = make_order(
        template,
        {"a": artifact},
        workflow={"name": "wf", "uid": "u"},
        pod="p",
        mounts=(),
        wants_result=False,
        archives_logs=False,
    )
    assert ordered.document["inputs"][0]["location"] == location
