"""Kubelets' summaries of the pods on their nodes, read from a few nodes at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from moorage_kube.errors import ApiError
from moorage_kube.resources import Obj

NODE_SECONDS = 5.0  # patience with one node
NODES_AT_ONCE = 32


class Summaries(Protocol):
    """See `moorage.cluster.kubelets.Kubelets`."""

    async def summary(self, node: Obj) -> Any:
        """The summary of a node's kubelet. Raises ApiError, OSError, ValueError."""
        ...


class NoKubelets:
    """Kubelet summaries for a connection that reaches no kubelets; always empty."""

    async def summary(self, _node: Obj) -> Any:
        return {}

    async def close(self) -> None:
        return


async def ask_nodes(kubelets: Summaries, nodes: Sequence[Obj]) -> AsyncIterator[tuple[str, Any]]:
    """Yield the name of each node and its kubelet's summary. A node that does not answer is skipped.

    https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
    """
    for first in range(0, len(nodes), NODES_AT_ONCE):
        at_once = nodes[first : first + NODES_AT_ONCE]
        answers = await asyncio.gather(*(_ask(kubelets, node) for node in at_once))
        for node, answer in zip(at_once, answers, strict=True):
            if answer is not None:
                yield node["metadata"]["name"], answer


async def _ask(kubelets: Summaries, node: Obj) -> Any:
    try:
        async with asyncio.timeout(NODE_SECONDS):
            return await kubelets.summary(node)
    except (ApiError, ValueError, TimeoutError, OSError):
        return None
