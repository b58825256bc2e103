"""API types of datasets: `/api/v1/datasets`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Name, Request, Time, about


class NewDataset(Request):
    """A dataset to create."""

    name: Name
    namespace: Name
    spec: Annotated[dict[str, Any], about("As `spec` of the kind Dataset.")]
    dry_run: Annotated[bool, about("Check the request; create nothing.")] = False


class Readers(Request):
    """The complete list of tenants that may read a dataset."""

    readers: Annotated[
        list[str],
        msgspec.Meta(max_length=100),
        about("Names of all tenants that may read it; others lose access."),
    ]


class Progress(Answer, frozen=True):
    """The progress of a fill."""

    phase: Annotated[str, about("Step of the fill: listing, filling or unpacking.")] = ""
    files: Annotated[int, about("Files on the volume so far.")] = 0
    bytes: Annotated[int, about("Bytes on the volume so far.")] = 0
    files_total: Annotated[int | None, about("Files at the source; null: not known yet.")] = None
    bytes_total: Annotated[int | None, about("Bytes at the source; null: not known yet.")] = None


class Reader(Answer, frozen=True, omit_defaults=True):
    """A tenant that may read a dataset, and the claim through which it reads."""

    tenant: Annotated[str, about("Name of the tenant.")]
    namespace: Annotated[str, about("Namespace of the tenant.")] = ""
    claim: Annotated[str, about("PersistentVolumeClaim in the tenant's namespace.")] = ""
    ready: Annotated[bool, about("Whether pods of the tenant can mount it.")] = False
    message: Annotated[str, about("Why the tenant cannot read it yet; empty when ready.")] = ""


class Use(Answer, frozen=True, omit_defaults=True):
    """A run, workspace or pod that mounts a dataset or has mounted it."""

    namespace: Annotated[str, about("Namespace of the pod.")]
    name: Annotated[str, about("Name of the run, workspace or pod.")]
    active: Annotated[bool, about("Whether a pod mounts it now; false: it did before.")] = False
    since: Annotated[str, about("When a pod was first seen to mount it, RFC 3339.")] = ""


class Dataset(Answer, frozen=True):
    """A dataset."""

    namespace: str
    name: str
    phase: Annotated[
        str, about("Pending, Filling, Publishing, Ready, Failed or Terminating; Ready: pods can mount `claim`.")
    ] = ""
    reason: Annotated[str, about("Reason of the condition Ready, one word.")] = ""
    message: Annotated[str, about("Message of the condition Ready, a sentence.")] = ""
    files: Annotated[int | None, about("Number of files; null: not filled yet.")] = None
    bytes: Annotated[int | None, about("Size of all files in bytes; null: not filled yet.")] = None
    checksum: Annotated[str, about("SHA-256 over the lines that sha256sum prints for all files, by name.")] = ""
    progress: Annotated[Progress | None, about("Progress of the fill; null: a fill is not running.")] = None
    filled_at: Annotated[str, about("When the fill ended, RFC 3339; empty: not filled yet.")] = ""
    source: Annotated[str, about("URL that the dataset is filled from.")] = ""
    size: Annotated[str, about("Size of the volume, a Kubernetes quantity.")] = ""
    storage_class: Annotated[str, about("StorageClass of the volume; empty: the cluster's default.")] = (
        msgspec.field(default="", name="class")
    )
    access: Annotated[str, about("How other namespaces read it: shared or clone; empty: not decided yet.")] = ""
    claim: Annotated[str, about("PersistentVolumeClaim to mount, read-only; empty: not there yet.")] = ""
    attempts: Annotated[int, about("Filler Jobs that were started.")] = 0
    owner: Annotated[str, about("User who created it.")] = ""
    readers: Annotated[tuple[Reader, ...], about("Tenants that may read it.")] = ()
    used_by: Annotated[tuple[Use, ...], about("Runs, workspaces and pods that mount or mounted it.")] = ()
    created: Annotated[Time | None, about("When the dataset was created.")] = None


class DatasetList(Answer, frozen=True):
    """A page of datasets."""

    datasets: tuple[Dataset, ...] = ()
    after: Annotated[
        str | None, about("Send it as `continue` for the next page; null: this is the last page.")
    ] = msgspec.field(default=None, name="continue")
