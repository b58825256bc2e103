"""The amounts that the API server refuses in the resources of a container, in its words.

https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity

NO_LIMIT = "Limit must be set for non overcommitable resources"


def may_overcommit(resource: str) -> bool:
    """Whether the limit of a resource may be above its request: native resources except huge pages."""
    return is_native(resource) and not resource.startswith("hugepages-")


def is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def amount_problems(resource: str, text: Any) -> Iterator[str]:
    """The problems of one amount: GPUs and other devices are whole numbers."""
    try:
        value = parse_quantity(text)
    except QuantityError:
        yield "must be a quantity"
        return
    if value < 0:
        yield "must be greater than or equal to 0"
    if not is_native(resource) and value.denominator != 1:
        yield "must be an integer"


def is_part_of_byte(resource: str, text: Any) -> bool:
    """Whether an amount of memory or storage is not a whole number of bytes. The API server warns of it."""
    if resource not in ("memory", "ephemeral-storage"):
        return False
    try:
        return parse_quantity(text).denominator != 1
    except QuantityError:
        return False


def request_problem(resource: str, request: Any, limit: Any) -> str:
    """The problem of a request with its limit, which is None if it is not set; "" if there is none.

    Devices need a limit, and a request is equal to it. Raises QuantityError.
    """
    overcommit = may_overcommit(resource)
    if limit is None:
        return "" if overcommit else NO_LIMIT
    asked, most = parse_quantity(request), parse_quantity(limit)
    if asked != most and not overcommit:
        return f"must be equal to {resource} limit of {limit}"
    return f"must be less than or equal to {resource} limit of {limit}" if asked > most else ""
