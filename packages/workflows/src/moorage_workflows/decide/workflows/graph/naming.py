"""Names of nodes and pods, equal to those of Argo's controller: users and scripts rely on them.

https://argo-workflows.readthedocs.io/en/latest/pod-names/
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from moorage_workflows.model.workflow import NodeRecord

POD_NAME_MAX = 253 - 11  # of the part before "-" and the ten digits of the hash
_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619


def fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash of the text's UTF-8 bytes. http://www.isthe.com/chongo/tech/comp/fnv/"""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def node_id(workflow: str, node: str) -> str:
    """Return the id of a node from its name; the id of the root is the name of the workflow."""
    return workflow if node == workflow else f"{workflow}-{fnv1a(node)}"


class Ids:
    """The ids of the nodes of one run, by name.

    If two names have the same hash, the second gets a longer id; with a shared id one node would never end. One in
    twenty loops with 20,000 items has such names.
    """

    __slots__ = ("_doubles", "_names", "_workflow")

    def __init__(self, workflow: str, records: Iterable[NodeRecord] = ()) -> None:
        self._workflow = workflow
        self._names = {record.id: record.name for record in records}
        self._doubles = {identity for identity in self._names if "-" in identity[len(workflow) + 1 :]}

    def of(self, name: str) -> str:
        identity = node_id(self._workflow, name)
        if not self._doubles and self._names.setdefault(identity, name) == name:
            return identity
        double = f"{identity}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        if double not in self._doubles:
            if self._names.setdefault(identity, name) == name:
                return identity
            self._doubles.add(double)
        return double


def pod_name(
    workflow: str, node: str, template: str, *, identity: str = "", retries: int = 0, lost: int = 0
) -> str:
    """Return the name of a node's pod. Each time that the node runs again, the name is another one.

    `identity`: the node's id; "": the id without collisions. `retries`: how often the workflow was retried;
    `lost`: the number of pods of this node that were lost with their Kubernetes nodes. A name that is too
    long for Kubernetes is cut and gets a hash of the whole name.
    """
    suffix = (f"-w{retries}" if retries else "") + (f"-l{lost}" if lost else "")
    if node == workflow:
        return f"{workflow}{suffix}"
    stem = f"{workflow}-{template}" if template else workflow
    suffix = (identity or node_id(workflow, node))[len(f"{workflow}-{fnv1a(node)}") :] + suffix
    if len(stem) > POD_NAME_MAX - len(suffix):
        digest = hashlib.sha256(stem.encode()).hexdigest()[:8]
        stem = f"{stem[: POD_NAME_MAX - len(suffix) - 9].rstrip('-.')}-{digest}"
    return f"{stem}-{fnv1a(node)}{suffix}"


def item_text(item: Any) -> str:
    """Return a loop item as it appears in the name of its node: "x", "a:1,b:2", "[a b]"; without parentheses."""
    if isinstance(item, dict):
        text = ",".join(f"{key}:{_plain(value)}" for key, value in sorted(item.items()))
    elif isinstance(item, list):
        text = f"[{' '.join(_plain(value) for value in item)}]"
    else:
        text = _plain(item)
    return text.replace("(", "").replace(")", "")


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
