"""API types of volumes and StorageClasses: `/api/v1/volumes`, `/api/v1/storageclasses`, `/api/v1/helper`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Name, Request, Time, about
from moorage.model.storageclass import RWO


class NewVolume(Request):
    """A volume to create."""

    name: Name
    namespace: Name
    size: Annotated[str, about("Kubernetes quantity, such as 10Gi.")]
    access_mode: Annotated[
        str,
        msgspec.Meta(pattern="^(ReadWriteOnce|ReadWriteMany)$"),
        about("ReadWriteOnce (one node) or ReadWriteMany (many nodes)."),
    ] = RWO
    storage_class: Annotated[
        str, msgspec.Meta(max_length=253), about("StorageClass of the volume; empty: the cluster's default.")
    ] = ""


class Resize(Request):
    """The new size of a volume."""

    size: Annotated[str, about("New size, a Kubernetes quantity; not smaller than the present size.")]


class Volume(Answer, frozen=True):
    """A volume."""

    namespace: str
    name: str
    size: Annotated[str, about("Capacity, before it is bound the requested size; a Kubernetes quantity.")] = ""
    used_bytes: Annotated[int | None, about("Bytes in use; null: not mounted, or the node gave no answer.")] = None
    modes: Annotated[tuple[str, ...], about("Access modes, such as ReadWriteOnce.")] = ()
    storage_class: Annotated[str, about("StorageClass of the volume; empty: none.")] = msgspec.field(
        default="", name="class"
    )
    state: Annotated[str, about("Pending, Bound, Lost or Terminating.")] = ""
    owner: Annotated[str, about("User who created it.")] = ""
    used_by: Annotated[tuple[str, ...], about("Runs and pods that mount it.")] = ()
    created: Annotated[Time | None, about("When the volume was created.")] = None


class VolumeList(Answer, frozen=True):
    """A page of volumes."""

    volumes: tuple[Volume, ...] = ()
    after: Annotated[
        str | None, about("Send it as `continue` for the next page; null: this is the last page.")
    ] = msgspec.field(default=None, name="continue")


class StorageClass(Answer, frozen=True):
    """A StorageClass, and the abilities of its volumes."""

    name: str
    default: Annotated[bool, about("Whether volumes without a StorageClass get this one.")] = False
    modes: Annotated[tuple[str, ...] | None, about("Access modes that its volumes can have; null: not known.")] = (
        None
    )
    expands: Annotated[bool, about("Whether its volumes can be made larger.")] = False
    datasets: Annotated[str, about("How datasets are shared on it: shared, clone, no, or ? (not known).")] = ""
    provisioner: Annotated[str, about("Driver that creates the volumes.")] = ""
    reclaim_policy: Annotated[
        str, about("Whether the data of a deleted volume are deleted or retained: Delete or Retain.")
    ] = ""


class StorageClassList(Answer, frozen=True):
    storage_classes: tuple[StorageClass, ...] = ()


class Helper(Answer, frozen=True):
    """The image and Python of a helper pod that copies files to and from a volume."""

    image: Annotated[str, about("Image of Moorage on this cluster; empty: not known.")] = ""
    python: Annotated[str, about("Python of that image, or of the machine whose nodes run processes.")] = "python"
