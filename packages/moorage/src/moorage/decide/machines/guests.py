"""The fields of a machine's guest that bookings need."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol, TypeVar


class Guest(Protocol):
    """The fields of a guest that the calendar needs."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def owner(self) -> str: ...  # label-safe
    @property
    def created(self) -> str: ...  # sorts as text
    @property
    def limit(self) -> timedelta | None: ...  # running time allowed
    @property
    def grace(self) -> timedelta: ...  # between the request to end and the kill
    @property
    def backfill(self) -> bool: ...  # may be asked to leave
    @property
    def started(self) -> datetime | None: ...  # from when the limit counts
    @property
    def leaves(self) -> datetime | None: ...  # being deleted: the latest time of its end


G = TypeVar("G", bound=Guest)
