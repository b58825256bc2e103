"""The pod of a step, and nothing else: pure.

A step without outputs is a plain pod, with one main container, or with those of its container set. With
outputs, or with a result that is used, the command of main runs inside a small shell script, and the
containers `init` and `wait` run `executor`. Containers of a set that wait for each other have their own
script. Where the template is built in (`http`, `data`), `main` runs `executor` itself. The main
container of a resource template runs `executor`, with the pod's service account.
docs/design/0017-workflows.md, "Outputs of a step"
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.admission.fields import mapping
from moorage.decide.evaluation import TextError
from moorage.model.argo import (
    COMPLETED_LABEL,
    NODE_ID_ANNOTATION,
    NODE_NAME_ANNOTATION,
    POD_FINALIZER,
    WORKFLOW_LABEL,
    WORKFLOWS,
)
from moorage.model.manifests import HOSTNAME, USER_ID, container_security
from moorage.model.names import (
    ATTEMPT_LABEL,
    CONTAINER_LABEL,
    MAP_LABEL,
    OVER_BUDGET_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    PRIVATE_ROOT_ANNOTATION,
    RUN_LABEL,
    WORKSPACE_LABEL,
)
from moorage_kube.containerresources import request_problem
from moorage_kube.errors import MoorageError, QuantityError
from moorage_kube.resources import PODS, Obj
from moorage_workflows.decide.workflows.builtins import BuiltIn, built_in, is_built_in
from moorage_workflows.decide.workflows.executororders import Ordered, OrderError, make_order
from moorage_workflows.decide.workflows.podpatch import PatchError, patched_spec
from moorage_workflows.decide.workflows.resources.steps import ANSWERS_PATH, account_of, as_container, order_of
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.model.workflow import (
    ORDER_ANNOTATION,
    REPORTS_ANNOTATION,
    SOURCE_ANNOTATION,
    Artifact,
    NodeRecord,
    is_strict,
)

MAIN, INIT, WAIT = "main", "init", "wait"
ARGOS_CONTAINERS = frozenset((INIT, WAIT, "supervisor"))  # of every pod of Argo's
SOURCE_BYTES = 200 * 1024  # of a script: it is an annotation
ANNOTATIONS_BYTES = 256 * 1024  # of all annotations of an object, as the API server allows

STEP_PATH = "/moorage/step"  # the folder that the containers of a step's pod share
ORDER_PATH = "/moorage/order"  # of init and wait: order.json
SCRIPT_PATH = "/moorage/script"  # of main: the source of a script
ACCOUNT_PATH = "/moorage/account"  # of a resource step's main: token and ca.crt of the pod's service account
VOLUMES_PATH = "/moorage/volumes"  # of init: volumes of main that an input artifact lies in
SHELL = f"{STEP_PATH}/bin/busybox"  # brought by init
WRAPPER = f"{STEP_PATH}/wrapper.sh"
MEMBER = f"{STEP_PATH}/member.sh"
_STEP, _ORDER, _SCRIPT, _NO_TOKEN = "moorage-step", "moorage-order", "moorage-script", "moorage-no-token"
_ACCOUNT, _ANSWERS = "moorage-account", "moorage-answers"
_ROOT_CA = "kube-root-ca.crt"  # ConfigMap of every namespace
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_EXECUTOR_RESOURCES = {  # a Python process that streams files
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}

# of pods of runs, maps, workspaces and containers: a manifest may not set them on a step's pod
_OTHERS_LABELS = (RUN_LABEL, ATTEMPT_LABEL, MAP_LABEL, WORKSPACE_LABEL, CONTAINER_LABEL)

# field of the pod's spec → the workflow's field, the template's field; the template's wins
_SCHEDULING = (
    ("nodeSelector", "nodeSelector", "nodeSelector"),
    ("affinity", "affinity", "affinity"),
    ("tolerations", "tolerations", "tolerations"),
    ("schedulerName", "schedulerName", "schedulerName"),
    ("priorityClassName", "podPriorityClassName", "priorityClassName"),
    ("serviceAccountName", "serviceAccountName", "serviceAccountName"),
    ("automountServiceAccountToken", "automountServiceAccountToken", "automountServiceAccountToken"),
    ("securityContext", "securityContext", "securityContext"),
    ("imagePullSecrets", "imagePullSecrets", ""),
    ("hostNetwork", "hostNetwork", ""),
    ("dnsPolicy", "dnsPolicy", ""),
    ("dnsConfig", "dnsConfig", ""),
    ("resources", "podResources", "podResources"),
    ("resourceClaims", "resourceClaims", "resourceClaims"),
)


class PodError(MoorageError):
    """The pod of a step cannot be created, and a retry cannot help."""


class CommandMissing(PodError):
    """A step sets no command, and the command of its image must be known but is not."""

    def __init__(self, message: str, image: str) -> None:
        super().__init__(message)
        self.image = image


class StepRuntime(Struct, frozen=True, kw_only=True):
    """The settings of this installation for pods of steps.

    `image`: Moorage's own, which `init` and `wait` run with `python`. `entrypoints`: image → (ENTRYPOINT,
    CMD), for steps that are wrapped and set no command.
    """

    image: str
    python: str = "python"
    on_processes: bool = False  # the nodes run pods as processes of this machine
    server_url: str = ""
    server_ca: str = ""  # PEM; empty: the system's authorities
    entrypoints: Mapping[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)


class PodRequest(Struct, frozen=True, kw_only=True):
    """One attempt of one step.

    `workflow`: the stored document, with metadata (uid) and the merged spec, globals substituted.
    `template`: fully substituted, a container or a script. `artifacts`: the inputs that were found, by name;
    optional ones may be missing. `volumes`: name in volumeClaimTemplates → claim. `secret`: a Secret in the
    workflow's namespace; its key `token` is the pod's credential for reports; see `needs_executor`.
    `retries`: how often the workflow was retried as a whole.
    """

    record: NodeRecord
    workflow: Mapping[str, Any]
    template: Mapping[str, Any]
    secret: str = ""
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    wants_result: bool = False
    deadline_seconds: int | None = None
    excluded_hosts: tuple[str, ...] = ()
    volumes: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0


def make_pod(request: PodRequest, runtime: StepRuntime) -> Obj:
    """Return the pod to create. Raises PodError, which names the template and the field.

    Patches of the workflow and of the template are applied before the command of `main` is wrapped.
    """
    # templates that the executor carries out have a container of ours as main
    annotations: dict[str, str] = {}
    request, resource = _resource_step(request, runtime, annotations)
    built = _built_in(request)
    mains = _mains_of(request) if built is None else [_built_in_main(request, runtime, built)]
    main = next((container for container in mains if container["name"] == MAIN), mains[-1])
    has_main = main["name"] == MAIN
    # the order decides whether main is wrapped
    ordered = _ordered(request, main, wraps_result=request.wants_result and has_main, keeps=built is None)
    if ordered.wraps and not has_main:
        raise _error(request, "outputs", "are those of a container named main, and the set has none")
    in_turn = _runs_in_turn(request.template, ordered)
    # the parts that the user wrote
    spec: Obj = {"restartPolicy": "Never"} | _scheduling(request)
    if resource and (account := account_of(request.template, request.workflow.get("spec") or {})):
        spec["serviceAccountName"] = account
    if "script" in request.template:
        _add_source(request, main, annotations)
    # the parts that carry inputs and outputs
    _add_inputs(request, main, ordered)
    helpers = _helpers(request, runtime, ordered, in_turn=in_turn)
    sidecars = list(_containers(request, main, "sidecars"))
    spec["containers"] = [*mains, *(container for container in helpers if container["name"] == WAIT), *sidecars]
    before = [container for container in helpers if container["name"] == INIT]
    if before := [*before, *_containers(request, main, "initContainers")]:
        spec["initContainers"] = before
    # limits of this attempt
    if request.excluded_hosts:
        spec["affinity"] = _without_hosts(spec.get("affinity") or {}, request.excluded_hosts)
    if request.deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = max(1, request.deadline_seconds)
    # patches see the user's command, so the wrapping comes after them
    spec["volumes"] = _volumes(request, spec)
    steps = {str(container["name"]) for container in mains}
    spec = _patched(request, spec, steps)
    _end_with_main(spec, {str(container.get("name")) for container in spec["containers"]} - steps - {WAIT})
    if in_turn:
        _wrap_set(request, runtime, spec)
    if ordered.wraps:
        _wrap(request, runtime, spec)
    if not spec["volumes"]:
        del spec["volumes"]
    # the order, where an executor runs in the pod
    if helpers or built is not None or resource:
        order = ordered.document | {"shell": (ordered.wraps or in_turn) and not runtime.on_processes}
        if built is not None:
            order[built.word] = built.document
            annotations[REPORTS_ANNOTATION] = "true"
        if resource:
            order["resource"] = resource
        if in_turn:
            order["set"] = [container["name"] for container in mains]
        annotations[ORDER_ANNOTATION] = json.dumps(order, ensure_ascii=False, sort_keys=True)
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": _metadata(request, runtime, annotations, shown=main["name"]),
        "spec": spec,
    }


def needs_executor(workflow: Mapping[str, Any], template: Mapping[str, Any], *, wants_result: bool) -> bool:
    """Whether a step of this template gets `init` or `wait`, so that it needs the token and the server."""
    inputs = (template.get("inputs") or {}).get("artifacts")
    return bool(inputs) or reports(workflow, template, wants_result=wants_result)


def reports(workflow: Mapping[str, Any], template: Mapping[str, Any], *, wants_result: bool) -> bool:
    """Whether the pod of a step of this template reports its end."""
    if is_built_in(template):
        return True
    outputs = template.get("outputs") or {}
    fields = ("jsonPath", "jqFilter", "default") if template.get("resource") else ("path",)
    sources = [entry.get("valueFrom") or {} for entry in outputs.get("parameters") or ()]
    parameters = any(source.get(name) is not None for source in sources for name in fields)
    wants_result = wants_result and not template.get("resource")
    logs = _archives_logs(workflow.get("spec") or {}, template)
    return bool(wants_result or outputs.get("artifacts") or parameters or logs)


def _resource_step(
    request: PodRequest, runtime: StepRuntime, annotations: dict[str, str]
) -> tuple[PodRequest, Obj | None]:
    """Convert a request for a resource template: it runs a container of ours. Returns the request and the order.

    Requests for other templates are not changed, and have no order.
    """
    template = request.template
    # only resource templates, which need our image
    if not template.get("resource"):
        return request, None
    if not runtime.image:
        raise _error(request, "resource", "needs Moorage's own image, which is not known: set MOORAGE_IMAGE")
    # the order has all fields checked
    try:
        order = order_of(
            template,
            workflow=request.workflow["metadata"],
            node=request.record.id,
            retries=request.retries,
            manifest_path=f"{SCRIPT_PATH}/source",
        )
    except OrderError as error:
        raise _error(request, error.path, error.message) from error
    # the service account's token is mounted here, because automounting may be off
    mounts: list[Obj] = [
        {"name": _ORDER, "mountPath": ORDER_PATH, "readOnly": True},
        {"name": _ACCOUNT, "mountPath": ACCOUNT_PATH, "readOnly": True},
        {"name": _ANSWERS, "mountPath": ANSWERS_PATH},
    ]
    if order["manifest"] == f"{SCRIPT_PATH}/source":
        manifest = str(template["resource"]["manifest"])
        _check_source(request, "resource.manifest", manifest, "pass it as an artifact, by manifestFrom")
        annotations[SOURCE_ANNOTATION] = manifest
        mounts.append({"name": _SCRIPT, "mountPath": SCRIPT_PATH, "readOnly": True})
    # the container, as a user would write it
    container: Obj = {
        "image": runtime.image,
        "command": [runtime.python, "-m", "moorage_workflows.executor", "resource"],
        "args": ["--order", f"{ORDER_PATH}/order.json", "--account", ACCOUNT_PATH],
        "env": [
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        ],
        "resources": {} if _has_budget(request) else copy.deepcopy(_EXECUTOR_RESOURCES),
        "securityContext": _executor_security(request),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return replace(request, template=as_container(template, order, container), wants_result=False), order


def _executor_security(request: PodRequest) -> Obj:
    user = request.template.get("securityContext") or (request.workflow["spec"].get("securityContext")) or {}
    return container_security() | {
        "runAsNonRoot": True,
        "runAsUser": user.get("runAsUser") or USER_ID,
        "runAsGroup": user.get("runAsGroup") or USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _check_source(request: PodRequest, field: str, text: str, instead: str) -> None:
    """Check the limit for a text in an annotation."""
    size = len(text.encode())
    if size > SOURCE_BYTES:
        raise _error(request, field, f"has {size} bytes, and at most {SOURCE_BYTES} are allowed: {instead}")


def _mains_of(request: PodRequest) -> list[Obj]:
    """Return the containers of the step: one, or those of its container set."""
    template = request.template
    kind = next((kind for kind in ("container", "script", "containerSet") if template.get(kind)), "")
    if not kind:
        raise _error(request, "container", "is missing: a pod needs a container, a script or a container set")
    if kind != "containerSet":
        return [{**_container(request, template[kind], kind), "name": MAIN}]
    mounts = template[kind].get("volumeMounts") or ()
    members = []
    for number, given in enumerate(template[kind].get("containers") or ()):
        member = _container(request, given, f"containerSet.containers[{number}]")
        if member.get("name") in (None, "", INIT, WAIT):
            raise _error(
                request, f"containerSet.containers[{number}].name", f"is {member.get('name')!r}: use another name"
            )
        if mounts:
            member["volumeMounts"] = [*(member.get("volumeMounts") or ()), *copy.deepcopy(list(mounts))]
        members.append(member)
    if not members:
        raise _error(request, "containerSet.containers", "is empty: a set needs a container")
    return members


def _built_in(request: PodRequest) -> BuiltIn | None:
    try:
        return built_in(request.template, wants_result=request.wants_result)
    except OrderError as error:
        raise _error(request, error.path, error.message) from error


def _built_in_main(request: PodRequest, runtime: StepRuntime, built: BuiltIn) -> Obj:
    """Return a container with the executor as main.

    The executor reports a missing Secret; the pod would only wait.
    """
    secrets = [{**selector, "optional": True} for selector in built.secrets]
    return _helper(request, runtime, built.word, secrets) | {"name": MAIN}


def _container(request: PodRequest, given: Mapping[str, Any], field: str) -> Obj:
    """Return a container of the step without fields that only Argo has."""
    container: Obj = copy.deepcopy(dict(given))
    for key in ("source", "mirrorVolumeMounts", "dependencies"):
        container.pop(key, None)
    if not container.get("image"):
        raise _error(request, f"{field}.image", "is missing: a step needs an image")
    return container


def _runs_in_turn(template: Mapping[str, Any], ordered: Ordered) -> bool:
    """Whether the containers of a set run in the script that lets them wait for each other.

    Outputs are complete only when all containers have ended, because any of them may write into a shared volume.
    """
    group = template.get("containerSet") or {}
    containers = group.get("containers") or ()
    return bool(
        any(container.get("dependencies") for container in containers)
        or (containers and (group.get("retryStrategy") or {}).get("retries") is not None)
        or (ordered.wraps and len(containers) > 1)
    )


def _add_source(request: PodRequest, main: Obj, annotations: dict[str, str]) -> None:
    """Mount the source of a script as an executable file, and append its path to the command."""
    source = str(request.template["script"].get("source") or "")
    if not source:
        return
    _check_source(request, "script.source", source, "put the program into the image, or pass it as an artifact")
    annotations[SOURCE_ANNOTATION] = source
    _mount(main, _SCRIPT, SCRIPT_PATH)
    main["args"] = [*(main.get("args") or ()), f"{SCRIPT_PATH}/source"]


def _ordered(request: PodRequest, main: Obj, *, wraps_result: bool, keeps: bool) -> Ordered:
    """`keeps`: files and output of main are saved as outputs."""
    spec = request.workflow.get("spec") or {}
    try:
        return make_order(
            request.template if keeps else {**request.template, "outputs": {}},
            request.artifacts,
            workflow=request.workflow["metadata"],
            pod=request.record.pod_name,
            mounts=main.get("volumeMounts") or (),
            wants_result=wraps_result and keeps,
            archives_logs=keeps and _archives_logs(spec, request.template),
        )
    except OrderError as error:
        raise _error(request, error.path, error.message) from error


def _archives_logs(spec: Mapping[str, Any], template: Mapping[str, Any]) -> bool:
    own = (template.get("archiveLocation") or {}).get("archiveLogs")
    return bool(spec.get("archiveLogs") if own is None else own)


def _add_inputs(request: PodRequest, main: Obj, ordered: Ordered) -> None:
    """Mount each input artifact at its path, except in a volume of main."""
    taken = {str(mount.get("mountPath")).rstrip("/") for mount in main.get("volumeMounts") or ()}
    for number, artifact in enumerate(ordered.inputs):
        if artifact.mount is not None:
            continue
        if artifact.path in taken:
            raise _error(request, artifact.field, f"has the path {artifact.path!r}, which another input has")
        taken.add(artifact.path)
        _mount(main, _STEP, artifact.path, subPath=f"in/{number}")


def _helpers(request: PodRequest, runtime: StepRuntime, ordered: Ordered, *, in_turn: bool) -> list[Obj]:
    """Return `init`, if there are inputs or a command to wrap, and `wait`, if there are outputs to save."""
    helpers = []
    if ordered.inputs or ordered.wraps or in_turn:
        init = _helper(request, runtime, INIT, ordered.input_secrets)
        for number, artifact in enumerate(ordered.inputs):
            if artifact.mount is not None:
                place = {key: artifact.mount[key] for key in ("name", "subPath") if artifact.mount.get(key)}
                init["volumeMounts"].append({**place, "mountPath": f"{VOLUMES_PATH}/{number}"})
        helpers.append(init)
    if ordered.wraps:
        helpers.append(_helper(request, runtime, WAIT, ordered.output_secrets))
    return helpers


def _helper(request: PodRequest, runtime: StepRuntime, name: str, secrets: Sequence[Mapping[str, Any]]) -> Obj:
    """Return a container for a part of the executor: restricted, without the token of the service account."""
    if not runtime.image:
        field = next((kind for kind in ("http", "data") if request.template.get(kind)), "outputs")
        raise _error(request, field, "needs Moorage's own image, which is not known: set MOORAGE_IMAGE")
    env: list[Obj] = [
        {"name": "MOORAGE_SERVER", "value": runtime.server_url},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "HOME", "value": f"{STEP_PATH}/tmp"},
        {"name": "TMPDIR", "value": f"{STEP_PATH}/tmp"},
    ]
    if request.secret:
        token = {"secretKeyRef": {"name": request.secret, "key": "token"}}
        env.append({"name": "MOORAGE_STEP_TOKEN", "valueFrom": token})
    if runtime.server_ca:
        env.append({"name": "MOORAGE_SERVER_CA", "value": runtime.server_ca})
    env += [
        {"name": f"MOORAGE_SECRET_{number}", "valueFrom": {"secretKeyRef": dict(selector)}}
        for number, selector in enumerate(secrets)
    ]
    return {
        "name": name,
        "image": runtime.image,
        "command": [runtime.python, "-m", "moorage_workflows.executor", name],
        "args": ["--step", STEP_PATH, "--order", f"{ORDER_PATH}/order.json"],
        "env": env,
        "resources": {} if _has_budget(request) else copy.deepcopy(_EXECUTOR_RESOURCES),
        "securityContext": _executor_security(request),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _STEP, "mountPath": STEP_PATH},
            {"name": _ORDER, "mountPath": ORDER_PATH, "readOnly": True},
            *([] if runtime.on_processes else [{"name": _NO_TOKEN, "mountPath": _TOKEN_PATH, "readOnly": True}]),
        ],
    }


def _has_budget(request: PodRequest) -> bool:
    """Whether the pod has pod-level resources, which all its containers share."""
    return bool(request.template.get("podResources") or (request.workflow.get("spec") or {}).get("podResources"))


def _containers(request: PodRequest, main: Obj, where: str) -> Iterator[Obj]:
    """Yield init containers or sidecars of the template. With `mirrorVolumeMounts` they get main's volumes."""
    for number, given in enumerate(request.template.get(where) or ()):
        container: Obj = copy.deepcopy(dict(given))
        if container.get("name") in (MAIN, INIT, WAIT):
            raise _error(request, f"{where}[{number}].name", f"is {container['name']!r}, which has a meaning here")
        if container.pop("mirrorVolumeMounts", False):
            own = container.get("volumeMounts") or []
            taken = {mount.get("mountPath") for mount in own}
            mirrored = [mount for mount in main.get("volumeMounts") or () if mount["mountPath"] not in taken]
            container["volumeMounts"] = [*own, *copy.deepcopy(mirrored)]
        yield container


