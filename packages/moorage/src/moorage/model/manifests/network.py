"""Network access to our pods, and the address of a server that runs next to a local cluster."""

from __future__ import annotations

from moorage.model.manifests.parts import NETWORKPOLICIES, PART_OF, make_object
from moorage.model.manifests.services import ALL, SERVER, SERVER_SERVICE
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.resources import ENDPOINTSLICES, SERVICES, Obj


def make_network_policies() -> list[Obj]:
    """Allow connections to our pods from all sources to the served ports, and to no other port.

    The ports are open to every source because selectors cannot name the callers: the API server and kube-scheduler
    run in the hosts' network, users come through an ingress, workers from tenants' namespaces.
    The extender and the server identify callers by tokens; the webhook answers all callers, and records only
    requests that come with the API server's token.
    """
    closed: Obj = {"podSelector": {}, "policyTypes": ["Ingress"]}
    policies = [
        make_object(NETWORKPOLICIES, "moorage-closed", namespace, spec=closed)
        for namespace in (SYSTEM_NAMESPACE, PEOPLE_NAMESPACE)
    ]
    for service in ALL:
        if service.port is not None:
            selector = {"matchLabels": {"app.kubernetes.io/name": service.full_name}}
            opened = [{"ports": [{"protocol": "TCP", "port": service.port}]}]
            spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": opened}
            policies.append(make_object(NETWORKPOLICIES, service.full_name, labels=service.labels, spec=spec))
    return policies


def make_server_address(port: int) -> list[Obj]:
    """The server's Service and its address, for a server that is a process next to a local cluster."""
    name, labels = SERVER_SERVICE, PART_OF | {"kubernetes.io/service-name": SERVER_SERVICE}
    spec = {"ports": [{"name": "http", "port": SERVER.service_port, "targetPort": port, "protocol": "TCP"}]}
    endpoints = [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]
    return [
        make_object(SERVICES, name, spec=spec),
        make_object(
            ENDPOINTSLICES,
            name,
            labels=labels,
            addressType="IPv4",
            ports=[{"name": "http", "port": port, "protocol": "TCP"}],
            endpoints=endpoints,
        ),
    ]
