"""Checks of one template that need only the template and the workflow's defaults.

Argo refuses the same errors, when it first reads a workflow.
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage_workflows.decide.workflows import metrics
from moorage_workflows.decide.workflows.builtins import LISTED
from moorage_workflows.decide.workflows.executororders import output_fault
from moorage_workflows.decide.workflows.findings import Gathered
from moorage_workflows.decide.workflows.linttext import (
    PARAMETER_NAME,
    check_choice,
    check_duration,
    check_expression,
    check_names,
    check_when,
    check_whole,
)
from moorage_workflows.decide.workflows.pods import ARGOS_CONTAINERS
from moorage_workflows.decide.workflows.resources.lint import check_resource
from moorage_workflows.decide.workflows.scopes import has_tag
from moorage_workflows.decide.workflows.templates import LEAF_TYPES, LOCATIONS, POD_TYPES, TEMPLATE_TYPES

RETRY_POLICIES = ("Always", "OnFailure", "OnError", "OnTransientError")
_METRIC_NAME = "must be letters, digits and '_', not beginning with a digit"
_WITHOUT_PODS = ("steps", "dag", "suspend", "http", "plugin")
METRICS_MAX = 100  # in Argo v4's CRDs
PARAMETERS_MAX = 500
_RELATIVE = "must be absolute: the image's working directory is not known"
_SOURCES = ("path", "jqFilter", "jsonPath", "parameter", "expression", "supplied")
# where the value of an output parameter comes from, by the template's type
_SOURCES_OF: Mapping[str, tuple[str, ...]] = {
    "container": ("path",),
    "containerSet": ("path",),
    "script": ("path",),
    "resource": ("jqFilter", "jsonPath"),
    "steps": ("parameter", "expression"),
    "dag": ("parameter", "expression"),
}
_RESULT_ONLY = ("http", "data")  # types without files


class Surroundings(Struct, frozen=True, kw_only=True):
    """The parts of the workflow that a template's checks read. `volumes` None: they are not known."""

    defaults: Mapping[str, Any]
    volumes: frozenset[str] | None
    missing_volume_is_error: bool = True


def check_template(out: Gathered, template: Mapping[str, Any], path: Path, around: Surroundings) -> str:
    """Check one template without its steps. Returns its type; "" if the type is unclear."""
    kinds = [kind for kind in TEMPLATE_TYPES if template.get(kind) is not None]
    if not kinds:
        empty = [kind for kind in TEMPLATE_TYPES if kind in template]
        hint = (
            f"{empty[0]} is empty: write {empty[0]}: {{}}" if empty else "use one of " + ", ".join(TEMPLATE_TYPES)
        )
        out.error("template", path, f"the template has no type; {hint}")
    elif len(kinds) > 1:
        out.error("template", path, f"the template has {len(kinds)} types, {', '.join(kinds)}; use one")
    kind = kinds[0] if kinds else ""
    _check_inputs(out, mapping(template.get("inputs")), kind, (*path, "inputs"))
    _check_outputs(out, mapping(template.get("outputs")), kind, (*path, "outputs"))
    _check_limits(out, template, kind, path)
    check_retry(out, template.get("retryStrategy"), (*path, "retryStrategy"))
    check_pod_resources(out, template.get("podResources"), (*path, "podResources"))
    if template.get("resourceClaims") and kind in _WITHOUT_PODS:
        out.error("template", (*path, "resourceClaims"), f"is for templates with a pod; {kind} makes none")
    if template.get("podResources") and kind in ("http", "plugin"):
        out.error("template", (*path, "podResources"), f"is for templates with a pod; {kind} makes none")
    _check_containers(out, template, kind, path, around)
    if kind in ("container", "script"):
        _check_paths(out, template, kind, path)
    _check_location(out, mapping(template.get("archiveLocation")), (*path, "archiveLocation"))
    if kind == "suspend":
        check_duration(out, mapping(template["suspend"]).get("duration"), (*path, "suspend", "duration"))
    elif kind == "resource":
        check_resource(out, template, path)
    elif kind == "containerSet":
        _check_container_set(out, template, path)
    elif kind == "http":
        _check_http(out, mapping(template["http"]), (*path, "http"))
    elif kind == "data":
        _check_data(out, mapping(template["data"]), (*path, "data"))
    _check_memoize(out, template.get("memoize"), (*path, "memoize"))
    check_metrics(out, template.get("metrics"), (*path, "metrics"))
    check_locks(out, template.get("synchronization"), (*path, "synchronization"))
    return kind if len(kinds) == 1 else ""


