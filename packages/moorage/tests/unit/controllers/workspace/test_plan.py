"""What a workspace needs next: every case one line, and properties over interrupted passes."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.controllers.workspace.objects import make_secret
from moorage.controllers.workspace.plan import Seen, Verb, gpu_terms, merge_of, plan, schedule_hash
from moorage.decide.runs.gputypes import GpuType
from moorage.decide.runs.kueue import QueueWait
from moorage.model.names import SCHEDULED_ANNOTATION
from moorage.model.workspace import BUILT_IN, Platform, Schedule, make_token, parse_workspace
from moorage_kube.resources import DEPLOYMENTS, ENDPOINTSLICES, INGRESSES, PVCS, SERVICES

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)  # a Monday
PLATFORM = Platform(scheme="http", domain="localhost", port=8081, ingress_class="moorage-local")
GATEWAY = {
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080}],
    "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
}
FIELDS = {
    ("Service", "ws-lab"): "service",
    ("Service", "ws-lab-gateway"): "gateway_service",
    ("EndpointSlice", "ws-lab-gateway"): "gateway_slice",
    ("Ingress", "ws-lab"): "ingress",
    ("Deployment", "ws-lab"): "deployment",
    ("PersistentVolumeClaim", "lab-home"): "home",
}


def a_workspace(*, annotations=None, status=None, name="lab", **spec):
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "12345678-aaaa",
            "generation": 3,
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-20T08:00:00Z",
            "labels": {"moorage.dev/owner": "ada"},
            "annotations": {"moorage.dev/owner": "ada", **(annotations or {})},
        },
        "spec": {"type": "jupyterlab", "running": True} | spec,
        "status": status or {},
    }


def seen_of(obj, **more):
    view = parse_workspace(obj)
    base = {"app": view.spec.app or BUILT_IN.get(view.spec.type), "platform": PLATFORM, "gateway": GATEWAY}
    return Seen(view=view, obj=obj, now=NOON, **(base | {"templates": tuple(sorted(BUILT_IN))} | more))


def a_pod(*, ready=False, node="node-1", name="ws-lab-abc-1", waiting=None, **more):
    conditions = [{"type": "PodScheduled", "status": "True" if node else "False", "message": more.pop("said", "")}]
    if ready:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-23T11:00:00Z"})
    status = {"phase": "Running" if node else "Pending", "conditions": conditions}
    if waiting is not None:
        status["containerStatuses"] = [
            {"name": "workspace", "image": "x", "state": waiting} | more.pop("also", {})
        ]
    meta = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-11-23T10:00:00Z"}
    return {"metadata": meta | more.pop("meta", {}), "spec": {"nodeName": node} | more, "status": status}


def after(seen, step):
    """The world once a step is done."""
    if step.verb is Verb.SECRET:
        return replace(seen, secret_made=True)
    if step.resource is None:
        obj = copy.deepcopy(seen.obj)
        notes = obj["metadata"].setdefault("annotations", {})
        for key, value in step.obj["metadata"]["annotations"].items():
            if value is None:
                notes.pop(key, None)
            else:
                notes[key] = value
        obj["spec"] |= step.obj.get("spec") or {}
        return replace(seen, obj=obj, view=parse_workspace(obj))
    name = step.name or step.obj["metadata"]["name"]
    field = FIELDS[step.resource.kind, name]
    if step.verb is Verb.DELETE:
        return replace(seen, **{field: None})
    found = copy.deepcopy(getattr(seen, field) or {"metadata": {"uid": f"uid-{name}"}})
    made = copy.deepcopy(step.obj)
    meta = found["metadata"] | made.pop("metadata")
    return replace(seen, **{field: found | made | {"metadata": meta}})


def settle(seen):
    for _ in range(10):
        decided = plan(seen)
        if not decided.steps:
            return seen
        for step in decided.steps:
            seen = after(seen, step)
    raise AssertionError(f"it does not settle: {plan(seen).steps}")


def of_kind(seen, kind):
    return [step.obj for step in plan(seen).steps if step.resource is not None and step.resource.kind == kind]


def phase(seen):
    status = plan(seen).status
    return status["phase"], (status.get("waitingFor") or {}).get("reason", "")


def test_a_new_workspace_gets_all_it_needs_and_the_pod_last():
    steps = plan(seen_of(a_workspace())).steps
    assert [(step.verb, step.resource) for step in steps] == [
        (Verb.SECRET, None),
        (Verb.CREATE, PVCS),
        (Verb.CREATE, SERVICES),
        (Verb.CREATE, SERVICES),
        (Verb.CREATE, ENDPOINTSLICES),
        (Verb.CREATE, INGRESSES),
        (Verb.CREATE, DEPLOYMENTS),
    ]


def test_all_but_the_home_goes_with_the_workspace():
    for step in plan(seen_of(a_workspace())).steps:
        owners = step.obj.get("metadata", {}).get("ownerReferences")
        assert bool(owners) == (step.verb is not Verb.SECRET and step.resource is not PVCS)
    secret = make_secret(parse_workspace(a_workspace()), a_workspace(), make_token(b"k" * 32, "u"))
    assert secret["metadata"]["ownerReferences"][0]["name"] == "lab"


def test_the_pod_runs_jupyterlab_as_its_guest_and_with_its_own_token():
    (made,) = of_kind(seen_of(a_workspace(resources={"cpu": "2", "memory": "8Gi"})), "Deployment")
    assert made["spec"]["strategy"] == {"type": "Recreate"}
    assert made["metadata"]["labels"]["moorage.dev/owner"] == "ada"
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["jupyter", "lab"]
    assert "--ip=$(POD_IP)" in container["args"]
    assert not any("token" in arg.lower() for arg in container["args"])  # others on the node read command lines
    env = {one["name"]: one for one in container["env"]}
    assert env["MOORAGE_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "ws-lab-12345678", "key": "token"}
    assert env["JUPYTER_TOKEN"]["value"] == "$(MOORAGE_TOKEN)"
    names = [one["name"] for one in container["env"]]
    assert names.index("MOORAGE_TOKEN") < names.index("JUPYTER_TOKEN")  # only what stands before is put in
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "2", "memory": "8Gi"}
    assert pod["automountServiceAccountToken"] is False


def test_a_guest_of_a_machine_names_it_and_brings_no_size_of_its_own():
    (made,) = of_kind(seen_of(a_workspace(machine={"group": "gpu", "type": "large"})), "Deployment")
    template = made["spec"]["template"]
    assert (
        template["metadata"]["labels"]
        | {
            "moorage.dev/machine-group": "gpu",
            "moorage.dev/machine-type": "large",
            "moorage.dev/machine-container": "workspace",
        }
        == template["metadata"]["labels"]
    )
    assert "resources" not in template["spec"]["containers"][0]
    assert "affinity" not in template["spec"]


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        pytest.param("a100", ["NVIDIA-A100-SXM4-80GB"], id="by a part of its name"),
        pytest.param("tesla-t4", ["Tesla-T4"], id="whatever the case"),
    ],
)
def test_a_gpu_type_is_found_as_a_user_names_it(asked, values):
    known = [GpuType("l", "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu", 1, 2), GpuType("l", "Tesla-T4", "r", 1, 1)]
    terms = gpu_terms(asked, known)
    assert terms == [{"matchExpressions": [{"key": "l", "operator": "In", "values": values}]}]


def test_a_gpu_type_that_no_node_has_is_said_and_waited_for():
    seen = seen_of(a_workspace(resources={"gpus": 1, "gpuType": "h900"}))
    assert phase(seen) == ("Waiting", "UnknownGpuType")
    assert of_kind(seen, "Deployment") == []


@pytest.mark.parametrize(
    ("access", "platform", "service"),
    [
        pytest.param("", PLATFORM, "ws-lab-gateway", id="by login where there is a domain"),
        pytest.param("login", PLATFORM, "ws-lab-gateway", id="by login"),
        pytest.param("token", PLATFORM, "ws-lab", id="by token"),
        pytest.param("", Platform(), None, id="without a domain: no Ingress at all"),
    ],
)
def test_the_ingress_leads_where_access_says(access, platform, service):
    seen = seen_of(a_workspace(access=access), platform=platform)
    paths = [path for one in of_kind(seen, "Ingress") for path in one["spec"]["rules"][0]["http"]["paths"]]
    by_login = service == "ws-lab-gateway"
    want = ["/", *(["/.moorage/enter"] if by_login else [])] if service else []
    assert [path["path"] for path in paths] == want, "the path of codes is named, by login"
    assert {path["backend"]["service"]["name"] for path in paths} == ({service} if service else set())
    if service:
        (ingress,) = of_kind(seen, "Ingress")
        assert ingress["spec"]["rules"][0]["host"] == "lab--team.localhost"
        assert ingress["spec"]["ingressClassName"] == "moorage-local"


def test_other_access_takes_the_way_through_the_gateway_away():
    seen = settle(seen_of(a_workspace()))
    obj = copy.deepcopy(seen.obj)
    obj["spec"]["access"] = "token"
    seen = replace(seen, obj=obj, view=parse_workspace(obj))
    steps = plan(seen).steps
    assert {(step.verb, step.resource.kind) for step in steps} == {
        (Verb.DELETE, "EndpointSlice"),
        (Verb.DELETE, "Service"),
        (Verb.PATCH, "Ingress"),
    }
    assert settle(seen).gateway_service is None


def test_the_gateway_that_moved_is_followed():
    seen = settle(seen_of(a_workspace()))
    moved = copy.deepcopy(GATEWAY)
    moved["endpoints"] = [{"addresses": ["10.0.0.9"], "conditions": {"ready": True}}]
    (step,) = plan(replace(seen, gateway=moved)).steps
    assert step.obj["endpoints"][0]["addresses"] == ["10.0.0.9"]
    assert step.obj["metadata"]["uid"] == "uid-ws-lab-gateway"


def test_a_stopped_workspace_has_no_pod_and_makes_no_home():
    seen = seen_of(a_workspace(running=False))
    assert of_kind(seen, "PersistentVolumeClaim") == []
    (made,) = of_kind(seen, "Deployment")
    assert made["spec"]["replicas"] == 0
    assert phase(seen) == ("Stopped", "")


def test_stopping_scales_to_nothing_and_leaves_the_template():
    seen = settle(seen_of(a_workspace()))
    obj = copy.deepcopy(seen.obj)
    obj["spec"]["running"] = False
    seen = replace(seen, obj=obj, view=parse_workspace(obj), pods=(a_pod(ready=True),))
    (step,) = plan(seen).steps
    assert (step.verb, step.obj["spec"]["replicas"]) == (Verb.REPLACE, 0)
    assert step.obj["spec"]["template"] == seen.deployment["spec"]["template"]
    assert phase(seen) == ("Stopping", "")


def test_another_image_replaces_the_template_and_a_newer_moorage_does_not():
    seen = settle(seen_of(a_workspace()))
    changed = copy.deepcopy(seen.deployment)
    changed["spec"]["template"]["spec"]["containers"][0]["args"] = ["as a former Moorage had it"]
    assert plan(replace(seen, deployment=changed)).steps == ()
    obj = copy.deepcopy(seen.obj)
    obj["spec"]["image"] = "registry/mine:2"
    (step,) = plan(replace(seen, obj=obj, view=parse_workspace(obj), deployment=changed)).steps
    assert step.verb is Verb.REPLACE
    assert step.obj["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/mine:2"


UNSEEN_POD = a_pod(node="") | {"status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    ("more", "want"),
    [
        pytest.param({}, ("Starting", "Starting"), id="no pod yet"),
        pytest.param({"pods": (a_pod(),)}, ("Starting", "Starting"), id="placed"),
        pytest.param({"pods": (a_pod(ready=True),)}, ("Running", ""), id="ready"),
        pytest.param(
            {"pods": (a_pod(node="", said="0/2 nodes are available"),)}, ("Waiting", "Unschedulable"), id="no node"
        ),
        pytest.param({"pods": (UNSEEN_POD,)}, ("Starting", "Starting"), id="not yet seen by the scheduler"),
        pytest.param(
            {"pods": (a_pod(node="", schedulingGates=[{"name": "moorage.dev/machine"}]),), "line": "3 ahead"},
            ("Waiting", "Machine"),
            id="behind the gate of its machine",
        ),
        pytest.param(
            {"pods": (a_pod(node="", schedulingGates=[{"name": "example.org/x"}]),)},
            ("Waiting", "Gate"),
            id="behind another's gate",
        ),
        pytest.param(
            {"pods": (a_pod(node=""),), "missing_claims": ("data",)}, ("Waiting", "Volume"), id="no such volume"
        ),
        pytest.param(
            {"pods": (a_pod(waiting={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),)},
            ("Waiting", "Image"),
            id="the image cannot be pulled",
        ),
        pytest.param(
            {"pods": (a_pod(waiting={"waiting": {"reason": "CreateContainerConfigError"}}),)},
            ("Waiting", "Config"),
            id="a Secret is missing",
        ),
        pytest.param(
            {
                "pods": (
                    a_pod(
                        waiting={"waiting": {"reason": "CrashLoopBackOff"}},
                        also={"lastState": {"terminated": {"exitCode": 1}}, "restartCount": 4},
                    ),
                )
            },
            ("Failed", "Crashes"),
            id="the application ends again and again",
        ),
        pytest.param({"app": None}, ("Failed", "UnknownType"), id="no such template"),
        pytest.param({"fault": "denied"}, ("Failed", "Invalid"), id="the API server will not have it"),
        pytest.param(
            {"pods": (a_pod(meta={"deletionTimestamp": "2026-11-23T11:59:00Z"}),)},
            ("Starting", "Replacing"),
            id="its former pod is ending",
        ),
    ],
)
def test_the_status_says_what_it_waits_for(more, want):
    assert phase(seen_of(a_workspace(), **more)) == want


def test_an_unknown_type_is_told_with_the_known_ones():
    status = plan(seen_of(a_workspace(type="jupiterlab"), app=None, templates=("jupyterlab", "codeserver"))).status
    message = "spec.type: 'jupiterlab' must be one of codeserver, jupyterlab (did you mean jupyterlab?)"
    assert status["waitingFor"]["message"] == message


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ('pods "x" is forbidden: exceeded quota: team, requested: memory=4Gi', ("Waiting", "Quota")),
        ('pods "x" is forbidden: violates PodSecurity', ("Waiting", "Refused")),
    ],
)
def test_a_pod_that_cannot_be_made_is_told_in_the_words_of_the_api(message, want):
    seen = settle(seen_of(a_workspace()))
    failing = copy.deepcopy(seen.deployment)
    failing["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}
    decided = plan(replace(seen, deployment=failing))
    assert (decided.status["phase"], decided.status["waitingFor"]["reason"]) == want
    assert decided.status["waitingFor"]["message"] == message
    assert decided.look_again_in is not None


def test_what_waits_is_looked_at_again_because_the_line_moves():
    seen = seen_of(
        a_workspace(), pods=(a_pod(node="", schedulingGates=[{"name": "moorage.dev/machine"}]),), line="2 ahead"
    )
    assert plan(seen).look_again_in == timedelta(seconds=10)
    assert plan(seen).status["waitingFor"]["message"] == "2 ahead"


def test_a_missing_secret_is_made_again():
    pod = a_pod(waiting={"waiting": {"reason": "CreateContainerConfigError", "message": "secret not found"}})
    seen = replace(settle(seen_of(a_workspace())), pods=(pod,), secret_made=True)
    assert [step.verb for step in plan(seen).steps] == [Verb.SECRET]


def test_an_object_of_somebody_else_is_left_alone():
    other = {"kind": "Deployment", "metadata": {"name": "ws-lab", "uid": "x", "ownerReferences": []}}
    decided = plan(seen_of(a_workspace(), deployment=other))
    assert decided.steps == ()
    assert decided.status["waitingFor"]["reason"] == "NameTaken"


def test_a_status_that_stands_is_not_written_again_and_what_is_gone_is_removed():
    waiting = seen_of(a_workspace(), pods=(a_pod(node="", said="no"),))
    first = plan(waiting).status
    obj = copy.deepcopy(waiting.obj) | {"status": first}
    again = replace(waiting, obj=obj, view=parse_workspace(obj))
    assert plan(again).status is None
    running = plan(replace(again, pods=(a_pod(ready=True),)))
    patch = merge_of(first, running.status)
    assert patch["waitingFor"] is None
    assert patch["readyAt"] == "2026-11-23T11:00:00Z"
    assert [event.reason for event in running.events] == ["Ready"]


# --- schedules

DAYS = {"start": "0 8 * * 1-5", "stop": "0 18 * * 1-5", "timeZone": "UTC"}
SCHEDULE_HASH = schedule_hash(msgspec.convert(DAYS, Schedule))


def scheduled(at, **spec):
    note = f"{SCHEDULE_HASH} {at}"
    return a_workspace(annotations={SCHEDULED_ANNOTATION: note}, schedule=DAYS, **spec)


@pytest.mark.parametrize(
    ("obj", "running", "at"),
    [
        pytest.param(a_workspace(schedule=DAYS), None, "2026-11-23T12:00:00Z", id="new: heard from now on"),
        pytest.param(
            a_workspace(schedule=DAYS, annotations={SCHEDULED_ANNOTATION: "old 2026-11-01T00:00:00Z"}),
            None,
            "2026-11-23T12:00:00Z",
            id="changed: heard from now on",
        ),
        pytest.param(
            scheduled("2026-11-22T00:00:00Z", running=False),
            True,
            "2026-11-23T08:00:00Z",
            id="started this morning",
        ),
        pytest.param(
            scheduled("2026-11-18T00:00:00Z", running=False),
            True,
            "2026-11-23T08:00:00Z",
            id="away for days: the newest moment counts",
        ),
        pytest.param(
            a_workspace(schedule=DAYS, annotations={SCHEDULED_ANNOTATION: f"{SCHEDULE_HASH} ?"}),
            None,
            "2026-11-23T12:00:00Z",
            id="a note nobody can read",
        ),
    ],
)
def test_a_schedule_starts_and_stops_in_one_write(obj, running, at):
    (step,) = plan(seen_of(obj)).steps
    assert step.resource is None
    assert (step.obj.get("spec") or {}).get("running") == running
    assert step.obj["metadata"]["annotations"][SCHEDULED_ANNOTATION].split()[1] == at
    assert step.obj["metadata"]["resourceVersion"] == "7"


def test_a_moment_is_heard_once_so_that_a_hand_stays_above_it():
    seen = settle(seen_of(scheduled("2026-11-23T08:00:00Z", running=False)))
    decided = plan(seen)
    assert decided.steps == ()
    assert decided.status["phase"] == "Stopped"
    assert (decided.status["nextStart"], decided.status["nextStop"]) == (
        "2026-11-24T08:00:00Z",
        "2026-11-23T18:00:00Z",
    )
    assert decided.look_again_in == timedelta(hours=6)


def test_a_schedule_that_is_gone_leaves_no_note():
    obj = a_workspace(annotations={SCHEDULED_ANNOTATION: "x 2026-11-23T08:00:00Z"})
    (step,) = plan(seen_of(obj)).steps
    assert step.obj["metadata"]["annotations"] == {SCHEDULED_ANNOTATION: None}


@given(st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2027, 12, 31)))
def test_whenever_the_operator_comes_back_the_workspace_is_as_its_schedule_says(moment):
    now = moment.replace(tzinfo=UTC)
    seen = replace(seen_of(scheduled("2025-12-01T00:00:00Z", running=False)), now=now)
    seen = settle(seen)
    working = now.weekday() < 5 and 8 <= now.hour < 18
    assert seen.view.spec.running is working


# --- properties


def test_a_workspace_claims_gpus_by_a_template():
    [made] = of_kind(seen_of(a_workspace(resources={"gpuClaim": "one-gpu"})), "Deployment")
    pod = made["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "4Gi"}
    assert "affinity" not in pod, "nothing keeps it off the nodes with GPUs"


# --- queues of Kueue

QUEUE = {"kueue.x-k8s.io/queue-name": "team-a"}


def in_queue(obj, queue="team-a"):
    obj["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": queue}
    return obj


def test_its_deployment_and_its_pod_are_in_the_queue_of_its_label():
    [made] = of_kind(seen_of(in_queue(a_workspace())), "Deployment")
    assert QUEUE.items() <= made["metadata"]["labels"].items()
    assert QUEUE.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert made["spec"]["selector"] == {"matchLabels": {"moorage.dev/workspace": "lab"}}
    [plain] = of_kind(seen_of(a_workspace()), "Deployment")
    assert "kueue" not in json.dumps(plain)


def test_a_workspace_that_kueue_holds_says_why():
    held = a_pod(node="", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}, {"name": "moorage.dev/machine"}])
    seen = replace(settle(seen_of(in_queue(a_workspace()))), pods=(held,))
    told = plan(replace(seen, queue=QueueWait("team-a", "insufficient quota for cpu"))).status["waitingFor"]
    assert told == {"reason": "Queue", "message": "it waits in Kueue's queue team-a: insufficient quota for cpu"}
    assert plan(seen).status["waitingFor"]["message"] == "it waits in a queue of Kueue"
    assert plan(seen).look_again_in is not None


def test_another_queue_means_another_deployment_after_the_pods_are_gone():
    seen = settle(seen_of(in_queue(a_workspace())))
    moved = replace(seen, obj=(obj := in_queue(a_workspace(), "team-b")), view=parse_workspace(obj))
    [step] = [step for step in plan(moved).steps if step.resource == DEPLOYMENTS]
    assert (step.verb, step.name) == (Verb.DELETE, "ws-lab")
    going = copy.deepcopy(seen.deployment)
    going["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    assert of_kind(replace(moved, deployment=going), "Deployment") == []
    assert settle(moved).deployment["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-b"


def test_the_default_queue_that_kueue_chose_is_left_alone():
    seen = settle(seen_of(a_workspace()))
    deployment = copy.deepcopy(seen.deployment)
    deployment["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "default"
    assert plan(replace(seen, deployment=deployment)).steps == ()


SPECS = st.fixed_dictionaries(
    {
        "running": st.booleans(),
        "access": st.sampled_from(["", "login", "token"]),
        "type": st.sampled_from(["jupyterlab", "codeserver", "none-such"]),
    },
    optional={
        "image": st.sampled_from(["a", "b"]),
        "volumes": st.just([{"claimName": "data", "mountPath": "/data", "readOnly": True}]),
        "machine": st.just({"group": "g", "type": "t"}),
        "schedule": st.just(DAYS),
    },
)


@given(SPECS, SPECS, st.integers(0, 8), st.booleans())
def test_a_half_done_plan_is_finished_by_the_next(first, second, steps_before_crash, with_domain):
    platform = PLATFORM if with_domain else Platform()
    seen = settle(seen_of(a_workspace(**first), platform=platform))
    obj = copy.deepcopy(seen.obj)
    obj["spec"] = json.loads(json.dumps(second))
    view = parse_workspace(obj)
    seen = replace(seen, obj=obj, view=view, app=BUILT_IN.get(view.spec.type))
    for step in plan(seen).steps[:steps_before_crash]:
        seen = after(seen, step)
    seen = settle(seen)
    fresh = settle(seen_of(seen.obj, platform=platform))
    if seen.app is not None:
        ours = ("service", "gateway_service", "gateway_slice", "ingress", "deployment")
        for field in ours:
            left, right = getattr(seen, field), getattr(fresh, field)
            assert (left is None) == (right is None), field
            if left is not None and field == "deployment":
                assert left["spec"]["replicas"] == right["spec"]["replicas"] == int(seen.view.spec.running)
                assert left["spec"]["template"] == right["spec"]["template"]
            elif left is not None:
                assert left.get("spec") == right.get("spec"), field
        assert (seen.home is not None) or not seen.view.spec.running


@given(SPECS, st.lists(st.sampled_from([a_pod(), a_pod(ready=True), a_pod(node="", said="no")]), max_size=2))
def test_a_settled_workspace_is_left_alone_and_its_status_is_written_once(spec, pods):
    seen = replace(settle(seen_of(a_workspace(**spec))), pods=tuple(pods))
    status = plan(seen).status
    assert status is not None
    obj = seen.obj | {"status": status}
    seen = replace(seen, obj=obj, view=parse_workspace(obj))
    decided = plan(seen)
    assert decided.steps == ()
    assert decided.status is None
    assert decided.events == ()
