"""Every field that a Docker client can send has its entry in the table, and none is dropped."""

from __future__ import annotations

import inspect
import json
from typing import Any

import docker.types
import pytest
from docker.types.containers import ContainerConfig

from moorage.decide.docker.create import Around, plan_container
from moorage.decide.docker.fields import FIELDS, PARENTS, UNSET

AROUND = Around(namespace="vision")
API = "1.41"

# a value for each argument of docker-py's `HostConfig` that its own checks accept
HOST_SAMPLES: dict[str, Any] = {
    "binds": ["data:/d"], "port_bindings": {80: 8080}, "lxc_conf": {"a": "b"}, "publish_all_ports": True,
    "links": {"a": "b"}, "privileged": True, "dns": ["1.1.1.1"], "dns_search": ["a.b"], "volumes_from": ["x"],
    "network_mode": "host", "restart_policy": {"Name": "on-failure", "MaximumRetryCount": 3},
    "cap_add": ["SYS_ADMIN"], "cap_drop": ["ALL"], "devices": ["/dev/x:/dev/x:rwm"],
    "extra_hosts": {"a": "1.1.1.1"}, "read_only": True, "pid_mode": "host", "ipc_mode": "host",
    "security_opt": ["x"],
    "ulimits": [{"Name": "nofile", "Soft": 1, "Hard": 1}],
    "log_config": docker.types.LogConfig(type="syslog", config={"a": "b"}), "mem_limit": "1g",
    "memswap_limit": "2g", "mem_reservation": "512m", "kernel_memory": "1g", "mem_swappiness": 50,
    "cgroup_parent": "x", "group_add": ["1"], "cpu_quota": 50_000, "cpu_period": 100_000, "blkio_weight": 100,
    "blkio_weight_device": [{"Path": "/dev/x", "Weight": 1}], "device_read_bps": [{"Path": "/dev/x", "Rate": 1}],
    "device_write_bps": [{"Path": "/dev/x", "Rate": 1}], "device_read_iops": [{"Path": "/dev/x", "Rate": 1}],
    "device_write_iops": [{"Path": "/dev/x", "Rate": 1}], "oom_kill_disable": True, "shm_size": "1g",
    "sysctls": {"a": "b"}, "tmpfs": {"/t": "mode=1777"}, "oom_score_adj": 5, "dns_opt": ["x"], "cpu_shares": 5,
    "cpuset_cpus": "0-1", "userns_mode": "host", "uts_mode": "host", "pids_limit": 100, "isolation": "hyperv",
    "auto_remove": True, "storage_opt": {"size": "1g"}, "init": True, "init_path": "/x", "volume_driver": "nfs",
    "cpu_count": 1, "cpu_percent": 1, "nano_cpus": 10**9, "cpuset_mems": "0", "runtime": "runsc",
    "mounts": [docker.types.Mount("/m", "data")], "cpu_rt_period": 1000, "cpu_rt_runtime": 1000,
    "device_cgroup_rules": ["c 1:1 rwm"], "device_requests": [docker.types.DeviceRequest(count=1)],
    "cgroupns": "host",
}  # fmt: skip
EFFECTIVE = {
    "binds", "port_bindings", "cap_drop", "read_only", "mem_limit", "cpu_quota", "cpu_period", "shm_size",
    "auto_remove", "init", "nano_cpus", "mounts", "device_requests",
}  # fmt: skip
NOT_IN_THIS_VERSION = {"lxc_conf", "init_path"}  # docker-py refuses them

