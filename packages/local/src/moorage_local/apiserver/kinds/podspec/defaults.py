"""Default values for fields of pods and pod templates.

The order is that of the real server's `defaults.go`.
"""

from __future__ import annotations

from moorage_kube.resources import Obj
from moorage_local.podspecs import containers_of

GRACE_SECONDS = 30
NOT_READY_SECONDS = 300  # how long pods without tolerations stay on a lost node


def default_pod_spec(spec: Obj) -> None:
    """Set the defaults that pods and templates share."""
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
    """Set the defaults of a pod: those of a template, and requests equal to limits."""
    spec = obj.setdefault("spec", {})
    default_pod_spec(spec)
    for container in containers_of(spec):
        resources = container["resources"]
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    spec.setdefault("enableServiceLinks", True)


def default_template(template: Obj) -> None:
    """Set the defaults of a template (its `metadata` and `spec`) inside another object."""
    meta = template.setdefault("metadata", {})
    if isinstance(meta, dict):
        meta.pop("uid", None)
    default_pod_spec(template.setdefault("spec", {}))


def default_tolerations(spec: Obj) -> None:
    """Add the two default tolerations, with which a pod stays on a lost node for a while.

    A toleration is not added if the pod has its own for that taint.
    """
    had = spec.get("tolerations") or []
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in ("", "NoExecute")
            for toleration in had
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
