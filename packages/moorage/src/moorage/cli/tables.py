"""Text tables: the width of a text on a terminal, and the columns of a table that fit into a width.

Everything here is pure: `console` reads the terminal's width and decides the colour of a cell.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

SEPARATOR = "   "
COMFORTABLE = 20  # a longer cell is cut to this before a column is left out
LEAST = 4  # a cell is cut to this before the first column alone is left
KEPT = frozenset({"STATE", "PHASE", "STATUS", "READY", "COMMAND"})  # columns that are dropped last

# how to show a cell: its column's header, and its text with the blanks after it
Paint = Callable[[str, str], str]


def text_width(text: str) -> int:
    """The number of terminal columns of a text: 2 for a wide character, 0 for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def cut(text: str, width: int) -> str:
    """Cut a text to at most `width` terminal columns; a cut text ends with "…"."""
    if text_width(text) <= width:
        return text
    kept, left = [], width - 1  # for the mark
    for character in text:
        left -= _character_width(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…" if width > 0 else ""


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    paint: Paint | None = None,
    kept: frozenset[str] = KEPT,
) -> str:
    """Format columns as kubectl does: upper-case heads, three blanks between, no lines.

    With a width (of a terminal, at least 1), all lines fit: columns at the right are dropped first, then
    cells are cut. Without one, every cell is whole. `kept`: heads of columns that are dropped last; the first
    column is never dropped.
    """
    cells = [list(headers), *(list(row) for row in rows)]
    natural = [max(text_width(row[at]) for row in cells) for at in range(len(headers))]
    columns = list(range(len(headers)))
    widths = natural
    if width is not None and _line_width(natural) > width:
        columns = choose_columns(headers, natural, width, kept)
        widths = share_width([natural[at] for at in columns], width)
    lines = []
    for number, row in enumerate(cells):
        line = []
        for place, (at, most) in enumerate(zip(columns, widths, strict=True)):
            text = cut(row[at], most)
            blanks = "" if place == len(columns) - 1 else " " * (most - text_width(text))
            line.append((paint(headers[at], text) if paint and number else text) + blanks)
        lines.append(SEPARATOR.join(line).rstrip())
    return "\n".join(lines)


def choose_columns(
    headers: Sequence[str], natural: Sequence[int], width: int, kept: frozenset[str] = KEPT
) -> list[int]:
    """The columns that fit into a width. Right columns are dropped first; `kept` and the first column last."""
    columns = list(range(len(headers)))
    wanted = [min(size, max(COMFORTABLE, len(name))) for name, size in zip(headers, natural, strict=True)]
    for least in (wanted, [min(size, LEAST) for size in wanted]):
        for at in sorted(columns[1:], key=lambda at: (headers[at] in kept, -at)):
            if _line_width([least[at] for at in columns]) <= width:
                return columns
            if headers[at] in kept and least is wanted:
                break  # it remains, next to shorter cells
            columns.remove(at)
    return columns


def share_width(natural: Sequence[int], width: int) -> list[int]:
    """The width of each column so that all fit; the widest columns shrink first."""
    left = width - len(SEPARATOR) * (len(natural) - 1)
    widths = list(natural)
    for count, at in enumerate(sorted(range(len(natural)), key=lambda at: natural[at])):
        widths[at] = min(natural[at], max(1, left // (len(natural) - count)))
        left -= widths[at]
    return widths


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(SEPARATOR) * (len(widths) - 1)


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
