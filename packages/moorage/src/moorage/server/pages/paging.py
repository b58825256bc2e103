"""Lists of pages: search, state, page number, and the addresses of the other pages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

PAGE_SIZE = 50
TEXT_MAX = 200  # characters that are searched for
PAGES_MAX = 1_000_000

Row = TypeVar("Row")


class Wanted(Struct, frozen=True, kw_only=True):
    """The search, state and page in the address of a list. `more`: other fields that the links retain."""

    text: str = ""
    state: str = ""  # empty: any
    page: int = 1
    more: tuple[tuple[str, str], ...] = ()


class Shown(Struct, Generic[Row], frozen=True, kw_only=True):
    """One page of a list. `total` counts all rows, `matched` those that match; `first` and `last` count from 1."""

    rows: tuple[Row, ...]
    wanted: Wanted
    here: str
    states: tuple[str, ...]  # that the list offers to choose from
    total: int
    matched: int
    page: int
    pages: int

    @property
    def first(self) -> int:
        return min(self.matched, (self.page - 1) * PAGE_SIZE + 1)

    @property
    def last(self) -> int:
        return min(self.matched, self.page * PAGE_SIZE)

    @property
    def is_filtered(self) -> bool:
        return bool(self.wanted.text or self.wanted.state)

    @property
    def previous(self) -> str:
        """The address of the previous page; "" on the first page."""
        return self._at(self.page - 1) if self.page > 1 else ""

    @property
    def following(self) -> str:
        """The address of the next page; "" on the last page."""
        return self._at(self.page + 1) if self.page < self.pages else ""

    @property
    def unfiltered(self) -> str:
        """The address of the list without search and state."""
        return address(self.here, self.wanted.more)

    def _at(self, page: int) -> str:
        fields = [("q", self.wanted.text), ("state", self.wanted.state), ("page", str(page) if page > 1 else "")]
        return address(self.here, [*self.wanted.more, *fields])


def address(path: str, fields: Iterable[tuple[str, str]]) -> str:
    """A path with all query fields that are not empty."""
    query = urlencode([(name, value) for name, value in fields if value])
    return f"{path}?{query}" if query else path


def wanted_of(query: Mapping[str, str], *, more: Sequence[tuple[str, str]] = ()) -> Wanted:
    """Read the address of a list. A page that is not a number is the first one."""
    page = query.get("page", "")
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 1
    return Wanted(
        text=" ".join(query.get("q", "")[:TEXT_MAX].split()),
        state=query.get("state", "")[:TEXT_MAX].strip(),
        page=min(max(1, number), PAGES_MAX),
        more=tuple((name, value) for name, value in more if value),
    )


def page_of(
    rows: Sequence[Row],
    wanted: Wanted,
    here: str,
    *,
    words: Callable[[Row], Iterable[str]],
    state: Callable[[Row], str],
    states: Sequence[str] = (),
) -> Shown[Row]:
    """The requested page of the rows whose `words` contain each word of the search, in upper or lower case.

    If the page number is too high, the last page. If the list does not have the state, no row matches.
    """
    parts = wanted.text.casefold().split()

    def matches(row: Row) -> bool:
        if wanted.state and state(row) != wanted.state:
            return False
        texts = [text.casefold() for text in words(row)] if parts else []
        return all(any(part in text for text in texts) for part in parts)

    matched = [row for row in rows if matches(row)]
    pages = max(1, -(-len(matched) // PAGE_SIZE))
    page = min(wanted.page, pages)
    return Shown(
        rows=tuple(matched[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]),
        wanted=wanted,
        here=here,
        states=tuple(states),
        total=len(rows),
        matched=len(matched),
        page=page,
        pages=pages,
    )
