"""Images, volumes, the network and the use of a container in Docker's API.

https://docs.docker.com/reference/api/engine/version/v1.41/
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from moorage.api.volumes import Volume
from moorage.decide.docker.containers import MAIN, config_of
from moorage_kube.globs import fits
from moorage_kube.images import short_name, without_tag
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj

NO_TIME = "0001-01-01T00:00:00Z"
NO_SECONDS = -62135596800  # the same, in seconds since 1970
NETWORK = "bridge"  # the network of all pods, under the name that Docker's clients expect
SECOND = 10**9  # in nanoseconds


class Image(Struct, frozen=True, kw_only=True):
    """An image that a person pulled, or that a visible container uses."""

    name: str  # as `full_name` writes it
    digest: str = ""  # as the node reports it; empty: unknown
    size_bytes: int = 0  # as a node reports it; 0: unknown
    containers: int = 0


def full_name(image: str) -> str:
    """The short name of an image, with a tag or digest: "docker.io/library/python" is "python:latest"."""
    name = short_name(image)
    return name if "@" in name or without_tag(name) != name else f"{name}:latest"


def image_id(image: str) -> str:
    """An id from the name: nodes report different ids for one image."""
    return f"sha256:{hashlib.sha256(full_name(image).encode()).hexdigest()}"


def images_of(pulled: Iterable[str], containers: Iterable[Obj], nodes: Iterable[Mapping[str, Any]]) -> list[Image]:
    """The images that were pulled, and those of the containers, by name."""
    counts: dict[str, int] = dict.fromkeys(pulled, 0)
    digests: dict[str, str] = {}
    for pod in containers:
        name = full_name(str(config_of(pod).get("Image") or ""))
        counts[name] = counts.get(name, 0) + 1
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            digest = str(status.get("imageID") or "").rpartition("@")[2]
            if status.get("name") == MAIN and digest.startswith("sha256:"):
                digests[name] = digest
    sizes = {
        full_name(str(name)): int(image.get("sizeBytes") or 0)
        for node in nodes
        for image in (node.get("status") or {}).get("images") or ()
        for name in image.get("names") or ()
    }
    return [
        Image(name=name, digest=digests.get(name, ""), size_bytes=sizes.get(name, 0), containers=counts[name])
        for name in sorted(counts)
    ]


def find_image(images: Iterable[Image], word: str) -> Image | None:
    """The image with this name, id, or id prefix of twelve digits or more."""
    hexadecimal = word.removeprefix("sha256:")
    for image in images:
        known = image_id(image.name).removeprefix("sha256:")
        if image.name == full_name(word) or (len(hexadecimal) >= 12 and known.startswith(hexadecimal)):
            return image
    return None


def image_row(image: Image) -> Obj:
    """One row of `GET /images/json`."""
    return _image(image) | {
        "ParentId": "",
        "Created": NO_SECONDS,
        "SharedSize": -1,
        "Labels": {},
        "Containers": image.containers,
    }


def show_image(image: Image) -> Obj:
    """`GET /images/{name}/json`. The registry has the other facts."""
    return _image(image) | {
        "Created": NO_TIME,
        "Os": "linux",
        "Architecture": "",
        "Author": "",
        "Comment": "",
        "Parent": "",
        "Config": {"Labels": {}},
        "RootFS": {"Type": "layers", "Layers": []},
    }


def _image(image: Image) -> Obj:
    return {
        "Id": image_id(image.name),
        "RepoTags": [] if "@" in image.name else [image.name],
        "RepoDigests": [image.name]
        if "@" in image.name
        else [f"{without_tag(image.name)}@{image.digest}"]
        if image.digest
        else [],
        "Size": image.size_bytes,
        "VirtualSize": image.size_bytes,
    }


def image_matches(image: Image, filters: Mapping[str, Sequence[str]]) -> bool:
    """Whether an image passes all filters. Raises ValueError for other filters than `reference`, `dangling`."""
    if strange := sorted(set(filters) - {"reference", "dangling"}):
        raise ValueError(f"invalid filter {strange[0]!r}: use dangling or reference")
    if any(value.lower() in ("1", "true") for value in filters.get("dangling", ())):
        return False  # each image here has a name
    patterns = [short_name(pattern) for pattern in filters.get("reference", ())]
    names = (image.name, without_tag(image.name))
    return not patterns or any(fits(name, pattern) for pattern in patterns for name in names)


def show_volume(volume: Volume) -> Obj:
    """`GET /volumes/{name}`."""
    return {
        "Name": volume.name,
        "Driver": "kubernetes",
        "Mountpoint": "",
        "CreatedAt": rfc3339(volume.created) if volume.created else NO_TIME,
        "Labels": {},
        "Scope": "global",
        "Options": {"size": volume.size},
        "Status": {"State": volume.state, "UsedBy": list(volume.used_by)},
        "UsageData": {
            "Size": -1 if volume.used_bytes is None else volume.used_bytes,
            "RefCount": len(volume.used_by),
        },
    }


def show_network() -> Obj:
    """`GET /networks/bridge`."""
    return {
        "Name": NETWORK,
        "Id": hashlib.sha256(NETWORK.encode()).hexdigest(),
        "Created": NO_TIME,
        "Scope": "global",
        "Driver": "kubernetes",
        "EnableIPv6": False,
        "IPAM": {"Driver": "default", "Options": None, "Config": []},
        "Internal": False,
        "Attachable": False,
        "Ingress": False,
        "ConfigFrom": {"Network": ""},
        "ConfigOnly": False,
        "Containers": {},
        "Options": {},
        "Labels": {},
    }


def show_stats(
    container: Mapping[str, Any],
    *,
    at: datetime | None,
    cpu_milli: int | None,
    memory_bytes: int | None,
    memory_limit: int,
    cpus: int,
) -> Obj:
    """One answer of `GET /containers/{id}/stats`. `at`: when the use was measured; None: it was not.

    Docker's clients compute the CPU use from the growth of counters. The counters here have grown for one second
    at the measured use.
    """
    used = (cpu_milli or 0) * SECOND // 1000
    times = {"throttling_data": {"periods": 0, "throttled_periods": 0, "throttled_time": 0}, "online_cpus": cpus}
    usage = {"usage_in_kernelmode": 0, "usage_in_usermode": 0, "percpu_usage": []}
    return {
        "id": container["Id"],
        "name": container["Name"],
        "read": rfc3339(at) if at else NO_TIME,
        "preread": NO_TIME,
        "num_procs": 0,
        "pids_stats": {},
        "blkio_stats": {},
        "storage_stats": {},
        "networks": {},
        "cpu_stats": {"cpu_usage": usage | {"total_usage": used}, "system_cpu_usage": cpus * SECOND, **times},
        "precpu_stats": {"cpu_usage": usage | {"total_usage": 0}, "system_cpu_usage": 0, **times},
        "memory_stats": {"usage": memory_bytes or 0, "limit": memory_limit, "stats": {}},
    }


def show_processes(printed: str, *, uid: str = "") -> Obj:
    """`GET /containers/{id}/top`, from the output of `ps`.

    `uid`: of a pod whose node is this machine. Then the output begins with the tree of all processes, and a blank
    line. Raises ValueError for an output without process ids.
    """
    tree, _, table = printed.partition("\n\n") if uid else ("", "", printed)
    lines = [line for line in table.splitlines() if line.strip()]
    titles = lines[0].split() if lines else []
    rows = [line.split(None, len(titles) - 1) for line in lines[1:]]
    if uid:
        if "PID" not in titles:
            raise ValueError("the output of ps has no column PID: use other ps_args, such as -ef")
        own, column = _processes_of(uid, tree), titles.index("PID")
        rows = [row for row in rows if row[column] in own]
    return {"Titles": titles, "Processes": rows}


def _processes_of(uid: str, tree: str) -> set[str]:
    """The ids of a pod's processes, from lines of PID, PPID and ARGS: those below the shim of the pod's folder."""
    parents: dict[str, str] = {}
    shims: set[str] = set()
    for line in tree.splitlines():
        pid, parent, args = (*line.split(None, 2), "")[:3]
        parents[pid] = parent
        if args.startswith("podshim ") and args.endswith(f"/{uid}"):
            shims.add(pid)

    def is_below(pid: str) -> bool:
        return pid in parents and (parents[pid] in shims or is_below(parents[pid]))

    return {pid for pid in parents if pid not in shims and is_below(pid)}
