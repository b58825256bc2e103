"""Docker's words for pods, there and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moorage.decide.docker.containers import (
    container_id,
    containers,
    find,
    is_gated,
    is_starting,
    never_starts,
    start_of,
)
from moorage.decide.docker.create import Around, next_pod, plan_container
from moorage.decide.docker.views import inspect, matches, state_of, summary
from moorage.decide.runs.gputypes import GpuType
from moorage.model.names import CONTAINER_GATE, CONTAINER_LABEL, HOST_ENV_ANNOTATION
from moorage_kube.images import ImageRule

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
AROUND = Around(
    namespace="vision",
    cpu="2",
    memory="4Gi",
    gpu_types=(
        GpuType("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu", 2, 8),
        GpuType("nvidia.com/gpu.product", "Tesla-T4", "nvidia.com/gpu", 1, 4),
    ),
    salt="s",
)


def plan(host: dict[str, Any] | None = None, name: str | None = "web", **body: Any) -> Any:
    return plan_container({"Image": "python:3.12"} | body | {"HostConfig": host or {}}, name, AROUND)


def spec(host: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    made = plan(host, **body)
    assert not made.faults, made.faults
    return dict(made.pod["spec"])


def main(host: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    return dict(spec(host, **body)["containers"][0])


def faults(host: dict[str, Any] | None = None, name: str | None = "web", **body: Any) -> list[str]:
    return [fault.field for fault in plan(host, name, **body).faults]


LOCAL = Around(namespace="vision", salt="s", on_processes=True)


def test_an_image_that_a_local_cluster_cannot_pull_is_refused_with_what_to_do():
    refused = plan_container({"Image": "python:3.12", "Cmd": ["true"]}, "web", LOCAL)
    assert [fault.field for fault in refused.faults] == ["Image"]
    assert "moor docker --host-env -- run" in refused.faults[0].message
    assert plan_container({"Image": "localhost/host", "Cmd": ["true"]}, "web", LOCAL).faults == ()


def test_an_image_of_the_nodes_table_runs_with_its_own_command():
    here = structs.replace(LOCAL, images=(ImageRule(image="python", cmd=("python3",)), ImageRule(image="tool")))
    bodies = {"Image": "docker.io/library/python:3.12"}, {"Image": "tool:1"}, {"Image": "tool:1", "Cmd": ["true"]}
    made = [plan_container(body, "web", here) for body in bodies]
    assert [[fault.field for fault in plan.faults] for plan in made] == [[], ["Cmd"], []]
    assert HOST_ENV_ANNOTATION not in made[0].pod["metadata"]["annotations"]
    assert not any("environment" in warning for warning in made[0].warnings)


def test_its_command_runs_in_the_machines_environment_on_request_and_that_is_said():
    here = Around(namespace="vision", salt="s", on_processes=True, host_env=True)
    made = plan_container({"Image": "python:3.12", "Cmd": ["true"]}, "web", here)
    assert made.faults == ()
    assert made.warnings[0] == "the command runs in this machine's environment, not in the image python:3.12"
    assert made.pod["metadata"]["annotations"][HOST_ENV_ANNOTATION] == "true"
    again = next_pod(stored(made.pod))
    assert again["metadata"]["annotations"][HOST_ENV_ANNOTATION] == "true"
    assert [fault.field for fault in plan_container({"Image": "python:3.12"}, "web", here).faults] == ["Cmd"]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"waiting": {"reason": "ErrImagePull"}}, ""),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "ImagePullBackOff: no"),
        ({"waiting": {"reason": "ImageNotRunnable"}}, "ImageNotRunnable: the image cannot be pulled"),
        ({"running": {}}, ""),
    ],
)
def test_a_container_that_never_starts_is_known(state, why):
    assert never_starts(ran(plan().pod, state)) == why


@pytest.mark.parametrize(
    ("state", "conditions", "starts"),
    [
        ({}, [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}], True),
        ({}, [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}], False),
        ({"waiting": {"reason": "ContainerCreating"}}, [], True),
        ({"waiting": {"reason": "ImagePullBackOff"}}, [], False),
        ({"running": {"startedAt": "2026-11-21T11:58:00Z"}}, [], False),
    ],
)
def test_a_container_that_is_about_to_run_is_known(state, conditions, starts):
    assert is_starting(ran(plan().pod, state, "Pending", conditions=conditions)) is starts


def stored(pod: dict[str, Any], uid: str = "u1", **status: Any) -> dict[str, Any]:
    made = json.loads(json.dumps(pod))
    made["metadata"] |= {"uid": uid, "creationTimestamp": "2026-11-21T11:00:00Z", "resourceVersion": "7"}
    return made | {"status": status}


def ran(pod: dict[str, Any], state: dict[str, Any], phase: str = "Running", **status: Any) -> dict[str, Any]:
    pod = stored(pod, phase=phase, containerStatuses=[{"name": "main", "state": state}], **status)
    pod["spec"].pop("schedulingGates")
    return pod


def test_a_container_is_a_gated_pod_whose_requests_are_its_limits():
    made = plan({"Memory": 256 * 2**20, "NanoCpus": 1_500_000_000}, Cmd=["python", "-c", "1"], Env=["A=b=c"])
    assert made.pod["metadata"]["labels"][CONTAINER_LABEL] == "web"
    assert made.pod["spec"]["schedulingGates"] == [{"name": CONTAINER_GATE}]
    assert made.pod["spec"]["restartPolicy"] == "Never"
    (container,) = made.pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": str(256 * 2**20)}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["args"] == ["python", "-c", "1"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    assert "command" not in container
    assert made.warnings == ()


def test_what_is_not_said_is_filled_in_and_told():
    made = plan()
    assert made.pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert made.warnings == ("the request sets no memory limit: 4Gi is the limit",)


@pytest.mark.parametrize(
    ("host", "body", "key", "value"),
    [
        ({}, {"Entrypoint": ["sh", "-c"], "Cmd": ["echo $(HOME)"]}, "args", ["echo $$(HOME)"]),
        ({}, {"Entrypoint": ["sh", "-c"]}, "command", ["sh", "-c"]),
        ({}, {"Cmd": "echo one"}, "args", ["/bin/sh", "-c", "echo one"]),
        ({}, {"WorkingDir": "/w"}, "workingDir", "/w"),
        ({}, {"User": "1000:100"}, "securityContext", {"runAsUser": 1000, "runAsGroup": 100}),
        ({"ReadonlyRootfs": True}, {}, "securityContext", {"readOnlyRootFilesystem": True}),
        ({}, {"Tty": True}, "tty", True),
        ({}, {"Env": ["A=1", "A=2", "GONE"]}, "env", [{"name": "A", "value": "2"}]),
        ({}, {"ExposedPorts": {"8080/tcp": {}}}, "ports", [{"containerPort": 8080, "protocol": "TCP"}]),
        ({"CapDrop": ["ALL"]}, {}, "securityContext", {"capabilities": {"drop": ["ALL"]}}),
    ],
)
def test_each_setting_of_docker_has_its_place_in_the_pod(host, body, key, value):
    assert main(host, **body)[key] == value


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("no", "Never"),
        ("", "Never"),
        ("on-failure", "OnFailure"),
        ("always", "Always"),
        ("unless-stopped", "Always"),
    ],
)
def test_restart_policies(policy, wanted):
    assert spec({"RestartPolicy": {"Name": policy}})["restartPolicy"] == wanted


def test_gpus_are_counted_tolerated_and_of_the_type_that_was_asked_for():
    made = spec({"DeviceRequests": [{"Driver": "nvidia", "Count": 2, "Options": {"type": "a100"}}]})
    assert made["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert made["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    terms = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == ["NVIDIA-A100-SXM4-80GB"]


def test_volumes_come_by_bind_by_mount_and_read_only():
    made = spec(
        {
            "Binds": ["data:/data:ro", "home:/home"],
            "Mounts": [
                {"Type": "volume", "Source": "data", "Target": "/again", "ReadOnly": True},
                {"Type": "tmpfs", "Target": "/tmp/x", "TmpfsOptions": {"SizeBytes": 1024}},
            ],
            "ShmSize": 2**30,
        }
    )
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in made["volumes"] if "emptyDir" not in volume
    ]
    assert claims == ["data", "home"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in made["containers"][0]["volumeMounts"]}
    assert mounts == {"/data": True, "/home": False, "/again": True, "/tmp/x": False, "/dev/shm": False}


def test_published_ports_become_a_service_of_the_same_name():
    made = plan({"PortBindings": {"8080/tcp": [{"HostPort": "80"}], "53/udp": [{"HostPort": ""}]}})
    assert made.service["metadata"]["name"] == "web"
    assert made.service["spec"]["selector"] == {CONTAINER_LABEL: "web"}
    ports = [(port["port"], port["targetPort"], port["protocol"]) for port in made.service["spec"]["ports"]]
    assert ports == [(53, 53, "UDP"), (80, 8080, "TCP")]
    assert plan(ExposedPorts={"8080/tcp": {}}).service is None


@pytest.mark.parametrize(
    ("host", "body", "where"),
    [
        ({"Privileged": True}, {}, "HostConfig.Privileged"),
        ({"Binds": ["/etc:/x"]}, {}, "HostConfig.Binds[0]"),
        ({"Binds": ["../up:/x"]}, {}, "HostConfig.Binds[0]"),
        ({"Binds": ["data:relative"]}, {}, "HostConfig.Binds[0]"),
        ({"Mounts": [{"Type": "bind", "Source": "/", "Target": "/h"}]}, {}, "HostConfig.Mounts[0].Type"),
        ({"NetworkMode": "host"}, {}, "HostConfig.NetworkMode"),
        ({"PidMode": "host"}, {}, "HostConfig.PidMode"),
        ({"IpcMode": "host"}, {}, "HostConfig.IpcMode"),
        ({"UsernsMode": "host"}, {}, "HostConfig.UsernsMode"),
        ({"UTSMode": "host"}, {}, "HostConfig.UTSMode"),
        ({"CgroupnsMode": "host"}, {}, "HostConfig.CgroupnsMode"),
        ({"Cgroup": "container:x"}, {}, "HostConfig.Cgroup"),
        ({"NetworkMode": "container:x"}, {}, "HostConfig.NetworkMode"),
        ({"MaskedPaths": []}, {}, "HostConfig.MaskedPaths"),
        ({"ReadonlyPaths": []}, {}, "HostConfig.ReadonlyPaths"),
        ({"PidsLimit": 100}, {}, "HostConfig.PidsLimit"),
        ({"OomKillDisable": True}, {}, "HostConfig.OomKillDisable"),
        ({"OomScoreAdj": -1000}, {}, "HostConfig.OomScoreAdj"),
        ({"GroupAdd": ["0"]}, {}, "HostConfig.GroupAdd"),
        ({"Sysctls": {"kernel.shmmax": "1"}}, {}, "HostConfig.Sysctls"),
        ({"VolumesFrom": ["other"]}, {}, "HostConfig.VolumesFrom"),
        (
            {
                "Mounts": [
                    {
                        "Source": "data",
                        "Target": "/d",
                        "VolumeOptions": {"DriverConfig": {"Options": {"o": "bind", "device": "/"}}},
                    }
                ]
            },
            {},
            "HostConfig.Mounts[0].VolumeOptions.DriverConfig",
        ),
        ({"CapAdd": ["SYS_ADMIN"]}, {}, "HostConfig.CapAdd"),
        ({"Devices": [{"PathOnHost": "/dev/sda"}]}, {}, "HostConfig.Devices"),
        ({"SecurityOpt": ["seccomp=unconfined"]}, {}, "HostConfig.SecurityOpt"),
        ({"Memory": 1024}, {}, "HostConfig.Memory"),
        ({"Memory": "1g"}, {}, "Memory"),
        ({"DeviceRequests": [{"Count": -1}]}, {}, "HostConfig.DeviceRequests[0].Count"),
        ({"DeviceRequests": [{"DeviceIDs": ["0"]}]}, {}, "HostConfig.DeviceRequests[0].DeviceIDs"),
        ({"DeviceRequests": [{"Count": 1, "Driver": "x"}]}, {}, "HostConfig.DeviceRequests[0].Driver"),
        (
            {"DeviceRequests": [{"Count": 1, "Options": {"type": "h100"}}]},
            {},
            "HostConfig.DeviceRequests[0].Options.type",
        ),
        ({"RestartPolicy": {"Name": "often"}}, {}, "HostConfig.RestartPolicy.Name"),
        (
            {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}},
            {},
            "HostConfig.RestartPolicy.MaximumRetryCount",
        ),
        ({"PortBindings": {"99999/tcp": []}}, {}, "HostConfig.PortBindings[99999/tcp]"),
        ({}, {"User": "ada"}, "User"),
        ({}, {"StopSignal": "SIGUSR1"}, "StopSignal"),
        ({}, {"Hostname": "Not_A_Name"}, "Hostname"),
        ({}, {"Image": ""}, "Image"),
        ({}, {"Env": ["=x"]}, "Env[0]"),
        ({}, {"Cmd": {"a": 1}}, "Cmd"),
        ({}, {"StopTimeout": -1}, "StopTimeout"),
    ],
)
def test_what_would_only_seem_to_work_is_refused_with_its_place(host, body, where):
    assert faults(host, **body) == [where]


def test_what_docker_sends_without_options_is_accepted():
    usual = {
        "NetworkMode": "default", "PidMode": "", "IpcMode": "private", "UsernsMode": "", "UTSMode": "",
        "CgroupnsMode": "private", "Cgroup": "", "Isolation": "", "MaskedPaths": None, "ReadonlyPaths": None,
        "PidsLimit": 0, "OomKillDisable": False, "OomScoreAdj": 0, "CapAdd": None, "Privileged": False,
    }  # fmt: skip
    assert faults(usual) == []


def test_all_faults_are_told_at_once():
    assert faults({"Privileged": True, "Binds": ["/:/x"]}, "No Name", User="x") == [
        "name",
        "HostConfig.Privileged",
        "User",
        "HostConfig.Binds[0]",
    ]


def test_a_name_is_made_of_the_image_where_none_is_given():
    made = plan(None, None, Image="ghcr.io/team/Trainer_X:v1@sha256:00")
    assert made.name.startswith("trainer-x-")
    assert len(made.name) == len("trainer-x-") + 6


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["Image", "Cmd", "Entrypoint", "Env", "User", "Labels", "ExposedPorts", "Tty", "StopTimeout", "Hostname"]
)
HOST_KEYS = st.sampled_from(
    ["Memory", "NanoCpus", "CpuQuota", "CpuPeriod", "Binds", "Mounts", "PortBindings", "DeviceRequests", "Tmpfs"]
    + ["RestartPolicy", "AutoRemove", "ShmSize", "NetworkMode"]
)


@given(
    body=st.dictionaries(KEYS, json_values, max_size=5),
    host=st.dictionaries(HOST_KEYS, json_values, max_size=5) | json_values,
    name=st.none() | st.text(max_size=60),
)
def test_whatever_is_sent_there_is_a_plan_or_a_fault_and_never_the_nodes_files(body, host, name):
    made = plan_container({**body, "HostConfig": host}, name, AROUND)
    if made.faults:
        return
    (container,) = made.pod["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert all(
        set(volume) <= {"name", "persistentVolumeClaim", "emptyDir"}
        for volume in made.pod["spec"].get("volumes", ())
    )
    assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName", "serviceAccountName"} & set(made.pod["spec"])
    assert "privileged" not in container.get("securityContext", {})
    assert json.loads(json.dumps(made.pod)) == made.pod


# --- there and back


def test_an_id_stays_over_all_starts_and_the_newest_pod_speaks_for_the_container():
    first = ran(plan(Cmd=["true"]).pod, {"terminated": {"exitCode": 0}}, "Succeeded")
    again = stored(next_pod(first), "u2")
    assert (again["metadata"]["name"], start_of(again)) == ("web-s2", 2)
    assert container_id(again) == container_id(first)
    assert not is_gated(again)
    assert again["spec"]["containers"] == first["spec"]["containers"]
    assert containers([first, again]) == [again]
    third = next_pod(again)
    assert third["metadata"]["name"] == "web-s3"


def test_a_container_is_found_by_name_id_and_the_beginning_of_an_id():
    pod = stored(plan().pod)
    for word in ("web", "/web", container_id(pod), container_id(pod)[:12]):
        assert find([pod], word) is pod
    assert find([pod], "we") is None
    assert find([pod], "") is None


def test_the_beginning_of_two_ids_names_neither():
    pods, by_start = [], {}
    for n in range(300):
        pod = stored(plan(None, f"c{n}").pod, f"u{n}")
        pods.append(pod)
        by_start.setdefault(container_id(pod)[:2], []).append(pod)
    shared = next(start for start, found in by_start.items() if len(found) > 1)
    with pytest.raises(LookupError, match="2|3|4|5"):
        find(pods, shared)


@pytest.mark.parametrize(
    ("state", "phase", "more", "status", "text", "code", "live"),
    [
        ({"running": {"startedAt": "2026-11-21T11:58:00Z"}}, "Running", {}, "running", "Up 2 minutes", 0, True),
        (
            {"terminated": {"exitCode": 3, "finishedAt": "2026-11-21T11:59:59Z", "reason": "Error"}},
            "Failed",
            {},
            "exited",
            "Exited (3) 1 second ago",
            3,
            False,
        ),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, "Pending", {}, "created",
         "Waiting: no such image", 0, True),
        ({}, "Pending", {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]},
         "created", "Waiting: 0/2 nodes", 0, True),
    ],
)  # fmt: skip
def test_states_in_dockers_words(state, phase, more, status, text, code, live):
    seen = state_of(ran(plan().pod, state, phase, **more), NOW)
    assert (seen.status, seen.text, seen.exit_code, seen.is_live) == (status, text, code, live)


def test_one_that_was_killed_for_memory_says_so():
    pod = ran(plan().pod, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "Failed")
    assert inspect(pod, None, NOW)["State"]["OOMKilled"] is True


def test_a_created_container_is_not_listed_among_the_live():
    seen = state_of(stored(plan().pod, phase="Pending"), NOW)
    assert (seen.status, seen.is_live) == ("created", False)


def test_what_was_asked_for_is_what_is_told():
    host = {"Memory": 2**28, "Binds": ["data:/data:ro"], "PortBindings": {"80/tcp": [{"HostPort": "8080"}]}}
    made = plan(host, Cmd=["a", "b"], Labels={"team": "x"})
    service = made.service | {"spec": made.service["spec"] | {"clusterIP": "10.1.2.3"}}
    told = inspect(ran(made.pod, {"running": {"startedAt": "2026-11-21T11:58:00Z"}}), service, NOW)
    assert (told["Name"], told["Path"], told["Args"]) == ("/web", "a", ["b"])
    assert told["Config"]["Labels"] == {"team": "x"}
    assert told["HostConfig"]["Memory"] == 2**28
    assert told["NetworkSettings"]["Ports"] == {"80/tcp": [{"HostIp": "10.1.2.3", "HostPort": "8080"}]}
    assert told["Mounts"][0]["Name"] == "data"
    assert told["State"]["Running"] is True


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ({"name": ["we"]}, True),
        ({"name": ["other"]}, False),
        ({"label": ["team"]}, True),
        ({"label": ["team=x"], "status": ["created"]}, True),
        ({"label": ["team=y"]}, False),
        ({"label": ["team=x", "team=y"]}, False),
        ({"status": ["created", "exited"]}, True),
        ({"ancestor": ["python"]}, True),
        ({"status": ["running", "created"]}, True),
        ({"exited": ["0"]}, False),
        ({"volume": ["data"]}, True),
    ],
)
def test_filters_of_docker_ps(filters, passes):
    row = summary(stored(plan({"Binds": ["data:/data"]}, Labels={"team": "x"}).pod), None, NOW)
    assert matches(row, filters) is passes


def test_an_unknown_filter_is_refused_rather_than_ignored():
    with pytest.raises(ValueError, match="invalid filter 'since'"):
        matches(summary(stored(plan().pod), None, NOW), {"since": ["x"]})


def test_a_pod_whose_notes_were_spoilt_is_still_told_of():
    pod = stored(plan().pod)
    pod["metadata"]["annotations"][CONTAINER_LABEL] = "no json"
    assert inspect(pod, None, NOW)["Name"] == "/web"
    assert summary(pod, None, NOW + timedelta(days=2))["Image"] == ""


def test_the_label_that_lets_a_local_cluster_run_any_image_here_is_passed_on():
    assert plan(Labels={HOST_ENV_ANNOTATION: "true"}).pod["metadata"]["annotations"][HOST_ENV_ANNOTATION] == "true"
