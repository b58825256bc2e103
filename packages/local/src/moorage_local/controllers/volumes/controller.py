"""Executes the steps that `plan` decides for claims and volumes; the only module that changes the folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import AlreadyExists, NotFound, StorageError
from moorage_kube.meta import Key, is_deleting, key_of
from moorage_kube.resources import PODS, PVCS, PVS, STORAGECLASSES, Obj
from moorage_local.controllers.base import Writer
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.volumes.plan import (
    ClaimAction,
    ClaimObserved,
    PatchClaim,
    PatchVolume,
    Provision,
    Reclaim,
    SetClaimStatus,
    SetFinalizer,
    SetVolumePhase,
    Tell,
    VolumeAction,
    VolumeObserved,
    plan_claim,
    plan_volume,
    refers_to,
)
from moorage_local.informers import InformerSet
from moorage_local.removal import remove_tree

OF_A_FULL_DISK = ("ProvisioningFailed", "VolumeResizeFailed")  # reasons of events
DISK_SECONDS = timedelta(seconds=10)  # between two looks at a disk without room for a volume
TRASH = ".deleted-"  # how the name of a folder begins that is being removed


def index_by_claim(pod: Obj) -> Iterable[str]:
    """Index pods by their claims, as "namespace/claim", including those of generic ephemeral volumes."""
    namespace, name = pod["metadata"].get("namespace"), pod["metadata"]["name"]
    claims = []
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            claims.append(f"{namespace}/{volume['persistentVolumeClaim']['claimName']}")
        elif volume.get("ephemeral"):
            claims.append(f"{namespace}/{name}-{volume['name']}")
    return claims


class Folders:
    """The folders of volumes below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, name: str) -> None:
        """Create a folder. Raises StorageError if the disk refuses."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / name).mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder of volume {name}: {error}") from error

    def free_bytes(self) -> int | None:
        """Return the free space of the disk; None if it cannot be read."""
        try:
            return shutil.disk_usage(next(path for path in (self.root, *self.root.parents) if path.exists())).free
        except OSError:
            return None

    def remove(self, path: str) -> None:
        """Remove one volume's folder with its content; a missing folder is not an error.

        It is renamed first: a removal cut short leaves no half-empty folder under the volume's name. Only
        folders directly under the root are touched.
        """
        folder = Path(path)
        if folder.parent != self.root or folder.name.startswith("."):
            raise StorageError(f"cannot remove {path}: it is not a volume's folder under {self.root}")
        trash = self.root / f"{TRASH}{folder.name}-{secrets.token_hex(4)}"
        try:
            os.rename(folder, trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot remove the folder {path}: {error}") from error
        with contextlib.suppress(OSError):  # the sweep tries again
            remove_tree(trash)

    def sweep(self) -> None:
        """Finish removals that were interrupted."""
        with contextlib.suppress(FileNotFoundError):
            for path in self.root.iterdir():
                if path.name.startswith(TRASH):
                    with contextlib.suppress(OSError):
                        remove_tree(path)


class VolumeController:
    """Two loops, for claims and for volumes, which queue keys for each other."""

    def __init__(
        self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock, *, volumes_folder: Path
    ) -> None:
        self._api = api
        self._events = events
        self._folders = Folders(volumes_folder)
        self._claims = informers.of(PVCS)
        self._volumes = informers.of(PVS)
        self._classes = informers.of(STORAGECLASSES)
        self._pods = informers.of(PODS, claim=index_by_claim)
        self._writer = Writer(api, events, clock)
        self._told: dict[Key, Tell] = {}
        self.claims: ControlLoop[Key] = ControlLoop("claims", self.reconcile_claim, of=self._claims)
        self.volumes: ControlLoop[Key] = ControlLoop("volumes", self.reconcile_volume, of=self._volumes)
        self._claims.on_change(self._claim_changed)
        self._volumes.on_change(self._volume_changed)
        self._classes.on_change(self._class_changed)
        self._pods.on_change(self._pod_changed)

    async def sweep(self) -> None:
        """At the start, finish removals of folders that were interrupted."""
        await asyncio.to_thread(self._folders.sweep)

    def _claim_changed(self, before: Obj | None, after: Obj | None) -> None:
        claim = after or before
        if claim is None:
            return
        self.claims.queue.add(key_of(claim))
        name = (claim.get("spec") or {}).get("volumeName")
        if name:
            self.volumes.queue.add(Key("", name))
        if after is None:
            for volume in self._volumes.all():
                if refers_to(volume, claim):
                    self.volumes.queue.add(key_of(volume))

    def _volume_changed(self, before: Obj | None, after: Obj | None) -> None:
        volume = after or before
        if volume is None:
            return
        self.volumes.queue.add(key_of(volume))
        ref = (volume.get("spec") or {}).get("claimRef")
        if ref:
            self.claims.queue.add(Key(ref.get("namespace") or "", ref.get("name") or ""))
        name = volume["metadata"]["name"]
        for claim in self._claims.all():
            bound_to = claim["spec"].get("volumeName")
            if bound_to == name or (not bound_to and not ref):
                self.claims.queue.add(key_of(claim))

    def _class_changed(self, _before: Obj | None, _after: Obj | None) -> None:
        for claim in self._claims.all():
            self.claims.queue.add(key_of(claim))

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        for pod in (before, after):
            for text in index_by_claim(pod) if pod is not None else ():
                namespace, _, name = text.partition("/")
                self.claims.queue.add(Key(namespace, name))

    # -- claims -----------------------------------------------------------------------------------------------

    async def reconcile_claim(self, key: Key) -> timedelta | None:
        if not await self._writer.is_ready(key):
            return timedelta(milliseconds=200)
        claim = self._claims.get(key.name, key.namespace)
        if claim is None:
            self._told.pop(key, None)
            self._writer.forget(key)
            return None
        pods = self._pods.by_index("claim", f"{key.namespace}/{key.name}")
        if is_deleting(claim):
            # a pod may be missing in the cache: ask the API before the protection is removed
            listed = await self._api.list(PODS, key.namespace)
            pods = [pod for pod in listed.items if f"{key.namespace}/{key.name}" in index_by_claim(pod)]
        decided = plan_claim(
            ClaimObserved(
                claim=claim,
                volumes=self._volumes.all(),
                classes=self._classes.all(),
                pods=pods,
                folder=str(self._folders.root),
                free_bytes=self._folders.free_bytes(),
            )
        )
        for action in decided:
            claim = await self._act_claim(key, claim, action)
        is_refused = any(isinstance(action, Tell) and action.reason in OF_A_FULL_DISK for action in decided)
        return DISK_SECONDS if is_refused else None

    async def _act_claim(self, key: Key, claim: Obj, action: ClaimAction) -> Obj:
        match action:
            case SetFinalizer(finalizer, present):
                if not present:
                    await self._writer.remove_finalizer(key, self._claims, claim, finalizer)
                    return claim
                return await self._patch(key, _with_finalizer(claim, finalizer))
            case PatchClaim(patch):
                return await self._patch(key, patch)
            case SetClaimStatus(status):
                return await self._writer.write_status(key, self._claims, claim, status)
            case PatchVolume(volume, patch):
                meta = volume["metadata"]
                guarded = {
                    **patch,
                    "metadata": {
                        **(patch.get("metadata") or {}),
                        "uid": meta["uid"],
                        "resourceVersion": meta["resourceVersion"],
                    },
                }
                new = await self._api.patch(PVS, meta["name"], guarded)
                self._writer.fresh.wrote(key, self._volumes, new)
            case Provision(volume):
                await self._provision(key, claim, volume)
            case Tell(type, reason, message):
                if self._told.get(key) != action:
                    self._told[key] = action
                    self._events.event(claim, type, reason, message)
            case _:
                assert_never(action)
        return claim

    async def _patch(self, key: Key, patch: Obj) -> Obj:
        new = await self._api.patch(PVCS, key.name, patch, key.namespace)
        self._writer.fresh.wrote(key, self._claims, new)
        return new

    async def _provision(self, key: Key, claim: Obj, volume: Obj) -> None:
        try:
            await asyncio.to_thread(self._folders.make, volume["metadata"]["name"])
        except StorageError as error:
            self._events.event(claim, "Warning", "ProvisioningFailed", error.message)
            raise
        try:
            new = await self._api.create(PVS, volume)
        except AlreadyExists:
            new = await self._api.get(PVS, volume["metadata"]["name"])
        self._writer.fresh.wrote(key, self._volumes, new)

    # -- volumes ----------------------------------------------------------------------------------------------

    async def reconcile_volume(self, key: Key) -> timedelta | None:
        if not await self._writer.is_ready(key):
            return timedelta(milliseconds=200)
        volume = self._volumes.get(key.name)
        if volume is None:
            self._writer.forget(key)
            return None
        ref = (volume.get("spec") or {}).get("claimRef") or {}
        claim = self._claims.get(ref.get("name") or "", ref.get("namespace") or "")
        for action in plan_volume(VolumeObserved(volume=volume, claim=claim)):
            volume = await self._act_volume(key, volume, action)
        return None

    async def _act_volume(self, key: Key, volume: Obj, action: VolumeAction) -> Obj:
        match action:
            case SetFinalizer(finalizer, present):
                if present:
                    new = await self._api.patch(PVS, key.name, _with_finalizer(volume, finalizer))
                    self._writer.fresh.wrote(key, self._volumes, new)
                    return new
                await self._writer.remove_finalizer(key, self._volumes, volume, finalizer)
            case SetVolumePhase(phase, message):
                status = {**(volume.get("status") or {}), "phase": phase}
                status.pop("message", None)
                if message:
                    status["message"] = message
                return await self._writer.write_status(key, self._volumes, volume, status)
            case PatchVolume(other, patch):
                new = await self._api.patch(PVS, other["metadata"]["name"], patch)
                self._writer.fresh.wrote(key, self._volumes, new)
                return new
            case Reclaim():
                await self._reclaim(key, volume)
            case Tell(type, reason, message):
                self._events.event(volume, type, reason, message)
            case _:
                assert_never(action)
        return volume

    async def _reclaim(self, key: Key, volume: Obj) -> None:
        """Remove the folder and the volume, unless the claim still exists in the API: the cache may be behind."""
        ref = volume["spec"]["claimRef"]
        try:
            claim = await self._api.get(PVCS, ref["name"], ref["namespace"])
        except NotFound:
            pass
        else:
            if refers_to(volume, claim):
                self.volumes.queue.add_after(key, 1.0)
                return
        try:
            await asyncio.to_thread(self._folders.remove, volume["spec"]["hostPath"]["path"])
        except StorageError as error:
            self._events.event(volume, "Warning", "VolumeFailedDelete", error.message)
            raise
        with contextlib.suppress(NotFound):
            await self._api.delete(PVS, key.name, uid=volume["metadata"]["uid"])
        self._writer.fresh.deleted(key, self._volumes, volume)


def _with_finalizer(obj: Obj, finalizer: str) -> Obj:
    """Return the merge patch that adds a finalizer; it fails if the object has changed."""
    meta = obj["metadata"]
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "finalizers": [*(meta.get("finalizers") or ()), finalizer],
        }
    }
