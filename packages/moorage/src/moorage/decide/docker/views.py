"""A pod in Docker's API: its state, its row of `docker ps`, the body of `docker inspect`, and the filters.

https://docs.docker.com/reference/api/engine/version/v1.41/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from moorage.decide.docker.containers import MAIN, config_of, container_id, container_name, is_ended, is_gated
from moorage.decide.docker.host import image_id
from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.errors import QuantityError
from moorage_kube.meta import annotations_of, condition, is_deleting
from moorage_kube.moments import moment, rfc3339
from moorage_kube.quantity import parse_count, parse_milli
from moorage_kube.resources import Obj

_FILTERS = {"id", "name", "label", "status", "ancestor", "exited", "volume"}


class StateView(Struct, frozen=True, kw_only=True):
    """The state of a container in Docker's words."""

    status: str  # created, running, restarting, removing, exited
    text: str  # as `docker ps` shows it
    exit_code: int = 0
    oom_killed: bool = False
    error: str = ""
    started: datetime | None = None
    finished: datetime | None = None
    restarts: int = 0

    @property
    def is_live(self) -> bool:
        """Whether `docker ps` lists it without `-a`: it has started and not ended, or waits for a node."""
        return self.status in ("running", "restarting", "removing") or bool(self.text and self.status == "created")


def state_of(pod: Mapping[str, Any], now: datetime) -> StateView:
    status = pod.get("status") or {}
    container: Mapping[str, Any] = next(
        (status for status in status.get("containerStatuses") or () if status.get("name") == MAIN), {}
    )
    states = container.get("state") or {}
    restarts = int(container.get("restartCount") or 0)
    ended = states.get("terminated") or {}
    if is_deleting(pod):
        return StateView(status="removing", text="Removal In Progress", restarts=restarts)
    if is_ended(pod):
        code = int(ended.get("exitCode") or (0 if status.get("phase") == "Succeeded" else 137))
        finished = moment(ended.get("finishedAt"))
        ago = f" {_ago(now, finished)} ago" if finished else ""
        reason = str(ended.get("reason") or status.get("reason") or "")
        stopped = status.get("reason") == "DeadlineExceeded"
        return StateView(
            status="exited",
            text=f"Exited ({code}){ago}",
            exit_code=code,
            oom_killed=reason == "OOMKilled",
            error="" if stopped or reason in ("Completed", "Error") else str(status.get("message") or reason),
            started=moment(ended.get("startedAt")),
            finished=finished,
            restarts=restarts,
        )
    if running := states.get("running"):
        started = moment(running.get("startedAt"))
        text = f"Up {_ago(now, started)}" if started else "Up"
        return StateView(status="running", text=text, started=started, restarts=restarts)
    if is_gated(pod):
        return StateView(status="created", text="")
    waiting = states.get("waiting") or {}
    if restarts:
        return StateView(status="restarting", text=f"Restarting: {waiting.get('reason') or ''}", restarts=restarts)
    return StateView(status="created", text=f"Waiting: {_why(pod, waiting)}")


