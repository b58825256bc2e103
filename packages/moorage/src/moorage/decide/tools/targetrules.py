"""The fields of a manifest that a target refuses, sets by itself or bills for; and fixes of the text.

Everything here is total: fields of a wrong type are skipped (`shape.misshapen` names them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct, field

from moorage.decide.admission.amounts import is_quantity
from moorage.decide.admission.fields import Path, at, mapping, sequence, shown_value
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.templates import WORKFLOWS, Template, templates_of
from moorage.decide.tools.targets import GIB, SAFE_TO_EVICT, Place, Target, billed_size
from moorage.decide.tools.yamledits import Add, Edit, Remove
from moorage_kube.quantity import amount, format_amount, format_bytes, format_milli
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

RESOURCES = ("cpu", "memory", "ephemeral-storage")
PEAK_MARGIN = Fraction(6, 5)  # on the largest memory that a run was seen to use
MEBIBYTE = 2**20
CPU_STEP = 50  # millicores: the values that we write are multiples
SPOT = "cloud.google.com/gke-spot"


class TargetFinding(Struct, frozen=True, kw_only=True):
    """`level`: deny (the target refuses the pod, or it cannot work), warn, or fill (the target sets it itself).

    `edit`: a fix that does not change the meaning; None: the author must decide.
    """

    finding: Finding
    level: str
    source: str = ""  # where the rule was read
    edit: Edit | None = None


class Peaks(Struct, frozen=True, kw_only=True):
    """The most memory that pods were seen to use, in bytes; missing pods were not measured.

    By (kind, name, template): the template's name of a workflow, empty for other kinds.
    """

    bytes_by_pod: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


class _Pod(Struct, frozen=True, kw_only=True):
    """One pod of an object, with the fields that a workflow sets for all its pods."""

    kind: str
    namespace: str
    place: Place
    template: Template
    owners: tuple[tuple[Path, Mapping[str, Any]], ...]  # paths of pod fields, the nearest last
    metadata: tuple[tuple[Path, Mapping[str, Any]], ...]
    patch: str  # podSpecPatch texts
    peak_bytes: int | None

    @property
    def target(self) -> Target:
        return self.place.target

    @property
    def main(self) -> list[tuple[Path, Obj]]:
        """Containers that run at the same time. Init containers that run before them are excluded."""
        return [item for item in self.template.containers if not _runs_before(*item)]

    def fields(self, name: str) -> Iterator[tuple[Path, Any]]:
        for path, owner in self.owners:
            if owner.get(name) is not None:
                yield (*path, name), owner[name]

    def selectors(self) -> Iterator[tuple[Path, str, Any]]:
        """The node labels that the pod selects, with their paths and values."""
        for path, selector in self.fields("nodeSelector"):
            for key, value in mapping(selector).items():
                yield (*path, str(key)), str(key), value
        for path, affinity in self.fields("affinity"):
            required: Path = (
                "nodeAffinity",
                "requiredDuringSchedulingIgnoredDuringExecution",
                "nodeSelectorTerms",
            )
            for index, term in enumerate(sequence(at(affinity, required))):
                for number, expression in enumerate(sequence(mapping(term).get("matchExpressions"))):
                    where = (*path, *required, index, "matchExpressions", number, "key")
                    values = sequence(mapping(expression).get("values"))
                    yield where, str(mapping(expression).get("key")), values[0] if len(values) == 1 else None

    def chosen(self, label: str) -> Any:
        return next((value for _, key, value in self.selectors() if key == label), None)

    @property
    def has_gpus(self) -> bool:
        return any(_gpus(container) for _, container in self.template.containers)

    @property
    def is_general(self) -> bool:
        """Whether the pod gets the general-purpose hardware, for which the target's amounts apply."""
        special = ("cloud.google.com/compute-class", "cloud.google.com/machine-family")
        return not self.has_gpus and not any(self.chosen(label) is not None for label in special)

    def request(self, container: Mapping[str, Any], resource: str) -> int | None:
        """The amount in the scheduler's unit; None where it is not set. Raises _Unknown for an unknown amount."""
        if resource in self.patch:
            raise _Unknown
        value = self.template.asked(container, "requests", resource)
        if value is None:
            return None
        if not is_quantity(value):
            raise _Unknown  # a tag, or a value that `misshapen` reports
        return amount(resource, value)


