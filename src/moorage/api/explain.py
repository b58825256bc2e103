"""Explanations on the wire: `/api/v1/explain`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from moorage.api.fields import Answer


class PodQuestion(msgspec.Struct, kw_only=True):
    """A `v1.Pod` that is not created yet, and the claims of its namespace as its user sees them.

    `refused`: why the API server does not admit it, in its words.
    """

    pod: dict[str, Any]
    claims: list[dict[str, Any]] | None = None
    refused: str = ""


class Earliest(Answer, frozen=True):
    at: datetime
    node: str = ""


class Explanation(Answer, frozen=True):
    """Why a run or a pod waits. `text` is what `moor explain` prints; `public`: only what everybody may know."""

    namespace: str
    name: str
    text: str = ""
    short: str = ""
    run: str = ""
    owner: str = ""
    public: bool = False
    state: str = ""
    node: str = ""
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    since: datetime | None = None
    expected_until: datetime | None = None
    earliest: Earliest | None = None
    likely: Earliest | None = None
    position: int | None = None
    obstacles: tuple[str, ...] = ()