def _why(pod: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    gates = (pod["spec"].get("schedulingGates") or ()) and pod["spec"]["schedulingGates"]
    if gates:
        return "its turn (" + ", ".join(str(gate.get("name")) for gate in gates) + ")"
    if waiting.get("reason"):
        return str(waiting.get("message") or waiting["reason"])
    if (refused := condition(pod, "PodScheduled", status="False")) is not None:
        return str(refused.get("message") or refused.get("reason") or "not enough room on any node")
    return "being started"


def _ago(now: datetime, then: datetime) -> str:
    """A time span in Docker's wording."""
    seconds = max(0, int((now - then).total_seconds()))
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def summary(pod: Mapping[str, Any], service: Mapping[str, Any] | None, now: datetime) -> Obj:
    """One row of `GET /containers/json`."""
    body, state = config_of(pod), state_of(pod, now)
    created = moment(pod["metadata"].get("creationTimestamp"))
    words = [*_listed(body.get("Entrypoint")), *_listed(body.get("Cmd"))]
    return {
        "Id": container_id(pod),
        "Names": [f"/{container_name(pod)}"],
        "Image": str(body.get("Image") or ""),
        "ImageID": image_id(str(body.get("Image") or "")),
        "Command": " ".join(words),
        "Created": int(created.timestamp()) if created else 0,
        "State": state.status,
        "Status": state.text or "Created",
        "Ports": _ports(service),
        "Labels": _labels(pod, body),
        "Mounts": _mounts(pod),
        "HostConfig": {"NetworkMode": "default"},
        "NetworkSettings": {"Networks": {}},
    }


def inspect(pod: Mapping[str, Any], service: Mapping[str, Any] | None, now: datetime) -> Obj:
    """`GET /containers/{id}/json`."""
    body, state = config_of(pod), state_of(pod, now)
    # clients show the command as path and arguments
    words = [*_listed(body.get("Entrypoint")), *_listed(body.get("Cmd"))]
    host = body.get("HostConfig")
    ports: dict[str, Any] = {key: None for key in (body.get("ExposedPorts") or {})}
    for port in _ports(service):
        bound = {"HostIp": port.get("IP", ""), "HostPort": str(port["PublicPort"])}
        ports[f"{port['PrivatePort']}/{port['Type']}"] = [bound]
    # clients rely on the presence of keys, so all are set, also without a value
    return {
        "Id": container_id(pod),
        "Created": _stamp(moment(pod["metadata"].get("creationTimestamp"))),
        "Path": words[0] if words else "",
        "Args": words[1:],
        "Name": f"/{container_name(pod)}",
        "Image": image_id(str(body.get("Image") or "")),
        "RestartCount": state.restarts,
        "Driver": "kubernetes",
        "Platform": "linux",
        "State": {
            "Status": state.status,
            "Running": state.status in ("running", "restarting"),
            "Paused": False,
            "Restarting": state.status == "restarting",
            "OOMKilled": state.oom_killed,
            "Dead": False,
            "Pid": 0,
            "ExitCode": state.exit_code,
            "Error": state.error or (state.text if state.status == "created" else ""),
            "StartedAt": _stamp(state.started),
            "FinishedAt": _stamp(state.finished),
        },
        "Config": {key: value for key, value in body.items() if key != "HostConfig"}
        | {"Labels": _labels(pod, body), "Image": str(body.get("Image") or "")},
        "HostConfig": {
            "LogConfig": {"Type": "json-file", "Config": {}},
            "NetworkMode": "default",
            "Runtime": "runc",
        }
        | (dict(host) if isinstance(host, Mapping) else {})
        | _granted(pod),
        "Mounts": _mounts(pod),
        "NetworkSettings": {
            "IPAddress": str((pod.get("status") or {}).get("podIP") or ""),
            "Ports": ports,
            "Networks": {},
        },
        "Node": {"Name": str(pod["spec"].get("nodeName") or "")},
    }


def _granted(pod: Mapping[str, Any]) -> Obj:
    """The resources of the pod after all guardrails."""
    limits = ((pod["spec"]["containers"][0].get("resources") or {}).get("limits")) or {}
    made: Obj = {}
    try:
        if "memory" in limits:
            made["Memory"] = parse_count(limits["memory"])
        if "cpu" in limits:
            made["NanoCpus"] = parse_milli(limits["cpu"]) * 10**6
    except QuantityError:
        return made
    return made


def _ports(service: Mapping[str, Any] | None) -> list[Obj]:
    if service is None:
        return []
    spec = service.get("spec") or {}
    address = spec.get("clusterIP")
    return [
        ({"IP": address} if address and address != "None" else {})
        | {
            "PrivatePort": port.get("targetPort") or port.get("port"),
            "PublicPort": port.get("port"),
            "Type": str(port.get("protocol") or "TCP").lower(),
        }
        for port in spec.get("ports") or ()
    ]


def _mounts(pod: Mapping[str, Any]) -> list[Obj]:
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    mounts = []
    for mount in pod["spec"]["containers"][0].get("volumeMounts") or ():
        claim = (volumes.get(mount["name"]) or {}).get("persistentVolumeClaim")
        read_only = bool(mount.get("readOnly"))
        if claim:
            mounts.append(
                {
                    "Type": "volume",
                    "Name": claim["claimName"],
                    "Source": claim["claimName"],
                    "Destination": mount["mountPath"],
                    "Mode": "ro" if read_only else "rw",
                    "RW": not read_only,
                }
            )
    return mounts


def _labels(pod: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, str]:
    labels = body.get("Labels")
    made = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {}
    if owner := annotations_of(pod).get(OWNER_ANNOTATION):
        made[OWNER_ANNOTATION] = owner
    return made


def _listed(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(word) for word in value] if isinstance(value, Sequence) else []


def _stamp(when: datetime | None) -> str:
    return rfc3339(when) if when else "0001-01-01T00:00:00Z"


# --- filters of `docker ps --filter`


def matches(row: Mapping[str, Any], filters: Mapping[str, Sequence[str]]) -> bool:
    """Whether a summary passes all filters. Raises ValueError for a filter that is not in _FILTERS."""
    if strange := sorted(set(filters) - _FILTERS):
        raise ValueError(f"invalid filter {strange[0]!r}: use one of {', '.join(sorted(_FILTERS))}")
    return all(
        (all if key == "label" else any)(_passes(row, key, word) for word in wanted)
        for key, wanted in filters.items()
        if wanted
    )


def _passes(row: Mapping[str, Any], key: str, wanted: str) -> bool:
    if key == "id":
        return str(row["Id"]).startswith(wanted)
    if key == "name":
        return any(wanted.removeprefix("/") in name for name in row["Names"])
    if key == "label":
        label, equals, value = wanted.partition("=")
        return label in row["Labels"] and (not equals or row["Labels"][label] == value)
    if key == "status":
        return bool(row["State"] == wanted)
    if key == "exited":
        return str(row["Status"]).startswith(f"Exited ({wanted})")
    if key == "volume":
        return any(wanted in (mount["Name"], mount["Destination"]) for mount in row["Mounts"])
    return bool(row["Image"] == wanted or str(row["Image"]).partition(":")[0] == wanted)