def check_retry(out: Gathered, strategy: Any, path: Path) -> None:
    retry, backoff = mapping(strategy), mapping(mapping(strategy).get("backoff"))
    check_choice(out, retry.get("retryPolicy"), (*path, "retryPolicy"), RETRY_POLICIES)
    check_whole(out, retry.get("limit"), (*path, "limit"))
    check_expression(out, retry.get("expression"), (*path, "expression"))
    for field in ("duration", "maxDuration", "cap"):
        check_duration(out, backoff.get(field), (*path, "backoff", field))
    check_whole(out, backoff.get("factor"), (*path, "backoff", "factor"))


def check_pod_resources(out: Gathered, given: Any, path: Path) -> None:
    """Check the resources of a whole pod.

    https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    resources = mapping(given)
    if resources.get("claims"):
        out.error("resources", (*path, "claims"), "is not for whole pods; use resourceClaims")
    for table in ("limits", "requests"):
        for name in mapping(resources.get(table)):
            if name not in ("cpu", "memory") and not str(name).startswith("hugepages-"):
                message = "is not for whole pods: use cpu, memory or hugepages-*, and limits of a container"
                out.error("resources", (*path, table, str(name)), message)


def check_budget(out: Gathered, given: Any, path: Path) -> None:
    """`podDisruptionBudget`."""
    budget = mapping(given)
    bounds = [field for field in ("minAvailable", "maxUnavailable") if budget.get(field) is not None]
    if given is not None and len(bounds) != 1:
        out.error("budget", path, "needs one of minAvailable and maxUnavailable", ", ".join(bounds))
    for field in bounds:
        text = str(budget[field]).removesuffix("%")
        if not has_tag(budget[field]) and not (text.isascii() and text.isdigit()):
            out.error("budget", (*path, field), "must be a whole number or a percentage", budget[field])


def check_locks(out: Gathered, synchronization: Any, path: Path) -> None:
    locks = mapping(synchronization)
    for index, mutex in enumerate(sequence(locks.get("mutexes"))):
        if not mapping(mutex).get("name"):
            out.error("lock", (*path, "mutexes", index, "name"), "is required")
    for index, semaphore in enumerate(sequence(locks.get("semaphores"))):
        sources = [source for source in ("configMapKeyRef", "database") if mapping(semaphore).get(source)]
        if len(sources) != 1:
            out.error(
                "lock",
                (*path, "semaphores", index),
                "needs one of configMapKeyRef and database: where its size is",
                ", ".join(sources),
            )
        database = mapping(semaphore).get("database")
        if database and not mapping(database).get("key"):
            out.error("lock", (*path, "semaphores", index, "database", "key"), "is required")


def check_metrics(out: Gathered, given: Any, path: Path) -> None:
    every = sequence(mapping(given).get("prometheus"))
    if len(every) > METRICS_MAX:
        out.warning("limit", (*path, "prometheus"), beyond(len(every), "metrics", METRICS_MAX))
    for index, entry in enumerate(every):
        metric, at = mapping(entry), (*path, "prometheus", index)
        name = metric.get("name")
        if not isinstance(name, str) or not (has_tag(name) or metrics.NAME.fullmatch(name)):
            out.error("metric", (*at, "name"), _METRIC_NAME, name or "")
        if not metric.get("help"):
            out.error("metric", (*at, "help"), "is required")
        kinds = [kind for kind in ("counter", "gauge", "histogram") if metric.get(kind) is not None]
        if len(kinds) != 1:
            out.error("metric", at, "needs one of counter, gauge and histogram", ", ".join(kinds))
        check_when(out, metric.get("when"), (*at, "when"))
        _check_metric_labels(out, metric, kinds, (*at, "labels"))
        for kind in kinds:
            value = mapping(metric[kind]).get("value")
            check_choice(out, mapping(metric[kind]).get("operation"), (*at, kind, "operation"), metrics.OPERATIONS)
            if value in (None, ""):
                out.error("metric", (*at, kind, "value"), "is required")
            elif (
                kind == "gauge"
                and mapping(metric[kind]).get("realtime") is True
                and "resourcesDuration." in str(value)
            ):
                out.error(
                    "metric", (*at, kind, "value"), "resourcesDuration is not known while a step runs", value
                )


def _check_metric_labels(out: Gathered, metric: Mapping[str, Any], kinds: list[str], path: Path) -> None:
    labels = sequence(metric.get("labels"))
    if len(labels) > metrics.LABELS_MAX:
        out.error("metric", path, f"there are {len(labels)}; at most {metrics.LABELS_MAX} are allowed")
    for index, label in enumerate(labels):
        key, at = mapping(label).get("key"), (*path, index, "key")
        if has_tag(key):
            continue
        if not isinstance(key, str) or not metrics.NAME.fullmatch(key):
            out.error("metric", at, _METRIC_NAME, key or "")
        elif why := metrics.reserved(key, kinds[0] if kinds else ""):
            out.error("metric", at, why, key)
    buckets = sequence(mapping(metric.get("histogram")).get("buckets"))
    if len(buckets) > metrics.BUCKETS_MAX:
        at = (*path[:-1], "histogram", "buckets")
        out.error("metric", at, f"there are {len(buckets)}; at most {metrics.BUCKETS_MAX} are allowed")


def beyond(count: int, what: str, limit: int) -> str:
    return f"there are {count} {what}; Argo v4 cannot run this, because its CRDs allow {limit}"


# --- inputs and outputs


def _check_inputs(out: Gathered, inputs: Mapping[str, Any], kind: str, path: Path) -> None:
    parameters = sequence(inputs.get("parameters"))
    if len(parameters) > PARAMETERS_MAX:
        out.warning("limit", (*path, "parameters"), beyond(len(parameters), "parameters", PARAMETERS_MAX))
    for field in ("parameters", "artifacts"):
        check_names(out, inputs.get(field), (*path, field), form=PARAMETER_NAME)
    for index, entry in enumerate(parameters):
        choices = mapping(entry).get("enum")
        if isinstance(choices, list) and not choices:
            out.error("arguments", (*path, "parameters", index, "enum"), "must have at least one value")
        if isinstance(mapping(entry).get("value"), (list, dict)):
            at = (*path, "parameters", index, "value")
            out.error("arguments", at, "must be a string; write lists and mappings as JSON in quotes")
    for index, entry in enumerate(sequence(inputs.get("artifacts"))):
        artifact, at = mapping(entry), (*path, "artifacts", index)
        if artifact.get("from"):
            out.error("artifact", (*at, "from"), "is for arguments of a step, not for inputs")
        _check_artifact_path(out, artifact, kind, at)
        _check_location(out, artifact, at)


def _check_outputs(out: Gathered, outputs: Mapping[str, Any], kind: str, path: Path) -> None:
    for field in ("parameters", "artifacts"):
        if kind in _RESULT_ONLY and outputs.get(field):
            out.warning(
                "outputs", (*path, field), f"are not made: a template of type {kind} has outputs.result only"
            )
        check_names(out, outputs.get(field), (*path, field), form=PARAMETER_NAME)
        _check_exports(out, outputs.get(field), (*path, field))
    for index, entry in enumerate(sequence(outputs.get("artifacts"))):
        artifact, at = mapping(entry), (*path, "artifacts", index)
        _check_artifact_path(out, artifact, kind, at)
        _check_location(out, artifact, at)
        check_expression(out, artifact.get("fromExpression"), (*at, "fromExpression"))
        if kind in POD_TYPES and not _is_faulty(out, at):
            _check_saved(out, artifact, at)
        if artifact.get("from") and artifact.get("fromExpression"):
            out.error("artifact", at, "has from and fromExpression; use one of them")
    for index, entry in enumerate(sequence(outputs.get("parameters"))):
        _check_output(out, mapping(entry), kind, (*path, "parameters", index))


def _check_output(out: Gathered, parameter: Mapping[str, Any], kind: str, path: Path) -> None:
    value, source = parameter.get("value"), parameter.get("valueFrom")
    if value is not None and source is not None:
        out.error("outputs", path, "has value and valueFrom; use one of them")
        return
    if value is not None:
        return
    if source is None:
        out.error("outputs", path, "has no value; set valueFrom")
        return
    at = (*path, "valueFrom")
    sources = [field for field in _SOURCES if mapping(source).get(field) not in (None, "")]
    wanted = _SOURCES_OF.get(kind, ())
    if len(sources) != 1:
        use = " or ".join(wanted or _SOURCES)
        out.error("outputs", at, f"needs one of {use}", ", ".join(sources))
    elif wanted and sources[0] not in wanted:
        out.error(
            "outputs", at, f"outputs of a template of type {kind} come from {' or '.join(wanted)}", sources[0]
        )
    path_value = mapping(source).get("path")
    if isinstance(path_value, str) and path_value and not path_value.startswith("/") and not has_tag(path_value):
        out.error("outputs", (*at, "path"), _RELATIVE, path_value)
    check_expression(out, mapping(source).get("expression"), (*at, "expression"))


def _check_exports(out: Gathered, entries: Any, path: Path) -> None:
    first: dict[str, int] = {}
    for index, entry in enumerate(sequence(entries)):
        name, at = mapping(entry).get("globalName"), (*path, index, "globalName")
        if not isinstance(name, str) or not name or has_tag(name):
            continue
        if not PARAMETER_NAME.fullmatch(name):
            out.error("name", at, "must be letters, digits, '-' and '_'", name)
        if name in first:
            out.error("name", at, f"is repeated: also at {path[-1]}[{first[name]}]; only one of them counts", name)
        first.setdefault(name, index)


def _check_artifact_path(out: Gathered, artifact: Mapping[str, Any], kind: str, path: Path) -> None:
    value, at = artifact.get("path"), (*path, "path")
    if kind and kind not in LEAF_TYPES:
        if value:
            out.error("artifact", at, f"is for containers and scripts, not for a template of type {kind}", value)
        return
    if not isinstance(value, str) or not value:
        if kind in POD_TYPES:
            out.error("artifact", at, "is required: where the artifact is in the container")
        return
    if _escapes(value):
        out.error("artifact", at, "leads out of the folder before '..'; write the path without '..'", value)
    elif not value.startswith("/") and not has_tag(value):
        out.error("artifact", at, _RELATIVE, value)
    elif not value.strip("/"):
        out.error("artifact", at, "is the whole file system; name a file or a folder", value)


def _is_faulty(out: Gathered, path: Path) -> bool:
    return any(finding.is_error and finding.path[: len(path)] == path for finding in out.items)


def _check_saved(out: Gathered, artifact: Mapping[str, Any], path: Path) -> None:
    """Check the place of an output artifact before the pod is made; values with tags are not checked."""
    if any(has_tag(value) for value in _texts(artifact)) or not artifact.get("name"):
        return
    if (fault := output_fault(artifact)) is not None:
        out.error("artifact", (*path, *fault.path.strip(".").split(".")), fault.message)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _escapes(path: str) -> bool:
    """Whether '..' in a path leads out of the path before it. This follows Argo's rule."""
    if "/../" in path:
        safe = path.split("/../", 1)[0]
    elif path.endswith("/.."):
        safe = path[:-3]
    else:
        return False
    clean = posixpath.normpath(path)
    return bool(safe) and not (clean.startswith(safe + "/") and len(clean) > len(safe) + 1)


