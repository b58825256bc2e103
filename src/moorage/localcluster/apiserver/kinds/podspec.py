"""Pods and pod templates: defaults, checks, and what an update may change.

The order and the words are those of the real server's `defaults.go`, `validation.go` and pod strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import Obj
from moorage.errors import QuantityError
from moorage.localcluster.apiserver.fields import FieldErrors
from moorage.localcluster.apiserver.metadata import (
    name_problems,
    qualified_name_problems,
    validate_labels,
)
from moorage.localcluster.quota import pod_amounts

GRACE_SECONDS = 30
MAX_INT32 = 2**31 - 1
NOT_READY_SECONDS = 300  # how long pods without tolerations of their own stay on a node that is lost
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`"
    " (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it"
    " to be set to 1 if it was"
    " previously negative)"
)
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


# --- defaults


def containers_of(spec: Obj) -> Iterator[Obj]:
    """Containers of every sort, init containers first."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def default_pod_spec(spec: Obj) -> None:
    """What holds for pods and templates alike."""
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for container in containers_of(spec):
        _default_container(container, bool(spec.get("hostNetwork")))
    for container in spec.get("ephemeralContainers") or ():
        _default_container(container, False)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _default_container(container: Obj, host_network: bool) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = "Always" if _tag(container.get("image", "")) == "latest" else "IfNotPresent"
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and not port.get("hostPort") and "containerPort" in port:
            port["hostPort"] = port["containerPort"]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _default_probe(container[probe])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _default_http(hook)
    for env in container.get("env") or ():
        source = env.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in source:
            source["resourceFieldRef"].setdefault("divisor", "0")


def _default_probe(probe: Obj) -> None:
    for key, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(key):
            probe[key] = value
    _default_http(probe)
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http(handler: Obj) -> None:
    if "httpGet" in handler:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Obj) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for part in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in part:
            part["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    items = list((volume.get("downwardAPI") or {}).get("items") or ())
    for part in (volume.get("projected") or {}).get("sources") or ():
        items += (part.get("downwardAPI") or {}).get("items") or ()
    for item in items:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
    claim = ((volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}).get("spec")
    if claim is not None:
        claim.setdefault("volumeMode", "Filesystem")


def _tag(image: str) -> str:
    if "@" in image:
        return ""
    tail = image.rpartition("/")[2]
    return tail.partition(":")[2] or "latest"


def default_pod(obj: Obj) -> None:
    """A pod itself: beyond the template's defaults, requests follow limits."""
    spec = obj.setdefault("spec", {})
    default_pod_spec(spec)
    for container in containers_of(spec):
        resources = container["resources"]
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    spec.setdefault("enableServiceLinks", True)


def default_template(template: Obj) -> None:
    """`metadata` and `spec` of a template inside another object."""
    meta = template.setdefault("metadata", {})
    if isinstance(meta, dict):
        meta.pop("uid", None)
    default_pod_spec(template.setdefault("spec", {}))


def default_tolerations(spec: Obj) -> None:
    """The two that let a pod stay on a lost node for a while, unless it says something about
    those taints itself.
    """
    had = spec.get("tolerations") or []
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            one.get("key", "") in ("", taint) and one.get("effect", "") in ("", "NoExecute") for one in had
        ):
            had = [
                *had,
                {
                    "key": taint,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": NOT_READY_SECONDS,
                },
            ]
    spec["tolerations"] = had


