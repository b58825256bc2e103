"""The content of administrators' pages as values: lists, facts and forms that one template draws. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from moorage.server.pages.board import When


class Cell(Struct, frozen=True, kw_only=True):
    """A value of a table or a fact. `tone`: it is drawn as a pill; `note` is small, below it."""

    text: str = ""
    note: str = ""
    href: str = ""
    tone: str = ""
    when: When | None = None


class Button(Struct, frozen=True, kw_only=True):
    """An action for a row or an object. `is_form`: the button does the action; else it opens a page that asks."""

    id: str
    words: str
    to: str
    of: str = ""  # the object of the action, for screen readers
    is_form: bool = False
    fields: tuple[tuple[str, str], ...] = ()  # sent with the form


class Line(Struct, frozen=True, kw_only=True):
    """A row of a table: the head cell, a cell for each other column, and buttons."""

    head: Cell
    cells: tuple[Cell, ...] = ()
    buttons: tuple[Button, ...] = ()
    state: str = ""  # the list is filtered by it


class Table(Struct, frozen=True, kw_only=True):
    """A table. `numbers`: the right-aligned columns, counted from 0 without the head column."""

    caption: str
    headers: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The headers without the header of the head column."""
        return self.headers[1:]


class Input(Struct, frozen=True, kw_only=True):
    """A field of a form. With `options` it is a choice of pairs (value, label)."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    kind: str = "text"
    required: bool = False
    most: int = 253  # characters
    options: tuple[tuple[str, str], ...] = ()


class Form(Struct, frozen=True, kw_only=True):
    """A form that can be expanded. `id` is unique on its page; names of inputs are unique within the form."""

    id: str
    title: str
    to: str
    button: str
    inputs: tuple[Input, ...]


class Section(Struct, frozen=True, kw_only=True):
    """A section of the page of one object."""

    id: str
    title: str
    facts: tuple[tuple[str, Cell], ...] = ()
    table: Table | None = None
    lines: tuple[Line, ...] = ()
    nothing: str = ""  # said instead of an empty table
    note: str = ""  # below the table
    buttons: tuple[Button, ...] = ()
    forms: tuple[Form, ...] = ()


def words_of(line: Line) -> tuple[str, ...]:
    """The texts of a row, for the search in a list."""
    cells = (line.head, *line.cells)
    return tuple(text for cell in cells for text in (cell.text, cell.note) if text)


def state_of(line: Line) -> str:
    return line.state


def names_in(text: str) -> list[str]:
    """The names in a field that takes several, separated by commas or blanks. Duplicates are removed."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def some(names: Sequence[str], most: int = 4) -> str:
    """The first `most` names, and the number of the other names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
