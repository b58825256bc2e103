"""The pod templates in a workload, a workflow, or any object that holds one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from moorage.decide.admission.fields import Path, at, mapping, sequence
from moorage.model.names import MACHINE_CONTAINER_LABEL, MACHINE_GROUP_LABEL, MACHINE_TYPE_LABEL
from moorage_kube.documents import parse_document
from moorage_kube.errors import DocumentError
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

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


class Template(Struct, frozen=True, kw_only=True):
    """A pod template and its place in the workload. Changes of the template change the workload itself."""

    kind: str
    path: Path  # of the pod spec (of an Argo template: the template)
    spec: Obj
    metadata: Sequence[tuple[Path, Mapping[str, Any]]]
    containers: Sequence[tuple[Path, Obj]]
    job: Obj | None = None  # the Job's spec, of Jobs and CronJobs
    job_path: Path = ()
    resources: Mapping[str, Any] = field(default_factory=dict)  # inherited by a container that has none (Argo)

    @property
    def is_workflow(self) -> bool:
        return self.kind in WORKFLOWS

    @property
    def is_guest(self) -> bool:
        """Whether the pods of the template are guests of a Machine.

        Admission sets the size and the nodes of guests.
        """
        return any(is_guest({"metadata": own}) for _, own in self.metadata)

    @property
    def sized(self) -> list[tuple[Path, Obj]]:
        """The containers whose amounts the author sets.

        In a guest: all but the one that gets the machine's resources.
        """
        if not self.is_guest:
            return list(self.containers)
        wanted = [
            _table(own, table).get(MACHINE_CONTAINER_LABEL)
            for _, own in self.metadata
            for table in ("labels", "annotations")
        ]
        name = next(filter(None, wanted), None)
        main = [(path, container) for path, container in self.containers if path[-2] == "containers"]
        chosen = next((path for path, container in main if name in (None, container.get("name"))), None)
        return [(path, container) for path, container in self.containers if path != chosen]

    def asked(self, container: Mapping[str, Any], table: str, resource: str) -> Any:
        """The amount in `limits` or `requests`.

        A limit without a request is also the request, as in Kubernetes.
        """
        own = mapping(container.get("resources")) or self.resources
        value = at(own, (table, resource))
        return at(own, ("limits", resource)) if value is None and table == "requests" else value

    def has_pod_limit(self, resource: str) -> bool:
        return at(self.spec, ("resources", "limits", resource)) is not None

    def unlimited(self) -> list[Path]:
        """Paths of the containers without a memory limit. Empty if the pod itself has a memory limit."""
        if self.has_pod_limit("memory"):
            return []
        return [path for path, container in self.sized if self.asked(container, "limits", "memory") is None]


def is_guest(pod: Mapping[str, Any]) -> bool:
    """Whether a pod (or template) names a machine type or group."""
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    return MACHINE_TYPE_LABEL in labels or MACHINE_GROUP_LABEL in labels


def templates_of(kind: str, obj: Obj) -> Iterator[Template]:
    """The pod templates of a workload, or the container templates of a workflow. Empty for other kinds."""
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
    """Pod templates in objects of third-party kinds, such as a notebook or a distributed training run."""
    waiting: list[tuple[Path, Any]] = [(("spec",), obj.get("spec"))]
    while waiting:
        path, value = waiting.pop()
        if len(path) > TEMPLATE_DEPTH_MAX:
            continue
        if isinstance(value, list):
            waiting += [((*path, index), item) for index, item in reversed(list(enumerate(value)))]
        if not isinstance(value, dict):
            continue
        spec = value.get("spec")
        if isinstance(spec, dict) and any(
            isinstance(container, dict) for container in sequence(spec.get("containers"))
        ):
            yield Template(
                kind=kind,
                path=(*path, "spec"),
                spec=spec,
                metadata=[((*path, "metadata"), mapping(value.get("metadata")))],
                containers=list(_containers(spec, (*path, "spec"))),
            )
            continue
        waiting += [((*path, key), item) for key, item in reversed(list(value.items())) if isinstance(key, str)]


def container_count(kind: str, obj: Any) -> int:
    """The number of containers in the pod template of a kind of WORKLOADS, including init containers."""
    spec = (*WORKLOADS[kind], "spec")
    return sum(len(sequence(at(obj, (*spec, table)))) for table in ("containers", "initContainers"))


def wants_gpu(containers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a container requests a GPU of any vendor, or claims devices, which may be GPUs."""
    for container in containers:
        if sequence(at(container, ("resources", "claims"))):
            return True
        for table in ("limits", "requests"):
            if any(is_gpu(str(name)) for name in mapping(at(container, ("resources", table)))):
                return True
    return False


