"""How much of the shared volume one namespace may take for its maps.

A quota affects no running map: it refuses another map, or more items. Results of existing items
are always stored; each is at most `leasing.RESULT_BYTES`. The defaults fit the 5 GiB volume of `deploy/`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from moorage.settings import (
    BYTES_PER_NAMESPACE,
    ITEMS_PER_NAMESPACE,
    LIMIT_HOLD_SECONDS,
    MAPS_PER_NAMESPACE,
    OUTPUT_PER_NAMESPACE,
)
from moorage_kube.errors import QuotaExceeded

ITEM_BYTES = 200  # of an item's rows and their indexes, in addition to its value and result


class Quota(Struct, frozen=True, kw_only=True):
    """Of one namespace. `bytes`: values, keys and results of all its maps, and ITEM_BYTES an item; `output_bytes`:
    of the output of its items, beyond which the oldest is deleted. Zero: no limit. `hold_seconds`: the longest
    time an item holds tokens of a named limit while another map waits.
    """

    maps: int = MAPS_PER_NAMESPACE.default
    items: int = ITEMS_PER_NAMESPACE.default
    bytes: int = BYTES_PER_NAMESPACE.default
    output_bytes: int = OUTPUT_PER_NAMESPACE.default
    hold_seconds: int = LIMIT_HOLD_SECONDS.default


NONE = Quota(maps=0, items=0, bytes=0, output_bytes=0)


class Used(Struct, frozen=True, kw_only=True):
    """The use of the maps of a namespace."""

    maps: int
    items: int
    bytes: int


def check_map(quota: Quota, used: Used, namespace: str) -> None:
    """Raise QuotaExceeded if the quota does not allow another map."""
    if quota.maps and used.maps + 1 > quota.maps:
        raise QuotaExceeded(
            f"namespace {namespace} has {used.maps:,} maps; at most {quota.maps:,} are allowed",
            hint="delete those that are done: moor map delete NAME; an administrator sets"
            f" {MAPS_PER_NAMESPACE.name}",
        )
    _check_bytes(quota, used, namespace, 0)


def check_items(quota: Quota, used: Used, namespace: str, *, items: int, size: int) -> None:
    """Raise QuotaExceeded if the quota does not allow `items` more items with `size` bytes."""
    if quota.items and used.items + items > quota.items:
        raise QuotaExceeded(
            f"the maps of namespace {namespace} have {used.items:,} items; {items:,} more exceed the limit of"
            f" {quota.items:,}",
            hint="delete maps that are done: moor map delete NAME; an administrator sets"
            f" {ITEMS_PER_NAMESPACE.name}",
        )
    _check_bytes(quota, used, namespace, size)


def _check_bytes(quota: Quota, used: Used, namespace: str, size: int) -> None:
    if quota.bytes and used.bytes + size > quota.bytes:
        raise QuotaExceeded(
            f"the maps of namespace {namespace} have {used.bytes:,} bytes; {size:,} more exceed the limit of"
            f" {quota.bytes:,}",
            hint="delete maps that are done: moor map delete NAME; put large values into files and send their"
            f" paths; an administrator sets {BYTES_PER_NAMESPACE.name}",
        )


def quota_settings(env: Mapping[str, str]) -> Quota:
    """The settings in the environment. Raises UsageError."""
    return Quota(
        maps=MAPS_PER_NAMESPACE.read(env),
        items=ITEMS_PER_NAMESPACE.read(env),
        bytes=BYTES_PER_NAMESPACE.read(env),
        output_bytes=OUTPUT_PER_NAMESPACE.read(env),
        hold_seconds=LIMIT_HOLD_SECONDS.read(env),
    )