def qos_class(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
    """
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    guaranteed = True
    sets = [one.get("resources") or {} for one in containers_of(dict(spec))]
    whole = spec.get("resources")
    if whole and (whole.get("requests") or whole.get("limits")):
        sets = [whole]
    for resources in sets:
        for kind, total in (("requests", requests), ("limits", limits)):
            for name, text in (resources.get(kind) or {}).items():
                value = parse_quantity(text)
                if name in ("cpu", "memory") and value > 0:
                    total[name] = total.get(name, 0) + value
        positive = {
            name
            for name, text in (resources.get("limits") or {}).items()
            if name in ("cpu", "memory") and parse_quantity(text) > 0
        }
        if positive != {"cpu", "memory"}:
            guaranteed = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


# --- checks


def validate_pod_spec(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Names, containers, volumes, resources, ports, tolerations, affinity: the essentials."""
    volumes = _validate_volumes(spec, f"{path}.volumes", errors)
    names: set[str] = set()
    containers = spec.get("containers") or ()
    for sort in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(sort) or ()):
            where = f"{path}.{sort}[{at}]"
            name = container.get("name")
            if not name:
                errors.required(f"{where}.name")
            else:
                for problem in name_problems(name, "label"):
                    errors.invalid(f"{where}.name", name, problem)
                if name in names:
                    errors.duplicate(f"{where}.name", name)
                names.add(name)
            _validate_container(container, where, volumes, errors, init=sort == "initContainers")
    if not containers:
        errors.required(f"{path}.containers")
    _validate_host_ports(spec, path, errors)
    if spec.get("resources"):
        _validate_pod_resources(spec, f"{path}.resources", errors)
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        errors.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_INT32:
        errors.invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    for key in ("serviceAccountName", "nodeName", "priorityClassName"):
        if value := spec.get(key):
            for problem in name_problems(value, "subdomain"):
                errors.invalid(f"{path}.{key}", value, problem)
    for key in ("hostname", "subdomain"):
        if value := spec.get(key):
            for problem in name_problems(value, "label"):
                errors.invalid(f"{path}.{key}", value, problem)
    validate_labels(spec.get("nodeSelector"), f"{path}.nodeSelector", errors)
    _validate_tolerations(spec.get("tolerations") or (), f"{path}.tolerations", errors)
    _validate_affinity(spec.get("affinity") or {}, f"{path}.affinity", errors)
    _validate_spread(spec.get("topologySpreadConstraints") or (), f"{path}.topologySpreadConstraints", errors)
    seen: set[str] = set()
    for at, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name", "")
        for problem in qualified_name_problems(name):
            errors.invalid(f"{path}.schedulingGates[{at}]", name, problem)
        if name in seen:
            errors.duplicate(f"{path}.schedulingGates[{at}]", name)
        seen.add(name)


def _validate_volumes(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> set[str]:
    names: set[str] = set()
    for at, volume in enumerate(spec.get("volumes") or ()):
        where = f"{path}[{at}]"
        name = volume.get("name")
        if not name:
            errors.required(f"{where}.name")
        else:
            problems = name_problems(name, "label")
            for problem in problems:
                errors.invalid(f"{where}.name", name, problem)
            if name in names:
                errors.duplicate(f"{where}.name", name)
            names.add(name)
        sources = [key for key in volume if key != "name"]
        if not sources:
            errors.required(where, "must specify a volume type")
        for extra in sources[1:]:
            errors.forbidden(f"{where}.{extra}", "may not specify more than 1 volume type")
        if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"].get("claimName"):
            errors.required(f"{where}.persistentVolumeClaim.claimName")
        if "hostPath" in volume and not volume["hostPath"].get("path"):
            errors.required(f"{where}.hostPath.path")
        if "secret" in volume and not volume["secret"].get("secretName"):
            errors.required(f"{where}.secret.secretName")
        if "configMap" in volume and not volume["configMap"].get("name"):
            errors.required(f"{where}.configMap.name")
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        if limit is not None and parse_quantity(limit) < 0:
            errors.forbidden(f"{where}.emptyDir.sizeLimit", "SizeLimit field must be a valid resource quantity")
    return names


def _validate_container(
    container: Mapping[str, Any], path: str, volumes: set[str], errors: FieldErrors, *, init: bool
) -> None:
    image = container.get("image")
    if image is None or image == "":
        errors.required(f"{path}.image")
    elif image != image.strip():
        errors.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    policy = container.get("restartPolicy")
    if policy is not None:
        if not init:
            errors.forbidden(f"{path}.restartPolicy", "may not be set for non-init containers")
        elif policy != "Always":
            errors.unsupported(f"{path}.restartPolicy", policy, ["Always"])
    seen_ports: set[str] = set()
    for at, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{at}]"
        number = port.get("containerPort")
        if not number:
            errors.required(f"{where}.containerPort")
        elif not 1 <= number <= 65535:
            errors.invalid(f"{where}.containerPort", number, "must be between 1 and 65535, inclusive")
        host = port.get("hostPort")
        if host and not 1 <= host <= 65535:
            errors.invalid(f"{where}.hostPort", host, "must be between 1 and 65535, inclusive")
        if name := port.get("name"):
            if len(name) > 15:
                errors.invalid(f"{where}.name", name, "must be no more than 15 characters")
            if name in seen_ports:
                errors.duplicate(f"{where}.name", name)
            seen_ports.add(name)
    for at, env in enumerate(container.get("env") or ()):
        where = f"{path}.env[{at}]"
        if not env.get("name"):
            errors.required(f"{where}.name")
        elif "=" in env["name"]:
            errors.invalid(
                f"{where}.name",
                env["name"],
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            )
        source = env.get("valueFrom")
        if source is not None:
            if env.get("value"):
                errors.invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")
            if len(source) != 1:
                errors.invalid(
                    f"{where}.valueFrom",
                    "",
                    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or"
                    " `fileKeyRef`"
                    if not source
                    else "may not have more than one field specified at a time",
                )
    paths: set[str] = set()
    for at, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{at}]"
        name = mount.get("name")
        if not name:
            errors.required(f"{where}.name")
        elif name not in volumes:
            errors.not_found(f"{where}.name", name)
        target = mount.get("mountPath")
        if not target:
            errors.required(f"{where}.mountPath")
        elif target in paths:
            errors.invalid(f"{where}.mountPath", target, "must be unique")
        paths.add(target or "")
        sub = mount.get("subPath")
        if sub and (sub.startswith("/") or ".." in sub.split("/")):
            errors.invalid(
                f"{where}.subPath", sub, "must be a relative path" if sub[0] == "/" else "must not contain '..'"
            )
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _validate_probe(container[probe], f"{path}.{probe}", errors)
    validate_resources(container.get("resources") or {}, f"{path}.resources", errors)


