"""The form of a new run: its fields, its request, and the form of an existing run. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from moorage.api.jobs import NewJob
from moorage.decide.explain.nodeconstraints import wanted_types
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.runs.credentials import is_credential
from moorage.decide.runs.gitaddress import REF_MAX, URL_MAX
from moorage.decide.runs.gputypes import DEFAULT_GPU_RESOURCE
from moorage.decide.runs.job import PASSED_ON
from moorage.decide.runs.mounts import WORK_PATH
from moorage.decide.runs.request import Defaults
from moorage.decide.runs.runfile import stored_request
from moorage.decide.runs.timelimit import format_seconds
from moorage.decide.runs.users import HOME, user_of_pod
from moorage.decide.usage.gpus import GpuView
from moorage.model.dataset import claim_name, reader_claim_name, used_datasets
from moorage.model.labels import user_labels
from moorage.model.names import (
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_ENV,
    CHECKPOINT_PATH,
    GIT_ANNOTATION,
    HOST_ENV_ANNOTATION,
    HOST_IMAGE,
    MEMORY_DEFAULTED_ANNOTATION,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUNNER_PATH,
    TIME_LIMIT_ANNOTATION,
)
from moorage.present.commandlines import command_words
from moorage.server.codeupload import PACKED, UPLOAD
from moorage.server.inputs import as_struct
from moorage.server.pages.board import type_name
from moorage.server.pages.forms import Field, Option, Reader
from moorage_kube.integers import integer_or
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu, parse_pod

CODE = Field(name="codeOf", label="", kind="hidden")  # the run that is started again
SENT = Field(name=PACKED, label="", kind="hidden")  # the files of the form that was checked
NUMBERS = ("gpus", "retries", "restartLimit", "gracePeriodSeconds")


class Around(Struct, frozen=True, kw_only=True):
    """The choices and facts in a form: the user's namespaces, and the objects in the chosen one."""

    namespaces: Sequence[str]
    gpus: GpuView
    defaults: Defaults  # of the namespace that is chosen
    volumes: Sequence[str] = ()
    datasets: Sequence[str] = ()
    secrets: Sequence[str] = ()
    quota: Sequence[str] = ()  # sentences
    on_processes: bool = False


