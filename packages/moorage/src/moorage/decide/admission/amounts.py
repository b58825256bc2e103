"""Amounts in the resources of containers: read, compare and set them for rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.errors import QuantityError
from moorage_kube.quantity import amount


def same(resource: str, left: Any, other: Any) -> bool:
    """Whether two quantities are the same amount; an unreadable one equals nothing."""
    if left is None or other is None:
        return False
    try:
        return amount(resource, left) == amount(resource, other)
    except (QuantityError, TypeError):
        return False


def can_set(container: Mapping[str, Any], table: str) -> bool:
    """Whether an amount can be written into `limits` or `requests`: the present value may have a wrong type."""
    resources = container.get("resources") or {}
    return isinstance(resources, dict) and isinstance(resources.get(table) or {}, dict)


def is_quantity(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        amount("memory", value)
    except QuantityError:
        return False
    return True


def is_more(left: Any, other: Any) -> bool:
    return is_quantity(left) and is_quantity(other) and amount("memory", left) > amount("memory", other)
