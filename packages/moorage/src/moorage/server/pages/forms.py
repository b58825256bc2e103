"""Forms for new objects: their fields, an error for each field, and the typed values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.api.errors import ErrorCode
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError, NumberError
from moorage_kube.integers import parse_integer


class Option(Struct, frozen=True):
    """A choice of a list: the value that is sent, and its words."""

    value: str
    words: str


class Field(Struct, frozen=True, kw_only=True):
    """An input of a form. `kind`: text, number, area, choice, tick, file, password or hidden."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""  # before anything was typed
    hint: str = ""
    example: str = ""  # shown in an empty input
    options: tuple[Option, ...] = ()
    suggestions: tuple[str, ...] = ()
    required: bool = False
    most: int = 253  # characters, or the largest number
    rows: int = 3  # of an area
    problems: tuple[str, ...] = ()


class Verdict(Struct, frozen=True, kw_only=True):
    """The expected outcome: the headline of the explanation, and more lines."""

    tone: str  # good, wait or bad
    headline: str
    lines: tuple[str, ...] = ()


class Form(Struct, frozen=True, kw_only=True):
    """A page with one form. `folded` fields are under "More"; they unfold where one of them has a problem."""

    title: str
    action: str
    back: str
    button: str
    can_check: bool = False
    can_send: bool = True  # False: the caller may make such a thing nowhere
    fields: tuple[Field, ...]
    folded: tuple[Field, ...] = ()
    notes: tuple[str, ...] = ()  # facts for the decision: free GPUs, quotas
    given: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    line: str = ""  # the command that does the same
    remarks: tuple[str, ...] = ()  # values that were filled in

    @property
    def has_files(self) -> bool:
        return any(item.kind == "file" for item in self.fields)

    @property
    def unfolded(self) -> bool:
        return any(item.problems or self.given.get(item.name) for item in self.folded)


class Fault(Struct, frozen=True):
    """An error in one field; `field` has the name of the REST request."""

    field: str
    message: str


class BadForm(Exception):
    """A form with errors that need no request to find."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = tuple(faults)


def faults_of(error: Exception) -> tuple[Fault, ...]:
    """The faults of fields in an error; none if it is not about fields."""
    if isinstance(error, BadForm):
        return error.faults
    if isinstance(error, MoorageError):
        fields: Sequence[str] = getattr(error, "fields", ())
        problems: Sequence[tuple[str, str | None]] = getattr(error, "problems", ())
        if fields and len(fields) == len(problems):
            pairs = zip(fields, problems, strict=True)
            return tuple(Fault(name, _sentence(message, hint)) for name, (message, hint) in pairs)
    if isinstance(error, (Problem, MoorageError)) and error.field:
        return (Fault(error.field, _sentence(error.message, error.hint)),)
    return ()


def with_faults(form: Form, faults: Iterable[Fault], inputs: Mapping[str, str] | None = None) -> tuple[Form, bool]:
    """The form with each fault at its input, and whether all of them have one.

    `inputs`: the name of a field in the request → the name of its input, where they differ.
    """
    at: dict[str, list[str]] = {}
    for fault in faults:
        at.setdefault((inputs or {}).get(fault.field, fault.field), []).append(fault.message)

    def marked(items: Iterable[Field]) -> tuple[Field, ...]:
        return tuple(replace(item, problems=tuple(at.pop(item.name, ()))) for item in items)

    marked_form = replace(form, fields=marked(form.fields), folded=marked(form.folded))
    return marked_form, not at


class Reader:
    """Reads the texts of a form; errors are collected, so that all of them are shown at once."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._faults: list[Fault] = []

    def text(self, name: str) -> str | None:
        return self._given.get(name) or None

    def number(self, name: str, usual: Any, label: str) -> Any:
        """Read a whole number; `usual` if the field is empty."""
        text = self._given.get(name)
        if not text:
            return usual
        try:
            return parse_integer(text, minimum=0, maximum=2**31 - 1, name=label)
        except NumberError as error:
            self.refuse(name, error.message)
            return usual

    def lines(self, name: str) -> list[str]:
        """The non-empty lines of a text area."""
        return [line.strip() for line in self._given.get(name, "").splitlines() if line.strip()]

    def pairs(self, name: str, label: str, usage: str) -> dict[str, str]:
        """Lines such as NAME=VALUE; `usage` is an example of a line."""
        pairs = {}
        for line in self.lines(name):
            key, sign, value = line.partition("=")
            if not sign:
                self.refuse(name, f"invalid {label} {line[:60]!r}: use {usage}, one on each line")
            pairs[key.strip()] = value
        return pairs

    def ticked(self, name: str) -> bool:
        return bool(self._given.get(name))

    def refuse(self, name: str, message: str, *, once: bool = False) -> None:
        """Note an error in a field. `once`: unless the field has one."""
        if not once or all(fault.field != name for fault in self._faults):
            self._faults.append(Fault(name, message))

    def check(self) -> None:
        """Raise BadForm with all errors of the form, if there are any."""
        if self._faults:
            raise BadForm(self._faults)


def problem_of_form(faults: Sequence[Fault]) -> Problem:
    """The problem at the top of a form with faults in its fields."""
    count = len(faults)
    words = "one field needs a change" if count == 1 else f"{count} fields need a change"
    return Problem(422, ErrorCode.INVALID, words)


def _sentence(message: str, hint: str | None) -> str:
    text = message.replace("`", "")
    return f"{text}; {hint.replace('`', '')}" if hint else text
