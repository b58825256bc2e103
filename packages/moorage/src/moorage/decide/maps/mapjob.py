"""From a request for a map to its MapJob, and the objects that belong to it."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from moorage.decide.runs.job import plan_run
from moorage.decide.runs.kueue import queue_of
from moorage.decide.runs.names import secret_name
from moorage.decide.runs.request import Caller, ClusterFacts, Problem, RunPlan, RunRequest
from moorage.decide.runs.timelimit import parse_time
from moorage.model.dataset import used_datasets, uses_labels
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.mapjob import FUNCTION_FILE, MAPJOBS, PARALLELISM_MAX, check_mapjob
from moorage.model.names import COMMAND_ANNOTATION, OWNER_ANNOTATION, OWNER_LABEL, RUNNER_PATH, label_value
from moorage.worker.mapworker.placeholders import PLACEHOLDER
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_count
from moorage_kube.resources import Obj

WORK_FOLDER = "/moorage-work"  # for `--working-dir` and files that are sent along; /moorage is the worker's
UNPACKER_FOLDER = "/moorage-run"
SHIPPED = "work"  # volume of a directory that was sent along
EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
FUNCTION_WORD = "python3"  # stands for the command of a map that has a function
LIMIT_MAX = 1_000_000
ITEM_VARIABLES = ("MOORAGE_ITEM", "MOORAGE_INDEX")  # the worker sets them for each item


class MapRequest(Struct, frozen=True, kw_only=True):
    """The requested options; None: not given. `run` has the options that maps share with runs."""

    run: RunRequest
    function: bytes | None = None  # the zip of a function, instead of run.command
    parallelism: int = 1
    slots: int = 1
    limits: tuple[str, ...] = ()  # NAME[=CAPACITY][:TOKENS]
    rate: float | None = None
    retries: int | None = None
    time: str | float | None = None  # of an item: a text as typed, or seconds
    max_memory: str | None = None
    idempotent: bool = False
    priority: int = 0
    spot: bool = False
    restart_limit: int | None = None
    preflight_read: tuple[str, ...] = ()
    preflight_write: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(
        default_factory=dict
    )  # further fields of the MapJob's policy, by their names


class MapJobPlan(Struct, frozen=True, kw_only=True):
    """The objects to create: `secret` and `config_map` (owned later), then `mapjob`; with problems none."""

    name: str
    mapjob: Obj
    secret: Obj | None = None
    config_map: Obj | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def documents(self) -> list[Obj]:
        return [document for document in (self.secret, self.config_map, self.mapjob) if document is not None]


NO_ITEM = (
    "the command is the same for every item: it names neither {item} nor {index}, so only a program that reads"
    " $MOORAGE_ITEM gets the item"
)


def takes_item(command: Sequence[str]) -> bool:
    """Whether the words of a command name the item, or a variable that holds it.

    A program may read the variables by itself: that cannot be seen from outside.
    """
    return any(PLACEHOLDER.search(word) or any(name in word for name in ITEM_VARIABLES) for word in command)


def plan_mapjob(request: MapRequest, caller: Caller, facts: ClusterFacts) -> MapJobPlan:
    """Plan the MapJob of a request.

    The rules of runs apply: limits, nodes without GPUs, images, volumes, variables.
    """
    # a worker's pod is that of a run: its rules find most of the faults
    run = plan_run(request.run, caller, facts)
    problems = [_of_a_map(problem) for problem in run.problems]
    policy, more = _policy(request)
    problems += more
    limits, more = _limits(request.limits)
    problems += more
    if not 1 <= request.parallelism <= PARALLELISM_MAX:
        problems.append(
            Problem("parallelism", f"invalid parallelism {request.parallelism}: use 1 to {PARALLELISM_MAX:,}")
        )
    # notes of the run speak of a job
    notes = tuple(note.replace("a job that", "a worker that") for note in run.notes)
    if request.function is None and not takes_item(request.run.command):
        notes += (NO_ITEM,)
    if problems or run.job is None:
        return MapJobPlan(name=run.name, mapjob={}, notes=notes, problems=tuple(problems))
    # a command is in the spec, a function in a ConfigMap
    spec: Obj = {"parallelism": request.parallelism}
    config_map = None
    if request.function is not None:
        config_map = _config_map(run.name, request, caller)
        spec["function"] = {"configMap": config_map["metadata"]["name"]}
    else:
        spec["command"] = list(request.run.command)
    template, secret = _template(run, request, caller)
    # options with their default value are left out, so that a later default applies
    optional: dict[str, Any] = {
        "slots": request.slots if request.slots != 1 else None,
        "restartLimit": request.restart_limit,
        "policy": policy,
        "limits": limits,
        "priority": request.priority,
        "preflight": _preflight(request, template),
        "spot": request.spot,
        "notify": {"targets": list(request.notify)} if request.notify else None,
    }
    spec |= {name: value for name, value in optional.items() if value}
    if request.restart_limit == 0:
        spec["restartLimit"] = 0
    # the same fields as a MapJob that a user writes: the same check applies
    command = COMMAND_ANNOTATION, shlex.join(request.run.command)
    mapjob: Obj = {
        "apiVersion": MAPJOBS.api_version,
        "kind": MAPJOBS.kind,
        "metadata": {
            "name": run.name,
            "namespace": request.run.namespace,
            "labels": {OWNER_LABEL: label_value(caller.user)} | _queue(run),
            "annotations": {OWNER_ANNOTATION: caller.user, command[0]: command[1], **request.annotations},
        },
        "spec": {**spec, "template": template},
    }
    if request.function is not None:
        del mapjob["metadata"]["annotations"][COMMAND_ANNOTATION]
    faults = tuple(_fault(fault.field, fault.value, fault.message) for fault in check_mapjob(mapjob))
    return MapJobPlan(
        name=run.name, mapjob=mapjob, secret=secret, config_map=config_map, notes=notes, problems=faults
    )


def _queue(run: RunPlan) -> dict[str, str]:
    """The Kueue queue label of the MapJob. The operator copies it to the workers."""
    queue = queue_of(run.job)
    return {QUEUE_LABEL: queue} if queue else {}


def _fault(path: str, value: str, allowed: str) -> Problem:
    fields = {
        "spec.notify": "notify",
        "spec.preflight.read": "preflightRead",
        "spec.preflight.write": "preflightWrite",
        "spec.template.spec.containers[0].volumeMounts": "volumes",
        "spec.template.spec.containers[0].env": "env",
        "spec.slots": "slots",
        "spec.priority": "priority",
        "spec.restartLimit": "restartLimit",
        "spec.policy.retries": "retries",
        "spec.policy.rate": "rate",
        "spec.policy.timeSeconds": "time",
    }
    name = next((name for start, name in fields.items() if path.startswith(start)), path)
    return Problem(name, f"{name}: {value!r} {allowed}" if value else f"{name}: {allowed}")


def _of_a_map(problem: Problem) -> Problem:
    """Reword a problem of a run for a map."""
    message = problem.message.replace("invalid run name", "invalid map name")
    hint = problem.hint
    if hint is not None:
        hint = hint.replace(
            "moor run [OPTIONS] -- python train.py", "moor map create NAME … -- python make.py {item}"
        )
        hint = hint.replace(
            "or remove the old run: moor cancel --delete", "or delete the map or run of this name: moor map delete"
        )
    return Problem(problem.field, message, hint)


def _policy(request: MapRequest) -> tuple[Obj, list[Problem]]:
    policy: Obj = dict(request.policy)
    problems: list[Problem] = []
    if request.retries is not None:
        policy["retries"] = request.retries
    elif request.function is not None:
        policy.setdefault("retries", 0)  # an exception is most often a fault of the function: it comes again
    if isinstance(request.time, int | float):
        policy["timeSeconds"] = request.time
    elif request.time is not None:
        try:
            policy["timeSeconds"] = parse_time(request.time)
        except ValueError:
            problems.append(Problem("time", f"invalid time {request.time!r}: use a time such as 30s, 5m or 2h"))
    if request.max_memory is not None:
        try:
            policy["maxMemoryBytes"] = parse_count(request.max_memory)
        except QuantityError:
            problems.append(
                Problem(
                    "maxMemory",
                    f"invalid maximum of memory {request.max_memory!r}: use a quantity such as 512Mi or 8Gi",
                )
            )
    if request.idempotent:
        policy["idempotent"] = True
    if request.rate is not None:
        policy["rate"] = request.rate
    return policy, problems


def _limits(texts: tuple[str, ...]) -> tuple[Obj, list[Problem]]:
    limits: Obj = {}
    problems = []
    for text in texts:
        rest, _, tokens = text.partition(":")
        name, given, capacity = rest.partition("=")
        numbers = [text for text in (capacity if given else None, tokens or None) if text is not None]
        if not name or not all(
            number.isascii() and number.isdigit() and int(number) <= LIMIT_MAX for number in numbers
        ):
            problems.append(
                Problem(
                    "limits",
                    f"invalid limit {text!r}: use NAME, NAME=CAPACITY or NAME=CAPACITY:TOKENS",
                    "mysql=100; or mysql=100:2 when each item takes two",
                )
            )
            continue
        limits[name] = ({"tokens": int(tokens)} if tokens else {}) | ({"capacity": int(capacity)} if given else {})
    return limits, problems


def _preflight(request: MapRequest, template: Obj) -> Obj | None:
    """The preflight command: the requested one, else whether volumes can be read, or written where allowed."""
    spec = template["spec"]
    claims = {volume["name"] for volume in spec.get("volumes", ()) if "persistentVolumeClaim" in volume}
    mounts = [mount for mount in spec["containers"][0].get("volumeMounts", ()) if mount["name"] in claims]
    readable = [mount["mountPath"] for mount in mounts if mount.get("readOnly")]
    writable = [mount["mountPath"] for mount in mounts if not mount.get("readOnly")]
    checks = {
        "read": list(request.preflight_read) or readable,
        "write": list(request.preflight_write) or writable,
    }
    return {name: paths for name, paths in checks.items() if paths} or None


def _config_map(name: str, request: MapRequest, caller: Caller) -> Obj:
    assert request.function is not None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-function",
            "namespace": request.run.namespace,
            "labels": {OWNER_LABEL: label_value(caller.user)},
        },
        "binaryData": {FUNCTION_FILE: base64.b64encode(request.function).decode()},
    }


def _template(run: RunPlan, request: MapRequest, caller: Caller) -> tuple[Obj, Obj | None]:
    """The run's pod template without the parts specific to a run; the Secret of a directory that is sent along."""
    assert run.job is not None
    of_run = run.job["spec"]["template"]
    pod: Obj = dict(of_run["spec"])
    container: Obj = dict(pod["containers"][0])
    for key in ("command", "args"):
        container.pop(key, None)
    container["env"] = [variable for variable in container["env"] if variable["name"] != "MOORAGE_RUN"]
    mounts = [_outside(mount) for mount in container.get("volumeMounts", ()) if mount["mountPath"] != RUNNER_PATH]
    mounted = {mount["name"] for mount in mounts}
    volumes = [volume for volume in pod.get("volumes", ()) if volume["name"] in mounted]
    if "workingDir" in container:
        container["workingDir"] = _outside({"mountPath": container["workingDir"]})["mountPath"]
    annotations = {
        key: value
        for key, value in (of_run["metadata"].get("annotations") or {}).items()
        if "/expected" not in key
    }
    secret = None
    if caller.archive is not None and request.function is None:
        secret = _secret(run, request, caller)
        volumes += [
            {"name": SHIPPED, "emptyDir": {}},
            {"name": "shipped", "secret": {"secretName": secret["metadata"]["name"]}},
        ]
        pod["initContainers"] = [_unpacker(container)]
        mounts.append({"name": SHIPPED, "mountPath": WORK_FOLDER})
        container["workingDir"] = WORK_FOLDER
        annotations[EVICTABLE] = SHIPPED
    for where, key, value in ((container, "volumeMounts", mounts), (pod, "volumes", volumes)):
        where.pop(key, None)
        if value:
            where[key] = value
    pod["containers"] = [container]
    labels = uses_labels(used_datasets(of_run["metadata"].get("labels") or {}))
    meta: Obj = {"annotations": annotations} | ({"labels": labels} if labels else {})
    return {"metadata": meta, "spec": pod}, secret


