"""Machine and MachineNodePool: places of fixed sizes on named nodes, reserved until guests use them.

An admin writes a Machine. The operator creates the MachineNodePool of the same name from it, and marks the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from moorage.model.names import GROUP, MACHINE_GROUP_LABEL, VERSION, is_dns_label
from moorage.model.tenant import Condition, Quantity
from moorage_kube.errors import QuantityError
from moorage_kube.meta import labels_of
from moorage_kube.quantity import amount, parse_quantity
from moorage_kube.resources import Obj, Resource
from moorage_kube.scheduling import is_extended

MACHINES = Resource(GROUP, VERSION, "machines", "Machine", namespaced=False)
NODE_POOLS = Resource(GROUP, VERSION, "machinenodepools", "MachineNodePool", namespaced=False)

READY, NOT_READY, MAINTENANCE = "ready", "not-ready", "maintenance"
MODES = (READY, NOT_READY, MAINTENANCE)
FIFO, FAIR = "fifo", "fair"
HALF_LIFE_SECONDS = 86_400  # of past use, under the order `fair`

_NAME = Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_MAPPED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})


class TypeName(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A machine type, by its name."""

    name: Annotated[str, _NAME, Meta(description="Name of the machine type.")]


class PoolNode(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node and the machines it offers."""

    name: Annotated[str, Meta(min_length=1, max_length=253, description="Name of the node.")]
    mode: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": list(MODES)},
            description="ready: offers its machine types; not-ready and maintenance: nothing new comes.",
        ),
    ]
    machine_type: Annotated[list[TypeName], Meta(description="Machine types the node offers.")]
    taint: Annotated[bool, Meta(description="Keep off every pod that is not a guest of this group.")] = False


class GpuSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Devices of one machine."""

    type: Annotated[str, Meta(min_length=1, description="Extended resource, such as nvidia.com/gpu.")]
    num: Annotated[Quantity, Meta(description="How many of it.")]
    family: Annotated[
        str, Meta(max_length=63, description="Generation; nodes labelled otherwise do not serve.")
    ] = ""


class SizeSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The resources of one machine."""

    cpu: Annotated[Quantity, Meta(description="CPUs of one machine.")]
    memory: Annotated[Quantity, Meta(description="Memory of one machine.")]
    gpu: GpuSpec | None = None


class TypeSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A machine size, and the number of machines."""

    name: Annotated[str, _NAME, Meta(description="Name of the machine type.")]
    spec: SizeSpec
    available: Annotated[int, Meta(ge=0, le=100_000, description="Machines of this type held for guests.")]


class MachineSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The machines that an administrator offers."""

    node_pool: Annotated[list[PoolNode], Meta(extra_json_schema=_MAPPED)]
    machine_types: Annotated[list[TypeSpec], Meta(extra_json_schema=_MAPPED)]
    order: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": [FIFO, FAIR], "default": FIFO},
            description="Which guest is first: the earliest, or that of the owner with the least recent usage.",
        ),
    ] = FIFO
    half_life_seconds: Annotated[
        Annotated[int, Meta(ge=60, le=31_536_000)] | None,
        Meta(description="With order fair: after so long, use counts half. Default one day."),
    ] = None


class Usage(Struct, frozen=True, rename="camel"):
    """Machines of a type. maximum = reserved + used + pending."""

    maximum: Annotated[int, Meta(ge=0, description="Places there are: held, in use, or in flight.")]
    reserved: Annotated[int, Meta(ge=0, description="Places held by a reservation pod on a node.")]
    used: Annotated[int, Meta(ge=0, description="Places held by guests on a node.")]
    waiting: Annotated[int, Meta(ge=0, description="Guests behind the gate.")]
    pending: Annotated[
        int, Meta(ge=0, description="Places in flight: between reservation and guest, or being made.")
    ] = 0
    unplaced: Annotated[int, Meta(ge=0, description="Places offered that do not fit on any node.")] = 0
    unmanaged: Annotated[int, Meta(ge=0, description="Pods that name the type and never passed the webhook.")] = 0


class AvailableMachine(Struct, frozen=True, rename="camel"):
    """The counts of one machine type."""

    name: Annotated[str, Meta(description="Name of the machine type.")]
    usage: Usage


class Share(Struct, frozen=True, rename="camel"):
    """The recent use of one owner; for the order `fair`."""

    owner: Annotated[str, Meta(description="User or namespace.")]
    used: Annotated[int, Meta(ge=0, description="Machine-seconds times devices, decayed to sharesAt.")]
    holding: Annotated[int, Meta(ge=0, description="Machines times devices held since sharesAt.")] = 0


class MachineStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    available_machines: Annotated[list[AvailableMachine], Meta(extra_json_schema=_MAPPED)] = []
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0
    shares: list[Share] = []
    shares_at: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When the shares were computed.")
    ] = ""


class Machine(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Machines of some types on some nodes, held by reservation pods until guests take their places."""

    spec: MachineSpec
    status: MachineStatus = MachineStatus()


class MachineNodePoolSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The nodes and the machine types of a group; created from a Machine."""

    machine_group_name: Annotated[str, _NAME, Meta(description="Group of the Machine that owns this pool.")]
    node_pool: Annotated[list[PoolNode], Meta(extra_json_schema=_MAPPED)]
    machine_type_stock: Annotated[list[TypeName], Meta(extra_json_schema=_MAPPED)]


class PoolNodeStatus(Struct, frozen=True, rename="camel"):
    """The state of one node."""

    name: Annotated[str, Meta(description="Name of the node.")]
    condition: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["Healthy", "Maintenance", "Unhealthy"]},
            description="Healthy: offers machines; Maintenance, Unhealthy: nothing new comes.",
        ),
    ]
    message: Annotated[str, Meta(description="Why the node is not healthy.")] = ""


class MachineNodePoolStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    node_pool: Annotated[list[PoolNodeStatus], Meta(extra_json_schema=_MAPPED)] = []
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class MachineNodePool(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The nodes of a Machine. The operator manages it: change the Machine instead."""

    spec: MachineNodePoolSpec
    status: MachineNodePoolStatus = MachineNodePoolStatus()


# --- as decisions read them


class MachineType(Struct, frozen=True, kw_only=True):
    """A machine size and the number of machines. `size`: millicores, bytes, devices, as in the scheduler."""

    name: str
    size: Mapping[str, int]
    texts: Mapping[str, str]  # the same as the admin wrote it
    available: int
    family: str = ""

    @property
    def devices(self) -> int:
        """The number of extended resources (devices) of one machine; 0 for CPU machines."""
        return sum(count for name, count in self.size.items() if is_extended(name))


class Pool(Struct, frozen=True, kw_only=True):
    """A Machine, parsed."""

    name: str
    uid: str
    group: str
    types: Mapping[str, MachineType]
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node → types, for nodes in mode ready
    order: str = FIFO
    half_life: int = HALF_LIFE_SECONDS
    generation: int = 0
    is_tainted: bool = False  # whether a node of it is reserved for guests of the group


def group_of(machine: Mapping[str, Any]) -> str:
    """The group of a Machine: its label, or else its name."""
    return labels_of(machine).get(MACHINE_GROUP_LABEL) or str(machine["metadata"]["name"])


def machine_names(machines: Iterable[Mapping[str, Any]]) -> list[str]:
    """GROUP/TYPE of all types, as users write them."""
    return [
        f"{group_of(machine)}/{kind['name']}"
        for machine in machines
        for kind in (machine.get("spec") or {}).get("machineTypes") or ()
    ]


def parse_machine(obj: Mapping[str, Any]) -> Pool:
    """Parse a stored Machine. Raises QuantityError for an invalid size."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    types = {machine_type["name"]: parse_type(machine_type) for machine_type in spec.get("machineTypes") or ()}
    offers = {
        node["name"]: tuple(offer["name"] for offer in node.get("machineType") or () if offer["name"] in types)
        for node in spec.get("nodePool") or ()
        if node.get("mode") == READY
    }
    return Pool(
        name=meta["name"],
        uid=meta.get("uid") or "",
        group=group_of(obj),
        types=types,
        offers=offers,
        order=spec.get("order") or FIFO,
        half_life=int(spec.get("halfLifeSeconds") or HALF_LIFE_SECONDS),
        generation=int(meta.get("generation") or 0),
        is_tainted=any(node.get("taint") for node in spec.get("nodePool") or ()),
    )


def parse_type(entry: Mapping[str, Any]) -> MachineType:
    """Parse an entry of `spec.machineTypes`. Raises QuantityError."""
    spec = entry.get("spec") or {}
    texts = {"cpu": str(spec["cpu"]), "memory": str(spec["memory"])}
    gpu = spec.get("gpu") or {}
    if gpu.get("type"):
        texts[gpu["type"]] = str(gpu.get("num", 0))
    size = {name: amount(name, text) for name, text in texts.items()}
    return MachineType(
        name=entry["name"],
        size={name: value for name, value in size.items() if value > 0},
        texts={name: text for name, text in texts.items() if size[name] > 0},
        available=int(entry.get("available") or 0),
        family=str(gpu.get("family") or ""),
    )


class Fault(Struct, frozen=True):
    """A fault of an object of ours: the field, its value, and the allowed values."""

    field: str
    value: str
    message: str


def check_machine(obj: Mapping[str, Any], others: Iterable[Mapping[str, Any]] = ()) -> list[Fault]:
    """Check everything that the schema of a Machine cannot express. Returns all errors.

    `others`: the existing Machines.
    """
    meta, spec = obj["metadata"], obj.get("spec") or {}
    name, faults = str(meta.get("name") or ""), []
    others = [other for other in others if other["metadata"]["name"] != name]
    group = group_of(obj)
    if not is_dns_label(group):
        what = "must be lower-case letters, digits and '-', at most 63"
        faults.append(Fault(f"metadata.labels[{MACHINE_GROUP_LABEL}]", group, what))
    for other in others:
        if group_of(other) == group:
            what = f"Machine {other['metadata']['name']} is of this group already; add the machine types there"
            faults.append(Fault(f"metadata.labels[{MACHINE_GROUP_LABEL}]", group, what))
    types: set[str] = set()
    for at, machine_type in enumerate(spec.get("machineTypes") or ()):
        where = f"spec.machineTypes[{at}]"
        if machine_type.get("name") in types:
            faults.append(Fault(f"{where}.name", str(machine_type["name"]), "is there twice"))
        types.add(str(machine_type.get("name")))
        faults += _check_size(machine_type.get("spec") or {}, f"{where}.spec")
    if not types:
        faults.append(Fault("spec.machineTypes", "", "must name at least one machine type"))
    taken = {
        str(node.get("name")): str(other["metadata"]["name"])
        for other in others
        for node in (other.get("spec") or {}).get("nodePool") or ()
    }
    return faults + _check_nodes(spec.get("nodePool") or (), types, taken)


def check_node_pool(obj: Mapping[str, Any]) -> list[Fault]:
    """Check everything that the schema of a MachineNodePool cannot express. Returns all errors."""
    spec = obj.get("spec") or {}
    types = {str(stock.get("name")) for stock in spec.get("machineTypeStock") or ()}
    return _check_nodes(spec.get("nodePool") or (), types, {})


def _check_size(size: Mapping[str, Any], where: str) -> list[Fault]:
    faults = [
        fault
        for key in ("cpu", "memory")
        if (fault := _check_positive(size.get(key), f"{where}.{key}")) is not None
    ]
    gpu = size.get("gpu")
    if not gpu:
        return faults
    kind = str(gpu.get("type") or "")
    if not is_extended(kind):
        what = "must be an extended resource with its domain, such as nvidia.com/gpu"
        faults.append(Fault(f"{where}.gpu.type", kind, what))
    fault = _check_positive(gpu.get("num"), f"{where}.gpu.num")
    if fault is not None:
        faults.append(fault)
    elif parse_quantity(gpu["num"]).denominator != 1:
        faults.append(
            Fault(f"{where}.gpu.num", str(gpu["num"]), "must be a whole number: devices are not divided")
        )
    return faults


def _check_positive(text: Any, where: str) -> Fault | None:
    try:
        value = parse_quantity(text) if text is not None else None
    except QuantityError:
        return Fault(where, str(text), "must be a quantity, such as 4, 500m or 12Gi")
    if value is None or value <= 0:
        return Fault(where, "" if text is None else str(text), "must be more than zero")
    return None


def _check_nodes(nodes: Iterable[Obj], types: set[str], taken: Mapping[str, str]) -> list[Fault]:
    faults, seen = [], set()
    for at, node in enumerate(nodes):
        where, name = f"spec.nodePool[{at}]", str(node.get("name"))
        if name in seen:
            faults.append(Fault(f"{where}.name", name, "is there twice"))
        seen.add(name)
        if name in taken:
            faults.append(Fault(f"{where}.name", name, f"is a node of Machine {taken[name]}"))
        if node.get("mode") not in MODES:
            faults.append(Fault(f"{where}.mode", str(node.get("mode")), f"must be one of {', '.join(MODES)}"))
        for number, offer in enumerate(node.get("machineType") or ()):
            if str(offer.get("name")) not in types:
                known = ", ".join(sorted(types)) or "none"
                what = f"is no machine type of this object; there are: {known}"
                faults.append(Fault(f"{where}.machineType[{number}].name", str(offer.get("name")), what))
    return faults
