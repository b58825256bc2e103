"""From the user's command line to the guarded Job in Kubernetes.

`plan_run` is the whole decision: it knows the request, the caller's machine and the cluster only through its
arguments, so every rule below is one line of a test table.

- R4, R5: requests equal limits for cpu, memory and GPUs; a missing memory limit is filled in.
- R6: a run without a memory limit is never retried, whether it failed or was killed.
- R7: a run without GPUs avoids the nodes that have them, as long as there are others.
- R8: the GPU type is a required node affinity on the labels of the cluster's nodes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.interruptions import DONE_FILE_ENV, STOPPED
from moorage.decide.runs.code import Code, code_annotations, outside_notes
from moorage.decide.runs.credentials import SECRET_ADVICE, credential_in, credential_note, is_credential
from moorage.decide.runs.deviceclaims import add_claim
from moorage.decide.runs.gitaddress import GitAddress, git_of_request
from moorage.decide.runs.gputypes import gpu_taints
from moorage.decide.runs.kueue import queue_problem
from moorage.decide.runs.labels import labels_from
from moorage.decide.runs.limits import cpu_and_memory, grace_period, restart_limit, time_limit
from moorage.decide.runs.machines import machine_labels
from moorage.decide.runs.mounts import Mounts
from moorage.decide.runs.names import generated_name, secret_name
from moorage.decide.runs.placement import Placement, place
from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import Caller, ClusterFacts, RunPlan, RunRequest, has_code, unexpanded
from moorage.decide.runs.runfile import options_of
from moorage.decide.runs.secrets import SecretRef, secret_refs
from moorage.decide.runs.users import RunUser, user_of_request
from moorage.model.dataset import uses_labels
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.names import (
    ATTEMPT_LABEL,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_ENV,
    CHECKPOINT_FROM_ANNOTATION,
    CHECKPOINT_PATH,
    COMMAND_ANNOTATION,
    DIRECTORY_ANNOTATION,
    EXPECTED_SECONDS_ANNOTATION,
    HOST_ENV_ANNOTATION,
    HOST_IMAGE,
    KEEPS_ITS_NODE,
    MEMORY_DEFAULTED_ANNOTATION,
    OPTIONS_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    REPORT_TOKEN_ANNOTATION,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUN_NAME_MAX,
    RUNNER_PATH,
    SHARE_ANNOTATION,
    TIME_LIMIT_ANNOTATION,
    is_dns_label,
    label_value,
)
from moorage_kube.meta import variable_of
from moorage_kube.resources import Obj

ARCHIVE_LIMIT_BYTES = 900 * 1024  # a Secret holds 1 MiB in all; the runner and its token take a little of it
UNPACK_PATH = (
    "/tmp/moorage-work"  # where the runner unpacks a shipped directory; no volume, so nodes stay drainable
)
CONTAINER = "main"
LAST_WORDS_FILE = "/dev/termination-log"  # Kubernetes' default terminationMessagePath
EXIT_KILLED = 137  # 128 + SIGKILL: how a container killed for its memory ends

PASSED_ON = ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
"""What a run on this machine inherits of the caller's environment. Never all of it: the API would show secrets."""

_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class _Settled(Struct, frozen=True, kw_only=True):
    """All choices that were made for one run."""

    request: RunRequest
    caller: Caller
    code: Code | None
    process_runtime: bool
    server_url: str
    name: str
    labels: Mapping[str, str]  # of the user
    machine: Mapping[str, str]  # labels by which its pods ask for a machine
    resources: Mapping[str, str]  # of requests and limits alike
    memory_defaulted: bool
    seconds: int | None
    placement: Placement
    mounts: Mounts
    checkpoint: str | None  # its claim
    image: str
    working_dir: str | None
    git: GitAddress | None
    user: RunUser | None
    env: Sequence[Obj]
    secrets: Sequence[SecretRef]
    grace_period_seconds: int
    restart_limit: int

    @property
    def is_wrapped(self) -> bool:
        """Whether our runner starts the command: to put the code into place first, or to report checkpoints."""
        is_copied = self.code is not None and bool(self.code.folder)
        has_code = is_copied or self.caller.archive is not None or self.git is not None
        return has_code or self.checkpoint is not None


