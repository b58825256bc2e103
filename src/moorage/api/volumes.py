"""Volumes and StorageClasses on the wire: `/api/v1/volumes`, `/api/v1/storageclasses`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Name, Request
from moorage.model.storageclass import RWO


class NewVolume(Request):
    """A volume to create. `size` is a Kubernetes quantity; `storage_class` empty: the cluster's default."""

    name: Name
    namespace: Name
    size: str
    mode: Annotated[str, msgspec.Meta(pattern="^(ReadWriteOnce|ReadWriteMany)$")] = RWO
    storage_class: Annotated[str, msgspec.Meta(max_length=253)] = ""


class Resize(Request):
    """The new size of a volume, a Kubernetes quantity."""

    size: str


class Volume(Answer, frozen=True):
    """A volume. `size` is a Kubernetes quantity; `used_by` are runs and pods that mount it.

    `used_bytes` None: not mounted, or its node gave no answer.
    """

    namespace: str
    name: str
    size: str = ""
    used_bytes: int | None = None
    modes: tuple[str, ...] = ()
    storage_class: str = msgspec.field(default="", name="class")
    state: str = ""
    owner: str = ""
    used_by: tuple[str, ...] = ()
    created: datetime | None = None


class VolumeList(Answer, frozen=True):
    """A page of volumes; `after` is the `continue` of the next page, None at the end."""

    volumes: tuple[Volume, ...] = ()
    after: str | None = msgspec.field(default=None, name="continue")


class StorageClass(Answer, frozen=True):
    """What volumes can be made of. `modes` None: not known; `datasets`: how datasets are shared on it."""

    name: str
    default: bool = False
    modes: tuple[str, ...] | None = None
    expands: bool = False
    datasets: str = ""
    provisioner: str = ""
    reclaim_policy: str = ""


class StorageClassList(Answer, frozen=True):
    storage_classes: tuple[StorageClass, ...] = ()
