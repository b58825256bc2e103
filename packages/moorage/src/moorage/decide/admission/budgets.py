"""New work of a user with an exhausted budget.

Work is judged once, when it begins:

- objects that a user creates: pods, Jobs and other workloads, maps, workspaces, workflows; a workspace that is
  started; a Job or workflow that is resumed, except Jobs in a queue of Kueue; an update of a workload that asks
  for other GPUs, for more pods or for more CPU or memory, also by `scale` and `resize`;
- objects that a schedule creates in the owner's name: the Jobs of a CronJob, the Workflows of a CronWorkflow;
- pods that a Deployment, a workspace, a step of a workflow and the like create: by their owner, each when it is
  created. The work that was judged has no end, or its pods were unknown then. Such pods get the over-budget
  priority, also where new work is refused: running work is not ended.
- The GPUs of templates that a workflow references are unknown when it is created. A workflow that is created
  without GPUs while GPU-hours are refused gets an annotation, and so do the pods of its steps: those that ask for
  GPUs are refused.

Pods of Jobs, the next attempts of runs and the workers of maps have the class of the object that they are created
from. So active runs continue, also over restarts. Budgets of GPU-hours apply to work that asks for GPUs, budgets
of money to all work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import at, mapping
from moorage.decide.admission.ownership import put
from moorage.decide.admission.review import OPERATOR, Draft, Refusal, Request
from moorage.decide.admission.templates import WORKLOADS, is_guest
from moorage.decide.budgets.use import Standing, standings, strictest
from moorage.decide.runs.kueue import queue_of
from moorage.model.budget import QUEUE, REFUSE, WARN
from moorage.model.names import (
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    NO_GPUS,
    OVER_BUDGET_ANNOTATION,
    OVER_BUDGET_PRIORITY,
    OVER_BUDGET_VALUE,
    OWNER_ANNOTATION,
)
from moorage_kube.documents import parse_document
from moorage_kube.errors import DocumentError, QuantityError
from moorage_kube.meta import annotations_of, controller_ref, labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu, pod_requests

KINDS = (*WORKLOADS, "MapJob", "Workspace", "Workflow")
OF_ONE_PIECE = (
    "Job",
    "MapJob",
)  # all their pods are of the work that was judged: its template has the class
POD_CLASS = ("priorityClassName", "priority", "preemptionPolicy")  # of a pod Kubernetes has set all three before
_CLASS: Mapping[str, Any] = dict(zip(POD_CLASS, (OVER_BUDGET_PRIORITY, OVER_BUDGET_VALUE, "Never"), strict=True))
_PRICED = ("cpu", "memory")  # resources that cost money, in addition to GPUs
# kind → the kind with the controller that creates it again
_SCHEDULES = {"Job": "CronJob", "Workflow": "CronWorkflow"}


class _Beginning(Enum):
    """The reason why the budgets are checked for a request."""

    NEW = auto()  # work that begins
    POD = auto()  # a pod that a controller makes
    CLASS_LEFT = auto()  # an update that takes the class away
    MORE = auto()  # an update that asks for other GPUs, or for more pods, or resumes work
    LARGER = auto()  # an update that asks for more CPU or memory, and for no more GPUs


class _Judged(Struct, frozen=True):
    beginning: _Beginning
    user: str  # the owner of the budget


def apply_budgets(draft: Draft) -> None:
    """Refuse work, lower its priority, or warn. Work without a budget is left unchanged."""
    budgets, now, gpu_machines = draft.request.budgets, draft.request.now, draft.request.gpu_machines
    if not budgets or now is None:
        return
    judged = _begins(draft, draft.request.user)
    if judged is None:
        return
    tenant = str(at(draft.request.tenant, ("metadata", "name")) or "")
    with_gpus = asks_gpus(draft.obj.get("spec"), gpu_machines) or _names(labels_of(draft.obj), gpu_machines)
    standing_of_all = standings(budgets, user=judged.user, tenant=tenant, now=now)
    of_gpus = with_gpus and judged.beginning is not _Beginning.LARGER
    if draft.request.kind == "Workflow" and not with_gpus:
        _mark_without_gpus(draft, standing_of_all)
    over = strictest(standing for standing in standing_of_all if standing.budget.is_money or of_gpus)
    if over is None:
        return
    match judged.beginning:
        case _Beginning.NEW:
            _judge_new(draft, over)
        case _Beginning.MORE | _Beginning.LARGER if over.budget.when_over == REFUSE:
            _judge_new(draft, over)
        case _Beginning.MORE | _Beginning.LARGER:
            draft.warnings.append(over.text)
        case _Beginning.POD if over.budget.when_over == REFUSE and with_gpus and _is_without_gpus(draft.obj):
            _judge_new(draft, over)
        case _Beginning.POD if over.budget.when_over != WARN:
            _pod_behind(draft)
        case _Beginning.CLASS_LEFT if over.budget.when_over != WARN and _template_behind(draft):
            draft.warnings.append(f"{over.text}: it continues to wait behind the work of others")


def asks_gpus(spec: Any, gpu_machines: Collection[str] = ()) -> bool:
    """Whether any part of a spec requests GPUs.

    A spec can request them by a resource, a field `gpus` or a machine type with GPUs. A claim of devices
    counts too: the devices may be GPUs.
    """
    if isinstance(spec, Mapping):
        return _names(spec, gpu_machines) or any(
            (
                (is_gpu(str(key)) or "{{" in str(key) or key in ("gpus", "gpu", "gpuClaim", "resourceClaims"))
                and value not in (None, 0, "0", "", {}, [])
            )
            or (key == "podSpecPatch" and isinstance(value, str) and _patch_asks_gpus(value))
            or (key == "manifest" and isinstance(value, str) and _manifest_asks_gpus(value))
            or (key == "machine" and isinstance(value, Mapping) and value.get("type") in gpu_machines)
            or asks_gpus(value, gpu_machines)
            for key, value in spec.items()
        )
    if isinstance(spec, list):
        return any(asks_gpus(value, gpu_machines) for value in spec)
    return False


def _patch_asks_gpus(text: str) -> bool:
    """Whether a patch of a pod spec (JSON or YAML text) requests GPUs. True if the text contains template tags."""
    if "{{" in text:
        return True
    try:
        return asks_gpus(parse_document(text))
    except DocumentError:  # the API server makes no pod of it
        return False


def _manifest_asks_gpus(text: str) -> bool:
    """Whether the manifest of a workflow step requests GPUs.

    A field whose name comes from a tag may be a GPU field.
    """
    first, *rest = text.split("{{")
    plain = first + "".join("gpu" + part.partition("}}")[2] for part in rest)
    try:
        return asks_gpus(parse_document(plain))
    except DocumentError:  # until its tags are replaced
        return "gpu" in text.lower()


def _gpus_asked(spec: Any, gpu_machines: Collection[str]) -> list[str]:
    """The fields of a spec that request GPUs, as `FIELD=VALUE`."""
    if isinstance(spec, Mapping):
        own = [
            f"{key}={value}"
            for key, value in spec.items()
            if (key == "machine" or not _is_nested(value)) and asks_gpus({key: value}, gpu_machines)
        ]
        return own + [each for value in spec.values() for each in _gpus_asked(value, gpu_machines)]
    return [each for value in spec for each in _gpus_asked(value, gpu_machines)] if isinstance(spec, list) else []


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _growth(request: Request) -> _Beginning | None:
    """The resources that an update adds to work that was judged before; None if it adds none."""
    old, obj = request.old or request.obj, request.obj
    if old.get("spec") == obj.get("spec"):
        return None
    if request.kind == "Workflow" or (request.kind == "Job" and not queue_of(obj)):
        was, will = (at(each, ("spec", "suspend")) is True for each in (old, obj))
        if was and not will:
            return _Beginning.MORE
    if request.kind in WORKLOADS:
        for field in ("replicas", "parallelism"):  # one is Kubernetes' default of both
            before, after = (
                number if isinstance(number := at(each, ("spec", field)), int) else 1 for each in (old, obj)
            )
            if after > before:
                return _Beginning.MORE
    gpus_before, gpus = (Counter(_gpus_asked(each.get("spec"), request.gpu_machines)) for each in (old, obj))
    if gpus - gpus_before:
        return _Beginning.MORE
    return _Beginning.LARGER if _amounts(request.kind, obj) - _amounts(request.kind, old) else None


def _amounts(kind: str, obj: Obj) -> Counter[str]:
    """The CPU and memory requests of each pod of a workload or workspace. Empty if an amount is invalid."""
    if kind == "Workspace":
        resources = mapping(at(obj, ("spec", "resources")))
        asked = {name: resources[name] for name in _PRICED if resources.get(name)}
        spec: Mapping[str, Any] = {"resources": {"requests": asked}}
    else:
        spec = mapping(at(obj, (*WORKLOADS[kind], "spec"))) if kind in WORKLOADS else {}
    try:
        requests = pod_requests(spec)
    except QuantityError:  # the API server refuses it
        return Counter()
    return Counter({name: requests.get(name, 0) for name in _PRICED})


def priority_place(kind: str) -> tuple[str, ...] | None:
    """The path of the pod spec that sets the class. None for kinds whose pods get their class one by one."""
    if kind not in OF_ONE_PIECE and kind != "Pod":
        return None
    return (*map(str, WORKLOADS[kind]), "spec")


def _begins(draft: Draft, user: str) -> _Judged | None:
    """The reason to judge a request, and the owner of the budget. None if it is not judged."""
    request = draft.request
    if request.kind not in KINDS:
        return None
    made = request.is_copy or request.user == OPERATOR
    if request.operation != "CREATE":
        if made:
            return None
        if _leaves_the_end(draft):
            return _Judged(_Beginning.CLASS_LEFT, user)
        if _is_started(request):
            return _Judged(_Beginning.NEW, user)
        growth = _growth(request)
        return _Judged(growth, user) if growth is not None else None
    if not made:
        return _Judged(_Beginning.NEW, user)
    owner = annotations_of(draft.obj).get(OWNER_ANNOTATION, "")
    maker = (controller_ref(draft.obj) or {}).get("kind")
    if request.kind in _SCHEDULES and maker == _SCHEDULES[request.kind]:
        return _Judged(_Beginning.NEW, owner)
    if request.kind == "Pod" and maker != "Job" and not request.is_mirror:
        return _Judged(_Beginning.POD, owner)
    return None


def _judge_new(draft: Draft, over: Standing) -> None:
    if over.budget.when_over == REFUSE:
        draft.refusals.append(
            Refusal("spec", "", f"{over.text}; new work is refused. Ask an administrator for more")
        )
        return
    if over.budget.when_over != QUEUE:
        draft.warnings.append(over.text)
        return
    if draft.request.kind == "Pod":
        _pod_behind(draft)
        draft.warnings.append(f"{over.text}: it waits behind the work of others")
    elif _template_behind(draft):
        draft.warnings.append(f"{over.text}: it waits behind the work of others")
    else:
        draft.warnings.append(f"{over.text}: its pods wait behind the work of others")


def _mark_without_gpus(draft: Draft, standing_of_all: Collection[Standing]) -> None:
    """Annotate a Workflow that starts or continues without GPUs while a budget refuses new work with GPUs."""
    if any(
        standing.is_over and standing.budget.when_over == REFUSE and not standing.budget.is_money
        for standing in standing_of_all
    ):
        put(draft.obj["metadata"], "annotations", OVER_BUDGET_ANNOTATION, NO_GPUS)


def _is_without_gpus(obj: Obj) -> bool:
    return annotations_of(obj).get(OVER_BUDGET_ANNOTATION) == NO_GPUS


def _is_started(request: Request) -> bool:
    """Whether an update starts a workspace that was stopped."""
    was, will = (at(obj, ("spec", "running")) for obj in (request.old, request.obj))
    return request.kind == "Workspace" and was is False and will is not False


def _names(table: Mapping[str, Any], gpu_machines: Collection[str]) -> bool:
    """Whether these labels request a machine type or group with GPUs."""
    return any(table.get(key) in gpu_machines for key in (MACHINE_TYPE_LABEL, MACHINE_GROUP_LABEL))


def _leaves_the_end(draft: Draft) -> bool:
    """Whether an update removes the over-budget priority class from an object."""
    path = priority_place(draft.request.kind)
    if path is None or at(draft.request.old, (*path, "priorityClassName")) != OVER_BUDGET_PRIORITY:
        return False
    return bool(at(draft.obj, (*path, "priorityClassName")) != OVER_BUDGET_PRIORITY)


def _template_behind(draft: Draft) -> bool:
    """Set the over-budget class in a template, in place of the author's. False if there is no template."""
    path = priority_place(draft.request.kind)
    spec = None if path is None or draft.request.kind == "Pod" else at(draft.obj, path)
    if not isinstance(spec, dict):
        return False
    spec["priorityClassName"] = OVER_BUDGET_PRIORITY
    return True


def _pod_behind(draft: Draft) -> None:
    """Set the over-budget priority class of a pod.

    A guest of a machine keeps its class. It gets an annotation instead, and the machine's controller admits
    it after the other guests.
    """
    if is_guest(draft.obj):
        put(draft.obj["metadata"], "annotations", OVER_BUDGET_ANNOTATION, "true")
    elif isinstance(spec := draft.obj.get("spec"), dict):
        spec.update(_CLASS)