def job_fields(around: Around) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The common fields of a new run, and those under "More"."""
    image = image_field(around)
    # the fields that most runs need
    common = (
        Field(
            name="command",
            label="Command",
            kind="area",
            example="python train.py --epochs 3",
            hint="Pipes, variables and several lines run in sh.",
            required=True,
        ),
        Field(
            name=UPLOAD,
            label="Upload code",
            kind="file",
            hint="A zip or tar archive, or files. The command starts in their folder.",
        ),
        Field(
            name="git",
            label="Or code from git",
            example="https://github.com/team/project@main",
            hint="URL or URL@BRANCH. The image needs git. If it is private, add a secret with GIT_TOKEN.",
            most=URL_MAX + REF_MAX,
        ),
        Field(
            name="workingDir",
            label="Or code from a folder of a volume",
            example="code:project",
            hint="VOLUME:FOLDER. The command starts there.",
            suggestions=tuple(f"{name}:" for name in around.volumes),
            most=300,
        ),
        *place_fields(around),
        *(() if around.on_processes else (image,)),
        *size_fields(around, "its"),
        Field(
            name="time",
            label="Time limit",
            example=format_seconds(around.defaults.seconds) if around.defaults.seconds else "none",
            hint="It is stopped after this: 2h, 90m or 1d12h.",
            most=20,
        ),
        Field(
            name="checkpoint",
            label="Volume for checkpoints",
            hint="NAME or NAME:20Gi, made if missing. The command writes to $MOORAGE_CHECKPOINT_DIR.",
            suggestions=tuple(around.volumes),
            most=80,
        ),
    )
    # the rest, under "More": failures and restarts, labels, other places and devices
    folded = (
        *mount_fields(around),
        Field(name="retries", label="Retries", kind="number", value="0", hint="After a failure.", most=100),
        Field(
            name="restartLimit",
            label="Restart limit",
            kind="number",
            example="20",
            hint="Restarts after preemption, drain or loss of its node.",
            most=1000,
        ),
        Field(
            name="gracePeriodSeconds",
            label="Grace period",
            kind="number",
            hint="Seconds to end in; 30 if empty.",
            most=86400,
        ),
        Field(
            name="labels",
            label="Labels",
            kind="area",
            example="project=vision",
            hint="KEY=VALUE, one on each line. They group runs: moor jobs -l project=vision lists them.",
        ),
        Field(name="priorityClass", label="Priority class"),
        Field(name="machine", label="Machine", example="GROUP/TYPE", hint="Leave out GPUs, CPU and memory."),
        Field(name="gpuClaim", label="GPU claim", hint="A ResourceClaimTemplate, instead of a number of GPUs."),
        Field(name="queue", label="Queue", hint="A queue of Kueue, where it is installed."),
        Field(
            name="user", label="User", example="1000:1000", hint="UID:GID of the command; the image's if empty."
        ),
        Field(name="gpuResource", label="GPU resource", example=DEFAULT_GPU_RESOURCE, hint="For slices of GPUs."),
        *((image, host_field()) if around.on_processes else ()),
    )
    return common, folded


def place_fields(around: Around) -> tuple[Field, ...]:
    """Name and namespace: the first fields of every form."""
    return (
        Field(name="name", label="Name", example="made from the command", hint="a-z, 0-9 and -", most=50),
        Field(
            name="namespace",
            label="Namespace",
            kind="choice",
            options=tuple(Option(name, name) for name in around.namespaces),
            hint=" ".join(around.quota),
        ),
    )


def size_fields(around: Around, whose: str) -> tuple[Field, ...]:
    """The fields for GPUs, CPUs and memory."""
    cpu, memory = around.defaults.cpu, around.defaults.memory
    return (
        Field(name="gpus", label="GPUs", kind="number", value="0", hint=free_words(around.gpus), most=1024),
        Field(name="gpuType", label="GPU type", kind="choice", options=gpu_options(around.gpus)),
        Field(
            name="memory", label="Memory", example=memory, most=20,
            hint=f"{whose.capitalize()} limit, such as 8Gi; {memory} if empty ({around.defaults.origin}).",
        ),
        Field(name="cpu", label="CPUs", example=cpu, hint=f"Such as 4 or 500m; {cpu} if empty.", most=20),
    )  # fmt: skip


def mount_fields(around: Around) -> tuple[Field, ...]:
    """The fields for variables, secrets, volumes and datasets, one per line."""
    volumes, datasets, secrets = (", ".join(names) for names in (around.volumes, around.datasets, around.secrets))
    return (
        Field(name="env", label="Variables", kind="area", example="LEARNING_RATE=0.1", hint="One on each line."),
        Field(
            name="secrets",
            label="Secrets",
            kind="area",
            example="wandb",
            hint="NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH, one on each line."
            f" {f'There are {secrets}.' if secrets else ''}",
        ),
        Field(
            name="volumes",
            label="Volumes",
            kind="area",
            example="data:/data",
            hint=f"NAME:/PATH or NAME:/PATH:ro, one on each line. {f'There are {volumes}.' if volumes else ''}",
        ),
        Field(
            name="datasets",
            label="Datasets",
            kind="area",
            example="images:/images",
            hint=f"NAME:/PATH, one on each line. {f'There are {datasets}.' if datasets else ''}",
        ),
    )


def image_field(around: Around) -> Field:
    usual = around.defaults.image
    hint = "This cluster runs commands on this machine itself." if around.on_processes else "The container image."
    return Field(
        name="image",
        label="Image",
        example=usual or "python:3.12-slim",
        hint=f"{usual} if empty." if usual else hint,
        required=not usual and not around.on_processes,
        most=1024,
    )


def host_field() -> Field:
    return Field(name="hostEnv", label="Run the image's command in this machine's environment", kind="tick")


def gpu_options(gpus: GpuView) -> tuple[Option, ...]:
    types = sorted(gpus.by_type.items())
    listed = (
        Option(kind, f"{type_name(kind)}: {counts.free} of {counts.total} free, {counts.together} on one node")
        for kind, counts in types
    )
    return (Option("", "any"), *listed)


def free_words(gpus: GpuView) -> str:
    totals = gpus.totals
    if not totals.total:
        return "No node of this cluster has GPUs."
    together = max((node.counts.together for node in gpus.nodes), default=0)
    return f"{totals.free} of {totals.total} are free, at most {together} on one node."


def read_job(given: Mapping[str, str], *, dry_run: bool = False, has_upload: bool = False) -> NewJob:
    """Read the run from a form. Raises BadForm with all invalid fields, Problem 422."""
    reader = Reader(given)
    command = read_command(reader, given)
    body = {
        "command": command,
        "namespace": given.get("namespace", ""),
        "name": reader.text("name"),
        "image": reader.text("image"),
        "env": reader.pairs("env", "variable", "NAME=VALUE"),
        "secrets": reader.lines("secrets"),
        "labels": reader.pairs("labels", "label", "KEY=VALUE"),
        "gpus": reader.number("gpus", 0, "number of GPUs"),
        "gpuType": reader.text("gpuType"),
        "gpuResource": reader.text("gpuResource"),
        "gpuClaim": reader.text("gpuClaim"),
        "machine": reader.text("machine"),
        "cpu": reader.text("cpu"),
        "memory": reader.text("memory"),
        "time": reader.text("time"),
        "volumes": reader.lines("volumes"),
        "datasets": reader.lines("datasets"),
        "checkpoint": reader.text("checkpoint"),
        "git": reader.text("git"),
        "workingDir": reader.text("workingDir"),
        "gracePeriodSeconds": reader.number("gracePeriodSeconds", None, "grace period"),
        "priorityClass": reader.text("priorityClass"),
        "queue": reader.text("queue"),
        "user": reader.text("user"),
        "retries": reader.number("retries", 0, "number of retries"),
        "restartLimit": reader.number("restartLimit", None, "restart limit"),
        "hostEnv": reader.ticked("hostEnv"),
        "codeOf": None if has_upload else reader.text("codeOf"),
        "dryRun": dry_run,
    }
    # an upload replaces the code of another run, and no other place
    if has_upload and (body["git"] or body["workingDir"]):
        name = "git" if body["git"] else "workingDir"
        reader.refuse(
            name, "two places for the code: clear this field, or reload the page to drop the uploaded files"
        )
    reader.check()
    return as_struct(body, NewJob)


def read_command(reader: Reader, given: Mapping[str, str]) -> list[str]:
    """Read the field `command` as a list of arguments."""
    try:
        words = list(command_words(given.get("command", "")))
    except ValueError as error:
        reader.refuse("command", f"invalid command: {str(error).lower()}; close each quotation mark")
        return ["?"]
    if not words:
        reader.refuse("command", "no command given: write the command to run, such as python train.py")
    return words


def given_of(job: Obj) -> dict[str, str]:
    """The form values that create the same run under a new name; `job` is the run's first Job."""
    spec, notes = job["spec"]["template"]["spec"], annotations_of(job)
    container = spec["containers"][0]
    limits: Mapping[str, str] = (container.get("resources") or {}).get("limits") or {}
    gpus = next((name for name in limits if is_gpu(name)), "")
    types = wanted_types(parse_pod(pod_of_job(job)))
    working_dir = str(container.get("workingDir") or "")
    claims = _claims(spec)
    work_claim = claims.get(_volume_at(container, WORK_PATH), "")
    image = str(container.get("image") or "")
    limit = notes.get(TIME_LIMIT_ANNOTATION) or str(spec.get("activeDeadlineSeconds") or "")
    # git and the names of secrets; their values are not in the Job
    stored = stored_request(job)
    template_notes = (job["spec"]["template"].get("metadata") or {}).get("annotations") or {}
    given = {
        "command": command_text(_own_command(container.get("command") or ())),
        "namespace": str(job["metadata"].get("namespace") or ""),
        "image": "" if image == HOST_IMAGE else image,
        "gpus": str(limits.get(gpus, "0")) if gpus else "0",
        "gpuType": types[0] if len(types) == 1 else "",
        "gpuResource": gpus if gpus not in ("", DEFAULT_GPU_RESOURCE) else "",
        "cpu": str(limits.get("cpu") or ""),
        "memory": "" if MEMORY_DEFAULTED_ANNOTATION in notes else str(limits.get("memory") or "none"),
        "time": format_seconds(integer_or(limit, 0)) if integer_or(limit, 0) > 0 else "",
        "checkpoint": notes.get(CHECKPOINT_ANNOTATION, ""),
        "env": "\n".join(f"{name}={value}" for name, value in _variables(container)),
        "secrets": "\n".join(stored.secrets) if stored else "",
        "git": notes.get(GIT_ANNOTATION) or (stored.git if stored else None) or "",
        "volumes": "\n".join(_mounts(container, claims)),
        "datasets": "\n".join(_datasets(job, container, claims)),
        "workingDir": f"{work_claim}:{working_dir.removeprefix(WORK_PATH).strip('/')}" if work_claim else "",
        "retries": str(job["spec"].get("backoffLimit") or 0),
        "restartLimit": notes.get(RESTART_LIMIT_ANNOTATION, ""),
        "labels": "\n".join(f"{key}={value}" for key, value in user_labels(labels_of(job)).items()),
        "priorityClass": str(spec.get("priorityClassName") or ""),
        "user": user_of_pod(spec),
        "hostEnv": "yes" if template_notes.get(HOST_ENV_ANNOTATION) == "true" else "",
    }
    if given["restartLimit"] == str(RESTART_LIMIT):
        given["restartLimit"] = ""  # as if nothing was asked for
    return {name: text for name, text in given.items() if text}