def _check_location(out: Gathered, artifact: Mapping[str, Any], path: Path) -> None:
    places = [place for place in LOCATIONS if artifact.get(place) is not None]
    if len(places) > 1:
        out.error("artifact", path, f"has {' and '.join(places)}; an artifact is in one place")
    if artifact.get("git") is not None and not mapping(artifact["git"]).get("repo"):
        out.error("artifact", (*path, "git", "repo"), "is required")
    archive = mapping(artifact.get("archive"))
    if len(archive) > 1:
        out.error("artifact", (*path, "archive"), "use one of none, tar and zip", ", ".join(archive))


# --- limits of time and number


def _check_limits(out: Gathered, template: Mapping[str, Any], kind: str, path: Path) -> None:
    is_leaf = kind in LEAF_TYPES or not kind
    for field in ("activeDeadlineSeconds", "timeout", "pendingTimeout"):
        if template.get(field) not in (None, "") and not is_leaf:
            if field == "activeDeadlineSeconds" and kind == "suspend":
                continue
            leaves = "templates that run something"
            out.error("deadline", (*path, field), f"is for {leaves}; {kind} has none", template[field])
    check_whole(out, template.get("activeDeadlineSeconds"), (*path, "activeDeadlineSeconds"))
    for field in ("timeout", "pendingTimeout"):
        value, at = template.get(field), (*path, field)
        if isinstance(value, (int, float)) or (isinstance(value, str) and value.lstrip("+-").isdigit()):
            out.error("duration", at, "needs a unit, such as 30s or 5m", value)
        else:
            check_duration(out, value, at, needs_unit=True)
    if template.get("parallelism") is not None:
        if kind and kind not in ("steps", "dag"):
            out.error(
                "limit", (*path, "parallelism"), "is for templates of type steps and dag", template["parallelism"]
            )
        check_whole(out, template["parallelism"], (*path, "parallelism"), least=1)


