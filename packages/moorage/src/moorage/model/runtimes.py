"""Runtimes of nodes: a local cluster runs pods as processes of its machine, and pulls no images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.names import PROCESS_RUNTIME


def is_on_processes(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether pods on these nodes run as processes, according to the nodes' runtime."""
    versions = [
        str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        for node in nodes
    ]
    return bool(versions) and all(version.startswith(PROCESS_RUNTIME) for version in versions)
