"""Legal moves between the states of an object: one table, which the code obeys and the docs draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Generic, TypeVar

from moorage_kube.errors import MoorageError

S = TypeVar("S", bound=Enum)


class IllegalMove(MoorageError):
    """A move is not in the table. The message contains the last moves of the object."""


class Moves(Generic[S]):
    """`table`: the reason of each move from one state to another.

    None is before its creation, and after its end.
    """

    def __init__(self, thing: str, table: Mapping[tuple[S | None, S | None], str]) -> None:
        self._thing, self._table = thing, table
        self._after: dict[S | None, set[S]] = {}
        for start, end in table:
            if end is not None:
                self._after.setdefault(start, set()).add(end)

    def __iter__(self) -> Iterator[tuple[S | None, S | None]]:
        return iter(self._table)

    def after(self, state: S | None) -> Set[S]:
        """The possible next states; empty if the state is final."""
        return self._after.get(state, set())

    def check(self, before: S | None, after: S | None, history: Iterable[object] = ()) -> None:
        """Raise IllegalMove unless the table has the move.

        `history`: earlier events of the object, oldest first.
        """
        if (before, after) not in self._table:
            past = ", ".join(map(str, history)) or "none"
            raise IllegalMove(
                f"{self._thing} cannot go from {_word(before)} to {_word(after)}; its last moves: {past}"
            )

    def diagram(self) -> str:
        """The moves as a Mermaid diagram."""
        lines = ["stateDiagram-v2"]
        for (start, end), why in self._table.items():
            lines.append(f"    {_word(start)} --> {_word(end)}" + (f": {why}" if why else ""))
        return "\n".join(lines)


def _word(state: Enum | None) -> str:
    if state is None:
        return "[*]"
    return state.value if isinstance(state.value, str) else state.name.lower()
