"""A kubelet's statistics of its pods and their volumes: the parts of its summary that are about them.

https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moorage_kube.cache import BoundedCache
from moorage_kube.clock import Clock, rfc3339
from moorage_kube.meta import Key
from moorage_kube.resources import Obj
from moorage_local.nodeagent.podfolder import Admission
from moorage_local.nodeagent.podstats import PodStat

FOLDERS_KEPT = 10_000
CACHE_SECONDS = 15.0  # so long a folder's size is believed: kubelets look once a minute


@dataclass(frozen=True, slots=True)
class Mounted:
    """One volume of a pod that comes from a claim."""

    pod: Obj
    volume: str
    claim: str
    folder: str


def mounted(pods: Iterable[Obj], claims: Mapping[Key, Obj], volumes: Mapping[str, Obj]) -> list[Mounted]:
    """Return the claims that unfinished pods mount; `claims` by namespace and name, `volumes` by name."""
    mounts = []
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for volume in pod["spec"].get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            claim = claims.get(Key(pod["metadata"]["namespace"], name)) if name else None
            behind = volumes.get(((claim or {}).get("spec") or {}).get("volumeName") or "")
            folder = (((behind or {}).get("spec") or {}).get("hostPath") or {}).get("path")
            if name and folder:
                mounts.append(Mounted(pod, volume["name"], name, folder))
    return mounts


class VolumeStats:
    """Sizes of folders, which are measured rarely."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sizes: BoundedCache[str, tuple[int, int]] = BoundedCache(
            FOLDERS_KEPT, keep_seconds=CACHE_SECONDS, clock=clock
        )

    async def summary(
        self,
        node: str,
        mounts: Iterable[Mounted],
        running: Iterable[Admission] = (),
        use: Mapping[str, PodStat] | None = None,
    ) -> Obj:
        """Return the stats summary of a node, without folders that cannot be read.

        `use`: the use of pods, by their uids.
        """
        pods: dict[str, Obj] = {}
        for pod in running:
            stat = (use or {}).get(pod.uid)
            if stat is not None:
                pods[pod.uid] = _entry(pod, stat)
        for mount in mounts:
            meta = mount.pod["metadata"]
            entry = pods.setdefault(
                meta["uid"],
                {"podRef": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}},
            )
            entry.setdefault("volume", [])
            if (size := await self._size(mount.folder)) is None:
                continue
            used, files = size
            room = shutil.disk_usage(mount.folder)
            entry["volume"].append(
                {
                    "time": rfc3339(self._clock.now()),
                    "name": mount.volume,
                    "usedBytes": used,
                    "inodesUsed": files,
                    "capacityBytes": room.total,
                    "availableBytes": room.free,
                    "pvcRef": {"name": mount.claim, "namespace": meta["namespace"]},
                }
            )
        return {"node": {"nodeName": node}, "pods": list(pods.values())}

    async def _size(self, folder: str) -> tuple[int, int] | None:
        size = self._sizes.get(folder)
        if size is None:
            try:
                size = await asyncio.to_thread(folder_size, folder)
            except OSError:
                return None
            self._sizes.put(folder, size)
        return size


def _entry(pod: Admission, stat: PodStat) -> Obj:
    at = rfc3339(stat.at)
    cpu: Obj = {"time": at, "usageCoreNanoSeconds": stat.cpu_nanoseconds}
    if stat.nano_cores is not None:
        cpu["usageNanoCores"] = stat.nano_cores
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": pod.at,
        "cpu": cpu,
        "memory": {"time": at, "workingSetBytes": stat.memory_bytes},
    }


def folder_size(folder: str) -> tuple[int, int]:
    """(bytes on the disk, files and folders) below a folder; links are not followed.

    Raises OSError only for the folder itself.
    """
    used, files = os.lstat(folder).st_blocks * 512, 1
    root = os.path.realpath(folder)
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            fd = open_below(path, root)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    try:
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
                    except OSError:
                        continue
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(os.path.join(path, entry.name))
        except OSError:
            continue
        finally:
            os.close(fd)
    return used, files


def open_below(path: str, root: str) -> int:
    """Open a folder at `root` or below it.

    Raises OSError, also if a part of the path has become a link that leads out: pods change the tree while it
    is read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    opened = os.readlink(f"/proc/self/fd/{fd}")
    if opened != root and not opened.startswith(root.rstrip("/") + "/"):
        os.close(fd)
        raise NotADirectoryError(f"{path} leads out of {root}")
    return fd
