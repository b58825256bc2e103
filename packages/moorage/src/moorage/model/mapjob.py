"""MapJob: the workers of a map, and their command. The queue stores items, leases and results; etcd does not.

The server writes `status.state`, `queue`, `items` and the condition Accepted; the operator `workers` and the rest.
docs/design/0008-mapjob.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from moorage.model.kueue import QUEUE_LABEL
from moorage.model.machine import Fault
from moorage.model.names import GROUP, OWNER_ANNOTATION, OWNER_LABEL, RUN_NAME_MAX, VERSION, is_dns_label
from moorage.model.tenant import Condition
from moorage_kube.errors import MoorageError, QuantityError
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_quantity, problem_of_bytes
from moorage_kube.resources import Obj, Resource

MAPJOBS = Resource(GROUP, VERSION, "mapjobs", "MapJob")

RUNNING, PAUSED, CANCELLED, FINISHED = "running", "paused", "cancelled", "finished"
STATES = (RUNNING, PAUSED, CANCELLED, FINISHED)
ACCEPTED, WORKING, COMPLETE, FAILED = "Accepted", "Working", "Complete", "Failed"
NAME_TAKEN, BAD_LIMITS, QUOTA_EXCEEDED = "NameTaken", "BadLimits", "QuotaExceeded"  # why a map is not accepted

PARALLELISM_MAX = 10_000
RESTARTS_MIN = 100  # the default restartLimit is this or `parallelism`, the larger: one preemption of all
POD_SECONDS = 3600  # worker pods stay so long after the end; their logs stay with the server
MOUNT = "/moorage"
FUNCTION_FILE = "function.zip"

_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
_TIME = Meta(extra_json_schema={"format": "date-time"})
_NATURAL = Meta(ge=0, le=2**53)
_LIMIT_NAME = Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_PATH = Meta(min_length=1, max_length=4096, pattern="^/")


class FunctionSource(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A function in the format of `moorage.map`."""

    config_map: Annotated[
        str, Meta(min_length=1, max_length=253, description="ConfigMap that holds it, of this namespace.")
    ]
    key: Annotated[
        str, Meta(max_length=253, pattern=r"^[-._a-zA-Z0-9]*$", description="Default function.zip.")
    ] = ""


class MapPolicy(Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the queue treats the items; unset fields have the queue's default."""

    retries: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None, Meta(description="Further tries. Default 3.")
    ] = None
    loss_limit: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        Meta(description="Workers that may vanish under one item. Default 20."),
    ] = None
    backoff_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)] | None,
        Meta(description="Wait before the second try; it doubles with each try."),
    ] = None
    max_backoff_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)] | None, Meta(description="Longest wait between two tries.")
    ] = None
    time_seconds: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e7)] | None,
        Meta(description="Longest time of an item. Default: none."),
    ] = None
    lease_seconds: Annotated[
        Annotated[float, Meta(ge=2, le=86_400)] | None,
        Meta(description="So long a worker may be silent. Default 60."),
    ] = None
    memory_bytes: Annotated[
        Annotated[int, _NATURAL] | None, Meta(description="Memory of one item on its first try.")
    ] = None
    max_memory_bytes: Annotated[
        Annotated[int, _NATURAL] | None,
        Meta(description="Most memory for an item that was killed for its memory."),
    ] = None
    idempotent: Annotated[bool | None, Meta(description="Slow items may run twice; the first answer counts.")] = (
        None
    )
    batch_items: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, Meta(description="Items that a worker takes at once.")
    ] = None
    rate: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e6)] | None, Meta(description="Items begun per second, at most.")
    ] = None


