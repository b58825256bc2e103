"""The code blocks of a page of docs: the language of each, and the file of the tree that its text changes.

A block with code follows a sentence that ends with one of:

- At the end of `FILE`:
- In the new file `FILE`:
- In `FILE`, below `TEXT`:  (or "above", or "in place of"; the one line with this text)
- In `FILE`, after `OTHER`, below `TEXT`:  (the first such line after the one line with the other text)
- In `FILE`, in place of `TEXT` to `LAST`:  (all lines from one to the other)

The block has the lines as they are to be in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_FENCE = re.compile(r"^( *)```(\w*)$")
_WHOLE = re.compile(r"(?:\bat the end of|\bin the new file) `(?P<file>[^`]+)`:$", re.IGNORECASE)
_PART = re.compile(
    r"\bin `(?P<file>[^`]+)`,(?: after `(?P<after>[^`]+)`,)? (?P<how>below|above|in place of) `(?P<text>[^`]+)`"
    r"(?: to `(?P<last>[^`]+)`)?:$",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
SHELL = ("shell", "")  # languages of blocks of commands; "": indented lines


class BlockError(ValueError):
    """A block that cannot be applied to the tree."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a block belongs. `text` empty: at the end of the file, which may be new."""

    file: str
    how: str = ""
    text: str = ""
    last: str = ""
    after: str = ""


class Block(Struct, frozen=True, kw_only=True):
    """One block of a page. `line`: where it begins, from 1. `place` None: its text names no file to change."""

    page: str
    line: int
    language: str
    text: str
    place: Place | None = None

    @property
    def commands(self) -> list[str]:
        """Its lines as commands, without comments; a line that ends with a backslash is joined with the next."""
        joined = self.text.replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]

    def apply(self, tree: Path) -> None:
        """Change the file that the text names. Raises BlockError."""
        if self.place is None:
            raise BlockError(f"{self.page}:{self.line}: no sentence before this block names a file to change")
        file = tree / self.place.file
        before = file.read_text() if file.exists() else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._changed(before, self.place))

    def _changed(self, before: str, place: Place) -> str:
        if not place.text:
            return before + ("\n\n" if before else "") + self.text
        lines = before.splitlines(keepends=True)
        start = self._only(lines, place.after, 0) + 1 if place.after else 0
        first = self._only(lines, place.text, start, first=bool(place.after))
        end = (self._only(lines, place.last, first, first=True) if place.last else first) + 1
        match place.how:
            case "below":
                first = end
            case "above":
                end = first
        return "".join([*lines[:first], self.text, *lines[end:]])

    def _only(self, lines: list[str], text: str, start: int, *, first: bool = False) -> int:
        """The number of the one line with a text, from `start` on; with `first`, of the first of them."""
        numbers = [number for number, line in enumerate(lines) if number >= start and text in line]
        if not numbers or (len(numbers) > 1 and not first):
            file = self.place.file if self.place else ""
            raise BlockError(
                f"{self.page}:{self.line}: {len(numbers)} lines of {file} have {text!r}; one is needed"
            )
        return numbers[0]


def blocks_of(page: Path, root: Path) -> list[Block]:
    """All blocks of a page, fenced or indented, in their order."""
    name = str(page.relative_to(root))
    return list(_read(name, page.read_text().splitlines()))


def _read(page: str, lines: list[str]) -> Iterator[Block]:
    paragraph: list[str] = []  # the one before the line, without its line breaks
    is_open, in_list = False, False
    number = 0
    while number < len(lines):
        line, first = lines[number], number
        fence = _FENCE.match(line)
        is_indented = line.startswith("    ") and not is_open and not in_list
        if fence is not None:
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == "```")
            body, margin, number = lines[number + 1 : end], fence[1], end + 1
        elif is_indented:
            end = next((at for at in range(number, len(lines)) if lines[at][:4].strip()), len(lines))
            body, margin, number = lines[number:end], "    ", end
            while not body[-1].strip():
                body.pop()
        else:
            number += 1
            if not line.strip():
                is_open = False
                continue
            is_item = _ITEM.match(line) is not None
            if in_list and not is_open and not is_item and line.startswith(6 * " "):
                raise BlockError(f"{page}:{number}: a block in a list needs a fence, such as ```shell")
            in_list = is_item or (in_list and line.startswith(" "))
            paragraph = [*paragraph, line.strip()] if is_open and not is_item else [line.strip()]
            is_open = True
            continue
        text = "".join(f"{each.removeprefix(margin)}\n" for each in body)
        place = _place(" ".join(paragraph))
        yield Block(page=page, line=first + 1, language=fence[2] if fence else "", text=text, place=place)
        paragraph, is_open = [], False


def _place(sentence: str) -> Place | None:
    if whole := _WHOLE.search(sentence):
        return Place(file=whole["file"])
    if part := _PART.search(sentence):
        how, after, last = part["how"].lower(), part["after"] or "", part["last"] or ""
        return Place(file=part["file"], how=how, text=part["text"], last=last, after=after)
    return None