def missing_notes(job: Obj) -> tuple[str, ...]:
    """The parts of a run that are missing when it is started again from a page."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    working_dir, notes = str(container.get("workingDir") or ""), []
    if "--unpack" in (container.get("command") or ()):
        notes.append("The files that were sent with it are not sent again: choose them again.")
    elif working_dir and not working_dir.startswith(WORK_PATH):
        notes.append(f"It started in the folder {working_dir} of this machine; a run from this page does not.")
    if git := annotations_of(job).get(GIT_ANNOTATION):
        notes.append(f"It uses the commit of that run, {git}. For the newest, write a branch after the @.")
    if names := ", ".join(name for name, _ in _variables(container, credentials=True)):
        notes.append(f"Variables that look like credentials are not copied: {names}. Use secrets for them.")
    return tuple(notes)


def command_text(words: Sequence[str]) -> str:
    """The command in the form's notation."""
    if len(words) == 3 and tuple(words[:2]) == ("sh", "-c"):
        return words[2]
    return shlex.join(words)


def _own_command(words: Sequence[str]) -> list[str]:
    """The user's command: without the runner in front, and without the escapes for the kubelet."""
    own = list(words)
    if len(own) > 1 and own[1] == f"{RUNNER_PATH}/runner.py" and "--" in own:
        own = own[own.index("--") + 1 :]
    return [word.replace("$$", "$") for word in own]


