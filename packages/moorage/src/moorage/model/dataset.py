"""Dataset: data that is copied to a volume once, checked, and then read by any number of pods."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from moorage.model.machine import Fault
from moorage.model.names import GROUP, OWNER_ANNOTATION, OWNER_LABEL, VERSION, is_dns_label
from moorage.model.tenant import Condition, Quantity
from moorage_kube.errors import MoorageError
from moorage_kube.meta import annotations_of, is_deleting
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_count
from moorage_kube.resources import Resource

DATASETS = Resource(GROUP, VERSION, "datasets", "Dataset")

PENDING, FILLING, PUBLISHING, READY, FAILED = "Pending", "Filling", "Publishing", "Ready", "Failed"
PHASES = (PENDING, FILLING, PUBLISHING, READY, FAILED)
AUTO, SHARED, CLONE = "auto", "shared", "clone"
METHODS = (AUTO, SHARED, CLONE)
NAME_MAX = 40  # Jobs are named "dataset-NAME-N", claims of other tenants "dataset-NAME-HASH"
DATA_FOLDER = "data"  # folder of the volume that readers mount (moorage.filler.fill.DATA)
USED_BY_MAX = 50
READERS_MAX = 100

DATASET_LABEL = "moorage.dev/dataset"  # on the Job, the claims and the volumes of a dataset: its name
DATASET_OF_LABEL = "moorage.dev/dataset-namespace"  # with it, on objects in other namespaces
USES_LABEL = "moorage.dev/uses-dataset"  # on Jobs and pods that mount datasets: "true"
USES_PREFIX = "dataset.moorage.dev/"  # on them, by dataset's name: its namespace
REFILL_ANNOTATION = "moorage.dev/refill"  # on a Dataset, any text: a new text fills it again, if it is not ready
DATASET_FINALIZER = "moorage.dev/dataset"  # while other namespaces have claims on it

_SCHEMES = ("s3", "gs", "https", "http", "volume", "upload")
_VOLUME = re.compile(r"volume:([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?:/(.*))?")
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
_TIME = Meta(extra_json_schema={"format": "date-time"})
_NATURAL = Meta(ge=0, le=2**60)


class DatasetSource(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The source of the data."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            pattern="^(s3|gs|https|http)://|^volume:|^upload:$",
            description="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://… (ending in / it is listed as a folder),"
            " volume:NAME[/FOLDER] of this namespace, or upload: for files that the user sends.",
        ),
    ]
    secret: Annotated[
        str,
        Meta(
            max_length=253,
            description="Secret of this namespace whose keys become environment variables of the filler, such as"
            " AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, MOORAGE_HTTP_AUTHORIZATION; key.json is for gs://.",
        ),
    ] = ""
    anonymous: Annotated[bool, Meta(description="Ask the object store without credentials.")] = False
    unpack: Annotated[bool, Meta(description="The source is one archive: its files are the dataset.")] = False


class DatasetSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The source, the volume to fill, and the tenants that may read it."""

    source: DatasetSource
    size: Annotated[Quantity, Meta(description="How much the volume holds.")]
    storage_class: Annotated[str, Meta(max_length=253, description="Default: the cluster's.")] = ""
    access: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": list(METHODS)},
            description="How many nodes read it: shared (a ReadWriteMany volume), clone (a ReadWriteOnce"
            " one that is filled and then cloned as ReadOnlyMany), or auto: by the abilities of the StorageClass.",
        ),
    ] = AUTO
    readers: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=253)]],
        Meta(max_length=READERS_MAX, description="Tenants that may mount it too."),
    ] = []


