"""Datasets on the wire: `/api/v1/datasets`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Name, Request


class NewDataset(Request):
    """A dataset to create; `spec` as in the kind Dataset. `dry_run`: create nothing."""

    name: Name
    namespace: Name
    spec: dict[str, Any]
    dry_run: bool = False


class Readers(Request):
    """The tenants that may read a dataset, all of them."""

    readers: Annotated[list[str], msgspec.Meta(max_length=100)]


class Progress(Answer, frozen=True):
    """How far a fill is. Totals None: not known yet."""

    phase: str = ""
    files: int = 0
    bytes: int = 0
    files_total: int | None = None
    bytes_total: int | None = None


class Reader(Answer, frozen=True, omit_defaults=True):
    """A tenant that may read a dataset, and the claim by which it does."""

    tenant: str
    namespace: str = ""
    claim: str = ""
    ready: bool = False
    message: str = ""


class Use(Answer, frozen=True, omit_defaults=True):
    """A run or pod that mounts (`active`) or mounted a dataset."""

    namespace: str
    name: str
    active: bool = False
    since: str = ""


class Dataset(Answer, frozen=True):
    """A dataset. `phase` Ready: it is whole, and `claim` can be mounted read-only."""

    namespace: str
    name: str
    phase: str = ""
    reason: str = ""
    message: str = ""
    files: int | None = None
    bytes: int | None = None
    checksum: str = ""
    progress: Progress | None = None
    filled_at: str = ""
    source: str = ""
    size: str = ""
    storage_class: str = msgspec.field(default="", name="class")
    access: str = ""
    claim: str = ""
    attempts: int = 0
    owner: str = ""
    readers: tuple[Reader, ...] = ()
    used_by: tuple[Use, ...] = ()
    created: datetime | None = None


class DatasetList(Answer, frozen=True):
    """A page of datasets; `after` is the `continue` of the next page, None at the end."""

    datasets: tuple[Dataset, ...] = ()
    after: str | None = msgspec.field(default=None, name="continue")
