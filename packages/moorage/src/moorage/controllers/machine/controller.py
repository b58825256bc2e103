"""The controller of Machines: the reads and writes around `moorage.decide.machines.reservation`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, assert_never

from moorage.controllers.base import Controller, Shared
from moorage.controllers.machine.plan import (
    guest_of,
    is_finished,
    is_reservation,
    make_nobodys,
    make_node_pool,
    make_other_image,
    make_promise,
    make_reservation,
    make_status,
    refusal,
    reservation_of,
    shares_of,
    was_ready,
)
from moorage.decide.admission.injection import lift
from moorage.decide.machines.eligibility import WAITS_SEPARATOR
from moorage.decide.machines.reservation import (
    Action,
    Add,
    ChangeImage,
    Drop,
    Guest,
    HandOver,
    Keep,
    MoveOn,
    Note,
    Plan,
    Reservation,
    Seen,
    Unmark,
    plan,
)
from moorage.model.info import pause_image
from moorage.model.machine import MACHINES, NODE_POOLS, Pool, group_of, parse_machine
from moorage.model.names import (
    INFO_CONFIGMAP,
    MACHINE_GROUP_LABEL,
    PLACE_PREFIX,
    SCHEDULER_CONFIGMAP,
    SYSTEM_NAMESPACE,
    WAITS_ANNOTATION,
)
from moorage.model.reservation import RESERVATIONS, bookings_of
from moorage.model.runtimes import is_on_processes
from moorage.model.secondscheduler import scheduler_name
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, QuantityError
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, is_deleting, key_of, labels_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, NODES, PODS, Obj
from moorage_kube.scheduling import NodeInfo, parse_node

log = logging.getLogger(__name__)

AT_ONCE = 16  # writes under way together; each is a round trip
STATUS_AFTER_SECONDS = 0.1  # counts are written so long after they changed: a hand-over (50 ms) changes them once
STATUS_EVERY_SECONDS = 0.5  # the status of a Machine is not written more often than this,
STATUS_APART_SECONDS = 0.05  # and of all together than this: a write costs the API server as much as a hand-over
OWN_WRITES_SECONDS = 10.0  # how long our own write counts before the watch shows it


class MachineController(Controller):
    """The controller of Machines; one per operator. The caller runs its `informers`.

    The reservation controller uses `machines`, `pods` (of machine groups) and `reservations` too.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "machine")
        self.machines = self._follow(MACHINES)
        self._node_pools = self._follow(NODE_POOLS)
        self._nodes = self._follow(NODES)
        self.pods = self._follow(
            PODS,
            label_selector=MACHINE_GROUP_LABEL,
            indexes={"group": index_by_label(MACHINE_GROUP_LABEL)},
        )
        self.reservations = self._follow(RESERVATIONS, indexes={"group": _group_index})
        self._switch = self._follow(
            CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={SCHEDULER_CONFIGMAP}"
        )
        self._info = self._follow(CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={INFO_CONFIGMAP}")
        self._written: dict[str, tuple[float, Obj | None]] = {}  # by uid: when, and the pod as it then was
        self._read: dict[str, tuple[str, Reservation | Guest]] = {}  # by uid: resourceVersion, parsed
        self._node_read: dict[str, tuple[str, NodeInfo]] = {}
        self._reported: set[tuple[str, str]] = set()  # misfits with an event: uid of the pod, and why
        self._due: dict[str, float] = {}  # by Machine whose status is behind: when it is to be written
        self._status_written: dict[str, float] = {}  # by Machine: when its status was written last
        self._last_due = -math.inf
        self.pods.on_change(self._forget)
        self.loop.hear(self.machines, self._beside)
        self.loop.hear(self._node_pools, lambda obj: [key_of(obj)])
        self.loop.hear(self.pods, self._machine_of)
        self.loop.hear(self._nodes, self._machines_on)
        self.loop.hear(self._info, lambda _: [key_of(machine) for machine in self.machines.all()])
        self.loop.hear(self.reservations, lambda obj: self._machines_of_group(_group_booked(obj)))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one Machine a step closer to its spec; return when to look again."""
        machine = self.machines.get(key.name)
        if machine is None:
            self._due.pop(key.name, None)
            self._status_written.pop(key.name, None)
            return None
        now = self._clock.now()
        first = min(
            (other for other in self.machines.all() if group_of(other) == group_of(machine)),
            key=lambda machine: (machine["metadata"].get("creationTimestamp") or "", machine["metadata"]["name"]),
        )
        try:
            pool = parse_machine(machine)
        except QuantityError as error:
            await self._write_status(machine, refusal(machine, "Invalid", error.message, now))
            return None
        if first["metadata"]["name"] != key.name:
            message = f"Machine {first['metadata']['name']} is of the group {pool.group} already"
            await self._write_status(machine, refusal(machine, "GroupTaken", message, now))
            return None
        if not is_deleting(machine):
            await self._keep_node_pool(machine)
        seen, pods = self._observe(machine, pool)
        decided = plan(seen)
        broken = await self._carry_out(decided.actions, machine, pool, pods)
        look_again = [decided.look_again_in] if decided.look_again_in is not None else []
        if not is_deleting(machine):
            status = make_status(machine, pool, decided, now)
            wait = self._wait_to_write(machine, status)
            if wait > 0:
                look_again.append(timedelta(seconds=wait))
            else:
                await self._write_status(machine, status)
            await self._record_misfits(decided, pods)
        if broken:
            raise broken[0]
        return min(look_again, default=None)

    def _wait_to_write(self, machine: Obj, status: Obj | None) -> float:
        """Seconds to wait before the status is written. Changed conditions are written at once.

        The status is about to change again, and the scheduler and the kubelet, which hand over a place, need
        the API server now.
        """
        name, moment = machine["metadata"]["name"], self._clock.monotonic()
        if status is None:
            self._due.pop(name, None)
            return 0.0
        if name not in self._due:
            self._last_due = self._due[name] = max(
                moment + STATUS_AFTER_SECONDS,
                self._status_written.get(name, -math.inf) + STATUS_EVERY_SECONDS,
                self._last_due + STATUS_APART_SECONDS,
            )
        had = machine.get("status") or {}
        waits = all(status.get(part) == had.get(part) for part in ("conditions", "observedGeneration"))
        if waits and moment < self._due[name]:
            return self._due[name] - moment
        del self._due[name]
        self._status_written[name] = moment
        return 0.0

    # --- reads

    def _observe(self, machine: Obj, pool: Pool) -> tuple[Seen, dict[str, Obj]]:
        pods = self._current_pods(pool.group)
        reservations, guests = [], []
        for pod in pods.values():
            if is_reservation(pod):
                reservations.append(self._parsed(pod, reservation_of))
            elif not is_finished(pod):
                guests.append(self._parsed(pod, guest_of))
        shares, shares_at = shares_of(machine)
        seen = Seen(
            pool=pool,
            nodes=self._parsed_nodes(pool),
            reservations=reservations,
            guests=guests,
            now=self._clock.now(),
            was_ready=was_ready(machine),
            deleting=is_deleting(machine),
            shares=shares,
            shares_at=shares_at,
            bookings=bookings_of(self.reservations.by_index("group", pool.group)),
            image="" if self._is_on_processes(pool) else self._image(),
        )
        return seen, pods

    def _image(self) -> str:
        info = self._info.get(INFO_CONFIGMAP, SYSTEM_NAMESPACE) or {}
        return pause_image(info.get("data") or {})

    def _is_on_processes(self, pool: Pool) -> bool:
        return is_on_processes(node for node in self._nodes.all() if node["metadata"]["name"] in pool.offers)

    def _current_pods(self, group: str) -> dict[str, Obj]:
        """The group's pods by uid: the newer of the watched version and the version that we wrote."""
        current_pods = {pod["metadata"]["uid"]: pod for pod in self.pods.by_index("group", group)}
        now = self._clock.monotonic()
        for uid, (when, written) in list(self._written.items()):
            if now - when > OWN_WRITES_SECONDS:
                del self._written[uid]
            elif written is None:
                if (pod := current_pods.get(uid)) is not None and not is_deleting(pod):
                    current_pods[uid] = pod | {
                        "metadata": pod["metadata"] | {"deletionTimestamp": rfc3339(self._clock.now())}
                    }
            elif labels_of(written).get(MACHINE_GROUP_LABEL) == group:
                had = current_pods.get(uid)
                if had is None or _version(had) < _version(written):
                    current_pods[uid] = written
        return current_pods

    def _parsed(self, pod: Obj, read: Any) -> Any:
        meta = pod["metadata"]
        version = f"{meta.get('resourceVersion')}{meta.get('deletionTimestamp', '')}"
        known = self._read.get(meta["uid"])
        if known is None or known[0] != version:
            known = (version, read(pod))
            self._read[meta["uid"]] = known
        return known[1]

    def _parsed_nodes(self, pool: Pool) -> dict[str, NodeInfo]:
        parsed_nodes = {}
        for node in self._nodes.all():
            meta = node["metadata"]
            if meta["name"] not in pool.offers and labels_of(node).get(MACHINE_GROUP_LABEL) != pool.group:
                continue
            known = self._node_read.get(meta["name"])
            if known is None or known[0] != meta.get("resourceVersion"):
                try:
                    known = (meta.get("resourceVersion") or "", parse_node(node))
                except (ValueError, KeyError, TypeError) as error:
                    log.warning("a node cannot be read", extra={"node": meta["name"], "error": repr(error)})
                    continue
                self._node_read[meta["name"]] = known
            parsed_nodes[meta["name"]] = known[1]
        return parsed_nodes

    # --- writes

    async def _keep_node_pool(self, machine: Obj) -> None:
        wanted, name = make_node_pool(machine), machine["metadata"]["name"]
        known = self._node_pools.get(name)
        if known is None:
            with contextlib.suppress(AlreadyExists):
                await self._api.create(NODE_POOLS, wanted)
        elif is_deleting(known):
            return  # of an earlier Machine of this name; its end brings us back
        elif known.get("spec") != wanted["spec"]:
            patch = {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"]}, "spec": wanted["spec"]}
            await self._api.patch(NODE_POOLS, name, patch)

    async def _carry_out(
        self, actions: Iterable[Action], machine: Obj, pool: Pool, pods: Mapping[str, Obj]
    ) -> list[Conflict]:
        """Carry out the independent steps, some at once. Returns the conflicts: the next pass reads again."""
        turn = asyncio.Semaphore(AT_ONCE)
        on_processes = self._is_on_processes(pool)

        async def carry_out(action: Action) -> Conflict | None:
            async with turn:
                try:
                    await self._act(action, machine, pool, pods, on_processes=on_processes)
                except NotFound:
                    return None  # deleted meanwhile; the watch will report it
                except Conflict as error:
                    return error
            return None

        done = await asyncio.gather(*(carry_out(action) for action in actions))
        return [error for error in done if error is not None]

    async def _act(
        self, action: Action, machine: Obj, pool: Pool, pods: Mapping[str, Obj], *, on_processes: bool
    ) -> None:
        match action:
            # a created pod may exist already: an earlier pass made it, and the watch is late
            case Add(kind, name, alone):
                pod = make_reservation(
                    machine,
                    pool,
                    pool.types[kind],
                    name,
                    alone=alone,
                    on_processes=on_processes,
                    image=self._image(),
                    gpu_scheduler=scheduler_name(self._switch.get(SCHEDULER_CONFIGMAP, SYSTEM_NAMESPACE)),
                )
                with contextlib.suppress(AlreadyExists):
                    self._wrote(await self._api.create(PODS, pod))
            case ChangeImage(reservation):
                patch = make_other_image(self._image())
                self._wrote(
                    await self._api.patch(PODS, reservation.name, patch, SYSTEM_NAMESPACE, kind="strategic")
                )
            # the delete counts at once, before the watch reports it
            case Drop(reservation):
                await self._api.delete(PODS, reservation.name, SYSTEM_NAMESPACE, uid=reservation.uid)
                self._written[reservation.uid] = (self._clock.monotonic(), None)
            case Keep(reservation, alone):
                await self._relabel(make_nobodys(pods[reservation.uid], alone=alone), reservation)
            # the reservation is promised before the gate is lifted, so that no other guest gets its place
            case HandOver(reservation, guest):
                if not reservation.alone:
                    await self._promise(reservation, guest, pods)
                patch = lift(pods[guest.uid], reservation.node, rfc3339(self._clock.now()))
                self._wrote(await self._api.patch(PODS, guest.name, patch, guest.namespace))
            # the guest's node affinity also allows the node with this mark
            case MoveOn(reservation, guest):
                await self._promise(reservation, guest, pods)
                mark = {"metadata": {"labels": {PLACE_PREFIX + guest.uid: pool.group}}}
                await self._api.patch(NODES, reservation.node, mark)
                message = f"The place on {guest.place} was lost; the new place is on {reservation.node}"
                await self._events.record(pods[guest.uid], "Warning", "PlaceLost", message)
            case Unmark(node, label):
                await self._api.patch(NODES, node, {"metadata": {"labels": {label: None}}})
            # the annotation is for `moor explain`, the event for the user
            case Note(guest, text):
                note = {"metadata": {"annotations": {WAITS_ANNOTATION: text or None}}}
                self._wrote(await self._api.patch(PODS, guest.name, note, guest.namespace))
                if text:
                    _, _, why = text.partition(WAITS_SEPARATOR)
                    await self._events.record(pods[guest.uid], "Normal", "HeldForReservation", why)
            case _:
                assert_never(action)

    async def _promise(self, reservation: Reservation, guest: Guest, pods: Mapping[str, Obj]) -> None:
        if reservation.promised_to != guest.uid:
            patch = make_promise(pods[reservation.uid], pods[guest.uid], self._clock.now())
            await self._relabel(patch, reservation)

    async def _relabel(self, patch: Obj, reservation: Reservation) -> None:
        """Patch labels and status together. Only the status subresource accepts both."""
        self._wrote(await self._api.patch(PODS, reservation.name, patch, SYSTEM_NAMESPACE, subresource="status"))

    async def _write_status(self, machine: Obj, status: Obj | None) -> None:
        if status is not None:
            with contextlib.suppress(NotFound):
                await self._api.patch(
                    MACHINES, machine["metadata"]["name"], {"status": status}, subresource="status"
                )

    async def _record_misfits(self, decided: Plan, pods: Mapping[str, Obj]) -> None:
        for misfit in decided.misfits:
            if (misfit.guest.uid, misfit.why) not in self._reported:
                self._reported.add((misfit.guest.uid, misfit.why))
                await self._events.record(pods[misfit.guest.uid], "Warning", "LargerThanMachine", misfit.why)

    def _wrote(self, pod: Obj) -> None:
        self._written[pod["metadata"]["uid"]] = (self._clock.monotonic(), pod)

    # --- changes

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            uid = before["metadata"]["uid"]
            self._written.pop(uid, None)
            self._read.pop(uid, None)
            self._reported = {key for key in self._reported if key[0] != uid} if self._reported else self._reported
        elif after is not None:
            written = self._written.get(after["metadata"]["uid"])
            if written is not None and (
                is_deleting(after) if written[1] is None else _version(after) >= _version(written[1])
            ):
                del self._written[after["metadata"]["uid"]]

    def _beside(self, machine: Obj) -> Iterable[Key]:
        group = group_of(machine)
        return {
            key_of(machine),
            *(key_of(machine) for machine in self.machines.all() if group_of(machine) == group),
        }

    def _machine_of(self, pod: Obj) -> Iterable[Key]:
        return self._machines_of_group(labels_of(pod).get(MACHINE_GROUP_LABEL))

    def _machines_of_group(self, group: str | None) -> Iterable[Key]:
        return [key_of(machine) for machine in self.machines.all() if group_of(machine) == group]

    def _machines_on(self, node: Obj) -> Iterable[Key]:
        name, group = node["metadata"]["name"], labels_of(node).get(MACHINE_GROUP_LABEL)
        return [
            key_of(machine)
            for machine in self.machines.all()
            if group_of(machine) == group
            or any(entry["name"] == name for entry in (machine.get("spec") or {}).get("nodePool") or ())
        ]


def _group_booked(reservation: Mapping[str, Any]) -> str:
    return str((reservation.get("spec") or {}).get("machineGroup") or "")


def _group_index(reservation: Obj) -> Iterable[str]:
    return (_group_booked(reservation),)


def _version(obj: Mapping[str, Any]) -> int:
    """The resource version as a number. Versions of one collection grow: https://kep.k8s.io/5504."""
    try:
        return int(obj["metadata"].get("resourceVersion") or 0)
    except ValueError:
        return 0
