"""Objects and tasks that the server runs for a feature."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from moorage.features import load_all
from moorage.server.backup.store import Place
from moorage.server.identity.sessions import Sessions
from moorage_kube.api import Api
from moorage_kube.clock import Clock

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # an endless task


class Base(Struct, frozen=True, kw_only=True):
    """The inputs for parts of features."""

    api: Api
    clock: Clock
    env: Mapping[str, str]  # the settings
    place: Place  # where the server keeps its data
    sessions: Sessions


class Parts(Struct, frozen=True, kw_only=True):
    """`values`: the objects for `Context.part`, one of each type. `close`: called at the end."""

    values: tuple[object, ...] = ()
    close: tuple[Callable[[], None], ...] = ()


def make_parts(base: Base) -> tuple[Parts, ...]:
    """Create the parts of all features."""
    return tuple(make(base) for make in load_all("parts"))


def values_of(parts: tuple[Parts, ...]) -> Mapping[type, object]:
    return {type(value): value for part in parts for value in part.values}