# what `docker create IMAGE echo` 28.2 sends
COMMAND_LINE = json.loads("""
{"Hostname":"","Domainname":"","User":"","AttachStdin":false,"AttachStdout":true,"AttachStderr":true,"Tty":false,
"OpenStdin":false,"StdinOnce":false,"Env":null,"Cmd":["echo"],"Image":"alpine","Volumes":{},"WorkingDir":"",
"Entrypoint":null,"OnBuild":null,"Labels":{},"HostConfig":{"Binds":null,"ContainerIDFile":"","LogConfig":{"Type":"",
"Config":{}},"NetworkMode":"default","PortBindings":{},"RestartPolicy":{"Name":"no","MaximumRetryCount":0},
"AutoRemove":false,"VolumeDriver":"","VolumesFrom":null,"ConsoleSize":[24,80],"CapAdd":null,"CapDrop":null,
"CgroupnsMode":"","Dns":[],"DnsOptions":[],"DnsSearch":[],"ExtraHosts":null,"GroupAdd":null,"IpcMode":"","Cgroup":"",
"Links":null,"OomScoreAdj":0,"PidMode":"","Privileged":false,"PublishAllPorts":false,"ReadonlyRootfs":false,
"SecurityOpt":null,"UTSMode":"","UsernsMode":"","ShmSize":0,"Isolation":"","CpuShares":0,"Memory":0,"NanoCpus":0,
"CgroupParent":"","BlkioWeight":0,"BlkioWeightDevice":[],"BlkioDeviceReadBps":[],"BlkioDeviceWriteBps":[],
"BlkioDeviceReadIOps":[],"BlkioDeviceWriteIOps":[],"CpuPeriod":0,"CpuQuota":0,"CpuRealtimePeriod":0,
"CpuRealtimeRuntime":0,"CpusetCpus":"","CpusetMems":"","Devices":[],"DeviceCgroupRules":null,"DeviceRequests":null,
"MemoryReservation":0,"MemorySwap":0,"MemorySwappiness":-1,"OomKillDisable":false,"PidsLimit":0,"Ulimits":[],
"CpuCount":0,"CpuPercent":0,"IOMaximumIOps":0,"IOMaximumBandwidth":0,"MaskedPaths":null,"ReadonlyPaths":null},
"NetworkingConfig":{"EndpointsConfig":{"default":{"IPAMConfig":null,"Links":null,"Aliases":null,"MacAddress":"",
"DriverOpts":null,"GwPriority":0,"NetworkID":"","EndpointID":"","Gateway":"","IPAddress":"","IPPrefixLen":0,
"IPv6Gateway":"","GlobalIPv6Address":"","GlobalIPv6PrefixLen":0,"DNSNames":null}}}}
""")


def faults(body: dict[str, Any], **around: Any) -> dict[str, str]:
    planned = plan_container({"Image": "x"} | body, "web", Around(namespace="vision", **around))
    return {fault.field: f"{fault.message}: {fault.hint}" for fault in planned.faults}


def leaves(value: Any, path: str = "") -> set[str]:
    """The paths of a request in the table's form; a path that the table has ends there."""
    if path in FIELDS or not isinstance(value, dict | list) or not value:
        return {path} - (PARENTS if value in UNSET else set())
    if isinstance(value, list):
        return set().union(*(leaves(part, f"{path}[]") for part in value))
    if path == "NetworkingConfig.EndpointsConfig":
        return set().union(*(leaves(part, f"{path}{{}}") for part in value.values()))
    return set().union(*(leaves(part, f"{path}.{key}".lstrip(".")) for key, part in value.items()))


def test_the_request_of_dockers_command_line_without_options_passes_and_is_in_the_table():
    assert faults(COMMAND_LINE) == {}
    assert leaves(COMMAND_LINE) <= FIELDS.keys()


def test_each_host_option_of_dockers_python_package_has_its_effect_or_is_refused():
    names = set(inspect.signature(docker.types.HostConfig).parameters) - {"version"}
    assert names == HOST_SAMPLES.keys()
    for name in sorted(names - NOT_IN_THIS_VERSION):
        host = docker.types.HostConfig(API, **{name: HOST_SAMPLES[name]})
        body = json.loads(json.dumps({"HostConfig": host}))
        assert leaves(body) <= FIELDS.keys(), name
        assert bool(faults(body)) is (name not in EFFECTIVE), name


