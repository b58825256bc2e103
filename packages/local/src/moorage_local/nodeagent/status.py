"""Convert the shim's report of a pod to a Kubernetes status. Pure.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.resources import Obj
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.gpus import RESOURCE
from moorage_local.podspecs import container_statuses_of, is_sidecar, qos_class, sidecar_names

RUNTIME = "process://"
KILLED = 137  # exit code of lost processes: the real one is not known
UNKNOWN_END = {
    "exitCode": KILLED,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}
LOST_MESSAGE = "The pod's processes ended while the node agent was stopped; their exit codes are not known"
SHUTDOWN_REASON = "Terminated"
SHUTDOWN_MESSAGE = "Pod was terminated in response to imminent node shutdown."
TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The state of one pod on this machine at one moment.

    `state` is the shim's state.json, None before it started. `problems`: container → (waiting reason, message)
    of containers that cannot start. `rejected`: (reason, message) of a refusal at admission. `lost_at`: since
    when the processes are known to have ended without an outcome.
    """

    admitted_at: str | None = None
    address: str | None = None
    state: Mapping[str, Any] | None = None
    problems: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rejected: tuple[str, str] | None = None
    lost_at: str | None = None
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unready: frozenset[str] = frozenset()  # running containers whose probes do not (yet) succeed
    unstarted: frozenset[str] = frozenset()  # running containers whose startup probe has not yet succeeded
    is_over: bool = False  # the pod was deleted before a container of it ran


def pod_status(pod: Mapping[str, Any], local: Local, *, now: str) -> Obj:
    """The pod's new status; fields of other writers in the old one are preserved. `now` is a `metav1.Time`.

    A phase that is Succeeded or Failed stays.
    """
    # start from the old status: other writers have fields in it
    before: Mapping[str, Any] = pod.get("status") or {}
    spec = pod["spec"]
    status: Obj = dict(before)
    status["qosClass"] = before.get("qosClass") or qos_class(spec)
    if local.admitted_at:
        status["startTime"] = before.get("startTime") or local.admitted_at
    status |= {"hostIP": HOST_IP, "hostIPs": [{"ip": HOST_IP}]}
    # a refused pod has no containers to report
    if local.rejected is not None:
        reason, message = local.rejected
        status |= {"phase": "Failed", "reason": reason, "message": message}
        status["conditions"] = _conditions(pod, status, [], [], local, now)
        return status
    # the address is published with the first report, when the shim runs
    if local.state is not None and local.address:
        status |= {"podIP": local.address, "podIPs": [{"ip": local.address}]}
    reports = {container["name"]: container for container in (local.state or {}).get("containers") or ()}
    init_specs = spec.get("initContainers") or ()
    inits = [
        _container_status(container, reports, spec, local, init=True, is_first=index == 0)
        for index, container in enumerate(init_specs)
    ]
    mains = [
        _container_status(container, reports, spec, local, init=False, is_first=not init_specs)
        for container in spec["containers"]
    ]
    if inits:
        status["initContainerStatuses"] = inits
    status["containerStatuses"] = mains
    # the exit codes of lost processes decide, if all are known
    outcome = (local.state or {}).get("pod") or {}
    codes = _own_ends(spec, reports) if local.lost_at is not None and not outcome.get("stopping") else None
    if codes is not None:  # the containers' exit codes are known, and a lost node does not change them
        local = replace(local, lost_at=None)
    # a final phase never changes
    phase = _phase(local, mains) if codes is None else "Failed" if any(codes) else "Succeeded"
    status["phase"] = before["phase"] if before.get("phase") in TERMINAL else phase
    if local.lost_at is not None:
        status |= {"reason": SHUTDOWN_REASON, "message": LOST_MESSAGE}
    elif outcome.get("reason"):
        status |= {"reason": outcome["reason"], "message": outcome.get("message") or ""}
    status["conditions"] = _conditions(pod, status, inits, mains, local, now)
    return status


