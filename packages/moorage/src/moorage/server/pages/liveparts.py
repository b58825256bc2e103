"""The parts of a page with many viewers: the current text of each, and the changes since a page was
made.

A part is drawn once and sent as the same bytes to all viewers. Every change has a number; a viewer
with number 7 gets each part that changed after it, once, in its current state. Of a list only the
changed rows are sent, with the order of all: together with its older rows the page then has the
current list. Numbers of one server are invalid at another, so a page sends the id of the server with
its number.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Hashable, Iterable, Mapping
from itertools import count

from msgspec import Struct

# Values that the browser updates or writes itself: ages, remaining times, bars of both.
_PASSING = re.compile(r'(?<=>)[^<>]*(?=</time>)|value="\d+" aria-label="[^"]*"')


class RowNumbers:
    """A number for each row of a list, as long as the row is in it. Numbers are not reused: a row that
    returns is new.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._next = count(1)

    def of(self, keys: Iterable[Hashable]) -> list[int]:
        """The number of each row, in the order of `keys`. Each key names one row."""
        self._numbers = {key: self._numbers.get(key) or next(self._next) for key in keys}
        return list(self._numbers.values())


class _Row(Struct):
    html: str
    face: str
    changed: int  # the number of the change that it was changed by last


class LiveParts:
    """Parts of a page by name, in one language. A part is HTML.

    It may contain other parts, which change on their own.

    A list is also a part; it has numbered rows. The first line of its event has the numbers of all rows.
    """

    def __init__(self, epoch: str | None = None) -> None:
        self.epoch = epoch or secrets.token_hex(4)  # the id of the counting server
        self.number = 0
        self.parts: dict[str, str] = {}
        self._faces: dict[str, str] = {}
        self._changed: dict[str, int] = {}
        self._within: dict[str, str] = {}  # part → the part that holds it
        self._events: dict[str, bytes] = {}
        self._lists: dict[str, dict[int, _Row]] = {}
        self._since: dict[int, bytes] = {}

    @property
    def mark(self) -> str:
        """The mark of a page with the current parts."""
        return f"{self.epoch}-{self.number}"

    def put(
        self,
        parts: Mapping[str, str],
        *,
        within: Mapping[str, str] | None = None,
        outside: Mapping[str, str] | None = None,
        lists: Mapping[str, Mapping[int, str]] | None = None,
        gone: Iterable[str] = (),
    ) -> bool:
        """Take the current parts; return whether any has changed, except values that browsers update
        themselves.

        `within`: part → the part that holds it. `outside`: the text of such a holder without its pieces.
        Only when that changes is it sent whole, and then its pieces are not sent separately. `lists`: the
        rows of each list, in their order, by numbers of `RowNumbers`.
        """
        # a part has changed when its face has; a new age alone is not sent to pages that have the part
        changed = []
        for name, text in parts.items():
            if self.parts.get(name) == text:
                continue
            self.parts[name] = text
            own = (outside or {}).get(name)
            face = face_of(text) if own is None else own
            if self._faces.get(name) != face:
                self._faces[name] = face
                changed.append(name)
            elif name in self._events:
                del self._events[name]  # sent in its current state to viewers without it
                self._since.clear()
        # rows of lists have their own numbers
        changed += [name for name, rows in (lists or {}).items() if self._put_list(name, rows)]
        self._within |= within or {}
        # forget removed parts
        for name in gone:
            for known in (self.parts, self._faces, self._changed, self._within, self._events):
                known.pop(name, None)
        # one number for all changes of this call
        if not changed:
            return False
        self.number += 1
        self._since.clear()
        for name in changed:
            self._changed[name] = self.number
            self._events.pop(name, None)
        return True

    def _put_list(self, name: str, rows: Mapping[int, str]) -> bool:
        """Take the current list; return whether a row was added, removed, moved or changed."""
        known, taken = self._lists.get(name, {}), {}
        for number, html in rows.items():
            row, face = known.get(number), face_of(html)
            if row is None or row.face != face:
                row = _Row(html, face, self.number + 1)
            elif row.html != html:
                row.html = html
                self._since.clear()
            taken[number] = row
        self._lists[name] = taken
        return list(known) != list(taken) or any(row.changed > self.number for row in taken.values())

    def since(self, mark: str) -> bytes:
        """Server-sent events of each part that changed after a mark; every part for a mark of another server."""
        number = self._number(mark)
        if number not in self._since:
            names = [name for name, at in self._changed.items() if at > number]
            chosen = set(names)
            whole = [name for name in names if self._within.get(name) not in chosen]
            text = b"".join(self._event(name, number) for name in whole)
            self._since[number] = text + f"id: {self.mark}\ndata:\n\n".encode() if whole else b""
        return self._since[number]

    def _number(self, mark: str) -> int:
        epoch, _, number = mark.partition("-")
        known = epoch == self.epoch and number.isascii() and number.isdigit() and len(number) < 15
        return min(int(number), self.number) if known else 0

    def _event(self, name: str, number: int) -> bytes:
        if name in self._lists:
            return _list_event(name, self._lists[name], number)
        if name not in self._events:
            self._events[name] = event(name, self.parts[name]).encode()
        return self._events[name]


def _list_event(name: str, rows: Mapping[int, _Row], number: int) -> bytes:
    """The event of a list: the order of its rows, and the rows that changed after that number."""
    order = " ".join(str(each) for each in rows)
    return event(name, "\n".join([order, *(row.html for row in rows.values() if row.changed > number)])).encode()


def face_of(html: str) -> str:
    """The text of a part without the values that browsers update themselves; a change of it must be sent."""
    return _PASSING.sub("", html)


def event(name: str, text: str) -> str:
    """One server-sent event."""
    data = "".join(f"data: {line}\n" for line in text.splitlines()) or "data:\n"
    return f"event: {name}\n{data}\n"