def _scheduling(request: PodRequest) -> Obj:
    """The fields of the workflow and the template that are copied to the pod."""
    workflow, template = request.workflow.get("spec") or {}, request.template
    spec: Obj = {}
    for name, of_workflow, of_template in _SCHEDULING:
        value = template.get(of_template) if of_template else None
        if value is None or value in ({}, [], ""):
            value = workflow.get(of_workflow)
        if value is not None and value not in ({}, [], ""):
            spec[name] = copy.deepcopy(value)
    aliases = [*(workflow.get("hostAliases") or ()), *(template.get("hostAliases") or ())]
    return spec | ({"hostAliases": copy.deepcopy(aliases)} if aliases else {})


def _without_hosts(affinity: Mapping[str, Any], hosts: Sequence[str]) -> Obj:
    """Return the affinity with a rule that excludes these hosts."""
    made: Obj = copy.deepcopy(dict(affinity))
    node = made.setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    expression = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(set(hosts))}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), expression]} for term in terms
    ]
    return made


def _volumes(request: PodRequest, spec: Mapping[str, Any]) -> list[Obj]:
    """Return the volumes that containers mount: ours, the template's, the workflow's, and its claims."""
    known: dict[str, Obj] = {
        _STEP: {"emptyDir": {}},
        _NO_TOKEN: {"emptyDir": {}},
        _ORDER: _downward(ORDER_ANNOTATION, "order.json", 0o444),
        _SCRIPT: _downward(SOURCE_ANNOTATION, "source", 0o755),
        _ANSWERS: {"emptyDir": {}},
        _ACCOUNT: _account_volume(),
    }
    ours = frozenset(known)
    known |= {name: {"persistentVolumeClaim": {"claimName": claim}} for name, claim in request.volumes.items()}
    for volume in (*((request.workflow.get("spec") or {}).get("volumes") or ()), *_template_volumes(request)):
        if volume["name"] in ours:
            raise _error(request, "volumes", f"has the name {volume['name']!r}, which Moorage uses itself")
        known[volume["name"]] = {key: copy.deepcopy(volume[key]) for key in volume if key != "name"}
    patches = _patches(request)
    wanted: dict[str, None] = {}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        mounts = [*(container.get("volumeMounts") or ()), *(container.get("volumeDevices") or ())]
        for mount in mounts:
            name = str(mount.get("name"))
            if name not in known and not any(name in text for _, text in patches):
                raise _error(
                    request,
                    "volumeMounts",
                    f"of the container {container.get('name')!r} has the volume {name!r}, which is neither in"
                    " `volumes` of the template or the workflow nor in `volumeClaimTemplates`",
                )
            wanted[name] = None
    wanted |= {name: None for name in known if name not in ours and any(name in text for _, text in patches)}
    return [{"name": name, **known[name]} for name in wanted if name in known]