# --- reading


def _table(metadata: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return mapping(metadata.get(name))


def _containers(spec: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Obj]]:
    for table in ("initContainers", "containers"):
        for index, container in enumerate(sequence(spec.get(table))):
            if isinstance(container, dict):
                yield (*path, table, index), container


def _argo_templates(spec: Mapping[str, Any], root: Path) -> Iterator[tuple[Path, Obj]]:
    """Every template in the list, and those in steps and tasks (`inline`), which cannot contain others."""
    for index, template in enumerate(sequence(spec.get("templates"))):
        if not isinstance(template, dict):
            continue
        path: Path = (*root, "templates", index)
        yield path, template
        steps = [
            ((*path, "steps", group, number), step)
            for group, parallel in enumerate(sequence(template.get("steps")))
            for number, step in enumerate(sequence(parallel))
        ]
        tasks = enumerate(sequence(mapping(template.get("dag")).get("tasks")))
        for where, step in [*steps, *(((*path, "dag", "tasks", number), task) for number, task in tasks)]:
            inline = mapping(step).get("inline")
            if isinstance(inline, dict):
                yield (*where, "inline"), inline


def _budget(template: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The resources of the whole pod of a workflow step."""
    own = (template, mapping(spec.get("templateDefaults")), spec)
    return next((given for place in own if (given := mapping(place.get("podResources")))), {})


def _workflow_templates(kind: str, obj: Obj) -> Iterator[Template]:
    """https://argo-workflows.readthedocs.io/en/latest/fields/#template"""
    root = WORKFLOWS[kind]
    spec = mapping(at(obj, root))
    defaults = mapping(at(spec, ("templateDefaults", "container", "resources")))
    usual = at(spec, ("templateDefaults", "podSpecPatch"))
    for path, template in _argo_templates(spec, root):
        containers: list[tuple[Path, Obj]] = []
        for key in ("container", "script"):
            if isinstance(template.get(key), dict):
                containers.append(((*path, key), template[key]))
        for key, table in (("containerSet", template.get("containerSet")), ("", template)):
            for name in ("containers",) if key else ("initContainers", "sidecars"):
                for number, container in enumerate(sequence(mapping(table).get(name))):
                    if isinstance(container, dict):
                        containers.append(((*path, *((key,) if key else ()), name, number), container))
        if not containers:
            continue  # steps, a DAG, suspend, …: without a pod
        texts = [str(text) for text in (spec.get("podSpecPatch"), template.get("podSpecPatch") or usual) if text]
        tagged = "".join(text for text in texts if "{{" in text)
        patches = [_patch(text) for text in texts if "{{" not in text]
        whole = {"limits": {name: "1" for name in GUARANTEED if name in tagged}}  # their amounts count as set
        yield Template(
            kind=kind,
            path=path,
            spec=template | {"resources": budget} if (budget := _budget(template, spec)) else template,
            metadata=[((*path, "metadata"), mapping(template.get("metadata")))],
            containers=[(where, _patched(where, held, defaults, patches)) for where, held in containers],
            resources=defaults or (whole if whole["limits"] else {}),
        )


def _patch(text: str) -> Mapping[str, Any]:
    try:
        return mapping(parse_document(text))
    except DocumentError:  # the check of the workflow reports it
        return {}


def _patched(path: Path, container: Obj, defaults: Mapping[str, Any], patches: Iterable[Mapping[str, Any]]) -> Obj:
    """The container with the amounts that patches of its pod set."""
    name = "main" if path[-1] in ("container", "script") else container.get("name")
    group = "initContainers" if "initContainers" in path else "containers"
    for patch in patches:
        for entry in sequence(patch.get(group)):
            if mapping(entry).get("name") == name and (amounts := mapping(mapping(entry).get("resources"))):
                own = dict(mapping(container.get("resources")) or defaults)
                for table in ("limits", "requests"):
                    own[table] = {**mapping(own.get(table)), **mapping(amounts.get(table))}
                container = container | {"resources": own}
    return container
