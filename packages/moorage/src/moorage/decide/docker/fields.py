"""The fields of Docker's `POST /containers/create`: the option of the command line, and the effect or the refusal.

The table has every field of the API's versions 1.40 to 1.55, and those that only Docker's Python package sends. A
field outside the table is refused too: options are never ignored silently.

https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

UNSET: tuple[Any, ...] = (None, False, 0, "", [], {})
_SHOWN = 80  # characters of a refused value


class Fault(Struct, frozen=True):
    """An unsupported option: its path in the body, the fault, and an alternative."""

    field: str
    message: str
    hint: str = ""


class Field(Struct, frozen=True):
    """One field. Its value has an effect (`does`), or is refused with an alternative (`instead`)."""

    option: str = ""  # of `docker run`; empty: there is none
    does: str = ""
    instead: str = ""
    usual: tuple[Any, ...] = UNSET  # values that are not refused


def _refused(option: str, instead: str, *usual: Any) -> Field:
    return Field(option, instead=instead, usual=(*UNSET, *usual))


_OF_CLIENT = "None: it is for Docker's client."
_WINDOWS = "it is for Windows containers; leave it out"
_NODE_SETS = "the node sets it; leave it out"
_DISKS = "a pod has no limits of disk speed; leave it out"
_NAMESPACE = "containers do not share the node's namespaces; leave it out"
_NO_NETWORKS = "all containers of a namespace share one network; leave it out"
_BY_NAME = "containers find each other by name: publish the port with -p, then use --name as the host name"
_DNS = "the cluster sets name resolution; leave it out"
_NO_SWAP = "pods have no swap; leave it out"
_CPUS = "use --cpus"
_GPUS = "ask for GPUs with --gpus"
_HEALTH = "pods have no Docker health check; check the program with docker exec"
_OTHER_MOUNT = "use a volume: moor volume create NAME"
_ANSWERED = "it is part of an answer; leave it out"

FIELDS: Mapping[str, Field] = {
    "?name": Field("--name", "Name of the container, of its pod and of its Service."),
    "?platform": Field("--platform", "Nodes of this architecture: `linux/amd64`, `linux/arm64`."),
    "Hostname": Field("--hostname", "Host name of the pod."),
    "Domainname": _refused("--domainname", "a pod's domain is the cluster's; leave it out"),
    "User": Field("--user", "UID or UID:GID; names are refused."),
    "AttachStdin": Field("--attach", _OF_CLIENT),
    "AttachStdout": Field("--attach", _OF_CLIENT),
    "AttachStderr": Field("--attach", _OF_CLIENT),
    "ExposedPorts": Field("--expose", "Ports of the container; only `-p` and `-P` publish them."),
    "Tty": Field("--tty", "A terminal."),
    "OpenStdin": Field("--interactive", "Open standard input."),
    "StdinOnce": Field("--interactive", "Standard input ends with the first client."),
    "Env": Field("--env", "Environment."),
    "Cmd": Field("COMMAND", "Command, or its arguments."),
    "Healthcheck.Test": _refused("--health-cmd", _HEALTH, ["NONE"]),
    **{
        f"Healthcheck.{name}": _refused(option, _HEALTH)
        for name, option in (
            ("Interval", "--health-interval"),
            ("Timeout", "--health-timeout"),
            ("Retries", "--health-retries"),
            ("StartPeriod", "--health-start-period"),
            ("StartInterval", "--health-start-interval"),
        )
    },
    "ArgsEscaped": _refused("", _WINDOWS),
    "Image": Field("IMAGE", "Image."),
    "Volumes": Field("--volume", "A path without a volume is an empty folder, deleted when the container ends."),
    "WorkingDir": Field("--workdir", "Working directory."),
    "Entrypoint": Field("--entrypoint", "Program of the container."),
    "NetworkDisabled": _refused("--network none", _NO_NETWORKS),
    "MacAddress": _refused("--mac-address", _NO_NETWORKS),
    "OnBuild": _refused("", "it is for builds; leave it out"),
    "Labels": Field("--label", "Labels of the container."),
    "StopSignal": Field("--stop-signal", "Only SIGTERM."),
    "StopTimeout": Field("--stop-timeout", "Grace period of `docker stop`."),
    "Shell": _refused("", "it is for builds; write the shell in the command"),
    "Runtime": Field("--runtime", "As `HostConfig.Runtime`."),
    "HostConfig.CpuShares": _refused("--cpu-shares", _CPUS),
    "HostConfig.Memory": Field("--memory", "Memory request and limit."),
    "HostConfig.CgroupParent": _refused("--cgroup-parent", "the kubelet manages control groups; leave it out"),
    "HostConfig.BlkioWeight": _refused("--blkio-weight", _DISKS),
    "HostConfig.BlkioWeightDevice": _refused("--blkio-weight-device", _DISKS),
    "HostConfig.BlkioDeviceReadBps": _refused("--device-read-bps", _DISKS),
    "HostConfig.BlkioDeviceWriteBps": _refused("--device-write-bps", _DISKS),
    "HostConfig.BlkioDeviceReadIOps": _refused("--device-read-iops", _DISKS),
    "HostConfig.BlkioDeviceWriteIOps": _refused("--device-write-iops", _DISKS),
    "HostConfig.CpuPeriod": Field("--cpu-period", "With `--cpu-quota`: CPU request and limit."),
    "HostConfig.CpuQuota": Field("--cpu-quota", "CPU request and limit, in microseconds of each period."),
    "HostConfig.CpuRealtimePeriod": _refused("--cpu-rt-period", _CPUS),
    "HostConfig.CpuRealtimeRuntime": _refused("--cpu-rt-runtime", _CPUS),
    "HostConfig.CpusetCpus": _refused("--cpuset-cpus", "the kubelet chooses the CPUs: use --cpus"),
    "HostConfig.CpusetMems": _refused("--cpuset-mems", "the kubelet chooses memory nodes; leave it out"),
    "HostConfig.Devices": _refused("--device", _GPUS),
    "HostConfig.DeviceCgroupRules": _refused("--device-cgroup-rule", _GPUS),
    "HostConfig.DeviceRequests[].Driver": Field("--gpus driver=…", "`nvidia`, `amd`, `intel`, or a resource."),
    "HostConfig.DeviceRequests[].Count": Field("--gpus N", "GPUs of one node; `all` is refused."),
    "HostConfig.DeviceRequests[].DeviceIDs": Field("--gpus device=…", "Refused: the cluster chooses the GPUs."),
    "HostConfig.DeviceRequests[].Capabilities": Field(
        "--gpus capabilities=…", "None: a GPU has all capabilities."
    ),
    "HostConfig.DeviceRequests[].Options.type": Field("", "Type of the GPUs, such as `a100`."),
    "HostConfig.KernelMemory": _refused("--kernel-memory", "use --memory"),
    "HostConfig.KernelMemoryTCP": _refused("", "use --memory"),
    "HostConfig.MemoryReservation": Field(
        "--memory-reservation", "At most `--memory`: all of it is reserved. More is refused."
    ),
    "HostConfig.MemorySwap": Field("--memory-swap", "The value of `--memory`: no swap. Other values are refused."),
    "HostConfig.MemorySwappiness": _refused("--memory-swappiness", _NO_SWAP, -1),
    "HostConfig.NanoCpus": Field("--cpus", "CPU request and limit."),
    "HostConfig.OomKillDisable": _refused(
        "--oom-kill-disable", "a container that exceeds its memory is killed; raise --memory"
    ),
    "HostConfig.Init": Field("--init", "The pod's first process passes signals on and ends zombies."),
    "HostConfig.PidsLimit": _refused("--pids-limit", "the node limits processes; leave it out", -1),
    "HostConfig.Ulimits": _refused("--ulimit", "the node sets limits of processes; leave it out"),
    "HostConfig.CpuCount": _refused("", _WINDOWS),
    "HostConfig.CpuPercent": _refused("", _WINDOWS),
    "HostConfig.IOMaximumIOps": _refused("", _WINDOWS),
    "HostConfig.IOMaximumBandwidth": _refused("", _WINDOWS),
    "HostConfig.Binds": Field(
        "--volume", "Volumes as NAME:/PATH or NAME:/PATH:ro; paths of the node are refused."
    ),
    "HostConfig.ContainerIDFile": Field("--cidfile", _OF_CLIENT),
    "HostConfig.LogConfig.Type": _refused("--log-driver", "the node stores the log; leave it out", "json-file"),
    "HostConfig.LogConfig.Config": _refused("--log-opt", "the node limits the log's size; leave it out"),
    "HostConfig.NetworkMode": _refused("--network", _NO_NETWORKS, "default", "bridge"),
    "HostConfig.PortBindings": Field(
        "--publish", "A Service with the name of the container. An address of the host is refused."
    ),
    "HostConfig.RestartPolicy.Name": Field("--restart", "Restarts of the container on its node."),
    "HostConfig.RestartPolicy.MaximumRetryCount": _refused(
        "--restart on-failure:N", "use --restart on-failure, or a job: moor run --retries N"
    ),
    "HostConfig.AutoRemove": Field("--rm", "The container is removed after its end."),
    "HostConfig.VolumeDriver": _refused("--volume-driver", "volumes come from storage classes", "local"),
    "HostConfig.VolumesFrom": _refused("--volumes-from", "name the volumes with -v"),
    "HostConfig.Mounts[].Target": Field("--mount target=…", "Path in the container."),
    "HostConfig.Mounts[].Source": Field("--mount source=…", "Name of the volume."),
    "HostConfig.Mounts[].Type": Field("--mount type=…", "`volume` or `tmpfs`; others are refused."),
    "HostConfig.Mounts[].ReadOnly": Field("--mount readonly", "Mount for reading."),
    "HostConfig.Mounts[].Consistency": Field("--mount consistency=…", "None, as on every Linux host."),
    "HostConfig.Mounts[].BindOptions": _refused("--mount bind-…", _OTHER_MOUNT),
    "HostConfig.Mounts[].VolumeOptions.NoCopy": Field(
        "--mount volume-nocopy", "None: files of the image are never copied to a volume."
    ),
    "HostConfig.Mounts[].VolumeOptions.Labels": _refused(
        "--mount volume-label", "the volume exists; label it when you create it"
    ),
    "HostConfig.Mounts[].VolumeOptions.DriverConfig": _refused(
        "--mount volume-driver", "volumes come from storage classes"
    ),
    "HostConfig.Mounts[].VolumeOptions.Subpath": _refused(
        "--mount volume-subpath", "mount the volume, and use the path in the command"
    ),
    "HostConfig.Mounts[].TmpfsOptions.SizeBytes": Field("--mount tmpfs-size", "Size of the folder in memory."),
    "HostConfig.Mounts[].TmpfsOptions.Mode": _refused("--mount tmpfs-mode", "change the mode in the command"),
    "HostConfig.Mounts[].TmpfsOptions.Options": _refused("", _NODE_SETS),
    "HostConfig.Mounts[].ImageOptions": _refused("--mount image-subpath", _OTHER_MOUNT),
    "HostConfig.Capabilities": _refused("", "a container has no more capabilities; leave it out"),
    "HostConfig.CapAdd": _refused("--cap-add", "a container has no more capabilities; leave it out"),
    "HostConfig.CapDrop": Field("--cap-drop", "Capabilities that the container does not have."),
    "HostConfig.Dns": _refused("--dns", _DNS),
    "HostConfig.DnsOptions": _refused("--dns-option", _DNS),
    "HostConfig.DnsSearch": _refused("--dns-search", _DNS),
    "HostConfig.ExtraHosts": _refused("--add-host", "host names come from the cluster; use the address"),
    "HostConfig.GroupAdd": _refused("--group-add", "name the group in --user UID:GID"),
    "HostConfig.IpcMode": _refused("--ipc", _NAMESPACE, "private", "shareable"),
    "HostConfig.Cgroup": _refused("", _NAMESPACE),
    "HostConfig.Links": _refused("--link", _BY_NAME),
    "HostConfig.OomScoreAdj": _refused("--oom-score-adj", "the kubelet chooses the process to end; leave it out"),
    "HostConfig.PidMode": _refused("--pid", _NAMESPACE),
    "HostConfig.Privileged": _refused("--privileged", "a container never has the node's rights; leave it out"),
    "HostConfig.PublishAllPorts": Field("--publish-all", "A Service with the ports of `--expose`."),
    "HostConfig.ReadonlyRootfs": Field("--read-only", "The image's files cannot be changed."),
    "HostConfig.SecurityOpt": _refused(
        "--security-opt", "an administrator sets the node's security; leave it out"
    ),
    "HostConfig.StorageOpt": _refused("--storage-opt", "an administrator limits local storage; leave it out"),
    "HostConfig.Tmpfs": Field("--tmpfs", "Folders in memory, with `size=`. Other options are refused."),
    "HostConfig.UTSMode": _refused("--uts", _NAMESPACE),
    "HostConfig.UsernsMode": _refused("--userns", _NAMESPACE),
    "HostConfig.ShmSize": Field("--shm-size", "Size of /dev/shm."),
    "HostConfig.Sysctls": _refused("--sysctl", "the node's kernel is shared; leave it out"),
    "HostConfig.Runtime": Field("--runtime", "`runc`, and `nvidia` with `--gpus`; others are refused."),
    "HostConfig.ConsoleSize": Field("", _OF_CLIENT),
    "HostConfig.Isolation": _refused("--isolation", _WINDOWS, "default"),
    # an empty list unmasks the paths that Docker hides in /proc and /sys
    "HostConfig.MaskedPaths": Field("", instead=_NODE_SETS, usual=(None,)),
    "HostConfig.ReadonlyPaths": Field("", instead=_NODE_SETS, usual=(None,)),
    "HostConfig.CgroupnsMode": _refused("--cgroupns", _NAMESPACE, "private"),
    "HostConfig.Annotations": _refused("--annotation", "use --label"),
    # spelt as Docker's Python package does
    "HostConfig.CPURealtimePeriod": _refused("--cpu-rt-period", _CPUS),
    "HostConfig.CPURealtimeRuntime": _refused("--cpu-rt-runtime", _CPUS),
    "HostConfig.InitPath": _refused("", "use --init"),
    "HostConfig.LxcConf": _refused("", _NODE_SETS),
    "NetworkingConfig.EndpointsConfig{}.IPAMConfig.IPv4Address": _refused("--ip", _NO_NETWORKS),
    "NetworkingConfig.EndpointsConfig{}.IPAMConfig.IPv6Address": _refused("--ip6", _NO_NETWORKS),
    "NetworkingConfig.EndpointsConfig{}.IPAMConfig.LinkLocalIPs": _refused("--link-local-ip", _NO_NETWORKS),
    "NetworkingConfig.EndpointsConfig{}.Links": _refused("--link", _BY_NAME),
    "NetworkingConfig.EndpointsConfig{}.Aliases": _refused("--network-alias", _BY_NAME),
    "NetworkingConfig.EndpointsConfig{}.MacAddress": _refused("--mac-address", _NO_NETWORKS),
    "NetworkingConfig.EndpointsConfig{}.DriverOpts": _refused("--network driver-opt=…", _NO_NETWORKS),
    "NetworkingConfig.EndpointsConfig{}.GwPriority": _refused("--network gw-priority=…", _NO_NETWORKS),
    **{
        f"NetworkingConfig.EndpointsConfig{{}}.{name}": _refused("", _ANSWERED)
        for name in (
            "NetworkID",
            "EndpointID",
            "Gateway",
            "IPAddress",
            "IPPrefixLen",
            "IPv6Gateway",
            "GlobalIPv6Address",
            "GlobalIPv6PrefixLen",
            "DNSNames",
        )
    },
}
NETWORKS = ("default", "bridge")


def _parents() -> frozenset[str]:
    """Paths of objects, lists (`[]`) and maps (`{}`) that have fields of the table."""
    made = set()
    for path in FIELDS:
        while path:
            path = path[:-2] if path.endswith(("[]", "{}")) else path.rpartition(".")[0]
            made.add(path)
    return frozenset(made)


PARENTS = _parents()


def refusals(value: Any, path: str = "", where: str = "") -> Iterator[Fault]:
    """The fields of a body that have no effect here and are not at their default, with unknown fields.

    `path`: of the value in the table; `where`: in this body.
    """
    field = FIELDS.get(path)
    if field is not None:
        if field.instead and value not in field.usual:
            given = "" if value is True else f" {repr(value)[:_SHOWN]}"
            yield Fault(where, f"{field.option or 'the field'}{given} is not available", field.instead)
    elif value in UNSET:
        return
    elif path not in PARENTS:
        yield Fault(where, f"unknown field with the value {repr(value)[:_SHOWN]}", "leave it out")
    elif f"{path}[]" in PARENTS:
        if not isinstance(value, list):
            yield Fault(where, f"invalid value {value!r}: use a list")
            return
        for at, part in enumerate(value):
            yield from refusals(part, f"{path}[]", f"{where}[{at}]")
    elif not isinstance(value, Mapping):
        yield Fault(where, f"invalid value {value!r}: use an object")
    elif f"{path}{{}}" in PARENTS:
        for key, part in value.items():
            if key not in NETWORKS:
                yield Fault(f"{where}.{key}", f"--network {key!r} is not available", _NO_NETWORKS)
            else:
                yield from refusals(part, f"{path}{{}}", f"{where}.{key}")
    else:
        for key, part in value.items():
            yield from refusals(part, f"{path}.{key}".lstrip("."), f"{where}.{key}".lstrip("."))