class LimitUse(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Tokens of a named limit."""

    tokens: Annotated[int, Meta(ge=1, le=1_000_000, description="That each item holds while it runs.")] = 1
    capacity: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None, Meta(description="Makes the limit, if it is new.")
    ] = None


class Preflight(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A test that each worker runs before it takes items.

    The first worker runs it before the others are created.
    """

    read: Annotated[
        Annotated[list[Annotated[str, _PATH]], Meta(max_length=100)],
        Meta(description="Paths that a worker must read before it takes items."),
    ] = []
    write: Annotated[
        Annotated[list[Annotated[str, _PATH]], Meta(max_length=100)],
        Meta(description="Paths that a worker must write to before it takes items."),
    ] = []


class Notify(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The receivers of notices, and the events to report."""

    targets: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=2048)]],
        Meta(min_length=1, max_length=10, description="https://… (Slack's form) or mailto:ADDRESS."),
    ]
    first_failure: Annotated[
        bool,
        Meta(extra_json_schema={"default": True}, description="Send a notice when the first item fails for good."),
    ] = True
    failure_share: Annotated[
        Annotated[float, Meta(ge=0.0001, le=1)] | None, Meta(description="Of the items finished.")
    ] = None
    at_end: Annotated[
        bool, Meta(extra_json_schema={"default": True}, description="Send a notice when the map has ended.")
    ] = True


class MapJobSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The command of the workers, their pods and their number."""

    parallelism: Annotated[int, Meta(ge=1, le=PARALLELISM_MAX, description="Workers at most.")]
    template: Annotated[
        dict[str, Any], Meta(description="A PodTemplateSpec; its first container is the worker's.")
    ]
    command: Annotated[
        list[str],
        Meta(max_length=1000, description="A process for each item; {item}, {item.FIELD} and {index} are put in."),
    ] = []
    function: Annotated[FunctionSource | None, Meta(description="Loaded once, called for each item.")] = None
    slots: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Items that a worker runs at the same time. Default 1."),
    ] = None
    restart_limit: Annotated[
        Annotated[int, Meta(ge=0, le=100_000)] | None,
        Meta(description="Lost workers that are replaced. Default 100, or parallelism if that is more."),
    ] = None
    policy: MapPolicy = MapPolicy()
    limits: Annotated[
        dict[Annotated[str, _LIMIT_NAME], LimitUse],
        Meta(description="Named limits that each item uses, such as connections to a database."),
    ] = {}
    priority: Annotated[
        int, Meta(ge=-1000, le=1000, description="Maps with a higher priority get free workers first.")
    ] = 0
    preflight: Preflight | None = None
    spot: Annotated[bool, Meta(description="Let workers run on preemptible nodes, spread over them.")] = False
    notify: Notify | None = None
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=2_592_000)] | None,
        Meta(description="Worker pods are deleted so long after the end. Default an hour."),
    ] = None


class QueueStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The map's queue and its state."""

    url: Annotated[str, Meta(description="Where workers reach the queue.")] = ""
    uid: Annotated[str, Meta(description="Of the map in the queue.")] = ""
    secret: Annotated[str, Meta(description="Secret with the workers' token.")] = ""
    heard_at: Annotated[str, Meta(extra_json_schema={"format": "date-time"}, description="First lease.")] = ""
    progress_at: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="An item was seen to end.")
    ] = ""
    round: Annotated[int, Meta(ge=0, description="Starts over again, by retry, after an end.")] = 0
    marks: Annotated[list[str], Meta(description="Notices that were sent.")] = []


