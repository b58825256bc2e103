"""The machines that a user may ask for: the types of a cluster's nodes, their free number, and how to ask.

Nodes of one type and size are one offer, apart from those that are dedicated to a tenant or a machine group. Free
machines are counted on nodes that take pods now.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from moorage.api.nodes import Node
from moorage.decide.usage.gpus import UNKNOWN_TYPE
from moorage.decide.usage.nodes import NodeState
from moorage.model.names import MACHINE_GROUP_LABEL, TENANT_LABEL
from moorage.model.prices import ON_DEMAND, Offer, PriceSheet


class MachineOffer(Struct, frozen=True, kw_only=True):
    """Nodes of the same type and size. CPU (millicores) and memory (bytes) are those of one node."""

    type: str  # instance type; empty: the nodes have no such label
    region: str
    market: str  # spot or on-demand; empty: the nodes do not say
    gpu_type: str  # empty: no GPUs
    gpus: int  # of one node
    cpu: int
    memory: int
    nodes: int
    ready: int  # of these, those that take pods
    free_gpus: int  # on the nodes that are ready
    together: int  # most free GPUs on one node
    free_cpu: int
    free_memory: int
    kept_for: str = ""  # the tenant or machine group that owns these nodes; empty: all may use them

    @property
    def all_gpus(self) -> int:
        return self.gpus * self.nodes

    @property
    def name(self) -> str:
        """Its type, else its GPUs, else its kind of machine."""
        return self.type or (f"{self.gpus}x{self.gpu_type}" if self.gpus else "cpu")


def offers_of(nodes: Iterable[Node]) -> tuple[MachineOffer, ...]:
    """Group nodes into offers. Offers with GPUs come first."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        key = (
            node.instance_type, node.region, node.market, node.gpu_type, node.gpus, node.cpu_millicores,
            node.memory_bytes, _kept_for(node),
        )  # fmt: skip
        groups.setdefault(key, []).append(node)
    offers = [_offer(group) for group in groups.values()]
    offers.sort(
        key=lambda offer: (not offer.gpus, offer.gpu_type, offer.name, offer.kept_for, offer.region, offer.market)
    )
    return tuple(offers)


def how_to_ask(offer: MachineOffer) -> str:
    """The command that starts a run on one whole machine, ignoring present pods."""
    if not offer.gpus:
        return f"moor run --cpu {max(1, offer.cpu // 1000)} -- COMMAND"
    kind = "" if offer.gpu_type == UNKNOWN_TYPE else f" --gpu-type {offer.gpu_type}"
    return f"moor run --gpus {offer.gpus}{kind} -- COMMAND"


def price_of(offer: MachineOffer, sheet: PriceSheet) -> Offer | None:
    """The hourly price of an offer in its market. None if the price file does not have it.

    Nodes without a market count as on demand.
    """
    market = offer.market or ON_DEMAND
    return next(
        (
            known
            for known in sheet.offers
            if known.machine.name == offer.type and known.region in ("", offer.region) and known.market == market
        ),
        None,
    )


def _offer(nodes: list[Node]) -> MachineOffer:
    first, ready = nodes[0], [node for node in nodes if node.state == NodeState.READY]
    free = [max(0, node.gpus - node.gpus_used) for node in ready]
    return MachineOffer(
        type=first.instance_type,
        region=first.region,
        market=first.market,
        gpu_type=first.gpu_type,
        gpus=first.gpus,
        cpu=first.cpu_millicores,
        memory=first.memory_bytes,
        nodes=len(nodes),
        ready=len(ready),
        free_gpus=sum(free),
        together=max(free, default=0),
        free_cpu=sum(max(0, node.cpu_millicores - node.cpu_used_millicores) for node in ready),
        free_memory=sum(max(0, node.memory_bytes - node.memory_used_bytes) for node in ready),
        kept_for=_kept_for(first),
    )


def _kept_for(node: Node) -> str:
    guards = (taint.partition(":")[0].partition("=") for taint in node.taints)
    return ", ".join(sorted(value for key, _, value in guards if key in (TENANT_LABEL, MACHINE_GROUP_LABEL)))