def _template_volumes(request: PodRequest) -> Sequence[Mapping[str, Any]]:
    return request.template.get("volumes") or ()


def _account_volume() -> Obj:
    """The volume that a kubelet mounts for a service account, also where `automountServiceAccountToken` is
    false.
    """
    sources: list[Obj] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": _ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return {"projected": {"sources": sources}}


def _downward(annotation: str, path: str, mode: int) -> Obj:
    field_path = {"fieldPath": f"metadata.annotations['{annotation}']"}
    return {"downwardAPI": {"items": [{"path": path, "fieldRef": field_path, "mode": mode}]}}


def _patches(request: PodRequest) -> list[tuple[str, str]]:
    """Return the patches of the workflow and the template, with the field of each."""
    spec = request.workflow.get("spec") or {}
    patches = [
        ("spec.podSpecPatch", spec.get("podSpecPatch")),
        ("podSpecPatch", request.template.get("podSpecPatch")),
    ]
    return [(where, str(text)) for where, text in patches if text]


def _patched(request: PodRequest, spec: Obj, mains: Iterable[str]) -> Obj:
    """The spec with the patches. Patches of Argo's containers that this pod does not have are left out."""
    had = {
        group: {str(container["name"]) for container in spec.get(group) or ()}
        for group in ("containers", "initContainers")
    }
    for where, text in _patches(request):
        try:
            spec = patched_spec(spec, text)
        except PatchError as error:
            raise _error(request, where, error.message) from error
        names = [
            container.get("name") for container in spec.get("containers") or () if isinstance(container, dict)
        ]
        for main in mains:
            if main not in names:
                raise _error(request, where, f"removes the container {main}")
        for group, known in had.items():
            if isinstance(spec.get(group), list):
                spec[group] = [
                    container
                    for container in spec[group]
                    if not isinstance(container, dict)
                    or container.get("name") not in ARGOS_CONTAINERS - known
                    or container.get("image")
                ]
                if group == "initContainers" and not spec[group]:
                    del spec[group]
        spec["restartPolicy"] = "Never"  # an attempt is a pod: retries are the workflow's
    for group in had:
        if isinstance(spec.get(group), list):
            spec[group] = [_fitted(container) for container in spec[group]]
    return {**spec, "volumes": spec.get("volumes") or []}