def _outside(mount: Obj) -> Obj:
    """Move a mount out of the folder that the worker uses."""
    path = str(mount["mountPath"])
    if path == "/moorage/work" or path.startswith("/moorage/work/"):
        return mount | {"mountPath": WORK_FOLDER + path.removeprefix("/moorage/work")}
    return mount


def _secret(run: RunPlan, request: MapRequest, caller: Caller) -> Obj:
    assert caller.archive is not None
    data = {"runner.py": caller.runner.encode(), "work.tar.gz": caller.archive}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(run.name, caller.user, caller.token),
            "namespace": request.run.namespace,
            "labels": {OWNER_LABEL: label_value(caller.user)},
        },
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _unpacker(container: Obj) -> Obj:
    """Unpacks the directory that was sent along, in the worker's own image, before the worker starts."""
    resources = {
        kind: {name: value for name, value in container["resources"][kind].items() if name in ("cpu", "memory")}
        for kind in ("limits", "requests")
    }
    runner = f"{UNPACKER_FOLDER}/runner.py"
    unpack = ["--unpack", f"{UNPACKER_FOLDER}/work.tar.gz", "--into", WORK_FOLDER]
    return {
        "name": "unpack",
        "image": container["image"],
        "command": ["python3", runner, *unpack, "--", "true"],
        "resources": resources,
        "volumeMounts": [
            {"name": SHIPPED, "mountPath": WORK_FOLDER},
            {"name": "shipped", "mountPath": UNPACKER_FOLDER, "readOnly": True},
        ],
    }