class ItemCounts(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The number of items in each state."""

    total: Annotated[int, _NATURAL, Meta(description="Items that were added.")] = 0
    waiting: Annotated[int, _NATURAL, Meta(description="Items that wait for their next try.")] = 0
    ready: Annotated[int, _NATURAL, Meta(description="Items that a worker can take.")] = 0
    large: Annotated[int, _NATURAL, Meta(description="Items that need a worker with more memory.")] = 0
    leased: Annotated[int, _NATURAL, Meta(description="Items that workers hold.")] = 0
    done: Annotated[int, _NATURAL, Meta(description="Items with a result.")] = 0
    dead: Annotated[int, _NATURAL, Meta(description="Items that failed for good.")] = 0
    lost: Annotated[int, Meta(ge=0, description="Leases whose worker vanished.")] = 0
    at_once: Annotated[
        Annotated[int, _NATURAL] | None, Meta(description="Items that named limits and rate let run together.")
    ] = None
    mean_seconds: Annotated[float | None, Meta(description="Mean time of one item.")] = None


class WorkerCounts(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The number of workers in each state."""

    desired: Annotated[int, _NATURAL, Meta(description="Workers that the map can use now.")] = 0
    active: Annotated[int, _NATURAL, Meta(description="Worker pods that exist.")] = 0
    ready: Annotated[int, _NATURAL, Meta(description="Worker pods that are ready.")] = 0
    lost: Annotated[int, Meta(ge=0, description="Ended before the map did.")] = 0
    restarts: Annotated[int, Meta(ge=0, description="Of these, replaced or to be.")] = 0
    excused: Annotated[int, Meta(ge=0, description="Ended in order: not wanted any more, or nothing to do.")] = 0
    released: Annotated[int, Meta(ge=0, description="Of these, stopped because fewer were wanted.")] = 0


class Writer(StrEnum):
    """The writer of each part of the status: each part has one (docs/design/0008-mapjob.md)."""

    SERVER = "server"
    OPERATOR = "operator"


STATUS_WRITERS = {
    "state": Writer.SERVER,
    "queue": Writer.SERVER,
    "items": Writer.SERVER,
    "observedGeneration": Writer.SERVER,
    "workers": Writer.OPERATOR,
}
CONDITION_WRITERS = {
    ACCEPTED: Writer.SERVER,
    WORKING: Writer.OPERATOR,
    COMPLETE: Writer.OPERATOR,
    FAILED: Writer.OPERATOR,
}


def status_patch(
    writer: Writer, fields: Mapping[str, Any], before: Sequence[Obj] = (), conditions: Sequence[Obj] | None = None
) -> Obj:
    """A merge patch of the status by one of its two writers.

    `conditions`: the new list; `before`: the present one.

    Raises ValueError for a field or condition of the other writer.
    """
    for name in fields:
        if STATUS_WRITERS.get(name) is not writer:
            raise ValueError(f"the {writer} does not write status.{name}")
    if conditions is None:
        return dict(fields)
    known = {condition.get("type"): condition for condition in before}
    for condition in conditions:
        kind = condition.get("type")
        if condition != known.get(kind) and CONDITION_WRITERS.get(str(kind)) is not writer:
            raise ValueError(f"the {writer} does not write the condition {kind}")
    return {**fields, "conditions": list(conditions)}


class MapJobStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the server and the operator report."""

    state: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["", *STATES]},
            description="State of the queue of this map; empty until the server has accepted it.",
        ),
    ] = ""
    queue: QueueStatus = QueueStatus()
    items: ItemCounts = ItemCounts()
    workers: WorkerCounts = WorkerCounts()
    plan: Annotated[dict[str, Any], Meta(description="The estimate of moor plan, if one was made.")] = {}
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class MapJob(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The workers of a map: their command, their pods and their number."""

    spec: MapJobSpec
    status: MapJobStatus = MapJobStatus()


# --- as decisions read it


class MapView(Struct, frozen=True, kw_only=True):
    """A MapJob, parsed."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    owner: str
    owner_label: str
    spec: MapJobSpec
    status: MapJobStatus
    local_queue: str = ""  # of Kueue, for its workers; empty: it names none
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return self.spec.slots or 1

    @property
    def restart_limit(self) -> int:
        given = self.spec.restart_limit
        return max(RESTARTS_MIN, self.spec.parallelism) if given is None else given

    @property
    def kept_seconds(self) -> int:
        given = self.spec.ttl_seconds_after_finished
        return POD_SECONDS if given is None else given

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    def since(self, kind: str) -> datetime | None:
        """The time at which the condition last changed its status."""
        condition = self.condition(kind)
        return moment(condition.last_transition_time) if condition is not None else None


class BadMapJob(MoorageError):
    """A MapJob is invalid. The message names the field."""


def parse_mapjob(obj: Mapping[str, Any]) -> MapView:
    """Parse a stored MapJob. Raises BadMapJob with the field's path."""
    meta = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec") or {}, MapJobSpec)
    except msgspec.ValidationError as error:
        raise BadMapJob(_field_message("spec", error)) from error
    try:
        status = msgspec.convert(obj.get("status") or {}, MapJobStatus)
    except msgspec.ValidationError as error:
        raise BadMapJob(_field_message("status", error)) from error
    label = labels_of(obj).get(OWNER_LABEL, "")
    return MapView(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=meta.get("uid") or "",
        generation=int(meta.get("generation") or 0),
        deleting=is_deleting(obj),
        owner=annotations_of(obj).get(OWNER_ANNOTATION) or label,
        owner_label=label,
        spec=spec,
        status=status,
        local_queue=labels_of(obj).get(QUEUE_LABEL, ""),
        notes=annotations_of(obj),
    )


def _field_message(where: str, error: msgspec.ValidationError) -> str:
    """The message of msgspec with the field's path before it: "spec.limits: Expected …"."""
    message, _, place = str(error).partition(" - at ")
    _, _, path = place.partition("$")
    return f"{where}{path.strip('`')}: {message}" + (" (a key of it)" if place.startswith("`key`") else "")


def secret_name(name: str, uid: str) -> str:
    """The name of the Secret with the workers' token. Another MapJob with the same name gets another Secret."""
    return f"{name}-map-{uid.replace('-', '')[:8]}"


def function_file(source: FunctionSource) -> str:
    return source.key or FUNCTION_FILE


def check_mapjob(obj: Mapping[str, Any]) -> list[Fault]:
    """Check everything that the schema of a MapJob cannot express. Returns all errors."""
    name = str(obj["metadata"].get("name") or "")
    faults: list[Fault] = []
    if name and (not is_dns_label(name) or len(name) > RUN_NAME_MAX):
        allowed = f"must be at most {RUN_NAME_MAX} of a-z, 0-9 and '-': its Jobs and pods are named after it"
        faults.append(Fault("metadata.name", name, allowed))
    try:
        view = parse_mapjob({**obj, "status": {}})
    except BadMapJob as error:
        path, _, message = error.message.partition(": ")
        return [*faults, Fault(path, "", message)]
    spec = view.spec
    if bool(spec.command) == (spec.function is not None):
        message = "give one of spec.command and spec.function" + (", not both" if spec.command else "")
        faults.append(Fault("spec.command", " ".join(spec.command)[:80], message))
    if spec.command and not spec.command[0]:
        faults.append(Fault("spec.command[0]", "", "must be a program"))
    if spec.notify is not None:
        faults += _check_targets(spec.notify)
    lowest, highest = spec.policy.backoff_seconds, spec.policy.max_backoff_seconds
    if lowest is not None and highest is not None and lowest > highest:
        message = f"must be at most maxBackoffSeconds, {highest:g}"
        faults.append(Fault("spec.policy.backoffSeconds", f"{lowest:g}", message))
    return [*faults, *_check_template(spec.template)]


def _check_targets(notify: Notify) -> Iterator[Fault]:
    from moorage.model.targets import parse_target
    from moorage_kube.errors import UsageError

    for at, text in enumerate(notify.targets):
        try:
            parse_target(text)
        except UsageError as error:
            yield Fault(f"spec.notify.targets[{at}]", "", error.message)


def _check_template(template: Mapping[str, Any]) -> list[Fault]:
    where = "spec.template.spec"
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(containers, list) or not containers:
        return [Fault(f"{where}.containers", "", "must have a container: the first is the worker's")]
    faults: list[Fault] = []
    if spec.get("restartPolicy") not in (None, "", "Never"):
        message = "must be Never: a lost worker is replaced by another pod"
        faults.append(Fault(f"{where}.restartPolicy", str(spec["restartPolicy"]), message))
    for at, container in enumerate(containers):
        path = f"{where}.containers[{at}]"
        if not isinstance(container, dict):
            faults.append(Fault(path, str(container), "must be a container"))
            continue
        for number, variable in enumerate(_dicts(container.get("env"))):
            if at == 0 and str(variable.get("name", "")).startswith("MOORAGE_"):
                message = "is one of Moorage's own; choose a name without MOORAGE_"
                faults.append(Fault(f"{path}.env[{number}].name", str(variable["name"]), message))
        for number, mount in enumerate(_dicts(container.get("volumeMounts"))):
            if f"{mount.get('mountPath', '')}/".startswith(f"{MOUNT}/"):
                message = f"must be outside {MOUNT}, where the worker itself is"
                faults.append(Fault(f"{path}.volumeMounts[{number}].mountPath", str(mount["mountPath"]), message))
    first = containers[0] if isinstance(containers[0], dict) else {}
    if not first.get("image"):
        faults.append(Fault(f"{where}.containers[0].image", "", "must be set: an image with python3"))
    for key in ("command", "args"):
        if first.get(key):
            message = "must be left out: the worker runs there; the items run spec.command"
            faults.append(Fault(f"{where}.containers[0].{key}", " ".join(map(str, first[key]))[:80], message))
    return faults + _check_resources(first, f"{where}.containers[0].resources")


def _check_resources(container: Mapping[str, Any], where: str) -> list[Fault]:
    resources = []
    for table in ("limits", "requests"):
        given = (container.get("resources") or {}).get(table) or {}
        for resource, text in given.items() if isinstance(given, dict) else ():
            path = f"{where}.{table}[{resource}]"
            try:
                if resource == "memory" and (slip := problem_of_bytes(text)):
                    resources.append(Fault(path, str(text), "; ".join(slip)))
                parse_quantity(text)
            except QuantityError:
                resources.append(Fault(path, str(text), "must be a quantity, such as 500m or 2Gi"))
    return resources


def _dicts(given: Any) -> list[Obj]:
    return [entry if isinstance(entry, dict) else {} for entry in given] if isinstance(given, list) else []