def test_each_other_option_of_dockers_python_package_is_in_the_table():
    made = ContainerConfig(
        API, "x", ["true"], hostname="h", user="1", detach=True, stdin_open=True, tty=True, ports=[80],
        environment={"A": "1"}, volumes=["/d"], network_disabled=True, entrypoint="x", working_dir="/w",
        domainname="d", mac_address="m", labels={"a": "b"}, stop_signal="SIGTERM", stop_timeout=1, runtime="runsc",
        healthcheck=docker.types.Healthcheck(test=["CMD", "x"], interval=10**9, timeout=10**9, retries=1,
                                             start_period=10**9),
        networking_config=docker.types.NetworkingConfig({"bridge": docker.types.EndpointConfig(
            API, aliases=["a"], links={"a": "b"}, ipv4_address="1.1.1.1", ipv6_address="::1",
            link_local_ips=["x"], driver_opt={"a": "b"}, mac_address="m")}),
        host_config={},
    )  # fmt: skip
    body = json.loads(json.dumps(made))
    assert leaves({key: value for key, value in body.items() if value not in UNSET}) <= FIELDS.keys()
    assert set(faults(body)) >= {
        "Domainname", "MacAddress", "NetworkDisabled", "Healthcheck.Test", "HostConfig.Runtime",
        "NetworkingConfig.EndpointsConfig.bridge.Aliases",
        "NetworkingConfig.EndpointsConfig.bridge.IPAMConfig.IPv4Address",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"CpusetCpus": "0-1"}, "--cpuset-cpus '0-1' is not available: the kubelet chooses the CPUs: use --cpus"),
        ({"PidsLimit": 5}, "--pids-limit 5 is not available: the node limits processes; leave it out"),
        ({"Privileged": True},
         "--privileged is not available: a container never has the node's rights; leave it out"),
        ({"Memory": 2**30, "MemorySwap": 2**31},
         f"--memory-swap {2**31} is not available: pods have no swap: use the value of --memory, or leave it out"),
        ({"Memory": 2**30, "MemoryReservation": 2**31},
         f"--memory-reservation {2**31} is more than --memory {2**30}: raise --memory: all of it is reserved"),
        ({"Runtime": "nvidia"},
         "--runtime nvidia gives a container no GPU on a cluster: ask for GPUs: docker run --gpus 1"),
        ({"PortBindings": {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "80"}]}},
         "the address '127.0.0.1' of -p is not available: a Service has the port: write -p PORT:PORT"),
        ({"Tmpfs": {"/t": "mode=1777"}}, "the option 'mode=1777' of --tmpfs is not available: use size=64m"),
        ({"Binds": ["data:/d:rshared"]}, "the option 'rshared' of -v is not available: use ro"),
        ({"PublishAllPorts": True}, "the image's ports are not known: name them: -p 8080"),
        ({"NewInDocker99": 1}, "unknown field with the value 1: leave it out"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_option_and_an_alternative(host, message):
    assert list(faults({"HostConfig": host}).values()) == [message]


@pytest.mark.parametrize(
    "host",
    [
        {"Memory": 2**30, "MemorySwap": 2**30},
        {"Memory": 2**30, "MemoryReservation": 2**29},
        {"Runtime": "nvidia", "DeviceRequests": [{"Count": 1, "Capabilities": [["gpu"]]}]},
        {"PidsLimit": -1, "MemorySwappiness": -1, "LogConfig": {"Type": "json-file"}},
        {"Binds": ["data:/d:ro,z"], "Tmpfs": {"/t": "size=64m,rw"}},
    ],
)
def test_an_option_that_asks_for_what_a_pod_has_passes(host):
    assert faults({"HostConfig": host}) == {}


def test_platform_init_anonymous_volumes_and_published_ports_have_their_effect():
    body = {
        "Image": "x",
        "Volumes": {"/d": {}, "/anonymous": {}},
        "ExposedPorts": {"80/tcp": {}},
        "HostConfig": {"Init": True, "PublishAllPorts": True, "Binds": ["data:/d"]},
    }
    planned = plan_container(body, "web", Around(namespace="vision", platform="linux/arm64/v8"))
    assert planned.faults == ()
    spec = planned.pod["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert spec["shareProcessNamespace"] is True
    assert [volume.get("emptyDir") for volume in spec["volumes"]] == [None, {}]
    assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] == ["/d", "/anonymous"]
    assert [port["port"] for port in planned.service["spec"]["ports"]] == [80]
    assert "platform" in faults({}, platform="windows/amd64")
