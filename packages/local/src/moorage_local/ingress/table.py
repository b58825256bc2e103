"""Find the backend of a request. Pure.

https://kubernetes.io/docs/concepts/services-networking/ingress/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.resources import Obj

CONTROLLER = "localcluster.moorage.dev/ingress"  # of IngressClasses
CLASS_NAME = "moorage-local"
CLASS_ANNOTATION = "kubernetes.io/ingress.class"  # of Ingresses older than spec.ingressClassName
DEFAULT_ANNOTATION = "ingressclass.kubernetes.io/is-default-class"
SERVICE_NAME = "kubernetes.io/service-name"

INGRESS_CLASS: Obj = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "IngressClass",
    "metadata": {"name": CLASS_NAME, "annotations": {DEFAULT_ANNOTATION: "true"}},
    "spec": {"controller": CONTROLLER},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The objects from which routes are computed. `slices`: "namespace/service" → its EndpointSlices."""

    ingresses: Sequence[Obj]
    classes: Sequence[Obj]
    services: Mapping[str, Obj]
    slices: Mapping[str, Sequence[Obj]]


def is_ours(ingress: Mapping[str, Any], classes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether this proxy serves the class of the Ingress."""
    spec = ingress.get("spec") or {}
    named = spec.get("ingressClassName") or annotations_of(ingress).get(CLASS_ANNOTATION)
    ours = {
        ingress_class["metadata"]["name"]
        for ingress_class in classes
        if (ingress_class.get("spec") or {}).get("controller") == CONTROLLER
    }
    return named in ours


def services_of(ingress: Mapping[str, Any]) -> set[str]:
    """Return the names of all Services that an Ingress refers to."""
    spec = ingress.get("spec") or {}
    backends = [spec.get("defaultBackend")]
    backends += [path.get("backend") for rule in spec.get("rules") or () for path in _paths(rule)]
    return {name for backend in backends if (name := ((backend or {}).get("service") or {}).get("name"))}


def make_table(seen: Observed) -> Obj:
    """The table as it is written for the proxy: host → paths; `*.` before a host stands for one label.

    A host belongs to one namespace: that of the first Ingress that named it, or a wildcard that covers it. First
    is by creation time, then by namespace and name. Rules and default backends of other namespaces for it are left
    out, for all paths: the owner of a path of a host gets the cookies of the whole host. Rules without a host are
    shared. Of two that claim the same host and path, the older Ingress has it.
    """
    hosts: dict[str, list[Obj]] = {}
    owners: dict[str, str] = {}
    taken: set[tuple[str, str, bool]] = set()
    defaults: dict[str, Obj] = {}  # by namespace, the oldest first
    ours = [ingress for ingress in seen.ingresses if not is_deleting(ingress) and is_ours(ingress, seen.classes)]
    for ingress in sorted(ours, key=_age):
        spec, namespace = ingress.get("spec") or {}, str(ingress["metadata"].get("namespace") or "")
        if spec.get("defaultBackend") and namespace not in defaults:
            defaults[namespace] = _backend(seen, ingress, spec["defaultBackend"])
        for rule in spec.get("rules") or ():
            host = _clean(rule.get("host"))
            if host and owners.setdefault(host, _holder(host, owners) or namespace) != namespace:
                continue
            hosts.setdefault(host, [])
            for path in _paths(rule):
                exact = path.get("pathType") == "Exact"
                text = str(path.get("path") or "/")
                if not exact:
                    text = text.rstrip("/") or "/"
                if (host, text, exact) in taken:
                    continue
                taken.add((host, text, exact))
                backend = _backend(seen, ingress, path.get("backend") or {})
                hosts[host].append({"path": text, "exact": exact, "backend": backend})
    for host, paths in hosts.items():
        default = defaults.get(owners.get(host, ""))
        if default is not None and (host, "/", False) not in taken:
            paths.append({"path": "/", "exact": False, "backend": default})
        paths.sort(key=lambda path: (-len(path["path"]), not path["exact"]))
    return {"hosts": hosts, "default": next(iter(defaults.values()), None)}


def _holder(host: str, owners: Mapping[str, str]) -> str | None:
    """Return the namespace that already uses a wildcard host over this host; None if there is none."""
    _, _, parent = host.partition(".")
    return owners.get(f"*.{parent}")


def _clean(host: Any) -> str:
    return str(host or "").lower().rstrip(".")


def _paths(rule: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (rule.get("http") or {}).get("paths") or ()


def _age(ingress: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = ingress["metadata"]
    return (meta.get("creationTimestamp") or "", meta.get("namespace") or "", meta["name"])


def _backend(seen: Observed, ingress: Mapping[str, Any], backend: Mapping[str, Any]) -> Obj:
    """Return the `addresses` of a backend, and the problem if there are none."""
    namespace = ingress["metadata"].get("namespace") or ""
    whose = f"Ingress {namespace}/{ingress['metadata']['name']}"
    named = backend.get("service") or {}
    if not named.get("name"):
        return {"addresses": [], "problem": f"{whose} names a backend that is not a Service"}
    key = f"{namespace}/{named['name']}"
    service = seen.services.get(key)
    if service is None:
        return {"addresses": [], "problem": f"Service {key}, which {whose} names, does not exist"}
    wanted = named.get("port") or {}
    for port in (service.get("spec") or {}).get("ports") or ():
        if (wanted.get("name") and port.get("name") == wanted["name"]) or (
            wanted.get("number") and port.get("port") == wanted["number"]
        ):
            break
    else:
        shown = wanted.get("name") or wanted.get("number")
        return {"addresses": [], "problem": f"Service {key} has no port {shown}, which {whose} names"}
    addresses = []
    for endpoint_slice in seen.slices.get(key, ()):
        number = next(
            (
                offered.get("port")
                for offered in endpoint_slice.get("ports") or ()
                if (offered.get("name") or "") == (port.get("name") or "")
                and (offered.get("protocol") or "TCP") == (port.get("protocol") or "TCP")
            ),
            None,
        )
        if number is None:
            continue
        for endpoint in endpoint_slice.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                addresses += [[address, number] for address in endpoint.get("addresses") or ()]
    problem = "" if addresses else f"no pod behind Service {key} is ready"
    return {"addresses": sorted(addresses), "problem": problem}


def slices_by_service(slices: Iterable[Obj]) -> dict[str, list[Obj]]:
    out: dict[str, list[Obj]] = {}
    for endpoint_slice in slices:
        name = labels_of(endpoint_slice).get(SERVICE_NAME)
        if name:
            namespace = endpoint_slice["metadata"].get("namespace") or ""
            out.setdefault(f"{namespace}/{name}", []).append(endpoint_slice)
    return out


@dataclass(slots=True)
class Backend:
    """The addresses for one path, used in turn."""

    addresses: list[tuple[str, int]]
    problem: str
    _next: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def in_turn(self) -> list[tuple[str, int]]:
        """Return all addresses; each call starts with the next one."""
        if len(self.addresses) < 2:
            return self.addresses
        start = next(self._next) % len(self.addresses)
        return self.addresses[start:] + self.addresses[:start]


class Router:
    """Finds the backend of a request in a table of routes."""

    def __init__(self, table: Mapping[str, Any] | None = None) -> None:
        table = table or {}
        self._hosts = {
            host: [(path["path"], path["exact"], _parsed(path["backend"])) for path in paths]
            for host, paths in (table.get("hosts") or {}).items()
        }
        self._default = _parsed(table["default"]) if table.get("default") else None

    def find(self, host: str, path: str) -> Backend | None:
        """Return the backend of a request for `host` (without port) and `path` (without query), or None.

        An exact host comes before a wildcard, and that before rules without a host. Then the longest path
        wins, an exact one before a prefix of the same length. A prefix ends at a slash. A request for a host
        that a rule names never uses the rules without a host, for any path.
        """
        host = _clean(host)
        _, _, parent = host.partition(".")
        for name in (host, f"*.{parent}", ""):
            paths = self._hosts.get(name)
            if paths is None:
                continue
            for wanted, exact, backend in paths:
                if path == wanted or (not exact and path.startswith(wanted.rstrip("/") + "/")):
                    return backend
            if name:
                return None
        return self._default


def _parsed(backend: Mapping[str, Any]) -> Backend:
    return Backend([(address, int(port)) for address, port in backend["addresses"]], str(backend["problem"]))