def _check_memoize(out: Gathered, memoize: Any, path: Path) -> None:
    if memoize is None:
        return
    settings = mapping(memoize)
    if not settings.get("key"):
        out.error("memoize", (*path, "key"), "is required")
    if not mapping(mapping(settings.get("cache")).get("configMap")).get("name"):
        out.error("memoize", (*path, "cache", "configMap", "name"), "is required")
    check_duration(out, settings.get("maxAge"), (*path, "maxAge"), needs_unit=True)


# --- containers


def containers_of(template: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every container of a template with its path."""
    for field in ("container", "script"):
        if isinstance(template.get(field), Mapping):
            yield (*path, field), template[field]
    lists = [((*path, field), template.get(field)) for field in ("initContainers", "sidecars")]
    lists.append(((*path, "containerSet", "containers"), mapping(template.get("containerSet")).get("containers")))
    for at, entries in lists:
        for index, container in enumerate(sequence(entries)):
            if isinstance(container, Mapping):
                yield (*at, index), container


def _check_containers(
    out: Gathered, template: Mapping[str, Any], kind: str, path: Path, around: Surroundings
) -> None:
    for field in ("initContainers", "sidecars"):
        entries = template.get(field)
        check_names(out, entries, (*path, field))
        for index, entry in enumerate(sequence(entries)):
            name = mapping(entry).get("name")
            if name in ARGOS_CONTAINERS or str(name).startswith("artifact-plugin-"):
                out.error("name", (*path, field, index, "name"), "is a name that Argo keeps for itself", name)
    has_image = any(mapping(source.get(kind)).get("image") for source in (template, around.defaults))
    if kind in ("container", "script") and not has_image:
        out.error("template", (*path, kind, "image"), "is required")
    for at, container in containers_of(template, path):
        for index, mount in enumerate(sequence(container.get("volumeMounts"))):
            for field in ("name", "mountPath"):
                if mapping(mount).get(field) in (None, ""):
                    out.error("volume", (*at, "volumeMounts", index, field), "is required")
    if around.volumes is None:
        return
    own = [*sequence(template.get("volumes")), *sequence(around.defaults.get("volumes"))]
    known = around.volumes | {str(mapping(volume).get("name")) for volume in own}
    if any(has_tag(name) for name in known):
        return
    names = ", ".join(sorted(known)) or "none"
    say = out.error if around.missing_volume_is_error else out.warning
    for at, container in containers_of(template, path):
        for index, mount in enumerate(sequence(container.get("volumeMounts"))):
            name = mapping(mount).get("name")
            if isinstance(name, str) and not has_tag(name) and name not in known:
                place = (*at, "volumeMounts", index, "name")
                say("volume", place, f"there is no volume of this name; volumes: {names}", name)


def _check_paths(out: Gathered, template: Mapping[str, Any], kind: str, path: Path) -> None:
    """Check that mount paths are different."""
    taken: dict[str, str] = {}
    lists = (
        ((*path, kind, "volumeMounts"), mapping(template[kind]).get("volumeMounts"), "mountPath"),
        ((*path, "inputs", "artifacts"), mapping(template.get("inputs")).get("artifacts"), "path"),
    )
    mounts = [
        ((*base, index, field), f"{base[-1]}[{index}]", mapping(entry).get(field))
        for base, entries, field in lists
        for index, entry in enumerate(sequence(entries))
    ]
    for at, what, place in mounts:
        if not isinstance(place, str) or not place:
            continue
        if place in taken:
            out.error("volume", at, f"{taken[place]} has the same path; use another", place)
        taken.setdefault(place, what)


def _check_container_set(out: Gathered, template: Mapping[str, Any], path: Path) -> None:
    group, at = mapping(template["containerSet"]), (*path, "containerSet", "containers")
    containers = [mapping(container) for container in sequence(group.get("containers"))]
    check_names(out, group.get("containers"), at)
    if not containers:
        out.error("template", at, "must have at least one container")
    names = [str(container.get("name")) for container in containers]
    inputs, outputs = mapping(template.get("inputs")), mapping(template.get("outputs"))
    if (inputs.get("artifacts") or outputs.get("artifacts") or outputs.get("parameters")) and "main" not in names:
        out.error("template", at, "a container must be named main, for the template has inputs or outputs")
    graph: dict[str, list[str]] = {}
    for index, (name, container) in enumerate(zip(names, containers, strict=True)):
        if name in ARGOS_CONTAINERS:
            out.error("name", (*at, index, "name"), "is a name that Argo keeps for itself", name)
        graph[name] = [str(other) for other in sequence(container.get("dependencies"))]
        for other in graph[name]:
            if other not in names:
                out.error("dag", (*at, index, "dependencies"), f"there is no container {other!r}", other)
    cycle = cycle_in(graph)
    if cycle:
        out.error("dag", at, f"containers wait for each other: {' -> '.join(cycle)}")


def _check_http(out: Gathered, http: Mapping[str, Any], path: Path) -> None:
    url = http.get("url")
    if not isinstance(url, str) or not url.strip():
        out.error("http", (*path, "url"), "is required")
    elif not has_tag(url) and not url.strip().startswith(("http://", "https://")):
        out.error("http", (*path, "url"), "must begin with http:// or https://", url)
    check_whole(out, http.get("timeoutSeconds"), (*path, "timeoutSeconds"), least=1)
    check_expression(out, http.get("successCondition"), (*path, "successCondition"))
    for index, entry in enumerate(sequence(http.get("headers"))):
        header, at = mapping(entry), (*path, "headers", index)
        if not header.get("name"):
            out.error("http", (*at, "name"), "is required")
        selector = mapping(mapping(header.get("valueFrom")).get("secretKeyRef"))
        if header.get("valueFrom") is not None and not (selector.get("name") and selector.get("key")):
            out.error("http", (*at, "valueFrom", "secretKeyRef"), "needs name and key of a Secret")
    content = mapping(http.get("bodyFrom")).get("bytes")
    if http.get("bodyFrom") is not None:
        if http.get("body"):
            out.error("http", path, "has body and bodyFrom; use one of them")
        if not isinstance(content, str) or not (has_tag(content) or _is_base64(content)):
            out.error("http", (*path, "bodyFrom", "bytes"), "must be base64", content or "")


def _check_data(out: Gathered, data: Mapping[str, Any], path: Path) -> None:
    source, at = mapping(data.get("source")).get("artifactPaths"), (*path, "source", "artifactPaths")
    if source is None:
        out.error("data", at, "is required: where the list comes from")
    for store in (store for store in LOCATIONS if mapping(source).get(store) is not None):
        if store not in LISTED:
            out.error("data", (*at, store), f"cannot be listed: use {' or '.join(LISTED)}, or no store")
    if data.get("transformation") is None:
        out.warning("data", (*path, "transformation"), "is required where Argo v4's CRDs check it; write []")
    for index, step in enumerate(sequence(data.get("transformation"))):
        check_expression(out, mapping(step).get("expression"), (*path, "transformation", index, "expression"))


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def cycle_in(graph: Mapping[str, list[str]]) -> list[str]:
    """Return a cycle of the graph as names, with the same first and last name; empty without a cycle.

    Not recursive.
    """
    done: set[str] = set()
    for start in graph:
        if start in done:
            continue
        path, waiting = [start], [iter(graph[start])]
        on_path = {start}
        while path:
            following = next(waiting[-1], None)
            if following is None:
                waiting.pop()
                on_path.discard(path[-1])
                done.add(path.pop())
            elif following in on_path:
                return [*path[path.index(following) :], following]
            elif following in graph and following not in done:
                path.append(following)
                on_path.add(following)
                waiting.append(iter(graph[following]))
    return []
