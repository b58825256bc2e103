"""Apply the values of an installation to the shipped objects."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from moorage.decide.install.values import InstallValues
from moorage.model.manifests import IMAGE, QUEUE_SECRET, USAGE_CLAIM
from moorage.model.manifests.deployments import share_server
from moorage.model.names import INFO_CONFIGMAP
from moorage_kube.resources import Obj


def overlay(objects: Iterable[Obj], values: InstallValues) -> list[Obj]:
    """A copy of the objects with these values applied. Default values change nothing."""
    changed = []
    for obj in objects:
        if values.database_secret and (obj["kind"], obj["metadata"]["name"]) == (
            "PersistentVolumeClaim",
            USAGE_CLAIM,
        ):
            continue  # all is in the database
        match obj["kind"]:
            case "Deployment":
                obj = _deployment(copy.deepcopy(obj), values)
            case "ConfigMap" if obj["metadata"]["name"] == INFO_CONFIGMAP:
                obj = obj | {"data": {**obj["data"], **values.info()}}
            case "PersistentVolumeClaim" if values.storage_class:
                obj = obj | {"spec": {**obj["spec"], "storageClassName": values.storage_class}}
        changed.append(obj)
    return changed


def _deployment(obj: Obj, values: InstallValues) -> Obj:
    """Apply the values to a Deployment in place. Third-party images, such as kube-scheduler, do not change."""
    spec = obj["spec"]
    pod = spec["template"]["spec"]
    service = str(obj["metadata"]["name"]).removeprefix("moorage-")
    if values.database_secret and service == "server":
        share_server(obj)
    if service in values.replicas:
        spec["replicas"] = values.replicas[service]
    for container in pod["containers"]:
        if values.image and str(container["image"]).partition(":")[0] == IMAGE:
            container["image"] = values.image
        for kind, amounts in values.resources.get(service, {}).items():
            kept = (container.get("resources") or {}).get(kind) or {}
            container.setdefault("resources", {})[kind] = kept | amounts
        for entry in container.get("env") or ():
            source = (entry.get("valueFrom") or {}).get("secretKeyRef") or {}
            if values.database_secret and source.get("name") == QUEUE_SECRET:
                # asked for by name: the pod waits for the Secret, and does not start on a file in its place
                entry["valueFrom"]["secretKeyRef"] = {"name": values.database_secret, "key": source["key"]}
    if values.node_selector:
        pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **values.node_selector}
    if values.tolerations:
        pod["tolerations"] = [*(pod.get("tolerations") or ()), *copy.deepcopy(list(values.tolerations))]
    if values.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in values.image_pull_secrets]
    return obj