def plan_run(request: RunRequest, caller: Caller, facts: ClusterFacts) -> RunPlan:
    """Plan the Job, and the objects that it needs; or return every problem of the request at once."""
    remarks = Remarks()
    if not has_code(request):
        caller = replace(caller, archive=None, code=None)
    settled = _settle(request, caller, facts, remarks)
    if remarks.problems:
        return RunPlan(name=settled.name, notes=tuple(remarks.notes), problems=tuple(remarks.problems))
    labels = _labels(settled)
    secret = _secret(settled, labels) if settled.is_wrapped else None
    return RunPlan(
        name=settled.name,
        job=_job(settled, labels),
        secret=secret,
        claims=tuple(settled.mounts.claims),
        notes=tuple(remarks.notes),
    )


# -- the choices: each function reads a few options, and refuses their faults


def _settle(request: RunRequest, caller: Caller, facts: ClusterFacts, remarks: Remarks) -> _Settled:
    """Make every choice for a run, in the order in which problems and notes are shown."""
    # identity and size
    name = _name(request, caller, facts, remarks)
    code = caller.code.of_run(name, caller.salt) if caller.code is not None else None
    labels = labels_from(request.labels, remarks)
    resources = cpu_and_memory(request, facts, remarks)
    seconds = time_limit(request, facts, remarks)
    machine = machine_labels(request, facts, remarks, container=CONTAINER)
    placement = place(request, facts, remarks) if request.machine is None else Placement(None)
    if request.gpus > 0:
        resources[placement.gpu_resource] = str(request.gpus)
    # storage, then the container that uses it
    mounts = Mounts(request, caller, facts, remarks)
    mounts.add_volumes()
    mounts.add_datasets()
    checkpoint = mounts.add_checkpoint()
    image = _image(request, facts, remarks)
    working_dir = mounts.add_working_directory()
    git = git_of_request(request, remarks)
    user = user_of_request(request, facts, remarks)
    secrets = secret_refs(request, facts, remarks)
    mounts.add_user_secrets(secrets)
    env = _env(request, caller, facts, remarks, user, secrets, code)
    # the end of an attempt, and the next one
    grace_period_seconds = grace_period(request, remarks, keeps_checkpoints=checkpoint is not None)
    restarts = restart_limit(request, facts, remarks)
    if request.share and checkpoint is None:
        remarks.refuse("share", "only a run with a checkpoint can share GPUs: add a checkpoint, or do not share")
    # checks that need the choices above, or nothing of them
    _check_priority_class(request, facts, remarks)
    labels |= _queue(request, labels, facts, remarks)
    _check_command(request, caller, facts, mounts, remarks)
    _check_archive(caller, remarks)
    if request.live and not facts.process_runtime:
        remarks.refuse(
            "live",
            "invalid option live: the nodes of this cluster do not have your folder",
            "leave it out, or put the folder on a volume: --working-dir VOLUME:PATH",
        )
    if code is not None and code.folder:
        for text in outside_notes(code, request.command):
            remarks.note(text)
    return _Settled(
        request=request,
        caller=caller,
        code=code,
        process_runtime=facts.process_runtime,
        server_url=facts.server_url,
        name=name,
        labels=labels,
        machine=machine,
        resources=resources,
        memory_defaulted=request.memory is None and request.machine is None,
        seconds=seconds,
        placement=placement,
        mounts=mounts,
        checkpoint=checkpoint,
        image=image,
        working_dir=working_dir,
        git=git,
        user=user,
        env=env,
        secrets=secrets,
        grace_period_seconds=grace_period_seconds,
        restart_limit=restarts,
    )


def _name(request: RunRequest, caller: Caller, facts: ClusterFacts, remarks: Remarks) -> str:
    name = request.name
    if name is None:
        return generated_name(request.command, caller.salt, facts.taken)
    if not is_dns_label(name) or len(name) > RUN_NAME_MAX:
        remarks.refuse(
            "name",
            f"invalid run name {name!r}: use at most {RUN_NAME_MAX} of a-z, 0-9 and '-',"
            " beginning and ending with a letter or digit",
        )
    elif name in facts.taken:
        remarks.refuse(
            "name",
            f"the name {name!r} is taken in namespace {request.namespace}",
            f"choose another, or remove the old run: moor cancel --delete {name}",
        )
    return name


