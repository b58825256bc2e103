from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.meta import condition
from moorage_kube.testing import builders
from moorage_local.nodeagent.probes import Probe, Verdict, port_of, probes_of
from moorage_local.nodeagent.status import (
    LOST_MESSAGE,
    SHUTDOWN_REASON,
    Local,
    peak_memory,
    pod_status,
    transitions,
)

NOW = "2026-11-21T12:00:00Z"
LATER = "2026-11-21T13:00:00Z"
T0, T1 = "2026-11-21T11:00:00.250000Z", "2026-11-21T11:30:00.750000Z"


def a_pod(status: Any = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "localhost/host"}
    return builders.a_pod(uid="u", container=container, spec=spec, status=status or {"phase": "Pending"})


def terminated(code: int, reason: str = "", **more: Any) -> dict[str, Any]:
    ended = {
        "startedAt": T0,
        "finishedAt": T1,
        "exitCode": code,
        "signal": 0,
        "reason": reason or ("Error" if code else "Completed"),
        "message": "",
        "containerID": "u/c/0",
    }
    return {"terminated": ended | more}


RUNNING = {"running": {"startedAt": T0}}


def a_state(container: Any = None, *, phase: str = "Running", inits: Any = (), **pod: Any) -> dict[str, Any]:
    main = {"name": "c", "restartCount": 0, "attempt": 0, "containerID": "u/c/0", "state": container or RUNNING}
    over = {"outcome": phase, "finishedAt": T1} if phase in ("Succeeded", "Failed") else {}
    return {"pod": {"phase": phase, "startedAt": T0} | over | pod, "containers": [*inits, main]}


def conditions(status: Any) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def test_pod_that_waits_for_its_start() -> None:
    status = pod_status(a_pod(), Local(admitted_at=NOW), now=NOW)
    assert status == {
        "phase": "Pending",
        "qosClass": "BestEffort",
        "startTime": NOW,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "containerStatuses": [
            {
                "name": "c",
                "image": "localhost/host",
                "imageID": "",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "lastState": {},
            }
        ],
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW},
            {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": NOW},
            {"type": "Initialized", "status": "True", "lastTransitionTime": NOW},
            {
                "type": "ContainersReady",
                "status": "False",
                "lastTransitionTime": NOW,
                "reason": "ContainersNotReady",
                "message": "containers with unready status: [c]",
            },
            {
                "type": "Ready",
                "status": "False",
                "lastTransitionTime": NOW,
                "reason": "ContainersNotReady",
                "message": "containers with unready status: [c]",
            },
        ],
    }


def test_running_container_is_named_as_a_container_runtime_would() -> None:
    local = Local(admitted_at=NOW, address="127.64.0.7", state=a_state(), devices={"c": ("GPU-n1-0", "GPU-n1-1")})
    status = pod_status(a_pod(), local, now=NOW)
    assert (status["phase"], status["podIP"]) == ("Running", "127.64.0.7")
    assert status["podIPs"] == [{"ip": "127.64.0.7"}]
    assert status["containerStatuses"] == [
        {
            "name": "c",
            "image": "localhost/host",
            "imageID": "process://localhost/host",
            "containerID": "process://u/c/0",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-21T11:00:00Z"}},
            "lastState": {},
            "allocatedResourcesStatus": [
                {
                    "name": "nvidia.com/gpu",
                    "resources": [
                        {"resourceID": "GPU-n1-0", "health": "Healthy"},
                        {"resourceID": "GPU-n1-1", "health": "Healthy"},
                    ],
                }
            ],
        }
    ]
    assert conditions(status)["Ready"] == "True"


