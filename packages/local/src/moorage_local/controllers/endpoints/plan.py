"""Decide the EndpointSlices and the Endpoints of a Service. Pure.

As kube-controller-manager's endpointslice and endpoints controllers:
https://github.com/kubernetes/endpointslice/blob/master/utils.go
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.meta import is_deleting, labels_of, owner_reference
from moorage_kube.resources import Obj
from moorage_local.controllers.pods import is_finished, is_ready, suffix
from moorage_local.podspecs import is_sidecar

ENDPOINTS_MAX = 100  # of one slice: kube-controller-manager's --max-endpoints-per-slice
ADDRESSES_MAX = 1000  # of one Endpoints object; it is cut there and says so
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGER = "endpoint-controller"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
ZONE = "topology.kubernetes.io/zone"

Ports = tuple[tuple[tuple[str, Any], ...], ...]  # hashable form of a slice's ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A Service with a selector, the pods that it selects, their nodes, and the existing slices.

    `nodes`: name → zone ("" for no zone). A pod whose node does not exist is left out.
    """

    service: Obj
    pods: Sequence[Obj]
    nodes: Mapping[str, str]
    slices: Sequence[Obj] = ()


@dataclass(frozen=True, slots=True)
class SlicePlan:
    create: tuple[Obj, ...] = ()
    update: tuple[Obj, ...] = ()
    delete: tuple[Obj, ...] = ()


@dataclass(slots=True)
class _Group:
    """All endpoints with the same ports, by the uids of their pods."""

    ports: list[Obj]
    endpoints: dict[str, Obj] = field(default_factory=dict)


def is_managed(service: Mapping[str, Any]) -> bool:
    """Whether pods are the endpoints of this Service. The owners of other Services write their own endpoints."""
    spec = service.get("spec") or {}
    return bool(spec.get("selector")) and spec.get("type") != "ExternalName"


def plan_slices(seen: Seen, *, most: int = ENDPOINTS_MAX) -> SlicePlan:
    """Changes that make the slices right; none when they are. Endpoints stay in the slice where they are.

    `most`: the number of endpoints of one slice.
    """
    # keep endpoints in the slices where they are
    groups = _groups(seen)
    labels = _slice_labels(seen.service)
    deleted: list[Obj] = []
    contents: list[tuple[Obj, list[Obj]]] = []  # slices to stay, with their endpoints
    room: dict[Ports, list[tuple[Obj, list[Obj]]]] = {}
    for endpoint_slice in sorted(seen.slices, key=lambda endpoint_slice: str(endpoint_slice["metadata"]["name"])):
        key = _frozen(endpoint_slice.get("ports") or ())
        group = groups.get(key)
        if group is None or endpoint_slice.get("addressType") != "IPv4" or is_deleting(endpoint_slice):
            if not is_deleting(endpoint_slice):
                deleted.append(endpoint_slice)
            continue
        kept: list[Obj] = []
        for endpoint in endpoint_slice.get("endpoints") or ():
            new = group.endpoints.pop((endpoint.get("targetRef") or {}).get("uid") or "", None)
            if new is not None and len(kept) < most:
                kept.append(new)
        contents.append((endpoint_slice, kept))
        room.setdefault(key, []).append((endpoint_slice, kept))
    # fill the room that is left, then new slices
    created: list[Obj] = []
    for key, group in groups.items():
        left = list(group.endpoints.values())
        for _, kept in room.get(key, ()):
            while left and len(kept) < most:
                kept.append(left.pop(0))
        while left:
            part, left = left[:most], left[most:]
            created.append(_slice(seen, group.ports, part, labels))
    # drop empty slices and write changed ones
    updated: list[Obj] = []
    used = sum(1 for _, kept in contents if kept) + len(created)
    spare = used == 0  # a Service without endpoints keeps one slice that says so
    for content, kept in contents:
        if not kept and not spare:
            deleted.append(content)
            continue
        if not kept:
            spare = False
        if (content.get("endpoints") or []) != kept or dict(labels_of(content)) != labels:
            meta = {**content["metadata"], "labels": labels}
            updated.append({**content, "metadata": meta, "endpoints": kept})
    if spare:
        created.append(_slice(seen, [], [], labels))
    # make new slices from those that would be deleted
    reused = [endpoint_slice for endpoint_slice in deleted if endpoint_slice.get("addressType") == "IPv4"]
    while created and reused:  # one write instead of two, and no moment with both
        new, old = created.pop(0), reused.pop(0)
        deleted.remove(old)
        meta = {**old["metadata"], "labels": labels}
        updated.append({**old, "metadata": meta, "endpoints": new["endpoints"], "ports": new["ports"]})
    return SlicePlan(tuple(created), tuple(updated), tuple(deleted))


