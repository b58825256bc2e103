"""One row of `kubectl get`, kind by kind, in the words of the real server's printers.

https://github.com/kubernetes/kubernetes/blob/master/pkg/printers/internalversion/printers.go
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage.apimachinery.meta import condition, controller_ref, is_condition_true
from moorage.apimachinery.resources import Obj
from moorage.clock import format_duration, parse_rfc3339

Cells = Callable[[Obj, datetime], Sequence[Any]]

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"
_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def age(moment: str | None, now: datetime) -> str:
    """Time since, as `kubectl` shows it; `<unknown>` without a moment."""
    if not moment:
        return UNKNOWN
    try:
        return format_duration(now - parse_rfc3339(moment))
    except ValueError:
        return "<invalid>"


def selector_text(spec: Mapping[str, Any] | None) -> str:
    """As `metav1.FormatLabelSelector`."""
    if not spec:
        return NONE
    parts = [f"{key}={value}" for key, value in sorted((spec.get("matchLabels") or {}).items())]
    for one in spec.get("matchExpressions") or ():
        values = ",".join(sorted(one.get("values") or ()))
        match one.get("operator"):
            case "In":
                parts.append(f"{one['key']} in ({values})")
            case "NotIn":
                parts.append(f"{one['key']} notin ({values})")
            case "Exists":
                parts.append(one["key"])
            case "DoesNotExist":
                parts.append(f"!{one['key']}")
    return ",".join(parts) or NONE


def _created(obj: Obj, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _containers(template: Mapping[str, Any] | None) -> tuple[str, str]:
    containers = ((template or {}).get("spec") or {}).get("containers") or ()
    return ",".join(one.get("name", "") for one in containers), ",".join(
        one.get("image", "") for one in containers
    )


def _with_more(items: Sequence[str], empty: str = UNSET, most: int = 3) -> str:
    text = ",".join(items[:most])
    if len(items) > most:
        return f"{text} + {len(items) - most} more..."
    return text or empty


def _spec(obj: Obj) -> Mapping[str, Any]:
    return obj.get("spec") or {}


def _status(obj: Obj) -> Mapping[str, Any]:
    return obj.get("status") or {}


def pod_row_conditions(obj: Obj) -> list[Obj]:
    phase = _status(obj).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


def _pod(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    total = len(spec.get("containers") or ())
    ready = restarts = sidecar_restarts = 0
    last = sidecar_last = ""
    phase = status.get("phase", "")
    reason = status.get("reason") or phase
    scheduled = condition(obj, "PodScheduled")
    if scheduled is not None and scheduled.get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    inits = spec.get("initContainers") or ()
    sidecars = {one["name"] for one in inits if one.get("restartPolicy") == "Always"}
    total += len(sidecars)
    initializing = False
    for at, one in enumerate(status.get("initContainerStatuses") or ()):
        count, ended = one.get("restartCount", 0), _last_end(one)
        restarts += count
        last = max(last, ended)
        sidecar = one["name"] in sidecars
        if sidecar:
            sidecar_restarts += count
            sidecar_last = max(sidecar_last, ended)
        state = one.get("state") or {}
        over, waiting = state.get("terminated"), state.get("waiting")
        if over is not None and not over.get("exitCode"):
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        initializing = True
        if over is not None:
            reason = f"Init:{_end_reason(over)}"
        elif waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{at}/{len(inits)}"
        break
    if not initializing or is_condition_true(obj, "Initialized"):
        restarts, last = sidecar_restarts, sidecar_last
        running, error = False, ""
        for one in reversed(status.get("containerStatuses") or ()):
            restarts += one.get("restartCount", 0)
            last = max(last, _last_end(one))
            state = one.get("state") or {}
            over, waiting = state.get("terminated"), state.get("waiting")
            if waiting is not None and waiting.get("reason"):
                reason = waiting["reason"]
            elif over is not None:
                reason = _end_reason(over)
                if over.get("exitCode"):
                    error = reason
            elif one.get("ready") and "running" in state:
                running = True
                ready += 1
        if reason == "Completed":
            if running and is_condition_true(obj, "Ready"):
                reason = "Running"
            elif error:
                reason = error
            elif running:
                reason = "NotReady"
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in ("Succeeded", "Failed"):
            reason = "Terminating"
    restarted = f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)
    addresses = status.get("podIPs") or ()
    gates = spec.get("readinessGates") or ()
    passed = sum(is_condition_true(obj, gate["conditionType"]) for gate in gates)
    return (
        obj["metadata"]["name"],
        f"{ready}/{total}",
        reason,
        restarted,
        _created(obj, now),
        addresses[0].get("ip") if addresses else NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    )


def _last_end(status: Mapping[str, Any]) -> str:
    over = (status.get("lastState") or {}).get("terminated") or {}
    return str(over.get("finishedAt") or "")


def _end_reason(over: Mapping[str, Any]) -> str:
    if over.get("reason"):
        return str(over["reason"])
    if over.get("signal"):
        return f"Signal:{over['signal']}"
    return f"ExitCode:{over.get('exitCode', 0)}"


def _node(obj: Obj, now: datetime) -> Sequence[Any]:
    status, info = _status(obj), _status(obj).get("nodeInfo") or {}
    ready = condition(obj, "Ready")
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if _spec(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.partition("/")[2])
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    addresses = {one["type"]: one["address"] for one in reversed(status.get("addresses") or ())}
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return (
        obj["metadata"]["name"],
        ",".join(words),
        ",".join(sorted(roles - {""})) or NONE,
        _created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    )


def _job(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    succeeded = status.get("succeeded", 0)
    parallelism = spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    elif parallelism > 1:
        completions = f"{succeeded}/1 of {parallelism}"
    else:
        completions = f"{succeeded}/1"
    took = ""
    if status.get("startTime"):
        end = parse_rfc3339(status["completionTime"]) if status.get("completionTime") else now
        took = format_duration(end - parse_rfc3339(status["startTime"]))
    said = "Running"
    for word, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if is_condition_true(obj, word):
            said = shown
            break
    else:
        if obj["metadata"].get("deletionTimestamp"):
            said = "Terminating"
        else:
            for word in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
                if is_condition_true(obj, word):
                    said = word
                    break
    names, images = _containers(spec.get("template"))
    return (
        obj["metadata"]["name"],
        said,
        completions,
        took,
        _created(obj, now),
        names,
        images,
        selector_text(spec.get("selector")),
    )


def _cronjob(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    names, images = _containers(job.get("template"))
    last = status.get("lastScheduleTime")
    return (
        obj["metadata"]["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        age(last, now) if last else NONE,
        _created(obj, now),
        names,
        images,
        selector_text(job.get("selector")),
    )


def _deployment(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    names, images = _containers(spec.get("template"))
    return (
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(obj, now),
        names,
        images,
        selector_text(spec.get("selector")),
    )


def _replicaset(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    names, images = _containers(spec.get("template"))
    selector = spec.get("selector")
    if selector and "matchLabels" not in selector and "matchExpressions" not in selector:
        selector = {"matchLabels": selector}  # a ReplicationController's
    return (
        obj["metadata"]["name"],
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _created(obj, now),
        names,
        images,
        selector_text(selector),
    )


def _statefulset(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return (obj["metadata"]["name"], ready, _created(obj, now), *_containers(spec.get("template")))


def _daemonset(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    template = spec.get("template") or {}
    return (
        obj["metadata"]["name"],
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        _labels_text((template.get("spec") or {}).get("nodeSelector")),
        _created(obj, now),
        *_containers(template),
        selector_text(spec.get("selector")),
    )


def _pvc(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    bound = bool(spec.get("volumeName"))
    return (
        obj["metadata"]["name"],
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _access_modes(status.get("accessModes")) if bound else "",
        _class_of(obj),
        spec.get("volumeAttributesClassName", UNSET),
        _created(obj, now),
        spec.get("volumeMode", UNSET),
    )


def _pv(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    claim = spec.get("claimRef")
    return (
        obj["metadata"]["name"],
        (spec.get("capacity") or {}).get("storage", "0"),
        _access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _class_of(obj),
        spec.get("volumeAttributesClassName", UNSET),
        status.get("reason", ""),
        _created(obj, now),
        spec.get("volumeMode", UNSET),
    )


def _access_modes(modes: Sequence[str] | None) -> str:
    had = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in had)


def _class_of(obj: Obj) -> str:
    noted = (obj["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return str(noted if noted is not None else _spec(obj).get("storageClassName") or "")


def _event(obj: Obj, now: datetime) -> Sequence[Any]:
    first = age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = age(obj["lastTimestamp"], now) if obj.get("lastTimestamp") else first
    count = obj.get("count") or 1
    if obj.get("series"):
        last = age(obj["series"].get("lastObservedTime"), now)
        count = obj["series"].get("count", count)
    target = obj.get("involvedObject") or {}
    kind, name = target.get("kind", "").lower(), target.get("name")
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return (
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{name}" if name else kind,
        target.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (obj.get("message") or "").strip(),
        first,
        count,
        obj["metadata"]["name"],
    )


def _event_new(obj: Obj, now: datetime) -> Sequence[Any]:
    from moorage.localcluster.apiserver.kinds.event import to_core

    return _event(to_core(obj), now)


def _namespace(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], _status(obj).get("phase", ""), _created(obj, now)


def _configmap(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], _size(obj, "data") + _size(obj, "binaryData"), _created(obj, now)


def _secret(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("type", ""), _size(obj, "data"), _created(obj, now)


def _size(obj: Obj, key: str) -> int:
    return len(obj.get(key) or ())


def _name_age(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], _created(obj, now)


def _name_date(obj: Obj, _: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")


def _service(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    kind = spec.get("type", "")
    balanced = [
        one.get("ip") or one.get("hostname") or ""
        for one in (_status(obj).get("loadBalancer") or {}).get("ingress") or ()
    ]
    outside = [*(balanced if kind == "LoadBalancer" else ()), *(spec.get("externalIPs") or ())]
    external = ",".join(outside) or ("<pending>" if kind == "LoadBalancer" else NONE)
    if kind == "ExternalName":
        external = spec.get("externalName", "")
    ports = ",".join(
        f"{one.get('port')}:{one['nodePort']}/{one.get('protocol')}"
        if one.get("nodePort")
        else f"{one.get('port')}/{one.get('protocol')}"
        for one in spec.get("ports") or ()
    )
    addresses = spec.get("clusterIPs") or ()
    return (
        obj["metadata"]["name"],
        kind,
        addresses[0] if addresses else NONE,
        external,
        ports or NONE,
        _created(obj, now),
        _labels_text(spec.get("selector")),
    )


def _endpoints(obj: Obj, now: datetime) -> Sequence[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        ports = subset.get("ports") or ()
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port.get('port')}" for port in ports] or [str(address.get("ip"))]
    return obj["metadata"]["name"], _with_more(found, NONE), _created(obj, now)


def _endpointslice(obj: Obj, now: datetime) -> Sequence[Any]:
    ports = [str(one.get("port") or one.get("name") or "*") for one in obj.get("ports") or ()]
    addresses = [one for endpoint in obj.get("endpoints") or () for one in endpoint.get("addresses") or ()]
    name, kind = obj["metadata"]["name"], obj.get("addressType", "")
    return name, kind, _with_more(ports), _with_more(addresses), _created(obj, now)


def _pdb(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    return (
        obj["metadata"]["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        _status(obj).get("disruptionsAllowed", 0),
        _created(obj, now),
    )


def _storageclass(obj: Obj, now: datetime) -> Sequence[Any]:
    notes = obj["metadata"].get("annotations") or {}
    default = notes.get("storageclass.kubernetes.io/is-default-class") == "true"
    return (
        obj["metadata"]["name"] + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        _created(obj, now),
    )


def _priorityclass(obj: Obj, now: datetime) -> Sequence[Any]:
    return (
        obj["metadata"]["name"],
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        _created(obj, now),
        obj.get("preemptionPolicy", ""),
    )


def _lease(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], _spec(obj).get("holderIdentity", ""), _created(obj, now)


def _webhooks(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], _size(obj, "webhooks"), _created(obj, now)


def _controllerrevision(obj: Obj, now: datetime) -> Sequence[Any]:
    owner = controller_ref(obj)
    said = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        said = f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return obj["metadata"]["name"], said, obj.get("revision", 0), _created(obj, now)


def _resourcequota(obj: Obj, now: datetime) -> Sequence[Any]:
    status = _status(obj)
    requests: list[str] = []
    limits: list[str] = []
    for name, hard in sorted((status.get("hard") or {}).items()):
        part = f"{name}: {(status.get('used') or {}).get(name, '0')}/{hard}"
        (limits if name.startswith("limits.") else requests).append(part)
    return obj["metadata"]["name"], ", ".join(requests), ", ".join(limits), _created(obj, now)


def _hpa(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    target = spec.get("scaleTargetRef") or {}
    return (
        obj["metadata"]["name"],
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _with_more([f"<unknown> ({one.get('type')})" for one in spec.get("metrics") or ()], NONE, 2),
        str(spec.get("minReplicas", UNSET)),
        spec.get("maxReplicas", 0),
        _status(obj).get("currentReplicas", 0),
        _created(obj, now),
    )


def _networkpolicy(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], selector_text(_spec(obj).get("podSelector")), _created(obj, now)


def _ingress(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    hosts = [one["host"] for one in spec.get("rules") or () if one.get("host")]
    addresses = [
        one.get("ip") or one.get("hostname") or ""
        for one in (_status(obj).get("loadBalancer") or {}).get("ingress") or ()
    ]
    return (
        obj["metadata"]["name"],
        spec.get("ingressClassName", NONE),
        _with_more(hosts, "*"),
        ",".join(addresses),
        "80, 443" if spec.get("tls") else "80",
        _created(obj, now),
    )


def _ingressclass(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    wanted = spec.get("parameters")
    said = NONE
    if wanted:
        group = f".{wanted['apiGroup']}" if wanted.get("apiGroup") else ""
        said = f"{wanted.get('kind', '')}{group}/{wanted.get('name', '')}"
    notes = obj["metadata"].get("annotations") or {}
    default = notes.get("ingressclass.kubernetes.io/is-default-class") == "true"
    name = obj["metadata"]["name"] + (" (default)" if default else "")
    return name, spec.get("controller", ""), said, _created(obj, now)


def _rolebinding(obj: Obj, now: datetime) -> Sequence[Any]:
    ref = obj.get("roleRef") or {}
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for one in obj.get("subjects") or ():
        name = (
            f"{one.get('namespace')}/{one['name']}" if one.get("kind") == "ServiceAccount" else one.get("name", "")
        )
        by_kind.setdefault(one.get("kind", ""), []).append(name)
    return (
        obj["metadata"]["name"],
        f"{ref.get('kind', '')}/{ref.get('name', '')}",
        _created(obj, now),
        *(", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")),
    )


def _podtemplate(obj: Obj, _: datetime) -> Sequence[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return (obj["metadata"]["name"], *_containers(template), _labels_text(labels))


def _csinode(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], len(_spec(obj).get("drivers") or ()), _created(obj, now)


def _csidriver(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    return (
        obj["metadata"]["name"],
        spec.get("attachRequired", True),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(one.get("audience", "") for one in spec.get("tokenRequests") or ()) or UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        _created(obj, now),
    )


def _volumeattachment(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    attached = bool(_status(obj).get("attached"))
    return (
        obj["metadata"]["name"],
        spec.get("attacher", ""),
        volume,
        spec.get("nodeName", ""),
        attached,
        _created(obj, now),
    )


def _volumeattributesclass(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("driverName", ""), _created(obj, now)


def _runtimeclass(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("handler", ""), _created(obj, now)


CELLS: Mapping[tuple[str, str], Cells] = {
    ("", "configmaps"): _configmap,
    ("", "endpoints"): _endpoints,
    ("", "events"): _event,
    ("", "limitranges"): _name_date,
    ("", "namespaces"): _namespace,
    ("", "nodes"): _node,
    ("", "persistentvolumeclaims"): _pvc,
    ("", "persistentvolumes"): _pv,
    ("", "pods"): _pod,
    ("", "podtemplates"): _podtemplate,
    ("", "replicationcontrollers"): _replicaset,
    ("", "resourcequotas"): _resourcequota,
    ("", "secrets"): _secret,
    ("", "serviceaccounts"): _name_age,
    ("", "services"): _service,
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _webhooks,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhooks,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _name_date,
    ("apps", "controllerrevisions"): _controllerrevision,
    ("apps", "daemonsets"): _daemonset,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replicaset,
    ("apps", "statefulsets"): _statefulset,
    ("autoscaling", "horizontalpodautoscalers"): _hpa,
    ("batch", "cronjobs"): _cronjob,
    ("batch", "jobs"): _job,
    ("coordination.k8s.io", "leases"): _lease,
    ("discovery.k8s.io", "endpointslices"): _endpointslice,
    ("events.k8s.io", "events"): _event_new,
    ("networking.k8s.io", "ingressclasses"): _ingressclass,
    ("networking.k8s.io", "ingresses"): _ingress,
    ("networking.k8s.io", "networkpolicies"): _networkpolicy,
    ("node.k8s.io", "runtimeclasses"): _runtimeclass,
    ("policy", "poddisruptionbudgets"): _pdb,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _rolebinding,
    ("rbac.authorization.k8s.io", "clusterroles"): _name_date,
    ("rbac.authorization.k8s.io", "rolebindings"): _rolebinding,
    ("rbac.authorization.k8s.io", "roles"): _name_date,
    ("scheduling.k8s.io", "priorityclasses"): _priorityclass,
    ("storage.k8s.io", "csidrivers"): _csidriver,
    ("storage.k8s.io", "csinodes"): _csinode,
    ("storage.k8s.io", "csistoragecapacities"): _name_date,
    ("storage.k8s.io", "storageclasses"): _storageclass,
    ("storage.k8s.io", "volumeattachments"): _volumeattachment,
    ("storage.k8s.io", "volumeattributesclasses"): _volumeattributesclass,
}
