"""The use of a pod over its life, as lines of text.

One for each measure, with blocks for values, dots for gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "12345678"  # where a terminal has no blocks
GAP = "·"
PLAIN_GAP = "."
WIDTH = 60  # columns of a chart at most


class Line(Struct, frozen=True, kw_only=True):
    """One measure. `values`: one for each window, None if nothing was measured; `most`: the top of the axis."""

    name: str
    values: Sequence[float | None]
    most: float  # 0: as high as the values are
    mean: str
    peak: str


def bars(values: Sequence[float | None], *, most: float = 0.0, blocks: bool = True) -> str:
    """One character for each value.

    0 is the lowest, `most` the highest; larger values are shown as the highest.
    """
    top = most or max((value for value in values if value is not None), default=0.0)
    signs = BLOCKS if blocks else PLAIN
    gap = GAP if blocks else PLAIN_GAP
    last = len(signs) - 1
    return "".join(
        gap if value is None else signs[min(last, max(0, round(value / top * last)))] if top > 0 else signs[0]
        for value in values
    )


def squeezed(values: Sequence[float | None], width: int = WIDTH) -> list[float | None]:
    """Reduce values to at most `width`: each is the mean of neighbours, None if none of them was measured."""
    together = max(1, -(-len(values) // width))
    means: list[float | None] = []
    for start in range(0, len(values), together):
        known = [value for value in values[start : start + together] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def chart_lines(lines: Sequence[Line], *, blocks: bool = True) -> list[str]:
    """The lines of a chart, aligned. Measures without values are left out."""
    known = [line for line in lines if any(value is not None for value in line.values)]
    if not known:
        return []
    name, mean = max(len(line.name) for line in known), max(len(line.mean) for line in known)
    return [
        f"{line.name:<{name}}  {line.mean:>{mean}}  {bars(squeezed(line.values), most=line.most, blocks=blocks)}"
        f"  peak {line.peak}"
        for line in known
    ]