@pytest.mark.parametrize(
    ("code", "phase", "why", "initialized"),
    [(0, "Succeeded", "PodCompleted", "PodCompleted"), (3, "Failed", "PodFailed", None)],
)
def test_pod_that_has_ended(code: int, phase: str, why: str, initialized: str | None) -> None:
    status = pod_status(a_pod(), Local(state=a_state(terminated(code), phase=phase)), now=NOW)
    assert status["phase"] == phase
    assert status["containerStatuses"][0]["state"]["terminated"] == {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "startedAt": "2026-11-21T11:00:00Z",
        "finishedAt": "2026-11-21T11:30:00Z",
        "containerID": "process://u/c/0",
    }
    by_type = {entry["type"]: entry for entry in status["conditions"]}
    assert (by_type["Ready"]["reason"], by_type["Initialized"].get("reason")) == (why, initialized)


def test_out_of_memory_is_told_with_its_message() -> None:
    ended = terminated(137, "OOMKilled", signal=9, message="memory limit 512Mi exceeded; peak 530Mi")
    status = pod_status(a_pod(), Local(state=a_state(ended, phase="Failed")), now=NOW)
    reported = status["containerStatuses"][0]["state"]["terminated"]
    assert (reported["reason"], reported["signal"], reported["message"]) == (
        "OOMKilled",
        9,
        "memory limit 512Mi exceeded; peak 530Mi",
    )


def test_lost_pod_failed_by_its_node_and_not_by_itself() -> None:
    status = pod_status(a_pod({"phase": "Running"}), Local(state=a_state(), lost_at=LATER), now=LATER)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Terminated", LOST_MESSAGE)
    assert status["containerStatuses"][0]["state"] == {
        "terminated": {
            "exitCode": 137,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
            "startedAt": "2026-11-21T11:00:00Z",
            "finishedAt": LATER,
        }
    }
    assert condition({"status": status}, "DisruptionTarget") == {
        "type": "DisruptionTarget",
        "status": "True",
        "lastTransitionTime": LATER,
        "reason": "TerminationByKubelet",
        "message": LOST_MESSAGE,
    }


def test_a_lost_pod_whose_containers_had_ended_keeps_their_exit_codes() -> None:
    pod = a_pod({"phase": "Running"})
    pod["spec"]["restartPolicy"] = "Never"
    status = pod_status(pod, Local(state=a_state(terminated(0)), lost_at=LATER), now=LATER)
    assert (status["phase"], status.get("reason")) == ("Succeeded", None)
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert condition({"status": status}, "DisruptionTarget") is None
    status = pod_status(pod, Local(state=a_state(terminated(3)), lost_at=LATER), now=LATER)
    assert (status["phase"], condition({"status": status}, "DisruptionTarget")) == ("Failed", None)
    stopping = a_state(terminated(0))
    stopping["pod"]["stopping"] = "asked"
    assert pod_status(pod, Local(state=stopping, lost_at=LATER), now=LATER)["phase"] == "Failed"


def test_shutdown_is_a_disruption_and_the_first_cause_of_one_stays() -> None:
    state = a_state(terminated(0), phase="Failed", reason=SHUTDOWN_REASON, message="m")
    status = pod_status(a_pod(), Local(state=state), now=NOW)
    assert status["reason"] == "Terminated"
    assert condition({"status": status}, "DisruptionTarget")["reason"] == "TerminationByKubelet"  # type: ignore[index]
    preempted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    status = pod_status(a_pod({"phase": "Running", "conditions": [preempted]}), Local(state=state), now=NOW)
    assert condition({"status": status}, "DisruptionTarget") == preempted


def test_deadline_is_no_disruption() -> None:
    state = a_state(terminated(143), phase="Failed", reason="DeadlineExceeded", message="m")
    status = pod_status(a_pod(), Local(state=state), now=NOW)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert condition({"status": status}, "DisruptionTarget") is None


def test_refused_pod_fails_with_the_reason() -> None:
    status = pod_status(a_pod(), Local(admitted_at=NOW, rejected=("OutOfcpu", "too little")), now=NOW)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "OutOfcpu", "too little")


def test_problem_is_shown_at_the_container() -> None:
    status = pod_status(a_pod(), Local(problems={"c": ("ImageNotRunnable", "no")}), now=NOW)
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ImageNotRunnable", "message": "no"}}


UNKNOWN_END = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}