def _fitted(container: Any) -> Any:
    """Replace our own amounts that conflict with a patch: Argo's `init` and `wait` have none."""
    if not isinstance(container, dict) or container.get("name") not in (INIT, WAIT):
        return container
    container = copy.deepcopy(container)
    tables = mapping(container.get("resources"))
    requests, limits = tables.get("requests"), tables.get("limits")
    if not isinstance(requests, dict) or not isinstance(limits, dict):
        return container
    for name, own in _EXECUTOR_RESOURCES["limits"].items():
        with contextlib.suppress(QuantityError):  # the API server refuses it
            if name in requests and name in limits and request_problem(name, requests[name], limits[name]):
                if limits[name] == own:
                    limits[name] = requests[name]
                elif requests[name] == _EXECUTOR_RESOURCES["requests"][name]:
                    requests[name] = limits[name]
    return container


def _end_with_main(spec: Obj, names: set[str]) -> None:
    """Turn these containers into Kubernetes sidecars: they end when the others have ended."""
    sidecars = [{**entry, "restartPolicy": "Always"} for entry in spec["containers"] if entry.get("name") in names]
    spec["containers"] = [entry for entry in spec["containers"] if entry.get("name") not in names]
    if sidecars:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), *sidecars]


def _wrap(request: PodRequest, runtime: StepRuntime, spec: Obj) -> None:
    """Let the script run main's command. The container `init` supplies the script and its shell."""
    main = next(container for container in spec["containers"] if container["name"] == MAIN)
    words = _words(request, runtime, main, "the outputs of the step need")
    main["command"] = [*_shell(runtime), WRAPPER, STEP_PATH, *words]
    main.pop("args", None)
    _mount_step(main)


