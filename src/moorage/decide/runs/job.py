"""From the line a user typed to the guarded Job that Kubernetes gets.

`plan_run` is the whole decision: it knows the request, the caller's machine and the cluster only through its
arguments, so every rule below is one line of a test table.

- R4, R5: requests equal limits for cpu, memory and GPUs; memory is filled in when it is not given.
- R6: without a memory limit the run is never tried again, whatever ends it.
- R7: a run without GPUs is kept off the nodes that have them, as long as there are others.
- R8: the GPU type is a required node affinity on the labels that the cluster's nodes bear.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping

from moorage.apimachinery.quantity import amount, format_amount, parse_quantity
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import NodeInfo, is_gpu
from moorage.decide.admission.guardrails import away_from_gpus, gpu_free
from moorage.decide.runs.claims import make_claim
from moorage.decide.runs.gputypes import DEFAULT_GPU_RESOURCE, gpu_label_of, gpu_taints, gpu_types, matches_type
from moorage.decide.runs.names import generated_name, secret_name
from moorage.decide.runs.request import (
    Caller,
    ClusterFacts,
    Problem,
    RunPlan,
    RunRequest,
    ships_directory,
    unexpanded,
)
from moorage.decide.runs.timelimit import parse_time, say_seconds
from moorage.errors import QuantityError
from moorage.model.dataset import DATA_FOLDER, READY, claim_name, reader_claim_name, uses_labels
from moorage.model.names import (
    ATTEMPT_LABEL,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_ENV,
    CHECKPOINT_PATH,
    COMMAND_ANNOTATION,
    EXPECTED_SECONDS_ANNOTATION,
    GPU_PRESENT_LABEL,
    GPU_TYPE_LABELS,
    HOST_ENV_ANNOTATION,
    HOST_IMAGE,
    MEMORY_DEFAULTED_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    REPORT_TOKEN_ANNOTATION,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    RUN_NAME_MAX,
    RUNNER_PATH,
    TIME_LIMIT_ANNOTATION,
    is_dns_label,
    label_value,
)

DEFAULT_CHECKPOINT_SIZE = "10Gi"
GRACE_SECONDS = 30  # Kubernetes' own default
CHECKPOINT_GRACE_SECONDS = 120  # a run that keeps checkpoints gets the time to write one more
GRACE_MAX_SECONDS = 24 * 3600
RETRIES_MAX = 2**31 - 1  # what a Job's backoffLimit holds
ARCHIVE_LIMIT_BYTES = 900 * 1024  # a Secret holds 1 MiB in all; the runner and its token take a little of it
WORK_PATH = "/moorage/work"  # where `--workdir volume:path` mounts the volume
UNPACK_PATH = (
    "/tmp/moorage-work"  # where the runner unpacks a shipped directory; no volume, so nodes stay drainable
)
CONTAINER = "main"
EXIT_KILLED = 137  # 128 + SIGKILL: how a container killed for its memory ends

PASSED_ON = ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
"""What a run on this machine inherits of the caller's environment. Never all of it: the API would show secrets."""

_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


def plan_run(request: RunRequest, caller: Caller, facts: ClusterFacts) -> RunPlan:
    """Decide the Job, and what it needs first; or every problem of the request at once."""
    making = _Making(request, caller, facts)
    return making.plan()