def _image(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> str:
    if facts.process_runtime:
        if request.image and not request.host_env:
            remarks.refuse(
                "image",
                f"cannot pull image {request.image!r}: this cluster runs commands on this machine itself",
                "leave out the image, or run its command in this machine's environment: --host-env",
            )
        return request.image or HOST_IMAGE
    if request.host_env:
        remarks.note("host-env has no effect on this cluster: containers run in their image")
    image = request.image or facts.defaults.image
    if not image:
        remarks.refuse(
            "image",
            "no image given, and this cluster needs one",
            "for example python:3.12-slim. An administrator can set a default: moor tenant set TEAM --image IMAGE",
        )
    return image or ""


def _env(
    request: RunRequest,
    caller: Caller,
    facts: ClusterFacts,
    remarks: Remarks,
    user: RunUser | None,
    refs: Sequence[SecretRef],
    code: Code | None,
) -> list[Obj]:
    variables: dict[str, str] = dict(user.environment) if user is not None else {}
    if facts.process_runtime:
        variables = {name: value for name in PASSED_ON if (value := caller.environment.get(name)) is not None}
        if code is not None and "PYTHONPATH" in variables:
            paths = variables["PYTHONPATH"].split(":")
            variables["PYTHONPATH"] = ":".join(code.in_copy(path) or path for path in paths)
    for text in request.env:
        name, given, value = text.partition("=")
        if not _may_set("env", name, "write NAME=VALUE, or NAME to pass your own value", remarks):
            continue
        if not given:
            if name not in caller.environment:
                remarks.refuse("env", f"variable {name} is not set in your environment", f"write {name}=VALUE")
                continue
            value = caller.environment[name]
        if "\0" in value:
            remarks.refuse("env", f"invalid value of variable {name}: it contains a NUL character")
            continue
        variables[name] = value
        if is_credential(name, value):
            remarks.note(credential_note(name))
    env: dict[str, Obj] = {name: {"name": name, "value": unexpanded(value)} for name, value in variables.items()}
    typed = {text.partition("=")[0] for text in request.env}
    for ref in refs:
        if ref.key and _may_set("secrets", ref.variable, "write VARIABLE=NAME:KEY", remarks):
            if ref.variable in typed:
                remarks.refuse("secrets", f"variable {ref.variable} is set twice: by env and by secret {ref.name}")
            env[ref.variable] = ref.env
    return list(env.values())


def _may_set(field: str, name: str, hint: str, remarks: Remarks) -> bool:
    """Whether a user may set a variable of this name; a problem otherwise."""
    if not _ENV_NAME.fullmatch(name):
        remarks.refuse(field, f"invalid variable name {name!r}", hint)
    elif name in (CHECKPOINT_ENV, DONE_FILE_ENV, "MOORAGE_RUN"):
        remarks.refuse(field, f"variable {name} is set by Moorage itself")
    else:
        return True
    return False


def _check_priority_class(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> None:
    known, asked = facts.priority_classes, request.priority_class
    if asked and known is not None and asked not in known:
        names = ", ".join(sorted(known))
        remarks.refuse(
            "priorityClass", f"PriorityClass {asked!r} not found", f"available: {names}" if names else None
        )


def _queue(
    request: RunRequest, labels: Mapping[str, str], facts: ClusterFacts, remarks: Remarks
) -> dict[str, str]:
    """The Kueue queue label that the option or a label requests."""
    queue = labels.get(QUEUE_LABEL) if request.queue is None else request.queue
    if queue is None:
        return {}
    if problem := queue_problem(queue, facts.queues, request.namespace):
        remarks.refuse("queue", *problem)
    return {QUEUE_LABEL: queue}


def _check_command(
    request: RunRequest, caller: Caller, facts: ClusterFacts, mounts: Mounts, remarks: Remarks
) -> None:
    command = request.command
    if what := credential_in(shlex.join(command).encode(errors="replace")):
        remarks.note(f"the command holds {what}: all users of the namespace can read it; {SECRET_ADVICE}")
    if not command or not command[0]:
        remarks.refuse("command", "no command given", "moor run [OPTIONS] -- python train.py")
    elif any("\0" in word for word in command):
        remarks.refuse("command", "invalid command: a word contains a NUL character")
    elif facts.process_runtime and caller.program is None and not mounts.may_hold(command[0]):
        remarks.refuse(
            "command",
            f"the command {command[0]!r} does not exist on this machine",
            _missing_program_hint(command[0]),
        )


def _missing_program_hint(program: str) -> str:
    """A command to type instead of a program that does not exist: a script needs its interpreter."""
    interpreters = {".py": "python", ".sh": "bash", ".R": "Rscript", ".jl": "julia"}
    interpreter = interpreters.get(PurePosixPath(program).suffix)
    if interpreter:
        return f"name the program that runs it: moor run -- {interpreter} {program}"
    return "check its spelling, or give its path; on this cluster commands run with your own PATH"


def _check_archive(caller: Caller, remarks: Remarks) -> None:
    if caller.archive is not None and len(caller.archive) > ARCHIVE_LIMIT_BYTES:
        remarks.refuse(
            "workingDir",
            f"the current directory packs to {len(caller.archive)} bytes; at most {ARCHIVE_LIMIT_BYTES} can be"
            " sent along",
            "put it on a volume: moor run --working-dir VOLUME:PATH",
        )


# -- the objects


def _labels(settled: _Settled) -> dict[str, str]:
    owner = label_value(settled.caller.user)
    ours = {RUN_LABEL: settled.name, ATTEMPT_LABEL: "1", OWNER_LABEL: owner}
    return {**settled.labels, **ours, **uses_labels(settled.mounts.datasets)}


def _annotations(settled: _Settled) -> dict[str, str]:
    annotations = {
        OWNER_ANNOTATION: settled.caller.user,
        COMMAND_ANNOTATION: shlex.join(settled.request.shown or settled.request.command),
        RESTART_LIMIT_ANNOTATION: str(settled.restart_limit),
    }
    if settled.request.share is not None:
        annotations[SHARE_ANNOTATION] = str(settled.request.share).lower()
    if options := options_of(settled.request):
        annotations[OPTIONS_ANNOTATION] = options
    if settled.process_runtime and settled.caller.cwd:
        annotations[DIRECTORY_ANNOTATION] = settled.caller.cwd
    if settled.code is not None:
        annotations |= code_annotations(settled.code)
    if settled.seconds is not None:
        annotations[EXPECTED_SECONDS_ANNOTATION] = str(settled.seconds)
        annotations[TIME_LIMIT_ANNOTATION] = str(settled.seconds)
    if settled.memory_defaulted:
        annotations[MEMORY_DEFAULTED_ANNOTATION] = "true"
    if settled.checkpoint is not None:
        annotations[CHECKPOINT_ANNOTATION] = settled.checkpoint
    if settled.mounts.continued:
        annotations[CHECKPOINT_FROM_ANNOTATION] = settled.mounts.continued
    if settled.is_wrapped:
        annotations[REPORT_TOKEN_ANNOTATION] = hashlib.sha256(settled.caller.token.encode()).hexdigest()
    return annotations


def _job(settled: _Settled, labels: Mapping[str, str]) -> Obj:
    request, annotations = settled.request, _annotations(settled)
    pod_annotations = {
        key: annotations[key] for key in (OWNER_ANNOTATION, EXPECTED_SECONDS_ANNOTATION) if key in annotations
    }
    if settled.checkpoint is None:  # moved, it would begin again from its start
        pod_annotations |= KEEPS_ITS_NODE
    if settled.process_runtime and request.image and request.host_env:
        pod_annotations[HOST_ENV_ANNOTATION] = "true"
    rules: list[Obj] = [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    codes = [STOPPED] * settled.is_wrapped + [EXIT_KILLED] * bool(request.retries)
    if codes:
        rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": codes}})
    template = {
        "metadata": {"labels": {**labels, **settled.machine}, "annotations": pod_annotations},
        "spec": _pod_spec(settled),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": settled.name,
            "namespace": request.namespace,
            "labels": dict(labels),
            "annotations": annotations,
        },
        "spec": {
            "backoffLimit": request.retries,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": template,
        },
    }


def _pod_spec(settled: _Settled) -> Obj:
    container = _container(settled)
    spec: Obj = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settled.grace_period_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }
    if settled.request.gpu_claim is not None:
        add_claim(spec, container, settled.request.gpu_claim)
    if settled.seconds is not None:
        spec["activeDeadlineSeconds"] = settled.seconds
    if settled.placement.affinity:
        spec["affinity"] = {"nodeAffinity": settled.placement.affinity}
    if settled.request.gpus or settled.request.gpu_claim is not None:
        spec["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"}
            for key in gpu_taints(settled.placement.gpu_resource)
        ]
    if settled.user is not None:
        spec["securityContext"] = settled.user.context
    if settled.request.priority_class:
        spec["priorityClassName"] = settled.request.priority_class
    if settled.mounts.volumes:
        spec["volumes"] = settled.mounts.volumes
    return spec


