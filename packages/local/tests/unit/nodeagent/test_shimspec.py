from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorage_kube.images import ImageRule
from moorage_kube.testing import builders
from moorage_local.nodeagent.environment import ConfigError
from moorage_local.nodeagent.shim.volumes import translate
from moorage_local.nodeagent.shimspec import (
    HOST_ENV_ANNOTATION,
    PRIVATE_ROOT_ANNOTATION,
    Place,
    make_shim_spec,
    unrunnable,
)

PLACE = Place(
    node="n1",
    folder="/pods/u",
    socket="/pods/agent.sock",
    base_env={"PATH": "/bin", "HOME": "/home/me"},
    hidden="/data",
    hidden_inode=(1, 2),
)


def a_pod(annotations: Any = None, spec: Any = None, **container: Any) -> dict[str, Any]:
    main = {"name": "c", "image": "localhost/host", "command": ["run"]} | container
    spec = {"restartPolicy": "Never"} | (spec or {})
    return builders.a_pod(uid="u", annotations=annotations, container=main, spec=spec)


def ordered(pod: Any, volumes: Any = None, gpu_indices: Any = (), place: Place = PLACE) -> Any:
    return make_shim_spec(
        pod,
        place=place,
        lookup={},
        volumes=volumes or {},
        gpu_indices=gpu_indices,
        admitted_at="2026-11-21T12:00:00Z",
    )


def test_whole_order() -> None:
    pod = a_pod(
        spec={"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5},
        args=["--name", "$(NAME)"],
        env=[{"name": "NAME", "value": "x"}],
        resources={"limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}},
        volumeMounts=[{"name": "d", "mountPath": "/data", "subPath": "a/b"}],
        workingDir="/srv",
    )
    assert ordered(pod, {"d": ("/vol", False)}, (3,)) == {
        "uid": "u",
        "name": "p",
        "namespace": "lab",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "deadlineEpoch": 1795262460.0,
        "notifySocket": "/pods/agent.sock",
        "gpuIndices": [3],
        "privateRoot": False,
        "fenceError": "",
        "hiddenInode": [1, 2],
        "initContainers": [],
        "containers": [
            {
                "name": "c",
                "argv": ["run", "--name", "x"],
                "env": {
                    "PATH": "/bin",
                    "HOME": "/home/me",
                    "HOSTNAME": "p",
                    "NAME": "x",
                    "CUDA_VISIBLE_DEVICES": "3",
                    "NVIDIA_VISIBLE_DEVICES": "GPU-n1-3",
                },
                "workingDir": "/srv",
                "hasWorkingDir": True,
                "memoryLimitBytes": 1 << 30,
                "mounts": [{"mountPath": "/data", "hostPath": "/vol", "subPath": "a/b", "readOnly": False}],
                "messagePath": "/dev/termination-log",
                "messageFromLogs": False,
                "oomScoreAdj": 500,
                "gpuIndices": [3],
                "hidden": "/data",
            }
        ],
    }


@pytest.mark.parametrize(
    ("hook", "order"),
    [
        ({"exec": {"command": ["sync"]}}, {"exec": ["sync"]}),
        ({"sleep": {"seconds": 5}}, {"sleep": 5}),
        (
            {"httpGet": {"port": "web", "path": "up", "scheme": "HTTPS"}},
            {
                "http": {
                    "host": "127.0.0.1",
                    "port": 8443,
                    "tls": True,
                    "request": "GET /up HTTP/1.1\r\nHost: 127.0.0.1:8443\r\nConnection: close\r\n"
                    "User-Agent: kube-lifecycle/1.32\r\n\r\n",
                }
            },
        ),
    ],
)
def test_lifecycle_hooks(hook: Any, order: Any) -> None:
    pod = a_pod(lifecycle={"preStop": hook}, ports=[{"name": "web", "containerPort": 8443}])
    assert ordered(pod)["containers"][0]["hooks"] == {"preStop": order}


@pytest.mark.parametrize("hook", [{"tcpSocket": {"port": 1}}, {"httpGet": {"port": "web"}}, {"exec": {}}])
def test_a_hook_that_cannot_run_is_refused(hook: Any) -> None:
    with pytest.raises(ConfigError, match="lifecycle hook"):
        ordered(a_pod(lifecycle={"postStart": hook}))


def test_pods_cannot_widen_the_gpus_they_see() -> None:
    pod = a_pod(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2"}])
    assert ordered(pod)["containers"][0]["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_privileged_containers_see_the_folder_of_the_platform() -> None:
    pod = a_pod(securityContext={"privileged": True})
    assert ordered(pod)["containers"][0]["hidden"] == ""


def test_grace_of_zero_is_kept() -> None:
    assert ordered(a_pod(spec={"terminationGracePeriodSeconds": 0}))["terminationGracePeriodSeconds"] == 0


@pytest.mark.parametrize("below", ["../x", "/x", "a/../../x"])
def test_sub_paths_stay_inside_their_volume(below: str) -> None:
    with pytest.raises(ConfigError):
        ordered(a_pod(volumeMounts=[{"name": "d", "mountPath": "/d", "subPath": below}]), {"d": ("/vol", False)})


def test_undeclared_volume_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        ordered(a_pod(volumeMounts=[{"name": "d", "mountPath": "/d"}]))
    assert caught.value.message == 'volume "d" is mounted but not declared'


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod(), None),
        (a_pod(image="localhost/host:latest"), None),
        (a_pod(image="localhost/hostile"), "ImageNotRunnable"),
        (a_pod(image="python:3.12"), "ImageNotRunnable"),
        (a_pod({HOST_ENV_ANNOTATION: "true"}, image="python:3.12"), None),
        (a_pod({HOST_ENV_ANNOTATION: "false"}, image="python:3.12"), "ImageNotRunnable"),
        (a_pod(command=None), "CreateContainerConfigError"),
        (a_pod(command=None, args=["x"]), None),
    ],
)
def test_what_this_runtime_refuses(pod: Any, reason: str | None) -> None:
    refused = unrunnable(pod)
    assert (refused["c"][0] if refused else None) == reason


SAY = ImageRule(
    image="argoproj/argosay:v2", entrypoint=("/say",), cmd=("hello",), path=("/tools",), env={"HOME": "/say-home"}
)
SHELL = ImageRule(image="busybox", cmd=("sh",))
SILENT = ImageRule(image="silent")


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        pytest.param({"image": "argoproj/argosay:v2"}, ["/say", "hello"], id="nothing said: entrypoint and cmd"),
        pytest.param({"image": "argoproj/argosay:v2", "args": ["x"]}, ["/say", "x"], id="args stand for cmd"),
        pytest.param({"image": "argoproj/argosay:v2", "command": ["y"]}, ["y"], id="a command stands for both"),
        pytest.param({"image": "busybox:1.36"}, ["sh"], id="any tag"),
        pytest.param({"image": "docker.io/library/busybox"}, ["sh"], id="by its long name"),
        pytest.param({"image": "argoproj/argosay:v3"}, "ImageNotRunnable", id="another tag than the table's"),
        pytest.param({"image": "silent"}, "CreateContainerConfigError", id="no command anywhere"),
        pytest.param({"image": "silent", "args": ["z"]}, ["z"], id="a command of arguments alone"),
    ],
)
def test_images_in_the_table_run_with_their_own_command(container: Any, argv: Any) -> None:
    images = (SAY, SHELL, SILENT)
    pod = a_pod(**{"command": None, **container})
    refused = unrunnable(pod, images)
    if isinstance(argv, str):
        assert refused["c"][0] == argv
        return
    assert refused == {}
    order = make_shim_spec(
        pod,
        place=replace(PLACE, images=images),
        lookup={},
        volumes={},
        gpu_indices=(),
        admitted_at="2026-11-21T12:00:00Z",
    )
    assert order["containers"][0]["argv"] == argv
    if container["image"].startswith("argo"):
        assert order["containers"][0]["env"]["PATH"] == "/tools:/bin"
        assert order["containers"][0]["env"]["HOME"] == "/say-home"


