"""Find the controller that runs the workflows of a cluster: Argo's where it is alive, else Moorage."""

from __future__ import annotations

from datetime import datetime

from moorage.cluster.argo import running_controller
from moorage_kube.api import Api
from moorage_kube.errors import ApiError
from moorage_kube.resources import DEPLOYMENTS, LEASES, Obj, Resource
from moorage_workflows.decide.workflows.controllers import Controller, is_live_deployment

ARGO_NAMESPACE = "argo"  # of Argo's own manifests; looked at where a caller may not list all namespaces


async def controller_of(api: Api, now: datetime) -> Controller:
    """Return the controller that runs workflows here, by Argo's Lease, else by its Deployment.

    A caller who may read only one namespace learns whether Argo's controller is there, but not whether it is
    elsewhere. Without a controller in a readable namespace, the result is then UNKNOWN.
    """
    for namespace in (None, ARGO_NAMESPACE):
        leases = await _readable(api, LEASES, namespace)
        deployments = None if leases is not None else await _readable(api, DEPLOYMENTS, namespace)
        if leases is not None and running_controller(leases, now) is not None:
            return Controller.ARGO
        if deployments is not None and any(is_live_deployment(each) for each in deployments):
            return Controller.ARGO
        if namespace is None and (leases is not None or deployments is not None):
            return Controller.MOORAGE
    return Controller.UNKNOWN


async def _readable(api: Api, resource: Resource, namespace: str | None) -> list[Obj] | None:
    try:
        return (await api.list(resource, namespace)).items
    except ApiError:
        return None