class _Making:
    """One run in the making: collects problems and notes on the way. Used once."""

    def __init__(self, request: RunRequest, caller: Caller, facts: ClusterFacts) -> None:
        self.request = request
        self.caller = caller
        self.facts = facts
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.volumes: list[Obj] = []
        self.mounts: list[Obj] = []
        self.mounted: set[str] = set()
        self.claims: list[Obj] = []
        self.used: dict[str, str] = {}  # dataset → its namespace
        self.gpu_resource = DEFAULT_GPU_RESOURCE
        self.memory_defaulted = False

    def refuse(self, option: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(option, message, hint))

    def plan(self) -> RunPlan:
        name = self._name()
        resources = self._resources()
        seconds = self._seconds()
        affinity = self._affinity(resources)
        self._volumes()
        self._datasets()
        checkpoint = self._checkpoint()
        image = self._image()
        workdir = self._workdir()
        env = self._env()
        grace = self._grace(checkpoint)
        restart_limit = self._restarts()
        self._priority_class()
        self._command()
        ships = ships_directory(self.request, self.facts)
        if ships and self.caller.archive is not None and len(self.caller.archive) > ARCHIVE_LIMIT_BYTES:
            self.refuse(
                "--workdir",
                f"the current directory packs to {len(self.caller.archive)} bytes; at most"
                f" {ARCHIVE_LIMIT_BYTES} can be sent along",
                "put it on a volume and use --workdir VOLUME:PATH",
            )
        if self.problems:
            return RunPlan(name=name, notes=tuple(self.notes), problems=tuple(self.problems))
        wrapped = (ships and self.caller.archive is not None) or checkpoint is not None
        identity = {
            RUN_LABEL: name,
            ATTEMPT_LABEL: "1",
            OWNER_LABEL: label_value(self.caller.user),
        } | uses_labels(self.used)
        annotations = {
            OWNER_ANNOTATION: self.caller.user,
            COMMAND_ANNOTATION: shlex.join(self.request.shown or self.request.command),
            RESTART_LIMIT_ANNOTATION: str(restart_limit),
        }
        if seconds is not None:
            annotations[EXPECTED_SECONDS_ANNOTATION] = str(seconds)
            annotations[TIME_LIMIT_ANNOTATION] = str(seconds)
        if self.memory_defaulted:
            annotations[MEMORY_DEFAULTED_ANNOTATION] = "true"
        if checkpoint is not None:
            annotations[CHECKPOINT_ANNOTATION] = checkpoint
        secret = None
        if wrapped:
            secret = self._secret(name, identity)
            annotations[REPORT_TOKEN_ANNOTATION] = hashlib.sha256(self.caller.token.encode()).hexdigest()
        pod_annotations = {
            key: annotations[key] for key in (OWNER_ANNOTATION, EXPECTED_SECONDS_ANNOTATION) if key in annotations
        }
        if self.facts.process_runtime and self.request.image and self.request.host_env:
            pod_annotations[HOST_ENV_ANNOTATION] = "true"
        pod: Obj = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [self._container(name, resources, env, image, workdir, checkpoint, wrapped=wrapped)],
        }
        if seconds is not None:
            pod["activeDeadlineSeconds"] = seconds
        if affinity:
            pod["affinity"] = {"nodeAffinity": affinity}
        if self.request.gpus:
            pod["tolerations"] = [
                {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in gpu_taints(self.gpu_resource)
            ]
        if self.request.priority_class:
            pod["priorityClassName"] = self.request.priority_class
        if self.volumes:
            pod["volumes"] = self.volumes
        rules: list[Obj] = [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        ]
        if self.request.retries:
            rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_KILLED]}})
        job: Obj = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": self.request.namespace,
                "labels": identity,
                "annotations": annotations,
            },
            "spec": {
                "backoffLimit": self.request.retries,
                "completions": 1,
                "parallelism": 1,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": rules},
                "template": {"metadata": {"labels": dict(identity), "annotations": pod_annotations}, "spec": pod},
            },
        }
        return RunPlan(name=name, job=job, secret=secret, claims=tuple(self.claims), notes=tuple(self.notes))

    # each of these reads a few options, and refuses what is wrong with them

    def _name(self) -> str:
        name = self.request.name
        if name is None:
            return generated_name(self.request.command, self.caller.salt, self.facts.taken)
        if not is_dns_label(name) or len(name) > RUN_NAME_MAX:
            self.refuse(
                "--name",
                f"{name!r} is no name for a run: at most {RUN_NAME_MAX} of a-z, 0-9 and '-',"
                " beginning and ending with a letter or digit",
            )
        elif name in self.facts.taken:
            self.refuse(
                "--name",
                f"the name {name!r} is taken in namespace {self.request.namespace}",
                f"choose another, or remove the old run: moor cancel --delete {name}",
            )
        return name

    def _quantity(self, option: str, resource: str, text: str) -> str | None:
        try:
            value = parse_quantity(text)
        except QuantityError:
            examples = "500m, 2 or 1.5" if resource == "cpu" else "512Mi, 8Gi or 1.5G"
            self.refuse(option, f"{text!r} is no quantity", f"write it as {examples}")
            return None
        if value <= 0:
            self.refuse(option, f"{text!r} is not more than zero")
            return None
        if resource == "memory" and value < 1024 * 1024:
            self.refuse(option, f"{text!r} is less than 1 MiB", f"the unit may be missing: {text}Gi?")
            return None
        return text

    def _resources(self) -> dict[str, str]:
        defaults, request = self.facts.defaults, self.request
        found: dict[str, str] = {}
        if cpu := self._quantity("--cpu", "cpu", request.cpu if request.cpu is not None else defaults.cpu):
            found["cpu"] = cpu
        if request.memory is None:
            found["memory"] = defaults.memory
            self.memory_defaulted = True
            self.notes.append(
                f"no --memory given: limited to {defaults.memory}, {defaults.origin};"
                " a job that grows beyond it is killed"
            )
        elif request.memory.lower() != "none":
            if memory := self._quantity("--memory", "memory", request.memory):
                found["memory"] = memory
        else:
            self.notes.append("--memory none: no limit, so this run is never started again, whatever ends it")
            if request.retries:
                self.refuse(
                    "--retries",
                    f"{request.retries} cannot stand with --memory none: a job without a limit would"
                    " take one node after the other",
                    "give a --memory limit, or leave out --retries",
                )
            if request.restart_limit:
                self.refuse(
                    "--restart-limit",
                    f"{request.restart_limit} cannot stand with --memory none: a job without a limit"
                    " would take one node after the other",
                    "give a --memory limit, or leave out --restart-limit",
                )
        if request.gpus < 0:
            self.refuse("--gpus", f"{request.gpus} is less than zero")
        if request.retries < 0:
            self.refuse("--retries", f"{request.retries} is less than zero")
        elif request.retries > RETRIES_MAX:
            self.refuse("--retries", f"{request.retries} tries; allowed are at most {RETRIES_MAX}")
        return found

    def _seconds(self) -> int | None:
        if self.request.time is None:
            usual = self.facts.defaults.seconds
            if usual is not None:
                self.notes.append(
                    f"no --time given: stopped after {say_seconds(usual)}, {self.facts.defaults.origin}"
                )
            return usual
        try:
            seconds = parse_time(self.request.time)
        except ValueError:
            self.refuse(
                "--time", f"{self.request.time!r} is no time from 1s to 365d", "write it as 2h, 90m or 1d12h"
            )
            return None
        if self.request.retries:
            self.notes.append(
                f"--time {say_seconds(seconds)} holds for each of the {self.request.retries + 1} tries"
            )
        return seconds

    def _affinity(self, resources: dict[str, str]) -> Obj | None:
        """Required node affinity, by GPU type or away from GPUs; adds the GPUs to `resources`."""
        request, nodes = self.request, self.facts.nodes
        for option, given in (("--gpu-type", request.gpu_type), ("--gpu-resource", request.gpu_resource)):
            if given is not None and not request.gpus:
                self.refuse(option, f"{given!r} without GPUs", "add --gpus N")
                return None
        if request.gpus > 0:
            terms = self._gpu_terms()
            resources[self.gpu_resource] = str(request.gpus)
        elif nodes is None:
            preference = {
                "matchExpressions": [{"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}]
            }
            return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]}
        else:
            terms = self._terms_away_from_gpus(nodes)
        if not terms:
            return None
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def _gpu_terms(self) -> list[Obj]:
        request, named = self.request, None
        nodes = self.facts.nodes if self.facts.nodes is not None else self.facts.gpu_nodes
        if nodes is None:
            if request.gpu_resource is not None:
                self.gpu_resource = request.gpu_resource  # the API server and the scheduler judge it
            if request.gpu_type is not None:
                self.refuse(
                    "--gpu-type",
                    f"{request.gpu_type!r} cannot be looked up: you may not list this cluster's nodes,"
                    " and no Moorage server answered",
                )
            return []
        offered = [node for node in nodes if node.gpus]
        if not offered:
            self.refuse("--gpus", f"{request.gpus} asked, but no node of this cluster has GPUs", "see `moor gpus`")
            return []
        if request.gpu_resource is not None:
            named = self._named_resource(request.gpu_resource, offered)
            if named is None:
                return []
            offered = [node for node in offered if node.allocatable.get(named)]
        terms: list[Obj] = []
        if request.gpu_type is not None:
            types = gpu_types(nodes, self.facts.pods)
            exact = [one for one in types if one.value.lower() == request.gpu_type.lower()]
            chosen = exact or [one for one in types if matches_type(request.gpu_type, one.value)]
            if not chosen:
                known = ", ".join(str(one) for one in types)
                self.refuse(
                    "--gpu-type",
                    f"no node has GPUs of type {request.gpu_type!r}",
                    f"this cluster has {known}"
                    if known
                    else "its GPU nodes bear no type label; leave out --gpu-type",
                )
                return []
            values: dict[str, list[str]] = {}
            for one in chosen:
                if one.value not in values.setdefault(one.label, []):
                    values[one.label].append(one.value)
            terms = [
                {"matchExpressions": [{"key": label, "operator": "In", "values": found}]}
                for label, found in values.items()
            ]
            every = [value for found in values.values() for value in found]
            if self.facts.nodes is None:  # under which of the labels the type stands is not known
                terms = [
                    {"matchExpressions": [{"key": label, "operator": "In", "values": every}]}
                    for label in GPU_TYPE_LABELS
                ]
            if len(every) > 1:
                self.notes.append(f"--gpu-type {request.gpu_type} allows {', '.join(every)}")
            offered = [node for node in offered if (label := gpu_label_of(node)) and label[1] in every]
        totals: dict[str, int] = {}
        for node in offered:
            for resource, count in node.allocatable.items():
                if is_gpu(resource):
                    totals[resource] = totals.get(resource, 0) + count
        self.gpu_resource = named or max(
            totals, key=lambda one: (one == DEFAULT_GPU_RESOURCE, one.endswith("/gpu"), totals[one], one)
        )
        largest = max(offered, key=lambda node: (node.allocatable.get(self.gpu_resource, 0), node.name))
        most = largest.allocatable.get(self.gpu_resource, 0)
        if request.gpus > most:
            kind = f" of type {request.gpu_type}" if request.gpu_type else ""
            self.refuse(
                "--gpus",
                f"{request.gpus} asked; the largest node with GPUs{kind} has {most} ({largest.name})",
                f"ask for at most {most}; `moor gpus` shows every node",
            )
        else:
            self._check_size(
                [node for node in offered if node.allocatable.get(self.gpu_resource, 0) >= request.gpus]
            )
        return terms

    def _named_resource(self, asked: str, nodes: list[NodeInfo]) -> str | None:
        """The GPU resource a user named, in full or by what follows the "/"; refused when no node offers it."""
        known = sorted(
            {name for node in nodes for name, many in node.allocatable.items() if is_gpu(name) and many}
        )
        found = [name for name in known if asked in (name, name.partition("/")[2])]
        if len(found) == 1:
            return found[0]
        if found:
            self.refuse("--gpu-resource", f"{asked!r} is more than one: {', '.join(found)}", "write it in full")
        else:
            self.refuse("--gpu-resource", f"no node offers {asked!r}", f"there are: {', '.join(known)}")
        return None

    def _terms_away_from_gpus(self, nodes: tuple[NodeInfo, ...]) -> list[Obj]:
        away = away_from_gpus(nodes)
        if not away:
            if any(not node.gpus and node.labels.get(GPU_PRESENT_LABEL) == "true" for node in nodes):
                self.notes.append("nodes without GPUs bear GPU labels here, so this run is not kept off GPU nodes")
            elif any(node.gpus for node in nodes) and len(nodes) > 1:
                self.notes.append("every node here has GPUs, so this run takes CPU and memory beside them")
            self._check_size(list(nodes))
            return []
        self._check_size(gpu_free(nodes), "without GPUs")
        return [{"matchExpressions": list(away)}]

    def _check_size(self, nodes: list[NodeInfo], kind: str = "") -> None:
        """Refuse more cpu or memory than any of these nodes has in all."""
        defaults, request = self.facts.defaults, self.request
        asked = {"cpu": request.cpu if request.cpu is not None else defaults.cpu}
        if request.memory is None or request.memory.lower() != "none":
            asked["memory"] = request.memory if request.memory is not None else defaults.memory
        for resource, text in asked.items():
            try:
                wanted = amount(resource, text)
            except QuantityError:
                continue  # told already
            fitting = [node for node in nodes if resource in node.allocatable]
            if not fitting:
                continue
            largest = max(fitting, key=lambda node: (node.allocatable[resource], node.name))
            most = largest.allocatable[resource]
            if wanted > most:
                words = f" {kind}" if kind else (" with the GPUs asked for" if request.gpus else "")
                self.refuse(
                    f"--{resource}",
                    f"{text} asked; the largest node{words} has {format_amount(resource, most)} ({largest.name})",
                )

    def _volumes(self) -> None:
        for text in self.request.volumes:
            claim, _, rest = text.partition(":")
            path, _, mode = rest.partition(":")
            if not claim or not path.startswith("/") or mode not in ("", "ro", "rw"):
                self.refuse("--volume", f"{text!r} is no volume mount", "write VOLUME:/PATH or VOLUME:/PATH:ro")
                continue
            path = path.rstrip("/") or "/"
            if self._may_mount("--volume", text, path) and self._claim_exists("--volume", claim):
                self._mount(claim, path, read_only=mode == "ro")

    def _may_mount(self, option: str, text: str, path: str) -> bool:
        if path == "/" or path == "/moorage" or path.startswith("/moorage/") or ".." in path.split("/"):
            self.refuse(option, f"{text!r} cannot be mounted at {path}", "choose a path such as /data")
            return False
        if path in self.mounted:
            self.refuse(option, f"two volumes are to be mounted at {path}")
            return False
        self.mounted.add(path)
        return True

    def _datasets(self) -> None:
        """Datasets of this namespace, and those of others that its tenant may read; read-only, all of them."""
        here = self.request.namespace
        for text in self.request.datasets:
            full, _, path = text.partition(":")
            namespace, _, name = full.rpartition("/")
            namespace = namespace or here
            if not is_dns_label(name) or not is_dns_label(namespace) or not path.startswith("/") or ":" in path:
                self.refuse("--dataset", f"{text!r} is no dataset mount", "write DATASET:/PATH")
                continue
            if self.used.get(name, namespace) != namespace:
                self.refuse("--dataset", f"two datasets are named {name!r}: mount one of them alone")
                continue
            path = path.rstrip("/") or "/"
            if not self._may_mount("--dataset", text, path):
                continue
            claim = self._dataset_claim(namespace, name)
            if claim is None:
                continue
            self.used[name] = namespace
            known = f"dataset-{len(self.volumes)}"
            source = {"claimName": claim, "readOnly": True}
            self.volumes.append({"name": known, "persistentVolumeClaim": source})
            self.mounts.append({"name": known, "mountPath": path, "subPath": DATA_FOLDER, "readOnly": True})

    def _dataset_claim(self, namespace: str, name: str) -> str | None:
        """The claim to mount; None when there is none, which is told."""
        if namespace != self.request.namespace:
            claim = reader_claim_name(namespace, name)
            if self.facts.claims is not None and claim not in self.facts.claims:
                self.refuse(
                    "--dataset",
                    f"the dataset {namespace}/{name} is not shared with namespace {self.request.namespace}",
                    f"whoever has it may share it: moor dataset share {name} --with TENANT",
                )
                return None
            return claim
        known = self.facts.datasets
        if known is None:
            return claim_name(name)
        if name not in known:
            there = ", ".join(sorted(known))
            self.refuse(
                "--dataset",
                f"there is no dataset {name!r} in namespace {namespace}",
                f"there are: {there}" if there else f"make it first: moor dataset create {name} --from SOURCE",
            )
            return None
        phase, claim = known[name]
        if phase != READY:
            self.refuse(
                "--dataset",
                f"the dataset {name!r} is not ready: it is {phase or 'Pending'}",
                f"`moor dataset show {name}` says how far it is",
            )
            return None
        return claim or claim_name(name)

    def _claim_exists(self, option: str, claim: str) -> bool:
        claims = self.facts.claims
        if claims is None or claim in claims:
            return True
        known = ", ".join(sorted(claims))
        self.refuse(
            option,
            f"there is no volume {claim!r} in namespace {self.request.namespace}",
            f"there are: {known}" if known else f"make it first: moor volume create {claim} --size 10Gi",
        )
        return False

    def _mount(self, claim: str, path: str, *, read_only: bool = False) -> None:
        """Mount a claim. Read-only belongs to the mount: the same claim may be writable elsewhere in the pod."""
        known = next((one for one in self.volumes if one["persistentVolumeClaim"]["claimName"] == claim), None)
        if known is None:
            known = {"name": f"volume-{len(self.volumes)}", "persistentVolumeClaim": {"claimName": claim}}
            self.volumes.append(known)
        mount: Obj = {"name": known["name"], "mountPath": path}
        if read_only:
            mount["readOnly"] = True
        self.mounts.append(mount)

    def _checkpoint(self) -> str | None:
        text = self.request.checkpoint
        if text is None:
            return None
        claim, _, size = text.partition(":")
        if not is_dns_label(claim):
            self.refuse(
                "--checkpoint",
                f"{claim!r} is no volume name: at most 63 of a-z, 0-9 and '-'",
                "write NAME or NAME:20Gi",
            )
            return None
        if size and self._quantity("--checkpoint", "memory", size) is None:
            return None
        claims = self.facts.claims
        if claims is not None and claim in claims:
            if size and claims[claim] and parse_quantity(claims[claim]) < parse_quantity(size):
                self.notes.append(f"the volume {claim} exists with {claims[claim]}; the {size} asked are not made")
            users = sorted(
                {
                    pod.labels.get(RUN_LABEL, pod.name)
                    for pod in self.facts.pods
                    if claim in pod.claims and not pod.finished and pod.namespace == self.request.namespace
                }
            )
            if users:
                self.notes.append(
                    f"the checkpoint volume {claim} is in use by {', '.join(users)}: two runs that write the same"
                    " checkpoint spoil it"
                )
        elif claims is not None:
            self.claims.append(
                make_claim(claim, self.request.namespace, size or DEFAULT_CHECKPOINT_SIZE, self.caller.user)
            )
            self.notes.append(f"making the checkpoint volume {claim} ({size or DEFAULT_CHECKPOINT_SIZE})")
            if self.facts.has_default_class is False:
                self.notes.append(
                    f"this cluster has no default StorageClass: the run waits until {claim} gets its storage;"
                    f" `moor volume create {claim} --class CLASS` names one"
                )
        self._mount(claim, CHECKPOINT_PATH)
        return claim

    def _image(self) -> str:
        request, facts = self.request, self.facts
        if facts.process_runtime:
            if request.image and not request.host_env:
                self.refuse(
                    "--image",
                    f"{request.image!r} cannot be pulled: this cluster runs commands on this machine itself",
                    "leave out --image, or add --host-env to run the command here all the same",
                )
            return request.image or HOST_IMAGE
        if request.host_env:
            self.notes.append("--host-env means nothing on this cluster: containers run in their image")
        image = request.image or facts.defaults.image
        if not image:
            self.refuse(
                "--image", "no image given, and this cluster needs one", "for example --image python:3.12-slim"
            )
        return image or ""

    def _workdir(self) -> str | None:
        text = self.request.workdir
        if text is None:
            return (self.caller.cwd or None) if self.facts.process_runtime else None
        claim, colon, path = text.partition(":")
        path = path.strip("/")
        if not claim or not colon or ".." in path.split("/"):
            self.refuse(
                "--workdir", f"{text!r} is no place on a volume", "write VOLUME:PATH, such as code:project"
            )
            return None
        if not self._claim_exists("--workdir", claim):
            return None
        self._mount(claim, WORK_PATH)
        return f"{WORK_PATH}/{path}" if path else WORK_PATH

    def _env(self) -> list[Obj]:
        found: dict[str, str] = {}
        if self.facts.process_runtime:
            found = {name: value for name in PASSED_ON if (value := self.caller.environment.get(name)) is not None}
        for text in self.request.env:
            name, given, value = text.partition("=")
            if not _ENV_NAME.fullmatch(name):
                self.refuse("--env", f"{name!r} is no variable name", "write NAME=VALUE, or NAME to pass yours on")
                continue
            if name in (CHECKPOINT_ENV, "MOORAGE_RUN"):
                self.refuse("--env", f"{name} is set by Moorage itself")
                continue
            if not given:
                if name not in self.caller.environment:
                    self.refuse("--env", f"{name} is not set in your environment", f"write --env {name}=VALUE")
                    continue
                value = self.caller.environment[name]
            found[name] = value
        return [{"name": name, "value": unexpanded(value)} for name, value in found.items()]

    def _grace(self, checkpoint: str | None) -> int:
        grace = self.request.grace
        if grace is None:
            return GRACE_SECONDS if checkpoint is None else CHECKPOINT_GRACE_SECONDS
        if not 1 <= grace <= GRACE_MAX_SECONDS:
            self.refuse("--grace", f"{grace} seconds; allowed are 1 to {GRACE_MAX_SECONDS}")
        return grace

    def _restarts(self) -> int:
        limit = self.request.restart_limit
        most = 998 if self.facts.defaults.restart_limit is None else self.facts.defaults.restart_limit
        if limit is not None and not 0 <= limit <= most:
            self.refuse("--restart-limit", f"{limit} restarts; allowed are 0 to {most}")
        if self.request.memory is not None and self.request.memory.lower() == "none":
            return 0
        return min(RESTART_LIMIT, most) if limit is None else limit

    def _priority_class(self) -> None:
        known, asked = self.facts.priority_classes, self.request.priority_class
        if asked and known is not None and asked not in known:
            names = ", ".join(sorted(known))
            self.refuse(
                "--priority-class",
                f"there is no PriorityClass {asked!r}",
                f"there are: {names}" if names else None,
            )

    def _command(self) -> None:
        command = self.request.command
        if not command or not command[0]:
            self.refuse("COMMAND", "no command given", "moor run [OPTIONS] -- python train.py")
        elif self.facts.process_runtime and self.caller.program is None:
            self.refuse(
                "COMMAND",
                f"the command {command[0]!r} does not exist on this machine",
                "check its spelling, or give its path; on this cluster it runs with your own PATH",
            )

    def _secret(self, name: str, identity: Mapping[str, str]) -> Obj:
        data = {"runner.py": self.caller.runner.encode(), "token": self.caller.token.encode()}
        if self.caller.archive is not None:
            data["work.tar.gz"] = self.caller.archive
        self.volumes.append({"name": "moorage-run", "secret": {"secretName": secret_name(name)}})
        self.mounts.append({"name": "moorage-run", "mountPath": RUNNER_PATH, "readOnly": True})
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": secret_name(name),
                "namespace": self.request.namespace,
                "labels": {RUN_LABEL: name, OWNER_LABEL: identity[OWNER_LABEL]},
            },
            "type": "Opaque",
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }

    def _container(
        self,
        name: str,
        resources: Mapping[str, str],
        env: list[Obj],
        image: str,
        workdir: str | None,
        checkpoint: str | None,
        *,
        wrapped: bool,
    ) -> Obj:
        command = [unexpanded(word) for word in self.request.command]
        env = [*env, {"name": "MOORAGE_RUN", "value": name}]
        if checkpoint is not None:
            env.append({"name": CHECKPOINT_ENV, "value": CHECKPOINT_PATH})
        if wrapped:
            runner = [self.caller.python if self.facts.process_runtime else "python3", f"{RUNNER_PATH}/runner.py"]
            if self.caller.archive is not None:
                runner += ["--unpack", f"{RUNNER_PATH}/work.tar.gz", "--into", UNPACK_PATH]
            if checkpoint is not None and self.facts.server_url:
                url = self.facts.server_url.rstrip("/")
                runner += ["--report", f"{url}/api/v1/runs/{self.request.namespace}/{name}/checkpoint"]
                runner += ["--token-file", f"{RUNNER_PATH}/token"]
            command = [*runner, "--", *command]
        container: Obj = {
            "name": CONTAINER,
            "image": image,
            "command": command,
            "env": env,
            "resources": {"requests": dict(resources), "limits": dict(resources)},
        }
        if workdir is not None:
            container["workingDir"] = workdir
        if self.mounts:
            container["volumeMounts"] = self.mounts
        return container