def test_a_pod_asks_for_a_root_of_its_own() -> None:
    order = ordered(a_pod({PRIVATE_ROOT_ANNOTATION: "true"}))
    assert (order["privateRoot"], order["containers"][0]["hasWorkingDir"]) == (True, False)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/data", "/vol"),
        ("/data/x", "/vol/x"),
        ("--in=/data:/y", "--in=/vol:/y"),
        ("cat '/data/x'", "cat '/vol/x'"),
        ("cat /data/x /data", "cat /vol/x /vol"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("/data-2", "/data-2"),
        ("/data.d", "/data.d"),
        ("see /data.", "see /vol."),
        ("/data/sub/x", "/other/x"),
    ],
)
def test_paths_are_translated_where_they_begin_with_a_mount(text: str, want: str) -> None:
    mounts = [{"mountPath": "/data", "hostPath": "/vol"}, {"mountPath": "/data/sub", "hostPath": "/other"}]
    assert translate(text, mounts) == want


@pytest.mark.parametrize(
    ("annotations", "hidden", "shown"),
    [
        pytest.param({PRIVATE_ROOT_ANNOTATION: "true"}, "/data", ["/tmp/moor/env", "/tmp/moor/src"], id="in /tmp"),
        pytest.param({}, "/data", [], id="a root that is not private shows it anyway"),
        pytest.param(
            {PRIVATE_ROOT_ANNOTATION: "true"}, "/tmp/moor/src/data", ["/tmp/moor/env"], id="what pods do not see"
        ),
    ],
)
def test_a_private_root_shows_the_installation_in_tmp(annotations: Any, hidden: str, shown: list[str]) -> None:
    place = replace(PLACE, hidden=hidden, installation=("/tmp/moor/env", "/tmp/moor/src"))
    pod = a_pod(annotations, volumeMounts=[{"name": "d", "mountPath": "/d"}])
    mounts = ordered(pod, {"d": ("/vol", False)}, place=place)["containers"][0]["mounts"]
    assert [mount["mountPath"] for mount in mounts] == [*shown, "/d"]
    assert all(mount["hostPath"] == mount["mountPath"] and mount["readOnly"] for mount in mounts[:-1])
