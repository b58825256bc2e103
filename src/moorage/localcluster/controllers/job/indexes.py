"""Completion indexes of an Indexed Job, as text: "1,3-5,7".

https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def parse_indexes(text: str, limit: int) -> frozenset[int]:
    """Read "1,3-5,7"; indexes at or above `limit` are left out (a Job may have been made smaller)."""
    indexes: set[int] = set()
    for part in (text or "").split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        indexes.update(range(int(first), min(int(last or first), limit - 1) + 1))
    return frozenset(indexes)


def format_indexes(indexes: Iterable[int]) -> str:
    """Write runs as "first-last", a run of two as "3,4"; upstream's own form, so texts compare equal."""
    out: list[str] = []
    run: list[int] = []
    for index in [*sorted(set(indexes)), None]:
        if run and index is not None and index == run[-1] + 1:
            run.append(index)
            continue
        if run:
            out.append(str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}")
        run = [] if index is None else [index]
    return ",".join(out)


def first_missing(done: Collection[int], completions: int, count: int) -> list[int]:
    """The lowest `count` indexes below `completions` that are not in `done`."""
    indexes: list[int] = []
    for index in range(completions):
        if len(indexes) >= count:
            break
        if index not in done:
            indexes.append(index)
    return indexes
