"""What the server holds for a feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moorage.features import load_all
from moorage.server.identity.sessions import SessionDesk
from moorage_kube.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What parts of features are made from."""

    clock: Clock
    sessions: SessionDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`values`: what the feature's routes get from `Context.part`, one of each type."""

    values: tuple[object, ...] = ()


def make_parts(base: Base) -> tuple[Parts, ...]:
    """The parts of all features."""
    return tuple(make(base) for make in load_all("parts"))


def values_of(parts: tuple[Parts, ...]) -> Mapping[type, object]:
    return {type(value): value for part in parts for value in part.values}
