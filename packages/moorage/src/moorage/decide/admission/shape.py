"""Fields with a type that the API server refuses, on the paths that the rules read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.decide.admission.amounts import is_quantity
from moorage.decide.admission.fields import Path, at, mapping, sequence, shown_value
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.templates import JOBS, WORKFLOWS, WORKLOADS, templates_of
from moorage_kube.containerresources import NO_LIMIT, amount_problems, request_problem


def misshapen(kind: str, obj: Any) -> Iterator[Finding]:
    """Fields on the paths that the rules read with a type that the API server refuses."""
    path = WORKLOADS.get(kind)
    if path is None:
        path = WORKFLOWS.get(kind)
        if path is None:
            return
    # a fault above the template hides all below it: report it alone
    yield from _typed(obj, ("metadata",), dict)
    for length in range(1, len(path) + 1):
        part = at(obj, path[:length])
        if not isinstance(part, dict):
            message = "is missing" if part is None else "must be a mapping"
            yield Finding("shape", path[:length], shown_value(part), message)
            return
    # a workflow has a list of templates, and each has its own tables
    if kind in WORKFLOWS:
        yield from _typed(obj, (*path, "templates"), list)
        for index, item in enumerate(sequence(at(obj, (*path, "templates")))):
            if not isinstance(item, dict):
                yield Finding("shape", (*path, "templates", index), shown_value(item), "must be a mapping")
                continue
            for key in ("container", "script", "metadata", "nodeSelector"):
                yield from _typed(obj, (*path, "templates", index, key), dict)
    else:
        # a pod template: every table and list that a rule walks through
        spec = (*path, "spec")
        if not isinstance(at(obj, spec), dict):
            message = "is missing" if at(obj, spec) is None else "must be a mapping"
            yield Finding("shape", spec, shown_value(at(obj, spec)), message)
            return
        for name in ("metadata", "metadata.labels", "metadata.annotations", "spec.affinity", "spec.nodeSelector",
                     "spec.securityContext", "spec.resources"):  # fmt: skip
            yield from _typed(obj, (*path, *name.split(".")), dict)
        yield from _typed(obj, (*spec, "priorityClassName"), str)
        for name in ("containers", "initContainers", "tolerations", "volumes", "schedulingGates"):
            yield from _typed(obj, (*spec, name), list)
            for index, item in enumerate(sequence(at(obj, (*spec, name)))):
                if not isinstance(item, dict):
                    yield Finding("shape", (*spec, name, index), shown_value(item), "must be a mapping")
        if not at(obj, (*spec, "containers")):
            yield Finding("shape", (*spec, "containers"), "", "a pod needs at least one container")
        if kind in JOBS:
            limit = at(obj, (*path[:-1], "backoffLimit"))
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
                yield Finding(
                    "shape", (*path[:-1], "backoffLimit"), shown_value(limit), "must be a whole number from 0"
                )
    # containers are the same in both formats
    for template in templates_of(kind, obj):
        for where, container in template.containers:
            for name in ("command", "args"):
                yield from _typed(obj, (*where, name), list)
            yield from _typed(obj, (*where, "resources"), dict)
            for name in ("limits", "requests"):
                yield from _typed(obj, (*where, "resources", name), dict)
                for resource, value in mapping(at(container, ("resources", name))).items():
                    if not is_quantity(value):
                        message = "must be a quantity such as 500m, 2, 512Mi or 8Gi"
                        yield Finding(
                            "shape", (*where, "resources", name, str(resource)), shown_value(value), message
                        )
            yield from _amounts(where, mapping(at(container, ("resources",))))


def _amounts(where: Path, resources: Mapping[str, Any]) -> Iterator[Finding]:
    """Amounts that the API server refuses, such as a part of a GPU."""
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    for name, table in (("limits", limits), ("requests", requests)):
        for resource, value in table.items():
            if is_quantity(value):
                for problem in amount_problems(str(resource), value):
                    path = (*where, "resources", name, str(resource))
                    yield Finding("shape", path, shown_value(value), problem)
    for resource, value in requests.items():
        limit = limits.get(resource)
        if not is_quantity(value) or not (limit is None or is_quantity(limit)):
            continue
        if problem := request_problem(str(resource), value, limit):
            path = (*where, "resources", "requests", str(resource))
            message = f"needs an equal limit of {resource}" if problem == NO_LIMIT else problem
            yield Finding("shape", path, shown_value(value), message)


_MUST_BE: Mapping[type, str] = {dict: "must be a mapping", list: "must be a list", str: "must be a string"}


def _typed(obj: Any, path: Path, wanted: type) -> Iterator[Finding]:
    value = at(obj, path)
    if value is not None and not isinstance(value, wanted):
        yield Finding("shape", path, shown_value(value), _MUST_BE[wanted])