class _Unknown(Exception):
    """The amount is known only when the workflow runs."""


def target_findings(kind: str, obj: Obj, place: Place, peaks: Peaks | None = None) -> Iterator[TargetFinding]:
    """All findings of one object. Empty for kinds without pods."""
    pods = [_pod(kind, obj, template, place, peaks or Peaks()) for template in templates_of(kind, obj)]
    seen: set[tuple[str, Path]] = set()
    if pods:
        yield from _kinds(kind, obj, place)
    for pod in pods:
        for rule in RULES:
            for finding in rule(pod):
                key = (finding.finding.rule, finding.finding.path)
                if key not in seen:  # fields of a workflow hold for each of its pods
                    seen.add(key)
                    yield finding


def _pod(kind: str, obj: Obj, template: Template, place: Place, peaks: Peaks) -> _Pod:
    meta = mapping(obj.get("metadata"))
    name = str(meta.get("name") or meta.get("generateName") or "").rstrip("-")
    owners: list[tuple[Path, Mapping[str, Any]]] = []
    metadata = [(path, mapping(held)) for path, held in template.metadata]
    patch = ""
    if kind in WORKFLOWS:
        root = WORKFLOWS[kind]
        spec = mapping(at(obj, root))
        owners.append((root, spec))
        metadata.append(((*root, "podMetadata"), mapping(spec.get("podMetadata"))))
        patch = str(spec.get("podSpecPatch") or "") + str(template.spec.get("podSpecPatch") or "")
    owners.append((template.path, template.spec))
    part = str(template.spec.get("name") or "") if kind in WORKFLOWS else ""
    return _Pod(
        kind=kind,
        namespace=str(meta.get("namespace") or ""),
        place=place,
        template=template,
        owners=tuple(owners),
        metadata=tuple(metadata),
        patch=patch,
        peak_bytes=peaks.bytes_by_pod.get((kind, name, part)),
    )


def _found(
    pod: _Pod, rule: str, level: str, path: Path, message: str, value: Any = "", edit: Edit | None = None
) -> TargetFinding:
    return _of(pod.target, Finding(rule, path, shown_value(value), message), level, edit)


def _of(target: Target, finding: Finding, level: str, edit: Edit | None = None) -> TargetFinding:
    source = target.sources.get(finding.rule) or target.sources[""]
    return TargetFinding(finding=finding, level=level, source=source, edit=edit)


# --- the object


def _kinds(kind: str, obj: Obj, place: Place) -> Iterator[TargetFinding]:
    target = place.target
    if kind == "DaemonSet" and not target.takes_daemon_sets:
        message = f"is not run by {target.title}: make its container a sidecar of the pods that need it"
        yield _of(target, Finding("targetKind", ("kind",), kind, message), "deny")
    namespace = mapping(obj.get("metadata")).get("namespace")
    if namespace in target.namespaces_refused:
        message = f"is managed by {target.title}: choose another namespace"
        yield _of(target, Finding("targetKind", ("metadata", "namespace"), str(namespace), message), "deny")


# --- amounts