def _wrap_set(request: PodRequest, runtime: StepRuntime, spec: Obj) -> None:
    """Let each container of a set wait for the containers that it depends on, and record how it ended."""
    group = request.template["containerSet"]
    again, pause = _set_retries(request, group.get("retryStrategy") or {})
    containers = {container["name"]: container for container in spec["containers"]}
    for given in group["containers"]:
        container = containers[given["name"]]
        words = _words(request, runtime, container, "the set needs")
        dependencies = ",".join(str(name) for name in given.get("dependencies") or ())
        script = [*_shell(runtime), MEMBER, STEP_PATH, given["name"], str(again), pause, dependencies]
        container["command"] = [*script, *words]
        container.pop("args", None)
        _mount_step(container)


def _set_retries(request: PodRequest, strategy: Mapping[str, Any]) -> tuple[int, str]:
    """Return the maximum number of retries of a command in the set, and the seconds between two attempts."""
    field, text = "containerSet.retryStrategy", str(strategy.get("retries") or 0)
    if not text.isascii() or not text.isdigit():
        raise _error(request, f"{field}.retries", f"is {text!r}: use a whole number, such as 3")
    try:
        pause = parse_duration(str(strategy["duration"])) if strategy.get("duration") else timedelta(0)
    except TextError as error:
        raise _error(request, f"{field}.duration", error.message) from error
    if pause < timedelta(0):
        raise _error(request, f"{field}.duration", f"is {strategy['duration']!r}: it must not be negative")
    again = int(text) - 1 if is_strict(request.workflow) else int(text)
    return max(again, 0), f"{pause.total_seconds():g}"