def _variables(container: Obj, *, credentials: bool = False) -> Iterable[tuple[str, str]]:
    """The environment variables that the user set, with their values: credentials, or all others."""
    ours = ("MOORAGE_RUN", CHECKPOINT_ENV, *PASSED_ON)
    for variable in container.get("env") or ():
        name, value = str(variable["name"]), str(variable.get("value", "")).replace("$$", "$")
        is_ours = name in ours or HOME.get(name) == value
        if not is_ours and "value" in variable and is_credential(name, value) == credentials:
            yield name, value


def _claims(spec: Obj) -> dict[str, str]:
    """The claim of each volume of the pod, by volume name."""
    return {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    }


def _volume_at(container: Obj, path: str) -> str:
    mounts = container.get("volumeMounts") or ()
    return next((str(mount["name"]) for mount in mounts if mount.get("mountPath") == path), "")


def _mounts(container: Obj, claims: Mapping[str, str]) -> Iterable[str]:
    for mount in container.get("volumeMounts") or ():
        name, path = mount["name"], mount["mountPath"]
        if name in claims and not name.startswith("dataset-") and path not in (CHECKPOINT_PATH, WORK_PATH):
            yield f"{claims[name]}:{path}{':ro' if mount.get('readOnly') else ''}"


def _datasets(job: Obj, container: Obj, claims: Mapping[str, str]) -> Iterable[str]:
    here = job["metadata"].get("namespace")
    paths = {claims.get(mount["name"], ""): mount["mountPath"] for mount in container.get("volumeMounts") or ()}
    for name, namespace in used_datasets(labels_of(job)).items():
        path = paths.get(claim_name(name)) or paths.get(reader_claim_name(namespace, name))
        if path:
            yield f"{name if namespace == here else f'{namespace}/{name}'}:{path}"
