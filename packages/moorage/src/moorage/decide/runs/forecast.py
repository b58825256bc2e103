"""Forecast the end of runs from the durations of similar past work.

The method, after Smith, Foster and Taylor, "Predicting Application Run Times Using Historical Information"
(https://doi.org/10.1007/BFb0053984): past stays are sorted under templates of likeness, and the closest template
that has enough of them is used. Here the templates are, closest first: the owner's own with the same image and
command; the owner's with the same name, without the suffix that `moor run` adds; the owner's on this GPU type;
those of all users on this GPU type.

The answer is an order statistic of those that took longer than this one has run already: the time by which SHARE
of them were done. It assumes no shape of the distribution, and it is shown with its numbers ("8 of 10 like it"),
never as a probability. There is no forecast below LEAST past stays, nor for work that outlived too many of them.

Limits of the method: a stay counts up to its end of any kind (done, cancelled or moved away): its GPUs were free
then. Running work is not counted, so work that has become slower recently gets too early a forecast.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct, field

SHARE = 0.8  # the share of its like that was done by the time of the forecast
LEAST = 5  # past stays under a template before it is asked; 80 % of fewer says nothing
LEAST_LEFT = 3  # of them that took longer than it has run already
KEPT = 200  # newest stays under each template: old ones say little

_RUNNER = "/moorage/run/runner.py"  # wraps the command of a run; the words before "--" differ in every run
_ADDED = re.compile(r"(-[a-hj-km-np-z2-9]{4}|-[0-9]{1,10}|-(?=[a-z]*\d)[a-z0-9]{5})?$")

Likeness = Literal["work", "name", "owner", "type"]


class Like(Struct, frozen=True, kw_only=True):
    """The values by which pods are compared."""

    owner: str
    name: str  # of its run, else of the pod
    work: str = ""  # `work_of`; empty: not known
    gpu_type: str = ""  # empty: holds no GPU


class Stay(Struct, frozen=True, kw_only=True):
    """The time of one ended pod on its node."""

    like: Like
    ended: datetime
    took: timedelta


class Usual(Struct, frozen=True, kw_only=True):
    """`done` of `of` past stays, alike by `likeness`, that took longer than this one has run ended by `total`.

    `total` counts from its start. None: it has outlived too many of `known` similar ones for a forecast.
    """

    total: timedelta | None
    done: int
    of: int
    known: int
    likeness: Likeness


class History(Struct, frozen=True):
    """Past stays by template, sorted. `history_of` creates it."""

    took: Mapping[tuple[str, ...], tuple[float, ...]] = field(default_factory=dict)  # template → seconds

    def usual(self, like: Like, elapsed: timedelta = timedelta()) -> Usual | None:
        """The usual total duration of a pod that has run for `elapsed`. None if there are no similar pods.

        The result never decreases as `elapsed` grows, and is never below `elapsed`: the template is chosen without
        `elapsed`, and leaving out the shortest stays only raises the order statistic.
        """
        for template in _templates(like):
            sorted_seconds = self.took.get(template, ())
            if len(sorted_seconds) < LEAST:
                continue
            left = sorted_seconds[bisect_right(sorted_seconds, max(0.0, elapsed.total_seconds())) :]
            rank = math.ceil(SHARE * len(left) - 1e-9)
            enough = len(left) >= LEAST_LEFT
            return Usual(
                total=timedelta(seconds=left[rank - 1]) if enough else None,
                done=bisect_right(left, left[rank - 1]) if enough else 0,
                of=len(left),
                known=len(sorted_seconds),
                likeness=template[0],  # type: ignore[arg-type]
            )
        return None


def history_of(stays: Iterable[Stay]) -> History:
    """Sort past stays under their templates. Of each, the newest `KEPT` count."""
    seconds_of: dict[tuple[str, ...], list[float]] = {}
    for stay in sorted(stays, key=lambda stay: stay.ended, reverse=True):
        for template in _templates(stay.like):
            under = seconds_of.setdefault(template, [])
            if len(under) < KEPT:
                under.append(max(0.0, stay.took.total_seconds()))
    return History({template: tuple(sorted(seconds)) for template, seconds in seconds_of.items()})


def work_of(spec: Mapping[str, Any]) -> str:
    """A hash of image, command and arguments of a pod's first container, without the runner's own arguments.

    16 hex digits: it shows that two pods do the same, and does not reveal the command.
    """
    containers = spec.get("containers") or ()
    if not containers:
        return ""
    first = containers[0]
    words = [str(word) for word in (*(first.get("command") or ()), *(first.get("args") or ()))]
    if _RUNNER in words[:3] and "--" in words:
        words = words[words.index("--") + 1 :]
    if not words:
        return ""
    text = "\0".join((str(first.get("image") or ""), *words))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def base_of(name: str) -> str:
    """A name without the suffix that makes it unique: "train-x7k2" → "train", "nightly-12" → "nightly"."""
    return _ADDED.sub("", name) or name


def _templates(like: Like) -> Iterable[tuple[str, ...]]:
    if like.work:
        yield "work", like.owner, like.work, like.gpu_type
    if base := base_of(like.name):
        yield "name", like.owner, base, like.gpu_type
    if like.gpu_type:
        yield "owner", like.owner, like.gpu_type
        yield "type", like.gpu_type