def _words(request: PodRequest, runtime: StepRuntime, container: Mapping[str, Any], why: str) -> list[str]:
    """Return the whole command of a container; that of its image if the manifest has none.

    Raises CommandMissing.
    """
    command, args = list(container.get("command") or ()), list(container.get("args") or ())
    if command:
        return command + args
    image = str(container.get("image"))
    entrypoint, usual = runtime.entrypoints.get(image, ((), ()))
    if not entrypoint and not ((args or usual) and image in runtime.entrypoints):
        kind = next(kind for kind in ("container", "script", "containerSet") if request.template.get(kind))
        where = f"{kind}.containers[{container['name']}]" if kind == "containerSet" else kind
        what = f"is missing, and the command of the image {image!r} is not known, which {why}: set `command`"
        raise CommandMissing(_error(request, f"{where}.command", what).message, image)
    return [*entrypoint, *(args or usual)]


def _shell(runtime: StepRuntime) -> list[str]:
    return ["/bin/sh"] if runtime.on_processes else [SHELL, "sh"]


def _mount_step(container: Obj) -> None:
    if not any(mount.get("mountPath") == STEP_PATH for mount in container.get("volumeMounts") or ()):
        _mount(container, _STEP, STEP_PATH)


def _mount(container: Obj, volume: str, path: str, **more: Any) -> None:
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": volume, "mountPath": path, **more},
    ]


