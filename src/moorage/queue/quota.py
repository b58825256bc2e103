"""How much of the shared volume one namespace may take for its maps.

Nothing that runs is lost to a quota: what is refused is another map, or more items. Results of items that are
there are always kept; each is at most `leasing.RESULT_BYTES`. The defaults fit the 5 GiB volume of `deploy/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moorage.apimachinery.integers import parse_integer
from moorage.apimachinery.quantity import parse_quantity
from moorage.errors import QuantityError, QuotaExceeded, UsageError

MAPS_VARIABLE = "MOORAGE_MAPS_PER_NAMESPACE"
ITEMS_VARIABLE = "MOORAGE_MAP_ITEMS_PER_NAMESPACE"
BYTES_VARIABLE = "MOORAGE_MAP_BYTES_PER_NAMESPACE"
OUTPUT_VARIABLE = "MOORAGE_MAP_OUTPUT_PER_NAMESPACE"
ITEM_BYTES = 200  # of an item's rows and their indexes, beside its value and result
MAX = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one namespace. `bytes`: values, keys and results of all its maps, and ITEM_BYTES an item; `output_bytes`:
    of what its items have printed, beyond which the oldest goes. Zero: no limit."""

    maps: int = 500
    items: int = 5_000_000
    bytes: int = 2 << 30
    output_bytes: int = 512 << 20


NONE = Quota(maps=0, items=0, bytes=0, output_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the maps of a namespace take."""

    maps: int
    items: int
    bytes: int


def check_map(quota: Quota, used: Used, namespace: str) -> None:
    """Raise QuotaExceeded where one map more is too many."""
    if quota.maps and used.maps + 1 > quota.maps:
        raise QuotaExceeded(
            f"namespace {namespace} has {used.maps:,} maps; at most {quota.maps:,} are allowed",
            hint=f"delete those that are done: moor map delete NAME; an administrator sets {MAPS_VARIABLE}",
        )
    _check_bytes(quota, used, namespace, 0)


def check_items(quota: Quota, used: Used, namespace: str, *, items: int, size: int) -> None:
    """Raise QuotaExceeded where so many items more, of so many bytes, are too many."""
    if quota.items and used.items + items > quota.items:
        raise QuotaExceeded(
            f"the maps of namespace {namespace} have {used.items:,} items; {items:,} more exceed the limit of"
            f" {quota.items:,}",
            hint=f"delete maps that are done: moor map delete NAME; an administrator sets {ITEMS_VARIABLE}",
        )
    _check_bytes(quota, used, namespace, size)


def _check_bytes(quota: Quota, used: Used, namespace: str, size: int) -> None:
    if quota.bytes and used.bytes + size > quota.bytes:
        raise QuotaExceeded(
            f"the maps of namespace {namespace} have {used.bytes:,} bytes; {size:,} more exceed the limit of"
            f" {quota.bytes:,}",
            hint="delete maps that are done: moor map delete NAME; put large values into files and send their"
            f" paths; an administrator sets {BYTES_VARIABLE}",
        )


def quota_settings(env: Mapping[str, str]) -> Quota:
    """What the environment says; bytes as Kubernetes quantities. Raises UsageError."""
    usual = Quota()

    def number(name: str, value: int) -> int:
        return parse_integer(env[name], maximum=MAX, name=name) if env.get(name) else value

    def size(name: str, value: int) -> int:
        if not env.get(name):
            return value
        try:
            bytes_most = int(parse_quantity(env[name]))
        except QuantityError as error:
            raise UsageError(f"{name}: {error.message}", hint="such as 5Gi; 0: no limit") from error
        if not 0 <= bytes_most <= MAX:
            raise UsageError(f"{name} is {env[name]}; allowed are 0 (no limit) to 1Pi")
        return bytes_most

    return Quota(
        maps=number(MAPS_VARIABLE, usual.maps),
        items=number(ITEMS_VARIABLE, usual.items),
        bytes=size(BYTES_VARIABLE, usual.bytes),
        output_bytes=size(OUTPUT_VARIABLE, usual.output_bytes),
    )
