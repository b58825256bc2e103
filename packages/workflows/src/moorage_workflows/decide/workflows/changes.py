"""The result of a conversion for each field: unchanged, changed, lost. Each dropped field has a line here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from moorage.decide.admission.fields import Path, field_of
from moorage_kube.resources import Obj


class Outcome(StrEnum):
    """The result for a field."""

    KEPT = "kept"  # it means the same, perhaps under another name
    CHANGED = "changed"  # it is there, and behaves differently
    LOST = "lost"  # the other kind does not have it
    DROPPED = "dropped"  # it said nothing: the API server had written it, or it was a default
    ADVICE = "advice"  # something that a person may want to do
    REFUSED = "refused"  # the document is not converted because of it

    @property
    def is_loss(self) -> bool:
        """Whether a user must read about this field."""
        return self in (Outcome.CHANGED, Outcome.LOST, Outcome.ADVICE, Outcome.REFUSED)


class Change(Struct, frozen=True):
    """The conversion of one field of the source. `becomes`: the field in the result; "" if there is none."""

    path: Path
    outcome: Outcome
    becomes: str
    message: str = ""

    @property
    def field(self) -> str:
        return field_of(self.path)


class Converted(Struct, frozen=True, kw_only=True):
    """One document of the result. `document`: None if it was refused; then `changes` has the reasons.

    `is_changed`: False if the document was not converted.
    """

    kind: str
    name: str
    document: Obj | None
    changes: tuple[Change, ...] = ()
    is_changed: bool = True

    @property
    def is_refused(self) -> bool:
        return self.document is None


class Ledger(Struct):
    """Collects the changes of one document."""

    changes: list[Change] = field(default_factory=list)

    def kept(self, path: Path, becomes: str, message: str = "") -> None:
        self.changes.append(Change(path, Outcome.KEPT, becomes, message))

    def changed(self, path: Path, becomes: str, message: str) -> None:
        self.changes.append(Change(path, Outcome.CHANGED, becomes, message))

    def lost(self, path: Path, message: str) -> None:
        self.changes.append(Change(path, Outcome.LOST, "", message))

    def dropped(self, path: Path, message: str) -> None:
        self.changes.append(Change(path, Outcome.DROPPED, "", message))

    def advice(self, path: Path, message: str) -> None:
        self.changes.append(Change(path, Outcome.ADVICE, "", message))

    def refused(self, path: Path, message: str) -> None:
        self.changes.append(Change(path, Outcome.REFUSED, "", message))

    @property
    def is_refused(self) -> bool:
        return any(change.outcome is Outcome.REFUSED for change in self.changes)


class Fields:
    """The fields of one mapping; each is taken once, and fields that were not taken are named at the end."""

    def __init__(self, value: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self._value = value
        self._left = {key: None for key, held in value.items() if held is not None}

    def take(self, key: str) -> Any:
        """Return the value of a field, or None, and mark the field as taken."""
        self._left.pop(key, None)
        return self._value.get(key)

    def at(self, key: str) -> Path:
        return (*self.path, key)

    def taken(self, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Take the existing fields among `keys`, in the order of `keys`."""
        for key in keys:
            value = self.take(key)
            if value is not None:
                yield key, value

    def rest(self) -> Iterator[Path]:
        """Yield the paths of fields that were not taken."""
        for key in self._left:
            yield (*self.path, str(key))