def _validate_probe(probe: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    handlers = [key for key in ("exec", "httpGet", "tcpSocket", "grpc") if key in probe]
    if not handlers:
        errors.required(path, "must specify a handler type")
    for extra in handlers[1:]:
        errors.forbidden(f"{path}.{extra}", "may not specify more than 1 handler type")
    for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if (probe.get(key) or 0) < 0:
            errors.invalid(f"{path}.{key}", probe[key], "must be greater than or equal to 0")


def _validate_host_ports(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    seen: set[tuple[str, str, int]] = set()
    for at, container in enumerate(spec.get("containers") or ()):
        for index, port in enumerate(container.get("ports") or ()):
            if host := port.get("hostPort"):
                key = (port.get("protocol", "TCP"), port.get("hostIP", ""), host)
                if key in seen:
                    errors.duplicate(
                        f"{path}.containers[{at}].ports[{index}].hostPort", f"{key[0]}/{key[1]}/{host}"
                    )
                seen.add(key)


def validate_resources(resources: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Requests and limits of a container."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, text in limits.items():
        _validate_resource(name, text, f"{path}.limits[{name}]", errors)
    for name, text in requests.items():
        _validate_resource(name, text, f"{path}.requests[{name}]", errors)
        overcommit = may_overcommit(name)
        if name in limits:
            asked, limit = parse_quantity(text), parse_quantity(limits[name])
            if asked != limit and not overcommit:
                errors.invalid(f"{path}.requests", text, f"must be equal to {name} limit of {limits[name]}")
            elif asked > limit:
                errors.invalid(
                    f"{path}.requests", text, f"must be less than or equal to {name} limit of {limits[name]}"
                )
        elif not overcommit:
            errors.required(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _validate_pod_resources(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """What the pod sets for all its containers: not less than they want, and not less than the limit of one."""
    before = len(errors.causes)
    validate_resources(spec["resources"], path, errors)
    if len(errors.causes) > before:
        return
    try:
        wanted = pod_amounts({**spec, "resources": None, "overhead": None}, "requests")
        for name, text in (spec["resources"].get("requests") or {}).items():
            if name in wanted and wanted[name].value > parse_quantity(text):
                detail = f"must be greater than or equal to aggregate container requests of {wanted[name]}"
                errors.invalid(f"{path}.requests[{name}]", text, detail)
        for at, container in enumerate(spec.get("containers") or ()):
            for name, text in ((container.get("resources") or {}).get("limits") or {}).items():
                most = (spec["resources"].get("limits") or {}).get(name)
                if most is not None and parse_quantity(text) > parse_quantity(most):
                    detail = f"must be less than or equal to pod limits of {most}"
                    errors.invalid(f"{path}.containers[{at}][{name}].limits", text, detail)
    except QuantityError:
        return  # of a container, and told there


def may_overcommit(resource: str) -> bool:
    """Native resources but huge pages: their limit may be above the request."""
    return _is_native(resource) and not resource.startswith("hugepages-")


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _validate_resource(name: str, text: Any, path: str, errors: FieldErrors) -> None:
    problems = qualified_name_problems(name)
    for problem in problems:
        errors.invalid(path, name, problem)
    if "/" not in name and not problems and name not in _COMPUTE and not name.startswith("hugepages-"):
        errors.invalid(path, name, "must be a standard resource type or fully qualified")
        errors.invalid(path, name, "must be a standard resource for containers")
    try:
        value = parse_quantity(text)
    except QuantityError:
        errors.invalid(path, text, "must be a quantity")
        return
    if value < 0:
        errors.invalid(path, text, "must be greater than or equal to 0")
    if not _is_native(name) and value.denominator != 1:
        errors.invalid(path, text, "must be an integer")


def _validate_tolerations(tolerations: Any, path: str, errors: FieldErrors) -> None:
    for at, one in enumerate(tolerations):
        where = f"{path}[{at}]"
        key, operator = one.get("key", ""), one.get("operator", "")
        for problem in qualified_name_problems(key) if key else ():
            errors.invalid(f"{where}.key", key, problem)
        if not key and operator != "Exists":
            errors.invalid(
                f"{where}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        if operator == "Exists" and one.get("value"):
            errors.invalid(f"{where}.operator", one, "value must be empty when `operator` is 'Exists'")
        if one.get("tolerationSeconds") is not None and one.get("effect") != "NoExecute":
            errors.invalid(
                f"{where}.effect",
                one.get("effect", ""),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            )


def _validate_affinity(affinity: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        where = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        terms = required.get("nodeSelectorTerms") or ()
        if not terms:
            errors.required(f"{where}.nodeSelectorTerms", "must have at least one node selector term")
        for at, term in enumerate(terms):
            _validate_node_term(term, f"{where}.nodeSelectorTerms[{at}]", errors)
    for at, one in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        where = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
        _validate_weight(one.get("weight", 0), f"{where}.weight", errors)
        _validate_node_term(one.get("preference") or {}, f"{where}.preference", errors)
    for sort in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(sort) or {}
        for at, one in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{path}.{sort}.requiredDuringSchedulingIgnoredDuringExecution[{at}]"
            if not one.get("topologyKey"):
                errors.required(f"{where}.topologyKey", "can not be empty")
        for at, one in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{path}.{sort}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
            _validate_weight(one.get("weight", 0), f"{where}.weight", errors)
            if not (one.get("podAffinityTerm") or {}).get("topologyKey"):
                errors.required(f"{where}.podAffinityTerm.topologyKey", "can not be empty")


def _validate_weight(weight: int, path: str, errors: FieldErrors) -> None:
    if not 1 <= weight <= 100:
        errors.invalid(path, weight, "must be in the range 1-100")


def _validate_node_term(term: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    for at, one in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator, values = one.get("operator", ""), one.get("values") or ()
        match operator:
            case "In" | "NotIn":
                if not values:
                    errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if values:
                    errors.forbidden(
                        f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    )
            case "Gt" | "Lt":
                if len(values) != 1:
                    errors.required(
                        f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
                    )
            case _:
                errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        for problem in qualified_name_problems(one.get("key", "")):
            errors.invalid(f"{where}.key", one.get("key", ""), problem)
    for at, one in enumerate(term.get("matchFields") or ()):
        where = f"{path}.matchFields[{at}]"
        if one.get("key") != "metadata.name":
            errors.invalid(f"{where}.key", one.get("key", ""), "not a valid field selector key")
        if one.get("operator") not in ("In", "NotIn"):
            errors.invalid(f"{where}.operator", one.get("operator", ""), "not a valid selector operator")
        elif len(one.get("values") or ()) != 1:
            errors.required(
                f"{where}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )


def _validate_spread(constraints: Any, path: str, errors: FieldErrors) -> None:
    for at, one in enumerate(constraints):
        where = f"{path}[{at}]"
        if one.get("maxSkew", 0) <= 0:
            errors.invalid(f"{where}.maxSkew", one.get("maxSkew", 0), "must be greater than zero")
        if not one.get("topologyKey"):
            errors.required(f"{where}.topologyKey", "can not be empty")
        if one.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
            errors.unsupported(
                f"{where}.whenUnsatisfiable", one.get("whenUnsatisfiable", ""), ["DoNotSchedule", "ScheduleAnyway"]
            )


# --- updates


def validate_pod_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    """Hardly anything of a pod's spec can change; see the message for what can."""
    spec, had = new.get("spec") or {}, old.get("spec") or {}
    for sort in ("containers", "initContainers"):
        if len(spec.get(sort) or ()) != len(had.get(sort) or ()):
            errors.forbidden(f"spec.{sort}", "pod updates may not add or remove containers")
            return
    deadline, deadline_was = spec.get("activeDeadlineSeconds"), had.get("activeDeadlineSeconds")
    if deadline is not None:
        if deadline_was is not None and deadline > deadline_was:
            errors.invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")
            return
    elif deadline_was is not None:
        errors.invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")
    _only_added_tolerations(spec, had, errors)
    gates = {one.get("name") for one in had.get("schedulingGates") or ()}
    added = [one.get("name") for one in spec.get("schedulingGates") or () if one.get("name") not in gates]
    if added:
        listed = " ".join(str(one) for one in added)
        errors.forbidden(
            "spec.schedulingGates", f"only deletion is allowed, but found new scheduling gates '{{{listed}}}'"
        )
    if spec == had:
        return
    munged = {**spec}
    for sort in ("containers", "initContainers"):
        if sort in munged:
            munged[sort] = [
                {**one, "image": was.get("image")} for one, was in zip(munged[sort], had[sort], strict=True)
            ]
    for key in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        _copy_key(munged, had, key)
    if (had.get("terminationGracePeriodSeconds") or 0) < 0 and munged.get("terminationGracePeriodSeconds") == 1:
        _copy_key(munged, had, "terminationGracePeriodSeconds")
    if had.get("schedulingGates"):
        _validate_gated(munged, had, errors)
    if munged != had:
        changed = sorted(key for key in {*munged, *had} if munged.get(key) != had.get(key))
        errors.forbidden(
            "spec", f"pod updates may not change fields other than {_UPDATABLE}\nchanged: {', '.join(changed)}"
        )


def _copy_key(target: Obj, source: Mapping[str, Any], key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _only_added_tolerations(spec: Mapping[str, Any], had: Mapping[str, Any], errors: FieldErrors) -> None:
    def stripped(one: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in one.items() if key != "tolerationSeconds"}

    now = [stripped(one) for one in spec.get("tolerations") or ()]
    for one in had.get("tolerations") or ():
        if stripped(one) not in now:
            errors.forbidden(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
            return


def _validate_gated(munged: Obj, had: Mapping[str, Any], errors: FieldErrors) -> None:
    """A gated pod may be bound tighter: labels added to nodeSelector, node affinity made narrower."""
    selector, selector_was = munged.get("nodeSelector") or {}, had.get("nodeSelector") or {}
    if selector != selector_was:
        for key, value in selector_was.items():
            if selector.get(key) != value:
                errors.invalid(
                    "spec.nodeSelector",
                    selector,
                    "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
                )
                break
        _copy_key(munged, had, "nodeSelector")
    affinity, affinity_was = munged.get("affinity"), had.get("affinity")
    node = (affinity or {}).get("nodeAffinity")
    node_was = (affinity_was or {}).get("nodeAffinity")
    if node == node_was:
        return
    _validate_node_affinity_change(node, node_was, errors)
    rest = {key: value for key, value in (affinity or {}).items() if key != "nodeAffinity"}
    if node_was is not None:
        rest["nodeAffinity"] = node_was
    if rest or affinity_was is not None:
        munged["affinity"] = rest
    else:
        munged.pop("affinity", None)


def _validate_node_affinity_change(new: Any, old: Any, errors: FieldErrors) -> None:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms_was = ((old or {}).get(key) or {}).get("nodeSelectorTerms")
    if terms_was is None:
        return
    terms = ((new or {}).get(key) or {}).get("nodeSelectorTerms")
    if terms is None:
        errors.invalid(path, None, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    if len(terms) != len(terms_was):
        errors.invalid(
            f"{path}.nodeSelectorTerms",
            terms,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        )
        return
    for at, (term, was) in enumerate(zip(terms, terms_was, strict=True)):
        if not was.get("matchExpressions") and not was.get("matchFields"):
            if term != was:
                errors.invalid(
                    f"{path}.nodeSelectorTerms[{at}]", term, "new terms cannot be added to an empty term"
                )
            continue
        for part in ("matchExpressions", "matchFields"):
            now = term.get(part) or []
            if (was.get(part) or []) != now[: len(was.get(part) or [])]:
                errors.invalid(
                    f"{path}.nodeSelectorTerms[{at}]",
                    term,
                    "only additions are allowed (no mutations or deletions)",
                )
                break