def endpoints_object(seen: Seen) -> Obj:
    """Return the correct Endpoints of the Service."""
    service = seen.service
    publish = bool((service.get("spec") or {}).get("publishNotReadyAddresses"))
    # addresses by the ports that they serve, ready and not ready
    subsets: dict[str, tuple[list[Obj], list[Obj], list[Obj]]] = {}
    total = 0
    cut = False
    for pod in _in_order(seen.pods):
        if is_finished(pod) or not _address(pod) or (is_deleting(pod) and not publish):
            continue
        if not _is_on_known_node(seen, pod, publish=True):
            continue
        if total >= ADDRESSES_MAX:
            cut = True
            break
        total += 1
        address: Obj = {"ip": _address(pod), "targetRef": _target(pod, with_version=False)}
        if pod["spec"].get("nodeName"):
            address["nodeName"] = pod["spec"]["nodeName"]
        if hostname := _hostname(service, pod):
            address["hostname"] = hostname
        ready = publish or is_ready(pod)
        for ports in _endpoints_ports(service, pod):
            key = json.dumps(ports, sort_keys=True)
            subset = subsets.setdefault(key, ([], [], ports))
            subset[0 if ready else 1].append(address)
    # the subsets, in an order that does not change
    made: list[Obj] = []
    for _, (addresses, not_ready, ports) in sorted(subsets.items()):
        entry: Obj = {}
        if addresses:
            entry["addresses"] = sorted(addresses, key=lambda address: str(address["ip"]))
        if not_ready:
            entry["notReadyAddresses"] = sorted(not_ready, key=lambda address: str(address["ip"]))
        if ports:
            entry["ports"] = ports
        made.append(entry)
    # the object, with the labels of its Service
    meta = service["metadata"]
    labels = {name: value for name, value in labels_of(service).items() if name != HEADLESS}
    labels[ENDPOINTS_MANAGED_BY] = ENDPOINTS_MANAGER
    if _is_headless(service):
        labels[HEADLESS] = ""
    out: Obj = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "labels": labels},
    }
    if cut:
        out["metadata"]["annotations"] = {OVER_CAPACITY: "truncated"}
    if made:
        out["subsets"] = made
    return out


def _groups(seen: Seen) -> dict[Ports, _Group]:
    publish = bool((seen.service.get("spec") or {}).get("publishNotReadyAddresses"))
    groups: dict[Ports, _Group] = {}
    for pod in _in_order(seen.pods):
        if is_finished(pod) or not _address(pod) or not _is_on_known_node(seen, pod, publish=publish):
            continue
        ports = _ports(seen.service, pod)
        group = groups.setdefault(_frozen(ports), _Group(ports))
        group.endpoints[pod["metadata"]["uid"]] = _endpoint(seen, pod, publish=publish)
    if not groups:
        groups[()] = _Group([])
    return groups


def _is_on_known_node(seen: Seen, pod: Obj, *, publish: bool) -> bool:
    return publish or (pod["spec"].get("nodeName") or "") in seen.nodes


