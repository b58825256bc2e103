"""The parts of a page that many look at: what each is now, and what has changed since a page was made.

A part is drawn once and sent as the same bytes to all who look. Every change has a number; who has seen number 7
gets each part that changed after it, once, as it is now. Numbers of one server mean nothing to another, so a page
says with its number which server counted it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping

# What the browser moves on by itself, or writes itself: ages, times that are left, bars of both.
_PASSING = re.compile(r'(?<=>)[^<>]*(?=</time>)|value="\d+" aria-label="[^"]*"')


class LiveParts:
    """Parts by name, drawn in one language. A part is HTML; one part may hold others, which change alone."""

    def __init__(self, epoch: str | None = None) -> None:
        self.epoch = epoch or secrets.token_hex(4)  # who counts
        self.number = 0
        self.parts: dict[str, str] = {}
        self._faces: dict[str, str] = {}
        self._changed: dict[str, int] = {}
        self._within: dict[str, str] = {}  # part → the part that holds it
        self._events: dict[str, bytes] = {}
        self._since: dict[int, bytes] = {}

    @property
    def mark(self) -> str:
        """What a page says that it has seen."""
        return f"{self.epoch}-{self.number}"

    def put(
        self,
        parts: Mapping[str, str],
        *,
        within: Mapping[str, str] | None = None,
        outside: Mapping[str, str] | None = None,
        gone: Iterable[str] = (),
    ) -> bool:
        """Take parts as they are now; whether any has changed but in what browsers move on by themselves.

        `within`: part → the part that holds it. What is of such a part and in none of its pieces is in `outside`:
        only when that changes is it sent whole, and its pieces are not sent beside it.
        """
        changed = []
        for name, text in parts.items():
            if self.parts.get(name) == text:
                continue
            self.parts[name] = text
            own = (outside or {}).get(name)
            face = _PASSING.sub("", text) if own is None else own
            if self._faces.get(name) != face:
                self._faces[name] = face
                changed.append(name)
            elif name in self._events:
                del self._events[name]  # sent as it is now to who has not seen it
                self._since.clear()
        self._within |= within or {}
        for name in gone:
            for known in (self.parts, self._faces, self._changed, self._within, self._events):
                known.pop(name, None)
        if not changed:
            return False
        self.number += 1
        self._since.clear()
        for name in changed:
            self._changed[name] = self.number
            self._events.pop(name, None)
        return True

    def since(self, mark: str) -> bytes:
        """Server-sent events of each part that changed after a mark; every part for a mark of somebody else."""
        number = self._number(mark)
        if number not in self._since:
            names = [name for name, at in self._changed.items() if at > number]
            chosen = set(names)
            whole = [name for name in names if self._within.get(name) not in chosen]
            text = b"".join(self._event(name) for name in whole)
            self._since[number] = text + f"id: {self.mark}\ndata:\n\n".encode() if whole else b""
        return self._since[number]

    def _number(self, mark: str) -> int:
        epoch, _, number = mark.partition("-")
        known = epoch == self.epoch and number.isascii() and number.isdigit() and len(number) < 15
        return min(int(number), self.number) if known else 0

    def _event(self, name: str) -> bytes:
        if name not in self._events:
            self._events[name] = event(name, self.parts[name]).encode()
        return self._events[name]


def event(name: str, text: str) -> str:
    """One server-sent event."""
    data = "".join(f"data: {line}\n" for line in text.splitlines()) or "data:\n"
    return f"event: {name}\n{data}\n"
