"""Completion indexes of an Indexed Job in text form: "1,3-5,7".

https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable


def parse_indexes(text: str, limit: int) -> frozenset[int]:
    """Read "1,3-5,7". Indexes from `limit` on are left out: the Job may be smaller than before."""
    return frozenset(index for span in _spans(text, limit) for index in span)


def named(text: str, indexes: Iterable[int], limit: int) -> tuple[frozenset[int], bool]:
    """Return the indexes that a text such as "0-7,9" contains, and whether it contains no others below `limit`.

    The work depends on the length of the text and of `indexes`, not on the size of the ranges.
    """
    spans = _spans(text, limit)
    starts = [span.start for span in spans]
    known = frozenset(index for index in indexes if (at := bisect_right(starts, index)) and index in spans[at - 1])
    return known, len(known) == sum(map(len, spans))


def _spans(text: str, limit: int) -> list[range]:
    """Return the ranges in a text, sorted and without overlaps."""
    read = []
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        read.append(range(int(first), min(int(last or first), limit - 1) + 1))
    spans: list[range] = []
    for span in sorted(filter(None, read), key=lambda span: span.start):
        if spans and span.start <= spans[-1].stop:
            spans[-1] = range(spans[-1].start, max(spans[-1].stop, span.stop))
        else:
            spans.append(span)
    return spans


def format_indexes(indexes: Iterable[int]) -> str:
    """Format runs as "first-last", and a run of two as "3,4".

    This is the format of the real controller, so the texts can be compared.
    """
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
