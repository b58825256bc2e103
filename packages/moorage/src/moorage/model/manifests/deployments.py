"""The objects of a service: account, Deployment, Service, disruption budget and claim."""

from __future__ import annotations

from moorage.model.manifests.parts import Service, container_security, make_object, pod_security, spread
from moorage.model.manifests.rights import make_rights
from moorage.model.manifests.services import SERVER, USAGE_CLAIM
from moorage_kube.resources import DEPLOYMENTS, PDBS, PVCS, SERVICEACCOUNTS, SERVICES, Obj

IMAGE = "moorage"  # set at deployment: `kustomize edit set image moorage=registry/moorage:tag`
GRACE_SECONDS = 60  # MOORAGE_DRAIN_SECONDS (8), 15 for requests that are under way, and the rest to close
HUNG_SECONDS = 10  # for a service that hangs to report where: it ends no requests any more
SCRATCH_SIZE = "1Gi"  # with a PostgreSQL, the server's folder has no lasting data
USAGE_SIZE = "5Gi"  # stored logs, at most 2Gi; intervals of GPU use, some 200 bytes each; the queue of maps


def make_service(service: Service, *, version: str) -> list[Obj]:
    """All objects of one service: account, rights, Deployment, and the objects that its pods need."""
    name = service.full_name
    objects = [
        make_object(SERVICEACCOUNTS, name, labels=service.labels, automountServiceAccountToken=False),
        *make_rights(service),
        make_deployment(service, version=version),
    ]
    if service.port is not None:
        port = {"name": "https" if service.https else "http", "port": service.service_port, "targetPort": "main"}
        spec = {"selector": {"app.kubernetes.io/name": name}, "ports": [port]}
        objects.append(make_object(SERVICES, name, labels=service.labels, spec=spec))
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": name}}}
    objects.append(make_object(PDBS, name, labels=service.labels, spec=budget))
    if service is SERVER:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": USAGE_SIZE}}}
        objects.append(make_object(PVCS, USAGE_CLAIM, labels=service.labels, spec=claim))
    return objects


def share_server(deployment: Obj) -> None:
    """Change the server's Deployment, in place, to two replicas without a claim, for data in PostgreSQL."""
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    spec["replicas"] = 2
    spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    pod["topologySpreadConstraints"] = [spread(spec["selector"]["matchLabels"])]
    scratch = {"name": "data", "emptyDir": {"sizeLimit": SCRATCH_SIZE}}
    pod["volumes"] = [scratch if volume["name"] == "data" else volume for volume in pod["volumes"]]


def make_deployment(service: Service, *, version: str) -> Obj:
    """The Deployment of one service: not root, read-only, no privileges, with a memory limit.

    It has no CPU limit: a throttled service answers late, and admission waits for it.
    """
    selector = {"app.kubernetes.io/name": service.full_name}
    requests = {"cpu": service.cpu_request, "memory": service.memory_request}
    # only fields that the service needs, so that a diff of the manifests stays small
    container: Obj = {
        "name": service.name,
        "image": f"{IMAGE}:{version}",
        "args": [service.name, *service.args],
        "resources": {"requests": requests, "limits": {"memory": service.memory}},
        "securityContext": container_security(),
    }
    if service.env:
        container["env"] = list(service.env)
    if service.port is not None:
        container["ports"] = [{"name": "main", "containerPort": service.port}]
        container |= _probes(service)
    if service.mounts:
        container["volumeMounts"] = list(service.mounts)
    # replicas are spread over nodes; a volume is used by one pod at a time
    pod: Obj = {
        "serviceAccountName": service.full_name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [container],
    }
    if service.port is not None:
        pod["terminationGracePeriodSeconds"] = GRACE_SECONDS
    if service.replicas > 1:
        pod["topologySpreadConstraints"] = [spread(selector)]
    if service.volumes:
        pod["volumes"] = list(service.volumes)
    spec: Obj = {
        "replicas": service.replicas,
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": service.labels}, "spec": pod},
    }
    if service.recreate:
        spec["strategy"] = {"type": "Recreate"}
    return make_object(DEPLOYMENTS, service.full_name, labels=service.labels, spec=spec)


def _probes(service: Service) -> Obj:
    def asks(path: str) -> Obj:
        return {"path": path, "port": "main"} | ({"scheme": "HTTPS"} if service.https else {})

    return {
        "startupProbe": {"httpGet": asks("/healthz"), "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {"httpGet": asks("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3},
        "livenessProbe": {
            "httpGet": asks("/healthz"), "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 3,
            "terminationGracePeriodSeconds": HUNG_SECONDS,
        },
    }  # fmt: skip
