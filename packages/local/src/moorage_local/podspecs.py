"""Pure helpers that read pods, for the API server, the controllers, the scheduler and the node agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj


def containers_of(spec: Mapping[str, Any]) -> Iterator[Obj]:
    """Yield the init containers, then the containers."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def container_statuses_of(status: Mapping[str, Any] | None) -> Iterator[Obj]:
    """Yield the container statuses of a pod: init containers first, then containers."""
    if status is not None:
        yield from status.get("initContainerStatuses") or ()
        yield from status.get("containerStatuses") or ()


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether an init container continues to run with the containers.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
    """
    return container.get("restartPolicy") == "Always"


def sidecar_names(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the sidecars among the init containers."""
    return frozenset(container["name"] for container in spec.get("initContainers") or () if is_sidecar(container))


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the QoS class: Guaranteed, Burstable or BestEffort.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
    """
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    guaranteed = True
    sets = [container.get("resources") or {} for container in containers_of(spec)]
    whole = spec.get("resources")
    if whole and (whole.get("requests") or whole.get("limits")):
        sets = [whole]
    for resources in sets:
        for kind, total in (("requests", requests), ("limits", limits)):
            for name, text in (resources.get(kind) or {}).items():
                value = parse_quantity(text)
                if name in ("cpu", "memory") and value > 0:
                    total[name] = total.get(name, Fraction(0)) + value
        positive = {
            name
            for name, text in (resources.get("limits") or {}).items()
            if name in ("cpu", "memory") and parse_quantity(text) > 0
        }
        if positive != {"cpu", "memory"}:
            guaranteed = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"
