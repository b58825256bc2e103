"""From the body of Docker's `POST /containers/create` to a guarded pod, and a Service where ports are published.

Options that could not have their effect are refused, never dropped: `fields` has the table.

https://docs.docker.com/reference/api/engine/version/v1.41/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.docker.containers import (
    CONFIG_ANNOTATION,
    ID_ANNOTATION,
    MAIN,
    REMOVE_ANNOTATION,
    START_LABEL,
    config_of,
    container_id,
    container_name,
    start_of,
)
from moorage.decide.docker.fields import UNSET, Fault, refusals
from moorage.decide.runs.gputypes import GpuType, gpu_taints, matches_type
from moorage.decide.runs.request import DEFAULT_CPU, DEFAULT_MEMORY, unexpanded
from moorage.model.names import CONTAINER_GATE, CONTAINER_LABEL, HOST_ENV_ANNOTATION, HOST_IMAGE, is_dns_label
from moorage_kube.images import ImageRule, rule_of
from moorage_kube.integers import integer_or
from moorage_kube.meta import owner_reference
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

NAME_MAX = 52  # of a container: its pods' names add "-s999"
STOP_SECONDS = 10  # Docker's own
MEMORY_MIN = 6 * 1024 * 1024  # Docker's own

_MADE_UP = re.compile(r"[^a-z0-9]+")
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_PORT = re.compile(r"([0-9]{1,5})(?:/(tcp|udp|sctp))?")
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_VENDORS = {"": "nvidia.com/gpu", "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
_SPEC = (
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "hostname",
    "containers",
    "volumes",
    "affinity",
    "tolerations",
    "nodeSelector",
    "shareProcessNamespace",
)
_ARCHITECTURES = {"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64"}
_BIND_FLAGS = frozenset(  # without an effect in a pod; the only other flag is "ro"
    ("", "rw", "z", "Z", "nocopy", "cached", "delegated", "consistent")
)
_ANY_ADDRESS = (None, "", "0.0.0.0", "::")
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_TMPFS_SIZE = re.compile(r"size=([0-9]{1,15})([kmg]?)", re.IGNORECASE)


class ContainerPlan(Struct, frozen=True, kw_only=True):
    """The objects to create; ignored where there are faults."""

    name: str
    pod: Obj
    service: Obj | None = None
    warnings: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


class Around(Struct, frozen=True, kw_only=True):
    """Defaults for options that the request does not set."""

    namespace: str
    cpu: str = DEFAULT_CPU
    memory: str = DEFAULT_MEMORY
    gpu_types: tuple[GpuType, ...] = ()
    salt: str = ""  # random text, for a generated name
    on_processes: bool = False  # pods are processes of this machine, as on a local cluster: images are not pulled
    images: tuple[ImageRule, ...] = ()  # then: these images run too
    platform: str = ""  # as Docker writes it: linux/arm64; empty: any
    host_env: bool = False  # then: the command of any image runs in this machine's environment


def plan_container(body: Mapping[str, Any], name: str | None, around: Around) -> ContainerPlan:
    """Plan the pod of a new container, gated until its start. Reports all errors at once."""
    return _Draft(body, around).plan(name)


def next_pod(pod: Mapping[str, Any]) -> Obj:
    """The pod for the next start of a container that has ended."""
    body, meta = config_of(pod), pod["metadata"]
    start = start_of(pod) + 1
    name = container_name(pod)
    made = _Draft(body, Around(namespace=meta["namespace"])).pod(name, pod["spec"], start)
    made["metadata"]["annotations"][ID_ANNOTATION] = container_id(pod)
    made["spec"].pop("schedulingGates", None)
    return made


def cannot_pull(image: str) -> str:
    """The message of a cluster of processes about an image."""
    return (
        f"cannot pull image {image!r}: this cluster runs commands on this machine itself."
        " To run the command in this machine's environment: moor docker --host-env -- run …,"
        f" or the label {HOST_ENV_ANNOTATION}=true"
    )


class _Draft:
    """Builds the plan of one container, and collects errors and warnings. Use an instance once."""

    def __init__(self, body: Mapping[str, Any], around: Around) -> None:
        labels = body.get("Labels")
        if around.host_env and around.on_processes and isinstance(labels, Mapping | None):
            body = {**body, "Labels": {**(labels or {}), HOST_ENV_ANNOTATION: "true"}}
        self.body = body
        self.around = around
        self.faults: list[Fault] = []
        self.warnings: list[str] = []
        host = body.get("HostConfig")
        self.host: Mapping[str, Any] = host if isinstance(host, Mapping) else {}
        self.volumes: list[Obj] = []
        self.mounts: list[Obj] = []
        self.ports: dict[tuple[int, str], int] = {}

    def fault(self, where: str, message: str, hint: str = "") -> None:
        self.faults.append(Fault(where, message, hint))

    def plan(self, name: str | None) -> ContainerPlan:
        chosen = self._name(name)
        # refuse all unsupported options at once, so that one try shows every fault
        self.faults += refusals(self.body)
        # build the spec even with faults: its parts report more of them
        self._check_image()
        container, affinity, tolerations = self._container()
        spec: Obj = {
            "restartPolicy": self._restart_policy(),
            "terminationGracePeriodSeconds": self._count("StopTimeout", self.body, STOP_SECONDS, 0, 86400),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
        }
        if self.volumes:
            spec["volumes"] = self.volumes
        if affinity:
            spec["affinity"] = affinity
        if tolerations:
            spec["tolerations"] = tolerations
        if self.around.platform:
            spec["nodeSelector"] = {"kubernetes.io/arch": self._architecture()}
        if self.host.get("Init"):
            spec["shareProcessNamespace"] = True  # then the pause process is the first one
        # Docker takes any host name, Kubernetes only a DNS label
        hostname = str(self.body.get("Hostname") or "")
        if hostname:
            if not is_dns_label(hostname):
                self.fault("Hostname", f"invalid host name {hostname!r}", "use a-z, 0-9 and '-', 63 at most")
            spec["hostname"] = hostname
        service = self._service(chosen)
        return ContainerPlan(
            name=chosen,
            pod=self.pod(chosen, spec, 1),
            service=service,
            warnings=tuple(self.warnings),
            faults=tuple(self.faults),
        )

    def _check_image(self) -> None:
        """On a cluster of processes, refuse an image that cannot start, and say where the command really runs."""
        image = self.body.get("Image")
        if not self.around.on_processes or not isinstance(image, str) or not image:
            return
        rule = rule_of(self.around.images, image)
        if image.partition(":")[0] != HOST_IMAGE and rule is None:
            if not self._is_host_env():
                self.fault("Image", cannot_pull(image))
                return
            self.warnings.append(f"the command runs in this machine's environment, not in the image {image}")
        known = rule is not None and (rule.entrypoint or rule.cmd)
        if not self.body.get("Cmd") and not self.body.get("Entrypoint") and not known:
            self.fault("Cmd", "no command: this cluster does not know the image's own", "give a command")

    def _is_host_env(self) -> bool:
        labels = self.body.get("Labels")
        return isinstance(labels, Mapping) and str(labels.get(HOST_ENV_ANNOTATION)) == "true"

    def pod(self, name: str, spec: Mapping[str, Any], start: int) -> Obj:
        body = {key: value for key, value in self.body.items() if key != "NetworkingConfig"}
        notes = {CONFIG_ANNOTATION: json.dumps(body, sort_keys=True, separators=(",", ":"))}
        if self.host.get("AutoRemove"):
            notes[REMOVE_ANNOTATION] = "true"
        if self._is_host_env():
            notes[HOST_ENV_ANNOTATION] = "true"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name if start == 1 else f"{name}-s{start}",
                "namespace": self.around.namespace,
                "labels": {CONTAINER_LABEL: name, START_LABEL: str(start)},
                "annotations": notes,
            },
            "spec": {key: spec[key] for key in _SPEC if key in spec}
            | {"schedulingGates": [{"name": CONTAINER_GATE}]},
        }

    # -- the parts

    def _architecture(self) -> str:
        system, _, rest = self.around.platform.partition("/")
        architecture = _ARCHITECTURES.get(rest.partition("/")[0], "")
        if system != "linux" or not architecture:
            message = f"--platform {self.around.platform!r} is not available"
            self.fault("platform", message, "use linux/amd64 or linux/arm64")
        return architecture

    def _name(self, name: str | None) -> str:
        if name:
            chosen = name.removeprefix("/")
            if len(chosen) > NAME_MAX or not is_dns_label(chosen):
                allowed = f"at most {NAME_MAX} of a-z, 0-9 and '-', with a letter or digit at both ends"
                self.fault("name", f"invalid container name {chosen!r}: use {allowed}")
            return chosen
        image = str(self.body.get("Image") or "container").rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
        base = _MADE_UP.sub("-", image.lower()).strip("-")[:40].strip("-") or "container"
        digest = hashlib.sha256(f"{self.around.salt}/{base}".encode()).digest()
        return f"{base}-" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:6])

    def _container(self) -> tuple[Obj, Obj, list[Obj]]:
        image = self.body.get("Image")
        if not isinstance(image, str) or not image.strip():
            self.fault("Image", "an image is required")
        made: Obj = {"name": MAIN, "image": str(image)}
        if words := self._words("Entrypoint"):
            made["command"] = [unexpanded(word) for word in words]
        if words := self._words("Cmd"):
            made["args"] = [unexpanded(word) for word in words]
        if environment := self._env():
            made["env"] = environment
        if self.body.get("WorkingDir"):
            made["workingDir"] = str(self.body["WorkingDir"])
        if self.body.get("Tty"):
            made["tty"] = True
        if self.body.get("OpenStdin"):
            made["stdin"] = True
            if self.body.get("StdinOnce"):
                made["stdinOnce"] = True
        if security := self._security():
            made["securityContext"] = security
        self.ports = self._ports()
        if self.ports:
            made["ports"] = [
                {"containerPort": port, "protocol": protocol.upper()} for port, protocol in sorted(self.ports)
            ]
        resources, affinity, tolerations = self._resources()
        made["resources"] = resources
        self._storage()
        if self.mounts:
            made["volumeMounts"] = self.mounts
        return made, affinity, tolerations

    def _list(self, where: str) -> list[Any]:
        """A list of HostConfig; a value of another type is a fault."""
        value = self.host.get(where) or []
        if isinstance(value, list):
            return value
        if where not in ("DeviceRequests", "Mounts"):  # `refusals` reports those
            self.fault(f"HostConfig.{where}", f"invalid value {value!r}: use a list")
        return []

    def _words(self, where: str) -> list[str]:
        value = self.body.get(where)
        if isinstance(value, str):
            return ["/bin/sh", "-c", value] if value else []
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.fault(where, f"invalid value {value!r}: use a list of strings")
            return []
        return value

    def _env(self) -> list[Obj]:
        made: dict[str, str] = {}
        value = [] if self.body.get("Env") is None else self.body["Env"]
        if not isinstance(value, list):
            self.fault("Env", f"invalid value {value!r}: use a list of NAME=VALUE")
            return []
        for at, entry in enumerate(value):
            key, equals, text = str(entry).partition("=")
            if not key or "\0" in key:
                self.fault(f"Env[{at}]", f"{entry!r} has no name", "write NAME=VALUE")
            elif equals:
                made[key] = text
        return [{"name": key, "value": unexpanded(text)} for key, text in made.items()]

    def _security(self) -> Obj:
        made: Obj = {}
        user = str(self.body.get("User") or "")
        if user:
            match = _USER.fullmatch(user)
            if not match:
                self.fault("User", f"{user!r} is a name: only numbers are allowed", "write UID or UID:GID")
            else:
                made["runAsUser"] = int(match[1])
                if match[2]:
                    made["runAsGroup"] = int(match[2])
        if self.host.get("ReadonlyRootfs"):
            made["readOnlyRootFilesystem"] = True
        if drop := self._list("CapDrop"):
            made["capabilities"] = {"drop": [str(name) for name in drop]}
        signal = str(self.body.get("StopSignal") or "SIGTERM")
        if signal not in ("SIGTERM", "15", "TERM"):
            self.fault("StopSignal", f"{signal!r} is not available: pods are stopped by SIGTERM", "leave it out")
        return made

    def _restart_policy(self) -> str:
        policy = self.host.get("RestartPolicy")
        policy = policy if isinstance(policy, Mapping) else {}
        name = str(policy.get("Name") or "no")
        known = {"no": "Never", "on-failure": "OnFailure", "always": "Always", "unless-stopped": "Always"}
        if name not in known:
            self.fault("HostConfig.RestartPolicy.Name", f"{name!r} is not one of {', '.join(known)}")
        if name != "no" and self.host.get("AutoRemove"):
            self.fault("HostConfig.AutoRemove", "a container that is restarted never ends", "drop one of the two")
        return known.get(name, "Never")

    def _count(self, where: str, table: Mapping[str, Any], usual: int, least: int, most: int) -> int:
        value = table.get(where)
        if value is None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fault(where, f"{value!r} is not a number of {least} to {most}")
            return usual
        return value

    def _resources(self) -> tuple[Obj, Obj, list[Obj]]:
        nano = self._count("NanoCpus", self.host, 0, 0, 10**15) or self._quota()
        if nano and nano < 10**6:
            self.fault(
                "HostConfig.NanoCpus", f"{nano} is less than a thousandth of a CPU", "ask for 1000000 or more"
            )
        cpu = f"{max(1, nano // 10**6)}m" if nano else self.around.cpu
        memory = self._count("Memory", self.host, 0, 0, 2**60)
        if memory and memory < MEMORY_MIN:
            self.fault("HostConfig.Memory", f"{memory} bytes is less than Docker's own minimum of {MEMORY_MIN}")
        if not memory:
            self.warnings.append(f"the request sets no memory limit: {self.around.memory} is the limit")
        self._check_swap(memory)
        self._check_runtime()
        # the limits are also the requests
        limits: Obj = {"cpu": cpu, "memory": str(memory) if memory else self.around.memory}
        affinity: Obj = {}
        tolerations: list[Obj] = []
        for at, asked in enumerate(self._list("DeviceRequests")):
            where = f"HostConfig.DeviceRequests[{at}]"
            if not isinstance(asked, Mapping):
                if asked in UNSET:  # `refusals` reports the others
                    self.fault(where, f"invalid value {asked!r}: use an object")
                continue
            driver, count = str(asked.get("Driver") or ""), asked.get("Count")
            if asked.get("DeviceIDs"):
                self.fault(f"{where}.DeviceIDs", "the cluster chooses the GPUs", "say how many with Count")
            elif isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= 1024:
                hint = "say how many: docker run --gpus 1" if count == -1 else "use 1 to 1024"
                self.fault(f"{where}.Count", f"invalid number of GPUs {count!r}", hint)
            if driver not in _VENDORS and not is_gpu(driver):
                known = ", ".join(sorted(filter(None, _VENDORS)))
                self.fault(
                    f"{where}.Driver", f"{driver!r} is not known", f"use one of {known}, or a resource's name"
                )
                continue
            resource = _VENDORS.get(driver, driver)
            limits[resource] = str(count)
            tolerations += [{"key": key, "operator": "Exists"} for key in gpu_taints(resource)]
            options = asked.get("Options")
            if isinstance(options, Mapping) and options.get("type"):
                affinity = self._type(f"{where}.Options.type", str(options["type"]), resource)
        return {"limits": limits, "requests": dict(limits)}, affinity, tolerations

    def _check_swap(self, memory: int) -> None:
        """Check the memory options that pods do not have."""
        if (swap := self._count("MemorySwap", self.host, 0, -1, 2**60)) not in (0, memory):
            self.fault(
                "HostConfig.MemorySwap",
                f"--memory-swap {swap} is not available: pods have no swap",
                "use the value of --memory, or leave it out",
            )
        if (reserved := self._count("MemoryReservation", self.host, 0, 0, 2**60)) > memory:
            self.fault(
                "HostConfig.MemoryReservation",
                f"--memory-reservation {reserved} is more than --memory {memory}",
                "raise --memory: all of it is reserved",
            )

    def _check_runtime(self) -> None:
        runtime = self.host.get("Runtime") or self.body.get("Runtime") or "runc"
        if runtime == "nvidia" and not self.host.get("DeviceRequests"):
            message = "--runtime nvidia gives a container no GPU on a cluster"
            self.fault("HostConfig.Runtime", message, "ask for GPUs: docker run --gpus 1")
        elif runtime not in ("runc", "nvidia"):
            self.fault(
                "HostConfig.Runtime", f"--runtime {runtime!r} is not available", "the node sets the runtime"
            )

    def _quota(self) -> int:
        """The CPU limit of older clients (microseconds per period), in billionths of a CPU."""
        quota = self._count("CpuQuota", self.host, 0, -1, 10**12)
        return max(0, quota) * 10**9 // (self._count("CpuPeriod", self.host, 0, 0, 10**6) or 100_000)

    def _type(self, where: str, asked: str, resource: str) -> Obj:
        fitting = [
            gpu_type
            for gpu_type in self.around.gpu_types
            if gpu_type.resource == resource and matches_type(asked, gpu_type.value)
        ]
        if not fitting:
            there = ", ".join(sorted({gpu_type.value for gpu_type in self.around.gpu_types})) or "none"
            self.fault(where, f"GPU type {asked!r} not found on any node", f"available: {there}")
            return {}
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}
            for key, values in sorted(_by_label(fitting).items())
        ]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    def _storage(self) -> None:
        for at, bind in enumerate(self._list("Binds")):
            source, _, rest = str(bind).partition(":")
            target, _, flags = rest.partition(":")
            known = set(flags.split(","))
            if strange := sorted(known - _BIND_FLAGS - {"ro"}):
                self.fault(
                    f"HostConfig.Binds[{at}]", f"the option {strange[0]!r} of -v is not available", "use ro"
                )
            self._mount(f"HostConfig.Binds[{at}]", "", source, target, read_only="ro" in known)
        for at, mount in enumerate(self._list("Mounts")):
            where = f"HostConfig.Mounts[{at}]"
            if not isinstance(mount, Mapping):
                if mount in UNSET:  # `refusals` reports the others
                    self.fault(where, f"invalid value {mount!r}: use an object")
                continue
            kind, target = str(mount.get("Type") or "volume"), str(mount.get("Target") or "")
            if kind == "tmpfs":
                options = mount.get("TmpfsOptions")
                size = options.get("SizeBytes") if isinstance(options, Mapping) else None
                self._memory_folder(where, target, size)
            elif kind == "volume":
                read_only = bool(mount.get("ReadOnly"))
                self._mount(where, ".Source", str(mount.get("Source") or ""), target, read_only=read_only)
            else:
                self.fault(f"{where}.Type", f"{kind!r} is not available", "use a volume: moor volume create NAME")
        tmpfs = self.host.get("Tmpfs")
        if tmpfs is not None and not isinstance(tmpfs, Mapping):
            self.fault("HostConfig.Tmpfs", f"invalid value {tmpfs!r}: use an object")
        for target, flags in tmpfs.items() if isinstance(tmpfs, Mapping) else ():
            self._memory_folder("HostConfig.Tmpfs", str(target), self._tmpfs_size(str(flags or "rw")))
        if size := self._count("ShmSize", self.host, 0, 0, 2**50):
            self._memory_folder("HostConfig.ShmSize", "/dev/shm", size)
        self._anonymous()

    def _tmpfs_size(self, flags: str) -> int | None:
        size = None
        for flag in flags.split(","):
            if match := _TMPFS_SIZE.fullmatch(flag):
                size = int(match[1]) * _SIZE_UNITS[match[2].lower()]
            elif flag != "rw":
                message = f"the option {flag[:40]!r} of --tmpfs is not available"
                self.fault("HostConfig.Tmpfs", message, "use size=64m")
        return size

    def _anonymous(self) -> None:
        """Add an empty folder for each path that has no volume."""
        volumes = self.body.get("Volumes") or {}
        if not isinstance(volumes, Mapping):
            self.fault("Volumes", f"invalid value {volumes!r}: use an object")
            return
        # Docker's Python package names the target of each bind here too
        for target in sorted(volumes.keys() - {mount["mountPath"] for mount in self.mounts}):
            if self._is_target(f"Volumes[{target}]", target):
                self.mounts.append({"name": f"a-{len(self.volumes)}", "mountPath": target})
                self.volumes.append({"name": f"a-{len(self.volumes)}", "emptyDir": {}})

    def _mount(self, where: str, part: str, source: str, target: str, *, read_only: bool) -> None:
        if not is_dns_label(source):
            why = "a path of the node" if source.startswith(("/", ".", "~")) else "no volume's name"
            self.fault(
                where + part, f"{source!r} is {why}", "use a volume: moor volume create NAME, then NAME:/path"
            )
            return
        if self._is_target(where, target):
            name = f"v-{hashlib.sha256(source.encode()).hexdigest()[:10]}"
            if all(volume["name"] != name for volume in self.volumes):
                self.volumes.append({"name": name, "persistentVolumeClaim": {"claimName": source}})
            self.mounts.append({"name": name, "mountPath": target} | ({"readOnly": True} if read_only else {}))

    def _memory_folder(self, where: str, target: str, size: Any) -> None:
        if not self._is_target(where, target):
            return
        name = f"m-{len(self.volumes)}"
        folder: Obj = {"medium": "Memory"}
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
                self.fault(where, f"invalid size {size!r}: use a number of bytes")
            folder["sizeLimit"] = str(size)
        self.volumes.append({"name": name, "emptyDir": folder})
        self.mounts.append({"name": name, "mountPath": target})

    def _is_target(self, where: str, target: str) -> bool:
        if not target.startswith("/") or ":" in target or "\0" in target:
            self.fault(
                where, f"{target!r} is not a valid path in the container", "write an absolute one without ':'"
            )
            return False
        if any(mount["mountPath"] == target for mount in self.mounts):
            self.fault(where, f"two mounts have the same target {target}")
            return False
        return True

    def _ports(self) -> dict[tuple[int, str], int]:
        """(container port, protocol) → port of the Service; 0 if the port is not published."""
        ports: dict[tuple[int, str], int] = {}
        bindings = self.host.get("PortBindings")
        for where, table in (
            ("ExposedPorts", self.body.get("ExposedPorts")),
            ("HostConfig.PortBindings", bindings),
        ):
            if table is None:
                continue
            if not isinstance(table, Mapping):
                self.fault(where, f"invalid value {table!r}: use an object")
                continue
            for key, value in table.items():
                port = _PORT.fullmatch(str(key))
                if not port or not 0 < int(port[1]) < 65536:
                    self.fault(f"{where}[{key}]", f"{key!r} is not a port", "write 8080/tcp")
                    continue
                at = (int(port[1]), port[2] or "tcp")
                ports.setdefault(at, 0)
                if where != "ExposedPorts":
                    ports[at] = self._host_port(f"{where}[{key}]", value, at[0])
        if self.host.get("PublishAllPorts"):
            if not ports:
                self.fault("HostConfig.PublishAllPorts", "the image's ports are not known", "name them: -p 8080")
            ports = {at: port or at[0] for at, port in ports.items()}
        return ports

    def _host_port(self, where: str, value: Any, usual: int) -> int:
        bindings = (
            [binding for binding in value if isinstance(binding, Mapping)] if isinstance(value, list) else []
        )
        for binding in bindings:
            if (address := binding.get("HostIp")) not in _ANY_ADDRESS:
                message = f"the address {str(address)[:40]!r} of -p is not available: a Service has the port"
                self.fault(where, message, "write -p PORT:PORT")
        asked = [binding.get("HostPort") for binding in bindings]
        if len(set(asked)) > 1:
            self.fault(where, "a port of the container is published once", "use -p once for each port")
        text = str(next(filter(None, asked), usual))
        number = integer_or(text, 0)
        if not 0 < number < 65536:
            self.fault(where, f"{text[:40]!r} is not a port", "use 1 to 65535")
            return usual
        return number

    def _service(self, name: str) -> Obj | None:
        published = {at: port for at, port in self.ports.items() if port}
        if not published:
            return None
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name,
                "namespace": self.around.namespace,
                "labels": {CONTAINER_LABEL: name},
            },
            "spec": {
                "selector": {CONTAINER_LABEL: name},
                "ports": [
                    {
                        "name": f"{protocol}-{target}",
                        "port": port,
                        "targetPort": target,
                        "protocol": protocol.upper(),
                    }
                    for (target, protocol), port in sorted(published.items())
                ],
            },
        }


def _by_label(types: Iterable[GpuType]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for gpu_type in types:
        values.setdefault(gpu_type.label, []).append(gpu_type.value)
    return values


def owned_by(service: Obj, pod: Mapping[str, Any]) -> Obj:
    """The Service with the pod as its owner: it is deleted with the pod."""
    made = dict(service)
    made["metadata"] = dict(service["metadata"]) | {"ownerReferences": [owner_reference(pod)]}
    return made