class FillProgress(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Progress of a fill. `total` fields are absent where the source does not report a total."""

    phase: Annotated[str, Meta(description="Step of the fill: listing, filling or unpacking.")] = ""
    files: Annotated[int, _NATURAL, Meta(description="Files on the volume.")] = 0
    bytes: Annotated[int, _NATURAL, Meta(description="Bytes on the volume.")] = 0
    files_total: Annotated[
        Annotated[int, _NATURAL] | None, Meta(description="Files at the source, once known.")
    ] = None
    bytes_total: Annotated[
        Annotated[int, _NATURAL] | None, Meta(description="Bytes at the source, once known.")
    ] = None


class Use(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A run, or a pod without a run, that mounts or has mounted the dataset."""

    namespace: Annotated[str, Meta(description="Namespace of the pod.")]
    name: Annotated[str, Meta(description="Name of the run, workspace or pod.")]
    active: Annotated[bool, Meta(description="Whether the pod uses it now.")] = False
    since: Annotated[str, _TIME, Meta(description="When it was first seen there.")] = ""


class Reader(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tenant that may read the dataset, and the claim in its namespace."""

    tenant: Annotated[str, Meta(description="Tenant that may read it.")]
    namespace: Annotated[str, Meta(description="Namespace of the tenant.")] = ""
    claim: Annotated[str, Meta(description="Claim in the namespace of the tenant.")] = ""
    ready: Annotated[bool, Meta(description="Whether pods can mount it there.")] = False
    message: Annotated[str, Meta(description="Why it cannot be read there.")] = ""


class DatasetStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    phase: Annotated[
        str, Meta(extra_json_schema={"enum": ["", *PHASES]}, description="Current phase of the dataset.")
    ] = ""
    claim: Annotated[str, Meta(description="The claim that pods mount, read-only, with subPath data.")] = ""
    access: Annotated[str, Meta(description="How: shared or clone.")] = ""
    files: Annotated[int, _NATURAL, Meta(description="Number of its files.")] = 0
    bytes: Annotated[int, _NATURAL, Meta(description="Size of its files.")] = 0
    checksum: Annotated[
        str, Meta(description="SHA-256 over the lines that sha256sum prints of all files, sorted by name.")
    ] = ""
    source_version: Annotated[str, Meta(description="SHA-256 over the versions of the source's files.")] = ""
    filled_at: Annotated[str, _TIME, Meta(description="When it was filled.")] = ""
    revision: Annotated[str, Meta(description="Of the source that is, or is being, filled.")] = ""
    attempts: Annotated[int, _NATURAL, Meta(description="Filler Jobs that were started.")] = 0
    stalled: Annotated[int, Meta(ge=0, description="Consecutive attempts without progress.")] = 0
    mark: Annotated[int, Meta(ge=0, description="Bytes on the volume when the last attempt began.")] = 0
    progress: FillProgress | None = None
    readers: list[Reader] = []
    used_by: Annotated[list[Use], Meta(max_length=USED_BY_MAX)] = []
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class Dataset(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Data on a volume: filled once, checked, read by any number of pods on any number of nodes."""

    spec: DatasetSpec
    status: DatasetStatus = DatasetStatus()


# --- as decisions read them


class BadDataset(MoorageError):
    """A Dataset is invalid. The schema already refuses most errors."""


class DatasetView(Struct, frozen=True, kw_only=True):
    """A Dataset, parsed."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: DatasetSpec
    status: DatasetStatus
    size_bytes: int
    revision: str
    owner: str = ""
    owner_label: str = ""
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    created: datetime | None = None
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def claim(self) -> str:
        """The name of the claim that the filler writes to."""
        return claim_name(self.name)

    @property
    def volume_source(self) -> tuple[str, str] | None:
        """The claim and the folder if the source is on a volume; else None."""
        return parse_volume(self.spec.source.url)


def parse_dataset(obj: Mapping[str, Any]) -> DatasetView:
    """Parse a stored Dataset. Raises BadDataset with the field."""
    meta = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec") or {}, DatasetSpec)
        status = msgspec.convert(obj.get("status") or {}, DatasetStatus)
        size = parse_count(spec.size)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadDataset(f"spec: {error}") from error
    return DatasetView(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        generation=int(meta.get("generation") or 0),
        spec=spec,
        status=status,
        size_bytes=size,
        revision=revision_of(spec.source, annotations_of(obj).get(REFILL_ANNOTATION, "")),
        owner=annotations_of(obj).get(OWNER_ANNOTATION, ""),
        owner_label=(meta.get("labels") or {}).get(OWNER_LABEL, ""),
        deleting=is_deleting(obj),
        finalizers=tuple(meta.get("finalizers") or ()),
        created=moment(meta.get("creationTimestamp")),
        faults=tuple(check_dataset(meta["name"], spec, size)),
    )


def check_dataset(name: str, spec: DatasetSpec, size: int) -> list[Fault]:
    """Check everything that the schema cannot express. Returns all errors."""
    faults = []
    if not is_dns_label(name) or len(name) > NAME_MAX:
        faults.append(Fault("metadata.name", name, f"must be at most {NAME_MAX} of a-z, 0-9 and '-'"))
    if size <= 0:
        faults.append(Fault("spec.size", str(spec.size), "must be more than zero"))
    url = spec.source.url
    try:
        scheme, host = urlsplit(url)[:2]
    except ValueError:
        scheme, host = "", ""
    if scheme not in _SCHEMES or (scheme not in ("volume", "upload") and not host):
        message = "must be s3://, gs:// or https:// with a host or bucket, volume:NAME[/FOLDER], or upload:"
        faults.append(Fault("spec.source.url", url, message))
    elif scheme == "volume" and parse_volume(url) is None:
        message = "must be volume:NAME or volume:NAME/FOLDER, without .. in it"
        faults.append(Fault("spec.source.url", url, message))
    elif "@" in host:
        message = (
            "must not contain a password, because all users who can read the Dataset would see it: name a Secret"
        )
        faults.append(Fault("spec.source.url", url, message))
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in url):
        faults.append(Fault("spec.source.url", ascii(url), "must hold no control characters"))
    if len(set(spec.readers)) != len(spec.readers):
        faults.append(Fault("spec.readers", ", ".join(spec.readers), "must name each tenant once"))
    return faults


def parse_volume(url: str) -> tuple[str, str] | None:
    """("NAME", "FOLDER") of volume:NAME/FOLDER; None for any other text, or a folder outside the volume."""
    match = _VOLUME.fullmatch(url)
    if match is None:
        return None
    folder = (match[2] or "").strip("/")
    if "\0" in folder or any(part in ("", ".", "..") for part in folder.split("/") if folder):
        return None
    return match[1], folder


def revision_of(source: DatasetSource, refill: str) -> str:
    """The identity of a fill: another source, or another word in the refill annotation, is another fill."""
    contents = json.dumps([source.url, source.anonymous, source.unpack, refill])
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def claim_name(dataset: str) -> str:
    """The name of a dataset's claim in its own namespace."""
    return f"dataset-{dataset}"


def clone_name(dataset: str) -> str:
    """The name of the read-only clone, for volumes that only one node can read."""
    return f"dataset-{dataset}-read"


def reader_claim_name(namespace: str, dataset: str) -> str:
    """The name of the claim in another namespace that reads NAMESPACE's dataset. It is readable and unique."""
    digest = hashlib.sha256(f"{namespace}/{dataset}".encode()).hexdigest()[:8]
    return f"dataset-{dataset}-{digest}"


def reader_volume_name(namespace: str, dataset: str, reader: str) -> str:
    """The name of the PersistentVolume of a reader's claim."""
    digest = hashlib.sha256(f"{namespace}/{dataset}/{reader}".encode()).hexdigest()[:16]
    return f"moorage-dataset-{digest}"


def job_name(dataset: str, attempt: int) -> str:
    return f"dataset-{dataset}-{attempt}"


def uses_labels(datasets: Mapping[str, str]) -> dict[str, str]:
    """The labels of a Job or pod that mounts these datasets (name → namespace)."""
    if not datasets:
        return {}
    return {USES_LABEL: "true"} | {
        f"{USES_PREFIX}{name}": namespace for name, namespace in sorted(datasets.items())
    }


def used_datasets(labels: Mapping[str, str]) -> dict[str, str]:
    """The datasets in the labels from `uses_labels`: name → namespace."""
    return {
        key.removeprefix(USES_PREFIX): value
        for key, value in labels.items()
        if key.startswith(USES_PREFIX) and value
    }