def test_a_pod_that_is_deleted_before_it_ran_has_failed() -> None:
    status = pod_status(a_pod(), Local(problems={"c": ("ImageNotRunnable", "no")}, is_over=True), now=NOW)
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"] == {"terminated": UNKNOWN_END}
    assert conditions(status)["Ready"] == "False"


def test_of_a_pod_that_is_deleted_before_it_ran_the_first_init_container_ends_alone() -> None:
    inits = [{"name": name, "image": "localhost/host"} for name in ("i", "j")]
    status = pod_status(a_pod(initContainers=inits), Local(is_over=True), now=NOW)
    states = [row["state"] for row in (*status["initContainerStatuses"], *status["containerStatuses"])]
    assert status["phase"] == "Failed"
    assert states[0] == {"terminated": UNKNOWN_END}
    assert ["waiting" in state for state in states] == [False, True, True]


def test_phase_that_is_final_stays() -> None:
    status = pod_status(a_pod({"phase": "Failed", "reason": "Evicted"}), Local(state=a_state()), now=NOW)
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")


def test_back_off_is_running_with_the_last_state() -> None:
    state = a_state({"waiting": {"reason": "CrashLoopBackOff", "message": "m"}})
    state["containers"][0] |= {"lastState": terminated(1), "restartCount": 2}
    status = pod_status(a_pod(), Local(state=state), now=NOW)
    container = status["containerStatuses"][0]
    assert (status["phase"], container["restartCount"]) == ("Running", 2)
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}}
    assert container["lastState"]["terminated"]["exitCode"] == 1
    assert conditions(status)["Ready"] == "False"


@pytest.mark.parametrize(
    ("state", "initialized"),
    [(RUNNING, "False"), (terminated(1), "False"), (terminated(0), "True")],
)
def test_initialized_when_every_init_container_has_succeeded(state: Any, initialized: str) -> None:
    pod = a_pod(initContainers=[{"name": "i", "image": "localhost/host"}])
    local = Local(
        state=a_state(
            {"waiting": {"reason": "PodInitializing"}}, phase="Pending", inits=[{"name": "i", "state": state}]
        )
    )
    assert conditions(pod_status(pod, local, now=NOW))["Initialized"] == initialized


def test_readiness_gates_hold_the_pod_back() -> None:
    pod = a_pod(readinessGates=[{"conditionType": "x/y"}])
    assert conditions(pod_status(pod, Local(state=a_state()), now=NOW))["Ready"] == "False"
    pod["status"]["conditions"] = [{"type": "x/y", "status": "True"}]
    assert conditions(pod_status(pod, Local(state=a_state()), now=NOW))["Ready"] == "True"


def test_probes_hold_the_container_back() -> None:
    for local in (
        Local(state=a_state(), unready=frozenset({"c"})),
        Local(state=a_state(), unstarted=frozenset({"c"})),
    ):
        status = pod_status(a_pod(), local, now=NOW)
        assert status["containerStatuses"][0]["ready"] is False
        assert conditions(status)["ContainersReady"] == "False"


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (None, RUNNING, ["Started"]),
        (RUNNING, RUNNING, []),
        (RUNNING, terminated(0), []),
        (None, terminated(0), ["Started"]),
        (RUNNING, terminated(137, "OOMKilled"), ["OOMKilling"]),
        (RUNNING, {"waiting": {"reason": "CrashLoopBackOff"}}, ["BackOff"]),
        (None, {"waiting": {"reason": "ContainerCreating"}}, []),
        (None, {"waiting": {"reason": "ImageNotRunnable", "message": "no"}}, ["Failed"]),
        (None, terminated(128, "StartError", startedAt=""), ["Failed"]),
    ],
)
def test_events_tell_what_happened(before: Any, after: Any, want: list[str]) -> None:
    def status(state: Any) -> Any:
        return {"containerStatuses": [{"name": "c", "containerID": "x", "state": state}]} if state else {}

    assert [reason for _, reason, _ in transitions(status(before), status(after))] == want


def test_peak_is_that_of_the_largest_container() -> None:
    assert peak_memory({"containers": [{"peakMemoryBytes": 5}, {"peakMemoryBytes": 7}, {}]}) == 7
    assert peak_memory(None) == 0