def _metadata(request: PodRequest, runtime: StepRuntime, own: Mapping[str, str], *, shown: str) -> Obj:
    """Return the pod's metadata: the workflow's podMetadata, then the template's metadata, then ours.

    `shown`: the container whose log is the log of the step.
    """
    # metadata of the workflow, then of the template
    meta, spec = request.workflow["metadata"], request.workflow.get("spec") or {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {_DEFAULT_CONTAINER: shown}
    if runtime.on_processes:
        annotations[PRIVATE_ROOT_ANNOTATION] = "true"
    for given in (spec.get("podMetadata") or {}, request.template.get("metadata") or {}):
        labels |= given.get("labels") or {}
        annotations |= given.get("annotations") or {}
    # labels of other controllers would hand the pod to them
    for key in _OTHERS_LABELS:
        labels.pop(key, None)
    labels |= {WORKFLOW_LABEL: str(meta["name"]), COMPLETED_LABEL: "false"}
    annotations |= {NODE_ID_ANNOTATION: request.record.id, NODE_NAME_ANNOTATION: request.record.name, **own}
    # the owner and the budget always come from the workflow
    for table, of_workflow, key in (
        (labels, meta.get("labels") or {}, OWNER_LABEL),
        (annotations, meta.get("annotations") or {}, OWNER_ANNOTATION),
        (annotations, meta.get("annotations") or {}, OVER_BUDGET_ANNOTATION),
    ):
        table.pop(key, None)
        if of_workflow.get(key):
            table[key] = of_workflow[key]
    # Kubernetes limits all annotations of an object together
    size = sum(len(str(key).encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        raise _error(
            request,
            "inputs.artifacts",
            f"needs {size} bytes of annotations with the script and all raw artifacts, and at most"
            f" {ANNOTATIONS_BYTES} are allowed: put large data into the store of artifacts",
        )
    return {
        "name": request.record.pod_name,
        "namespace": meta.get("namespace") or "default",
        "labels": {key: str(value) for key, value in labels.items()},
        "annotations": {key: str(value) for key, value in annotations.items()},
        "finalizers": [POD_FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": WORKFLOWS.api_version,
                "kind": WORKFLOWS.kind,
                "name": meta["name"],
                "uid": meta["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _error(request: PodRequest, path: str, what: str) -> PodError:
    name = request.record.template or request.template.get("name") or request.record.display_name
    subject = path if path.startswith("spec.") else f"template {name!r}: {path}"
    return PodError(f"{subject} {what}")