def _requests(pod: _Pod) -> Iterator[TargetFinding]:
    """Report missing requests: the target sets and bills defaults."""
    missing = {path: _missing(pod, container) for path, container in pod.template.containers}
    lacking = [path for path, _ in pod.main if {"cpu", "memory"} <= missing[path].keys()]
    for path, container in pod.template.containers:
        names = missing[path]
        if not names:
            continue
        values = _given(pod, path, container, names, share=len(lacking), is_whole=len(lacking) == len(pod.main))
        is_main = any(path == other for other, _ in pod.main)
        peak = pod.peak_bytes if is_main and len(pod.main) == 1 and "memory" in names else None
        edit = None
        written = dict(values)
        if peak is not None:
            wanted = -(-int(peak * PEAK_MARGIN) // MEBIBYTE) * MEBIBYTE
            if wanted > amount("memory", values.get("memory", "0")):
                written["memory"] = _memory(wanted)
                written = _within_ratio(pod, container, written)
        if written and not pod.has_gpus and not pod.template.resources:
            edit = Add(path=(*path, "resources", "requests"), values=written)
        for resource in names:
            default = values.get(resource)
            message = "is not set: " + _default_text(pod, default)
            level = "warn"
            if resource == "memory" and peak is not None:
                message += f"; earlier runs used up to {format_bytes(peak)}"
                if default is not None and peak > amount("memory", default):
                    level, message = "deny", message + ": they would be killed with the default"
            yield _found(
                pod, "targetRequests", level, (*path, "resources", "requests", resource), message, edit=edit
            )


def _missing(pod: _Pod, container: Mapping[str, Any]) -> dict[str, None]:
    """The resources without a request for which the target has a default."""
    names: dict[str, None] = {}
    for resource in RESOURCES:
        if resource not in pod.target.defaults:
            continue
        try:
            if pod.request(container, resource) is None:
                names[resource] = None
        except _Unknown:
            continue
    return names


def _given(
    pod: _Pod, path: Path, container: Mapping[str, Any], names: Mapping[str, None], *, share: int, is_whole: bool
) -> dict[str, str]:
    """The values that the target sets for missing requests; empty where they are unknown."""
    target = pod.target
    if pod.kind == "DaemonSet" and target.daemon_defaults:
        return {name: target.daemon_defaults[name] for name in names}
    if not pod.is_general:
        return {}
    if target.are_defaults_shared:
        # the smallest size is shared by all containers; with others that ask for more, it is unknown
        if not is_whole or not {"cpu", "memory"} <= names.keys() or _runs_before(path, container):
            return {}
        return {name: format_amount(name, amount(name, target.defaults[name]) // max(1, share)) for name in names}
    return _within_ratio(pod, container, {name: target.defaults[name] for name in names})


def _within_ratio(pod: _Pod, container: Mapping[str, Any], values: dict[str, str]) -> dict[str, str]:
    """The values, raised so that CPU and memory of the container are in the target's required ratio."""
    if pod.target.ratio is None or not pod.is_general:
        return values
    least, most = pod.target.ratio
    try:
        cpu, memory = pod.request(container, "cpu"), pod.request(container, "memory")
    except _Unknown:
        return values
    cpu = amount("cpu", values["cpu"]) if cpu is None and "cpu" in values else cpu
    memory = amount("memory", values["memory"]) if memory is None and "memory" in values else memory
    if cpu is None or memory is None:
        return values
    if "memory" in values:
        lowest = -(-int(cpu * least * GIB / 1000) // MEBIBYTE) * MEBIBYTE
        memory = max(memory, lowest)
        values = values | {"memory": _memory(memory)}
    if "cpu" in values:
        lowest_cpu = -((-Fraction(memory, GIB) / most * 1000) // CPU_STEP) * CPU_STEP
        values = values | {"cpu": format_milli(max(cpu, int(lowest_cpu)))}
    return values


def _default_text(pod: _Pod, default: str | None) -> str:
    if default is None:
        if pod.has_gpus:
            return f"{pod.target.title} has no default for pods with GPUs"
        if not pod.is_general:
            return f"the default of {pod.target.title} depends on the hardware that is chosen"
        return f"{pod.target.title} sizes the pod by the other requests of its containers"
    if pod.target.are_defaults_shared:
        return f"{pod.target.title} gives the smallest size there is, here {default}"
    return f"{pod.target.title} sets and bills {default}"


def _sums(pod: _Pod) -> dict[str, int]:
    """The requests of the pod with the defaults; unknown resources are left out."""
    sums: dict[str, int] = {}
    for resource in RESOURCES:
        try:
            running = [_amount(pod, path, container, resource) for path, container in pod.main]
            before = [
                _amount(pod, path, container, resource)
                for path, container in pod.template.containers
                if _runs_before(path, container)
            ]
        except _Unknown:
            continue
        sums[resource] = max(sum(running), max(before, default=0))
    return sums


def _amount(pod: _Pod, path: Path, container: Mapping[str, Any], resource: str) -> int:
    stated = pod.request(container, resource)
    if stated is not None:
        return stated
    names = _missing(pod, container)
    given = _given(pod, path, container, names, share=len(pod.main), is_whole=True)
    return amount(resource, given[resource]) if resource in given else 0


def _bounds(pod: _Pod) -> Iterator[TargetFinding]:
    """Check the sum of the pod's requests.

    Raise it if it is too small or out of ratio, refuse it if it is too large.
    """
    target = pod.target
    if not pod.is_general or not pod.main or pod.kind == "DaemonSet":
        return
    sums = _sums(pod)
    path: Path = (*pod.main[0][0], "resources", "requests")
    for resource, total in sums.items():
        least, most = target.minimums.get(resource), target.maximums.get(resource)
        if least is not None and 0 < total < amount(resource, least):
            message = f"{target.title} raises it to {least}, and bills that"
            if resource == "cpu" and target.eviction_since is not None:
                message += "; clusters without bursting to 250m"
            yield _found(pod, "targetBounds", "fill", (*path, resource), message, format_amount(resource, total))
        if most is not None and total > amount(resource, most):
            message = f"is more than a pod of {target.title} can have: {most}"
            if target.gpu_label:
                message += "; choose a compute class for more"
            yield _found(pod, "targetBounds", "deny", (*path, resource), message, format_amount(resource, total))
    if target.ratio is not None and sums.get("cpu") and sums.get("memory"):
        yield from _ratio(pod, path, sums["cpu"], sums["memory"])
    if target.sizes and "cpu" in sums and "memory" in sums:
        size = billed_size(target, sums["cpu"], sums["memory"])
        if size is not None:
            message = (
                f"is billed as {float(size[0]):g} vCPU and {float(size[1]):g} GB: the next size for"
                f" {format_milli(sums['cpu'])} CPU, {format_bytes(sums['memory'])} and its overhead of 256Mi"
            )
            yield _found(pod, "targetBounds", "fill", path, message)


def _ratio(pod: _Pod, path: Path, cpu: int, memory: int) -> Iterator[TargetFinding]:
    assert pod.target.ratio is not None
    least, most = pod.target.ratio
    ratio = Fraction(memory, GIB) / Fraction(cpu, 1000)
    shown = f"{format_milli(cpu)} CPU with {format_bytes(memory)}"
    allowed = f"one vCPU needs {float(least):g} to {float(most):g} GiB"
    if ratio < least:
        raised = format_bytes(-(-int(cpu * least * GIB / 1000) // MEBIBYTE) * MEBIBYTE)
        message = f"{allowed}: {pod.target.title} raises memory to {raised}, and bills that"
        yield _found(pod, "targetBounds", "warn", (*path, "memory"), message, shown)
    if ratio > most:
        raised = format_milli(int(-((-Fraction(memory, GIB) / most * 1000) // 1)))
        message = f"{allowed}: {pod.target.title} raises CPU to {raised}, and bills that"
        yield _found(pod, "targetBounds", "warn", (*path, "cpu"), message, shown)


def _limits(pod: _Pod) -> Iterator[TargetFinding]:
    if not pod.target.are_limits_requests:
        return
    for path, container in pod.template.containers:
        for resource in ("cpu", "memory"):
            request = at(container, ("resources", "requests", resource))
            limit = at(container, ("resources", "limits", resource))
            if request is None or limit is None or not is_quantity(request) or not is_quantity(limit):
                continue
            if amount(resource, request) != amount(resource, limit):
                message = f"must equal the request of {request} on {pod.target.title}"
                yield _found(pod, "targetLimits", "warn", (*path, "resources", "limits", resource), message, limit)


def _peaks(pod: _Pod) -> Iterator[TargetFinding]:
    """A request below the use of earlier runs."""
    if pod.peak_bytes is None or len(pod.main) != 1:
        return
    path, container = pod.main[0]
    for table in ("limits", "requests"):
        value = at(container, ("resources", table, "memory"))
        if is_quantity(value) and amount("memory", value) < pod.peak_bytes:
            level = "deny" if table == "limits" else "warn"
            message = f"is less than the {format_bytes(pod.peak_bytes)} that earlier runs used"
            yield _found(pod, "targetRequests", level, (*path, "resources", table, "memory"), message, value)
            return


# --- rights


def _rights(pod: _Pod) -> Iterator[TargetFinding]:
    target = pod.target
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        for path, value in pod.fields(name):
            if value is True:
                yield _found(pod, "targetRights", "deny", path, f"is refused by {target.title}", value)
    for path, container in pod.template.containers:
        context = mapping(container.get("securityContext"))
        if context.get("privileged") is True:
            where = (*path, "securityContext", "privileged")
            yield _found(pod, "targetRights", "deny", where, f"is refused by {target.title}", True)
        for index, name in enumerate(sequence(mapping(context.get("capabilities")).get("add"))):
            if str(name).removeprefix("CAP_") not in target.capabilities:
                allowed = ", ".join(sorted(target.capabilities)) or "none may be added"
                message = f"is refused by {target.title} (allowed: {allowed})"
                where = (*path, "securityContext", "capabilities", "add", index)
                yield _found(pod, "targetRights", "deny", where, message, name)
        for index, port in enumerate(sequence(container.get("ports"))):
            if mapping(port).get("hostPort"):
                where = (*path, "ports", index, "hostPort")
                message = f"is refused by {target.title}: use a Service"
                yield _found(pod, "targetRights", "deny", where, message, mapping(port)["hostPort"])


def _volumes(pod: _Pod) -> Iterator[TargetFinding]:
    target = pod.target
    for path, volumes in pod.fields("volumes"):
        for index, volume in enumerate(sequence(volumes)):
            where, held = (*path, index), mapping(volume)
            for kind in sorted(target.volumes_refused & held.keys()):
                message = f"is not mounted by {target.title}: use EFS, or an emptyDir"
                yield _found(pod, "targetVolumes", "deny", (*where, kind), message)
            if held.get("hostPath") is None or "hostPath" in target.volumes_refused:
                continue
            folder = str(mapping(held["hostPath"]).get("path") or "")
            if not any(f"{folder.rstrip('/')}/".startswith(prefix) for prefix in target.host_paths):
                allowed = ", ".join(target.host_paths)
                message = f"is refused by {target.title}: only {allowed} may be mounted, read-only"
                yield _found(pod, "targetVolumes", "deny", (*where, "hostPath", "path"), message, folder)
            elif any(
                mapping(mount).get("name") == held.get("name") and mapping(mount).get("readOnly") is not True
                for _, container in pod.template.containers
                for mount in sequence(container.get("volumeMounts"))
            ):
                message = f"is mounted to be written; {target.title} allows readOnly: true alone"
                yield _found(pod, "targetVolumes", "deny", (*where, "hostPath", "path"), message, folder)


# --- nodes


def _nodes(pod: _Pod) -> Iterator[TargetFinding]:
    target = pod.target
    for path, value in pod.fields("nodeName"):
        message = f"names a node; those of {target.title} come and go"
        yield _found(pod, "targetNodes", "deny", path, message, value)
    for path, key, value in pod.selectors():
        if why := target.labels_refused.get(key):
            yield _found(pod, "targetNodes", "deny", path, f"is refused by {target.title}: {why}", value or key)
        elif key == "kubernetes.io/os" and value == "windows":
            yield _found(pod, "targetNodes", "deny", path, f"{target.title} has no Windows nodes", value)
        elif target.node_labels and not _is_known(key, target.node_labels) and not _is_tolerated(pod, key):
            message = (
                f"is a custom label: {target.title} accepts it only with a toleration of the same key, and"
                " then makes nodes for such pods, with at least 500m CPU each"
            )
            yield _found(pod, "targetNodes", "deny", path, message, value or key)


def _is_known(key: str, labels: Sequence[str]) -> bool:
    return any(key.startswith(label[:-1]) if label.endswith("*") else key == label for label in labels)


def _is_tolerated(pod: _Pod, key: str) -> bool:
    return any(
        mapping(toleration).get("key") == key
        for _, tolerations in pod.fields("tolerations")
        for toleration in sequence(tolerations)
    )


def _gpu_nodes(pod: _Pod) -> Iterator[TargetFinding]:
    target = pod.target
    for path, container in pod.template.containers:
        for name in _gpus(container):
            where = (*path, "resources", "limits", name)
            if not target.takes_gpus:
                yield _found(pod, "targetGpus", "deny", where, f"{target.title} has no GPUs")
            elif target.gpu_label and pod.chosen(target.gpu_label) is None:
                message = f"needs a node selector {target.gpu_label}, such as nvidia-tesla-t4, on {target.title}"
                yield _found(pod, "targetGpus", "deny", where, message)
    if target.gpu_label and not pod.has_gpus and "nvidia.com/gpu" not in pod.patch:
        for path, key, value in pod.selectors():
            if key == target.gpu_label:
                message = f"chooses GPU nodes without a GPU: {target.title} refuses that"
                yield _found(pod, "targetGpus", "deny", path, message, value)


def _arm(pod: _Pod) -> Iterator[TargetFinding]:
    target = pod.target
    for path, key, value in pod.selectors():
        if key not in ("kubernetes.io/arch", "beta.kubernetes.io/arch") or value != "arm64":
            continue
        if target.arm == "no":
            yield _found(pod, "targetArm", "deny", path, f"{target.title} has no Arm processors", value)
        elif target.arm != "yes" and pod.chosen(target.arm) is None:
            message = f"needs a node selector {target.arm} (Performance or Scale-Out) on {target.title}"
            yield _found(pod, "targetArm", "warn", path, message, value)


def _eviction(pod: _Pod) -> Iterator[TargetFinding]:
    """Report `safe-to-evict: "false"`: old versions of the target refuse it, newer ones respect it for 7 days."""
    since = pod.target.eviction_since
    if since is None:
        return
    for path, meta in pod.metadata:
        value = mapping(meta.get("annotations")).get(SAFE_TO_EVICT)
        if str(value).lower() != "false":
            continue
        where = (*path, "annotations", SAFE_TO_EVICT)
        if pod.place.version is not None and pod.place.version < since:
            message = (
                f"is refused before {since[0]}.{since[1]}: a long pod may be evicted. Let a retried step,"
                " not a second Job, do its work again"
            )
            edit = Remove(path=(*path, "annotations"), keys=frozenset({SAFE_TO_EVICT}))
            yield _found(pod, "targetEviction", "deny", where, message, value, edit)
        elif str(pod.chosen(SPOT)).lower() == "true":
            message = "is refused for Spot pods: remove it, or the Spot selector"
            yield _found(pod, "targetEviction", "deny", where, message, value)
        else:
            message = (
                f"keeps the pod for 7 days at most, from {since[0]}.{since[1]} on; earlier versions refuse it. It"
                " raises the minimum to 500m CPU and 512Mi, and excludes Spot and affinity between pods"
            )
            yield _found(pod, "targetEviction", "warn", where, message, value)


def _commands(pod: _Pod) -> Iterator[TargetFinding]:
    """Report workflow containers without a command: Argo's only executor on the target needs it."""
    if pod.kind not in WORKFLOWS:
        return
    for path, container in pod.main:
        if not container.get("command") and not mapping(container).get("source"):
            message = (
                "is not set: Argo's executor asks the registry for the image's own, and fails where it cannot."
                " A step that only saves files can run `true`"
            )
            yield _found(pod, "targetCommand", "warn", (*path, "command"), message)


RULES: tuple[Callable[[_Pod], Iterator[TargetFinding]], ...] = (
    _requests,
    _bounds,
    _limits,
    _peaks,
    _rights,
    _volumes,
    _nodes,
    _gpu_nodes,
    _arm,
    _eviction,
    _commands,
)

# rule → its check, in words; read by the reference
CHECKS: Mapping[str, str] = {
    "targetKind": "the kind and the namespace are run there",
    "targetRequests": "every container requests CPU, memory and disk, and as much memory as earlier runs used",
    "targetBounds": "the sums over a pod are within the target's bounds and ratio; the billed size",
    "targetLimits": "limits equal requests, where the target needs that",
    "targetRights": "no privileges, host namespaces, host ports or capabilities that the target refuses",
    "targetVolumes": "volumes are of kinds and paths that the target mounts",
    "targetNodes": "node selectors and affinities name labels that the target takes",
    "targetGpus": "GPUs are there, and chosen in the target's way",
    "targetArm": "Arm processors are there, and chosen in the target's way",
    "targetEviction": "the meaning of the annotation safe-to-evict there",
    "targetCommand": "steps of workflows name their command",
}


def _runs_before(path: Path, container: Mapping[str, Any]) -> bool:
    return path[-2] == "initContainers" and container.get("restartPolicy") != "Always"


def _gpus(container: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in mapping(at(container, ("resources", "limits"))) if is_gpu(str(name))]


def _memory(count: int) -> str:
    """A quantity in whole mebibytes."""
    return f"{count // GIB}Gi" if count % GIB == 0 else f"{-(-count // MEBIBYTE)}Mi"
