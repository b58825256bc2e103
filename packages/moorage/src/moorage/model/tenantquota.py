"""The quota of a tenant: the names and amounts that a ResourceQuota can enforce, and their short forms."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from moorage.model.names import NAME_COMPARED
from moorage_kube.errors import Problems, QuantityError
from moorage_kube.quantity import parse_quantity, problem_of_bytes
from moorage_kube.scheduling import is_extended

NAMES = (
    *("cpu", "memory", "ephemeral-storage", "pods"),
    *(f"{side}.{name}" for side in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
    *("requests.storage", "persistentvolumeclaims", "services", "services.loadbalancers", "services.nodeports"),
    *("configmaps", "secrets", "resourcequotas", "replicationcontrollers"),
)
"""The names without a domain: https://kubernetes.io/docs/concepts/policy/resource-quotas/"""
SHORT = {"gpu": "requests.nvidia.com/gpu", "gpus": "requests.nvidia.com/gpu", "storage": "requests.storage"}
HUGE_PAGES = ("hugepages-", "requests.hugepages-")
OF_CLASS = (".storageclass.storage.k8s.io/requests.storage", ".storageclass.storage.k8s.io/persistentvolumeclaims")
DEVICES = ".deviceclass.resource.k8s.io/devices"


def read_quota(amounts: Mapping[str, object]) -> dict[str, str]:
    """A quota with full names: `gpu` is requests.nvidia.com/gpu, and amd.com/gpu is requests.amd.com/gpu.

    Raises Problems for a name that limits nothing, two names of one resource, and an invalid amount.
    """
    quota: dict[str, str] = {}
    problems: list[tuple[str, str | None]] = []
    for given, amount in amounts.items():
        name, text = _full_name(given), str(amount)
        if name is None:
            problems.append((f"invalid quota {given}={text}: {given!r} is not a resource of quotas", _hint(given)))
            continue
        if name in quota:
            problems.append((f"invalid quota {given}={text}: {name} has a quota of {quota[name]} already", None))
        if problem := _problem_of_amount(name, text):
            problems.append((f"invalid quota {given}={text}: {problem}", None))
        quota[name] = text
    if problems:
        raise Problems(problems, field="quota")
    return quota


def _problem_of_amount(name: str, text: str) -> str:
    try:
        value = parse_quantity(text)
    except QuantityError:
        return "use a number, with a unit for bytes, such as 8 or 64Gi"
    if value < 0:
        return "use zero or more"
    if name.endswith("cpu"):
        return ""
    if name.endswith(("memory", "storage")):
        slip = problem_of_bytes(text)
        return "; ".join(slip) if slip else ""
    return "use a whole number" if value.denominator != 1 else ""


def _full_name(given: str) -> str | None:
    """The name that a ResourceQuota enforces; None if there is none."""
    if (short := SHORT.get(given.lower())) is not None:
        return short
    domain, slash, rest = given.partition("/")
    if not slash:
        return given if given in NAMES or given.startswith(HUGE_PAGES) else None
    if not (domain and rest):
        return None
    if domain == "count" or given.endswith((*OF_CLASS, DEVICES)):
        return given
    bare = given.removeprefix("requests.")
    return f"requests.{bare}" if is_extended(bare) and not bare.startswith("limits.") else None


def _hint(given: str) -> str:
    if given.lower().removeprefix("requests.").removeprefix("limits.") in SHORT:
        return "did you mean gpu?"
    near = get_close_matches(given.lower()[:NAME_COMPARED], [*SHORT, *NAMES], n=1)
    known = "use gpu, cpu, memory, pods, requests.storage, count/jobs.batch or a device such as amd.com/gpu"
    return f"did you mean {near[0]}? Or {known}" if near else known