states = st.one_of(
    st.just(RUNNING),
    st.builds(terminated, st.integers(0, 255)),
    st.sampled_from([{"waiting": {"reason": reason}} for reason in ("PodInitializing", "CrashLoopBackOff")]),
)
shim_states = st.none() | st.builds(
    lambda state, phase: a_state(state, phase=phase),
    states,
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
)
locals_ = st.builds(
    Local,
    admitted_at=st.none() | st.just(NOW),
    state=shim_states,
    rejected=st.none() | st.just(("OutOfcpu", "m")),
    lost_at=st.none() | st.just(NOW),
    unready=st.sampled_from([frozenset(), frozenset({"c"})]),
)


@given(locals_)
def test_status_is_settled_once_it_is_published(local: Local) -> None:
    pod = a_pod()
    first = pod_status(pod, local, now=NOW)
    assert pod_status(pod | {"status": json.loads(json.dumps(first))}, local, now=LATER) == first


@given(locals_, locals_)
def test_final_phase_and_times_of_unchanged_conditions_stay(earlier: Local, later: Local) -> None:
    pod = a_pod()
    first = pod_status(pod, earlier, now=NOW)
    second = pod_status(pod | {"status": first}, later, now=LATER)
    if first["phase"] in ("Succeeded", "Failed") and later.rejected is None:
        assert second["phase"] == first["phase"]
    old = {each["type"]: each for each in first["conditions"]}
    for each in second["conditions"]:
        same = old.get(each["type"], {}).get("status") == each["status"]
        assert each["lastTransitionTime"] == (NOW if same else LATER)


@given(locals_)
def test_ready_means_running_and_all_containers_ready(local: Local) -> None:
    status = pod_status(a_pod(), local, now=NOW)
    if conditions(status).get("Ready") == "True":
        assert status["phase"] not in ("Succeeded", "Failed")
        assert all(
            container["ready"] and "running" in container["state"] for container in status["containerStatuses"]
        )


@given(locals_)
def test_failed_pods_of_the_node_have_every_container_ended(local: Local) -> None:
    status = pod_status(a_pod(), local, now=NOW)
    if local.lost_at and not local.rejected:
        assert all("terminated" in container["state"] for container in status["containerStatuses"])


def test_probe_thresholds() -> None:
    probe = Probe(
        kind="readinessProbe",
        action={},
        delay_seconds=0,
        period_seconds=1,
        timeout_seconds=1,
        successes=2,
        failures=3,
    )
    verdict = Verdict(probe)
    seen = [(verdict.add(success), verdict.good) for success in (True, True, True, False, False, True, False)]
    assert seen == [
        (False, None),
        (True, True),
        (False, True),
        (False, True),
        (False, True),
        (False, True),
        (False, True),
    ]
    assert [verdict.add(False) for _ in range(3)] == [False, True, False]


def test_probe_defaults_and_named_ports() -> None:
    container = {
        "ports": [{"name": "web", "containerPort": 8080}],
        "livenessProbe": {"tcpSocket": {"port": "web"}},
        "readinessProbe": {"grpc": {"port": 1}},
    }
    (probe,) = probes_of(container)
    assert (probe.period_seconds, probe.timeout_seconds, probe.successes, probe.failures) == (10, 1, 1, 3)
    assert (port_of(container, "web"), port_of(container, 5), port_of(container, "6")) == (8080, 5, 6)
    with pytest.raises(ValueError, match="port x not found"):
        port_of(container, "x")


@pytest.mark.parametrize(("container", "peak"), [("", 7), ("c", 5), ("wait", 7), ("other", 0)])
def test_the_peak_is_that_of_the_largest_container_or_of_a_chosen_one(container: str, peak: int) -> None:
    rows = [{"name": "c", "peakMemoryBytes": 5}, {"name": "wait", "peakMemoryBytes": 7}, {"name": "new"}]
    assert peak_memory({"containers": rows}, container) == peak