def _endpoint(seen: Seen, pod: Obj, *, publish: bool) -> Obj:
    serving, terminating = is_ready(pod), is_deleting(pod)
    node = pod["spec"].get("nodeName") or ""
    out: Obj = {
        "addresses": [_address(pod)],
        "conditions": {
            "ready": publish or (serving and not terminating),
            "serving": serving,
            "terminating": terminating,
        },
    }
    if hostname := _hostname(seen.service, pod):
        out["hostname"] = hostname
    if node:
        out["nodeName"] = node
    out["targetRef"] = _target(pod, with_version=False)
    if zone := seen.nodes.get(node):
        out["zone"] = zone
    return out


def _target(pod: Obj, *, with_version: bool) -> Obj:
    meta = pod["metadata"]
    out = {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    return out | ({"resourceVersion": meta["resourceVersion"]} if with_version else {})


def _hostname(service: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    spec = pod["spec"]
    own = spec.get("subdomain") == service["metadata"]["name"]
    return str(spec.get("hostname") or "") if own else ""


def _address(pod: Mapping[str, Any]) -> str:
    """Return the pod's IPv4 address; "" if it has none."""
    status = pod.get("status") or {}
    addresses = [ip.get("ip") or "" for ip in status.get("podIPs") or ()] or [status.get("podIP") or ""]
    return next((address for address in addresses if "." in address), "")


def _ports(service: Mapping[str, Any], pod: Mapping[str, Any]) -> list[Obj]:
    """Return the ports of the slice for this pod; a named port that the pod lacks is left out."""
    out = []
    for service_port in (service.get("spec") or {}).get("ports") or ():
        number = find_port(pod, service_port)
        if number is None:
            continue
        port: Obj = {
            "name": service_port.get("name") or "",
            "port": number,
            "protocol": service_port.get("protocol") or "TCP",
        }
        if service_port.get("appProtocol"):
            port["appProtocol"] = service_port["appProtocol"]
        out.append(port)
    return out


def _endpoints_ports(service: Mapping[str, Any], pod: Mapping[str, Any]) -> list[list[Obj]]:
    """The sets of ports for the pod in Endpoints: one, or none when it lacks every named port."""
    ports = _ports(service, pod)
    for port in ports:
        if not port["name"]:
            del port["name"]
    if ports or (_is_headless(service) and not (service.get("spec") or {}).get("ports")):
        return [ports]
    return []


def find_port(pod: Mapping[str, Any], port: Mapping[str, Any]) -> int | None:
    """Return the container port number for a port of a Service; None if the pod has no port with its name."""
    target = port.get("targetPort")
    if target in (None, "", 0):
        target = port["port"]
    if isinstance(target, int):
        return target
    protocol = port.get("protocol") or "TCP"
    spec = pod["spec"]
    sidecars = [container for container in spec.get("initContainers") or () if is_sidecar(container)]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for container_port in container.get("ports") or ():
            if container_port.get("name") == target and (container_port.get("protocol") or "TCP") == protocol:
                return int(container_port["containerPort"])
    return None


def _is_headless(service: Mapping[str, Any]) -> bool:
    return (service.get("spec") or {}).get("clusterIP") in (None, "", "None")


def _slice_labels(service: Mapping[str, Any]) -> dict[str, str]:
    out = dict(labels_of(service)) | {SERVICE_NAME: service["metadata"]["name"], MANAGED_BY: SLICE_MANAGER}
    out.pop(HEADLESS, None)
    if _is_headless(service):
        out[HEADLESS] = ""
    return out


def _slice(seen: Seen, ports: list[Obj], endpoints: list[Obj], labels: dict[str, str]) -> Obj:
    meta = seen.service["metadata"]
    names = sorted(endpoint_slice["metadata"]["name"] for endpoint_slice in seen.slices)
    members = [endpoint["targetRef"]["uid"] for endpoint in endpoints]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{meta['name'][:50].rstrip('-')}-{suffix(meta['uid'], names, members, _frozen(ports))}",
            "generateName": f"{meta['name']}-",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference({"apiVersion": "v1", "kind": "Service"} | dict(seen.service))],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }


def _frozen(ports: Iterable[Mapping[str, Any]]) -> Ports:
    return tuple(sorted(tuple(sorted(port.items())) for port in ports))


def _in_order(pods: Sequence[Obj]) -> list[Obj]:
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
