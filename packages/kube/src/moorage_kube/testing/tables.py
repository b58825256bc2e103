"""The sizes of all tables of our objects in this process, for tests that look for leftovers of deleted objects."""

from __future__ import annotations

import gc
from collections import Counter, deque
from typing import Any


def tables() -> Counter[str]:
    """Return the number of entries in the dicts, sets, lists and deques of all live objects of our classes.

    The keys are the class and the attribute. Entries of nested tables count too; a Kubernetes object is one entry.
    """
    gc.unfreeze()  # of `plugin`
    gc.collect()
    counts: Counter[str] = Counter()
    for thing in gc.get_objects():
        if not isinstance(thing, type) and type(thing).__module__.startswith(("moorage.", "moorage_")):
            for name, value in _attributes(thing):
                if isinstance(value, (dict, set, list, deque)):
                    counts[f"{type(thing).__name__}.{name}"] += _entries(value)
    return counts


def _attributes(thing: object) -> list[tuple[str, Any]]:
    owned: dict[str, Any] = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        owned |= {name: getattr(thing, name, None) for name in ([slots] if type(slots) is str else slots)}
    return list(owned.items())


def _entries(value: Any) -> int:
    if isinstance(value, dict):
        if {"kind", "metadata"} & value.keys():
            return 0
        return len(value) + sum(map(_entries, value.values()))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return len(value) + sum(map(_entries, value))
    return 0
