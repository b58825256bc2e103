"""Admission for machines: convert pods to guests, and check our own kinds with all errors at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.injection import judge_update
from moorage.decide.admission.review import MASTERS, OPERATOR, Refusal
from moorage.decide.admission.templates import is_guest
from moorage.decide.machines.calendar import check
from moorage.model.machine import Fault, Pool, check_machine, check_node_pool, parse_machine
from moorage.model.reservation import RESERVATIONS, bookings_of
from moorage_kube.clock import Clock
from moorage_kube.errors import QuantityError
from moorage_kube.informer import Informer
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

KINDS = ("Machine", "MachineNodePool")


class MachineJudge:
    """The Machines, as the webhook knows them by a copy that the caller keeps current."""

    def __init__(self, machines: Informer, reservations: Informer, clock: Clock) -> None:
        self._machines, self._reservations, self._clock = machines, reservations, clock
        self._pools: dict[str, Pool] | None = None
        self._with_gpus: frozenset[str] | None = None
        machines.on_change(self._changed)

    def judge(
        self, kind: str, obj: Obj, old: Obj | None, *, user: str, groups: tuple[str, ...]
    ) -> tuple[Refusal, ...]:
        """Refuse invalid Machines, pools and reservations, and forbidden changes of guests."""
        if kind == RESERVATIONS.kind:
            return tuple(_refusal(fault) for fault in self._check_reservation(obj, old))
        if kind in KINDS:
            if obj["metadata"].get("deletionTimestamp") or (old is not None and _same(old, obj)):
                return ()  # objects that are being deleted, and status updates, may pass
            faults = check_machine(obj, self._machines.all()) if kind == "Machine" else check_node_pool(obj)
            return tuple(_refusal(fault) for fault in faults)
        if kind == "Pod" and old is not None and (is_guest(old) or is_guest(obj)):
            return tuple(judge_update(old, obj, ours=user == OPERATOR or MASTERS in groups))
        return ()

    def _check_reservation(self, obj: Obj, old: Obj | None) -> list[Fault]:
        if obj["metadata"].get("deletionTimestamp") or (old is not None and old.get("spec") == obj.get("spec")):
            return []
        calendar = bookings_of(self._reservations.all())
        return check(obj, old, self.pools().values(), calendar, now=self._clock.now())

    def pools(self) -> Mapping[str, Pool]:
        """The Machines by group. If a group has two: the older one, as in the operator."""
        if self._pools is None:
            self._pools = {}
            for machine in sorted(self._machines.all(), key=_age):
                try:
                    pool = parse_machine(machine)
                except QuantityError:
                    continue
                self._pools.setdefault(pool.group, pool)
        return self._pools

    def gpu_machines(self) -> frozenset[str]:
        """Names of the machine types with GPUs, and of the groups that have such a type."""
        if self._with_gpus is None:
            types = [(pool.group, kind) for pool in self.pools().values() for kind in pool.types.values()]
            names = [(group, kind.name) for group, kind in types if any(map(is_gpu, kind.size))]
            self._with_gpus = frozenset(name for pair in names for name in pair)
        return self._with_gpus

    def _changed(self, before: Obj | None, after: Obj | None) -> None:
        if before is None or after is None or not _same(before, after):
            self._pools = self._with_gpus = None


def _age(machine: Mapping[str, Any]) -> tuple[str, str]:
    return (machine["metadata"].get("creationTimestamp") or "", machine["metadata"]["name"])


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old.get("spec") == new.get("spec") and old["metadata"].get("labels") == new["metadata"].get("labels")


def _refusal(fault: Fault) -> Refusal:
    return Refusal(fault.field, fault.value, fault.message)
