"""The guardrails that a GuardrailPolicy names: one table, read by admission, by `moor lint` and by the reference.

Each rule looks at one pod template of a workload and says what it finds, by field path. A rule that can be filled
in also knows how to write what is missing; it then looks again, so what it could not mend is still said.

Everything here is total: fields of a wrong type are passed over (`misshapen` names them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage.apimachinery.quantity import amount
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import NodeInfo, is_gpu, pod_requests
from moorage.errors import QuantityError
from moorage.model.names import GPU_PRESENT_LABEL, GPU_TYPE_LABELS
from moorage.model.policy import Policy

Path = tuple[str | int, ...]

KILLED = 137  # 128 + SIGKILL: how a container that was killed for its memory ends
GUARANTEED = ("cpu", "memory")  # the resources that decide the quality-of-service class
JOBS = ("Job", "CronJob")
# of a pod: each takes 0.25 ms to judge (measured with 60,000), and other requests wait for that
CONTAINERS_MAX = 500
TEMPLATE_DEPTH_MAX = 8  # steps down to a pod template in a kind that is not known; those in use have at most 5

# kind → where its pod template is; a Pod is its own
WORKLOADS: Mapping[str, Path] = {
    "Pod": (),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "MapJob": ("spec", "template"),
}
# Argo's kinds → where the list of templates is; judged by `moor lint` (admission sees the pods made from them)
WORKFLOWS: Mapping[str, Path] = {
    "Workflow": ("spec",),
    "WorkflowTemplate": ("spec",),
    "ClusterWorkflowTemplate": ("spec",),
    "CronWorkflow": ("spec", "workflowSpec"),
}

# annotations that Kubernetes reads no more, and what took their place
DEAD_ANNOTATIONS: Mapping[str, str] = {
    "scheduler.alpha.kubernetes.io/critical-pod": "priorityClassName (gone since 1.16)",
    "scheduler.alpha.kubernetes.io/affinity": "spec.affinity (gone since 1.8)",
    "scheduler.alpha.kubernetes.io/tolerations": "spec.tolerations (gone since 1.8)",
    "scheduler.alpha.kubernetes.io/name": "spec.schedulerName (gone since 1.8)",
    "pod.alpha.kubernetes.io/init-containers": "spec.initContainers (gone since 1.8)",
    "pod.beta.kubernetes.io/init-containers": "spec.initContainers (gone since 1.8)",
    "security.alpha.kubernetes.io/sysctls": "spec.securityContext.sysctls (gone since 1.11)",
    "security.alpha.kubernetes.io/unsafe-sysctls": "spec.securityContext.sysctls (gone since 1.11)",
    "seccomp.security.alpha.kubernetes.io/pod": "spec.securityContext.seccompProfile (gone since 1.27)",
    "container.seccomp.security.alpha.kubernetes.io/*": "securityContext.seccompProfile (gone since 1.27)",
    "container.apparmor.security.beta.kubernetes.io/*": "securityContext.appArmorProfile (since 1.30)",
    "alpha.kubernetes.io/nvidia-gpu-driver": "resources.limits with nvidia.com/gpu (gone since 1.11)",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks a rule. `value`: what was found, as text; empty: nothing was."""

    rule: str
    path: Path
    value: str
    message: str

    @property
    def field(self) -> str:
        """The path as the API server writes it."""
        return field_of(self.path)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" + (f" (found {self.value})" if self.value else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShape:
    """What some node offers: how many of one GPU resource, under which type labels."""

    labels: Mapping[str, str]
    resource: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of the cluster a rule may need."""

    gpu_types: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by label
    shapes: tuple[GpuShape, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pod template in its workload; the parts are those of the object itself, so filling in changes it."""

    kind: str
    path: Path  # of the pod spec (of an Argo template: the template)
    spec: Obj
    metadata: Sequence[tuple[Path, Mapping[str, Any]]]
    containers: Sequence[tuple[Path, Obj]]
    job: Obj | None = None  # the Job's spec, of Jobs and CronJobs
    job_path: Path = ()
    resources: Mapping[str, Any] = field(default_factory=dict)  # what a container without any inherits (Argo)

    @property
    def is_workflow(self) -> bool:
        return self.kind in WORKFLOWS

    def asked(self, container: Mapping[str, Any], table: str, resource: str) -> Any:
        """The amount in `limits` or `requests`; a limit alone is a request too, as the API server has it."""
        own = mapping(container.get("resources")) or self.resources
        found = at(own, (table, resource))
        return at(own, ("limits", resource)) if found is None and table == "requests" else found

    def has_pod_limit(self, resource: str) -> bool:
        return at(self.spec, ("resources", "limits", resource)) is not None

    def unlimited(self) -> list[Path]:
        """Containers without a memory limit; none when the pod has one as a whole."""
        if self.has_pod_limit("memory"):
            return []
        return [path for path, one in self.containers if self.asked(one, "limits", "memory") is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One template, with all that a rule may read."""

    template: Template
    settings: Mapping[str, Any]
    facts: Facts | None = None  # None: the cluster was not asked
    away: tuple[Obj, ...] = ()  # label expressions that keep off GPU nodes; empty: there is no other place


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table. `fill` writes, and returns what it wrote; None: nobody can fill it in."""

    name: str
    checks: str
    fields: str
    fix: str
    default: str
    check: Callable[[Seen], Iterator[Finding]]
    fill: Callable[[Seen], Iterator[Finding]] | None = None
    parameters: str = ""
    rows: str = ""
    kinds: tuple[str, ...] | None = None  # None: every workload
    argo: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy says of a workload, in the order of the table."""

    denied: tuple[Finding, ...] = ()
    warned: tuple[Finding, ...] = ()
    filled: tuple[Finding, ...] = ()  # what was written, and where


def judge_workload(
    kind: str,
    obj: Obj,
    policy: Policy,
    *,
    facts: Facts | None = None,
    away: tuple[Obj, ...] = (),
    fill: bool = False,
) -> Judgement:
    """Apply every rule to every pod template of the object; with `fill`, `obj` is changed in place.

    Without `fill`, what a `fill` rule would write is a warning. Kinds without pod templates give nothing; in kinds
    that are not known, whatever looks like a pod template is one.
    """
    denied: list[Finding] = []
    warned: list[Finding] = []
    filled: list[Finding] = []
    templates = list(templates_of(kind, obj))
    facts = _with_expected(facts, policy)
    for rule in RULES:
        level = policy.level(rule.name, rule.default)
        if level == "off":
            continue
        settings = policy.rules.get(rule.name) or {}
        for template in templates:
            if not _applies(rule, template):
                continue
            seen = Seen(template=template, settings=settings, facts=facts, away=away)
            if level == "fill" and fill and rule.fill is not None:
                filled += rule.fill(seen)
            (denied if level == "deny" else warned).extend(rule.check(seen))
    return Judgement(tuple(denied), tuple(warned), tuple(filled))


def facts_of(nodes: Iterable[NodeInfo]) -> Facts:
    """The GPU types there are, and how many GPUs a node has at most, by type."""
    types: dict[str, set[str]] = {}
    shapes: dict[tuple[Any, ...], GpuShape] = {}
    for node in nodes:
        labels = {key: node.labels[key] for key in GPU_TYPE_LABELS if key in node.labels}
        for key, value in labels.items():
            types.setdefault(key, set()).add(value)
        for resource, count in node.allocatable.items():
            if is_gpu(resource) and count > 0:
                known = (tuple(sorted(labels.items())), resource, count)
                shapes[known] = GpuShape(labels=labels, resource=resource, count=count)
    return Facts(
        gpu_types={key: frozenset(values) for key, values in types.items()},
        shapes=tuple(shapes[key] for key in sorted(shapes)),
    )


def _with_expected(facts: Facts | None, policy: Policy) -> Facts | None:
    """The facts with nodes that a policy says may come; without facts nobody asked for GPUs at all."""
    if facts is None or not policy.expected_nodes:
        return facts
    types = {key: set(values) for key, values in facts.gpu_types.items()}
    shapes = list(facts.shapes)
    for node in policy.expected_nodes:
        told = mapping(node.get("labels"))
        labels = {key: str(told[key]) for key in GPU_TYPE_LABELS if key in told}
        for key, value in labels.items():
            types.setdefault(key, set()).add(value)
        for resource, text in mapping(node.get("resources")).items():
            if is_gpu(str(resource)) and _is_quantity(text) and (count := amount(str(resource), text)) > 0:
                shapes.append(GpuShape(labels=labels, resource=str(resource), count=count))
    return Facts(gpu_types={key: frozenset(values) for key, values in types.items()}, shapes=tuple(shapes))


def templates_of(kind: str, obj: Obj) -> Iterator[Template]:
    """The pod templates of a workload, or the templates of a workflow that run containers; others give none."""
    if kind in WORKFLOWS:
        yield from _workflow_templates(kind, obj)
        return
    if kind not in WORKLOADS:
        yield from _templates_within(kind, obj)
        return
    path = WORKLOADS[kind]
    template = at(obj, path)
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return
    spec = template["spec"]
    own: list[tuple[Path, Mapping[str, Any]]] = [((*path, "metadata"), mapping(template.get("metadata")))]
    job = at(obj, path[:-1]) if kind in JOBS else None
    yield Template(
        kind=kind,
        path=(*path, "spec"),
        spec=spec,
        metadata=own,
        containers=list(_containers(spec, (*path, "spec"))),
        job=job if isinstance(job, dict) else None,
        job_path=path[:-1],
    )


def _templates_within(kind: str, obj: Obj) -> Iterator[Template]:
    """Pod templates of kinds that others brought: a notebook, a distributed training run, …"""
    waiting: list[tuple[Path, Any]] = [(("spec",), obj.get("spec"))]
    while waiting:
        path, found = waiting.pop()
        if len(path) > TEMPLATE_DEPTH_MAX:
            continue
        if isinstance(found, list):
            waiting += [((*path, index), one) for index, one in reversed(list(enumerate(found)))]
        if not isinstance(found, dict):
            continue
        spec = found.get("spec")
        if isinstance(spec, dict) and any(isinstance(one, dict) for one in sequence(spec.get("containers"))):
            yield Template(
                kind=kind,
                path=(*path, "spec"),
                spec=spec,
                metadata=[((*path, "metadata"), mapping(found.get("metadata")))],
                containers=list(_containers(spec, (*path, "spec"))),
            )
            continue
        waiting += [((*path, key), one) for key, one in reversed(list(found.items())) if isinstance(key, str)]


def misshapen(kind: str, obj: Any) -> Iterator[Finding]:
    """Fields on the way to what the rules read that are of a type the API server refuses."""
    path = WORKLOADS.get(kind)
    if path is None:
        path = WORKFLOWS.get(kind)
        if path is None:
            return
    yield from _typed(obj, ("metadata",), dict)
    for length in range(1, len(path) + 1):
        found = at(obj, path[:length])
        if not isinstance(found, dict):
            said = "is missing" if found is None else "must be a mapping"
            yield Finding("shape", path[:length], _shown(found), said)
            return
    if kind in WORKFLOWS:
        yield from _typed(obj, (*path, "templates"), list)
        for index, one in enumerate(sequence(at(obj, (*path, "templates")))):
            if not isinstance(one, dict):
                yield Finding("shape", (*path, "templates", index), _shown(one), "must be a mapping")
                continue
            for key in ("container", "script", "metadata", "nodeSelector"):
                yield from _typed(obj, (*path, "templates", index, key), dict)
    else:
        spec = (*path, "spec")
        if not isinstance(at(obj, spec), dict):
            said = "is missing" if at(obj, spec) is None else "must be a mapping"
            yield Finding("shape", spec, _shown(at(obj, spec)), said)
            return
        for name in ("metadata", "metadata.labels", "metadata.annotations", "spec.affinity", "spec.nodeSelector",
                     "spec.securityContext", "spec.resources"):  # fmt: skip
            yield from _typed(obj, (*path, *name.split(".")), dict)
        yield from _typed(obj, (*spec, "priorityClassName"), str)
        for name in ("containers", "initContainers", "tolerations", "volumes", "schedulingGates"):
            yield from _typed(obj, (*spec, name), list)
            for index, one in enumerate(sequence(at(obj, (*spec, name)))):
                if not isinstance(one, dict):
                    yield Finding("shape", (*spec, name, index), _shown(one), "must be a mapping")
        if not at(obj, (*spec, "containers")):
            yield Finding("shape", (*spec, "containers"), "", "a pod needs at least one container")
        if kind in JOBS:
            limit = at(obj, (*path[:-1], "backoffLimit"))
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
                yield Finding(
                    "shape", (*path[:-1], "backoffLimit"), _shown(limit), "must be a whole number from 0"
                )
    for template in templates_of(kind, obj):
        for where, container in template.containers:
            for name in ("command", "args"):
                yield from _typed(obj, (*where, name), list)
            yield from _typed(obj, (*where, "resources"), dict)
            for name in ("limits", "requests"):
                yield from _typed(obj, (*where, "resources", name), dict)
                for resource, value in mapping(at(container, ("resources", name))).items():
                    if not _is_quantity(value):
                        said = "must be a quantity such as 500m, 2, 512Mi or 8Gi"
                        yield Finding("shape", (*where, "resources", name, str(resource)), _shown(value), said)


def container_count(kind: str, obj: Any) -> int:
    """How many containers the pod template of a kind in WORKLOADS has, init containers among them."""
    spec = (*WORKLOADS[kind], "spec")
    return sum(len(sequence(at(obj, (*spec, table)))) for table in ("containers", "initContainers"))


def field_of(path: Path) -> str:
    """`("spec", "containers", 0, "name")` → `spec.containers[0].name`; keys with a dot or a slash in brackets."""
    out = ""
    for step in path:
        if isinstance(step, int) or "." in step or "/" in step:
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


def at(obj: Any, path: Path) -> Any:
    """The value at a path; None where any step is missing or of another type."""
    for key in path:
        if type(obj) is dict or isinstance(obj, Mapping):  # asking an abstract class costs ten times as much
            obj = obj.get(key)
        elif isinstance(key, int) and isinstance(obj, list) and key < len(obj):
            obj = obj[key]
        else:
            return None
    return obj


def mapping(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def same(resource: str, one: Any, other: Any) -> bool:
    """Whether two quantities are the same amount; what is no quantity is the same as nothing."""
    if one is None or other is None:
        return False
    try:
        return amount(resource, one) == amount(resource, other)
    except (QuantityError, TypeError):
        return False


def wants_gpu(containers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any container asks for a GPU of any vendor."""
    for container in containers:
        for table in ("limits", "requests"):
            if any(is_gpu(str(name)) for name in mapping(at(container, ("resources", table)))):
                return True
    return False


def keep_off(spec: Obj, away: Sequence[Obj]) -> None:
    """Add label expressions to every alternative of the required node affinity."""
    node = _table(_table(spec, "affinity"), "nodeAffinity")
    required = _table(node, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.get("nodeSelectorTerms")
    if not terms:
        required["nodeSelectorTerms"] = [{"matchExpressions": list(away)}]
        return
    for term in terms:  # terms are alternatives: each must keep off; an empty one matches no node
        if term:
            term["matchExpressions"] = [*(term.get("matchExpressions") or ()), *away]


# --- the rules


def _memory_limit(seen: Seen) -> Iterator[Finding]:
    for path in seen.template.unlimited():
        said = "is not set: growing without a limit it takes its neighbours down with it"
        yield Finding("memoryLimit", (*path, "resources", "limits", "memory"), "", said)


def _fill_memory_limit(seen: Seen) -> Iterator[Finding]:
    default = seen.settings.get("default")
    if seen.template.has_pod_limit("memory"):
        return
    for path, container in seen.template.containers:
        if seen.template.asked(container, "limits", "memory") is not None:
            continue
        asked = at(container, ("resources", "requests", "memory"))
        value = default if asked is None or _is_more(default, asked) else asked
        if value is not None and _set_resource(container, "limits", "memory", str(value)):
            yield Finding("memoryLimit", (*path, "resources", "limits", "memory"), "", f"set to {value}")


def _resource_requests(seen: Seen) -> Iterator[Finding]:
    for path, container in seen.template.containers:
        for resource in GUARANTEED:
            if at(seen.template.spec, ("resources", "requests", resource)) is not None:
                continue
            if seen.template.has_pod_limit(resource):
                continue
            if seen.template.asked(container, "requests", resource) is None:
                given = seen.settings.get(resource)
                said = "is not set: it is placed as if it needed none"
                said += f"; this cluster's default is {given}" if given is not None else ""
                yield Finding("resourceRequests", (*path, "resources", "requests", resource), "", said)


def _fill_resource_requests(seen: Seen) -> Iterator[Finding]:
    for path, container in seen.template.containers:
        for resource in GUARANTEED:
            default = seen.settings.get(resource)
            if default is None or seen.template.has_pod_limit(resource):
                continue
            if at(seen.template.spec, ("resources", "requests", resource)) is not None:
                continue
            if seen.template.asked(container, "requests", resource) is None and _set_resource(
                container, "requests", resource, str(default)
            ):
                yield Finding(
                    "resourceRequests", (*path, "resources", "requests", resource), "", f"set to {default}"
                )


def _guaranteed_qos(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if all(template.has_pod_limit(resource) for resource in GUARANTEED):
        return
    for path, container in template.containers:
        shown = []
        for resource in GUARANTEED:
            limit = template.asked(container, "limits", resource)
            request = template.asked(container, "requests", resource)
            if not same(resource, limit, request):
                shown.append(f"{resource}: request {_or_none(request)}, limit {_or_none(limit)}")
        if shown:
            said = "CPU and memory requests must be set and equal limits, so that its node never picks it to die"
            yield Finding("guaranteedQos", (*path, "resources"), "; ".join(shown), said)


def _fill_guaranteed_qos(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if all(template.has_pod_limit(resource) for resource in GUARANTEED):
        return
    for path, container in template.containers:
        for resource in GUARANTEED:
            limit = at(container, ("resources", "limits", resource))
            request = at(container, ("resources", "requests", resource))
            if limit is None and request is not None:
                if _set_resource(container, "limits", resource, str(request)):
                    yield Finding(
                        "guaranteedQos",
                        (*path, "resources", "limits", resource),
                        "",
                        f"set to the request, {request}",
                    )
            elif (
                request is not None
                and _is_quantity(limit)
                and not same(resource, limit, request)
                and _set_resource(container, "requests", resource, str(limit))
            ):
                yield Finding(
                    "guaranteedQos", (*path, "resources", "requests", resource), "", f"set to the limit, {limit}"
                )


def _retry_without_limit(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if template.job is None or not template.unlimited():
        return
    if template.job.get("backoffLimit") != 0:
        said = "must be 0 without a memory limit: tried again it takes one node after another"
        found = _shown(template.job.get("backoffLimit", 6))
        yield Finding("retryWithoutLimit", (*template.job_path, "backoffLimit"), found, said)
    if template.spec.get("restartPolicy") != "Never":
        said = "must be Never without a memory limit"
        found = _shown(template.spec.get("restartPolicy") or "Always")
        yield Finding("retryWithoutLimit", (*template.path, "restartPolicy"), found, said)


def _fill_retry_without_limit(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if template.job is None or not template.unlimited():
        return
    if template.job.get("backoffLimit") != 0:
        template.job["backoffLimit"] = 0
        yield Finding(
            "retryWithoutLimit", (*template.job_path, "backoffLimit"), "", "set to 0, for want of a memory limit"
        )
    if template.spec.get("restartPolicy") != "Never":
        template.spec["restartPolicy"] = "Never"
        yield Finding(
            "retryWithoutLimit", (*template.path, "restartPolicy"), "", "set to Never, for want of a memory limit"
        )


def _restart_bomb(seen: Seen) -> Iterator[Finding]:
    """Killed for memory must not mean: moved on to the next node with the same memory.

    A kill at its own limit restarts in place. It moves on where the kubelet evicts it for memory (which it never
    does first to one that stays below its request) and where a Job answers the kill with a new pod.
    """
    template = seen.template
    policy = template.spec.get("restartPolicy")
    if template.job is not None and policy == "Never" and template.job.get("backoffLimit") == 0:
        return
    if template.kind == "Pod" and policy == "Never":
        return
    for path, container in template.containers:
        if template.has_pod_limit("memory"):
            break
        limit = template.asked(container, "limits", "memory")
        if not same("memory", limit, template.asked(container, "requests", "memory")):
            said = "memory request and limit must be set and equal: evicted for memory, it is made again elsewhere"
            yield Finding("restartBomb", (*path, "resources"), "", said)
            break  # one is enough to be said of a pod
    if _escalates(seen):
        return  # tried again with more memory, it is no bomb
    if template.job is not None and policy == "Never" and not _fails_when_killed(template.job):
        said = f"must fail the Job on exit code {KILLED}: killed for memory, it is tried again on the next node"
        found = "none" if template.job.get("podFailurePolicy") is None else "no such rule"
        yield Finding("restartBomb", (*template.job_path, "podFailurePolicy"), found, said)


def _fill_restart_bomb(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    policy = template.spec.get("restartPolicy")
    once = template.job is not None and template.job.get("backoffLimit") == 0
    if policy == "Never" and (once or template.kind == "Pod"):
        return
    for path, container in template.containers:
        limit = at(container, ("resources", "limits", "memory"))
        request = at(container, ("resources", "requests", "memory"))
        if request is None or not _is_quantity(limit) or same("memory", limit, request):
            continue
        if _set_resource(container, "requests", "memory", str(limit)):
            yield Finding(
                "restartBomb", (*path, "resources", "requests", "memory"), "", f"set to the limit, {limit}"
            )
    if _escalates(seen):
        return
    if template.job is not None and policy == "Never" and template.job.get("podFailurePolicy") is None:
        on_exit = {"operator": "In", "values": [KILLED]}
        template.job["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": on_exit}]}
        yield Finding(
            "restartBomb", (*template.job_path, "podFailurePolicy"), "", f"exit code {KILLED} fails the Job"
        )


def _escalates(seen: Seen) -> bool:
    return seen.settings.get("level") == "fill" and isinstance(seen.settings.get("escalation"), Mapping)


def _fails_when_killed(job: Mapping[str, Any]) -> bool:
    """Whether exit code 137 ends the Job (or its index) before any rule that would try again."""
    for rule in sequence(at(job, ("podFailurePolicy", "rules"))):
        codes = mapping(mapping(rule).get("onExitCodes"))
        if codes.get("containerName"):
            continue
        listed = KILLED in sequence(codes.get("values"))
        if codes and (listed if codes.get("operator") == "In" else not listed):
            return mapping(rule).get("action") in ("FailJob", "FailIndex")
    return False


def _gpu_nodes(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if wants_gpu(one for _, one in template.containers):
        return
    for where, value in _chosen_gpu_nodes(template):
        yield Finding("gpuNodes", where, value, "chooses GPU nodes, but no container asks for a GPU")
        return
    if seen.away and not template.spec.get("nodeName") and not _keeps_off(template.spec, seen.away):
        said = "nothing keeps it off GPU nodes, and no container asks for a GPU"
        yield Finding("gpuNodes", (*template.path, "affinity", "nodeAffinity"), "", said)


def _fill_gpu_nodes(seen: Seen) -> Iterator[Finding]:
    template = seen.template
    if wants_gpu(one for _, one in template.containers) or template.spec.get("nodeName"):
        return
    if not seen.away or _keeps_off(template.spec, seen.away) or any(_chosen_gpu_nodes(template)):
        return
    keep_off(template.spec, seen.away)
    yield Finding("gpuNodes", (*template.path, "affinity", "nodeAffinity"), "", "keeps off GPU nodes")


def _keeps_off(spec: Mapping[str, Any], away: Sequence[Obj]) -> bool:
    terms = sequence(at(spec, (*_REQUIRED, "nodeSelectorTerms")))
    return bool(terms) and all(
        all(one in sequence(mapping(term).get("matchExpressions")) for one in away) for term in terms if term
    )


_REQUIRED: Path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def _chosen_gpu_nodes(template: Template) -> Iterator[tuple[Path, str]]:
    """Where it demands a node with GPUs, and what it writes there."""
    for key, value in mapping(template.spec.get("nodeSelector")).items():
        if key in GPU_TYPE_LABELS or (key == GPU_PRESENT_LABEL and value == "true"):
            yield (*template.path, "nodeSelector", key), _shown(value)
    terms = sequence(at(template.spec, (*_REQUIRED, "nodeSelectorTerms")))
    for number, term in enumerate(terms):
        for index, one in enumerate(sequence(mapping(term).get("matchExpressions"))):
            label, wanted = mapping(one).get("key"), mapping(one).get("operator")
            positive = wanted == "Exists" or (wanted == "In" and sequence(one.get("values")) != ["false"])
            if positive and (label in GPU_TYPE_LABELS or label == GPU_PRESENT_LABEL):
                path = (*_REQUIRED, "nodeSelectorTerms", number, "matchExpressions", index)
                yield (*template.path, *path), str(label)


def _gpu_type(seen: Seen) -> Iterator[Finding]:
    if seen.facts is None:
        return
    for key, value in mapping(seen.template.spec.get("nodeSelector")).items():
        if key in GPU_TYPE_LABELS and str(value) not in (known := seen.facts.gpu_types.get(key, frozenset())):
            path = (*seen.template.path, "nodeSelector", key)
            yield Finding("gpuType", path, _shown(value), f"no node has it; there are: {_listed(known)}")
    terms = sequence(at(seen.template.spec, (*_REQUIRED, "nodeSelectorTerms")))
    missing = [found for number, term in enumerate(terms) if (found := _missing_type(seen, number, term))]
    if missing and len(missing) == len(terms):  # terms are alternatives: one that can be met is enough
        yield missing[0]


def _missing_type(seen: Seen, number: int, term: Any) -> Finding | None:
    facts = seen.facts or Facts()
    for index, one in enumerate(sequence(mapping(term).get("matchExpressions"))):
        key, values = mapping(one).get("key"), sequence(mapping(one).get("values"))
        if key in GPU_TYPE_LABELS and mapping(one).get("operator") == "In":
            known = facts.gpu_types.get(str(key), frozenset())
            if not any(str(value) in known for value in values):
                steps = (*_REQUIRED, "nodeSelectorTerms", number, "matchExpressions", index, "values")
                said = f"no node has it; there are: {_listed(known)}"
                return Finding("gpuType", (*seen.template.path, *steps), ", ".join(map(str, values)), said)
    return None


def _gpu_count(seen: Seen) -> Iterator[Finding]:
    if seen.facts is None:
        return
    template = seen.template
    try:
        asked = pod_requests(_as_pod(template))
    except (ValueError, TypeError, AttributeError):
        return  # `misshapen` tells
    selected = mapping(template.spec.get("nodeSelector"))
    chosen = {key: selected[key] for key in GPU_TYPE_LABELS if key in selected}
    for resource, count in asked.items():
        if not is_gpu(str(resource)) or count <= 0:
            continue
        fitting = [one for one in seen.facts.shapes if one.resource == resource]
        of_type = [one for one in fitting if chosen.items() <= one.labels.items()]
        most = max((one.count for one in of_type or fitting), default=0)
        if count > most:
            path = next(
                (*path, "resources", "limits", resource)
                for path, one in template.containers
                for table in ("limits", "requests")
                if resource in mapping(at(one, ("resources", table)))
            )
            said = f"the largest node has {most}" if most else "no node offers any"
            yield Finding("gpuCount", path, str(count), f"can never be placed: {said}")


def _as_pod(template: Template) -> Obj:
    if not template.is_workflow:
        return template.spec
    return {"containers": [one for _, one in template.containers]}


def _ephemeral_storage(seen: Seen) -> Iterator[Finding]:
    for path, container in seen.template.containers:
        if seen.template.asked(container, "limits", "ephemeral-storage") is None:
            said = "is not set: what it writes can fill its node's disk, and everything there is evicted"
            yield Finding("ephemeralStorage", (*path, "resources", "limits", "ephemeral-storage"), "", said)


def _fill_ephemeral_storage(seen: Seen) -> Iterator[Finding]:
    default = seen.settings.get("default")
    for path, container in seen.template.containers:
        if seen.template.asked(container, "limits", "ephemeral-storage") is not None:
            continue
        asked = at(container, ("resources", "requests", "ephemeral-storage"))
        value = default if asked is None or _is_more(default, asked) else asked
        if value is not None and _set_resource(container, "limits", "ephemeral-storage", str(value)):
            yield Finding(
                "ephemeralStorage", (*path, "resources", "limits", "ephemeral-storage"), "", f"set to {value}"
            )


def _unsupported_annotations(seen: Seen) -> Iterator[Finding]:
    dead = dict(DEAD_ANNOTATIONS) | {str(one): "" for one in sequence(seen.settings.get("annotations"))}
    for path, meta in seen.template.metadata:
        for key, value in mapping(meta.get("annotations")).items():
            for pattern, instead in dead.items():
                matches = str(key).startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern
                if matches:
                    said = "does nothing here" + (f"; use {instead}" if instead else "")
                    yield Finding("unsupportedAnnotations", (*path, "annotations", str(key)), _shown(value), said)
                    break


def _missing_command(seen: Seen) -> Iterator[Finding]:
    for path, container in seen.template.containers:
        if "initContainers" in path or container.get("command"):
            continue
        said = "is not set: what runs hangs on the image alone, and changes with it"
        yield Finding("missingCommand", (*path, "command"), "", said)


RULES: tuple[Rule, ...] = (
    Rule(
        name="memoryLimit",
        checks="every container has a memory limit, or the pod as a whole",
        fields="`resources.limits.memory`",
        fix="state a limit; it alone is killed beyond it",
        default="warn",
        check=_memory_limit,
        fill=_fill_memory_limit,
        parameters="`default`: the limit filled in",
        rows="R4",
    ),
    Rule(
        name="resourceRequests",
        checks="every container requests CPU and memory",
        fields="`resources.requests.cpu`, `.memory`",
        fix="state requests; a limit counts as one",
        default="warn",
        check=_resource_requests,
        fill=_fill_resource_requests,
        parameters="`cpu`, `memory`: the requests filled in",
        rows="R28",
    ),
    Rule(
        name="retryWithoutLimit",
        checks="a Job without a memory limit is never tried again",
        fields="`backoffLimit`, `restartPolicy`",
        fix="state memory limits, or set backoffLimit 0 and restartPolicy Never",
        default="warn",
        check=_retry_without_limit,
        fill=_fill_retry_without_limit,
        rows="R6",
        kinds=JOBS,
        argo=False,
    ),
    Rule(
        name="guaranteedQos",
        checks="CPU and memory requests equal limits (Guaranteed quality of service)",
        fields="`resources`",
        fix="set requests and limits to the same amounts",
        default="warn",
        check=_guaranteed_qos,
        fill=_fill_guaranteed_qos,
        rows="R5",
    ),
    Rule(
        name="restartBomb",
        checks="whatever owns it, a pod killed for memory does not move on to the next node with the same memory",
        fields="`resources`, `podFailurePolicy`",
        fix="set memory request and limit to the same amount; in Jobs fail on exit code 137",
        default="warn",
        check=_restart_bomb,
        fill=_fill_restart_bomb,
        parameters="`allowed`: kills until a replacement is held; `escalation` (`max`, `factor`): with `fill`, the"
        " replacement gets more memory instead, up to `max`",
        rows="R6",
        argo=False,
    ),
    Rule(
        name="gpuNodes",
        checks="pods without GPUs keep off GPU nodes (as long as there are others; DaemonSets may go anywhere)",
        fields="`nodeSelector`, `affinity.nodeAffinity`",
        fix="ask for a GPU, or do not choose GPU nodes",
        default="warn",
        check=_gpu_nodes,
        fill=_fill_gpu_nodes,
        rows="R7",
        kinds=tuple(kind for kind in WORKLOADS if kind != "DaemonSet"),
    ),
    Rule(
        name="gpuType",
        checks="the GPU type that is chosen exists on some node",
        fields="`nodeSelector`, `affinity.nodeAffinity`",
        fix="choose a type that `moor gpus` shows",
        default="warn",
        check=_gpu_type,
        parameters="beside the rules, `expectedNodes`: nodes that an autoscaler may add",
        rows="R8",
    ),
    Rule(
        name="gpuCount",
        checks="some node (of the type that is chosen) has as many GPUs as the pod asks for",
        fields="`resources.limits`",
        fix="ask for at most what the largest node has",
        default="warn",
        check=_gpu_count,
        parameters="as `gpuType`",
        rows="R8",
    ),
    Rule(
        name="ephemeralStorage",
        checks="every container limits what it writes on its node's disk",
        fields="`resources.limits.ephemeral-storage`",
        fix="state a limit",
        default="off",
        check=_ephemeral_storage,
        fill=_fill_ephemeral_storage,
        parameters="`default`: the limit filled in",
    ),
    Rule(
        name="unsupportedAnnotations",
        checks="no annotation that nothing reads any more",
        fields="`metadata.annotations` of pods",
        fix="remove it, or use what took its place",
        default="warn",
        check=_unsupported_annotations,
        parameters="`annotations`: more of them; `*` at the end makes a prefix",
        rows="R30",
    ),
    Rule(
        name="missingCommand",
        checks="containers of Jobs and of workflow steps name their command",
        fields="`command`",
        fix="write the command that the image would run",
        default="warn",
        check=_missing_command,
        rows="R30",
        kinds=JOBS,
    ),
)

FIXES: Mapping[str, str] = {rule.name: rule.fix for rule in RULES} | {
    "shape": "write the field as the API reference has it"
}


def _applies(rule: Rule, template: Template) -> bool:
    if template.is_workflow:
        return rule.argo
    return rule.kinds is None or template.kind in rule.kinds


# --- reading


def _containers(spec: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Obj]]:
    for table in ("initContainers", "containers"):
        for index, one in enumerate(sequence(spec.get(table))):
            if isinstance(one, dict):
                yield (*path, table, index), one


def _workflow_templates(kind: str, obj: Obj) -> Iterator[Template]:
    """https://argo-workflows.readthedocs.io/en/latest/fields/#template"""
    root = WORKFLOWS[kind]
    spec = mapping(at(obj, root))
    defaults = mapping(at(spec, ("templateDefaults", "container", "resources")))
    patched = str(spec.get("podSpecPatch") or "") + str(at(spec, ("templateDefaults", "podSpecPatch")) or "")
    for index, template in enumerate(sequence(spec.get("templates"))):
        if not isinstance(template, dict):
            continue
        path: Path = (*root, "templates", index)
        found: list[tuple[Path, Obj]] = []
        for key in ("container", "script"):
            if isinstance(template.get(key), dict):
                found.append(((*path, key), template[key]))
        for key, table in (("containerSet", template.get("containerSet")), ("", template)):
            for name in ("containers",) if key else ("initContainers", "sidecars"):
                for number, one in enumerate(sequence(mapping(table).get(name))):
                    if isinstance(one, dict):
                        found.append(((*path, *((key,) if key else ()), name, number), one))
        if not found:
            continue  # steps, a DAG, suspend, …: no pod of its own
        patch = patched + str(template.get("podSpecPatch") or "")
        whole = {"limits": {name: "1" for name in GUARANTEED if name in patch}}  # what the patch states is stated
        yield Template(
            kind=kind,
            path=path,
            spec=template,
            metadata=[((*path, "metadata"), mapping(template.get("metadata")))],
            containers=found,
            resources=defaults or (whole if whole["limits"] else {}),
        )


_MUST_BE: Mapping[type, str] = {dict: "must be a mapping", list: "must be a list", str: "must be a text"}


def _typed(obj: Any, path: Path, wanted: type) -> Iterator[Finding]:
    found = at(obj, path)
    if found is not None and not isinstance(found, wanted):
        yield Finding("shape", path, _shown(found), _MUST_BE[wanted])


def _table(obj: Obj, key: str) -> Obj:
    """The mapping at a key, made where it is missing or null."""
    if not obj.get(key):
        obj[key] = {}
    found: Obj = obj[key]
    return found


def _set_resource(container: Obj, table: str, resource: str, value: str) -> bool:
    """Whether it could be written: what stands in its place may be of a wrong type."""
    resources = _table(container, "resources")
    if not isinstance(resources, dict) or not isinstance(_table(resources, table), dict):
        return False
    resources[table][resource] = value
    return True


def _is_quantity(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        amount("memory", value)
    except QuantityError:
        return False
    return True


def _is_more(one: Any, other: Any) -> bool:
    return _is_quantity(one) and _is_quantity(other) and amount("memory", one) > amount("memory", other)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _or_none(value: Any) -> str:
    return "none" if value is None else str(value)


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "none"