def _container(settled: _Settled) -> Obj:
    env = [*settled.env, {"name": "MOORAGE_RUN", "value": settled.name}]
    if all(variable["name"] != "POD_IP" for variable in env):  # a server that listens there disturbs no other pod
        env.append(variable_of("POD_IP", "status.podIP"))
    if settled.checkpoint is not None:
        env.append({"name": CHECKPOINT_ENV, "value": CHECKPOINT_PATH})
    command = [unexpanded(word) for word in settled.request.command]
    container: Obj = {
        "name": CONTAINER,
        "image": settled.image,
        "command": [*_runner(settled), "--", *command] if settled.is_wrapped else command,
        "env": env,
        "resources": {"requests": dict(settled.resources), "limits": dict(settled.resources)}
        if settled.resources
        else {},
    }
    if whole := [{"secretRef": {"name": ref.name}} for ref in settled.secrets if not (ref.key or ref.path)]:
        container["envFrom"] = whole
    if settled.working_dir is not None:
        container["workingDir"] = settled.working_dir
    if settled.mounts.mounts:
        container["volumeMounts"] = settled.mounts.mounts
    return container


def _runner(settled: _Settled) -> list[str]:
    """The command line of our runner, without the user's command."""
    python = settled.caller.python if settled.process_runtime else "python3"
    words = [python, f"{RUNNER_PATH}/runner.py"]
    if not settled.process_runtime:  # their agents measure memory themselves
        words += ["--peak-file", LAST_WORDS_FILE]
    into = "code" if settled.process_runtime else UNPACK_PATH  # below the folder of the pod
    if settled.caller.archive is not None:
        words += ["--unpack", f"{RUNNER_PATH}/work.tar.gz", "--into", into]
    if settled.git is not None:
        words += ["--git", unexpanded(settled.git.url), "--ref", unexpanded(settled.git.ref), "--into", into]
    if settled.code is not None and settled.code.folder:
        words += ["--copy", unexpanded(settled.code.folder), "--into", unexpanded(settled.code.outputs)]
    if (settled.checkpoint is not None or settled.git is not None) and settled.server_url:
        url = settled.server_url.rstrip("/")
        words += ["--report", f"{url}/api/v1/runs/{settled.request.namespace}/{settled.name}/checkpoint"]
        words += ["--token-file", f"{RUNNER_PATH}/token"]
    return words


def _secret(settled: _Settled, labels: Mapping[str, str]) -> Obj:
    """The Secret with the runner, the token and the uploaded directory. It is mounted into the pod."""
    caller = settled.caller
    data = {"runner.py": caller.runner.encode(), "token": caller.token.encode()}
    if caller.archive is not None:
        data["work.tar.gz"] = caller.archive
    name = secret_name(settled.name, caller.user, caller.token)
    settled.mounts.add_secret(name, RUNNER_PATH)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": settled.request.namespace,
            "labels": {RUN_LABEL: settled.name, OWNER_LABEL: labels[OWNER_LABEL]},
        },
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
