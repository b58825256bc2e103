"""Machine types and their prices: a file that users maintain, because prices change.

    source: https://example.com/prices     # where the prices were read
    date: 2026-11-01                        # and when
    currency: USD
    billing: {minimumSeconds: 60, stepSeconds: 1}
    machines:
    - name: c-96
      cpu: 96                               # capacity, as quotas count it
      memory: 360Gi
      disk: 100Gi                           # for pods; left out: unknown, so not checked
      gpus: 0
      pods: 110                             # at most; the kubelet's default
      reserved: {cpu: 310m, memory: 12Gi}   # reserved for the system and the kubelet
      speed: 1.0                            # items take their time divided by this
      startSeconds: 90                      # from asking for a node to its being ready
      network: 4G                           # bytes a second, to load data
      prices:
      - {region: us-west1, spot: 0.96, onDemand: 4.56, interruptionsPerHour: 0.02}
    quotas:
    - {resource: cpus, region: us-west1, limit: 576}
    - {resource: nodes, limit: 1000}
    - {resource: cpus, region: us-west1, limit: 9600, spot: true}
    transfer:
    - {from: us-west1, to: asia-northeast1, perGB: 0.12}

    owned:                                  # machines that were bought
    - name: dgx                             # nodes of this instance type, or the nodes named next
      nodes: ["gpu-*"]
      purchase: 30000000                    # for each node
      years: 5                              # of use
      watts: 6500                           # drawn on average
      pricePerKWh: 27
      hostingPerMonth: 120000               # rack, cooling, support
    pods:                                   # clusters that bill requests of pods, not nodes
    - region: us-west1
      cpu: 0.0445                           # each CPU and hour
      memory: 0.0049                        # each GiB and hour
      storage: 0.000055                     # each GiB of scratch disk and hour
      gpus: {a100: 2.95}                    # each GPU and hour, by type
      spot: {cpu: 0.0133, memory: 0.0014, gpus: {a100: 0.88}}
      minimum: {cpu: 250m, memory: 512Mi}   # a pod is billed for at least this
      step: {cpu: 250m, memory: 256Mi}        # and rounded up to whole steps
      default: {cpu: 500m, memory: 2Gi}     # of a pod that asks for none
    weights: {cpu: 1, memory: 0.125, gpu: 30}   # how a node's price is shared by requests of pods

As CSV: `name,region,cpu,memory,disk,gpus,pods,speed,spot,on_demand,interruptions_per_hour`, a line for each
machine and region. Prices are per node and hour. Moorage ships no prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.model.ownedprices import Owned, parse_owned
from moorage.model.podprices import PodPrices, Weights, parse_pod_prices, parse_weights
from moorage.model.pricefields import exactly, list_of, mapping_of, number_of, quantity_of
from moorage_kube.errors import UsageError
from moorage_kube.meta import controller_ref, labels_of
from moorage_kube.quantity import parse_count, parse_milli
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, is_gpu, parse_node, parse_pod

PODS_PER_NODE = 110  # the kubelet's --max-pods
TYPE_LABEL = "node.kubernetes.io/instance-type"
REGION_LABEL = "topology.kubernetes.io/region"
QUOTA_RESOURCES = ("nodes", "cpus", "gpus", "disk", "pods")
SPOT, ON_DEMAND = "spot", "on-demand"
_MARKET_LABELS = {  # label of a node → its value for spot; others mean on demand
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "node.moorage.dev/spot": "true",
}


class Machine(Struct, frozen=True, kw_only=True):
    """A type of node. Pods may use the capacity less `reserved`. Bytes, millicores, seconds."""

    name: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int | None = None  # None: unknown
    gpus: int = 0
    pods: int = PODS_PER_NODE
    reserved_cpu_milli: int = 0
    reserved_memory_bytes: int = 0
    reserved_disk_bytes: int = 0
    reserved_pods: int = 0
    speed: float = 1.0
    start_seconds: float | None = None  # None: not known for this type
    network_bytes: float | None = None  # a second


class Offer(Struct, frozen=True, kw_only=True):
    """A machine type in a region, spot or on demand, with a price per node and hour."""

    machine: Machine
    region: str = ""  # "": the only one there is
    market: str = ON_DEMAND
    price_per_hour: float
    interruptions_per_hour: float | None = None  # None: unknown

    @property
    def price(self) -> Fraction:
        """`price_per_hour` exactly as it is written: the unit of all sums of money."""
        return exactly(self.price_per_hour)

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.region, self.machine.name, self.market) if part)


class Quota(Struct, frozen=True, kw_only=True):
    """A limit over all nodes of a map. `region` "" means all regions. `disk` is in bytes."""

    resource: str
    limit: int
    region: str = ""
    spot: bool = False

    @property
    def label(self) -> str:
        where = f" in {self.region}" if self.region else ""
        return f"{'spot ' if self.spot else ''}{self.resource} quota{where}"


class PriceSheet(Struct, frozen=True, kw_only=True):
    """A parsed price file. `transfer`: (from, to) → cost of 10^9 bytes."""

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = ()
    transfer: Mapping[tuple[str, str], float] = field(default_factory=dict)
    currency: str = "USD"
    source: str = ""
    read_on: date | None = None
    minimum_seconds: float = 0.0
    step_seconds: float = 1.0
    owned: tuple[Owned, ...] = ()
    pods: tuple[PodPrices, ...] = ()
    weights: Weights = field(default_factory=Weights)


_SHEET = {
    "source", "date", "currency", "billing", "machines", "quotas", "transfer", "owned", "pods", "weights",
}  # fmt: skip
_BILLING = {"minimumSeconds", "stepSeconds"}
_MACHINE = {
    "name", "cpu", "memory", "disk", "gpus", "pods", "reserved", "speed", "startSeconds", "network", "prices",
}  # fmt: skip
_RESERVED = {"cpu", "memory", "disk", "pods"}
_PRICE = {"region", "spot", "onDemand", "interruptionsPerHour"}
_QUOTA = {"resource", "region", "limit", "spot"}
_TRANSFER = {"from", "to", "perGB"}


def parse_sheet(document: object) -> PriceSheet:
    """Read a price file. Raises UsageError with the field, the value and the allowed values."""
    top = mapping_of(document, "the file", _SHEET)
    billing = mapping_of(top.get("billing") or {}, "billing", _BILLING)
    offers: list[Offer] = []
    for at, machine in enumerate(list_of(top.get("machines") or [], "machines")):
        offers += _offers(mapping_of(machine, f"machines[{at}]", _MACHINE), f"machines[{at}]")
    owned = parse_owned(top.get("owned") or [])
    pods = parse_pod_prices(top.get("pods") or [])
    if not (offers or owned or pods):
        raise UsageError("the file has no price: machines is empty, and so are owned and pods")
    return PriceSheet(
        offers=_unique(offers),
        quotas=tuple(
            _quota(mapping_of(quota, f"quotas[{at}]", _QUOTA), f"quotas[{at}]")
            for at, quota in enumerate(list_of(top.get("quotas") or [], "quotas"))
        ),
        transfer=_transfers(list_of(top.get("transfer") or [], "transfer")),
        currency=str(top.get("currency") or "USD"),
        source=str(top.get("source") or ""),
        read_on=_date(top.get("date")),
        minimum_seconds=number_of(billing, "minimumSeconds", "billing") or 0.0,
        step_seconds=number_of(billing, "stepSeconds", "billing", least=0.001) or 1.0,
        owned=owned,
        pods=pods,
        weights=parse_weights(top.get("weights") or {}),
    )


def parse_rows(rows: Iterable[Mapping[str, str | None]]) -> PriceSheet:
    """Parse a price file in CSV (`csv.DictReader`). Raises UsageError with the line."""
    offers: list[Offer] = []
    for line, row in enumerate(rows, 2):
        cells = {key: value for key, value in row.items() if key and value not in (None, "")}
        price = {
            "region": cells.pop("region", ""),
            "spot": cells.pop("spot", None),
            "onDemand": cells.pop("on_demand", None),
            "interruptionsPerHour": cells.pop("interruptions_per_hour", None),
        }
        where = f"line {line}"
        offers += _offers({**mapping_of(cells, where, _MACHINE), "prices": [price]}, where)
    if not offers:
        raise UsageError("the file has no machines: no lines follow the header line")
    return PriceSheet(offers=_unique(offers))


_QUOTA_TEXT = re.compile(r"(?:(?P<region>[^/=]+)/)?(?P<spot>spot-)?(?P<resource>[a-z]+)=(?P<limit>.+)")


def parse_quota(text: str) -> Quota:
    """Parse `[REGION/][spot-]RESOURCE=LIMIT`, such as us-west1/cpus=576. Raises UsageError."""
    match = _QUOTA_TEXT.fullmatch(text.strip())
    if not match:
        raise UsageError(
            f"invalid quota {text!r}", hint="use [REGION/][spot-]RESOURCE=LIMIT, as in us-west1/spot-cpus=9600"
        )
    fields = {"resource": match["resource"], "limit": match["limit"], "region": match["region"] or ""}
    return _quota({**fields, "spot": bool(match["spot"])}, text)


def market_of(labels: Mapping[str, str]) -> str:
    """SPOT or ON_DEMAND, from the node labels of clouds and Karpenter; "" if the labels do not state it."""
    values = [labels[label] == spot for label, spot in _MARKET_LABELS.items() if label in labels]
    return (SPOT if any(values) else ON_DEMAND) if values else ""


class NodeType(Struct, frozen=True, kw_only=True):
    """Nodes of one type and region in a cluster. `room`: the resources for pods, on the smallest of them."""

    name: str
    region: str
    nodes: int
    room: Machine


def node_types(nodes: Sequence[Obj], pods: Sequence[Obj] = ()) -> tuple[tuple[NodeType, ...], int]:
    """The machine types of a cluster's nodes, by their well-known labels; and the number of nodes without a type.

    Requests of DaemonSets' pods are subtracted, because new nodes run them, too.
    """
    daemons: dict[str, list[Mapping[str, int]]] = {}
    for obj in pods:
        owner = controller_ref(obj)
        if owner is not None and owner.get("kind") == "DaemonSet":
            pod = parse_pod(obj)
            daemons.setdefault(pod.node, []).append(pod.requests)
    types: dict[tuple[str, str], NodeType] = {}
    untyped = 0
    for obj in nodes:
        labels = labels_of(obj)
        kind = labels.get(TYPE_LABEL)
        if not kind:
            untyped += 1
            continue
        room = _room_of(kind, obj, parse_node(obj), daemons.get(obj["metadata"]["name"], []))
        key = (kind, labels.get(REGION_LABEL, ""))
        before = types.get(key)
        types[key] = NodeType(
            name=kind,
            region=key[1],
            nodes=1 + (before.nodes if before else 0),
            room=_least(before.room, room) if before else room,
        )
    return tuple(types[key] for key in sorted(types)), untyped


def offers_of_cluster(sheet: PriceSheet, types: Sequence[NodeType]) -> tuple[PriceSheet, tuple[str, ...]]:
    """The offers of the file for the cluster's node types, with the sizes of its real nodes.

    Also returns the types without a price. A price without a region applies everywhere.
    """
    offers, unpriced = [], []
    for kind in types:
        priced = [
            offer
            for offer in sheet.offers
            if offer.machine.name == kind.name and (not offer.region or offer.region == kind.region)
        ]
        if not priced:
            unpriced.append(f"{kind.name} in {kind.region}" if kind.region else kind.name)
        for offer in priced:
            keep = offer.machine
            room = replace(
                kind.room, speed=keep.speed, start_seconds=keep.start_seconds, network_bytes=keep.network_bytes
            )
            offers.append(replace(offer, machine=room, region=kind.region or offer.region))
    return replace(sheet, offers=tuple(offers)), tuple(unpriced)


def _room_of(kind: str, obj: Obj, node: NodeInfo, daemons: Sequence[Mapping[str, int]]) -> Machine:
    capacity: Mapping[str, Any] = (obj.get("status") or {}).get("capacity") or {}
    free = node.allocatable

    def reserved(resource: str, total: int) -> int:
        return max(0, total - free.get(resource, total) + sum(daemon.get(resource, 0) for daemon in daemons))

    cpu = parse_milli(capacity.get("cpu", 0)) or free.get("cpu", 0)
    memory = parse_count(capacity.get("memory", 0)) or free.get("memory", 0)
    disk = parse_count(capacity.get("ephemeral-storage", 0)) or free.get("ephemeral-storage", 0)
    return Machine(
        name=kind,
        cpu_milli=cpu,
        memory_bytes=memory,
        disk_bytes=disk or None,
        gpus=sum(count for resource, count in free.items() if is_gpu(resource)),
        pods=free.get("pods", PODS_PER_NODE),
        reserved_cpu_milli=reserved("cpu", cpu),
        reserved_memory_bytes=reserved("memory", memory),
        reserved_disk_bytes=reserved("ephemeral-storage", disk) if disk else 0,
        reserved_pods=len(daemons),
    )


def _least(a: Machine, b: Machine) -> Machine:
    """The smaller of two nodes of a type: the one with less CPU for pods, then less memory."""

    def room(machine: Machine) -> tuple[int, int]:
        return machine.cpu_milli - machine.reserved_cpu_milli, machine.memory_bytes - machine.reserved_memory_bytes

    return min(a, b, key=room)


def _offers(fields: Mapping[str, Any], where: str) -> list[Offer]:
    # check the fields of the machine first
    name = str(fields.get("name") or "")
    if not name or "/" in name:
        raise UsageError(f"{where}.name is {fields.get('name')!r}; every machine has a name without /")
    reserved = mapping_of(fields.get("reserved") or {}, f"{where}.reserved", _RESERVED)
    for needed in ("cpu", "memory"):
        if needed not in fields:
            raise UsageError(f"{where} ({name}) does not say its {needed}")
    disk = fields.get("disk")
    # all values are read exactly, as Kubernetes quantities
    machine = Machine(
        name=name,
        cpu_milli=quantity_of(fields["cpu"], f"{where}.cpu", milli=True),
        memory_bytes=quantity_of(fields["memory"], f"{where}.memory"),
        disk_bytes=None if disk is None else quantity_of(disk, f"{where}.disk"),
        gpus=quantity_of(fields.get("gpus") or 0, f"{where}.gpus"),
        pods=quantity_of(fields.get("pods", PODS_PER_NODE), f"{where}.pods"),
        reserved_cpu_milli=quantity_of(reserved.get("cpu") or 0, f"{where}.reserved.cpu", milli=True),
        reserved_memory_bytes=quantity_of(reserved.get("memory") or 0, f"{where}.reserved.memory"),
        reserved_disk_bytes=quantity_of(reserved.get("disk") or 0, f"{where}.reserved.disk"),
        reserved_pods=quantity_of(reserved.get("pods") or 0, f"{where}.reserved.pods"),
        speed=number_of(fields, "speed", where, least=0.001) or 1.0,
        start_seconds=number_of(fields, "startSeconds", where),
        network_bytes=None
        if fields.get("network") is None
        else float(quantity_of(fields["network"], f"{where}.network") or 1),
    )
    if not machine.cpu_milli:
        raise UsageError(f"{where}.cpu is 0; a machine has CPU")
    # one offer for each region and market with a price
    offers = []
    for at, entry in enumerate(list_of(fields.get("prices"), f"{where}.prices")):
        here = f"{where}.prices[{at}]"
        price = mapping_of(entry, here, _PRICE)
        both = {SPOT: number_of(price, "spot", here), ON_DEMAND: number_of(price, "onDemand", here)}
        if all(value is None for value in both.values()):
            raise UsageError(f"{here} ({name}) has neither a price `spot` nor `onDemand`")
        offers += [
            Offer(
                machine=machine,
                region=str(price.get("region") or ""),
                market=market,
                price_per_hour=value,
                interruptions_per_hour=number_of(price, "interruptionsPerHour", here) if market == SPOT else 0.0,
            )
            for market, value in both.items()
            if value is not None
        ]
    return offers


def _unique(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    seen: set[str] = set()
    for offer in offers:
        if offer.name in seen:
            raise UsageError(f"the file gives two prices for {offer.name}")
        seen.add(offer.name)
    return tuple(offers)


def _quota(fields: Mapping[str, Any], where: str) -> Quota:
    resource = str(fields.get("resource") or "")
    if resource not in QUOTA_RESOURCES:
        raise UsageError(f"{where}: {resource!r} has no quota; {', '.join(QUOTA_RESOURCES)} have")
    if "limit" not in fields:
        raise UsageError(f"{where} has no limit")
    spot = fields.get("spot", False)
    if not isinstance(spot, bool):
        raise UsageError(f"{where}.spot is {spot!r}, neither true nor false")
    return Quota(
        resource=resource,
        limit=quantity_of(fields["limit"], f"{where}.limit"),
        region=str(fields.get("region") or ""),
        spot=spot,
    )


def _transfers(rows: Sequence[object]) -> dict[tuple[str, str], float]:
    transfers: dict[tuple[str, str], float] = {}
    for at, entry in enumerate(rows):
        where = f"transfer[{at}]"
        row = mapping_of(entry, where, _TRANSFER)
        price = number_of(row, "perGB", where)
        if not row.get("from") or not row.get("to") or price is None:
            raise UsageError(f"{where} needs from, to and perGB")
        transfers[str(row["from"]), str(row["to"])] = price
    return transfers


def _date(value: object) -> date | None:
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(f"date is {value!r}, not a date such as 2026-11-01") from None