def peak_memory(state: Mapping[str, Any] | None, container: str = "") -> int:
    """Return the largest memory of any single container of the pod in bytes; 0 if it is not known.

    `container`: only that container.
    """
    rows = (state or {}).get("containers") or ()
    return max(
        (int(row.get("peakMemoryBytes") or 0) for row in rows if container in ("", row.get("name"))), default=0
    )


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Events (type, reason, message) for the changes of containers between two statuses."""
    old = {status["name"]: status for status in container_statuses_of(before)}
    out: list[tuple[str, str, str]] = []
    for status in container_statuses_of(after):
        name, state = status["name"], status.get("state") or {}
        was = old.get(name) or {}
        if state == (was.get("state") or {}):
            continue
        if state.get("running") or (state.get("terminated") or {}).get("startedAt"):
            started = (state.get("running") or state["terminated"]).get("startedAt")
            if started and not _same_run(was, status):
                out.append(("Normal", "Started", f"Started container {name}"))
        ended = state.get("terminated")
        if ended and ended.get("reason") == "OOMKilled":
            out.append(("Warning", "OOMKilling", f"Container {name}: {ended.get('message') or 'out of memory'}"))
        elif ended and ended.get("reason") == "StartError":
            out.append(("Warning", "Failed", f"Error: {ended.get('message')}"))
        waiting = state.get("waiting")
        if waiting and waiting.get("reason") == "CrashLoopBackOff":
            out.append(("Warning", "BackOff", f"Back-off restarting failed container {name}"))
        elif waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            out.append(("Warning", "Failed", f"Error: {waiting.get('message') or waiting['reason']}"))
    return out


def _same_run(was: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return bool((was.get("state") or {}).get("running")) and was.get("containerID") == new.get("containerID")


def _own_ends(spec: Mapping[str, Any], reports: Mapping[str, Any]) -> list[int] | None:
    """Return the exit codes of the containers if all have ended for good by themselves; else None."""
    ends = [
        ((reports.get(each["name"]) or {}).get("state") or {}).get("terminated") for each in spec["containers"]
    ]
    codes = [int(end["exitCode"]) for end in ends if end]
    is_final = spec.get("restartPolicy") == "Never" or (
        spec.get("restartPolicy") == "OnFailure" and not any(codes)
    )
    return codes if is_final and len(codes) == len(ends) else None


def _phase(local: Local, mains: Sequence[Mapping[str, Any]]) -> str:
    if local.lost_at is not None or local.is_over:
        return "Failed"
    if local.state is None:
        return "Pending"
    phase = str(local.state["pod"]["phase"])
    if phase == "Pending" and any(
        container["state"].get("running") or container.get("lastState") for container in mains
    ):
        return "Running"
    return phase


def _container_status(
    spec: Mapping[str, Any],
    reports: Mapping[str, Any],
    pod_spec: Mapping[str, Any],
    local: Local,
    *,
    init: bool,
    is_first: bool,
) -> Obj:
    """Return the status of one container.

    `is_first`: the container would have run first. Kubelets report it as ended if the pod never ran.
    """
    # without a report the container waits: for its init containers, or for a problem to be solved
    name = spec["name"]
    report = reports.get(name)
    waits_for_init = not init and bool(pod_spec.get("initContainers"))
    if report is None:
        reason, message = local.problems.get(
            name, ("PodInitializing" if waits_for_init else "ContainerCreating", "")
        )
        report = {"state": {"waiting": {"reason": reason, "message": message}}}
    # processes that were lost, or never started, get the state that a kubelet would give
    state = _state(report.get("state") or {})
    if local.lost_at is not None and "terminated" not in state:
        state = {
            "terminated": UNKNOWN_END
            | {"finishedAt": local.lost_at}
            | ({"startedAt": state["running"]["startedAt"]} if "running" in state else {})
        }
    elif local.is_over and is_first:
        state = {"terminated": dict(UNKNOWN_END)}
    # a container is ready by its probes, an init container by its exit code
    running = "running" in state
    sidecar = init and is_sidecar(spec)
    if init and not sidecar:
        ready = (state.get("terminated") or {}).get("exitCode") == 0
    else:
        ready = running and name not in local.unready and name not in local.unstarted
    # the report's details, and the devices for `allocatedResourcesStatus`
    image = spec.get("image") or ""
    out: Obj = {
        "name": name,
        "image": image,
        "imageID": f"{RUNTIME}{image}" if report.get("containerID") else "",
        "ready": ready,
        "started": running and name not in local.unstarted,
        "restartCount": int(report.get("restartCount") or 0),
        "state": state,
        "lastState": _state(report.get("lastState") or {}),
    }
    if report.get("containerID"):
        out["containerID"] = RUNTIME + report["containerID"]
    if devices := local.devices.get(name):
        out["allocatedResourcesStatus"] = [
            {
                "name": RESOURCE,
                "resources": [{"resourceID": device, "health": "Healthy"} for device in devices],
            }
        ]
    return out


def _state(report: Mapping[str, Any]) -> Obj:
    if running := report.get("running"):
        return {"running": {"startedAt": _time(running["startedAt"])}}
    if ended := report.get("terminated"):
        out: Obj = {
            "exitCode": int(ended["exitCode"]),
            "reason": ended["reason"],
            "startedAt": _time(ended["startedAt"]),
            "finishedAt": _time(ended["finishedAt"]),
        }
        if ended.get("signal"):
            out["signal"] = int(ended["signal"])
        if ended.get("message"):
            out["message"] = ended["message"]
        if ended.get("containerID"):
            out["containerID"] = RUNTIME + ended["containerID"]
        return {"terminated": out}
    if waiting := report.get("waiting"):
        out = {"reason": waiting["reason"]}
        if waiting.get("message"):
            out["message"] = waiting["message"]
        return {"waiting": out}
    return {}


def _time(text: str) -> str:
    return rfc3339(parse_rfc3339(text))


def _conditions(
    pod: Mapping[str, Any],
    status: Mapping[str, Any],
    inits: Sequence[Mapping[str, Any]],
    mains: Sequence[Mapping[str, Any]],
    local: Local,
    now: str,
) -> list[Obj]:
    conditions: dict[str, Obj] = {
        condition["type"]: dict(condition) for condition in (pod.get("status") or {}).get("conditions") or ()
    }
    over = status["phase"] in TERMINAL
    succeeded = status["phase"] == "Succeeded"
    if "PodScheduled" not in conditions:
        _set(conditions, "PodScheduled", True, now)
    if local.rejected is None:
        _set(conditions, "PodReadyToStartContainers", local.state is not None and not over, now)
        # init containers: all have ended, sidecars have started
        sidecars = sidecar_names(pod["spec"])
        undone = [
            container["name"]
            for container in inits
            if not container["ready"] and container["name"] not in sidecars
        ]
        undone += [
            container["name"] for container in inits if not container["started"] and container["name"] in sidecars
        ]
        begun = any("waiting" not in container["state"] or container["lastState"] for container in mains)
        if succeeded or begun or not undone:
            _set(conditions, "Initialized", True, now, reason="PodCompleted" if succeeded else "")
        else:
            message = f"containers with incomplete status: [{' '.join(undone)}]"
            _set(conditions, "Initialized", False, now, reason="ContainersNotInitialized", message=message)
        # containers, and the gates that others open
        unready = [container["name"] for container in mains if not container["ready"]]
        if succeeded or over:
            why = "PodCompleted" if succeeded else "PodFailed"
            _set(conditions, "ContainersReady", False, now, reason=why)
            _set(conditions, "Ready", False, now, reason=why)
        elif unready:
            message = f"containers with unready status: [{' '.join(unready)}]"
            _set(conditions, "ContainersReady", False, now, reason="ContainersNotReady", message=message)
            _set(conditions, "Ready", False, now, reason="ContainersNotReady", message=message)
        else:
            _set(conditions, "ContainersReady", True, now)
            gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
            shut = [gate for gate in gates if conditions.get(gate, {}).get("status") != "True"]
            message = f'corresponding condition of pod readiness gate "{shut[0]}" is not "True"' if shut else ""
            _set(
                conditions,
                "Ready",
                not shut,
                now,
                reason="ReadinessGatesNotReady" if shut else "",
                message=message,
            )
    # a pod that was lost, or stopped with its node
    stopped = ((local.state or {}).get("pod") or {}).get("reason") == SHUTDOWN_REASON
    if (local.lost_at is not None or stopped) and conditions.get("DisruptionTarget", {}).get("status") != "True":
        message = LOST_MESSAGE if local.lost_at is not None else SHUTDOWN_MESSAGE
        _set(conditions, "DisruptionTarget", True, now, reason="TerminationByKubelet", message=message)
    return list(conditions.values())


def _set(
    conditions: dict[str, Obj], kind: str, true: bool, now: str, *, reason: str = "", message: str = ""
) -> None:
    status = "True" if true else "False"
    old = conditions.get(kind) or {}
    since = old.get("lastTransitionTime") or now if old.get("status") == status else now
    new: Obj = {name: value for name, value in old.items() if name in ("lastProbeTime", "observedGeneration")}
    new |= {"type": kind, "status": status, "lastTransitionTime": since}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    conditions[kind] = new
