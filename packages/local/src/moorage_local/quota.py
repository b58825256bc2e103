"""Compute the usage of a namespace's quotas by objects. Pure; used by admission, which charges, and by the
controller, which counts again.

https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple

from moorage_kube.clock import parse_rfc3339
from moorage_kube.moments import span_of
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj, Resource
from moorage_local.podspecs import containers_of, is_sidecar

SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
ALIASED = frozenset({"configmaps", "secrets", "resourcequotas", "replicationcontrollers"})
"""Kinds that may be counted by their bare name, too."""
IN_CLASS = ".storageclass.storage.k8s.io/"
POD_AMOUNTS = ("cpu", "memory", "ephemeral-storage")
MUST_BE_SAID = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})
"""Names that, when a quota limits them, every container must set."""


class Quantity(NamedTuple):
    """A number and the family of its suffixes, binary or decimal."""

    value: Fraction
    binary: bool = False

    def __str__(self) -> str:
        if self.binary and abs(self.value) >= 1024:
            count, power = -((-self.value).__floor__()), -1
            while count % 1024 == 0 and power < len(SUFFIXES) - 1:
                count, power = count // 1024, power + 1
            return f"{count}{SUFFIXES[power] if power >= 0 else ''}"
        count, exponent = -((-self.value * 10**9).__floor__()), -9
        if not count:
            return "0"
        while count % 1000 == 0 and exponent < 18:
            count, exponent = count // 1000, exponent + 3
        return f"{count}{DECIMAL[exponent]}"

    def plus(self, other: Quantity) -> Quantity:
        """Return the sum, with the suffixes of `self`, or of `other` if `self` is zero."""
        return Quantity(self.value + other.value, self.binary if self.value else other.binary)


ZERO = Quantity(Fraction(0))
ONE = Quantity(Fraction(1))
Amounts = dict[str, Quantity]


def read_amounts(written: Mapping[str, Any] | None) -> Amounts:
    return {
        name: Quantity(parse_quantity(text), str(text).endswith("i")) for name, text in (written or {}).items()
    }


def write_amounts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def added(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> Amounts:
    out = dict(first)
    for name, amount in second.items():
        out[name] = out[name].plus(amount) if name in out else amount
    return out


def shown(amounts: Mapping[str, Any]) -> str:
    """Format amounts like the refusals of quotas: "a=1,b=2"."""
    return ",".join(f"{name}={amounts[name]}" for name in sorted(amounts))


# --- pods


def pod_amounts(spec: Mapping[str, Any], side: str) -> Amounts:
    """The requests or limits (`side`) of a pod: the larger of the sum of its containers and sidecars, and the
    need of each init container, plus overhead; pod-level values for cpu, memory and huge pages count
    instead. Overhead adds to limits only where there is one.
    """
    total: Amounts = {}
    for container in spec.get("containers") or ():
        total = added(total, _amounts_of(container, side))
    sidecars: Amounts = {}
    highest: Amounts = {}
    for container in spec.get("initContainers") or ():
        need = _amounts_of(container, side)
        if is_sidecar(container):
            total, sidecars = added(total, need), added(sidecars, need)
            need = sidecars
        else:
            need = added(need, sidecars)
        highest = larger(highest, need)
    total = larger(total, highest)
    own = _amounts_of(spec, side)
    total |= {
        name: amount for name, amount in own.items() if name in ("cpu", "memory") or name.startswith("hugepages-")
    }
    for name, amount in read_amounts(spec.get("overhead")).items():
        if side == "requests" or total.get(name, ZERO).value:
            total[name] = total.get(name, ZERO).plus(amount)
    return total


def larger(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> Amounts:
    out = dict(first)
    for name, amount in second.items():
        if name not in out or amount.value > out[name].value:
            out[name] = amount
    return out


def _amounts_of(holder: Mapping[str, Any], side: str) -> Amounts:
    return read_amounts((holder.get("resources") or {}).get(side))


def is_extended(name: str) -> bool:
    """Whether the resource is an extended one, such as a device: its domain is not Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def compute_usage(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> Amounts:
    """Return the usage of one pod with these requests and limits, by the names of quotas."""
    out: Amounts = {"pods": ONE}
    for name in POD_AMOUNTS:
        if name in requests:
            out[name] = out[f"requests.{name}"] = requests[name]
        if name in limits:
            out[f"limits.{name}"] = limits[name]
    for name, request in requests.items():
        if name.startswith("hugepages-"):
            out[name] = out[f"requests.{name}"] = request
        elif is_extended(name):
            out[f"requests.{name}"] = request
    return out


def is_charged(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether the resources of a pod count: it has not ended, and its grace period has not expired."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    meta = pod["metadata"]
    grace = meta.get("deletionGracePeriodSeconds")
    if not meta.get("deletionTimestamp") or grace is None:
        return True
    return now <= parse_rfc3339(meta["deletionTimestamp"]) + span_of(grace)


def unsaid(pod: Mapping[str, Any], wanted: Iterable[str]) -> str:
    """The limited resources that containers leave out: "limits.cpu for: a,b; …", or an empty text."""
    spec = pod.get("spec") or {}
    needed = MUST_BE_SAID & set(wanted)
    needed -= set(compute_usage(_amounts_of(spec, "requests"), _amounts_of(spec, "limits")))
    missing: dict[str, set[str]] = {}
    for container in containers_of(spec):
        usage = compute_usage(_amounts_of(container, "requests"), _amounts_of(container, "limits"))
        for name in needed - set(usage):
            missing.setdefault(name, set()).add(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


# --- which quota applies to an object


def tracked(resource: Resource, hard: Iterable[str]) -> list[str]:
    """Return the names in `hard` for which objects of this collection count."""
    where = (resource.group, resource.plural)
    counted = {f"count/{resource}"}
    if not resource.group and resource.plural in ALIASED:
        counted.add(resource.plural)
    out = []
    for name in hard:
        match where:
            case ("", "pods"):
                mine = (
                    name in ("pods", *POD_AMOUNTS)
                    or name in {f"{side}.{amount}" for side in ("requests", "limits") for amount in POD_AMOUNTS}
                    or name.startswith(("hugepages-", "requests.hugepages-"))
                    or (name.startswith("requests.") and is_extended(name.removeprefix("requests.")))
                )
            case ("", "persistentvolumeclaims"):
                mine = name in ("persistentvolumeclaims", "requests.storage") or IN_CLASS in name
            case ("", "services"):
                mine = name in ("services", "services.nodeports", "services.loadbalancers")
            case _:
                mine = False
        if mine or name in counted:
            out.append(name)
    return out


def scopes_match(quota: Mapping[str, Any], resource: Resource, obj: Mapping[str, Any]) -> bool:
    """Whether all scopes of the quota match the object. Scopes only match pods."""
    spec = quota.get("spec") or {}
    wanted = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    wanted += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if wanted and (resource.group, resource.plural) != ("", "pods"):
        return False
    return all(_in_scope(scope, obj.get("spec") or {}) for scope in wanted)


def _in_scope(scope: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    match scope["scopeName"]:
        case "Terminating":
            return _ends_by_itself(spec)
        case "NotTerminating":
            return not _ends_by_itself(spec)
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "CrossNamespacePodAffinity":
            return _looks_abroad(spec)
        case "PriorityClass":
            name = spec.get("priorityClassName") or ""
            match scope.get("operator"):
                case "Exists":
                    return bool(name)
                case "DoesNotExist":
                    return not name
                case "In":
                    return name in (scope.get("values") or ())
                case "NotIn":
                    return name not in (scope.get("values") or ())
    return False


def _ends_by_itself(spec: Mapping[str, Any]) -> bool:
    deadline = spec.get("activeDeadlineSeconds")
    return deadline is not None and deadline >= 0


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    holders = [*containers_of(spec), spec]
    return not any(
        amount.value
        for holder in holders
        for side in ("requests", "limits")
        for name, amount in _amounts_of(holder, side).items()
        if name in ("cpu", "memory")
    )


def _looks_abroad(spec: Mapping[str, Any]) -> bool:
    affinity = spec.get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(side) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        weighted = rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        terms += [preference.get("podAffinityTerm") or {} for preference in weighted]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


# --- usage


def usage(resource: Resource, obj: Mapping[str, Any], now: datetime) -> Amounts:
    """The usage of one object, by all names under which a quota may limit it."""
    out: Amounts = {f"count/{resource}": ONE}
    spec = obj.get("spec") or {}
    match (resource.group, resource.plural):
        case ("", "pods"):
            if is_charged(obj, now):
                out |= compute_usage(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))
        case ("", "persistentvolumeclaims"):
            size = _amounts_of(spec, "requests").get("storage")
            names = [""]
            notes = obj["metadata"].get("annotations") or {}
            if chosen := notes.get("volume.beta.kubernetes.io/storage-class") or spec.get("storageClassName"):
                names.append(f"{chosen}{IN_CLASS}")
            for name in names:
                out[f"{name}persistentvolumeclaims"] = ONE
                if size is not None:
                    out[f"{name}requests.storage"] = size
        case ("", "services"):
            ports = spec.get("ports") or ()
            out["services"] = ONE
            if spec.get("type") == "NodePort":
                out["services.nodeports"] = Quantity(Fraction(len(ports)))
            elif spec.get("type") == "LoadBalancer":
                allocated = spec.get("allocateLoadBalancerNodePorts") is not False
                count = sum(1 for port in ports if allocated or port.get("nodePort"))
                out["services.nodeports"] = Quantity(Fraction(count))
                out["services.loadbalancers"] = ONE
        case ("", plural) if plural in ALIASED:
            out[plural] = ONE
    return out


def total_usage(
    quota: Mapping[str, Any],
    objects: Mapping[Resource, Sequence[Obj]],
    now: datetime,
) -> Amounts:
    """The usage of a quota, by each name that it limits and that a collection of `objects` uses."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    out: Amounts = {}
    for resource, there in objects.items():
        names = tracked(resource, hard)
        out |= {name: ZERO for name in names if name not in out}
        if not names:
            continue
        for obj in there:
            if scopes_match(quota, resource, obj):
                taken = usage(resource, obj, now)
                out = added(out, {name: taken[name] for name in names if name in taken})
    return out
