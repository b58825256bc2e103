"""Strategic merge of two documents of Argo's kinds: fields of the higher document override those of the lower.

Lists with a key are merged entry by entry; other lists are replaced. Argo's Go types define the keys.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# field that holds a list → the key by which its entries are merged
MERGE_KEYS: Mapping[str, str] = {
    "templates": "name",
    "parameters": "name",
    "artifacts": "name",
    "tasks": "name",
    "volumes": "name",
    "initContainers": "name",
    "sidecars": "name",
    "imagePullSecrets": "name",
    "tolerations": "key",
    "hostAliases": "ip",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}


def merged_values(lower: Any, higher: Any, field: str = "") -> Any:
    """Merge `higher` over `lower`. `field`: the name of the field that holds them. None counts as absent.

    The entries of a keyed list keep the order of `lower`; entries that only `higher` has follow them. Neither
    argument is changed; the result may share objects with both.
    """
    if higher is None:
        return lower
    if isinstance(lower, Mapping) and isinstance(higher, Mapping):
        made = dict(lower)
        for name, value in higher.items():
            made[name] = merged_values(made[name], value, name) if name in made else value
        return made
    key = MERGE_KEYS.get(field)
    if key is not None and isinstance(lower, list) and isinstance(higher, list):
        return _merged_lists(lower, higher, field, key)
    return higher


def _merged_lists(lower: list[Any], higher: list[Any], field: str, key: str) -> list[Any]:
    made = list(lower)
    places = {_key_of(entry, key): index for index, entry in reversed(list(enumerate(made)))}
    for entry in higher:
        name = _key_of(entry, key)
        place = None if name is None else places.get(name)
        if place is None:
            made.append(entry)
        elif field == "volumes" and _sources(made[place]).isdisjoint(_sources(entry)):
            made[place] = entry  # a volume has one source
        else:
            made[place] = merged_values(made[place], entry)
    return made


def _key_of(entry: Any, key: str) -> str | None:
    """The value by which an entry is merged; None: it is not merged."""
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return None if value is None or isinstance(value, (list, dict)) else str(value)


def _sources(volume: Mapping[str, Any]) -> set[str]:
    return set(volume) - {"name"}
