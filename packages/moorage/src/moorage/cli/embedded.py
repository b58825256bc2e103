"""The embedded control plane of `moor up`, found by its entry point.

All other modules use it through the Kubernetes API. These are the parts that `up`, `down`, `backup` and `restore`
need; `moorage_local.embedding` names the module of each part.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from moorage_kube.errors import MoorageError

GROUP = "moorage.local"


class Copy(Protocol):
    """A copy of the data folder. `problem`: why it cannot be used; None if it can."""

    @property
    def path(self) -> Path: ...
    @property
    def taken(self) -> datetime: ...
    @property
    def version(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def files(self) -> Mapping[str, Any]: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class Restored(Protocol):
    """Records of a copy during a restore; `adopted`: the running pods that are younger than the copy."""

    @property
    def records(self) -> Sequence[Any]: ...
    @property
    def revision(self) -> int: ...
    @property
    def adopted(self) -> Sequence[str]: ...


class Pki(Protocol):
    @property
    def ca(self) -> Path: ...
    @property
    def ca_pem(self) -> str: ...
    @property
    def certificate(self) -> Path: ...
    @property
    def key(self) -> Path: ...


class Fence(Protocol):
    @property
    def gap(self) -> str: ...


class Embedded(Protocol):
    """The names of `moorage_local.embedding` that the command line uses; their docstrings are there."""

    CLUSTER: str
    COPIES_PATH: str
    NOT_COPIED: Mapping[str, str]
    SMALL_FILES: Sequence[str]

    def check_copy(self, copy: Any, names: Iterable[str]) -> None: ...
    def copy_of(
        self, path: Path, names: Iterable[str], *, taken: datetime, revision: int, objects: int
    ) -> Copy: ...
    def ensure_pki(self, folder: Path) -> Pki: ...
    def find_pki_problems(self, folder: Path) -> dict[str, str]: ...
    def list_copies(self, data: Path) -> list[Copy]: ...
    def newest_whole(self, copies: Iterable[Any], names: Iterable[str] | None) -> Copy | None: ...
    def pods_on_disk(self, nodes: Path) -> list[Any]: ...
    def read_records(self, path: Path) -> list[Any]: ...
    def restore(
        self, records: Iterable[Any], *, revision: int, past: int, pods: Iterable[Any], copied: str
    ) -> Restored: ...
    def stop_all(self, nodes: Path) -> int: ...
    def take_copy(
        self, data: Path, records: Sequence[Any], revision: int, *, now: datetime, spare_bytes: int = ...
    ) -> Copy: ...
    def try_fence(self, folder: Path) -> Fence: ...
    def write_records(
        self, path: Path, records: Iterable[Any], revision: int, *, identity: str | None = None
    ) -> None: ...


@functools.cache
def embedded() -> Embedded:
    """The installed control plane. Raises MoorageError if none is installed."""
    for entry in entry_points(group=GROUP, name="embedded"):
        return cast(Embedded, entry.load())
    raise MoorageError("the local cluster is not installed", hint="pip install moorage-local")
