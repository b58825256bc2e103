"""Checks of pods and pod templates.

The order and the words are those of the real server's `validation.go`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moorage_kube.containerresources import NO_LIMIT, amount_problems, is_part_of_byte, request_problem
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity
from moorage_local.apiserver.kinds.podspec.affinity import validate_affinity
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import name_problems, qualified_name_problems, validate_labels
from moorage_local.quota import pod_amounts

MAX_INT32 = 2**31 - 1
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


def validate_pod_spec(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Check the main parts of a pod spec: names, containers, volumes, resources, ports, tolerations, affinity."""
    volumes = _validate_volumes(spec, f"{path}.volumes", errors)
    _validate_containers(spec, path, volumes, errors)
    if not spec.get("containers"):
        errors.required(f"{path}.containers")
    _validate_host_ports(spec, path, errors)
    if spec.get("resourceClaims"):
        errors.forbidden(f"{path}.resourceClaims", "the local cluster has no dynamic resource allocation")
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
    validate_affinity(spec.get("affinity") or {}, f"{path}.affinity", errors)
    _validate_spread(spec.get("topologySpreadConstraints") or (), f"{path}.topologySpreadConstraints", errors)
    _validate_gates(spec.get("schedulingGates") or (), f"{path}.schedulingGates", errors)


def _validate_containers(spec: Mapping[str, Any], path: str, volumes: set[str], errors: FieldErrors) -> None:
    """Check init containers and containers, with unique names over both."""
    names: set[str] = set()
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


def _validate_gates(gates: Sequence[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    names: set[str] = set()
    for at, gate in enumerate(gates):
        name = gate.get("name", "")
        for problem in qualified_name_problems(name):
            errors.invalid(f"{path}[{at}]", name, problem)
        if name in names:
            errors.duplicate(f"{path}[{at}]", name)
        names.add(name)


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
    _validate_ports(container.get("ports") or (), f"{path}.ports", errors)
    _validate_env(container.get("env") or (), f"{path}.env", errors)
    _validate_mounts(container.get("volumeMounts") or (), f"{path}.volumeMounts", volumes, errors)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _validate_probe(container[probe], f"{path}.{probe}", errors)
    validate_resources(container.get("resources") or {}, f"{path}.resources", errors)


def _validate_ports(ports: Sequence[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    names: set[str] = set()
    for at, port in enumerate(ports):
        where = f"{path}[{at}]"
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
            if name in names:
                errors.duplicate(f"{where}.name", name)
            names.add(name)


def _validate_env(variables: Sequence[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    for at, env in enumerate(variables):
        where = f"{path}[{at}]"
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


def _validate_mounts(
    mounts: Sequence[Mapping[str, Any]], path: str, volumes: set[str], errors: FieldErrors
) -> None:
    paths: set[str] = set()
    for at, mount in enumerate(mounts):
        where = f"{path}[{at}]"
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
    """Check the requests and limits of a container."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, text in limits.items():
        _validate_resource(name, text, f"{path}.limits[{name}]", errors)
    for name, text in requests.items():
        _validate_resource(name, text, f"{path}.requests[{name}]", errors)
        problem = request_problem(name, text, limits.get(name))
        if problem == NO_LIMIT:
            errors.required(f"{path}.limits", problem)
        elif problem:
            errors.invalid(f"{path}.requests", text, problem)


def _validate_pod_resources(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Check the pod-level resources: at least the sum of its containers, and at least the limit of each."""
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
        return  # of a container, and reported there


def _validate_resource(name: str, text: Any, path: str, errors: FieldErrors) -> None:
    problems = qualified_name_problems(name)
    for problem in problems:
        errors.invalid(path, name, problem)
    if "/" not in name and not problems and name not in _COMPUTE and not name.startswith("hugepages-"):
        errors.invalid(path, name, "must be a standard resource type or fully qualified")
        errors.invalid(path, name, "must be a standard resource for containers")
    for problem in amount_problems(name, text):
        errors.invalid(path, text, problem)
    if is_part_of_byte(name, text):
        errors.warnings.append(
            f"{path}: fractional byte value {json.dumps(str(text))} is invalid, must be an integer"
        )


def _validate_tolerations(tolerations: Any, path: str, errors: FieldErrors) -> None:
    for at, toleration in enumerate(tolerations):
        where = f"{path}[{at}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        for problem in qualified_name_problems(key) if key else ():
            errors.invalid(f"{where}.key", key, problem)
        if not key and operator != "Exists":
            errors.invalid(
                f"{where}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        if operator == "Exists" and toleration.get("value"):
            errors.invalid(f"{where}.operator", toleration, "value must be empty when `operator` is 'Exists'")
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            errors.invalid(
                f"{where}.effect",
                toleration.get("effect", ""),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            )


def _validate_spread(constraints: Any, path: str, errors: FieldErrors) -> None:
    for at, constraint in enumerate(constraints):
        where = f"{path}[{at}]"
        if constraint.get("maxSkew", 0) <= 0:
            errors.invalid(f"{where}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
        if not constraint.get("topologyKey"):
            errors.required(f"{where}.topologyKey", "can not be empty")
        if constraint.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
            errors.unsupported(
                f"{where}.whenUnsatisfiable",
                constraint.get("whenUnsatisfiable", ""),
                ["DoNotSchedule", "ScheduleAnyway"],
            )
